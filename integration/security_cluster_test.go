package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/integration/launch"
	"github.com/troupego/troupe/pkg/api"
)

// The clusters that all tests share, one for each version. Each is started by the first test that wants it.
var (
	realKafka = sharedKafka{}
	oldKafka  = sharedKafka{version: launch.OldVersion}
)

// sharedKafka is a cluster with every kind of listener. Tests must not hurt it: rights and passwords are changed only for
// users of a test's own.
type sharedKafka struct {
	// version is a fixed one; empty: the one the environment asks for, which may also be an outside cluster.
	version string

	once    sync.Once
	cluster *launch.Cluster
	err     error

	mu       sync.Mutex
	reported map[string]bool
}

// errOtherBrokers is why a cluster of a fixed version is left out.
var errOtherBrokers = errors.New("this run is on the brokers or the version that was asked for")

// reauthMillis is how long a login by SASL_SSL and SCRAM-SHA-512 lasts: everything that runs by it is interrupted all the
// time.
const reauthMillis = 3000

func (s *sharedKafka) start(t *testing.T) {
	options := launch.Options{Version: s.version, Log: t.Logf}
	outside := os.Getenv("TROUPE_KAFKA_BROKERS") != ""
	if s.version != "" && (outside || os.Getenv("TROUPE_KAFKA_VERSION") == s.version) {
		s.err = errOtherBrokers
		return
	}
	if !outside {
		options.Security = &launch.Security{
			Mechanisms: []string{launch.MechanismPlain, launch.MechanismSCRAM256, launch.MechanismSCRAM512,
				launch.MechanismOAuthBearer},
			ClientCertificates: true,
		}
		options.Properties = map[string]string{
			"listener.name.sasl_ssl.scram-sha-512.connections.max.reauth.ms": fmt.Sprint(reauthMillis),
		}
	}
	s.cluster, s.err = launch.Start(context.Background(), options)
	if s.err == nil && s.cluster.Authority() != nil {
		s.err = s.cluster.Allow(context.Background(), launch.ConsumerACLs("alice", "*", "*")...)
	}
	if errors.Is(s.err, launch.ErrUnavailable) && !launch.Required() {
		launch.ReportSkipped("integration on real Kafka", s.err)
	}
}

// use returns the cluster, and skips the test where there can be none, the first time loudly; where one is required it
// fails.
func (s *sharedKafka) use(t *testing.T) *launch.Cluster {
	t.Helper()
	s.once.Do(func() { s.start(t) })
	if errors.Is(s.err, errOtherBrokers) || errors.Is(s.err, launch.ErrUnavailable) && !launch.Required() {
		t.Skip(s.err)
	}
	require.NoError(t, s.err)
	return s.cluster
}

// broker is the cluster by the listener that asks for nothing.
func (s *sharedKafka) broker(t *testing.T) broker {
	t.Helper()
	cluster := s.use(t)
	s.report(cluster.String())
	return &kafkaBroker{cluster: cluster, listener: launch.ListenerPlaintext, admin: newAdmin(t, cluster.Brokers(), nil)}
}

// secured is the cluster by TLS and SCRAM, as a user who may only consume, and must log in again every few seconds.
func (s *sharedKafka) secured(t *testing.T) broker {
	t.Helper()
	cluster := s.guarded(t)
	s.report(cluster.String() + " by SASL_SSL and SCRAM-SHA-512")
	b := &kafkaBroker{cluster: cluster, listener: launch.ListenerSASLSSL, admin: newAdmin(t, cluster.Brokers(), nil)}
	logins.add(b.Addrs(), login(cluster, b.listener, launch.MechanismSCRAM512, cluster.User("alice")))
	return b
}

// guarded is a cluster with secured listeners, which outside ones are not taken for.
func (s *sharedKafka) guarded(t *testing.T) *launch.Cluster {
	t.Helper()
	cluster := s.use(t)
	if cluster.Authority() == nil {
		t.Skip("the outside cluster's users are not known")
	}
	return cluster
}

// report names a way into a cluster once.
func (s *sharedKafka) report(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reported[line] {
		return
	}
	if s.reported == nil {
		s.reported = make(map[string]bool)
	}
	s.reported[line] = true
	launch.Report(line)
}

func (s *sharedKafka) stop(failed bool) error {
	if s.cluster == nil {
		return nil
	}
	if failed && !s.cluster.External() {
		s.cluster.KeepLogs()
		fmt.Printf("logs of %s are kept in %s\n", s.cluster, s.cluster.LogDir())
	}
	return s.cluster.Stop()
}

// kafkaBroker is a real Kafka by one of its listeners. What tests prepare goes by PLAINTEXT.
type kafkaBroker struct {
	cluster  *launch.Cluster
	listener string
	admin
}

// Addrs implements broker.
func (b *kafkaBroker) Addrs() []string {
	if b.cluster.External() {
		return b.cluster.Brokers()
	}
	return b.cluster.BrokersOf(b.listener)
}

// Version implements broker.
func (b *kafkaBroker) Version() string { return b.cluster.String() }

// logins are how spawn comes into the listeners that want a login, where a test says nothing else.
var logins loginBook

type loginBook struct {
	mu   sync.Mutex
	book map[string]api.Part
}

func (l *loginBook) add(addrs []string, how api.Part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.book == nil {
		l.book = make(map[string]api.Part)
	}
	for _, addr := range addrs {
		l.book[addr] = how
	}
}

func (l *loginBook) of(addrs []string) api.Part {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, addr := range addrs {
		if how := l.book[addr]; how != nil {
			return how
		}
	}
	return nil
}

// login is what a user of the library writes to come in by a listener and a mechanism ("" for none).
func login(cluster *launch.Cluster, listener, mechanism string, user launch.User) api.Option {
	return api.WithSaramaConfig(func(c *sarama.Config) {
		c.Net.TLS.Enable = slices.Contains([]string{launch.ListenerSASLSSL, launch.ListenerSSL}, listener)
		c.Net.TLS.Config = cluster.TLS()
		if mechanism == "" {
			return
		}
		c.Net.SASL.Enable = true
		c.Net.SASL.Mechanism = sarama.SASLMechanism(mechanism)
		c.Net.SASL.User, c.Net.SASL.Password = user.Name, user.Password
		if mechanism == launch.MechanismOAuthBearer {
			c.Net.SASL.TokenProvider = unsecuredTokens{user.Name}
		}
	})
}
