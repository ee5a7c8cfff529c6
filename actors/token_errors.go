package actors

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
)

// Why a [HeldError] refused.
var (
	// ErrTokenHeld: somebody else has the token over one of the partitions, or is inside a call with this one.
	ErrTokenHeld = errors.New("the token is with another")
	// ErrTokenDead: the token was returned or revoked, or was never a token.
	ErrTokenDead = errors.New("the token is dead")
	// ErrTokenHanded: the token was handed on; only who received it may act.
	ErrTokenHanded = errors.New("the token was handed on")
	// ErrTokenInside: the token cannot be returned while a call with it is under way.
	ErrTokenInside = errors.New("a call with the token is under way")
	// ErrNotCovered: the token is not over that partition, or not any more.
	ErrNotCovered = errors.New("the token does not cover the partition")
	// ErrNotAllowed: the state that the partitions are in does not allow it; see [Token].
	ErrNotAllowed = errors.New("the token does not allow it in the state that the partitions are in")
	// ErrSelfWait: the caller is inside a callback that has the token, and would wait for itself.
	ErrSelfWait = errors.New("the caller would wait for itself: it has the token already, use that")
	// ErrTokenOverdue: the token's time was over, by Config.TokenTimeout or the context it was asked for with.
	ErrTokenOverdue = errors.New("the token's time is over")
	// ErrHolderDied: who had the token ended without returning it.
	ErrHolderDied = errors.New("the holder of the token has ended")
)

// HeldError refuses an operation of somebody who does not have the live token for it.
type HeldError struct {
	// Operation is what was asked for, such as "seek"; Asker who asked.
	Operation, Asker string
	// Holder has the token, for HolderOperation, since Since. They are empty where nobody has it.
	Holder, HolderOperation string
	Since                   time.Time
	// TopicPartition is the first partition that it is about; the zero value when it is about the token as a whole.
	TopicPartition kafka.TopicPartition
	// Reason is one of the sentinels beside this type.
	Reason error
}

// Error names operation, asker and reason, and what is known of the holder.
func (e *HeldError) Error() string {
	text := fmt.Sprintf("troupe: %s by %s refused", e.Operation, e.Asker)
	if e.TopicPartition != (kafka.TopicPartition{}) {
		text += " for " + e.TopicPartition.String()
	}
	text += ": " + e.Reason.Error()
	if e.Holder == "" {
		return text
	}
	text += " (held by " + e.Holder
	if e.HolderOperation != "" {
		text += " for " + e.HolderOperation
	}
	if !e.Since.IsZero() {
		text += " since " + e.Since.Format(time.RFC3339Nano)
	}
	return text + ")"
}

// Unwrap returns the reason.
func (e *HeldError) Unwrap() error { return e.Reason }

// Is reports a refusal with [ErrSelfWait] as one with [ErrTokenHeld], too: that the holder is the caller is the closer word.
func (e *HeldError) Is(target error) bool { return e.Reason == ErrSelfWait && target == ErrTokenHeld }

// heldError makes the public error of what the core says.
func heldError(err error) error {
	misuse, ok := errors.AsType[*capability.MisuseError](err)
	if !ok {
		return err
	}
	held := &HeldError{
		Operation: misuse.Op, Asker: string(misuse.Asker), Holder: string(misuse.Holder), HolderOperation: misuse.HolderOp, Since: misuse.Since,
		TopicPartition: misuse.Partition,
	}
	switch misuse.Reason {
	case capability.ErrHeld:
		held.Reason = ErrTokenHeld
	case capability.ErrPassed:
		held.Reason = ErrTokenHanded
	case capability.ErrOutOfOrder:
		held.Reason = ErrTokenInside
	case capability.ErrNotCovered:
		held.Reason = ErrNotCovered
	case capability.ErrNotAllowed:
		held.Reason = ErrNotAllowed
	case capability.ErrOverdue:
		held.Reason = ErrTokenOverdue
	default:
		held.Reason = ErrTokenDead
	}
	return held
}
