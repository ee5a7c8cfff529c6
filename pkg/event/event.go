// Package event holds the public observer records of Troupe: one struct for each thing an operator may want to know.
//
// Events are told to the observer that was given to api.WithObserver, from one goroutine of its own. Not reading them, or
// reading them slowly, blocks nothing: the oldest ones are dropped and counted. Every event says which member it concerns;
// those about records say topic, partition and offset. None carries a record's key, value or headers.
package event

import (
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Event is one observer record. The set of events may grow; switch on the type with a default.
type Event interface {
	// Name returns the event's name in snake case, such as "handler_failed".
	Name() string
	event()
}

// Member says which member of which group an event concerns.
type Member struct {
	// GroupID is empty without a group, and so is the rest.
	GroupID string
	// MemberID is empty before the coordinator gave one.
	MemberID string
	// Generation is kafka.NoGeneration before the first join.
	Generation kafka.Generation
}

// MemberMoved: the member's state changed.
type MemberMoved struct {
	Member Member
	// From and To are states such as "ASSIGNED".
	From, To string
	Cause    string
	// Err is the error behind the cause, nil when there is none.
	Err error
}

// CoordinatorMoved: the link to the group's coordinator changed its state.
type CoordinatorMoved struct {
	Member Member
	// From and To are states such as "STABLE".
	From, To string
	// Coordinator is the broker found, when To is STABLE.
	Coordinator kafka.Broker
	Err         error
}

// ConnectFailed: a broker could not be reached, or does not speak Kafka, or refused us. It is tried again after RetryIn.
type ConnectFailed struct {
	Member Member
	// Purpose is what the connection was for, such as "metadata" or "join".
	Purpose string
	Err     error
	RetryIn time.Duration
}

// TopicMissing: a subscribed topic does not exist, or may not be seen. It is joined when it appears.
type TopicMissing struct {
	Member Member
	Topic  string
	Err    error
}

// PartitionMissing: a partition that was assigned without a group does not exist although its topic does. It is read when
// it appears.
type PartitionMissing struct {
	Member         Member
	TopicPartition kafka.TopicPartition
}

// SubscriptionChanged: the topics that the member asks for are others now, because topics that match a pattern of its
// registrations appeared or went, or because of Consumer.Subscribe and Unsubscribe. Of a consumer with patterns it is also told
// at the start, and once more when the actor that asks was replaced (ActorRestarted, "group"): then Added has all that the
// patterns choose. Topics is empty while nothing matches.
type SubscriptionChanged struct {
	Member Member
	// Topics is the whole subscription, Added and Removed what is different.
	Topics, Added, Removed []string
}

// TopicChanged: a subscribed topic appeared, grew or was made anew.
type TopicChanged struct {
	Member             Member
	Topic              string
	OldCount, NewCount int32
}

// PartitionsAssigned: these partitions are this member's from now on.
type PartitionsAssigned struct {
	Member     Member
	Partitions []kafka.TopicPartition
}

// PartitionsRevoked: these partitions are being drained, committed and given up.
type PartitionsRevoked struct {
	Member     Member
	Partitions []kafka.TopicPartition
	Closing    bool
}

// PartitionsLost: membership was lost; nothing more is committed for these partitions.
type PartitionsLost struct {
	Member     Member
	Partitions []kafka.TopicPartition
	Err        error
}

// PartitionReleased: one partition is drained, committed and fenced. Uncommitted is the number of records that were
// finished or delivered and not confirmed by the coordinator: they come again to the next owner.
type PartitionReleased struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	Committed      int64
	Uncommitted    int
	Err            error
}

// PositionReset: a partition starts or goes on from another place than expected.
type PositionReset struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	// From is the position before, kafka.NoOffset when there was none.
	From, To int64
	// Reason is one of "no_commit", "new_partition", "out_of_range", "beyond_end" (out of range, and the log ends before the
	// position), "truncated", "seek" (Consumer.Seek).
	Reason string
	Err    error
}

// FetchFailed: a partition could not be read. The others go on; this one is tried again after RetryIn.
type FetchFailed struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Broker         kafka.Broker
	// Offset is the position asked for.
	Offset  int64
	Err     error
	RetryIn time.Duration
}

// PartitionStuck: a partition cannot be read on for Config.StuckAfter. It is told again each time the age has doubled, until
// the partition is read again.
type PartitionStuck struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Offset is the next offset to read, kafka.NoOffset while it is not known where to start.
	Offset int64
	// Waiting is for what: "start" (the committed offset, or the program's own start position), "leader" (there is none, or it
	// cannot be reached), "offset" (the leader was asked for one) or "fetch" (the leader gives no answer, or an error).
	Waiting string
	// Leader is whom it is read from, with ID -1 for nobody.
	Leader kafka.Broker
	// Age is how long ago it was read last, or should have been.
	Age time.Duration
	// Err is what the leader said last, nil when it said nothing.
	Err error
}

// PartitionFailed: a batch of this partition cannot be read (corrupt, unknown compression, too large), or there is no
// position to start from (reset policy "none"). The partition stands at Offset and is tried again after RetryIn, not before
// it is assigned anew when that is 0; the others go on.
type PartitionFailed struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Offset         int64
	Err            error
	RetryIn        time.Duration
}

// HandlerFailed: a handler returned an error, panicked, or its actor failed. The record is delivered again, here or, when its
// partition is being given up, at the next owner.
type HandlerFailed struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Offset is the first record not acknowledged.
	Offset int64
	// Lane tells the lanes of a partition apart where the order goes by key: records of one key have the same number, which
	// says nothing of the key. 0 elsewhere.
	Lane    uint64
	Attempt int
	Err     error
	// Panic is true when the handler panicked; Err then has the value and the stack is in the log.
	Panic bool
}

// HandlerRestarted: the supervisor started the handler of a partition anew.
type HandlerRestarted struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Restarts is how many there were under this epoch.
	Restarts int
	// After is how long the supervisor waited.
	After time.Duration
}

// PartitionPaused: the restart budget of a partition's handler is spent. Delivery stands at Offset and is tried again
// after ProbeIn. With a Lane only the records of that key stand; the commit stands at Offset all the same.
type PartitionPaused struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	Offset         int64
	// Lane is as in HandlerFailed.
	Lane    uint64
	Err     error
	ProbeIn time.Duration
}

// PartitionResumed: a paused partition's handler succeeded again.
type PartitionResumed struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Lane is as in HandlerFailed: with one, only that key was paused.
	Lane uint64
}

// CommitBlocked: records beyond Offset are finished, and Offset is not, so that the commit stands there. It is told again
// each time the age has doubled.
type CommitBlocked struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Offset is the record that holds the commit up, Lane as in HandlerFailed.
	Offset int64
	Lane   uint64
	// Handler is "running", "backing_off" (it failed, and comes again), "waiting" (for its turn), or "acknowledging" (given to
	// an actor or an asynchronous handler).
	Handler string
	// Attempt is how often the record was delivered.
	Attempt int
	// Age is how long the commit stands, Rounds how many commits of the member went out meanwhile, Finished how many
	// records beyond Offset are finished.
	Age      time.Duration
	Rounds   uint64
	Finished int
}

// WindowFull: a partition has reached MaxInTransit and nothing that is in transit can be worked on: every record that is
// not finished has failed, or waits behind one that has. It goes on when one of them succeeds.
type WindowFull struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Offset is the oldest of them, Lanes how many keys they have.
	Offset int64
	Lanes  int
}

// StrategyFailed: the commit strategy panicked. From now on offsets are committed as by commit.Opportunistic.
type StrategyFailed struct {
	Member   Member
	Strategy string
	Err      error
}

// MetadataIgnored: the metadata of a committed offset is not ours, damaged, or belongs to another offset. The partition
// starts at the offset; what it says of finished records is not trusted.
type MetadataIgnored struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Offset         int64
	Err            error
}

// ProcessingOverdue: a record is worked on for longer than Config.MaxProcessingTime, or not acknowledged for that long. The
// member gives everything up, so that another one can take the partition, and is back when the handler has returned.
type ProcessingOverdue struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	// Epoch is that of the handler, which may be older than the present ownership.
	Epoch kafka.AssignmentEpoch
	// Offset is the record, the first unfinished one of a batch.
	Offset int64
	// Since is when it was first seen to be worked on: up to an eighth of Limit after it began.
	Since time.Time
	Limit time.Duration
}

// HandlerAbandoned: a handler still runs although its partition was given up. Until it returns, nothing of that partition
// is delivered again in this process.
type HandlerAbandoned struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Offset is the record it was given first of those not finished; Age how long ago.
	Offset int64
	Age    time.Duration
}

// HandlerReturned: an abandoned handler returned at last.
type HandlerReturned struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
}

// CommitFailed: offsets were not confirmed; they go into the next round.
type CommitFailed struct {
	Member Member
	// Partitions are those not confirmed, in order.
	Partitions []kafka.TopicPartition
	Err        error
	Attempt    int
	RetryIn    time.Duration
}

// Refused: something wrong was told by the group or the broker, and not followed.
type Refused struct {
	Member Member
	Err    error
}

// ActorRestarted: an actor of the tree failed and was started anew.
type ActorRestarted struct {
	Member Member
	// Actor is its role, such as "committer" or "partition orders-3".
	Actor    string
	Restarts int
	Err      error
}

// Closed: the tree has ended. Err is what Consumer.Err returns.
type Closed struct {
	Member Member
	Err    error
}

// Name returns "member_moved".
func (MemberMoved) Name() string { return "member_moved" }

// Name returns "coordinator_moved".
func (CoordinatorMoved) Name() string { return "coordinator_moved" }

// Name returns "connect_failed".
func (ConnectFailed) Name() string { return "connect_failed" }

// Name returns "topic_missing".
func (TopicMissing) Name() string { return "topic_missing" }

// Name returns "partition_missing".
func (PartitionMissing) Name() string { return "partition_missing" }

// Name returns "subscription_changed".
func (SubscriptionChanged) Name() string { return "subscription_changed" }

// Name returns "topic_changed".
func (TopicChanged) Name() string { return "topic_changed" }

// Name returns "partitions_assigned".
func (PartitionsAssigned) Name() string { return "partitions_assigned" }

// Name returns "partitions_revoked".
func (PartitionsRevoked) Name() string { return "partitions_revoked" }

// Name returns "partitions_lost".
func (PartitionsLost) Name() string { return "partitions_lost" }

// Name returns "partition_released".
func (PartitionReleased) Name() string { return "partition_released" }

// Name returns "position_reset".
func (PositionReset) Name() string { return "position_reset" }

// Name returns "fetch_failed".
func (FetchFailed) Name() string { return "fetch_failed" }

// Name returns "partition_stuck".
func (PartitionStuck) Name() string { return "partition_stuck" }

// Name returns "partition_failed".
func (PartitionFailed) Name() string { return "partition_failed" }

// Name returns "handler_failed".
func (HandlerFailed) Name() string { return "handler_failed" }

// Name returns "handler_restarted".
func (HandlerRestarted) Name() string { return "handler_restarted" }

// Name returns "partition_paused".
func (PartitionPaused) Name() string { return "partition_paused" }

// Name returns "partition_resumed".
func (PartitionResumed) Name() string { return "partition_resumed" }

// Name returns "commit_blocked".
func (CommitBlocked) Name() string { return "commit_blocked" }

// Name returns "window_full".
func (WindowFull) Name() string { return "window_full" }

// Name returns "strategy_failed".
func (StrategyFailed) Name() string { return "strategy_failed" }

// Name returns "metadata_ignored".
func (MetadataIgnored) Name() string { return "metadata_ignored" }

// Name returns "processing_overdue".
func (ProcessingOverdue) Name() string { return "processing_overdue" }

// Name returns "handler_abandoned".
func (HandlerAbandoned) Name() string { return "handler_abandoned" }

// Name returns "handler_returned".
func (HandlerReturned) Name() string { return "handler_returned" }

// Name returns "commit_failed".
func (CommitFailed) Name() string { return "commit_failed" }

// Name returns "refused".
func (Refused) Name() string { return "refused" }

// Name returns "actor_restarted".
func (ActorRestarted) Name() string { return "actor_restarted" }

// Name returns "closed".
func (Closed) Name() string { return "closed" }

func (MemberMoved) event()         {}
func (CoordinatorMoved) event()    {}
func (ConnectFailed) event()       {}
func (TopicMissing) event()        {}
func (PartitionMissing) event()    {}
func (SubscriptionChanged) event() {}
func (TopicChanged) event()        {}
func (PartitionsAssigned) event()  {}
func (PartitionsRevoked) event()   {}
func (PartitionsLost) event()      {}
func (PartitionReleased) event()   {}
func (PositionReset) event()       {}
func (FetchFailed) event()         {}
func (PartitionFailed) event()     {}
func (HandlerFailed) event()       {}
func (HandlerRestarted) event()    {}
func (PartitionPaused) event()     {}
func (PartitionResumed) event()    {}
func (CommitBlocked) event()       {}
func (WindowFull) event()          {}
func (StrategyFailed) event()      {}
func (MetadataIgnored) event()     {}
func (HandlerAbandoned) event()    {}
func (HandlerReturned) event()     {}
func (CommitFailed) event()        {}
func (Refused) event()             {}
func (ActorRestarted) event()      {}
func (Closed) event()              {}
func (ProcessingOverdue) event()   {}
func (PartitionStuck) event()      {}
