package kafka

import (
	"cmp"
	"fmt"
	"strconv"
)

// TopicPartition names one partition of one topic. It is comparable and may be a map key.
type TopicPartition struct {
	// Topic is the topic's name.
	Topic string
	// Partition is the partition's number, from 0.
	Partition int32
}

// String returns "topic-partition", the way Kafka's own tools print it.
func (tp TopicPartition) String() string {
	return tp.Topic + "-" + strconv.Itoa(int(tp.Partition))
}

// Compare orders by topic, then by partition number. It suits [slices.SortFunc].
func (tp TopicPartition) Compare(other TopicPartition) int {
	if c := cmp.Compare(tp.Topic, other.Topic); c != 0 {
		return c
	}
	return cmp.Compare(tp.Partition, other.Partition)
}

// OffsetAndMetadata is an offset to commit for a partition, the next one to read, and what to keep beside it.
type OffsetAndMetadata struct {
	TopicPartition TopicPartition
	Offset         int64
	// Metadata may hold anything, also bytes that cannot be printed; see commit.MaxUserBytes for its bound.
	Metadata string
}

// AnyPartition in a [TopicPartition] stands for all partitions of its topic, where a function says that it takes it.
const AnyPartition int32 = -1

// WholeTopic names all partitions of a topic, those included that it gets later.
func WholeTopic(topic string) TopicPartition {
	return TopicPartition{Topic: topic, Partition: AnyPartition}
}

// TopicID is the broker's identity of one incarnation of a topic (KIP-516). A topic that was deleted and made again has
// the same name and another TopicID. The zero value means that the broker does not know topic ids.
type TopicID [16]byte

// IsZero reports whether the broker gave no topic id.
func (id TopicID) IsZero() bool { return id == TopicID{} }

// String returns the id in hexadecimal.
func (id TopicID) String() string { return fmt.Sprintf("%x", id[:]) }

// Generation is the epoch of a consumer group under the classic protocol: it rises with every completed rebalance.
type Generation int32

// NoGeneration is the generation of a member that has not joined.
const NoGeneration Generation = -1

// AssignmentEpoch numbers the grants of partitions inside one consumer: each time a partition is assigned, the grant gets
// the next number. Whatever carries an older epoch than the partition's current one is stale and is dropped.
// It never leaves the process. Zero means "none".
type AssignmentEpoch uint64

// NoLeaderEpoch stands for a partition leader epoch that is not known (KIP-320).
const NoLeaderEpoch int32 = -1

// NoOffset stands for an offset that is not known.
const NoOffset int64 = -1

// Broker is one broker of the cluster as its metadata names it.
type Broker struct {
	// ID is the broker's node id; -1 for a bootstrap address whose id is not known yet.
	ID int32
	// Addr is "host:port" as advertised on the listener that was asked.
	Addr string
	// Rack is the broker's rack, empty when it has none.
	Rack string
}

// String returns "id@host:port".
func (b Broker) String() string { return strconv.Itoa(int(b.ID)) + "@" + b.Addr }

// IsolationLevel says which records of transactions are delivered (isolation.level).
type IsolationLevel int8

const (
	// ReadUncommitted delivers every record, also of open and aborted transactions.
	ReadUncommitted IsolationLevel = 0
	// ReadCommitted delivers only records of committed transactions and those outside of transactions.
	ReadCommitted IsolationLevel = 1
)

// String returns Kafka's word for the level.
func (l IsolationLevel) String() string {
	switch l {
	case ReadUncommitted:
		return "read_uncommitted"
	case ReadCommitted:
		return "read_committed"
	}
	return "IsolationLevel(" + strconv.Itoa(int(l)) + ")"
}
