package actors

import (
	"errors"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

const handlerKey = "handler"

// signalSpacing is the least time between two signals of one delivery that is not complete: a commit cannot go out more
// often than commitSpacing anyway.
const signalSpacing = commitSpacing / 4

// handlerSide is the partition's side of its handler.
type handlerSide struct {
	// up is true while a handler is there that takes deliveries, gated while the partition's gate is held for a user's actor.
	up    bool
	gated bool
	// slotted is true while a delivery to a user's actor holds one of the member's slots.
	slotted bool
	// words is what the present actor of the user's is to hear before it stops.
	words *lastWords
	// held is true until OnAssigned has returned.
	held     bool
	delivery *Delivery
	// again are the records that come again, for the attempt-th time, after the alarm, or that wait to go out at all;
	// leases are the slabs they lie in.
	again   []kafka.Record
	attempt int
	leases  []*buffer.Lease
	// fill is when a batch that is not full goes out all the same.
	fill   alarm
	alarm  alarm
	nacks  *supervisor.Budget
	paused bool
	// filling is true while a batch waits to be filled.
	filling bool
	// stopped is true when the policy ends the consumer, or the handler takes too long: nothing is delivered any more. overdue
	// is why in the second case, alone whether a drain has nothing else to wait for.
	stopped, alone bool
	overdue        error
	// restarts counts the handlers used up under this epoch.
	restarts int
}

func (p *partition) userActor() bool { return p.registration.Actor != nil }

// startHandler starts the handler. A user's actor starts when the partition's gate is free, and holds it until it is gone;
// a function's runner takes the gate for each delivery.
func (p *partition) startHandler(ctx actor.Context) {
	if p.registration.Order != OrderPartition && !p.userActor() {
		p.handler.up = true // the registration's workers call it
		return
	}
	spawn := func(ctx actor.Context) *actor.PID {
		return p.shared.sys.spawnChild(ctx, handlerKey, func() actor.Actor {
			return &runner{shared: p.shared, reg: p.registration, tp: p.tp, epoch: p.epoch}
		})
	}
	if p.userActor() {
		if !p.handler.gated && !p.shared.gates.enter(p.tp, p.epoch, p.cell, p.self) {
			return // placeFree comes when the handler of an earlier epoch has returned
		}
		p.handler.gated = true
		spawn = func(ctx actor.Context) *actor.PID {
			p.handler.words = &lastWords{}
			return p.shared.sys.spawnUser(ctx, handlerKey, p.handler.words, func() actor.Actor { return p.registration.Actor(p.tp) })
		}
	}
	_, err := p.Start(ctx, supervisor.ChildSpec{Key: handlerKey, Role: "handler " + p.tp.String(), Policy: p.registration.Restart, Spawn: spawn})
	if err != nil {
		panic(err)
	}
	p.handler.up = true
	p.tellAssigned(ctx)
}

func (p *partition) leaveGate() {
	if p.handler.gated {
		p.handler.gated = false
		p.shared.gates.leave(p.tp, p.epoch)
	}
}

func (p *partition) placeFree(ctx actor.Context) {
	if p.userActor() && !p.handler.gated && p.machine.State() < rebalance.PartitionRevoking {
		p.startHandler(ctx)
	}
	p.pump(ctx)
	if !p.handler.slotted {
		p.shared.slots.passActor(p.self) // not ready to use its turn; whoever is next must not wait for it
	}
	if p.parallel != nil {
		p.parallel.pool.seats.passActor(p.self)
	}
}

// tell sends a handler actor one of its messages.
func (p *partition) tell(ctx actor.Context, message any) {
	if pid := p.Lookup(handlerKey); p.userActor() && pid != nil {
		ctx.Send(pid, message)
	}
}

// tellLast sends a handler actor what it hears also when its stop overtakes it.
func (p *partition) tellLast(ctx actor.Context, message any) {
	if pid := p.Lookup(handlerKey); p.userActor() && pid != nil {
		p.handler.words.add(message)
		ctx.Send(pid, message)
	}
}

// tellAssigned introduces a handler actor to its partition, as soon as both are ready. Before that it hears what is coming.
func (p *partition) tellAssigned(ctx actor.Context) {
	switch {
	case !p.handler.up:
	case p.tracker == nil:
		p.tell(ctx, &Assigning{TopicPartition: p.tp, Epoch: p.epoch})
	default:
		position := p.tracker.Position()
		if offset, ok := p.tracker.FirstUnacked(); ok {
			position = offset
		}
		p.tell(ctx, &Assigned{TopicPartition: p.tp, Epoch: p.epoch, Position: position, Restarts: p.handler.restarts})
	}
}

func (p *partition) tellRevoking(ctx actor.Context) {
	if !p.drain.deadline.IsZero() {
		p.tellLast(ctx, &Revoking{TopicPartition: p.tp, Until: p.drain.drainUntil, Closing: p.closing})
	}
}

func (p *partition) tellLost(ctx actor.Context, cause error) {
	p.tellLast(ctx, &Lost{TopicPartition: p.tp, Cause: cause})
}

// deliverNext gives the handler its next records: those that come again first, then new ones, at most MaxRecords and no
// more than the window has room for. One delivery is outstanding at a time.
func (p *partition) deliverNext(ctx actor.Context) {
	h := &p.handler
	if !p.machine.CanDeliver() || p.cell.lost.Load() || h.stopped || h.held || p.tracker == nil || p.seek != nil {
		return
	}
	if p.parallel != nil {
		p.fillEngine(ctx)
		return
	}
	if h.delivery != nil || !h.up || h.alarm.set || p.paused {
		return
	}
	if !p.gather(ctx) {
		return
	}
	if !p.shared.session.enter(p.self) {
		return
	}
	if p.userActor() && !h.slotted {
		if h.slotted = p.shared.slots.enter(p.self); !h.slotted {
			return
		}
	}
	records := h.again
	h.again = nil
	h.fill.stop()
	p.deliver(ctx, records, h.attempt)
}

// gather has the records of the next delivery in again, and reports whether they can go out: a batch that is not full may
// wait for more.
func (p *partition) gather(ctx actor.Context) bool {
	h, most := &p.handler, p.registration.MaxRecords
	p.window.Update(p.tracker.InTransit())
	waits := p.registration.MaxWait > 0 && (len(h.again) == 0 || h.attempt == 1)
	if len(h.again) > 0 && !waits {
		return true
	}
	records, leases := p.takeFresh(ctx, min(most-len(h.again), p.window.Room(p.tracker.InTransit())))
	if len(h.again) == 0 {
		h.again, h.attempt = records, 1
	} else {
		h.again = append(h.again, records...)
	}
	h.leases = append(h.leases, leases...)
	if !waits || len(h.again) == 0 || p.limit.Reached(p.tracker.Position()) || len(h.again) >= most || p.window.Room(p.tracker.InTransit()) == 0 || p.intake.waitingMemory {
		return len(h.again) > 0
	}
	if !h.filling {
		h.filling = true
		h.fill.setAt(p.shared.sys, p.self, time.Now().Add(p.registration.MaxWait), true)
	}
	return !h.fill.set
}

// takeFresh takes new records to deliver, without those that the offset map says are finished.
func (p *partition) takeFresh(ctx actor.Context, limit int) ([]kafka.Record, []*buffer.Lease) {
	for {
		before := p.intake.delivering
		records, leases := p.takeRecords(ctx, limit)
		if len(records) == 0 || p.finishedBefore.Empty() {
			return records, leases
		}
		if records = p.skipFinished(ctx, records); len(records) > 0 {
			return records, leases
		}
		releaseLeases(leases, true)
		p.intake.delivering = before
		// What the map says is finished is in transit as well, as long as something below it is not.
		p.window.Update(p.tracker.InTransit())
		limit = min(limit, p.window.Room(p.tracker.InTransit()))
	}
}

func (p *partition) deliver(ctx actor.Context, records []kafka.Record, attempt int) {
	p.handler.filling = false
	d := newDelivery(p.tp, p.epoch, records, attempt, &p.shared.board.acks)
	d.perRecord, d.byActor, d.async = p.registration.Record != nil, p.userActor(), p.registration.Async != nil
	if d.byActor {
		d.records = slices.Clone(records)
	}
	d.leases = append(d.leaseSpace[:0], p.handler.leases...)
	p.handler.leases = p.handler.leases[:0]
	d.root, d.partition = p.shared.sys.root, p.self
	p.handler.delivery = d
	p.cell.delivery.Store(d)
	if p.cell.lost.Load() { // meanwhile
		d.halt()
	}
	if attempt > 1 {
		p.cell.redelivered.Add(uint64(len(records)))
	}
	p.feed(ctx, rebalance.DeliveryStarted{})
	pid := p.Lookup(handlerKey)
	if d.byActor {
		d.begun.Store(true)
		ctx.Send(pid, &Deliver{Delivery: d})
	} else {
		d.toRunner.delivery = d
		ctx.Send(pid, &d.toRunner)
	}
}

// acknowledged takes over what a delivery reports, and lets it report again after a while.
func (p *partition) acknowledged(ctx actor.Context, d *Delivery) {
	if d.engine != nil {
		p.handed(ctx, d)
		return
	}
	if d != p.handler.delivery {
		p.shared.staleMessage()
		return
	}
	if d.left.Load() {
		return
	}
	seen := d.progress()
	if p.collect() > 0 {
		p.succeeded()
		p.offer(ctx)
	}
	switch {
	case (d.byActor || d.returned) && d.settledAll():
		p.settled(ctx, d)
	case !d.settledAll():
		time.AfterFunc(signalSpacing, func() { d.rearm(seen) })
	}
}

// settled ends the delivery of a handler actor or an asynchronous function: every record has its verdict.
func (p *partition) settled(ctx actor.Context, d *Delivery) {
	offset, refused, cause := d.firstNack()
	if !refused || d.cut {
		p.finished(ctx, d)
		return
	}
	if p.collect() > 0 { // what was acknowledged since the signal
		p.offer(ctx)
	}
	decision := p.handler.nacks.Fail(time.Now())
	p.again(d, offset)
	failure, ok := errors.AsType[*HandlerError](cause)
	if !ok {
		failure = &HandlerError{TopicPartition: p.tp, Offset: offset, Err: cause}
	}
	p.failed(ctx, failure, decision)
	p.handler.alarm.setAt(p.shared.sys, p.self, time.Now().Add(decision.After), true)
	p.ended(ctx)
}

// delivered is told when the handler returned without a failure. An asynchronous one may not have acknowledged everything.
func (p *partition) delivered(ctx actor.Context, d *Delivery, failure *HandlerError) {
	if d != p.handler.delivery {
		p.shared.staleMessage()
		return
	}
	if failure != nil {
		p.failedAt(ctx, failure, supervisor.Decision{Action: supervisor.Restart}, d.attempt, 0)
	}
	if d.async {
		d.returned = true
	}
	switch {
	case d.left.Load():
		p.ended(ctx)
		p.pump(ctx)
	case !d.async:
		p.finished(ctx, d)
	case d.settledAll():
		p.settled(ctx, d)
		p.pausedNow()
	default:
		p.pausedNow()
	}
}

// finished ends a delivery without a failure. When it was halted meanwhile, some records may be left: they go out again
// after a pause, and to the partition's next owner after a revocation.
func (p *partition) finished(ctx actor.Context, d *Delivery) {
	p.collect()
	p.succeeded()
	p.offer(ctx)
	if d.stops() && p.machine.CanDeliver() {
		p.again(d, kafka.NoOffset)
		switch {
		case d.cut && !d.perRecord && d.begun.Load(): // they were tried, together with the one that was skipped
		case len(p.handler.again) == d.count:
			p.handler.attempt = d.attempt
		default:
			p.handler.attempt = 1
		}
	}
	p.ended(ctx)
	p.pump(ctx)
}

// ended lets go of the delivery. The slabs of records that come again are kept; nobody else can read them any more, as far as
// functions go, which have returned.
func (p *partition) ended(ctx actor.Context) {
	d := p.handler.delivery
	p.handler.delivery = nil
	p.cell.delivery.Store(nil)
	clean := !d.byActor && !d.async || d.settledAll() && len(p.handler.again) == 0 && !d.cut // who had a skipped record may still read it
	d.end(nil)
	if len(p.handler.again) > 0 && clean {
		p.handler.leases = append(p.handler.leases[:0], d.leases...)
	} else {
		releaseLeases(d.leases, clean)
	}
	if p.intake.mergedOut = false; !clean { // somebody may still read it
		p.intake.merged = nil
	}
	p.releaseSlot()
	if len(p.handler.again) == 0 { // what comes again still takes its memory
		p.intake.delivering = 0
	}
	p.settleMemory()
	p.rewindNow(ctx)
	p.feed(ctx, rebalance.DeliveryEnded{})
	p.pausedNow()
}

func releaseLeases(leases []*buffer.Lease, clean bool) {
	for _, lease := range leases {
		lease.Release(clean)
	}
}

func (p *partition) releaseSlot() {
	if p.handler.slotted {
		p.handler.slotted = false
		p.shared.slots.leave()
	}
}

// succeeded tells the budgets that the handler does its work.
func (p *partition) succeeded() {
	now := time.Now()
	probed := p.Succeed(handlerKey, now)
	if p.handler.nacks.Succeed(now) {
		probed = true
	}
	if p.handler.paused && probed {
		p.handler.paused = false
		p.resumed()
	}
}

// resumed tells that the partition is not paused any more because of its handler.
func (p *partition) resumed() {
	p.shared.logger.Info("partition resumed", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition))
	p.shared.observe(event.PartitionResumed{Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch})
}

// again keeps the records that were not acknowledged for another attempt.
func (p *partition) again(d *Delivery, failedAt int64) {
	h := &p.handler
	h.again, h.attempt = nil, d.attempt+1
	for i := range d.count {
		if next, open := p.tracker.NextUnacked(d.offset(i)); !open || next != d.offset(i) {
			continue
		}
		if i > 0 && len(h.again) == 0 && d.perRecord && d.offset(i) == failedAt {
			h.attempt = 2 // the records before it succeeded, so it was tried once
		}
		h.again = append(h.again, d.original[i])
	}
}

// HandleFailure takes over what the failing handler had acknowledged before its supervisor judges the failure: a handler
// that gets further each time is no hopeless case.
func (p *partition) HandleFailure(system *actor.ActorSystem, parent actor.Supervisor, child *actor.PID, stats *actor.RestartStatistics, reason, message any) {
	if p.collect() > 0 {
		p.succeeded()
	}
	p.handler.up = false
	p.Supervisor.HandleFailure(system, parent, child, stats, reason, message)
}

// outcome reacts to what happened to the handler.
func (p *partition) outcome(ctx actor.Context, o supervisor.Outcome) {
	switch o := o.(type) {
	case supervisor.ChildFailed:
		if p.parallel != nil {
			p.actorFailed(ctx, o)
			return
		}
		p.handlerFailed(ctx, o)
	case supervisor.ChildRespawned:
		p.handler.up = true
		p.handler.restarts++
		p.cell.restarts.Add(1)
		p.shared.observe(event.HandlerRestarted{
			Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, Restarts: p.handler.restarts, After: o.Decision.After,
		})
		p.tellAssigned(ctx)
		p.tellRevoking(ctx) // where it comes while the partition is being given up
		p.pump(ctx)
	case supervisor.BudgetSpent, supervisor.ChildStopped:
	}
}

func (p *partition) handlerFailed(ctx actor.Context, o supervisor.ChildFailed) {
	p.handler.up = false
	failure := handlerFailure(p.tp, o.Reason)
	if d := p.handler.delivery; d != nil {
		if failure.Offset < 0 {
			failure.Offset = d.currentOffset()
		}
		if p.collect(); !d.left.Load() {
			p.again(d, failure.Offset)
			p.offer(ctx)
		}
	} else if failure.Offset < 0 && p.tracker != nil {
		failure.Offset = p.tracker.Position()
	}
	d := p.handler.delivery
	if d != nil && (d.left.Load() || d.cut) && o.Decision.Action != supervisor.Stop { // it failed at the last moment
		p.failedAt(ctx, failure, supervisor.Decision{Action: supervisor.Restart}, d.attempt, 0)
		p.afresh(ctx)
	} else {
		p.failed(ctx, failure, o.Decision)
	}
	if d != nil {
		d.end(ErrHandlerRestarted)
		p.ended(ctx)
	}
}

func (p *partition) cancelHandler(cause error) {
	if overdue := p.handler.overdue; overdue != nil && !errors.Is(cause, rebalance.ErrLost) {
		cause = overdue
	}
	if d := p.handler.delivery; d != nil {
		d.cancel(p.cancelCause(cause))
	}
	if p.parallel != nil {
		p.parallel.cancel(p.cancelCause(cause))
	}
	for _, d := range p.open {
		d.cancel(p.cancelCause(cause))
	}
}
