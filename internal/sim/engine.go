package sim

import (
	"slices"
	"time"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

// engine is actors/engine*.go: the lanes that a partition's actor shares with the workers, under the key order and without
// an order. What the real one does under its lock is one step here.
type engine struct {
	shell *partitionShell
	lanes *buffer.Lanes
	// truth is that of the run of positions that it works on.
	truth *truth
	// calls are the calls of the handler that run.
	calls []*delivery
	// failures are those that the actor has not taken, refused the records that failed and whose lanes are not settled.
	failures []uint64
	refused  []uint64
	// stopped for good, paused while the user's pause holds, ended: what comes from now on is stale.
	stopped, paused, ended, queued bool
	// givesGate: the gate is left when no call runs any more.
	givesGate bool
	// signaled is true while the actor was told and has not come; the others let one cause each tell it, once.
	signaled, armed, hungry, active, leaving, eager bool
	// most is how many records of one lane are claimed at a time.
	most int
	// fillBy is when a batch that is not full is given out all the same, 0 for none that waits.
	fillBy        int64
	fresh, wanted int
}

const (
	// engineBacklog is how many records the engine wants waiting for each worker.
	engineBacklog = 4
	// signalSpacing is the least time between two signals of finished records.
	signalSpacing = 50 * time.Millisecond
	// laneClaimMost, laneClaimFast and laneClaimSlow say how many records of one lane a worker claims at a time.
	laneClaimMost = 64
	laneClaimFast = 50 * time.Microsecond
	laneClaimSlow = 500 * time.Microsecond
)

func newEngine(s *partitionShell) *engine {
	script := &s.w.script
	ordered := script.Order == OrderKey && s.w.mutant != MutantLaneFreed
	return &engine{
		shell: s, truth: s.truth, armed: true, hungry: true, most: 1,
		lanes:  buffer.NewLanes(buffer.LanesConfig{Capacity: script.MaxInTransit, Ordered: ordered}),
		wanted: min(script.MaxInTransit/2, max(engineBacklog*script.Workers, 2*script.MaxRecords)),
	}
}

// push adds records; the engine has room for them.
func (e *engine) push(records []kafka.Record) {
	for i := range records {
		if _, ok := e.lanes.Push(&records[i], records[i].Key); !ok {
			e.shell.w.violate("STATE", "the engine has no room")
		}
	}
	e.hungry, e.active = true, true
	e.offer()
}

// offer lets the pool's workers come when a claim would get something.
func (e *engine) offer() {
	if e.claimable() && e.shell.w.script.Handler != HandleActor {
		e.shell.process.handlers.offer(e)
	}
}

// claimable reports whether a claim would get something. A batch that is not full waits for a while.
func (e *engine) claimable() bool {
	if e.halted() || e.ended || e.lanes.Ready() == 0 {
		return false
	}
	w := e.shell.w
	if w.script.Handler != HandleBatch || w.script.MaxWait == 0 || e.lanes.ReadyRecords() >= w.script.MaxRecords {
		return true
	}
	if e.fillBy == 0 {
		if e.fillBy = w.at + int64(w.script.MaxWait); w.mutant != MutantFillForgotten {
			w.timeline.push(e.fillBy, eventPost, 0, &fill{engine: e})
		}
	}
	return w.at >= e.fillBy
}

// fill is the timer of a batch that is not full.
type fill struct{ engine *engine }

// halted reports whether no further record may begin.
func (e *engine) halted() bool {
	return e.stopped && e.shell.w.mutant != MutantClaimStopped || e.paused
}

// claim takes what is next, as the kind of handler wants it.
func (e *engine) claim(into []buffer.Claimed) []buffer.Claimed {
	if !e.claimable() {
		return into
	}
	e.fillBy = 0
	script := &e.shell.w.script
	switch script.Handler {
	case HandleBatch, HandleActor:
		return e.lanes.ClaimHeads(into, script.MaxRecords)
	case HandleAsync:
		return e.lanes.Claim(into, script.MaxRecords)
	case HandleRecord:
	}
	return e.lanes.Claim(into, e.most)
}

// notify decides whether the actor has to come, and tells it.
func (e *engine) notify() {
	if e.signaled || e.ended {
		return
	}
	idle := e.lanes.Claimed() == 0 && e.lanes.Ready() == 0
	switch {
	case len(e.failures) > 0, e.armed && e.fresh > 0:
	case e.active && idle:
		e.active = false
	case e.leaving && len(e.calls) == 0:
		e.leaving = false
	case e.hungry && e.lanes.Waiting() < e.wanted:
		e.hungry = false
	case e.eager && e.lanes.Ready() > 0:
		e.eager = false
	default:
		return
	}
	e.signaled = true
	e.shell.w.post(e.shell.box, message{kind: messageEngine, payload: e})
}

// collect moves what is finished into the tracker.
func (e *engine) collect() (fresh int) {
	s := e.shell
	e.lanes.Collect(func(seq uint64, offset int64) {
		if s.acknowledge(offset) {
			fresh++
		}
		s.retries = slices.DeleteFunc(s.retries, func(r *laneRetry) bool { return r.seq == seq })
	})
	s.w.check.machine(e.lanes.Valid())
	return fresh
}

// rearm lets finished records tell the actor again.
func (e *engine) rearm() {
	e.armed = true
	e.notify()
}

// pause lets nothing begin until resume. It returns the number of calls that run.
func (e *engine) pause() int {
	e.paused = true
	e.leaving = len(e.calls) > 0
	return len(e.calls)
}

func (e *engine) resume() {
	e.paused = false
	e.offer()
}

// stop ends the flow: what waits is dropped, what runs may finish and be collected.
func (e *engine) stop() {
	e.stopped = true
	if e.shell.w.mutant == MutantClaimStopped {
		return
	}
	e.lanes.Drop()
	e.notify()
}

// end makes every later acknowledgment stale. The gate is given back as soon as no call runs any more.
func (e *engine) end(givesGate bool) {
	e.stopped = true
	e.cancel()
	if !e.ended {
		e.ended, e.givesGate = true, givesGate
		e.lanes.Drop()
	}
	e.left()
}

// working reports whether something is claimed, or can be.
func (e *engine) working() bool { return e.lanes.Claimed() > 0 || e.lanes.Ready() > 0 && !e.stopped }

// cancel ends the context of the calls that run.
func (e *engine) cancel() {
	for _, d := range e.calls {
		if !d.canceled {
			d.canceled = true
			e.shell.process.handlers.cancel(d)
		}
	}
}

func (e *engine) left() {
	if e.ended && len(e.calls) == 0 && e.givesGate {
		e.givesGate = false
		e.shell.process.leaveGate(e.shell.part, e.shell.epoch)
		if e.shell.left == e {
			e.shell.w.post(e.shell.box, message{kind: messageEngineLeft, payload: e})
		}
	}
}

// take settles what the worker had and claims what is next. It reports whether there is something.
func (e *engine) take(w *worker) bool {
	e.settleLocked(w)
	w.claimed = e.claim(w.claimed[:0])
	if w.call = nil; len(w.claimed) > 0 {
		world := e.shell.w
		d := &delivery{shell: e.shell, truth: e.truth, engine: e, worker: w, claims: w.claimed, running: true, since: world.at, pace: w.pace}
		d.pace.next = 0
		w.call = d
		e.calls = append(e.calls, d)
		world.check.handlerEntered(d)
	}
	e.notify()
	e.left()
	e.offer()
	return w.call != nil
}

// settle settles what the worker had.
func (e *engine) settle(w *worker) {
	e.settleLocked(w)
	e.notify()
	e.left()
	e.offer()
}

// settleLocked gives each claimed record its verdict.
func (e *engine) settleLocked(w *worker) {
	d := w.call
	if d == nil {
		return
	}
	w.call, w.pace = nil, d.pace
	d.running = false
	e.calls = slices.DeleteFunc(e.calls, func(c *delivery) bool { return c == d })
	world := e.shell.w
	world.check.handlerExited(d)
	switch took := world.at - d.since; {
	case took > int64(laneClaimSlow):
		e.most = 1
	case took < int64(laneClaimFast):
		e.most = min(2*e.most, laneClaimMost)
	}
	if e.ended {
		world.stats.Stale += d.low
		for i := range d.low {
			if world.mutant == MutantOldEngine && world.script.Handler != HandleAsync {
				e.countedInNew(d.claims[i].Seq)
			}
		}
		return
	}
	for i := range d.claims {
		seq := d.claims[i].Seq
		switch {
		case world.script.Handler == HandleAsync && i < d.low: // its acknowledgment comes by itself
		case i < d.low, slices.Contains(d.taken, seq):
			e.done(seq)
		case d.failed && !d.returns && (i == d.low || world.script.Handler == HandleBatch):
			e.fail(seq)
		default:
			if e.lanes.Return(seq) {
				e.report(seq)
			}
		}
	}
}

// settleOne is an acknowledgment, or a refusal, of one record of an asynchronous handler.
func (e *engine) settleOne(seq uint64, failed bool) {
	if e.ended {
		e.shell.w.stats.Stale++
		if e.shell.w.mutant == MutantOldEngine && !failed {
			e.countedInNew(seq)
		}
		return
	}
	if failed {
		e.fail(seq)
	} else {
		e.done(seq)
	}
	e.notify()
	e.offer()
}

// done finishes a record.
func (e *engine) done(seq uint64) {
	if e.lanes.Done(seq) {
		e.fresh++
		e.refused = slices.DeleteFunc(e.refused, func(r uint64) bool { return r == seq })
		e.report(seq)
	}
}

// fail notes a record's failure: its lane waits for another try once all that was claimed of it is settled.
func (e *engine) fail(seq uint64) {
	if e.shell.w.mutant == MutantSkipFailed {
		e.done(seq)
		return
	}
	if e.lanes.Fail(seq) {
		e.refused = append(e.refused, seq)
		e.report(seq)
	}
}

// report tells the actor of a lane that is parked now.
func (e *engine) report(seq uint64) {
	if len(e.refused) == 0 {
		return
	}
	head, parked, ok := e.lanes.Head(seq)
	if !ok || !parked {
		return
	}
	e.refused = slices.DeleteFunc(e.refused, func(r uint64) bool { return r == head })
	e.failures = append(e.failures, head)
}

// countedInNew is a mutant: what was acknowledged under an engine that has ended is looked up in the partition's present one.
func (e *engine) countedInNew(seq uint64) {
	if v := e.shell.process.group.parts[e.shell.part]; v != nil && v.shell.engine != nil && v.shell.engine != e {
		v.shell.engine.done(seq)
		v.shell.engine.notify()
	}
}
