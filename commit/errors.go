package commit

import (
	"errors"
	"fmt"

	"github.com/troupego/troupe/pkg/kafka"
)

// Why an offset was not committed; a [FlushError] wraps one of them, [RoundFailed] may carry ErrUnanswered.
var (
	// ErrFlushDeadline means that the flush's deadline passed before the coordinator confirmed.
	ErrFlushDeadline = errors.New("deadline passed before the coordinator confirmed")
	// ErrEpochClosed means that the partition's epoch is not open: it was fenced, replaced or never assigned.
	ErrEpochClosed = errors.New("assignment epoch is closed")
	// ErrDeparted means that the membership ended.
	ErrDeparted = errors.New("the membership ended")
	// ErrMetadataTooLarge means that the broker takes no metadata as long as what the user gave along with an offset
	// (offset.metadata.max.bytes): the offset was given up, and the partition's commits go on as if it had never been asked for.
	ErrMetadataTooLarge = errors.New("the metadata is longer than the broker takes")
	// ErrManual means that an offset was to be committed under [Manual].
	ErrManual = errors.New("the commit strategy is Manual: offsets are kept elsewhere")
	// ErrUnanswered means that the answer to a round did not name the partition.
	ErrUnanswered = errors.New("the answer does not name the partition")
)

// Misuse of [Rounds]; returned by Step, which then changed nothing.
var (
	// ErrInvalidInput means that an input is nil or holds a value out of its bounds.
	ErrInvalidInput = errors.New("commit: invalid input")
	// ErrDuplicateFlush means that a flush with that ID is still open.
	ErrDuplicateFlush = errors.New("commit: a flush with this id is open")
)

// FlushError says why a commit that somebody waited for ended without the offset being confirmed. Whether it was committed all the same may be
// unknown: see Cause.
type FlushError struct {
	// TopicPartition and Epoch are those of the flush.
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Offset is the offset that was to be committed, kafka.NoOffset when the epoch was not open.
	Offset int64
	// Reason is ErrFlushDeadline, ErrEpochClosed, ErrDeparted, for an offset of the user's ErrMetadataTooLarge or ErrManual, or why the
	// partition's actor stopped.
	Reason error
	// Cause is the last error of a round with this partition, or the cause of the departure; nil when there was none.
	Cause error
}

// Error names partition, epoch, offset, reason and cause.
func (e *FlushError) Error() string {
	text := fmt.Sprintf("commit: %s epoch %d: offset %d not committed: %v", e.TopicPartition, e.Epoch, e.Offset, e.Reason)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns reason and cause.
func (e *FlushError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Reason}
	}
	return []error{e.Reason, e.Cause}
}

// class is what an error of a commit asks for.
type class uint8

const (
	// classRetry: try again with growing backoff.
	classRetry class = iota
	// classLater: a rebalance is under way; try again, membership is not touched (case B24).
	classLater
	// classMembership: the broker does not know this member or generation.
	classMembership
	// classCoordinator: ask who the coordinator is, and try again.
	classCoordinator
	// classMetadata: the metadata is too large; try again at once without it (case B57).
	classMetadata
	// classSlow: nothing a quick retry could mend (no permission, no such topic); try again at the longest backoff.
	classSlow
)

// classify maps an error of a partition or of a whole request. An error without a Kafka code is a broken connection, an
// unreachable broker or a missing answer.
func classify(err error) class {
	if errors.Is(err, ErrUnanswered) {
		return classRetry
	}
	var code kafka.ErrorCode
	if !errors.As(err, &code) {
		return classCoordinator
	}
	return classes[code]
}

// classes has the codes that ask for more than a retry with growing backoff.
var classes = map[kafka.ErrorCode]class{
	kafka.RebalanceInProgress: classLater,

	kafka.IllegalGeneration: classMembership,
	kafka.UnknownMemberID:   classMembership,
	kafka.FencedInstanceID:  classMembership,

	kafka.NotCoordinator:          classCoordinator,
	kafka.CoordinatorNotAvailable: classCoordinator,
	kafka.NetworkException:        classCoordinator,

	kafka.OffsetMetadataTooLarge: classMetadata,

	kafka.GroupAuthorizationFailed: classSlow,
	kafka.TopicAuthorizationFailed: classSlow,
	kafka.UnknownTopicOrPartition:  classSlow,
	kafka.UnknownTopicID:           classSlow,
	kafka.InvalidCommitOffsetSize:  classSlow,
}
