package actors

import (
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Stats is a snapshot of a consumer. Taking one costs a lock and a walk over the partitions; it never waits for an actor.
type Stats struct {
	GroupID  string
	MemberID string
	// Generation is kafka.NoGeneration while the member is in none.
	Generation kafka.Generation
	// State is the member's state, such as "ASSIGNED".
	State string
	// Coordinator is the link's state, such as "STABLE"; without a group "DOWN".
	Coordinator string
	// Leader is true when this member leads the group (computes assignments).
	Leader bool
	// LastHeartbeat is when the last answered heartbeat was sent; zero before the first.
	LastHeartbeat time.Time
	// Rebalances counts the generations entered.
	Rebalances uint64
	// StaleAcks counts acknowledgments of an ownership or delivery that had ended.
	StaleAcks uint64
	// RepeatedAcks counts verdicts on single records that had theirs already, ForeignAcks those on records that their
	// delivery does not have. Both changed nothing.
	RepeatedAcks, ForeignAcks uint64
	// StaleMessages counts messages between actors dropped because their epoch, or the actor they were for, had ended.
	StaleMessages uint64
	// Concurrency is how many handlers may run at once in the member, 0 for no limit (Consumer.SetConcurrency).
	Concurrency int
	// MemoryHeld is the bytes of fetched records held.
	MemoryHeld int64
	// EventsDropped counts events the observer was too slow for.
	EventsDropped uint64
	// Subscription has the topics that the member asks for: those named, and those that exist and match a pattern. In order.
	Subscription []string
	// MissingTopics are the subscribed topics that do not exist, or may not be seen; they are joined when they appear.
	MissingTopics []string
	// MissingPartitions are those assigned without a group that their topics do not have; they are read when they appear.
	MissingPartitions []kafka.TopicPartition
	// GaveUp are the handlers because of which the member is out of the group: those that were at work for longer than
	// MaxProcessingTime, and those of other partitions that the drain could not wait for, as long as they have not returned.
	GaveUp []RunningHandler
	// Tokens are those that are out, callbacks' included, in the order in which they were given.
	Tokens []TokenStats
	// Partitions has the partitions owned now, in order.
	Partitions []PartitionStats
}

// TokenStats is one token that somebody has.
type TokenStats struct {
	// Holder has it, Operation is what it was asked for: "rebalance" for a callback's.
	Holder, Operation string
	Since             time.Time
	// Partitions are those that it covers, in order.
	Partitions []kafka.TopicPartition
}

// PartitionStats is one owned partition's part of a snapshot.
type PartitionStats struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// State is the partition's state, such as "ASSIGNED".
	State string
	// Condition is "flowing", "waiting" (for a leader or an offset), "window_full", "backing_off", "paused" (restart budget
	// spent, for the partition or one of its keys), "failed" (a batch cannot be read), "user_paused" (Consumer.Pause) or "read" (all
	// up to End is read and finished).
	Condition string
	// Position is the next offset to deliver, kafka.NoOffset while unknown.
	Position int64
	// End is where the reading ends (api.ReadRange): the first offset that is not read any more. kafka.NoOffset before it is
	// known, and for a partition that is read on for ever.
	End int64
	// Committed is the offset the coordinator confirmed, kafka.NoOffset while there is none.
	Committed int64
	// InTransit is the number of records delivered and not below the contiguous finished point.
	InTransit int
	// Delivered, Acked and Redelivered count records under this epoch.
	Delivered, Acked, Redelivered uint64
	// Skipped counts the records that were finished by Consumer.Skip; Acked has them as well.
	Skipped uint64
	// Lag is the log's end minus Position; valid only when LagKnown. End is the last stable offset under read_committed.
	Lag      int64
	LagKnown bool
	// Restarts counts the handler's restarts under this epoch.
	Restarts uint64
	// HandlerSince is when the running delivery started; zero when no handler runs.
	HandlerSince time.Time
	// HandlerOffset is the offset the handler works on, kafka.NoOffset when none runs. Of several, the one that runs longest.
	HandlerOffset int64
	// PauseReasons are why nothing more is delivered at the moment, in this order: "user" (Consumer.Pause), "window"
	// (MaxInTransit is reached), "budget" (waiting for a part of MemoryBudget), "retry" (the handler has failed and waits for
	// its next try). Empty while records flow, or there are none.
	PauseReasons []string
	// Blocked says since when the commit stands still although later records are finished; nil while it does not.
	Blocked *BlockedCommit
	// Stuck says since when the partition cannot be read on; nil while it can, or not for Config.StuckAfter yet.
	Stuck *StuckPartition
}

// StuckPartition is a partition that cannot be read on; see event.PartitionStuck.
type StuckPartition struct {
	Offset  int64
	Since   time.Time
	Waiting string
	Err     error
}

// BlockedCommit is a commit that stands still; see event.CommitBlocked.
type BlockedCommit struct {
	Offset   int64
	Since    time.Time
	Lane     uint64
	Handler  string
	Attempt  int
	Finished int
}

// Why nothing more is delivered, as bits.
const (
	pausedByUser uint32 = 1 << iota
	pausedByWindow
	pausedByBudget
	pausedByRetry
)

func reason(holds bool, bit uint32) uint32 {
	if holds {
		return bit
	}
	return 0
}

func pauseReasons(bits uint32) (out []string) {
	for i, word := range [...]string{"user", "window", "budget", "retry"} {
		if bits&(1<<i) != 0 {
			out = append(out, word)
		}
	}
	return out
}
