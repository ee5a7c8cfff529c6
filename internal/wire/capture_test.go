package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/goleak"

	"github.com/troupego/troupe/pkg/kafka"
)

// withPlain makes a sarama configuration with SASL PLAIN.
func withPlain(password string) *sarama.Config {
	cfg := sarama.NewConfig()
	cfg.Net.SASL.Enable = true
	cfg.Net.SASL.Mechanism = sarama.SASLTypePlaintext
	cfg.Net.SASL.User, cfg.Net.SASL.Password = "alice", password
	return cfg
}

// tapped counts what goes over a connection.
type tapped struct {
	net.Conn
	mu      sync.Mutex
	written int
}

func (c *tapped) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.written += len(b)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *tapped) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written
}

// TestCapturedConnectionStillWorksWithPinnedSarama guards the one assumption of this package: after sarama opened and
// authenticated a connection, we can take it back, sarama's goroutines end and say nothing more on it, and our frames
// work. Run it after every update of sarama.
func TestCapturedConnectionStillWorksWithPinnedSarama(t *testing.T) {
	serverTLS, clientTLS := selfSigned(t)
	sasl := []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "secret")}
	for name, tc := range map[string]struct {
		opts []kfake.Opt
		cfg  func() *sarama.Config
		tls  bool
	}{
		"plain":           {cfg: sarama.NewConfig},
		"sasl":            {opts: sasl, cfg: func() *sarama.Config { return withPlain("secret") }},
		"sasl, Kafka 2.4": {opts: append(sasl[:2:2], kfake.MaxVersions(kversion.V2_4_0())), cfg: func() *sarama.Config { return withPlain("secret") }},
		"tls":             {cfg: sarama.NewConfig, tls: true},
		"sasl over tls":   {opts: sasl, cfg: func() *sarama.Config { return withPlain("secret") }, tls: true},
	} {
		t.Run(name, func(t *testing.T) {
			opts := tc.opts
			if tc.tls {
				opts = append(opts[:len(opts):len(opts)], kfake.TLS(serverTLS))
			}
			cluster := newCluster(t, opts...)
			leaked := goleak.IgnoreCurrent()
			cfg := tc.cfg()
			cfg.Net.TLS.Enable, cfg.Net.TLS.Config = tc.tls, clientTLS
			n := newNetwork(t, cluster.ListenAddrs(), func(c *Config) { c.Sarama = cfg })

			raw, err := net.Dial("tcp", cluster.ListenAddrs()[0])
			require.NoError(t, err)
			tap := &tapped{Conn: raw}
			conn := net.Conn(tap)
			if tc.tls {
				secured := tls.Client(tap, n.tlsFor(cluster.ListenAddrs()[0]))
				require.NoError(t, secured.HandshakeContext(t.Context()))
				conn = secured
			}
			before := tap.count()
			lifetime, err := n.authenticate(t.Context(), conn, cluster.ListenAddrs()[0])
			require.NoError(t, err)
			require.Zero(t, lifetime)
			if len(tc.opts) == 0 {
				require.Equal(t, before, tap.count(), "without SASL sarama says nothing")
			} else {
				require.Greater(t, tap.count(), before)
			}
			said := tap.count()
			requireNoSarama(t)
			require.Equal(t, said, tap.count(), "sarama spoke after the connection was taken back")
			require.NoError(t, conn.Close())

			// The same by the front door, with our own frames on it.
			client := n.Metadata()
			meta, err := client.Metadata(t.Context(), []string{"orders"})
			require.NoError(t, err)
			require.Len(t, meta.Topics["orders"].Partitions, 3)
			requireNoSarama(t)
			client.Close()
			cluster.Close()
			goleak.VerifyNone(t, leaked)
		})
	}
}

func TestTakenBackLoanIsUseless(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _ = theirs.Close() }()
	lent := &loan{Conn: ours}
	lent.takeBack()
	_, err := lent.Write([]byte("x"))
	require.ErrorIs(t, err, errTakenBack)
	_, err = lent.Read(make([]byte, 1))
	require.ErrorIs(t, err, errTakenBack)
	require.NoError(t, lent.Close())
	require.Equal(t, 2, lent.late)
	require.NoError(t, ours.SetDeadline(time.Time{}), "closing the loan leaves the connection open")
	require.NoError(t, ours.Close())
}

// connectError asks for metadata and returns the ConnectError it must end with.
func connectError(t *testing.T, n *Network) *kafka.ConnectError {
	t.Helper()
	c := n.Metadata()
	defer c.Close()
	_, err := c.Metadata(t.Context(), []string{"orders"})
	var failed *kafka.ConnectError
	require.ErrorAs(t, err, &failed)
	require.NotContains(t, err.Error(), "wrong-secret")
	return failed
}

func TestWrongPasswordIsAnAuthenticationError(t *testing.T) {
	cluster := newCluster(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "secret"))
	// Kafka answers; kfake only closes the connection.
	cluster.ControlKey(36, func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode, resp.ErrorMessage = int16(kafka.SaslAuthenticationFailed), kmsg.StringPtr("Authentication failed")
		return resp, nil, true
	})
	n := newNetwork(t, cluster.ListenAddrs(), func(c *Config) { c.Sarama = withPlain("wrong-secret") })
	failed := connectError(t, n)
	require.Equal(t, phaseAuthenticate, failed.Phase)
	require.ErrorIs(t, failed, kafka.SaslAuthenticationFailed)
	require.NotErrorIs(t, failed, kafka.ErrNoBroker)
}

func TestUntrustedCertificateIsATLSError(t *testing.T) {
	serverTLS, _ := selfSigned(t)
	_, otherTLS := selfSigned(t)
	cluster := newCluster(t, kfake.TLS(serverTLS))
	cfg := sarama.NewConfig()
	cfg.Net.TLS.Enable, cfg.Net.TLS.Config = true, otherTLS
	n := newNetwork(t, cluster.ListenAddrs(), func(c *Config) { c.Sarama = cfg })
	require.Equal(t, phaseTLS, connectError(t, n).Phase)
}

func TestPlaintextToTLSPortFailsAtVersions(t *testing.T) {
	serverTLS, _ := selfSigned(t)
	cluster := newCluster(t, kfake.TLS(serverTLS))
	failed := connectError(t, newNetwork(t, cluster.ListenAddrs(), nil))
	require.Equal(t, phaseVersions, failed.Phase)
	t.Log(failed)
}

func TestHTTPServerIsNotKafka(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	for name, cfg := range map[string]*sarama.Config{"plain": nil, "sasl": withPlain("secret")} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, []string{server.Listener.Addr().String()}, func(c *Config) {
				c.Sarama = cfg
				c.ConnectTimeout = time.Second
			})
			failed := connectError(t, n)
			t.Log(failed)
			if cfg == nil {
				require.Equal(t, phaseVersions, failed.Phase)
				require.ErrorIs(t, failed, kafka.ErrNotKafka)
				return
			}
			require.Equal(t, phaseAuthenticate, failed.Phase) // sarama speaks first and the server waits for a line's end
		})
	}
}

func TestRefusedPortIsADialError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	failed := connectError(t, newNetwork(t, []string{addr}, nil))
	require.Equal(t, phaseDial, failed.Phase)
	require.Equal(t, addr, failed.Addr)
	require.ErrorIs(t, failed, kafka.ErrNoBroker)
}

// plainProxy is a proxy dialer that knows no context. It says when it was asked and dials when it is released.
type plainProxy struct {
	asked   chan struct{}
	release chan struct{}
	dialed  chan net.Conn
}

func (p plainProxy) Dial(network, addr string) (net.Conn, error) {
	close(p.asked)
	<-p.release
	conn, err := net.Dial(network, addr)
	p.dialed <- conn
	return conn, err
}

func TestProxyDialerWithoutContextDoesNotHoldTheCall(t *testing.T) {
	cluster := newCluster(t)
	proxied := func() (plainProxy, *Network) {
		proxy := plainProxy{asked: make(chan struct{}), release: make(chan struct{}), dialed: make(chan net.Conn, 1)}
		cfg := sarama.NewConfig()
		cfg.Net.Proxy.Enable, cfg.Net.Proxy.Dialer = true, proxy
		return proxy, newNetwork(t, cluster.ListenAddrs(), func(c *Config) { c.Sarama = cfg })
	}
	proxy, n := proxied()
	close(proxy.release)
	c := n.Metadata()
	_, err := c.Metadata(t.Context(), []string{"orders"})
	require.NoError(t, err)
	c.Close()

	proxy, n = proxied()
	c = n.Metadata()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-proxy.asked
		cancel()
	}()
	_, err = c.Metadata(ctx, []string{"orders"})
	require.ErrorIs(t, err, context.Canceled)
	close(proxy.release)
	late := <-proxy.dialed
	for begin := time.Now(); late.SetDeadline(time.Time{}) == nil; runtime.Gosched() {
		require.Less(t, time.Since(begin), 5*time.Second, "a connection that came too late is closed")
	}
}

func TestConfigurationErrorsComeAllAtOnceAndNameTheField(t *testing.T) {
	cfg := withPlain("wrong-secret")
	cfg.Net.SASL.Version = sarama.SASLHandshakeV0
	cfg.Net.Proxy.Enable = true
	_, err := New(Config{Brokers: []string{"localhost"}, ConnectTimeout: -1, MaxResponseBytes: 1, SoftwareVersion: "a b", Sarama: cfg})
	for _, field := range []string{"Brokers[0]", "ConnectTimeout", "MaxResponseBytes", "SoftwareVersion", "Sarama.Net.SASL.Version", "Sarama.Net.Proxy.Dialer"} {
		require.ErrorContains(t, err, "wire: "+field+":")
	}
	require.NotContains(t, err.Error(), "wrong-secret")
	var one *ConfigError
	require.ErrorAs(t, err, &one)
	_, err = New(Config{})
	require.ErrorContains(t, err, "Brokers")
}

func TestSessionIsRenewedBeforeItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, plain := bubbleNetwork(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "secret"),
			kfake.BrokerConfigs(map[string]string{"connections.max.reauth.ms": "60000"}))
		defer cluster.Close()
		var dialed int
		n := newNetwork(t, cluster.ListenAddrs(), func(c *Config) {
			c.Sarama = withPlain("secret")
			c.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dialed++
				return plain.cfg.Dial(ctx, network, addr)
			}
		})
		meta, fetch := n.Metadata(), n.Fetch(kafka.Broker{ID: 0, Addr: cluster.ListenAddrs()[0]})
		defer meta.Close()
		defer fetch.Close()
		ask := func() {
			_, err := meta.Metadata(t.Context(), []string{"orders"})
			require.NoError(t, err)
			_, err = fetch.Fetch(t.Context(), fetchOf(nil, orders0))
			require.NoError(t, err)
		}
		ask()
		require.Equal(t, 2, dialed)
		time.Sleep(47 * time.Second)
		ask()
		require.Equal(t, 2, dialed)
		time.Sleep(time.Second)
		ask()
		require.Equal(t, 4, dialed, "made anew at 80 % of the lifetime")
		time.Sleep(time.Hour)
		ask()
		require.Equal(t, 6, dialed, "and after it")
	})
}

func TestSessionLifetimeOfOddTalkIsNone(t *testing.T) {
	for _, heard := range [][]byte{nil, {1}, {0, 0, 0, 2, 1, 1}, {0, 0, 0, 4, 0, 0, 0, 1}, bytes.Repeat([]byte{0xff}, 100)} {
		require.Zero(t, sessionLifetime(heard))
	}
}
