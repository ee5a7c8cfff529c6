package rebalance

import (
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Effect is one thing the shell must do after [Member.Step] or [Standalone.Step], in the order given.
//
//sumtype:decl
type Effect interface{ memberEffect() }

// Grant is one partition under one assignment epoch.
type Grant struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
}

// SendJoin: send a JoinGroup; answer with [JoinAnswered] of the same Seq. A new SendJoin replaces one still running.
type SendJoin struct {
	Seq     uint64
	Request JoinRequest
}

// QueryTopics: the member leads the group and needs the partition counts of these topics; answer with [TopicsKnown].
type QueryTopics struct {
	Seq    uint64
	Topics []string
}

// SendSync: send a SyncGroup; answer with [SyncAnswered] of the same Seq.
type SendSync struct {
	Seq     uint64
	Request SyncRequest
}

// SendLeave: send a LeaveGroup; answer with [LeaveAnswered] of the same Seq.
type SendLeave struct {
	Seq     uint64
	Request LeaveRequest
}

// HoldCommits: queue commits from here on, a JoinGroup is under way. Precedes SendJoin when the member has a generation.
type HoldCommits struct{}

// ResumeCommits: the JoinGroup under way is given up because the member leaves; commits go out with this generation.
type ResumeCommits struct {
	Generation kafka.Generation
	MemberID   string
}

// EnterGeneration: the member is in this generation: heartbeats start and commits go out with it.
type EnterGeneration struct {
	Generation kafka.Generation
	MemberID   string
	// Leader reports whether this member leads the group and so watches all Topics of the group's subscriptions.
	Leader bool
	// Topics are the topics to watch in metadata.
	Topics []string
	// Protocol is the assignor the group chose.
	Protocol string
	// Early reports whether another rebalance is likely to follow soon, so that heartbeats begin early (KIP-429).
	Early bool
}

// JoinGeneration: JoinGroup was answered while a generation entered before is still in force, for what is kept over the rebalance.
// The coordinator counts the member's session in this one now, and refuses heartbeats of the other: they go on with this one.
// Commits wait for [EnterGeneration].
type JoinGeneration struct {
	Generation kafka.Generation
	MemberID   string
}

// LeaveGeneration: the membership is gone (lost or left): heartbeats stop, nothing may be committed with it.
type LeaveGeneration struct{ Cause error }

// AssignPartitions: start these partitions. Each answers with [PartitionStarted]. May be empty.
type AssignPartitions struct{ Grants []Grant }

// MissPartitions: these are assigned without a group, their topic is there and does not have them: look again soon. It comes
// when they are others than before; empty means that all are there.
type MissPartitions struct{ Partitions []kafka.TopicPartition }

// RevokePartitions: drain, commit, fence and let go of these. Each answers with [PartitionReleased].
// At DrainUntil handlers are no longer waited for; at Deadline the final commit neither.
type RevokePartitions struct {
	Grants     []Grant
	DrainUntil time.Time
	Deadline   time.Time
	// Closing is true when the member is leaving for good, and not coming back.
	Closing bool
}

// LosePartitions: fence these at once, commit nothing more for them. Each answers with [PartitionReleased].
type LosePartitions struct {
	Grants []Grant
	Cause  error
}

// RangesRead: all ranges are read and finished; the consumer may close. Comes once.
type RangesRead struct{}

// RangeGone: a range cannot be read to its end; the consumer is to close. Err is a *[RangeError]. Comes once.
type RangeGone struct{ Err error }

// Left: the member is out of the group; the tree may stop. Err says what did not go well, nil if all did.
type Left struct{ Err error }

// Failed: the member is in FATAL and will not join again by itself.
type Failed struct{ Err error }

// Moved reports a change of state, for logs, events and metrics.
type Moved struct {
	From, To State
	// Cause is short, human and free of payloads, such as "heartbeat: REBALANCE_IN_PROGRESS (27)".
	Cause string
	// Err is the error behind the cause, nil when there is none.
	Err        error
	Generation kafka.Generation
	MemberID   string
}

// Refused reports something wrong that the member goes on from, such as a partition assigned that it never asked for.
type Refused struct{ Err error }

func (SendJoin) memberEffect()         {}
func (QueryTopics) memberEffect()      {}
func (SendSync) memberEffect()         {}
func (SendLeave) memberEffect()        {}
func (HoldCommits) memberEffect()      {}
func (ResumeCommits) memberEffect()    {}
func (EnterGeneration) memberEffect()  {}
func (JoinGeneration) memberEffect()   {}
func (LeaveGeneration) memberEffect()  {}
func (AssignPartitions) memberEffect() {}
func (MissPartitions) memberEffect()   {}
func (RevokePartitions) memberEffect() {}
func (LosePartitions) memberEffect()   {}
func (RangesRead) memberEffect()       {}
func (RangeGone) memberEffect()        {}
func (Left) memberEffect()             {}
func (Failed) memberEffect()           {}
func (Moved) memberEffect()            {}
func (Refused) memberEffect()          {}
