package actors

import (
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// partitionConfig is what a partition actor is for.
type partitionConfig struct {
	tp           kafka.TopicPartition
	epoch        kafka.AssignmentEpoch
	cell         *cell
	registration *Registration
	// pool is the registration's; nil under OrderPartition.
	pool  *pool
	group *actor.PID
}

// partition owns one partition under one assignment epoch: its position, the surplus of fetched records, the window, the
// tracker, and the delivery to its handler. Its states are those of rebalance.Partition.
type partition struct {
	*supervisor.Supervisor
	partitionConfig
	shared *shared
	self   *actor.PID

	machine *rebalance.Partition
	alarm   alarm
	closing bool
	drain   drainWanted

	tracker *commit.Tracker
	window  *commit.Window
	// positionEpoch rises when the position is set back.
	positionEpoch uint32
	// orphaned is true when the topic was made anew: nothing of this ownership may be committed to it.
	orphaned bool
	// committer is nil until it is known; offered is the last offset told to it, offeredBeyond how many records beyond it were
	// finished then; flushBy is the deadline of the final commit that is asked for, zero for none, finalID its id among all flushes.
	committer     *actor.PID
	offered       int64
	offeredBeyond int
	flushBy       time.Time
	flushID       uint64
	finalID       uint64
	// finalBy is the final commit's deadline while that waits for OnRevoking; finalAt is the offset that it is asked for.
	finalBy time.Time
	finalAt int64

	intake  intake
	handler handlerSide
	rangeSide
	parallelSide
	pausing
	seeking
	// finishedBefore is what the offset map of the commit said that this ownership started with; startedAt is that commit's
	// offset, startedWith its metadata.
	finishedBefore commit.OffsetMap
	startedAt      int64
	// mark is the metadata that names the topic's incarnation alone, markOf that incarnation.
	mark        string
	markOf      kafka.TopicID
	startedWith string
	// watch looks for a commit that stands still; watchAlarm is when it looks again.
	watch      *commit.Watch
	watchAlarm alarm
	// stall looks for a partition that cannot be read on; stallAlarm is when it looks again.
	stall      *buffer.Stall
	stallAlarm alarm
	// mapAlarm is when an offset map may be offered again whose offset stands still.
	mapAlarm alarm
	// commits are the flushes that callers of Commit and CommitOffsets wait for, by their id.
	commits map[uint64]*waiter
	userCommits
}

func newPartition(s *shared, config partitionConfig) *partition {
	window, err := commit.NewWindow(s.settings.MaxInTransit, s.settings.ResumeBelow)
	if err != nil {
		panic(err)
	}
	p := &partition{
		Supervisor: supervisor.New(s.settings.Seed ^ uint64(config.epoch)), partitionConfig: config, shared: s,
		machine: rebalance.NewPartition(rebalance.Grant{TopicPartition: config.tp, Epoch: config.epoch}),
		window:  window, offered: kafka.NoOffset, positionEpoch: config.cell.positionEpoch.Load(),
		watch: commit.NewWatch(s.settings.BlockedAfter), stall: buffer.NewStall(s.settings.StuckAfter), commits: make(map[uint64]*waiter),
		userCommits: userCommits{userAt: kafka.NoOffset},
	}
	p.intake = newIntake(s.settings.PartitionMaxBytes)
	p.handler.nacks = p.newNacks()
	return p
}

func (p *partition) newNacks() *supervisor.Budget {
	return supervisor.NewBudget(p.registration.Restart, p.shared.settings.Seed^uint64(p.tp.Partition))
}

// Receive implements actor.Actor.
func (p *partition) Receive(ctx actor.Context) {
	outcomes, handled := p.Supervisor.Receive(ctx)
	for _, o := range outcomes {
		p.outcome(ctx, o)
	}
	if !handled {
		p.receive(ctx, ctx.Message())
	}
	p.lookForEnd(ctx)
	p.publish()
	p.lookForStall()
}

func (p *partition) receive(ctx actor.Context, message any) {
	switch m := message.(type) {
	case *actor.Started:
		p.self = ctx.Self()
		p.cell.pid.Store(p.self)
		p.paused = p.shared.pauses.holds(p.tp)
		p.shared.memory.join(partitionHolder(p.tp, p.epoch))
		p.startHandler(ctx)
	case *actor.Stopping:
		p.stop(ctx)
	case *actor.Stopped:
		p.leaveGate()
	case *alarmRang:
		p.rang(ctx, m)
	case *startDecided:
		if p.current(m.epoch) {
			p.startDecided(ctx, m)
		}
	case *deliveryHeld:
		if p.current(m.epoch) {
			p.handler.held = m.held
			p.pump(ctx)
		}
	case *leaderKnown:
		if p.current(m.epoch) {
			p.leaderKnown(ctx, m)
		}
	case *committerKnown:
		if p.current(m.epoch) {
			p.committerKnown(ctx, m)
		}
	case *recordsFetched:
		p.recordsFetched(ctx, m)
	case *memoryFreed:
		p.memoryFreed(ctx)
	case *fetchUnanswered:
		if p.current(m.epoch) {
			p.intake.unanswered(m.since, m.err)
		}
	case *offsetFound:
		if p.current(m.epoch) {
			p.offsetFound(ctx, m)
		}
	default:
		p.receiveHandling(ctx, message)
	}
}

// receiveHandling is the handler's side and the end of the ownership.
func (p *partition) receiveHandling(ctx actor.Context, message any) {
	switch m := message.(type) {
	case *ackSignal:
		p.acknowledged(ctx, m.delivery)
	case *delivered:
		p.delivered(ctx, m.delivery, m.failure)
	case *engineSignal:
		p.engineSignaled(ctx, m)
	case *placeFree:
		p.placeFree(ctx)
	case *pauseChanged:
		p.pauseChanged(ctx, m)
	case *commitWanted:
		p.commitWanted(ctx, m)
	case *placeWanted:
		p.placeWanted(ctx, m)
	case *skipWanted:
		p.skipWanted(ctx, m)
	case *seekWanted:
		p.seekWanted(ctx, m)
	case *engineLeft:
		p.engineLeft(ctx, m)
	case *drainWanted:
		if p.current(m.epoch) {
			p.drainNow(ctx, *m)
		}
	case *callbackReturned:
		if p.current(m.epoch) {
			p.callbackReturned(ctx)
		}
	case *processingOverdue:
		if p.current(m.epoch) {
			p.processingOverdue(ctx, m)
		}
	case *ownershipLost:
		if p.current(m.epoch) {
			p.feed(ctx, rebalance.OwnershipLost{Cause: m.cause})
		}
	case *flushed:
		if w := p.commits[m.result.ID]; w != nil {
			delete(p.commits, m.result.ID)
			w.one(p.cell, m.result.Err)
			if p.placed != nil && p.placed.id == m.result.ID {
				p.placedAnswered(ctx, m.result.Err)
			}
			return
		}
		if m.result.ID == p.finalID {
			p.cell.confirmed.Store(m.result.Err == nil && p.tracker != nil && p.finalAt == p.committable())
			p.feed(ctx, rebalance.FinalCommitAnswered{Err: m.result.Err})
		}
	}
}

func (p *partition) current(epoch kafka.AssignmentEpoch) bool {
	if epoch != p.epoch {
		p.shared.staleMessage()
		return false
	}
	return true
}

func (p *partition) rang(ctx actor.Context, m *alarmRang) {
	switch {
	case p.alarm.rang(m):
		p.feed(ctx, rebalance.PartitionTick{})
	case p.intake.alarm.rang(m):
		p.intakeRetry(ctx)
	case p.handler.alarm.rang(m):
		if p.parallel != nil {
			p.retryDue(ctx)
			return
		}
		p.pump(ctx)
	case p.handler.fill.rang(m):
		p.pump(ctx)
	case p.watchAlarm.rang(m):
		p.look()
	case p.stallAlarm.rang(m): // lookForStall comes after every message
	case p.mapAlarm.rang(m):
		if p.tracker != nil {
			p.offer(ctx)
		}
	}
}

// stop runs in Stopping: handlers are told, timers end, memory is given back. Whoever still runs keeps the gate closed.
func (p *partition) stop(ctx actor.Context) {
	p.alarm.stop()
	p.intake.alarm.stop()
	p.handler.alarm.stop()
	p.handler.fill.stop()
	p.watchAlarm.stop()
	p.stallAlarm.stop()
	p.mapAlarm.stop()
	stopped := fmt.Errorf("%w: partition actor stopped", rebalance.ErrLost)
	p.stoppedBeforeRelease(ctx, stopped)
	if d := p.handler.delivery; d != nil {
		d.halt()
		d.end(stopped)
		p.releaseSlot()
	}
	p.endEngine(stopped)
	if p.pool != nil {
		p.pool.seats.forget(p.self)
	}
	p.resumeWaiters()
	for _, w := range p.commits {
		w.one(p.cell, w.gone(p.cell))
	}
	p.shared.slots.forget(p.self)
	p.shared.memory.drop(partitionHolder(p.tp, p.epoch))
}

// stoppedBeforeRelease tells what the machine would have told, had the stop not overtaken that the partition was lost, or drained
// for too long.
func (p *partition) stoppedBeforeRelease(ctx actor.Context, stopped error) {
	state := p.machine.State()
	if state == rebalance.PartitionRevoked || state != rebalance.PartitionRevoking && !p.cell.lost.Load() {
		return
	}
	if p.handler.delivery != nil || p.busy {
		p.abandonHandler()
	}
	p.tellLost(ctx, stopped)
}

// feed steps the partition's machine and runs what it says.
func (p *partition) feed(ctx actor.Context, in rebalance.PartitionInput) {
	effects, err := p.machine.Step(time.Now(), in)
	if err != nil {
		p.shared.observe(event.Refused{Member: p.shared.member(), Err: err})
		p.shared.logger.Warn("partition input refused", zap.Error(err))
	}
	for _, effect := range effects {
		p.run(ctx, effect)
	}
	at, ok := p.machine.Deadline()
	p.alarm.setAt(p.shared.sys, p.self, at, ok)
}

func (p *partition) run(ctx actor.Context, effect rebalance.PartitionEffect) {
	switch e := effect.(type) {
	case rebalance.StartFlow:
		p.startFlow(ctx, e.Offset)
	case rebalance.StopFlow:
		p.stopFlow(ctx)
	case rebalance.CancelHandler:
		p.cancelHandler(e.Cause)
	case rebalance.AbandonHandler:
		p.abandonHandler()
	case rebalance.RequestFinalCommit:
		p.requestFinalCommit(ctx, e.Deadline)
	case rebalance.Release:
		p.release(ctx, e)
	case rebalance.PartitionMoved:
		p.cell.state.Store(int32(e.To))
		p.shared.logger.Debug("partition moved", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
			zap.Uint64("epoch", uint64(p.epoch)), zap.Stringer("from", e.From), zap.Stringer("to", e.To), zap.String("cause", e.Cause))
	}
}

// startFlow begins fetching and delivering at offset.
func (p *partition) startFlow(ctx actor.Context, offset int64) {
	p.tracker = commit.NewTracker(offset)
	p.tracker.StartEpoch(p.intake.lastEpoch)
	p.intake.restart(offset)
	p.startEngine()
	p.cell.condition.Store(int32(conditionFlowing))
	p.offer(ctx)
	p.tellAssigned(ctx)
	p.pump(ctx)
}

// stopFlow is the first step of REVOKING: nothing is fetched or delivered any more, and what was not delivered is dropped.
func (p *partition) stopFlow(ctx actor.Context) {
	p.intake.alarm.stop()
	p.handler.alarm.stop()
	p.handler.fill.stop()
	p.dropSurplus()
	p.endSeek(leavingError("seek", p.tp, p.machine.State()))
	if p.parallel != nil {
		p.parallel.stop()
	}
	p.haltDelivery(ctx)
	p.tellRevoking(ctx)
}

// haltDelivery has a function take no further record of the outstanding delivery, and gives back one that was not begun.
func (p *partition) haltDelivery(ctx actor.Context) {
	d := p.handler.delivery
	if d == nil {
		return
	}
	d.halt()
	if pid := p.Lookup(handlerKey); pid != nil && !d.byActor {
		ctx.Send(pid, &deliveryRecalled{delivery: d})
	}
}

// release is REVOKED: from here on every acknowledgment is stale.
func (p *partition) release(ctx actor.Context, e rebalance.Release) {
	p.endSeek(leavingError("seek", p.tp, p.machine.State()))
	if d := p.handler.delivery; d != nil {
		d.end(p.cancelCause(e.Cause))
	}
	p.endEngine(p.cancelCause(e.Cause))
	if e.Lost {
		p.tellLost(ctx, e.Cause)
	}
	released := &partitionReleased{tp: p.tp, epoch: p.epoch, committed: p.cell.committed.Load(), pending: kafka.NoOffset, err: e.Cause}
	if p.tracker != nil {
		released.pending = p.committable()
		released.uncommitted = p.tracker.InTransit()
		if released.committed >= 0 {
			released.uncommitted = max(int(p.tracker.Position()-released.committed), 0)
		}
	}
	ctx.Send(p.group, released)
}

func (p *partition) cancelCause(cause error) error {
	if p.closing {
		return fmt.Errorf("%w: %w", ErrClosing, cause)
	}
	return cause
}

func (p *partition) committerKnown(ctx actor.Context, m *committerKnown) {
	p.committer = m.pid
	p.cell.unplaced.Store(0)
	ctx.Send(p.committer, &p.cell.offered) // what the one before had not taken
	p.sendPlaced(ctx)
	p.offered = kafka.NoOffset
	if p.tracker != nil && p.machine.CanCommit() {
		p.offer(ctx)
	}
	p.flush(ctx)
}

// collect takes over what the handler acknowledged.
func (p *partition) collect() (fresh int) {
	switch d := p.handler.delivery; {
	case p.tracker == nil:
	case p.parallel != nil:
		var freed int64
		fresh, freed = p.parallel.finished(p.tracker, p.recovered)
		p.intake.delivering -= freed
	case d != nil && !d.left.Load():
		fresh = d.collect(p.tracker)
	}
	p.cell.acked.Add(uint64(fresh))
	return fresh
}

// offer tells the committer that the contiguous point moved.
func (p *partition) offer(ctx actor.Context) {
	if p.seek != nil {
		return
	}
	if p.held != nil && p.finishedPoint() > p.held.above {
		p.held = nil
	}
	offset := p.committable()
	p.cell.finishedEpoch.Store(p.tracker.CommittableEpoch())
	p.cell.finished.Store(offset)
	p.look()
	if p.held != nil || p.committer == nil || p.orphaned || p.intake.unproven || !p.machine.CanCommit() {
		return
	}
	beyond := 0
	if p.shared.settings.OffsetMap {
		beyond = p.tracker.FinishedBeyond()
	}
	if offset == p.offered && (beyond == p.offeredBeyond || !p.mapDue()) {
		return
	}
	p.offered, p.offeredBeyond = offset, beyond
	if p.cell.offer.Swap(&commit.Offset{
		TopicPartition: p.tp, Epoch: p.epoch, PositionEpoch: p.positionEpoch, Offset: offset, LeaderEpoch: p.tracker.CommittableEpoch(),
		Finished: p.cell.acked.Load(), Metadata: p.metadata(offset), Start: p.cell.committed.Load() < 0 && p.cell.acked.Load() == 0,
	}) == nil {
		ctx.Send(p.committer, &p.cell.offered)
	}
}

// pump does what can be done now: ask for more, and deliver.
func (p *partition) pump(ctx actor.Context) {
	p.deliverNext(ctx)
	p.want(ctx)
}

// publish puts the figures on the board.
func (p *partition) publish() {
	if p.tracker == nil {
		return
	}
	if p.cell.position.Swap(p.tracker.Position()) < 0 {
		p.shared.board.change(func() {}) // somebody may wait to hear where it begins
	}
	p.cell.inTransit.Store(int64(p.tracker.InTransit()))
	retrying := p.handler.alarm.set || !p.handler.up
	p.cell.reasons.Store(reason(p.paused, pausedByUser) | reason(p.window.Paused(), pausedByWindow) |
		reason(p.intake.waitingMemory, pausedByBudget) | reason(retrying, pausedByRetry))
	how := conditionFlowing
	switch {
	case p.intake.failed:
		how = conditionFailed
	case p.read:
		how = conditionRead
	case p.handler.paused || p.probing > 0:
		how = conditionPaused
	case p.paused:
		how = conditionUserPaused
	case retrying && (p.parallel == nil || !p.busy):
		how = conditionBackingOff
	case p.window.Paused():
		how = conditionWindowFull
	case p.intake.fetcher == nil || p.lookingUp() || (p.intake.alarm.set && p.intake.failures >= loudAfter):
		how = conditionWaiting
	}
	p.cell.condition.Store(int32(how))
}
