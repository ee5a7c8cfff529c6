package rebalance

import (
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Input is one thing that happened, given to [Member.Step] or [Standalone.Step].
//
//sumtype:decl
type Input interface{ memberInput() }

// Start asks the member to join its group. Legal in UNJOINED: once at first, and after it has left or given up.
type Start struct {
	// Reason is told to the coordinator (KIP-800). Empty = "first join".
	Reason string
}

// JoinAnswered carries the outcome of the JoinGroup with that Seq. An answer to an older one is stale and ignored.
type JoinAnswered struct {
	Seq      uint64
	Response JoinResponse
	// Err is nil, or wraps a kafka.ErrorCode, or is a transport error. Response.MemberID is set with MEMBER_ID_REQUIRED.
	Err error
}

// TopicsKnown answers [QueryTopics]: how many partitions each topic has. A topic that does not exist is left out.
type TopicsKnown struct {
	Seq        uint64
	Partitions map[string]TopicInfo
	// Err is set when metadata could not be had at all.
	Err error
}

// TopicInfo is what an assignor and the topic watch need of a topic.
type TopicInfo struct {
	ID         kafka.TopicID
	Partitions int32
	// Racks has, by partition number, the racks of the partition's replicas. Nil, a missing or an empty entry, and an empty
	// name all mean unknown.
	Racks [][]string
}

// SyncAnswered carries the outcome of the SyncGroup with that Seq.
type SyncAnswered struct {
	Seq      uint64
	Response SyncResponse
	Err      error
}

// HeartbeatAnswered carries the outcome of a heartbeat of that generation. Err is nil, wraps a kafka.ErrorCode, or is a
// transport error (which alone proves nothing: the session decides).
type HeartbeatAnswered struct {
	Generation kafka.Generation
	Err        error
}

// SessionExpired says that no heartbeat of that generation was answered for the session timeout.
type SessionExpired struct{ Generation kafka.Generation }

// CommitFenced says that an OffsetCommit sent with that generation was refused with a code that puts membership in doubt
// (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID).
type CommitFenced struct {
	Generation kafka.Generation
	Err        error
}

// PartitionStarted says that a granted partition has its starting position decided. Stale epochs are ignored.
type PartitionStarted struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
}

// PartitionReleased says that a partition went to REVOKED: drained, committed as far as possible and fenced, or lost.
type PartitionReleased struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
}

// TopicsChanged tells of refreshed metadata for the topics watched (partition counts and topic ids).
type TopicsChanged struct {
	Partitions map[string]TopicInfo
	// Absent are topics that the brokers say they do not have, or do not show, and why.
	Absent map[string]error
}

// RangeRead says that all of a partition's range is read and finished ([StandaloneConfig].Ends).
type RangeRead struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Undone takes that back: the position was set back.
	Undone bool
}

// TopicRecreated says that a topic was deleted and made anew under its name: what is held of it is of another log. It is
// given up at once, and the member joins again to be given it anew.
type TopicRecreated struct{ Topic string }

// SubscriptionChanged says which topics the member is to ask for from now on. Legal in every state.
type SubscriptionChanged struct {
	Topics []string
	// Gone are topics no longer in Topics because they do not exist any more.
	Gone []string
	// LetGo are topics whose partitions are to be given up as the member has them now, also when the topic is, or soon will
	// be, among Topics: they come back as new grants.
	LetGo []string
}

// Rejoin asks for a new rebalance. Cause is told to the coordinator.
type Rejoin struct{ Cause string }

// Leave asks the member to give everything up and leave the group, all of it before Deadline.
// DrainUntil is when handlers are no longer waited for.
type Leave struct {
	DrainUntil time.Time
	Deadline   time.Time
}

// LeaveAnswered carries the outcome of LeaveGroup.
type LeaveAnswered struct {
	Seq uint64
	Err error
}

// Tick says that the time [Member.Deadline] named has come.
type Tick struct{}

func (Start) memberInput()               {}
func (JoinAnswered) memberInput()        {}
func (TopicsKnown) memberInput()         {}
func (SyncAnswered) memberInput()        {}
func (HeartbeatAnswered) memberInput()   {}
func (SessionExpired) memberInput()      {}
func (CommitFenced) memberInput()        {}
func (PartitionStarted) memberInput()    {}
func (PartitionReleased) memberInput()   {}
func (TopicsChanged) memberInput()       {}
func (RangeRead) memberInput()           {}
func (TopicRecreated) memberInput()      {}
func (SubscriptionChanged) memberInput() {}
func (Rejoin) memberInput()              {}
func (Leave) memberInput()               {}
func (LeaveAnswered) memberInput()       {}
func (Tick) memberInput()                {}
