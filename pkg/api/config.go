package api

import (
	"fmt"
	"math"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// IsolationLevel says which records of transactions are delivered (isolation.level). Unlike kafka.IsolationLevel, which
// has the numbers of the protocol, its zero value is the safe one.
type IsolationLevel uint8

const (
	// ReadCommitted delivers only records of committed transactions and those outside of transactions. The default; the
	// Java client's is read_uncommitted.
	ReadCommitted IsolationLevel = iota
	// ReadUncommitted delivers every record, also of open and aborted transactions.
	ReadUncommitted
)

// String returns Kafka's word for the level.
func (l IsolationLevel) String() string {
	if l > ReadUncommitted {
		return fmt.Sprintf("IsolationLevel(%d)", uint8(l))
	}
	return l.kafka().String()
}

// kafka returns the protocol's level; an unknown one stays unknown.
func (l IsolationLevel) kafka() kafka.IsolationLevel {
	switch l {
	case ReadCommitted:
		return kafka.ReadCommitted
	case ReadUncommitted:
		return kafka.ReadUncommitted
	}
	return kafka.IsolationLevel(-1)
}

// Config says how a consumer behaves. It is plain data: Spawn reads it, never changes it and keeps no part of it. What is
// attached to a consumer rather than set (logger, observer, sarama's settings) is an [Option].
//
// A zero field means its default. A default gives way where it would not fit to what is set: with a RebalanceTimeout of 10
// s, DrainTimeout is 2 s when left at zero, and an error when set to 30 s. All durations are from 1 ms to 2^31-1 ms (24.8
// days), because Kafka counts milliseconds in 32 bits. The names in parentheses are Kafka's properties.
type Config struct {
	// Brokers are the addresses to start from, each "host:port" (bootstrap.servers). At least one; no default. The rest of
	// the cluster is learned from them.
	Brokers []string
	// GroupID names the consumer group (group.id). Not empty; no default. Everything that is started with the same GroupID
	// shares the topics' partitions. Beside [Assign] there is no group: then it is empty, and so is all that has a meaning in a
	// group only (GroupInstanceID, SessionTimeout, HeartbeatInterval, RebalanceTimeout, DrainTimeout,
	// MaxProcessingTime, Assignors, CommitStrategy, OffsetMap).
	GroupID string
	// GroupInstanceID makes this a static member (group.instance.id, KIP-345): it may restart within SessionTimeout
	// without a rebalance, and does not leave the group on Close. Default empty: a dynamic member. It must be unique in the
	// group; letters, digits, '.', '_' and '-', at most 249 of them.
	GroupInstanceID string
	// ClientID is sent with every request; quotas and the brokers' logs go by it (client.id). Default "troupe". At most
	// 32,767 bytes.
	ClientID string
	// Rack is where this member runs (client.rack, KIP-392): partitions are read from a replica in the same rack where the
	// brokers offer that. Default empty: from the leader. At most 32,767 bytes.
	Rack string

	// SessionTimeout is after how long without a heartbeat the coordinator takes the member for dead (session.timeout.ms).
	// Default 45 s. The brokers bound it, too: group.min.session.timeout.ms (6 s) and group.max.session.timeout.ms (30 min);
	// out of theirs, they refuse the member and the consumer ends.
	SessionTimeout time.Duration
	// HeartbeatInterval is the time between heartbeats (heartbeat.interval.ms). Default 3 s, or a third of SessionTimeout
	// where that is less. Below SessionTimeout; Kafka advises no more than a third of it. Handlers never delay heartbeats.
	HeartbeatInterval time.Duration
	// RebalanceTimeout is how long the group waits in a rebalance for a member to join again; a later one is put out
	// (max.poll.interval.ms is what the Java client sends for it). Default 60 s. More than HeartbeatInterval + 5 s, so that
	// DrainTimeout has room.
	RebalanceTimeout time.Duration
	// DrainTimeout is how long the handlers of a partition that moves to another member may go on with what they have
	// before the partition is let go. Their context ends a fifth of it, 1 s at most, earlier, so that a handler that heeds
	// it can return in time. No Kafka property. Default 30 s, or the bound where that is less. At most RebalanceTimeout -
	// HeartbeatInterval - 5 s: the rebalance has to be noticed, and the last commit and the join need time as well.
	DrainTimeout time.Duration
	// CloseTimeout bounds Consumer.Close, and the closing by Spawn's context, from start to end. Two fifths of it, 5 s at
	// most, are kept for the last commit and for leaving; the rest is the handlers', whose contexts end a fifth of that rest,
	// 1 s at most, before its end, so that a handler that heeds its context can return in time: with the default, after 24 s.
	// No Kafka property (the argument of the Java client's close). Default 30 s.
	CloseTimeout time.Duration
	// TokenTimeout bounds how long a token of Consumer.Token may be out, beside the context it was asked for with; then it is
	// revoked. Default 1 min; at least 1 ms.
	TokenTimeout time.Duration
	// MaxProcessingTime is how long a handler may work on what it was given: a function on its record or batch, counted from
	// the call to its return; HandleAsync on a record from the call to its acknowledgment; an actor on a Deliver until the
	// last record of it is acknowledged. Waiting for a turn or a retry does not count. When it takes longer, up to an eighth more, there
	// is an event.ProcessingOverdue, the handler's context ends with an *actors.OverdueError, and the member gives everything
	// up: its other partitions, and the other keys of this one, drain within DrainTimeout, all that is finished is committed,
	// and it leaves the group, also as a static member, so that others take the partitions at once. (Handlers of one
	// partition under [KeyOrder] or [Unordered] share a context, which ends when the others have, or shortly before the
	// drain.) It joins again by itself when the handlers that it did not wait for have returned (an actor: has stopped);
	// until then Healthy and Stats name them. What they acknowledge late is dropped and counted.
	//
	// The Java client's max.poll.interval.ms, whose default is 5 min, but for this: there a member that does not poll in time
	// is out, however little each record took, while here handlers never delay heartbeats, so that a slow one costs nothing
	// without this limit and it can be left out. It is for handlers that may hang where another member could do better.
	// Default 0: no limit. From 1 s on.
	MaxProcessingTime time.Duration

	// Assignors are the ways to divide partitions that this member can use, preferred first
	// (partition.assignment.strategy): rebalance.CooperativeSticky, Sticky, Range, RoundRobin, or your own. All members of a
	// group must have one in common; a member that has none in common with the others is tried again, slowly and visibly.
	// Default rebalance.CooperativeSticky() alone: partitions that stay are handled on through a rebalance; the Java client's
	// default is range and cooperative-sticky, with which it is compatible when the range is listed here, too. As long as
	// one of them is eager (all but CooperativeSticky), everything is given up before each rebalance: move a running group
	// in two rolling steps, first [CooperativeSticky, Range], then [CooperativeSticky]. None nil, no two of the same name.
	Assignors []rebalance.Assignor
	// Reset says where a partition starts that has no committed offset, or one that its log does not have
	// (auto.offset.reset): rebalance.ResetEarliest, ResetLatest, ResetNone, which stops the partition with an event,
	// ResetByDuration or ResetAt. Default ResetEarliest; the Java client's is latest, which skips records. A partition that was
	// added to a topic the group knows always starts at its beginning. A registration may have its own, by ResetTo.
	Reset rebalance.ResetPolicy
	// IsolationLevel says which records of transactions are delivered (isolation.level). Default ReadCommitted.
	IsolationLevel IsolationLevel

	// CommitStrategy says when finished offsets are committed. Default commit.Opportunistic(): at once, and then at least
	// 200 ms apart (auto.commit.interval.ms of other clients is 5 s). See package commit for the others, and for what a
	// strategy of your own must keep to. Whatever it says, offsets are committed when a partition is given up and on Close,
	// commit.Manual() excepted.
	CommitStrategy commit.Strategy
	// OffsetMap puts what is finished beyond the committed offset into the commit's metadata, so that after a restart, or at
	// the partition's next owner, only unfinished records come again. It is left out where it would not fit into the
	// broker's offset.metadata.max.bytes (4096). No Kafka property. Default false.
	//
	// It never makes a record be skipped: damaged, foreign and outdated maps are ignored, with an event
	// (event.MetadataIgnored).
	OffsetMap bool
	// BlockedAfter is after how long an event.CommitBlocked reports a partition whose committed offset stands still although
	// records beyond it are finished. No Kafka property. Default 10 s.
	BlockedAfter time.Duration
	// StuckAfter is after how long a partition that cannot be read on, for want of a leader, of an answer or of a place to
	// start, is reported by an event.PartitionStuck and makes Consumer.Healthy fail. Waiting for records to come is not being
	// stuck. No Kafka property. Default 1 min, so that a leader that hangs is left first (RequestTimeout).
	StuckAfter time.Duration

	// MaxInTransit is the most records of one partition that are delivered and not yet below the contiguous finished point:
	// what may be delivered twice after a crash. No Kafka property. Default 10,000; from 1 to 1,000,000.
	MaxInTransit int
	// ResumeBelow is below how many records in transit a partition that has reached MaxInTransit is delivered again. No
	// Kafka property. Default half of MaxInTransit. Below MaxInTransit.
	ResumeBelow int
	// MemoryBudget bounds the bytes of records that the member holds, over all partitions: half of it for what is fetched and
	// still compressed, half for what is decompressed, each handed out first come, first served, so that a partition whose
	// handler is slow or waits for a retry keeps nobody else waiting but for what it holds. The last batch that got in may be
	// larger than what was left. No Kafka property. Default 256 MiB, or FetchMaxBytes where that is more. At least
	// FetchMaxBytes. What is kept for [RecycleRecords] comes on top: a quarter of it, 64 MiB at most.
	MemoryBudget int64

	// FetchMinBytes is how many bytes a broker waits for before it answers a fetch, FetchMaxWait at most (fetch.min.bytes).
	// Default 1: it answers as soon as there is something. From 1 to FetchMaxBytes.
	FetchMinBytes int
	// FetchMaxWait is how long a broker waits for FetchMinBytes (fetch.max.wait.ms). Default 500 ms, or half of
	// RequestTimeout where that is less. Below RequestTimeout.
	FetchMaxWait time.Duration
	// FetchMaxBytes is the most bytes of one fetch answer; a first batch that is larger comes all the same
	// (fetch.max.bytes). Default 8 MiB, or MemoryBudget where that is less; the Java client's is 50 MiB. From 1 to 2^30.
	FetchMaxBytes int
	// PartitionMaxBytes is the most bytes of one partition in a fetch answer, with the same exception
	// (max.partition.fetch.bytes). Default 1 MiB, or FetchMaxBytes where that is less. From 1 to FetchMaxBytes.
	PartitionMaxBytes int
	// MaxBatchBytes is the largest record batch that is decompressed, measured in bytes after decompression. A larger one
	// stops its partition with an event, and no other: it is a bomb, or the bound is too low. No Kafka property. Default 64
	// MiB; from 1 to 2^30.
	MaxBatchBytes int

	// MetadataMaxAge is after how long the member asks for metadata again without a reason: how late new partitions and
	// new topics are seen (metadata.max.age.ms). Default 1 min; the Java client's is 5 min. At least 100 ms.
	MetadataMaxAge time.Duration
	// ConnectTimeout bounds making one connection, with TLS, authentication and agreeing on versions
	// (socket.connection.setup.timeout.ms). Default 4 s; the Java client's is 10 s.
	ConnectTimeout time.Duration
	// RequestTimeout is how long an answer that a broker can give at once may take (request.timeout.ms). Default 30 s.
	// JoinGroup and SyncGroup wait for RebalanceTimeout, heartbeats for a part of SessionTimeout.
	RequestTimeout time.Duration
	// Backoff is the wait between tries of whatever talks to a broker (retry.backoff.ms, reconnect.backoff.ms and their
	// .max.ms). Default 100 ms, doubling up to 10 s, with a fifth of it random. The coordinator is sought again after
	// HeartbeatInterval at the latest, unless it is a right that is missing.
	Backoff supervisor.Backoff

	// Restart says how failures of handlers are answered where the registration has no Restart of its own. No Kafka
	// property. Default ten restarts a minute, 100 ms apart at first and up to 10 s; after that the partition is paused and
	// probed after 5 s, 10 s and so on up to 5 min. It counts per partition. With OnSpent supervisor.StopAll a budget that is
	// spent ends the consumer instead of pausing the partition: it drains, commits and leaves, and Err is the
	// *actors.HandlerError.
	Restart supervisor.Policy
	// Concurrency is how many deliveries the handlers of this member may work on at once; partitions take turns, first come,
	// first served. No Kafka property. Default 0: one for every partition. Not negative. It can be changed later, see
	// [Consumer.SetConcurrency].
	Concurrency int
}

// What a zero field means.
const (
	defaultClientID          = "troupe"
	defaultSessionTimeout    = 45 * time.Second
	defaultHeartbeatInterval = 3 * time.Second
	defaultRebalanceTimeout  = 60 * time.Second
	defaultDrainTimeout      = 30 * time.Second
	defaultCloseTimeout      = 30 * time.Second
	defaultTokenTimeout      = time.Minute
	defaultMaxInTransit      = 10_000
	defaultBlockedAfter      = 10 * time.Second
	defaultStuckAfter        = time.Minute
	defaultMemoryBudget      = 256 << 20
	defaultFetchMinBytes     = 1
	defaultFetchMaxWait      = 500 * time.Millisecond
	defaultFetchMaxBytes     = 8 << 20
	defaultPartitionMaxBytes = 1 << 20
	defaultMaxBatchBytes     = 64 << 20
	defaultMetadataMaxAge    = time.Minute
	defaultConnectTimeout    = 4 * time.Second
	defaultRequestTimeout    = 30 * time.Second
	defaultMaxRecords        = 500
)

// The bounds that are numbers of their own.
const (
	minDuration       = time.Millisecond
	maxDuration       = math.MaxInt32 * time.Millisecond
	minMetadataMaxAge = 100 * time.Millisecond
	// minProcessingTime keeps a handler that is always late from making the group rebalance without end.
	minProcessingTime = time.Second
	maxMaxInTransit   = 1_000_000
	// maxFetchBytes keeps an answer with its overhead below the protocol's 2 GiB.
	maxFetchBytes = 1 << 30
	// maxProtocolString is the longest string of the protocol, in bytes.
	maxProtocolString = math.MaxInt16
	// drainReserve is what a rebalance needs beyond draining and noticing it: the last commit and JoinGroup.
	drainReserve = 5 * time.Second
)

// withDefaults returns c with every zero field replaced by its default.
func (c Config) withDefaults() Config {
	fill(&c.ClientID, defaultClientID)
	fill(&c.SessionTimeout, defaultSessionTimeout)
	fill(&c.HeartbeatInterval, min(defaultHeartbeatInterval, c.SessionTimeout/3))
	fill(&c.RebalanceTimeout, defaultRebalanceTimeout)
	fill(&c.DrainTimeout, min(defaultDrainTimeout, c.maxDrainTimeout()))
	fill(&c.CloseTimeout, defaultCloseTimeout)
	fill(&c.TokenTimeout, defaultTokenTimeout)
	if len(c.Assignors) == 0 {
		c.Assignors = []rebalance.Assignor{rebalance.CooperativeSticky()}
	}
	if c.CommitStrategy == nil {
		c.CommitStrategy = commit.Opportunistic()
	}
	fill(&c.BlockedAfter, defaultBlockedAfter)
	fill(&c.StuckAfter, defaultStuckAfter)
	fill(&c.MaxInTransit, defaultMaxInTransit)
	fill(&c.ResumeBelow, c.MaxInTransit/2)
	if c.MemoryBudget == 0 {
		c.MemoryBudget = max(defaultMemoryBudget, int64(c.FetchMaxBytes))
	}
	fill(&c.FetchMaxBytes, int(min(defaultFetchMaxBytes, c.MemoryBudget)))
	fill(&c.PartitionMaxBytes, min(defaultPartitionMaxBytes, c.FetchMaxBytes))
	fill(&c.FetchMinBytes, defaultFetchMinBytes)
	fill(&c.MaxBatchBytes, defaultMaxBatchBytes)
	fill(&c.MetadataMaxAge, defaultMetadataMaxAge)
	fill(&c.ConnectTimeout, defaultConnectTimeout)
	fill(&c.RequestTimeout, defaultRequestTimeout)
	fill(&c.FetchMaxWait, min(defaultFetchMaxWait, c.RequestTimeout/2))
	c.Backoff = c.Backoff.WithDefaults()
	c.Restart = c.Restart.WithDefaults()
	return c
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// maxDrainTimeout is the bound of DrainTimeout.
func (c *Config) maxDrainTimeout() time.Duration {
	return c.RebalanceTimeout - c.HeartbeatInterval - drainReserve
}
