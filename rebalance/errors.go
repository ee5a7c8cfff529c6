package rebalance

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Misuse of a machine. A shell that sees one of these has a bug; the machine's state did not change.
var (
	// ErrIllegalMove means that a change of state is not in the machine's table.
	ErrIllegalMove = errors.New("illegal change of state")
	// ErrUnexpectedInput means that an input cannot happen in the machine's state.
	ErrUnexpectedInput = errors.New("unexpected input")
	// ErrConfig means that a machine was made with a configuration it cannot work with.
	ErrConfig = errors.New("bad configuration")
	// ErrInvalid means that an invariant of a machine does not hold; only the Valid methods return it.
	ErrInvalid = errors.New("invariant broken")
)

// What goes wrong in a group. These come wrapped in effects.
var (
	// ErrSessionExpired means that no heartbeat was answered for the session timeout: the coordinator has given the
	// partitions to somebody else by now.
	ErrSessionExpired = errors.New("session expired")
	// ErrForeignPartition means that the group leader assigned a partition of a topic that the member never asked for.
	ErrForeignPartition = errors.New("partition of a topic not asked for")
	// ErrFutureClaim means that a member says it was given partitions in a generation that nobody was in yet.
	ErrFutureClaim = errors.New("partitions claimed of a generation to come")
	// ErrTopicRecreated means that a topic was deleted and made anew under its name.
	ErrTopicRecreated = errors.New("topic made anew")
	// ErrNoPartition means that a partition does not exist, or may not be seen, which a bounded reading does not wait for.
	ErrNoPartition = errors.New("the partition does not exist")
	// ErrBadAnswer means that the coordinator answered without an error and without what the answer must hold.
	ErrBadAnswer = errors.New("answer makes no sense")
	// ErrNotReleased means that a partition was not let go before the deadline of the drain; it was declared lost.
	ErrNotReleased = errors.New("partitions not released in time")
	// ErrLeaveUnfinished means that the deadline for leaving passed before everything was given up.
	ErrLeaveUnfinished = errors.New("leaving the group did not end in time")
	// ErrGenerationExpired means that the group leader could not finish its assignment while its JoinGroup was worth
	// something.
	ErrGenerationExpired = errors.New("generation expired before SyncGroup")
	// ErrFinalCommitUnanswered means that a revoked partition was let go without knowing whether its last commit counts.
	ErrFinalCommitUnanswered = errors.New("final commit not answered in time")
	// ErrNoCoordinator means that the group's coordinator was not found before the deadline of the work that needs it.
	ErrNoCoordinator = errors.New("no coordinator")
	// ErrLinkDown means that work asked for a coordinator of a link that was not started or has been stopped.
	ErrLinkDown = errors.New("coordinator link is down")
	// ErrMalformed means that bytes of the consumer protocol cannot be decoded.
	ErrMalformed = errors.New("malformed consumer protocol data")
	// ErrNoOffset means that a partition has no position to start from and the reset policy is "none".
	ErrNoOffset = errors.New("no offset to start from and the reset policy is none")
	// ErrCommitsUnknown means that a partition has no commit and it is not known whether the group ever had one on the topic.
	ErrCommitsUnknown = errors.New("not known whether the group has commits on the topic")
)

// AttemptError says that a request of the rebalance failed and is tried again. It comes inside [Refused].
type AttemptError struct {
	// Op is "JoinGroup", "SyncGroup" or "Metadata".
	Op string
	// Attempt counts failures since the last answered heartbeat, from 1.
	Attempt int
	// RetryAt is when the next try goes out.
	RetryAt time.Time
	// Err is the cause; errors.Is finds the kafka.ErrorCode in it.
	Err error
}

// Error names the request, the attempt and the cause.
func (e *AttemptError) Error() string {
	return fmt.Sprintf("rebalance: %s failed (attempt %d): %v", e.Op, e.Attempt, e.Err)
}

// Unwrap returns the cause.
func (e *AttemptError) Unwrap() error { return e.Err }

// ProtocolMismatchError says that no assignor that the member offers is known to all other members of the group
// (INCONSISTENT_GROUP_PROTOCOL), or that the group is not one of consumers. It comes inside an [AttemptError], for a rolling
// upgrade may mend it.
type ProtocolMismatchError struct {
	GroupID string
	// Offered are the names of the assignors that this member offers.
	Offered []string
	// Type is the group's protocol type, "consumer" for consumers, and InUse its assignor. Empty where the coordinator does not say:
	// in the middle of a rebalance, or without the right to describe the group.
	Type, InUse string
	Err         error
}

// Error names what each side offers.
func (e *ProtocolMismatchError) Error() string {
	theirs := "some member knows none of them"
	switch {
	case e.Type != "" && e.Type != "consumer":
		theirs = fmt.Sprintf("the group is not one of consumers but of type %q", e.Type)
	case e.InUse != "":
		theirs = fmt.Sprintf("the group uses %q", e.InUse)
	}
	return fmt.Sprintf("group %q: this member offers the assignors %q, %s: %v", e.GroupID, e.Offered, theirs, e.Err)
}

// Unwrap returns the broker's refusal.
func (e *ProtocolMismatchError) Unwrap() error { return e.Err }

// RangeError says that a range of a partition cannot be read to its end ([StandaloneConfig].Ends). It ends the consumer.
type RangeError struct {
	// TopicPartition is the partition, or kafka.WholeTopic.
	TopicPartition kafka.TopicPartition
	// Err wraps [ErrNoPartition], [ErrTopicRecreated], [ErrNoOffset], or is what a person has to mend.
	Err error
}

// Error names the partition and the cause.
func (e *RangeError) Error() string {
	what := e.TopicPartition.String()
	if e.TopicPartition.Partition == kafka.AnyPartition {
		what = e.TopicPartition.Topic
	}
	return fmt.Sprintf("the range of %s cannot be read to its end: %v", what, e.Err)
}

// Unwrap returns the cause.
func (e *RangeError) Unwrap() error { return e.Err }

func unexpected(in any, state fmt.Stringer) error {
	return fmt.Errorf("rebalance: %w: %T in %s", ErrUnexpectedInput, in, state)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("rebalance: %w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
