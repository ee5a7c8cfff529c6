package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/integration/launch"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// unsecuredTokens is a token provider for the brokers of launch.
type unsecuredTokens struct{ user string }

// Token implements sarama.AccessTokenProvider.
func (p unsecuredTokens) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: launch.UnsecuredToken(p.user, tokenLifetime)}, nil
}

// ignore is a handler for members that never get a record.
func ignore(context.Context, *kafka.Record) error { return nil }

// Every way in that a user may configure delivers records.
func TestEveryWayIn(t *testing.T) {
	t.Parallel()
	cluster := realKafka.guarded(t)
	alice := cluster.User("alice")
	type way struct{ listener, mechanism string }
	ways := []way{{launch.ListenerSSL, ""}}
	for _, mechanism := range []string{launch.MechanismPlain, launch.MechanismSCRAM256, launch.MechanismSCRAM512, launch.MechanismOAuthBearer} {
		ways = append(ways, way{launch.ListenerSASLPlaintext, mechanism}, way{launch.ListenerSASLSSL, mechanism})
	}
	prepare := newAdmin(t, cluster.Brokers(), nil)
	topic := unique(t, "topic")
	prepare.CreateTopic(t, topic, 2)
	prepare.Produce(t, topic, numbered(2, 5)...)
	for _, w := range ways {
		t.Run(w.listener+"/"+w.mechanism, func(t *testing.T) {
			t.Parallel()
			b := &kafkaBroker{cluster: cluster, listener: w.listener}
			in := login(cluster, w.listener, w.mechanism, alice)
			if w.mechanism == "" { // the certificate is the login
				own, err := cluster.Authority().Issue(launch.ValidCertificate, alice.Name)
				require.NoError(t, err)
				in = api.WithSaramaConfig(func(c *sarama.Config) {
					c.Net.TLS.Enable, c.Net.TLS.Config = true, cluster.TLS()
					c.Net.TLS.Config.Certificates = []tls.Certificate{own.TLS()}
				})
			}
			l := newLedger()
			m := spawn(t, config(b, unique(t, "group")), in, api.Handle(topic, l.note("a")))
			m.allHandledIn(t, patience, l, 10)
			m.mustClose(t)
			require.Empty(t, told[event.ConnectFailed](m))
		})
	}
}

// refusedWay demands that a member that comes in the wrong way says so, by event and by WaitJoined, and goes on trying.
func refusedWay(t *testing.T, addrs []string, in api.Option, want func(error) bool) {
	t.Helper()
	m := spawn(t, api.Config{Brokers: addrs, GroupID: "refused"}, in, api.Handle("orders", ignore))
	e := tellsOf(t, m, noticed, func(e event.ConnectFailed) bool { return want(e.Err) && e.RetryIn > 0 })
	t.Log(e.Err)
	ctx, cancel := context.WithTimeout(t.Context(), noticed)
	defer cancel()
	err := m.WaitJoined(ctx)
	require.True(t, want(err), "WaitJoined: %v", err)
	require.Contains(t, err.Error(), addrs[0])
	tellsOf(t, m, patience, func(event.ConnectFailed) bool { return len(told[event.ConnectFailed](m)) >= 2 })
}

// inPhase reports whether a connection failed in a phase and for a cause.
func inPhase(phase string, cause error) func(error) bool {
	return func(err error) bool {
		failed, ok := errors.AsType[*kafka.ConnectError](err)
		return ok && failed.Phase == phase && errors.Is(err, cause)
	}
}

func TestTheWrongWayInIsNamed(t *testing.T) {
	t.Parallel()
	cluster := realKafka.guarded(t)
	alice := cluster.User("alice")
	tokenOfNobody := api.WithSaramaConfig(func(c *sarama.Config) {
		c.Net.SASL.Enable, c.Net.SASL.Mechanism = true, sarama.SASLTypeOAuth
		c.Net.SASL.TokenProvider = staticToken("not-a-token")
	})
	for name, tt := range map[string]struct {
		listener string
		in       api.Option
		want     func(error) bool
	}{
		"WrongPassword": {launch.ListenerSASLSSL, login(cluster, launch.ListenerSASLSSL, launch.MechanismPlain, launch.User{Name: "alice", Password: "wrong"}),
			inPhase("authenticate", kafka.SaslAuthenticationFailed)},
		"UnknownUser": {launch.ListenerSASLSSL, login(cluster, launch.ListenerSASLSSL, launch.MechanismSCRAM256, launch.User{Name: "nobody", Password: "wrong"}),
			inPhase("authenticate", kafka.SaslAuthenticationFailed)},
		"WrongToken": {launch.ListenerSASLPlaintext, tokenOfNobody, inPhase("authenticate", kafka.SaslAuthenticationFailed)},
		"UnknownMechanism": {launch.ListenerSASLPlaintext, kerberos("unused"), func(err error) bool {
			refused, ok := errors.AsType[*kafka.AuthError](err)
			return ok && inPhase("authenticate", kafka.UnsupportedSaslMechanism)(err) && len(refused.Offered) == 4
		}},
		"PlaintextToTLS": {launch.ListenerSSL, login(cluster, launch.ListenerPlaintext, "", alice), namesTLS("versions")},
		"SASLWithoutTLS": {launch.ListenerSASLSSL, login(cluster, launch.ListenerSASLPlaintext, launch.MechanismPlain, alice), namesTLS("authenticate")},
		"TLSToPlaintext": {launch.ListenerPlaintext, login(cluster, launch.ListenerSSL, "", alice), namesTLS("tls")},
		"NoLogin":        {launch.ListenerSASLPlaintext, login(cluster, launch.ListenerPlaintext, "", alice), func(err error) bool { return errors.Is(err, kafka.ErrHungUp) }},
		"LoginNotWanted": {launch.ListenerPlaintext, login(cluster, launch.ListenerSASLPlaintext, launch.MechanismPlain, alice), inPhase("authenticate", kafka.IllegalSaslState)},
		"NoOwnCertificate": {launch.ListenerSSL, login(cluster, launch.ListenerSSL, "", alice), func(err error) bool {
			failed, ok := errors.AsType[*kafka.ConnectError](err)
			return ok && failed.Phase == "tls"
		}},
		"ForeignCertificate": {launch.ListenerSSL, foreignCertificate(t, cluster), func(err error) bool {
			failed, ok := errors.AsType[*kafka.ConnectError](err)
			return ok && failed.Phase == "tls"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusedWay(t, cluster.BrokersOf(tt.listener), tt.in, tt.want)
		})
	}
}

// namesTLS reports whether a connection failed in a phase because one end speaks TLS and the other does not.
func namesTLS(phase string) func(error) bool {
	return func(err error) bool {
		return inPhase(phase, kafka.ErrTLSNeeded)(err) || inPhase(phase, kafka.ErrNoTLS)(err) || inPhase(phase, kafka.ErrHungUp)(err)
	}
}

// staticToken is a token provider that always gives the same one.
type staticToken string

// Token implements sarama.AccessTokenProvider.
func (s staticToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(s)}, nil
}

// kerberos is a login by GSSAPI with a password.
func kerberos(password string) api.Option {
	return api.WithSaramaConfig(func(c *sarama.Config) {
		c.Net.SASL.Enable, c.Net.SASL.Mechanism = true, sarama.SASLTypeGSSAPI
		c.Net.SASL.GSSAPI = sarama.GSSAPIConfig{AuthType: sarama.KRB5_USER_AUTH, ServiceName: "kafka", Realm: "EXAMPLE.COM",
			Username: "alice", Password: password, KerberosConfigPath: "no-such-krb5.conf"}
	})
}

// foreignCertificate is a client certificate of an authority that the brokers do not know.
func foreignCertificate(t *testing.T, cluster *launch.Cluster) api.Option {
	t.Helper()
	other, err := launch.NewAuthority()
	require.NoError(t, err)
	own, err := other.Issue(launch.ValidCertificate, "alice")
	require.NoError(t, err)
	certificate := own.TLS()
	return api.WithSaramaConfig(func(c *sarama.Config) {
		c.Net.TLS.Enable, c.Net.TLS.Config = true, cluster.TLS()
		// As clients in other languages do, whatever authorities the broker says it takes.
		c.Net.TLS.Config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	})
}
