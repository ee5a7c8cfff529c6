package rebalance

import (
	"errors"
	"fmt"

	"github.com/troupego/troupe/pkg/kafka"
)

// StartPosition says where a partition begins that is assigned without a group: at an offset ([StartAtOffset]), or where a
// policy says ([StartBy]). The zero value is StartBy([ResetEarliest]), the beginning. Values can be compared with ==.
// (Java: KafkaConsumer.seek, seekToBeginning, seekToEnd, and offsetsForTimes with seek.)
type StartPosition struct {
	atOffset bool
	offset   int64
	policy   ResetPolicy
}

// StartAtOffset begins at an offset, the next one to read; at least 0. One that the log does not have is answered by the
// registration's reset policy, with an event, as a committed offset that is gone.
func StartAtOffset(offset int64) StartPosition { return StartPosition{atOffset: true, offset: offset} }

// StartBy begins where the policy says at the time of the start: [ResetEarliest], [ResetLatest], [ResetAt] a time, or
// [ResetByDuration] back from now. With [ResetNone] a partition begins only where an offset is kept for it outside of Kafka.
func StartBy(policy ResetPolicy) StartPosition { return StartPosition{policy: policy} }

// Offset returns the offset of [StartAtOffset], and false for any other position.
func (p StartPosition) Offset() (int64, bool) { return p.offset, p.atOffset }

// Policy returns the policy of [StartBy], and false for an offset.
func (p StartPosition) Policy() (ResetPolicy, bool) { return p.policy, !p.atOffset }

// String returns "offset:" and the offset, or the policy's word.
func (p StartPosition) String() string {
	if p.atOffset {
		return fmt.Sprintf("offset:%d", p.offset)
	}
	return p.policy.String()
}

// Validate returns nil, or a *[StartPositionError] that says what would be right.
func (p StartPosition) Validate() error {
	if p.atOffset {
		if p.offset < 0 {
			return &StartPositionError{Position: p, Want: "an offset of at least 0"}
		}
		return nil
	}
	if wrong, ok := errors.AsType[*ResetPolicyError](p.policy.Validate()); ok {
		return &StartPositionError{Position: p, Want: wrong.Want}
	}
	return nil
}

// StartPositionError means that a start position is none. It wraps [ErrConfig].
type StartPositionError struct {
	Position StartPosition
	// Want is what would be right.
	Want string
}

// Error says what is wrong and what would be right.
func (e *StartPositionError) Error() string {
	return fmt.Sprintf("%v: start position %s: want %s", ErrConfig, e.Position, e.Want)
}

// Unwrap returns [ErrConfig].
func (e *StartPositionError) Unwrap() error { return ErrConfig }

// Decide applies the position; now is milliseconds since the Unix epoch, reason goes into a [StartFromReset]. An offset comes
// without a leader epoch: the log is not asked whether it still has what whoever named it has seen.
func (p StartPosition) Decide(now int64, tp kafka.TopicPartition, reason string) StartDecision {
	if p.atOffset {
		return StartAt{Offset: p.offset, LeaderEpoch: kafka.NoLeaderEpoch}
	}
	return reset(now, tp, p.policy, reason)
}
