package wire

import (
	"crypto/rand"
	"crypto/sha256"
	"net"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/troupego/troupe/pkg/kafka"
)

// The example of RFC 7677.
const (
	scramServerFirst = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
	scramClientFinal = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
	scramServerFinal = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
)

func scramExample(t *testing.T) *scramClient {
	t.Helper()
	c := &scramClient{hash: sha256.New, keys: &scramKeys{}}
	require.NoError(t, c.Begin("user", "pencil", ""))
	c.nonce = "rOprNGfwEbeRWgbNEkqO"
	first, err := c.Step("")
	require.NoError(t, err)
	require.Equal(t, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO", first)
	return c
}

func TestSCRAMIsThatOfTheRFC(t *testing.T) {
	c := scramExample(t)
	final, err := c.Step(scramServerFirst)
	require.NoError(t, err)
	require.Equal(t, scramClientFinal, final)
	require.False(t, c.Done())
	_, err = c.Step(scramServerFinal)
	require.NoError(t, err)
	require.True(t, c.Done())
	_, err = c.Step("")
	require.ErrorIs(t, err, errScram)
}

func TestSCRAMRefusesABrokerThatCannotBeTrusted(t *testing.T) {
	for name, message := range map[string]string{
		"nothing":             "",
		"another nonce":       strings.Replace(scramServerFirst, "r=r", "r=s", 1),
		"only our nonce":      "r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
		"no salt":             strings.Replace(scramServerFirst, "s=W22ZaJ0SNY7soEsUEjb6gQ==", "s=", 1),
		"too few iterations":  strings.Replace(scramServerFirst, "4096", "4095", 1),
		"too many iterations": strings.Replace(scramServerFirst, "4096", "99999999", 1),
		"an extension":        "m=x," + scramServerFirst,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := scramExample(t).Step(message)
			require.ErrorIs(t, err, errScram)
			require.NotContains(t, err.Error(), "pencil")
		})
	}
	for name, message := range map[string]string{"no proof": "", "another proof": "v=AAAA", "an error": "e=other-error"} {
		t.Run(name, func(t *testing.T) {
			c := scramExample(t)
			_, err := c.Step(scramServerFirst)
			require.NoError(t, err)
			_, err = c.Step(message)
			require.ErrorIs(t, err, errScram)
			require.False(t, c.Done())
		})
	}
}

func TestSCRAMWithoutAClientOfTheUsers(t *testing.T) {
	for _, mechanism := range []sarama.SASLMechanism{sarama.SASLTypeSCRAMSHA256, sarama.SASLTypeSCRAMSHA512} {
		t.Run(string(mechanism), func(t *testing.T) {
			secret := rand.Text()
			cluster := newCluster(t, kfake.EnableSASL(), kfake.Superuser(string(mechanism), "al,ice=", secret))
			n := newNetwork(t, cluster.ListenAddrs(), func(c *Config) {
				cfg := withPlain(secret)
				cfg.Net.SASL.Mechanism, cfg.Net.SASL.User = mechanism, "al,ice="
				c.Sarama = cfg
			})
			c := n.Metadata()
			defer c.Close()
			_, err := c.Metadata(t.Context(), []string{"orders"})
			require.NoError(t, err)
		})
	}
}

func TestSCRAMKeysAreKeptForOneSaltAndPassword(t *testing.T) {
	keys := &scramKeys{}
	key := func(password, salt string, iterations int) []byte {
		k, err := keys.make(sha256.New, password, []byte(salt), iterations)
		require.NoError(t, err)
		return k
	}
	first := key("pencil", "salt", scramLeastIterations)
	require.Same(t, &first[0], &key("pencil", "salt", scramLeastIterations)[0])
	require.NotEqual(t, first, key("pencil", "tlas", scramLeastIterations))
	require.NotEqual(t, first, key("crayon", "salt", scramLeastIterations))
	require.NotEqual(t, first, key("pencil", "salt", scramLeastIterations+1))
	require.Equal(t, first, key("pencil", "salt", scramLeastIterations))
}

// BenchmarkConnect is what a connection costs that is made anew, as before each end of a session, without the broker's
// part in it but for kfake's.
func BenchmarkConnect(b *testing.B) {
	serverTLS, clientTLS := selfSigned(b)
	for _, bench := range []struct {
		name string
		opts []kfake.Opt
		cfg  func(*sarama.Config)
	}{
		{"Plaintext", nil, func(*sarama.Config) {}},
		{"SCRAM", []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "alice", "secret")}, withSCRAM},
		{"TLSAndSCRAM", []kfake.Opt{kfake.TLS(serverTLS), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "alice", "secret")},
			func(c *sarama.Config) {
				withSCRAM(c)
				c.Net.TLS.Enable, c.Net.TLS.Config = true, clientTLS
			}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			cluster, err := kfake.NewCluster(append(bench.opts, kfake.NumBrokers(1))...)
			require.NoError(b, err)
			defer cluster.Close()
			cfg := sarama.NewConfig()
			bench.cfg(cfg)
			n, err := New(Config{Brokers: cluster.ListenAddrs(), Sarama: cfg})
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				l, err := n.open(b.Context(), kafka.Broker{ID: -1, Addr: cluster.ListenAddrs()[0]}, func(net.Conn) {})
				require.NoError(b, err)
				l.abort()
			}
		})
	}
}

func withSCRAM(c *sarama.Config) {
	c.Net.SASL.Enable, c.Net.SASL.Mechanism = true, sarama.SASLTypeSCRAMSHA512
	c.Net.SASL.User, c.Net.SASL.Password = "alice", "secret"
}
