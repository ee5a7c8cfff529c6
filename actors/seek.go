package actors

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// ErrSuperseded means that another seek of the partition came before this one had found its offset.
var ErrSuperseded = errors.New("troupe: another seek came before this one was done")

// seekOperation sets positions.
type seekOperation struct {
	to     rebalance.StartPosition
	named  []kafka.TopicPartition
	waiter *waiter
}

// seekWanted: group -> partition: go on there. Answered through the waiter when the position is set.
type seekWanted struct {
	silent
	to     rebalance.StartPosition
	waiter *waiter
}

func (o *seekOperation) word() string { return "seek" }

func (o *seekOperation) everything() bool { return len(o.named) == 0 }

// run has the partitions set their positions. Where it is not decided yet where one starts, that is decided by it.
func (o *seekOperation) run(ctx actor.Context, g *group, m *request) {
	parts, err := g.targets(o.word(), o.named)
	if err == nil {
		err = g.authorize(m, parts)
	}
	for _, p := range parts {
		if err == nil && p.phase == partLeaving {
			err = &StateError{Operation: o.word(), TopicPartition: p.tp, State: p.cell.stateName(), Want: "one that is not being given up"}
		}
	}
	if err != nil {
		m.reply(err)
		return
	}
	var running []*part
	for _, p := range parts {
		if p.phase == partRunning {
			running = append(running, p)
		} else {
			p.sought = &o.to
		}
	}
	gone := func(kafka.TopicPartition) error { return ErrInterrupted }
	o.waiter = g.ask(ctx, running, gone, func(w *waiter) any { return &seekWanted{to: o.to, waiter: w} })
	m.reply(nil)
}

// Seek sets the position of partitions, of all that are owned when none is named; see api.Consumer.Seek.
func (t *Tree) Seek(ctx context.Context, to rebalance.StartPosition, partitions []kafka.TopicPartition) error {
	return t.seek(ctx, nil, to, partitions)
}

func (t *Tree) seek(ctx context.Context, key *capability.Key, to rebalance.StartPosition, named []kafka.TopicPartition) error {
	if err := to.Validate(); err != nil {
		return fmt.Errorf("troupe: seek: %w", err)
	}
	if to == rebalance.StartBy(rebalance.ResetNone) {
		return fmt.Errorf("troupe: seek: %w", &rebalance.StartPositionError{Position: to, Want: "a place: an offset, the beginning, the end, or a time"})
	}
	op := &seekOperation{to: to, named: named}
	if err := t.do(ctx, key, op); err != nil {
		return err
	}
	return t.await(ctx, op.waiter)
}

// seek is the partition's side: what is delivered of the old position counts no more, and delivery goes on at the new one as
// soon as no call of a handler runs any more.
func (p *partition) seek(ctx actor.Context, m *seekWanted) {
	if state := p.machine.State(); state >= rebalance.PartitionRevoking {
		m.waiter.one(p.cell, &StateError{Operation: "seek", TopicPartition: p.tp, State: state.String(), Want: "one that is not being given up"})
		return
	}
	p.endSeek(ErrSuperseded)
	in := &p.intake
	in.reset, in.stuck, in.failed, in.failures, in.displaced = nil, false, false, 0, 0
	in.unread, in.unreadErr = time.Time{}, nil
	in.alarm.stop()
	switch d := rebalance.DecideSeek(time.Now().UnixMilli(), p.tp, m.to).(type) {
	case rebalance.StartAt:
		p.sought(ctx, d.Offset, d.LeaderEpoch)
		m.waiter.one(p.cell, nil)
	case rebalance.StartFromReset:
		in.reset, p.seeking = newResetLookup(d), m.waiter
		p.lookUp(ctx)
	case rebalance.StartFails:
		m.waiter.one(p.cell, d.Err)
	case rebalance.AskLeader:
	}
}

// endSeek answers a seek that is still looking for its offset.
func (p *partition) endSeek(err error) {
	if p.seeking != nil {
		p.seeking.one(p.cell, err)
		p.seeking = nil
	}
}

// dropSeek gives up a seek that nobody waits for any more: the partition goes on where it was.
func (p *partition) dropSeek() bool {
	if p.seeking == nil || !p.seeking.abandoned.Load() {
		return false
	}
	p.seeking, p.intake.reset = nil, nil
	return true
}

// sought sets the position.
func (p *partition) sought(ctx actor.Context, offset int64, epoch int32) {
	in := &p.intake
	from := in.fetchFrom
	if p.tracker != nil {
		from = p.tracker.Position()
	}
	p.shared.observe(event.PositionReset{Member: p.shared.member(), TopicPartition: p.tp, From: from, To: offset, Reason: rebalance.ReasonSought})
	p.shared.logger.Info("position set", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Int64("from", from), zap.Int64("to", offset))
	in.lastEpoch = epoch
	p.finishedBefore = commit.OffsetMap{}
	p.held, p.userAt = nil, kafka.NoOffset
	p.rewound()
	if p.machine.State() == rebalance.PartitionAssigning {
		p.cell.committed.Store(kafka.NoOffset)
		p.feed(ctx, rebalance.PositionKnown{Offset: offset})
		return
	}
	p.dropSurplus()
	in.rewind, in.sought = &offset, true
	p.offer(ctx) // nothing of the old position is committed from here on
	p.fence(ctx)
	p.rewindNow(ctx)
	p.pump(ctx)
}

// fence makes what was delivered before a seek stale. A function that runs is waited for; acknowledgments that are to come
// are not.
func (p *partition) fence(ctx actor.Context) {
	h := &p.handler
	d := h.delivery
	switch {
	case p.parallel != nil: // rewindNow ends the engine, and the gate keeps the next one from beginning before its calls have returned
		if p.busy {
			p.busy = false
			p.feed(ctx, rebalance.DeliveryEnded{})
		}
	case d == nil:
		p.Hasten(ctx, handlerKey)
	case d.byActor, d.async && d.returned:
		d.end(ErrSought)
		p.ended(ctx)
	case d.async:
		p.haltDelivery(ctx)
		d.end(ErrSought)
	default:
		p.haltDelivery(ctx)
		d.cancel(ErrSought)
	}
}

// settleSeek clears, at the new position, what the old one has left: retries and a pause because of them.
func (p *partition) settleSeek(ctx actor.Context) {
	h := &p.handler
	h.alarm.stop()
	h.attempt = 1
	h.nacks = p.newNacks()
	if h.paused {
		h.paused = false
		p.shared.observe(event.PartitionResumed{Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch})
	}
	if !h.up {
		p.Hasten(ctx, handlerKey)
	}
}

// repositioned reports whether the position was set back and no commit of that was confirmed yet: a new actor goes on where the
// old one was, not at the commit.
func (c *cell) repositioned() bool {
	return c.positionEpoch.Load() > 0 && c.committed.Load() == kafka.NoOffset && c.finished.Load() >= 0
}
