package actors

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// engineChunk is how many records are put into the engine under one lock.
const engineChunk = 512

// parallelSide is the partition's side of its engine, under OrderKey and OrderNone.
type parallelSide struct {
	// parallel is nil under OrderPartition and before the position is known.
	parallel *engine
	// busy is what the partition's machine was told.
	busy bool
	// open are the deliveries that the user's actor holds.
	open []*Delivery
	// retries are the records that failed, by number, until they are finished; the handler's alarm is the next one due.
	retries map[uint64]*retry
	// probing counts those whose budget is spent.
	probing int
	// fullTold is true from when the window was reported full of failing records until it moves.
	fullTold bool
}

// retry is one failing record: the head of its lane, which waits for it.
type retry struct {
	budget *supervisor.Budget
	lane   uint64
	due    time.Time
	// waiting is true until due.
	waiting bool
}

// engineSignal: an engine -> its partition: something was finished or failed, or more is wanted.
type engineSignal struct {
	silent
	engine *engine
}

// startEngine makes the engine for the positions that begin now.
func (p *partition) startEngine() {
	if p.registration.Order == OrderPartition {
		return
	}
	root, self := p.shared.sys.root, p.self
	var e *engine
	e = newEngine(p.shared, p.partitionConfig, func() { root.Send(self, &engineSignal{engine: e}) })
	if p.paused {
		e.pause()
	}
	p.parallel, p.retries, p.probing = e, nil, 0
	p.cell.engine.Store(e)
	if p.cell.lost.Load() { // meanwhile
		e.stop()
	}
}

// endEngine makes everything of the present engine stale. The gate is given back when its last call has returned.
func (p *partition) endEngine(cause error) {
	e := p.parallel
	if e == nil {
		return
	}
	var idle func()
	if p.handler.gated && !p.userActor() {
		p.handler.gated = false
		gates, tp, epoch := p.shared.gates, p.tp, p.epoch
		root, self, cell, left := p.shared.sys.root, p.self, p.cell, e == p.left
		idle = func() {
			gates.leave(tp, epoch)
			if left {
				cell.left.CompareAndSwap(e, nil)
				root.Send(self, &engineLeft{engine: e})
			}
		}
	}
	e.end(cause, idle)
	for _, d := range p.open {
		d.end(cause)
		p.giveSeat()
	}
	p.open = nil
	p.intake.delivering = 0
}

// fillEngine gives the engine what it has room for.
func (p *partition) fillEngine(ctx actor.Context) {
	e, h := p.parallel, &p.handler
	if p.intake.rewind != nil || p.intake.stuck || !p.shared.session.enter(p.self) {
		return
	}
	if !h.gated && !p.userActor() {
		if h.gated = p.shared.gates.enter(p.tp, p.epoch, p.cell, p.self); !h.gated {
			return // placeFree comes when the handlers of an earlier epoch have returned
		}
	}
	for {
		p.window.Update(p.tracker.InTransit())
		room := min(p.window.Room(p.tracker.InTransit()), e.room(), engineChunk)
		before := p.intake.delivering
		records, leases := p.takeFresh(ctx, room)
		if len(records) == 0 {
			break
		}
		keys, ok := p.keysOf(records)
		if !ok {
			break
		}
		p.work(ctx)
		e.push(records, keys, engineSlab{bytes: p.intake.delivering - before, leases: slices.Clone(leases)})
	}
	nothingComes := p.intake.waitingMemory || p.limit.Reached(p.tracker.Position())
	e.filled(nothingComes || p.window.Room(p.tracker.InTransit()) == 0 || e.room() == 0)
	if p.userActor() {
		p.handOut(ctx)
	}
}

// work tells the machine that there is something to wait for at a drain.
func (p *partition) work(ctx actor.Context) {
	if !p.busy && p.machine.CanDeliver() {
		p.busy = true
		p.feed(ctx, rebalance.DeliveryStarted{})
	}
}

// keysOf returns what orders the records, nil when it does not matter. A KeyFunc that panics stops the partition.
func (p *partition) keysOf(records []kafka.Record) (keys [][]byte, ok bool) {
	if p.registration.Order != OrderKey {
		return nil, true
	}
	keys = make([][]byte, len(records))
	if p.registration.KeyFunc == nil {
		for i := range records {
			keys[i] = records[i].Key
		}
		return keys, true
	}
	at, failure := 0, errGoexit
	var done sync.WaitGroup
	done.Go(func() { // in a goroutine of its own, which it may end
		defer func() {
			if v := recover(); v != nil {
				failure = fmt.Errorf("panic: %w", panicError(v))
			}
		}()
		for at = range records {
			keys[at] = p.registration.KeyFunc(&records[at])
		}
		failure = nil
	})
	done.Wait()
	if failure != nil {
		p.startFails(records[at].Offset, fmt.Errorf("troupe: the ordering key of offset %d: %w", records[at].Offset, failure))
		return nil, false
	}
	return keys, true
}

// engineSignaled takes over what the engine has, and gives it more.
func (p *partition) engineSignaled(ctx actor.Context, m *engineSignal) {
	e := m.engine
	if e != p.parallel {
		p.shared.staleMessage()
		return
	}
	state := e.collect(p.tracker, p.recovered)
	p.took(ctx, state.fresh, state.freed)
	p.lanesFailed(ctx, state.failures)
	if p.busy && !state.busy && p.left == nil {
		p.busy = false
		p.feed(ctx, rebalance.DeliveryEnded{})
	}
	if state.busy {
		time.AfterFunc(signalSpacing, e.rearm)
	} else {
		e.rearm()
		if p.intake.rewind != nil {
			p.rewindNow(ctx)
		}
	}
	p.pump(ctx)
	p.windowFull(state)
	p.pausedNow()
}

// took counts records that are finished, gives back their memory, and offers what may be committed.
func (p *partition) took(ctx actor.Context, fresh int, freed int64) {
	if freed > 0 {
		p.intake.delivering -= freed
		p.settleMemory()
	}
	if fresh > 0 {
		p.cell.acked.Add(uint64(fresh))
		p.offer(ctx)
	}
}

// recovered forgets that a record has failed: it is finished.
func (p *partition) recovered(seq uint64) {
	r := p.retries[seq]
	if r == nil {
		return
	}
	delete(p.retries, seq)
	if r.budget.Probing() {
		p.probing--
		p.shared.logger.Info("key resumed", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition), zap.Uint64("lane", r.lane))
		p.shared.observe(event.PartitionResumed{Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, Lane: r.lane})
	}
}

// lanesFailed sets the next try of records that failed, as the budget of each says. Only their lanes wait. The keys of one
// batch failed together: they are told once, and come again together the first time; after that each goes its own way, so
// that one that always fails does not hold the others.
func (p *partition) lanesFailed(ctx actor.Context, failures []laneFailure) {
	var last *HandlerError
	decision := supervisor.Decision{Action: supervisor.Restart}
	if !p.machine.CanDeliver() { // nothing is tried again here, and each is told all the same
		for i := range failures {
			if f := &failures[i]; f.err != last {
				last = f.err
				p.failedAt(ctx, f.err, decision, f.attempt, f.lane)
			}
		}
		return
	}
	now := time.Now()
	for i := range failures {
		f := &failures[i]
		r := p.retries[f.seq]
		if r == nil {
			r = &retry{budget: supervisor.NewBudget(p.registration.Restart, p.shared.settings.Seed^f.seq), lane: f.lane}
			if p.retries == nil {
				p.retries = make(map[uint64]*retry)
			}
			p.retries[f.seq] = r
		}
		own := r.budget.Fail(now)
		if own.Action == supervisor.Probe && own.Spent {
			p.probing++
		}
		if f.err != last || own.Action != decision.Action {
			last, decision = f.err, own
			p.handler.restarts++
			p.cell.restarts.Add(1)
			p.failedAt(ctx, f.err, own, f.attempt, f.lane)
		}
		wait := own.After
		if f.attempt == 1 {
			wait = decision.After
		}
		r.due, r.waiting = now.Add(wait), own.Action != supervisor.Stop
	}
	p.retryAlarm()
}

func (p *partition) retryAlarm() {
	var next time.Time
	for _, r := range p.retries {
		if r.waiting && (next.IsZero() || r.due.Before(next)) {
			next = r.due
		}
	}
	p.handler.alarm.setAt(p.shared.sys, p.self, next, !next.IsZero())
}

// retryDue lets the lanes go on whose wait is over.
func (p *partition) retryDue(ctx actor.Context) {
	now := time.Now()
	var due []uint64
	for seq, r := range p.retries {
		if r.waiting && !now.Before(r.due) {
			r.waiting = false
			due = append(due, seq)
		}
	}
	p.retryAlarm()
	if len(due) == 0 || !p.machine.CanDeliver() || p.handler.stopped {
		return
	}
	slices.Sort(due)
	p.cell.redelivered.Add(uint64(len(due)))
	p.work(ctx)
	p.parallel.unpark(due)
	p.pump(ctx)
}

// windowFull reports, once, a window in which nothing can go on.
func (p *partition) windowFull(state engineState) {
	full := !state.busy && state.parked > 0 && (state.room == 0 || p.window.Paused())
	if !full {
		p.fullTold = p.fullTold && (state.room == 0 || p.window.Paused())
		return
	}
	if p.fullTold {
		return
	}
	p.fullTold = true
	offset, _ := p.tracker.FirstUnacked()
	p.shared.observe(event.WindowFull{Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, Offset: offset, Lanes: state.parked})
	p.shared.logger.Error("window is full of failing records", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Int64("offset", offset), zap.Int("lanes", state.parked))
}

// handOut gives the user's actor deliveries, as many as the registration's workers and the member's slots allow.
func (p *partition) handOut(ctx actor.Context) {
	h, e := &p.handler, p.parallel
	for h.up && !h.stopped && !p.paused {
		if !e.pool.seats.enter(p.self) {
			return
		}
		if !p.shared.slots.enter(p.self) {
			e.pool.seats.leave()
			return
		}
		d := e.hand()
		if d == nil {
			p.giveSeat()
			return
		}
		d.root, d.partition = p.shared.sys.root, p.self
		p.open = append(p.open, d)
		ctx.Send(p.Lookup(handlerKey), &Deliver{Delivery: d})
	}
}

func (p *partition) giveSeat() {
	p.parallel.pool.seats.leave()
	p.shared.slots.leave()
}

// handed ends a delivery that the user's actor has settled.
func (p *partition) handed(ctx actor.Context, d *Delivery) {
	at := slices.Index(p.open, d)
	if at < 0 || !d.settledAll() {
		p.shared.staleMessage()
		return
	}
	p.open = slices.Delete(p.open, at, at+1)
	d.end(nil)
	p.giveSeat()
	p.succeeded()
	p.pump(ctx)
}

// actorFailed takes back what the user's actor held: it comes again, to the next one.
func (p *partition) actorFailed(ctx actor.Context, o supervisor.ChildFailed) {
	p.handler.up = false
	failure := handlerFailure(p.tp, o.Reason)
	for _, d := range p.open {
		if failure.Offset < 0 {
			failure.Offset = d.currentOffset()
		}
		p.parallel.takeBack(d)
		d.end(ErrHandlerRestarted)
		p.giveSeat()
	}
	if p.open = nil; failure.Offset < 0 && p.tracker != nil {
		failure.Offset = p.tracker.Committable()
	}
	p.failed(ctx, failure, o.Decision)
}

// heldUp describes the record that the commit waits for.
func (p *partition) heldUp() (lane uint64, attempt int, how string) {
	if p.parallel == nil {
		attempt = max(p.handler.attempt, 1)
		switch d := p.handler.delivery; {
		case d == nil && p.handler.alarm.set:
			return 0, attempt, "backing_off"
		case d == nil:
			return 0, attempt, "waiting"
		case d.byActor || d.returned:
			return 0, d.attempt, "acknowledging"
		default:
			return 0, d.attempt, "running"
		}
	}
	l, ok := p.parallel.lowest()
	if !ok {
		return 0, 0, "waiting"
	}
	switch l.State {
	case buffer.LaneParked:
		how = "backing_off"
	case buffer.LaneWaiting:
		how = "waiting"
	case buffer.LaneClaimed:
		if how = "running"; p.userActor() || p.registration.Async != nil {
			how = "acknowledging"
		}
	}
	return l.Lane, l.Attempt, how
}
