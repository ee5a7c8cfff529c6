package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// broker is a cluster that a test may use. Its methods fail the test when they do not succeed, so they belong into the
// test's own goroutine.
type broker interface {
	Addrs() []string
	// Version says what the broker is.
	Version() string
	CreateTopic(t *testing.T, topic string, partitions int32)
	// AddPartitions makes the topic grow by added.
	AddPartitions(t *testing.T, topic string, added int)
	DeleteTopic(t *testing.T, topic string)
	Produce(t *testing.T, topic string, records ...kafka.Record)
	// TryProduce is Produce for other goroutines.
	TryProduce(ctx context.Context, topic string, records ...kafka.Record) error
	// Transaction produces records in a transaction of their own and commits it.
	Transaction(t *testing.T, topic string, records ...kafka.Record)
	// DeleteRecords removes what is below an offset.
	DeleteRecords(t *testing.T, topic string, partition int32, before int64)
	// Commit stores an offset for a group without members, and metadata beside it.
	Commit(t *testing.T, group string, tp kafka.TopicPartition, offset int64, metadata ...string)
	// Committed and EndOffsets leave out what the broker does not know.
	Committed(t *testing.T, group string) map[kafka.TopicPartition]int64
	EndOffsets(t *testing.T, topic string) map[kafka.TopicPartition]int64
	// metadataOf is a committed offset with the text beside it.
	metadataOf(t *testing.T, group string, tp kafka.TopicPartition) (offset int64, text string)
	Group(t *testing.T, group string) groupView
}

// groupView is how the coordinator sees a group.
type groupView struct {
	State string
	// Members has the topics' partitions of each member, by member id.
	Members map[string][]kafka.TopicPartition
}

// requestTimeout bounds one request of a test's own.
const requestTimeout = 30 * time.Second

func requestContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), requestTimeout)
	t.Cleanup(cancel)
	return ctx
}

// embeddedBroker is kfake in this process, with what only it can do besides.
type embeddedBroker struct {
	*kafkatest.Broker
	admin
}

// newEmbedded starts a cluster on loopback for one test.
func newEmbedded(t *testing.T, opts ...kafkatest.Option) *embeddedBroker {
	t.Helper()
	b := &embeddedBroker{Broker: kafkatest.NewBroker(t, opts...)}
	b.admin = newAdmin(t, b.Broker.Addrs(), b.Broker.Dial)
	return b
}

// Produce implements broker, and works while the broker is frozen.
func (b *embeddedBroker) Produce(t *testing.T, topic string, records ...kafka.Record) {
	t.Helper()
	require.NoError(t, b.TryProduce(requestContext(t), topic, records...))
}

// TryProduce implements broker, and works while the broker is frozen.
func (b *embeddedBroker) TryProduce(ctx context.Context, topic string, records ...kafka.Record) error {
	return b.Broker.Produce(ctx, topic, records...)
}

// CreateTopic implements broker.
func (b *embeddedBroker) CreateTopic(t *testing.T, topic string, partitions int32) {
	t.Helper()
	require.NoError(t, b.Broker.CreateTopic(topic, partitions))
}

// AddPartitions implements broker.
func (b *embeddedBroker) AddPartitions(t *testing.T, topic string, added int) {
	t.Helper()
	require.NoError(t, b.Broker.AddPartitions(requestContext(t), topic, added))
}

// Committed implements broker, and works while the broker is frozen.
func (b *embeddedBroker) Committed(t *testing.T, group string) map[kafka.TopicPartition]int64 {
	t.Helper()
	committed, err := b.Broker.Committed(group)
	require.NoError(t, err)
	return committed
}

// EndOffsets implements broker.
func (b *embeddedBroker) EndOffsets(t *testing.T, topic string) map[kafka.TopicPartition]int64 {
	t.Helper()
	ends, err := b.Broker.EndOffsets(topic)
	require.NoError(t, err)
	return ends
}

// Transaction implements broker.
func (b *embeddedBroker) Transaction(t *testing.T, topic string, records ...kafka.Record) {
	t.Helper()
	require.NoError(t, b.ProduceTransaction(requestContext(t), true, topic, records...))
}

// DeleteRecords implements broker.
func (b *embeddedBroker) DeleteRecords(t *testing.T, topic string, partition int32, before int64) {
	t.Helper()
	require.NoError(t, b.Cluster().DeleteRecords(topic, partition, before))
}

// Group implements broker.
func (b *embeddedBroker) Group(t *testing.T, group string) groupView {
	t.Helper()
	view := groupView{Members: make(map[string][]kafka.TopicPartition)}
	info := b.Cluster().GroupInfo(group)
	if info == nil {
		return view
	}
	view.State = info.State
	for _, m := range info.Members {
		view.Members[m.MemberID] = nil
		for topic, partitions := range m.Assignment {
			for _, p := range partitions {
				view.Members[m.MemberID] = append(view.Members[m.MemberID], kafka.TopicPartition{Topic: topic, Partition: p})
			}
		}
	}
	return view
}
