package sim

import (
	"slices"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

// worker is a goroutine of actors/pool.go: it serves one partition after the other while there is work.
type worker struct {
	engine  *engine
	claimed []buffer.Claimed
	// call is the claim that is not settled.
	call *delivery
	pace pacer
}

// handle is one record that an asynchronous handler has not acknowledged.
type handle struct {
	engine  *engine
	claim   *delivery
	at      int
	seq     uint64
	record  *kafka.Record
	settled bool
}

// offer puts a partition with work into the line.
func (p *handlerPool) offer(e *engine) {
	if e.queued {
		return
	}
	e.queued = true
	p.line = append(p.line, e)
	if p.workers < p.w.script.Workers {
		p.workers++
		p.w.post(p.box, message{kind: messageWorker, payload: &worker{}})
	}
}

// serve gives partitions their turns until a handler is inside one, or nobody has work.
func (p *handlerPool) serve(w *worker) {
	for {
		if w.engine == nil {
			if len(p.line) == 0 {
				p.workers--
				return
			}
			w.engine = p.pick()
		}
		if w.engine.take(w) {
			p.work(w.call)
			return
		}
		w.engine = nil
	}
}

// pick takes the partition with the fewest calls running out of the line, of several the one that has waited longest.
func (p *handlerPool) pick() *engine {
	best := 0
	for i, e := range p.line {
		if len(e.calls) < len(p.line[best].calls) {
			best = i
		}
	}
	e := p.line[best]
	p.line = slices.Delete(p.line, best, best+1)
	e.queued = false
	return e
}

// returned settles a call when another partition waits for its turn, and goes on.
func (p *handlerPool) returned(d *delivery) {
	w, waiting := d.worker, len(p.line)
	if waiting > 1 || waiting == 1 && !w.engine.queued {
		w.engine.settle(w)
		w.engine = nil
	}
	p.serve(w)
}

// work calls the user's function over what is claimed and not begun.
func (p *handlerPool) work(d *delivery) {
	for d.low < len(d.claims) {
		if (d.held || d.pace.due(d.low, p.w.at)) && !p.process.session.hold(d) {
			return
		}
		if p.haltedAt(d) {
			break
		}
		switch p.w.script.Handler {
		case HandleBatch:
			for i := range d.claims {
				p.w.check.recordStarted(d, i)
			}
			p.later(d, 0, p.w.workTime(d))
			return
		case HandleRecord:
			d.current = d.low
			p.w.check.recordStarted(d, d.low)
			p.later(d, d.low, p.w.workTime(d))
			return
		case HandleAsync:
			p.w.check.recordStarted(d, d.low)
			c := &d.claims[d.low]
			p.acknowledgeLater(&handle{engine: d.engine, claim: d, seq: c.Seq, record: c.Record})
			d.low++
		case HandleActor:
		}
	}
	p.returned(d)
}

// haltedAt reports whether the next record may not begin.
func (p *handlerPool) haltedAt(d *delivery) bool {
	if p.w.mutant == MutantPauseLetsNext && d.low > 0 && !d.engine.stopped {
		return false
	}
	return d.cut || d.engine.halted()
}

// worked is the end of what the user's function did with one record, or with a batch.
func (p *handlerPool) worked(d *delivery) {
	if d.fails || p.w.faulty && p.w.rng.IntN(100) < p.w.script.FailPercent {
		p.w.check.put(d)
		d.failed = true
		p.returned(d)
		return
	}
	from, to := d.low, d.low+1
	if p.w.script.Handler == HandleBatch {
		to = len(d.claims)
	}
	for i := from; i < to; i++ {
		p.w.check.acked(d, i)
	}
	d.low = to
	p.work(d)
}

// acknowledgeLater lets an asynchronous handler acknowledge a record, in its own time; some do so twice.
func (p *handlerPool) acknowledgeLater(h *handle) {
	wait := int64(p.w.workTime(h.claim))
	p.w.timeline.push(p.w.at+wait, eventPost, 0, h)
	if p.w.extra.IntN(8) == 0 {
		p.w.timeline.push(p.w.at+wait+p.w.extra.Int64N(int64(p.w.script.Work)+1), eventPost, 0, h)
	}
}

// acknowledges settles a record of an asynchronous handler.
func (p *handlerPool) acknowledges(h *handle) {
	if h.settled {
		return
	}
	if p.w.script.Handler == HandleActor {
		p.actorSettles(h)
		return
	}
	h.settled = true
	fails := p.w.faulty && p.w.rng.IntN(100) < p.w.script.FailPercent
	p.w.check.settled(h.claim, h.record.Offset, !fails, h.engine.ended)
	if fails && p.w.mutant == MutantUnparkedEarly && !h.engine.halted() && !h.engine.ended {
		p.again(h)
		return
	}
	h.engine.settleOne(h.seq, fails)
}

// again is a mutant: a record that failed is tried again at once, whatever else of its lane is out.
func (p *handlerPool) again(h *handle) {
	d := &delivery{shell: h.engine.shell, truth: h.engine.truth, engine: h.engine, claims: []buffer.Claimed{{Seq: h.seq, Record: h.record, Attempt: 2}}}
	p.w.check.recordStarted(d, 0)
	p.acknowledgeLater(&handle{engine: h.engine, claim: d, seq: h.seq, record: h.record})
}
