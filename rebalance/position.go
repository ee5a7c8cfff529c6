package rebalance

import (
	"fmt"

	"github.com/troupego/troupe/pkg/kafka"
)

// Timestamps with a meaning in ListOffsets.
const (
	// TimestampLatest asks for the end of the log.
	TimestampLatest int64 = -1
	// TimestampEarliest asks for the start of the log.
	TimestampEarliest int64 = -2
	// TimestampEarliestLocal asks for the start of what the leader has on its own disks, not in a remote tier (KIP-405).
	TimestampEarliestLocal int64 = -4
)

// Reasons of a [StartFromReset].
const (
	// ReasonNoCommit: the group starts on this topic for the first time.
	ReasonNoCommit = "no_commit"
	// ReasonNewPartition: the topic grew; the partition is younger than the group's first start.
	ReasonNewPartition = "new_partition"
	// ReasonOutOfRange: the partition's leader does not have the position any more, or never had it.
	ReasonOutOfRange = "out_of_range"
	// ReasonBeyondEnd: the same, and the offset to go on at lies below the position: the log has lost records, or the position
	// was never one of its own.
	ReasonBeyondEnd = "beyond_end"
	// ReasonAssigned: without a group, the position that the partition was assigned with.
	ReasonAssigned = "assigned"
	// ReasonSought: the position that a program asked for while the partition was owned.
	ReasonSought = "seek"
)

// Committed is the coordinator's answer about one partition's committed offset.
type Committed struct {
	// Offset is the next offset to read; negative when nothing was committed.
	Offset int64
	// LeaderEpoch goes with Offset, [kafka.NoLeaderEpoch] when unknown.
	LeaderEpoch int32
	// Err is set when the coordinator could not say. That is never "nothing committed".
	Err error
}

// GroupCommits says whether the group has a committed offset on a topic in partitions other than those asked about.
type GroupCommits uint8

const (
	// GroupCommitsUnknown: it could not be found out.
	GroupCommitsUnknown GroupCommits = iota
	// GroupCommitsNone: no other partition has one.
	GroupCommitsNone
	// GroupCommitsSome: at least one other partition has one.
	GroupCommitsSome
)

// StartDecision is where a partition starts: [StartAt], [StartFromReset], [StartFails] or [AskLeader].
//
//sumtype:decl
type StartDecision interface{ startDecision() }

// StartAt: go on at the committed offset.
type StartAt struct {
	Offset      int64
	LeaderEpoch int32
}

// StartFromReset: look the offset up with ListOffsets and, once known, commit it at once.
type StartFromReset struct {
	// Timestamp is what to ask for: [TimestampEarliest], [TimestampLatest], or a time in milliseconds since the Unix epoch.
	// Where no record is as young as that, the end of the log is where to start.
	Timestamp int64
	// Reason is one of the constants above.
	Reason string
}

// StartFails: there is no position. Err wraps [ErrNoOffset], which only a person can solve, or a cause that may pass.
type StartFails struct{ Err error }

// AskLeader: a follower's word is not enough, fetch from the partition's leader at the same position.
type AskLeader struct{}

func (StartAt) startDecision()        {}
func (StartFromReset) startDecision() {}
func (StartFails) startDecision()     {}
func (AskLeader) startDecision()      {}

// DecideStarts decides where the partitions of one topic start. now is in milliseconds since the Unix epoch; committed has
// an answer for each of them; others says what is known of the topic's other partitions in the group, which matters only to
// partitions without a commit.
//
// A partition without a commit on a topic where the group has committed before appeared later: it starts at its beginning
// whatever the policy, since everything in it was written while the group was already subscribed.
func DecideStarts(now int64, topic string, committed map[int32]Committed, others GroupCommits, policy ResetPolicy) map[int32]StartDecision {
	for _, answer := range committed {
		switch {
		case answer.Err == nil && answer.Offset >= 0:
			others = GroupCommitsSome
		case answer.Err != nil && others == GroupCommitsNone:
			// One of ours may have a commit; without its answer "first start" is a guess.
			others = GroupCommitsUnknown
		}
		if others == GroupCommitsSome {
			break
		}
	}
	out := make(map[int32]StartDecision, len(committed))
	for partition, answer := range committed {
		tp := kafka.TopicPartition{Topic: topic, Partition: partition}
		switch {
		case answer.Err != nil:
			out[partition] = StartFails{Err: fmt.Errorf("rebalance: committed offset of %s: %w", tp, answer.Err)}
		case answer.Offset >= 0:
			out[partition] = StartAt{Offset: answer.Offset, LeaderEpoch: answer.LeaderEpoch}
		case others == GroupCommitsSome:
			out[partition] = StartFromReset{Timestamp: TimestampEarliest, Reason: ReasonNewPartition}
		case others == GroupCommitsUnknown && policy != ResetEarliest:
			out[partition] = StartFails{Err: fmt.Errorf("rebalance: start of %s: %w", tp, ErrCommitsUnknown)}
		default:
			out[partition] = reset(now, tp, policy, ReasonNoCommit)
		}
	}
	return out
}

// FetchSource says which replica answered a fetch.
type FetchSource uint8

const (
	// FromLeader: the partition's leader answered.
	FromLeader FetchSource = iota
	// FromFollower: another replica answered (KIP-392).
	FromFollower
)

// DecideOutOfRange decides what to do when a fetch at offset was answered with OFFSET_OUT_OF_RANGE. A follower may only be
// behind, so from one it is never a reset. now is in milliseconds since the Unix epoch.
func DecideOutOfRange(now int64, tp kafka.TopicPartition, offset int64, source FetchSource, policy ResetPolicy) StartDecision {
	if source != FromLeader {
		return AskLeader{}
	}
	decision := reset(now, tp, policy, ReasonOutOfRange)
	if failed, ok := decision.(StartFails); ok {
		return StartFails{Err: fmt.Errorf("%w: offset %d: %w", failed.Err, offset, kafka.OffsetOutOfRange)}
	}
	return decision
}
