package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// ErrClosed is returned by the methods of a [Broker] that was closed.
var ErrClosed = errors.New("kafkatest: broker is closed")

// Broker is a Kafka cluster of one or more nodes inside the process. Its methods may be called from several goroutines.
type Broker struct {
	settings *settings
	network  *network
	cluster  *kfake.Cluster
	addrs    []string

	// mu keeps the cluster from being closed while a method uses it: kfake's methods never return on a closed one.
	mu     sync.RWMutex
	closed bool

	clients clients
}

// NewBroker starts a broker that is closed when the test ends. It fails the test when it cannot be started.
func NewBroker(t testing.TB, opts ...Option) *Broker {
	t.Helper()
	b, err := StartBroker(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// StartBroker starts a broker for programs without a [testing.TB], such as examples. The caller must call Close.
func StartBroker(opts ...Option) (*Broker, error) {
	s, err := newSettings(opts)
	if err != nil {
		return nil, err
	}
	b := &Broker{settings: s, network: newNetwork(s.inMemory)}
	options := []kfake.Opt{kfake.NumBrokers(s.brokers), kfake.ListenFn(b.network.listen)}
	if s.minSessionTimeout > 0 {
		options = append(options, kfake.GroupMinSessionTimeout(s.minSessionTimeout))
	}
	if b.cluster, err = kfake.NewCluster(options...); err != nil {
		return nil, fmt.Errorf("kafkatest: %w", err)
	}
	b.addrs = b.cluster.ListenAddrs()
	b.clients = clients{broker: b, open: make(map[*kgo.Client]struct{}), topics: make(map[string]topicState)}
	for _, t := range s.topics {
		if err := b.CreateTopic(t.name, t.partitions); err != nil {
			b.Close()
			return nil, err
		}
	}
	return b, nil
}

// Close stops the broker and breaks all connections. It may be called again.
func (b *Broker) Close() {
	b.clients.closeAll() // ends the methods that wait for an answer, so that the lock is to be had
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	b.cluster.Close()
	b.network.gate.cut()
}

// use calls f while the broker is open.
func (b *Broker) use(f func() error) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return ErrClosed
	}
	return f()
}

// Addrs returns the bootstrap servers, "host:port" of each node. With [InMemory] they mean something to [Broker.Dial] only.
func (b *Broker) Addrs() []string { return slices.Clone(b.addrs) }

// Dial connects a client to a node. It has the shape of [net.Dialer.DialContext]. Clients need it with [InMemory] only;
// on loopback it does what net.Dialer does.
func (b *Broker) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return b.network.dial(ctx, network, addr)
}

// Cluster returns the embedded cluster, for what kfake can do and this package does not offer. It must not be used after
// Close: most of its methods would then never return.
func (b *Broker) Cluster() *kfake.Cluster { return b.cluster }

// Version says what the broker is, such as "kfake v0.0.0-20260918054303-01f206a7e32c", or "kfake" where the program was
// built without that knowledge.
func (b *Broker) Version() string {
	const module = "github.com/twmb/franz-go/pkg/kfake"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				return "kfake " + dep.Version
			}
		}
	}
	return "kfake"
}

// CreateTopic creates a topic. It fails when there is one of that name.
func (b *Broker) CreateTopic(name string, partitions int32) error {
	return b.use(func() error {
		if err := b.cluster.CreateTopic(name, partitions, nil); err != nil {
			return fmt.Errorf("kafkatest: create topic %q: %w", name, err)
		}
		return nil
	})
}

// AddPartitions raises the number of a topic's partitions by added.
func (b *Broker) AddPartitions(ctx context.Context, topic string, added int) error {
	return b.use(func() error {
		client, err := b.clients.shared()
		if err != nil {
			return err
		}
		have := len(b.cluster.PartitionInfos(topic))
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.TimeoutMillis = 10_000
		t := kmsg.NewCreatePartitionsRequestTopic()
		t.Topic, t.Count = topic, int32(have+added)
		req.Topics = append(req.Topics, t)
		resp, err := req.RequestWith(ctx, client)
		if err == nil && len(resp.Topics) == 1 {
			err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
		}
		if err != nil {
			return fmt.Errorf("kafkatest: add %d partitions to %q: %w", added, topic, err)
		}
		return nil
	})
}

// Committed returns the offsets that a consumer group has committed, as the broker holds them: the next offset to read of
// each partition. It is empty for a group that does not exist.
func (b *Broker) Committed(group string) (map[kafka.TopicPartition]int64, error) {
	committed := make(map[kafka.TopicPartition]int64)
	err := b.use(func() error {
		info := b.cluster.GroupInfo(group)
		if info == nil {
			return nil
		}
		for topic, partitions := range info.Commits {
			for partition, commit := range partitions {
				committed[kafka.TopicPartition{Topic: topic, Partition: partition}] = commit.Offset
			}
		}
		return nil
	})
	return committed, err
}

// EndOffsets returns the high watermark of each partition of a topic: the offset that the next record gets.
func (b *Broker) EndOffsets(topic string) (map[kafka.TopicPartition]int64, error) {
	ends := make(map[kafka.TopicPartition]int64)
	err := b.use(func() error {
		infos := b.cluster.PartitionInfos(topic)
		if len(infos) == 0 {
			return fmt.Errorf("kafkatest: end offsets of %q: %w", topic, kerr.UnknownTopicOrPartition)
		}
		for _, info := range infos {
			ends[kafka.TopicPartition{Topic: topic, Partition: info.Partition}] = info.HighWatermark
		}
		return nil
	})
	return ends, err
}

// Freeze makes nodes hang, all of them when none is named: no byte moves any more in either direction, connections stay
// open, new ones are accepted and get no answer. When it returns not a single byte moves. Freezing a frozen node changes
// nothing. A client that closes its connection to a frozen node is noticed after [Broker.Thaw].
func (b *Broker) Freeze(nodes ...int32) { b.network.gate.freeze(b.orAll(nodes)) }

// Thaw ends [Broker.Freeze], for all nodes when none is named. What was sent meanwhile arrives, in order and complete.
func (b *Broker) Thaw(nodes ...int32) { b.network.gate.thaw(b.orAll(nodes)) }

func (b *Broker) orAll(nodes []int32) []int32 {
	if len(nodes) > 0 {
		return nodes
	}
	b.network.mu.Lock()
	defer b.network.mu.Unlock()
	for n := range b.network.nodes {
		nodes = append(nodes, n)
	}
	return nodes
}

// Cut closes all connections of clients that are open now. New ones are welcome.
func (b *Broker) Cut() { b.network.gate.cut() }

// Connections returns how many connections of clients are open now and how many were accepted in all. The broker's own
// client is not counted. A connection that the client closed is open until the node has noticed.
func (b *Broker) Connections() (open, accepted int) { return b.network.gate.counts() }
