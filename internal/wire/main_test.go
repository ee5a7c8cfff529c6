package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rcrowley/go-metrics"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/troupego/troupe/pkg/kafka"
)

// TestMain makes the first meter of go-metrics (sarama uses them) outside of any bubble: its goroutine never ends.
func TestMain(m *testing.M) {
	metrics.NewMeter().Mark(1)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

const group = "billing"

// newCluster starts an embedded broker on loopback.
func newCluster(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(3, "orders")}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	return cluster
}

// newNetwork returns a network over these brokers.
func newNetwork(t *testing.T, brokers []string, adjust func(*Config)) *Network {
	t.Helper()
	cfg := Config{Brokers: brokers, ClientID: "test"}
	if adjust != nil {
		adjust(&cfg)
	}
	n, err := New(cfg)
	require.NoError(t, err)
	return n
}

// coordinatorOf finds the group's coordinator over a network.
func coordinatorOf(t *testing.T, n *Network) kafka.Broker {
	t.Helper()
	c := n.Metadata()
	defer c.Close()
	b, err := c.FindCoordinator(t.Context(), group)
	require.NoError(t, err)
	return b
}

// produce writes values to one partition, each in a batch of its own.
func produce(t *testing.T, brokers []string, topic string, partition int32, values ...string) {
	t.Helper()
	p, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	defer p.Close()
	for _, v := range values {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(v)}
		require.NoError(t, p.ProduceSync(context.Background(), r).FirstErr())
	}
}

// selfSigned returns a certificate for loopback and the configuration of a client that trusts it.
func selfSigned(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12},
		&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}

// silent is the dial of a network in which everybody accepts and nobody ever reads or answers.
func silent(t *testing.T) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close() })
		return ours, nil
	}
}

// requireNoSarama fails when a goroutine of sarama stays alive.
func requireNoSarama(t *testing.T) {
	t.Helper()
	buf := make([]byte, 1<<20)
	for begin := time.Now(); strings.Contains(string(buf[:runtime.Stack(buf, true)]), "sarama.(*Broker)"); runtime.Gosched() {
		require.Less(t, time.Since(begin), 5*time.Second, "a goroutine of sarama is left")
	}
}
