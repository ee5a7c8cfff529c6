package rebalance

import (
	"errors"
	"fmt"
	"time"
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
	// ErrTopicRecreated means that a topic was deleted and made anew under its name.
	ErrTopicRecreated = errors.New("topic made anew")
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

func unexpected(in any, state fmt.Stringer) error {
	return fmt.Errorf("rebalance: %w: %T in %s", ErrUnexpectedInput, in, state)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("rebalance: %w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
