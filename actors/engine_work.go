package actors

import (
	"runtime/debug"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

// How many records of one lane a worker claims at a time follows how long the last claim took: with one at a time others
// get their turn soonest, and where a handler takes no time at all, the claim would cost more than the work.
const (
	claimMost = 64
	claimFast = 50 * time.Microsecond
	claimSlow = 500 * time.Microsecond
	// claimLinger is how long what a claim has finished may wait for the rest of it.
	claimLinger = 10 * time.Millisecond
	// claimLingerMost is how often a claim is looked at in which nothing moves.
	claimLingerMost = time.Second
)

// take settles what the worker had and claims what is next. It reports whether there is something.
func (e *engine) take(w *poolWorker) bool {
	now := time.Now()
	e.mu.Lock()
	e.settleLocked(w, now)
	claimed, more := e.claim(w.claimed[:0])
	w.claimed, w.done, w.settled, w.failure, w.canceled = claimed, 0, 0, nil, false
	w.cut.Store(false)
	w.ctx.Store(nil)
	if w.busy = len(claimed) > 0; w.busy {
		w.call.since = now
		w.call.offset.Store(claimed[0].Offset)
		e.calls = append(e.calls, w)
		e.busy.Add(1)
		e.linger(len(claimed) > 1)
	}
	told := e.tell()
	e.left()
	if told {
		e.notify()
	}
	if more {
		e.pool.offer(e)
	}
	return w.busy
}

// settle settles what the worker had.
func (e *engine) settle(w *poolWorker) {
	if !w.busy {
		return
	}
	now := time.Now()
	e.mu.Lock()
	e.settleLocked(w, now)
	told, offer := e.tell(), e.claimable(now)
	e.left()
	if told {
		e.notify()
	}
	if offer {
		e.pool.offer(e)
	}
}

// settleLocked gives each claimed record its verdict. The caller holds mu.
func (e *engine) settleLocked(w *poolWorker, now time.Time) {
	if !w.busy {
		return
	}
	w.busy = false
	for i, c := range e.calls {
		if c == w {
			last := len(e.calls) - 1
			e.calls[i], e.calls[last] = e.calls[last], nil
			e.calls = e.calls[:last]
			e.busy.Add(-1)
			break
		}
	}
	switch took := now.Sub(w.call.since); {
	case took > claimSlow:
		e.most = 1
	case took < claimFast:
		e.most = min(2*e.most, claimMost)
	}
	if e.ended {
		if w.done > w.settled {
			e.shared.board.acks.stale.Add(uint64(w.done - w.settled))
		}
		return
	}
	if e.reg.Async != nil {
		for i := range w.claimed {
			seq := w.claimed[i].Seq
			if _, skipped := e.skipped[seq]; skipped {
				e.done(seq)
			} else if i >= w.done {
				e.giveBack(seq)
			}
		}
		return
	}
	for i := w.settled; i < len(w.claimed); i++ {
		c := &w.claimed[i]
		_, skipped := e.skipped[c.Seq]
		switch {
		case i < w.done || skipped:
			e.done(c.Seq)
		case w.canceled: // whatever failed may have failed because of that
			e.giveBack(c.Seq)
		case w.failure != nil && (i == w.done || e.reg.Batch != nil):
			e.fail(c.Seq, c.Attempt, w.failure)
		default:
			e.giveBack(c.Seq)
		}
	}
}

// settleBegun settles what the calls that run have finished of their claims. Only a claim for a record function has more
// than one record that ends before the claim does. The caller holds mu.
func (e *engine) settleBegun() {
	if e.reg.Record == nil || e.ended {
		return
	}
	for _, w := range e.calls {
		at := w.call.offset.Load()
		for ; w.settled < len(w.claimed) && w.claimed[w.settled].Offset < at; w.settled++ {
			e.done(w.claimed[w.settled].Seq)
		}
	}
}

// linger sees to it that what a claim of several records has finished does not wait for one of them that takes long. The
// caller holds mu.
func (e *engine) linger(several bool) {
	if several && !e.lingers && e.reg.Record != nil {
		e.lingerFor(claimLinger)
	}
}

// lingerFor looks after wait, and again while a claim has more to finish: less and less often while nothing moves, for a call
// may never return, and not once the engine has ended. The caller holds mu.
func (e *engine) lingerFor(wait time.Duration) {
	e.lingers = true
	time.AfterFunc(wait, func() {
		e.mu.Lock()
		e.lingers = false
		before := e.fresh
		e.settleBegun()
		if !e.ended && slices.ContainsFunc(e.calls, func(w *poolWorker) bool { return w.settled < len(w.claimed)-1 }) {
			next := claimLinger
			if e.fresh == before {
				next = min(2*wait, claimLingerMost)
			}
			e.lingerFor(next)
		}
		told := e.tell()
		e.mu.Unlock()
		if told {
			e.notify()
		}
	})
}

// goexit settles for a handler that ended its goroutine.
func (e *engine) goexit(w *poolWorker) {
	if !w.busy {
		return
	}
	w.failure = &HandlerError{TopicPartition: e.tp, Offset: w.call.offset.Load(), Err: errGoexit}
	if e.reg.Async != nil {
		_ = w.handle.settle(w.failure) // a stale one is counted
		w.done++
	}
	e.settle(w)
}

// stops reports whether no further record may begin.
func (w *poolWorker) stops(e *engine) bool {
	return e.stopped.Load() || e.paused.Load() || w.cut.Load()
}

// handle calls the user's function over what the worker has claimed. Only this runs outside of the lock.
func (e *engine) handle(w *poolWorker) {
	switch {
	case e.reg.Batch != nil:
		e.handleBatch(w)
	case e.reg.Async != nil:
		e.handleAsync(w)
	default:
		e.handleRecords(w)
	}
}

func (e *engine) handleRecords(w *poolWorker) {
	var at *kafka.Record
	var saved kafka.Record
	defer func() {
		if at != nil { // it failed, in whatever way: the record comes again as it was
			*at = saved
		}
		if v := recover(); v != nil {
			w.failure = e.panicked(w, v)
		}
	}()
	ctx := &claimContext{engine: e}
	w.ctx.Store(ctx)
	defer ctx.cancel(nil)
	w.pace.restart()
	for i := range w.claimed {
		c := &w.claimed[i]
		if w.pace.due(i) {
			e.shared.session.hold(e.ctx)
		}
		if w.call.offset.Store(c.Offset); w.stops(e) {
			return
		}
		ctx.record.Store(c.Record)
		ctx.attempt.Store(int64(c.Attempt))
		at, saved = c.Record, *c.Record
		if err := e.reg.Record(ctx, c.Record); err != nil {
			w.failure = &HandlerError{TopicPartition: e.tp, Offset: w.call.offset.Load(), Err: err}
			return
		}
		at = nil
		w.done++
	}
}

func (e *engine) handleBatch(w *poolWorker) {
	records := make([]kafka.Record, len(w.claimed))
	attempt := 1
	for i := range w.claimed {
		records[i] = *w.claimed[i].Record
		attempt = max(attempt, w.claimed[i].Attempt)
	}
	ctx := &claimContext{engine: e, records: records}
	w.ctx.Store(ctx)
	defer ctx.cancel(nil)
	ctx.attempt.Store(int64(attempt))
	e.shared.session.hold(e.ctx)
	if w.stops(e) {
		return
	}
	if w.failure = e.guard(w, func() error { return e.reg.Batch(ctx, records) }); w.failure == nil {
		w.done = len(records)
	}
}

func (e *engine) handleAsync(w *poolWorker) {
	w.pace.restart()
	for i := range w.claimed {
		c := w.claimed[i]
		if w.pace.due(i) {
			e.shared.session.hold(e.ctx)
		}
		d := &RecordDelivery{record: *c.Record, offset: c.Offset, tp: e.tp, epoch: e.epoch, attempt: c.Attempt, engine: e, seq: c.Seq}
		ctx := &claimContext{engine: e, handle: d}
		d.context = ctx
		w.ctx.Store(ctx)
		if w.call.offset.Store(c.Offset); w.stops(e) {
			return
		}
		w.handle = d
		ctx.record.Store(c.Record)
		ctx.attempt.Store(int64(c.Attempt))
		if failure := e.guard(w, func() error { e.reg.Async(ctx, d); return nil }); failure != nil {
			_ = d.settle(failure) // a stale one is counted
		}
		w.done++
	}
}

// guard calls the user's function and turns what it returns, or panics with, into a failure at the current record.
func (e *engine) guard(w *poolWorker, function func() error) (failure *HandlerError) {
	defer func() {
		if v := recover(); v != nil {
			failure = e.panicked(w, v)
		}
	}()
	if err := function(); err != nil {
		return &HandlerError{TopicPartition: e.tp, Offset: w.call.offset.Load(), Err: err}
	}
	return nil
}

// panicked turns what a handler panicked with into a failure. It is called while the panic is recovered from.
func (e *engine) panicked(w *poolWorker, value any) *HandlerError {
	failure := &HandlerError{TopicPartition: e.tp, Offset: w.call.offset.Load(), Panic: true, Err: panicError(value)}
	e.shared.logger.Error("handler panicked", zap.String("topic", e.tp.Topic), zap.Int32("partition", e.tp.Partition),
		zap.Int64("offset", failure.Offset), zap.ByteString("stack", debug.Stack()))
	return failure
}

// hand claims up to MaxRecords for the user's actor, as a delivery that settles each record with the engine.
func (e *engine) hand() *Delivery {
	e.mu.Lock()
	var claimed []buffer.Claimed
	claimed, _ = e.claim(nil)
	e.eager = true
	e.mu.Unlock()
	if len(claimed) == 0 {
		return nil
	}
	records := make([]kafka.Record, len(claimed))
	attempt := 1
	for i := range claimed {
		records[i] = *claimed[i].Record
		attempt = max(attempt, claimed[i].Attempt)
	}
	d := newDelivery(e.tp, e.epoch, records, attempt, &e.shared.board.acks)
	d.byActor, d.engine, d.claims = true, e, claimed
	d.armed.Store(false) // the engine tells the partition; only the last verdict is the delivery's to tell
	return d
}

// takeBack ends a delivery whose actor is gone: what it did not settle goes to the next actor.
func (e *engine) takeBack(d *Delivery) {
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		return
	}
	for i := range d.claims {
		seq := d.claims[i].Seq
		if !d.claim(i) || !e.lanes.Fail(seq) {
			continue
		}
		head, parked, _ := e.lanes.Head(seq)
		switch {
		case !parked:
		case e.refused[head].err != nil: // another record of the lane was refused
			e.report(seq, refusal{})
		default:
			e.lanes.Unpark(head)
		}
	}
	for i := range e.slabs { // the actor may have left goroutines that still read
		releaseLeases(e.slabs[i].leases, false)
		e.slabs[i].leases = nil
	}
	told := e.tell()
	e.mu.Unlock()
	if told {
		e.notify()
	}
}
