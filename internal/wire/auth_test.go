package wire

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// refuseLogins has a cluster refuse every login until told otherwise, as Kafka does; kfake itself only hangs up.
func refuseLogins(cluster *kfake.Cluster) (allow func()) {
	var allowed atomic.Bool
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if allowed.Load() {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode, resp.ErrorMessage = int16(kafka.SaslAuthenticationFailed), kmsg.StringPtr("Authentication failed")
		return resp, nil, true
	})
	return func() { allowed.Store(true) }
}

func TestRefusedLoginsAreNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, plain := bubbleNetwork(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "secret"))
		defer cluster.Close()
		allow := refuseLogins(cluster)
		var dialed int
		n := newNetwork(t, cluster.ListenAddrs(), func(c *Config) {
			c.Sarama = withPlain("secret")
			c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dialed++
				return plain.cfg.Dial(ctx, network, addr)
			}
		})
		meta, beat := n.Metadata(), n.Heartbeat()
		defer meta.Close()
		defer beat.Close()
		ask := func() error {
			broker := kafka.Broker{ID: 0, Addr: cluster.ListenAddrs()[0]}
			beaten := beat.Heartbeat(t.Context(), broker, rebalance.HeartbeatRequest{GroupID: group})
			_, err := meta.Metadata(t.Context(), []string{"orders"})
			if err != nil {
				var login *kafka.AuthError
				require.ErrorAs(t, beaten, &login)
				require.ErrorAs(t, err, &login)
				require.Equal(t, "PLAIN", login.Mechanism)
				require.ErrorIs(t, err, kafka.SaslAuthenticationFailed)
				require.NotErrorIs(t, err, kafka.ErrNoBroker)
			}
			return err
		}
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
			require.Error(t, ask())
		}
		require.LessOrEqual(t, dialed, 16, "logins in a minute")
		require.GreaterOrEqual(t, dialed, 12)
		allow()
		began := time.Now()
		for ask() != nil {
			time.Sleep(10 * time.Millisecond)
		}
		require.LessOrEqual(t, time.Since(began), loginPauseMost+time.Second)
		require.Empty(t, n.logins.refused)
	})
}

func TestUnknownMechanismNamesWhatIsOffered(t *testing.T) {
	cluster := newCluster(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "secret"))
	cluster.ControlKey(int16(kmsg.SASLHandshake), func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
		resp.ErrorCode, resp.SupportedMechanisms = int16(kafka.UnsupportedSaslMechanism), []string{"GSSAPI", "SCRAM-SHA-512"}
		return resp, nil, true
	})
	failed := connectError(t, newNetwork(t, cluster.ListenAddrs(), func(c *Config) { c.Sarama = withPlain("wrong-secret") }))
	require.Equal(t, phaseAuthenticate, failed.Phase)
	require.ErrorIs(t, failed, kafka.UnsupportedSaslMechanism)
	var login *kafka.AuthError
	require.ErrorAs(t, failed, &login)
	require.Equal(t, []string{"GSSAPI", "SCRAM-SHA-512"}, login.Offered)
	require.ErrorContains(t, failed, "offered: GSSAPI, SCRAM-SHA-512")
}

func TestTLSAndNoTLSAreToldApart(t *testing.T) {
	serverTLS, clientTLS := selfSigned(t)
	secured, plain := newCluster(t, kfake.TLS(serverTLS)), newCluster(t)
	for _, cfg := range []*sarama.Config{nil, withPlain("wrong-secret")} {
		failed := connectError(t, newNetwork(t, secured.ListenAddrs(), func(c *Config) { c.Sarama = cfg }))
		require.True(t, errors.Is(failed, kafka.ErrTLSNeeded) || errors.Is(failed, kafka.ErrHungUp), "%v", failed)
	}
	cfg := sarama.NewConfig()
	cfg.Net.TLS.Enable, cfg.Net.TLS.Config = true, clientTLS
	// Kafka hangs up; kfake waits for the rest of what it takes for a huge request.
	failed := connectError(t, newNetwork(t, plain.ListenAddrs(), func(c *Config) {
		c.Sarama, c.ConnectTimeout = cfg, 300*time.Millisecond
	}))
	require.Equal(t, phaseTLS, failed.Phase)
}

// tokens is a token provider made of a function.
type tokens func() (*sarama.AccessToken, error)

func (f tokens) Token() (*sarama.AccessToken, error) { return f() }

func withTokens(f tokens) *sarama.Config {
	cfg := sarama.NewConfig()
	cfg.Net.SASL.Enable, cfg.Net.SASL.Mechanism, cfg.Net.SASL.TokenProvider = true, sarama.SASLTypeOAuth, f
	return cfg
}

// anyMechanism has a cluster accept every mechanism's name.
func anyMechanism(cluster *kfake.Cluster) {
	cluster.ControlKey(int16(kmsg.SASLHandshake), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return req.ResponseKind(), nil, true
	})
}

func TestTokenProviderThatFailsIsAnAuthError(t *testing.T) {
	cluster := newCluster(t, kfake.EnableSASL())
	anyMechanism(cluster)
	errOwn := errors.New("the identity provider is down")
	for name, tc := range map[string]struct {
		provider tokens
		want     error
	}{
		"error":    {func() (*sarama.AccessToken, error) { return nil, errOwn }, errOwn},
		"panic":    {func() (*sarama.AccessToken, error) { panic("boom") }, errPanicked},
		"no token": {func() (*sarama.AccessToken, error) { return nil, nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			failed := connectError(t, newNetwork(t, cluster.ListenAddrs(), func(c *Config) { c.Sarama = withTokens(tc.provider) }))
			require.Equal(t, phaseAuthenticate, failed.Phase)
			var login *kafka.AuthError
			require.ErrorAs(t, failed, &login)
			require.Equal(t, "OAUTHBEARER", login.Mechanism)
			if tc.want != nil {
				require.ErrorIs(t, failed, tc.want)
			}
		})
	}
}

func TestTokenProviderThatHangsIsCalledABoundedNumberOfTimes(t *testing.T) {
	cluster := newCluster(t, kfake.EnableSASL())
	anyMechanism(cluster)
	release := make(chan struct{})
	var calls atomic.Int64
	n := newNetwork(t, cluster.ListenAddrs(), func(c *Config) {
		c.ConnectTimeout = 30 * time.Millisecond
		c.Sarama = withTokens(func() (*sarama.AccessToken, error) {
			calls.Add(1)
			<-release
			return nil, errors.New("too late")
		})
	})
	for range mostTokenCalls + 4 {
		require.Equal(t, phaseAuthenticate, connectError(t, n).Phase)
	}
	require.EqualValues(t, mostTokenCalls, calls.Load())
	close(release)
}

func TestGSSAPIGoesToTheKerberosLibrary(t *testing.T) {
	cluster := newCluster(t, kfake.EnableSASL())
	anyMechanism(cluster)
	missing := filepath.Join(t.TempDir(), "krb5.conf")
	failed := connectError(t, newNetwork(t, cluster.ListenAddrs(), func(c *Config) {
		cfg := sarama.NewConfig()
		cfg.Net.SASL.Enable, cfg.Net.SASL.Mechanism = true, sarama.SASLTypeGSSAPI
		cfg.Net.SASL.GSSAPI = sarama.GSSAPIConfig{AuthType: sarama.KRB5_USER_AUTH, ServiceName: "kafka", Realm: "EXAMPLE.COM",
			Username: "alice", Password: "wrong-secret", KerberosConfigPath: missing}
		c.Sarama = cfg
	}))
	require.Equal(t, phaseAuthenticate, failed.Phase)
	require.ErrorContains(t, failed, missing, "the library reads its configuration")
	var login *kafka.AuthError
	require.ErrorAs(t, failed, &login)
	require.Equal(t, "GSSAPI", login.Mechanism)
}

func TestAnAddressIsTracedToTheAnswerThatNamedIt(t *testing.T) {
	cluster := newCluster(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := l.Addr().(*net.TCPAddr)
	require.NoError(t, l.Close())
	cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = 7, nobody.IP.String(), int32(nobody.Port)
		resp.Brokers = append(resp.Brokers, b)
		return resp, nil, true
	})
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	meta := n.Metadata()
	defer meta.Close()
	m, err := meta.Metadata(t.Context(), []string{"orders"})
	require.NoError(t, err)
	fetch := n.Fetch(m.Brokers[7])
	defer fetch.Close()
	_, err = fetch.Fetch(t.Context(), fetchOf(nil, orders0))
	var failed *kafka.ConnectError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, nobody.String(), failed.Addr)
	require.Equal(t, "Metadata from -1@"+cluster.ListenAddrs()[0], failed.Source)
	require.ErrorContains(t, err, nobody.String()+" (Metadata from -1@"+cluster.ListenAddrs()[0]+"): dial:")
	require.Empty(t, n.source(cluster.ListenAddrs()[0]), "a bootstrap server")

	coordinator := coordinatorOf(t, n)
	n.cfg.Brokers = []string{"localhost:1"}
	require.Contains(t, n.source(coordinator.Addr), "FindCoordinator from ")
}
