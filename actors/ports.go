package actors

import (
	"context"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// The ports: what the tree needs of the network. internal/wire implements them.
//
// Rules for every client below. A client is one connection, made at the first call and again after a failure. Calls are
// made one at a time by one worker goroutine and block until the answer is there, ctx ends, or the client's own limit
// passes; ending ctx closes the connection. Errors are *kafka.ConnectError, *kafka.VersionError or *kafka.RequestError;
// errors.Is finds the broker's kafka.ErrorCode or the context's error inside. Close may be called from any goroutine, ends
// a call that is under way, and may be called again.

// Network makes the connections of one member. Each method returns a new client without dialing.
type Network interface {
	// Metadata talks to any broker: the bootstrap servers first, later also those that metadata named.
	Metadata() MetadataClient
	// Membership is for JoinGroup and SyncGroup only: its answers may take a whole rebalance.
	Membership() MembershipClient
	// Heartbeat is for Heartbeat and LeaveGroup.
	Heartbeat() HeartbeatClient
	// Offsets is for OffsetCommit and OffsetFetch.
	Offsets() OffsetsClient
	// Fetch reads from one broker.
	Fetch(broker kafka.Broker) FetchClient
	// Lookup asks one broker for offsets by time and by epoch.
	Lookup(broker kafka.Broker) LookupClient
	// Decode returns a reader over one partition's part of a fetch answer. It does no I/O.
	Decode(chunk Chunk) ChunkReader
}

// MetadataClient finds brokers, partitions and coordinators.
type MetadataClient interface {
	// Metadata describes the topics named; missing ones are in the answer with their error. Nil topics = every topic that the
	// member may see.
	Metadata(ctx context.Context, topics []string) (*ClusterMetadata, error)
	// FindCoordinator returns the coordinator of a consumer group.
	FindCoordinator(ctx context.Context, groupID string) (kafka.Broker, error)
	// Avoid gives up the connection, and the question under way on it, if it is to this broker, which did not answer others:
	// the next connection is made to another one where there is any. It may be called while a question is under way.
	Avoid(broker kafka.Broker)
	Close()
}

// ClusterMetadata is one answer to a Metadata request.
type ClusterMetadata struct {
	ClusterID string
	Brokers   map[int32]kafka.Broker
	// Topics has one entry for every topic asked for by name.
	Topics map[string]TopicMetadata
}

// TopicMetadata describes one topic.
type TopicMetadata struct {
	// Err is nil or the topic's kafka.ErrorCode.
	Err error
	ID  kafka.TopicID
	// Internal is true for the brokers' own topics.
	Internal bool
	// Partitions is ordered by number, without holes.
	Partitions []PartitionMetadata
}

// PartitionMetadata describes one partition.
type PartitionMetadata struct {
	// Leader is the leader's broker id, -1 when there is none.
	Leader      int32
	LeaderEpoch int32
	// Replicas are the brokers that have the partition.
	Replicas []int32
	Err      error
}

// MembershipClient carries the two requests of a rebalance.
type MembershipClient interface {
	// Join returns with errors.Is(err, kafka.MemberIDRequired) also the member id to use.
	Join(ctx context.Context, coordinator kafka.Broker, req rebalance.JoinRequest) (rebalance.JoinResponse, error)
	Sync(ctx context.Context, coordinator kafka.Broker, req rebalance.SyncRequest) (rebalance.SyncResponse, error)
	Close()
}

// HeartbeatClient keeps the session alive and ends it.
type HeartbeatClient interface {
	Heartbeat(ctx context.Context, coordinator kafka.Broker, req rebalance.HeartbeatRequest) error
	Leave(ctx context.Context, coordinator kafka.Broker, req rebalance.LeaveRequest) error
	Close()
}

// OffsetsClient writes and reads committed offsets.
type OffsetsClient interface {
	// Commit sends one round. The error is the request's; Results has each partition's own (nil = committed).
	Commit(ctx context.Context, coordinator kafka.Broker, round *CommitRound) (map[kafka.TopicPartition]error, error)
	// FetchOffsets reads committed offsets, with RequireStable wherever the broker knows it. A partition whose Err is set
	// is not "without a commit".
	FetchOffsets(ctx context.Context, coordinator kafka.Broker, req OffsetFetchRequest) (map[kafka.TopicPartition]CommittedOffset, error)
	Close()
}

// OffsetFetchRequest names the partitions whose committed offsets are wanted. Nil Partitions = all the group has.
type OffsetFetchRequest struct {
	GroupID    string
	MemberID   string
	Generation kafka.Generation
	Partitions []kafka.TopicPartition
}

// CommittedOffset is one partition's committed offset.
type CommittedOffset struct {
	// Offset is the next offset to read, kafka.NoOffset when nothing was committed.
	Offset      int64
	LeaderEpoch int32
	Metadata    string
	Err         error
}

// FetchClient reads records from one broker.
type FetchClient interface {
	Fetch(ctx context.Context, req *FetchRequest) (*FetchResponse, error)
	Close()
}

// FetchRequest is one fetch. Sizes are bytes, MaxWaitMillis milliseconds.
type FetchRequest struct {
	MaxWaitMillis int32
	MinBytes      int32
	MaxBytes      int32
	Isolation     kafka.IsolationLevel
	Rack          string
	// Partitions are fetched in this order; each topic partition once.
	Partitions []FetchPartition
}

// FetchPartition is one partition of a fetch.
type FetchPartition struct {
	TopicPartition kafka.TopicPartition
	TopicID        kafka.TopicID
	// Offset is the first offset wanted.
	Offset int64
	// LeaderEpoch is the leader epoch of the metadata in use, LastFetchedEpoch that of the last record read (KIP-320);
	// kafka.NoLeaderEpoch when unknown.
	LeaderEpoch      int32
	LastFetchedEpoch int32
	MaxBytes         int32
}

// FetchResponse is the answer to a fetch.
type FetchResponse struct {
	// Partitions has only those the broker answered for, matched by topic and partition.
	Partitions []FetchedPartition
	// Brokers are new addresses that came along (KIP-951), by id.
	Brokers map[int32]kafka.Broker
	// ThrottleMillis is how long the broker mutes this connection for a quota, in milliseconds.
	ThrottleMillis int32
	// Bytes is the size of the answer.
	Bytes int
}

// FetchedPartition is one partition's part of an answer.
type FetchedPartition struct {
	TopicPartition kafka.TopicPartition
	// Index is the partition's place in the request.
	Index int
	// Err is nil or wraps the partition's kafka.ErrorCode.
	Err error
	// HighWatermark, LastStableOffset and LogStartOffset are kafka.NoOffset when the broker did not say.
	HighWatermark    int64
	LastStableOffset int64
	LogStartOffset   int64
	// Diverging is set when the log of that epoch ends before the position asked for: the log was truncated (KIP-320).
	Diverging *EpochEnd
	// CurrentLeader is set when the broker named a newer leader (KIP-951).
	CurrentLeader *PartitionLeader
	// PreferredReadReplica is the broker to read from instead (KIP-392), -1 for none.
	PreferredReadReplica int32
	// Chunk holds the record batches, still compressed.
	Chunk Chunk
}

// EpochEnd is the end offset of a leader epoch.
type EpochEnd struct {
	Epoch     int32
	EndOffset int64
}

// PartitionLeader names a partition's leader.
type PartitionLeader struct {
	BrokerID    int32
	LeaderEpoch int32
}

// Chunk is one partition's part of a fetch answer: record batches as they came. Its bytes are shared with nothing that
// changes.
type Chunk struct {
	TopicPartition kafka.TopicPartition
	Isolation      kafka.IsolationLevel
	// Data is the batches; the last one may be cut off.
	Data []byte
	// NextOffset is the offset after the last whole batch and LastEpoch that batch's leader epoch, as its header says;
	// kafka.NoOffset and kafka.NoLeaderEpoch when there is no whole batch.
	NextOffset int64
	LastEpoch  int32
	// Aborted lists the aborted transactions that overlap Data, for read_committed.
	Aborted []AbortedTransaction
	// MaxBatchBytes is the cap on one batch's decompressed size.
	MaxBatchBytes int
	// Recycle asks for slabs whose memory can be given back. It is set by whoever takes the chunk, before Decode.
	Recycle bool
	// Buffer is the memory that Data lies in, shared with other chunks; nil when it is not to be given back. The reader of
	// a chunk with Recycle gives its part back when it is closed, or at its end, and every slab made of it is recycled.
	Buffer buffer.Memory
}

// AbortedTransaction is one aborted transaction: its records from FirstOffset to its abort marker are not delivered.
type AbortedTransaction struct {
	ProducerID  int64
	FirstOffset int64
}

// ChunkReader decodes a chunk batch by batch, in the goroutine of whoever calls.
type ChunkReader interface {
	// Next decodes the next batch and returns its deliverable records at or above from. It returns io.EOF when no whole
	// batch is left, *kafka.PartialBatchError when the chunk holds only a part of one batch, and *kafka.BatchError for one
	// that cannot be read (then every further call returns it again).
	Next(from int64) (Slab, error)
	// NextBytes returns how much memory the next slab will take, as Slab.Bytes counts it, judged by what can be seen
	// without decompressing: never less than that when known, 0 when it cannot be known.
	NextBytes() int
	// Close lets go of what was not read. It may be called again, and after the end.
	Close()
}

// Slab is the records of one batch. They belong to whoever holds them.
type Slab struct {
	// Records may be empty: a control batch, an aborted one, or one emptied by compaction.
	Records []kafka.Record
	// NextOffset is the offset after the batch, also when its last records are gone; inside a batch of several slabs, after
	// the slab. It may be below the offset asked from.
	NextOffset int64
	// LeaderEpoch is the batch's partition leader epoch.
	LeaderEpoch int32
	// Bytes is the memory the slab takes: decompressed record bytes and the Record values; 0 for an empty slab.
	Bytes int
	// Consumed is how many of the chunk's bytes were used up for it: the batch, counted with its first slab.
	Consumed int
	// Memory is what the records lie in, nil unless the chunk had Recycle. Recycle is called at most once, when nobody can
	// read the records any more; never calling it leaves them to the garbage collector.
	Memory buffer.Memory
}

// LookupClient asks one broker for offsets.
type LookupClient interface {
	// ListOffsets returns the offset for each partition's timestamp. Partition errors are inside.
	ListOffsets(ctx context.Context, isolation kafka.IsolationLevel, queries []OffsetQuery) (map[kafka.TopicPartition]OffsetAnswer, error)
	// EpochEnds returns for each partition where the given leader epoch ends (OffsetForLeaderEpoch).
	EpochEnds(ctx context.Context, queries []EpochQuery) (map[kafka.TopicPartition]EpochAnswer, error)
	Close()
}

// OffsetQuery asks for the first offset at or after a timestamp in milliseconds, or rebalance.TimestampEarliest or
// rebalance.TimestampLatest.
type OffsetQuery struct {
	TopicPartition kafka.TopicPartition
	LeaderEpoch    int32
	Timestamp      int64
}

// OffsetAnswer is the answer to an OffsetQuery; Offset is kafka.NoOffset when no record is that young. Timestamp is that
// record's in milliseconds, and negative in answers to the other two.
type OffsetAnswer struct {
	Offset      int64
	Timestamp   int64
	LeaderEpoch int32
	Err         error
}

// EpochQuery asks where Epoch ends.
type EpochQuery struct {
	TopicPartition kafka.TopicPartition
	CurrentEpoch   int32
	Epoch          int32
}

// EpochAnswer is the answer to an EpochQuery: the largest epoch not above the one asked for, and its end.
type EpochAnswer struct {
	End EpochEnd
	Err error
}
