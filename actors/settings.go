package actors

import (
	"context"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

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

// Registration says who handles the records of some topics. Exactly one of Record, Batch and Actor is set.
type Registration struct {
	// Topics are handled alike; each topic is in one registration only.
	Topics []string
	Record RecordHandler
	Batch  BatchHandler
	Actor  ActorProducer
	// MaxRecords is the most records of one delivery (max.poll.records, KIP-41), at least 1.
	MaxRecords int
	// Restart is the restart policy of these handlers.
	Restart supervisor.Policy
}

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

	Assignors []rebalance.Assignor
	Reset     rebalance.ResetPolicy
	Isolation kafka.IsolationLevel

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
