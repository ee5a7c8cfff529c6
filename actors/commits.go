package actors

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// commitOperation commits what is finished.
type commitOperation struct {
	named    []kafka.TopicPartition
	deadline time.Time
	waiter   *waiter
}

func (o *commitOperation) word() string { return "commit" }

func (o *commitOperation) everything() bool { return len(o.named) == 0 }

func (o *commitOperation) run(ctx actor.Context, g *group, m *request) {
	parts, err := g.targets(o.word(), o.named)
	if unassigned, ok := errors.AsType[*UnassignedError](err); ok && len(unassigned.Partitions) == 0 {
		err = nil // there is nothing to commit
	}
	if err == nil {
		err = g.authorize(m, parts)
	}
	if err == nil {
		o.waiter = g.ask(ctx, parts, uncommittedAtEnd, func(w *waiter) any { return &commitWanted{waiter: w, deadline: o.deadline} })
		o.waiter.whole = true
	}
	m.reply(err)
}

// uncommittedAtEnd is the answer to a Commit that the end of a partition, or of its actor, leaves open: nil when the drain's own
// commit was first, or nothing was ever finished. The offset confirmed last says nothing: a lower one may be on its way.
func uncommittedAtEnd(c *cell) error {
	finished := c.finished.Load()
	if c.confirmed.Load() || finished == kafka.NoOffset {
		return nil
	}
	reason := commit.ErrEpochClosed
	if rebalance.PartitionState(c.state.Load()) != rebalance.PartitionRevoked {
		reason = errPartitionStopped
	}
	return &commit.FlushError{TopicPartition: c.tp, Epoch: c.epoch, Offset: finished, Reason: reason}
}

// errPartitionStopped is why a commit ended whose partition actor died.
var errPartitionStopped = errors.New("the partition's actor stopped")

func (o *commitOperation) awaited() *waiter { return o.waiter }

// Commit commits what is finished, of all partitions, and waits for the answer; see api.Consumer.Commit.
func (t *Tree) Commit(ctx context.Context, partitions []kafka.TopicPartition) error {
	return t.commit(ctx, nil, partitions)()
}

// CommitAsync is Commit without waiting; see api.Consumer.CommitAsync.
func (t *Tree) CommitAsync(ctx context.Context, partitions []kafka.TopicPartition) *Future {
	return inFuture(t.commit(ctx, nil, partitions))
}

// commit begins it, and returns what waits for its end.
func (t *Tree) commit(ctx context.Context, key *capability.Key, named []kafka.TopicPartition) (wait func() error) {
	deadline := t.commitDeadline(ctx)
	return t.beginCommit(ctx, key, deadline, &commitOperation{named: named, deadline: deadline})
}

// CommitOffsets commits the offsets given; see api.Consumer.CommitOffsets.
func (t *Tree) CommitOffsets(ctx context.Context, offsets []kafka.OffsetAndMetadata) error {
	return t.commitOffsets(ctx, nil, offsets)()
}

// CommitOffsetsAsync is CommitOffsets without waiting.
func (t *Tree) CommitOffsetsAsync(ctx context.Context, offsets []kafka.OffsetAndMetadata) *Future {
	return inFuture(t.commitOffsets(ctx, nil, offsets))
}

func (t *Tree) commitOffsets(ctx context.Context, key *capability.Key, offsets []kafka.OffsetAndMetadata) (wait func() error) {
	err := checkOffsets(offsets)
	switch {
	case t.shared.standalone != nil:
		err = ErrNoGroup
	case commit.IsManual(t.shared.settings.Strategy):
		err = fmt.Errorf("troupe: %s: %w", (*offsetsOperation)(nil).word(), commit.ErrManual)
	}
	if err != nil || len(offsets) == 0 {
		return func() error { return err }
	}
	deadline := t.commitDeadline(ctx)
	return t.beginCommit(ctx, key, deadline, newOffsetsOperation(offsets, deadline))
}

// commitDeadline is when a commit is given up: with its context, or after Config.CloseTimeout.
func (t *Tree) commitDeadline(ctx context.Context) time.Time {
	deadline := time.Now().Add(t.shared.settings.CloseTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		return d
	}
	return deadline
}

// beginCommit sends a commit to the group and returns what waits for its partitions.
func (t *Tree) beginCommit(ctx context.Context, key *capability.Key, deadline time.Time, op committing) (wait func() error) {
	m := t.begin(ctx, key, op)
	return func() error {
		ctx, cancel := context.WithDeadline(ctx, deadline.Add(goneEvery)) // the partitions answer by the deadline themselves
		defer cancel()
		if err := t.answered(ctx, m); err != nil {
			return err
		}
		return t.await(ctx, op.awaited())
	}
}

// committing is an operation after which partitions are waited for.
type committing interface {
	operation
	awaited() *waiter
}

// Future is a commit whose end nobody waits for yet.
type Future struct {
	done chan struct{}
	err  error
}

// inFuture waits in a goroutine of its own, which ends with the commit's deadline, its context or the consumer at the latest.
func inFuture(wait func() error) *Future {
	f := &Future{done: make(chan struct{})}
	go func() {
		f.err = wait()
		close(f.done)
	}()
	return f
}

// Done is closed when the commit has ended.
func (f *Future) Done() <-chan struct{} { return f.done }

// Err returns how it ended, nil before that.
func (f *Future) Err() error {
	select {
	case <-f.done:
		return f.err
	default:
		return nil
	}
}
