package actors

import (
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// seeking is the partition's side of Seek.
type seeking struct {
	// seek is the one under way, nil for none: the old position is given up, and where to go on is not known, or not allowed
	// yet. Meanwhile the tracker stands for nothing: nothing is delivered, fetched or offered.
	seek *sought
	// barred is true while the partition may not start; barredAt is where it will.
	barred   bool
	barredAt int64
	// soughtFrom is the position before.
	soughtFrom int64
	// left is the engine of the position before, while calls of it run or may run.
	left *engine
}

// engineLeft: an engine of a position that was left -> its partition: its last call has returned.
type engineLeft struct {
	silent
	engine *engine
}

// seekWanted gives the old position up, and goes on at the new one as soon as its offset is known.
func (p *partition) seekWanted(ctx actor.Context, m *seekWanted) {
	s := m.sought
	if s != p.seek && p.holdsSeek(ctx, m) {
		return
	}
	if s == p.seek { // it may start now
		if p.barred = m.held; !p.barred && s.known.Load() {
			p.seek = nil
			p.feed(ctx, rebalance.PositionKnown{Offset: p.barredAt})
		}
		return
	}
	for ; s.before != nil; s.before = s.before.before {
		s.before.waiter.one(p.cell, ErrSought)
	}
	if p.seek = nil; p.machine.State() >= rebalance.PartitionRevoking {
		s.waiter.one(p.cell, leavingError("seek", p.tp, p.machine.State()))
		return
	}
	if p.orphaned {
		s.waiter.one(p.cell, errTopicRecreated)
		return
	}
	reached, _ := p.cell.progress()
	p.leavePosition(ctx)
	p.seek, p.barred = s, m.held
	s.run.Store(p.positionEpoch)
	if s.known.Load() { // the actor before this one had found it out
		p.soughtFrom = reached.offset
		p.seekTo(ctx, reached.offset, reached.leaderEpoch)
		return
	}
	if s.atOnce {
		s.waiter.one(p.cell, nil)
	}
	switch d := s.to.Decide(time.Now().UnixMilli(), p.tp, rebalance.ReasonSought).(type) {
	case rebalance.StartAt:
		p.seekTo(ctx, d.Offset, d.LeaderEpoch)
	case rebalance.StartFromReset:
		p.intake.reset = newResetLookup(d)
		p.lookUp(ctx)
	case rebalance.StartFails:
		p.endSeek(d.Err)
		p.startFails(kafka.NoOffset, d.Err)
	case rebalance.AskLeader:
	}
}

// leavePosition makes everything of the present position stale: what was fetched, what waits for its turn or its next try, and
// what handlers have. A call that runs is waited for before the next begins.
func (p *partition) leavePosition(ctx actor.Context) {
	in := &p.intake
	p.soughtFrom = kafka.NoOffset
	in.reset, in.rewind, in.failed, in.stuck = nil, nil, false, false
	in.failures, in.displaced, in.unread, in.unreadErr = 0, 0, time.Time{}, nil
	in.alarm.stop()
	p.finishedBefore = commit.OffsetMap{}
	p.mapAlarm.stop()
	p.userCommits.held, p.userAt = nil, kafka.NoOffset
	p.rewound()
	p.cell.finished.Store(kafka.NoOffset)
	p.cell.committed.Store(kafka.NoOffset)
	p.cell.offer.Store(nil)
	if p.committer != nil {
		ctx.Send(p.committer, &positionLeft{tp: p.tp, epoch: p.epoch, run: p.positionEpoch})
	}
	if p.tracker == nil {
		return
	}
	p.soughtFrom = p.tracker.Position()
	p.tracker = commit.NewTracker(p.tracker.Committable())
	p.window.Update(0)
	p.look()
	p.dropSurplus()
	in.restart(kafka.NoOffset) // an answer that is under way is for another offset
	p.dropWaiting(ctx)
	if p.parallel != nil {
		p.leaveEngine(ctx)
	} else {
		p.leaveDelivery(ctx)
	}
	p.settleMemory()
}

// dropWaiting forgets what waits for its delivery or its next try, and what the failures cost.
func (p *partition) dropWaiting(ctx actor.Context) {
	h := &p.handler
	h.alarm.stop()
	h.fill.stop()
	releaseLeases(h.leases, true)
	h.again, h.leases, h.attempt, h.filling = nil, h.leases[:0], 1, false
	if h.delivery == nil {
		p.intake.mergedOut = false
	}
	p.afresh(ctx)
	for seq := range p.retries {
		p.recovered(seq)
	}
	p.fullTold = false
}

// leaveDelivery makes the outstanding delivery stale. One that a function works on is over when its call has returned; an
// actor gets the next one in its turn, and nobody calls an asynchronous function that has returned.
func (p *partition) leaveDelivery(ctx actor.Context) {
	d := p.handler.delivery
	if d == nil {
		p.intake.delivering = 0
		return
	}
	d.left.Store(true)
	d.end(ErrSought)
	if d.byActor || d.returned {
		p.ended(ctx)
		return
	}
	p.haltDelivery(ctx)
}

// leaveEngine makes the engine stale and starts another, whose calls begin when those of the old one have returned: they wait
// for its place at the gate.
func (p *partition) leaveEngine(ctx actor.Context) {
	e := p.parallel
	if p.handler.gated && !p.userActor() {
		p.left = e
		p.cell.left.Store(e)
	}
	p.endEngine(ErrSought)
	p.startEngine()
	if p.busy && p.left == nil {
		p.busy = false
		p.feed(ctx, rebalance.DeliveryEnded{})
	}
}

func (p *partition) engineLeft(ctx actor.Context, m *engineLeft) {
	if m.engine != p.left {
		p.shared.staleMessage()
		return
	}
	p.left = nil
	if p.busy && !p.parallel.working() {
		p.busy = false
		p.feed(ctx, rebalance.DeliveryEnded{})
	}
	p.rewindNow(ctx)
	p.pump(ctx)
	p.pausedNow()
}

// seekTo goes on at offset, which was found out.
func (p *partition) seekTo(ctx actor.Context, offset int64, leaderEpoch int32) {
	s, in := p.seek, &p.intake
	in.lastEpoch = leaderEpoch
	p.cell.finishedEpoch.Store(leaderEpoch)
	p.cell.finished.Store(offset)
	if s.known.CompareAndSwap(false, true) {
		p.shared.observe(event.PositionReset{
			Member: p.shared.member(), TopicPartition: p.tp, From: p.soughtFrom, To: offset, Reason: rebalance.ReasonSought,
		})
		p.shared.logger.Info("position sought", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
			zap.Stringer("to", s.to), zap.Int64("from", p.soughtFrom), zap.Int64("offset", offset))
	}
	switch {
	case p.barred:
		p.barredAt = offset
	case p.machine.State() == rebalance.PartitionAssigning:
		p.seek = nil
		p.feed(ctx, rebalance.PositionKnown{Offset: offset})
	default:
		p.seek = nil
		p.tracker = commit.NewTracker(offset)
		p.tracker.StartEpoch(leaderEpoch)
		in.restart(offset)
		p.offer(ctx)
		p.pump(ctx)
	}
	p.publish() // before who waits looks there
	s.waiter.one(p.cell, nil)
}

// endSeek answers a seek whose offset is not found out any more.
func (p *partition) endSeek(err error) {
	if p.seek != nil {
		p.seek.waiter.one(p.cell, err)
	}
}

// afresh gives the handler a full budget and has it go on at once: what it failed at is not asked of it any more.
func (p *partition) afresh(ctx actor.Context) {
	h := &p.handler
	p.Renew(ctx, handlerKey)
	h.nacks = p.newNacks()
	if h.paused && !h.stopped {
		h.paused = false
		p.resumed()
	}
}
