package actors

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// ErrNoGroup means that something was asked of a consumer without a group that only a group can do.
var ErrNoGroup = errors.New("troupe: the consumer is in no group")

// Why a handler's context ended, for context.Cause; rebalance.ErrRevoked, rebalance.ErrLost, ErrOverdue, ErrSought and ErrSkipped
// are the others.
var (
	// ErrClosing: the consumer is closing. Close and Abandon return it, too, when they are called from inside a handler or a
	// callback.
	ErrClosing = errors.New("troupe: consumer is closing")
	// ErrHandlerRestarted: the handler's actor is being replaced.
	ErrHandlerRestarted = errors.New("troupe: handler restarted")
)

// endOf returns what an ended context ended with; errors.Is finds both ctx.Err() and its cause.
func endOf(ctx context.Context) error {
	if ended, cause := ctx.Err(), context.Cause(ctx); !errors.Is(cause, ended) {
		return fmt.Errorf("%w: %w", ended, cause)
	}
	return context.Cause(ctx)
}

// ErrStale is returned by acknowledgments that came too late: the partition's ownership, its position or the delivery had
// ended. The record is, or was, delivered again, unless it lies below a position that was sought.
var ErrStale = errors.New("troupe: acknowledgment of an ended delivery")

// ErrNotInDelivery is returned by an acknowledgment of a record that its delivery does not have.
var ErrNotInDelivery = errors.New("troupe: record is not part of this delivery")

// ErrNotSubscribed is returned by calls that name a partition of a topic that has no handler here.
var ErrNotSubscribed = errors.New("troupe: no handler is registered for the topic")

// OffsetError means that an offset was not committed because of what was given.
type OffsetError struct {
	TopicPartition kafka.TopicPartition
	Offset         int64
	// Field is what is wrong: "TopicPartition", "Offset" or "Metadata".
	Field string
	// Highest is the highest offset that may be committed now, kafka.NoOffset where that is not what is wrong.
	Highest int64
	// Want says what would be right.
	Want string
}

// Error names partition, offset, field and what would be right.
func (e *OffsetError) Error() string {
	return fmt.Sprintf("troupe: commit of %s at %d: %s: want %s", e.TopicPartition, e.Offset, e.Field, e.Want)
}

// HandlerError is a handler's failure at one record.
type HandlerError struct {
	TopicPartition kafka.TopicPartition
	// Offset is the record's, or the first of the batch; kafka.NoOffset when the handler's actor failed before it had any.
	Offset int64
	// Panic is true when the handler panicked.
	Panic bool
	// Err is what the handler returned, or the panic's value as an error.
	Err error
}

// Error names partition, offset and cause.
func (e *HandlerError) Error() string {
	verb := "failed"
	if e.Panic {
		verb = "panicked"
	}
	if e.Offset < 0 {
		return fmt.Sprintf("troupe: handler of %s %s before its first record: %v", e.TopicPartition, verb, e.Err)
	}
	return fmt.Sprintf("troupe: handler of %s %s at offset %d: %v", e.TopicPartition, verb, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *HandlerError) Unwrap() error { return e.Err }

// CloseError says what a Close could not finish before its deadline, or what an Abandon did not wait for. Nothing in it is lost: what was not committed is
// delivered again to the partition's next owner.
type CloseError struct {
	// Cause is context.DeadlineExceeded, context.Canceled, ErrAbandoned, or what failed.
	Cause error
	// Uncommitted are the partitions with finished work that the coordinator did not confirm.
	Uncommitted []UncommittedPartition
	// Running are the handlers that had not returned.
	Running []RunningHandler
	// Actors are the actors that had not stopped, with what they were doing.
	Actors []string
}

// UncommittedPartition is one partition whose last offset was not confirmed.
type UncommittedPartition struct {
	TopicPartition kafka.TopicPartition
	// Committed is the last confirmed offset, kafka.NoOffset for none; Pending the one that was not confirmed.
	Committed, Pending int64
	Err                error
}

// RunningHandler is one handler that had not returned.
type RunningHandler struct {
	TopicPartition kafka.TopicPartition
	// Offset is the record it works on.
	Offset int64
	// Age is how long ago it was given the record.
	Age time.Duration
}

// Error lists everything that was not finished.
func (e *CloseError) Error() string {
	var b strings.Builder
	b.WriteString("troupe: close")
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	for _, r := range e.Running {
		fmt.Fprintf(&b, "; handler of %s still runs at offset %d for %v", r.TopicPartition, r.Offset, r.Age.Round(time.Millisecond))
	}
	for _, u := range e.Uncommitted {
		fmt.Fprintf(&b, "; %s not committed up to %d (confirmed %d)", u.TopicPartition, u.Pending, u.Committed)
		if u.Err != nil {
			fmt.Fprintf(&b, ": %v", u.Err)
		}
	}
	if len(e.Actors) > 0 {
		fmt.Fprintf(&b, "; actors still alive: %s", strings.Join(e.Actors, ", "))
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *CloseError) Unwrap() error { return e.Cause }
