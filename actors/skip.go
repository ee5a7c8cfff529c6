package actors

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
)

// ErrSkipped is why a handler's context ended that was at work on a record that was skipped: whatever it says of that record
// changes nothing.
var ErrSkipped = errors.New("troupe: record skipped")

// MaxSkipReason is the most bytes that the reason of a Skip may have.
const MaxSkipReason = 255

// SkipError means that a record cannot be skipped.
type SkipError struct {
	TopicPartition kafka.TopicPartition
	Offset         int64
	// Why is what is wrong, such as "finished already"; Want what would be right.
	Why, Want string
}

// Error names the record, what is wrong and what would be right.
func (e *SkipError) Error() string {
	return fmt.Sprintf("troupe: skip %s offset %d: %s: want %s", e.TopicPartition, e.Offset, e.Why, e.Want)
}

// skipWanted: group -> partition: finish a record without its handler. Answered through the waiter.
type skipWanted struct {
	silent
	waiter *waiter
	offset int64
	reason string
}

// skipOperation skips one record.
type skipOperation struct {
	tp     kafka.TopicPartition
	offset int64
	reason string
	waiter *waiter
}

func (o *skipOperation) word() string { return "skip" }

func (o *skipOperation) run(ctx actor.Context, g *group, m *request) {
	named := []kafka.TopicPartition{o.tp}
	parts, err := g.targets(o.word(), named)
	if err == nil {
		parts, err = g.staying(o.word(), named, parts)
	}
	if err == nil {
		err = g.authorize(m, parts)
	}
	if err != nil {
		m.reply(err)
		return
	}
	gone := func(*cell) error { return ErrInterrupted }
	o.waiter = g.ask(ctx, parts, gone, func(w *waiter) any { return &skipWanted{waiter: w, offset: o.offset, reason: o.reason} })
	o.waiter.whole = true
	if g.Lookup(parts[0].key) == nil {
		m.reply(o.refused(commit.StandsAhead, kafka.NoOffset))
		return
	}
	m.reply(nil)
}

func (o *skipOperation) refused(standing commit.Standing, position int64) error {
	return skipRefused(o.tp, o.offset, standing, position)
}

// skipRefused says why a record cannot be skipped that stands like that; position is the next offset to deliver.
func skipRefused(tp kafka.TopicPartition, offset int64, standing commit.Standing, position int64) error {
	refused := &SkipError{TopicPartition: tp, Offset: offset, Want: "a record that was delivered and is not acknowledged"}
	switch standing {
	case commit.StandsAhead:
		refused.Why = "not delivered yet"
		if position >= 0 {
			refused.Want += fmt.Sprintf(", below offset %d", position)
		}
	case commit.StandsFinished:
		refused.Why = "finished already"
	case commit.StandsBefore:
		refused.Why = "before the position that the partition started at"
	case commit.StandsNowhere:
		refused.Why = "no record of that offset was delivered"
	case commit.StandsOpen:
		refused.Why = "not there any more"
	}
	return refused
}

// Skip finishes a delivered record without its handler; see api.Consumer.Skip.
func (t *Tree) Skip(ctx context.Context, partition kafka.TopicPartition, offset int64, reason string) error {
	return t.skip(ctx, nil, partition, offset, reason)
}

func (t *Tree) skip(ctx context.Context, key *capability.Key, tp kafka.TopicPartition, offset int64, reason string) error {
	var errs []error
	wrong := func(why, want string) {
		errs = append(errs, &SkipError{TopicPartition: tp, Offset: offset, Why: why, Want: want})
	}
	if tp.Partition < 0 {
		wrong(fmt.Sprintf("partition is %d", tp.Partition), "one partition, 0 or more")
	}
	if offset < 0 {
		wrong("offset is negative", "an offset of at least 0")
	}
	if strings.TrimSpace(reason) == "" {
		wrong("reason is empty", "why the record is skipped")
	}
	if len(reason) > MaxSkipReason {
		wrong(fmt.Sprintf("reason has %d bytes", len(reason)), fmt.Sprintf("at most %d bytes", MaxSkipReason))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	ctx, end := t.beyondItself(ctx)
	defer end()
	op := &skipOperation{tp: tp, offset: offset, reason: reason}
	if err := t.do(ctx, key, op); err != nil {
		return err
	}
	return t.await(ctx, op.waiter)
}

// beyondItself returns a context that has the deadline of ctx and, inside of a handler, not its end: that may be what a Seek or
// Skip of the handler ends. Both are answered at once there.
func (t *Tree) beyondItself(ctx context.Context) (whole context.Context, end func()) {
	if !t.InHandler(ctx) {
		return ctx, func() {}
	}
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	return context.WithoutCancel(ctx), func() {}
}
