package event

import (
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// What callbacks, tokens and control calls of a running consumer tell.

// CallbackFailed: a callback of the user's returned an error, panicked, or did not return in time. The member goes on. One
// whose context was ended before its time, and that returns what it ended with, has not failed.
type CallbackFailed struct {
	Member Member
	// Callback is "OnAssigning", "OnAssigned", "OnRevoking", "OnRevoked" or "OnLost".
	Callback   string
	Partitions []kafka.TopicPartition
	Err        error
}

// TokenRevoked: a token ended that its holder had not returned: it was overdue, its holder has ended (a panic, an actor that
// stopped), or a call with it was under way when it was to be returned. It is dead for ever, and so are those calls.
type TokenRevoked struct {
	Member Member
	// Holder had it, for Operation, since Since; "rebalance" for a callback's.
	Holder, Operation string
	Since             time.Time
	Partitions        []kafka.TopicPartition
	// Calls are those that were under way with it, the outermost first.
	Calls []string
	// Err wraps actors.ErrTokenOverdue, actors.ErrHolderDied or actors.ErrTokenInside, or is what a callback failed with.
	Err error
}

// CommitSetBack: the user commits a lower offset than the one committed last; see Consumer.CommitOffsets. The group resumes there
// until more is finished. It is told when it is asked for; the call's answer says whether it was confirmed.
type CommitSetBack struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	From, To       int64
}

// RecordSkipped: a record was finished without its handler, by Consumer.Skip. It will be committed as if it was acknowledged.
type RecordSkipped struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	Offset         int64
	// Reason is what the caller gave.
	Reason string
	// Attempt is how often the record was delivered under this epoch, 0 when it waited for its turn.
	Attempt int
}

// Name returns "callback_failed".
func (CallbackFailed) Name() string { return "callback_failed" }

// Name returns "token_revoked".
func (TokenRevoked) Name() string { return "token_revoked" }

// Name returns "commit_set_back".
func (CommitSetBack) Name() string { return "commit_set_back" }

// Name returns "record_skipped".
func (RecordSkipped) Name() string { return "record_skipped" }

func (CallbackFailed) event() {}
func (TokenRevoked) event()   {}
func (CommitSetBack) event()  {}
func (RecordSkipped) event()  {}
