package actors

import (
	"context"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// RecordHandler handles one record. Nil acknowledges it; an error or a panic restarts the handler and delivers the record
// again. The context ends with a typed cause (see errors.go) when the work is no longer wanted.
type RecordHandler func(ctx context.Context, record *kafka.Record) error

// BatchHandler handles up to MaxRecords records of one partition, in offset order. Nil acknowledges all of them; an error
// or a panic restarts the handler and delivers all of them again.
type BatchHandler func(ctx context.Context, records []kafka.Record) error

// ActorProducer makes the user's own actor for one partition. It is called for every assignment and every restart.
type ActorProducer func(partition kafka.TopicPartition) actor.Actor

// AsyncHandler is given one record at a time and acknowledges it later, through the delivery, from any goroutine and in
// any order. A panic refuses the record, like Nack.
type AsyncHandler func(ctx context.Context, delivery *RecordDelivery)

// KeyFunc returns what orders a record under OrderKey, in place of the record's key; nil is the class of records without a
// key. It must be a pure function of the record and safe from any goroutine.
type KeyFunc func(record *kafka.Record) []byte

// Order says which records of one partition may be handled at the same time.
type Order uint8

const (
	// OrderPartition: none; records come one after the other, in offset order.
	OrderPartition Order = iota
	// OrderKey: those of different keys. Records of one key come one after the other, in offset order.
	OrderKey
	// OrderNone: any.
	OrderNone
)

// String returns the word for an order.
func (o Order) String() string {
	switch o {
	case OrderPartition:
		return "partition"
	case OrderKey:
		return "key"
	case OrderNone:
		return "none"
	}
	return fmt.Sprintf("Order(%d)", uint8(o))
}

// Registration says who handles the records of some topics. Exactly one of Record, Batch, Async and Actor is set.
type Registration struct {
	// Topics are handled alike; each topic is in one registration only.
	Topics []string
	// Allow and Deny are expressions for topics beside those named; see rebalance.TopicRule.
	Allow, Deny []string
	Record      RecordHandler
	Batch       BatchHandler
	Async       AsyncHandler
	Actor       ActorProducer
	// Order is the engine. Workers is how many handlers run at once over all partitions of the registration, at least 1;
	// without meaning under OrderPartition.
	Order   Order
	Workers int
	// KeyFunc is nil for the record's key.
	KeyFunc KeyFunc
	// MaxRecords is the most records of one delivery (max.poll.records, KIP-41), at least 1.
	MaxRecords int
	// MaxWait is how long a batch that is not full waits for more records; 0 for not at all.
	MaxWait time.Duration
	// Recycle gives the memory of records back when they are acknowledged: they must not be kept.
	Recycle bool
	// Reset says where a partition of these topics starts that has no usable position.
	Reset rebalance.ResetPolicy
	// Restart is the restart policy of these handlers.
	Restart supervisor.Policy
}

// PositionsFunc returns where partitions start whose offsets are kept outside of Kafka: the next offset to read. A partition
// that is missing in the answer starts by the reset policy. It may block until ctx ends.
type PositionsFunc func(ctx context.Context, partitions []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error)

// Settings is what one tree runs on. pkg/api makes it from the user's Config and has checked every bound; zero values have
// no meaning here.
type Settings struct {
	GroupID         string
	GroupInstanceID string
	ClientID        string
	Rack            string

	SessionTimeout    time.Duration
	HeartbeatInterval time.Duration
	RebalanceTimeout  time.Duration
	DrainTimeout      time.Duration
	CloseTimeout      time.Duration
	// TokenTimeout is how long somebody may have a token that was asked for.
	TokenTimeout time.Duration
	// MaxProcessingTime is how long a handler may work on what it was given before the member gives everything up; 0 for as
	// long as it likes.
	MaxProcessingTime time.Duration

	Assignors []rebalance.Assignor
	Isolation kafka.IsolationLevel

	// Strategy says when finished offsets are committed.
	Strategy commit.Strategy
	// OffsetMap puts what is finished beyond the committed offset into the commit's metadata.
	OffsetMap bool
	// BlockedAfter is after how long a partition whose committed offset stands still, although records beyond it are
	// finished, is reported.
	BlockedAfter time.Duration
	// Standalone is what is read without a group; nil in a group. With it no setting of the group has a meaning, and Strategy
	// is commit.Manual.
	Standalone *rebalance.StandaloneConfig
	// StuckAfter is after how long a partition that cannot be read on is reported.
	StuckAfter time.Duration
	// Positions says where partitions start when offsets are kept outside of Kafka; nil for the committed offsets.
	Positions PositionsFunc
	// Callbacks are told of partitions that come and go.
	Callbacks Callbacks

	// MaxInTransit and ResumeBelow are records per partition.
	MaxInTransit int
	ResumeBelow  int
	// MemoryBudget is bytes of fetched records held by the member.
	MemoryBudget int64

	// FetchMinBytes, FetchMaxBytes and PartitionMaxBytes are bytes asked of the broker, MaxBatchBytes the cap on one
	// batch's decompressed size.
	FetchMinBytes     int
	FetchMaxBytes     int
	PartitionMaxBytes int
	MaxBatchBytes     int
	FetchMaxWait      time.Duration

	MetadataMaxAge time.Duration
	// Backoff is between tries of anything that talks to a broker.
	Backoff supervisor.Backoff
	// TreeRestart is the restart policy of the tree's own actors.
	TreeRestart supervisor.Policy

	// Concurrency is how many handlers may run at once in the member; 0 means one for every partition.
	Concurrency int

	Registrations []Registration
	// Seed feeds every jitter of the tree.
	Seed uint64
}

// Deps is what a tree is given to work with.
type Deps struct {
	Network Network
	// Logger is never nil; zap.NewNop() for none.
	Logger *zap.Logger
	// System is the actor system to live in; nil makes one of the tree's own.
	System *actor.ActorSystem
	// Observe is called with every event, from the actors; it must not block. Never nil.
	Observe func(event.Event)
}
