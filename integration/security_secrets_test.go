package integration

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/troupego/troupe/integration/launch"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
)

// tokenLifetime is that of an unsecured token.
const tokenLifetime = time.Hour

// transcript keeps everything that was written.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (s *transcript) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

// Print implements sarama.StdLogger.
func (s *transcript) Print(v ...any) { fmt.Fprint(s, v...) }

// Printf implements sarama.StdLogger.
func (s *transcript) Printf(format string, v ...any) { fmt.Fprintf(s, format, v...) }

// Println implements sarama.StdLogger.
func (s *transcript) Println(v ...any) { fmt.Fprintln(s, v...) }

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// saramaLog is all that sarama logs in this process.
var saramaLog = &transcript{}

// tellEverything has a member write down all that an operator can get to see of it, at the lowest level.
func tellEverything(out *transcript) []api.Part {
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.AddSync(out), zap.DebugLevel)
	return []api.Part{
		api.WithLogger(zap.New(core, zap.AddCaller(), zap.AddStacktrace(zap.DebugLevel))),
		api.WithObserver(func(e event.Event) { fmt.Fprintf(out, "%s %+v %#v\n", e.Name(), e, e) }),
	}
}

// Passwords and tokens are nowhere in what the library says, whether they are taken or refused.
func TestSecretsAreNeverTold(t *testing.T) {
	t.Parallel()
	cluster := realKafka.guarded(t)
	b := securedBroker(t, cluster)
	const right, wrong = "right-3cr3t-0f-test", "wr0ng-3cr3t-0f-test"
	user := newUser(t, cluster, right)
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 1)
	n := fill(t, b, topic, 1, 5)
	require.NoError(t, cluster.Allow(requestContext(t), launch.ConsumerACLs(user.Name, group, topic)...))
	token := launch.UnsecuredToken(user.Name, tokenLifetime)
	liar := launch.User{Name: user.Name, Password: wrong}
	out := &transcript{}
	for name, tt := range map[string]struct {
		listener string
		in       api.Option
		good     bool
	}{
		"Right":          {launch.ListenerSASLSSL, login(cluster, launch.ListenerSASLSSL, launch.MechanismSCRAM512, user), true},
		"WrongPlain":     {launch.ListenerSASLSSL, login(cluster, launch.ListenerSASLSSL, launch.MechanismPlain, liar), false},
		"WrongSCRAM256":  {launch.ListenerSASLPlaintext, login(cluster, launch.ListenerSASLPlaintext, launch.MechanismSCRAM256, liar), false},
		"WrongSCRAM512":  {launch.ListenerSASLSSL, login(cluster, launch.ListenerSASLSSL, launch.MechanismSCRAM512, liar), false},
		"RefusedToken":   {launch.ListenerSASLPlaintext, oauth(staticToken(token + wrong)), false},
		"Kerberos":       {launch.ListenerSASLPlaintext, kerberos(wrong), false},
		"NoSASLThere":    {launch.ListenerPlaintext, login(cluster, launch.ListenerSASLPlaintext, launch.MechanismPlain, user), false},
		"TLSWanted":      {launch.ListenerSASLSSL, login(cluster, launch.ListenerSASLPlaintext, launch.MechanismPlain, user), false},
		"AcceptedTokens": {launch.ListenerSASLPlaintext, oauth(staticToken(token)), true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			c := config(&kafkaBroker{cluster: cluster, listener: tt.listener}, group)
			m := spawn(t, c, append(tellEverything(out), tt.in, api.Handle(topic, l.note("a")))...)
			ctx, cancel := context.WithTimeout(t.Context(), noticed)
			defer cancel()
			err := m.WaitJoined(ctx)
			require.Equal(t, tt.good, err == nil, "%v", err)
			fmt.Fprintf(out, "%v %+v %#v %v %+v\n", err, err, err, m.Healthy(), m.Stats())
			if tt.good && name == "Right" {
				m.allHandledIn(t, patience, l, n)
			}
			fmt.Fprintf(out, "%+v %v %v\n", m.Stats(), m.Close(ctx), m.Err())
		})
	}
	_, err := api.Spawn(t.Context(), config(b, group), api.Handle(topic, ignore), api.WithSaramaConfig(func(c *sarama.Config) {
		c.Net.SASL.Enable, c.Net.SASL.Password, c.Net.SASL.Version = true, wrong, sarama.SASLHandshakeV0
	}))
	require.Error(t, err)
	fmt.Fprintf(out, "%v %+v %#v\n", err, err, err)

	all := out.String() + saramaLog.String()
	require.Contains(t, all, "SASL_AUTHENTICATION_FAILED")
	require.Contains(t, saramaLog.String(), "SASL authentication", "sarama's log is listened to")
	for name, secret := range map[string]string{"password": right, "wrong password": wrong, "token": token} {
		// Not require.NotContains: it would print them.
		require.False(t, strings.Contains(all, secret), "the %s is told", name)
		require.False(t, strings.Contains(all, base64.StdEncoding.EncodeToString([]byte(secret))), "the %s is told in base64", name)
	}
}

// oauth is a login by OAUTHBEARER.
func oauth(tokens sarama.AccessTokenProvider) api.Option {
	return api.WithSaramaConfig(func(c *sarama.Config) {
		c.Net.SASL.Enable, c.Net.SASL.Mechanism, c.Net.SASL.TokenProvider = true, sarama.SASLTypeOAuth, tokens
	})
}
