package sim

import (
	"time"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// delivery is actors/delivery.go: records handed to a handler at once.
type delivery struct {
	shell *partitionShell
	// truth is that of the run of positions that the records belong to.
	truth   *truth
	records []kafka.Record
	// attempt is 1 for the first time.
	attempt int
	// low is the number of leading records done; acked has one entry for each, for handlers that acknowledge in any order,
	// failed those refused; open counts the records without a verdict.
	low   int
	acked []bool
	nacks int
	open  int
	// halted: take no further record. canceled: the context ended. ended: acknowledgments are stale.
	halted, canceled, ended bool
	// running is true while the user's function is inside, current what it works on.
	running bool
	current int
	// stuck handlers do not look at their context.
	stuck bool
	step  uint64
	fails bool
	// held: the handler's goroutine waits until the session goes on; lost, for a mutant: and it has lapsed meanwhile.
	held, lost bool
	pace       pacer
	// suspended: take no further record, the user has paused.
	suspended bool
	// left: the position was sought elsewhere. cut: a record of it was skipped, so that nothing further begins. taken are the
	// records of an engine's call that were skipped, returns says that the others come again whatever the call says of them.
	left, cut, returns bool
	taken              []uint64

	// engine, worker and claims are those of a call under the key order or without an order; low is how many of the claims
	// are done, or begun where the handler is asynchronous, since when the call runs, failed what it ended with.
	engine *engine
	worker *worker
	claims []buffer.Claimed
	since  int64
	failed bool
}

// offset and tries describe one record of a delivery.
func (d *delivery) offset(i int) int64 {
	if d.engine != nil {
		return d.claims[i].Record.Offset
	}
	return d.records[i].Offset
}

func (d *delivery) tries(i int) int {
	if d.engine != nil {
		return d.claims[i].Attempt
	}
	return d.attempt
}

// over reports whether what is acknowledged through the delivery does not count.
func (d *delivery) over() bool { return d.ended || d.left || d.engine != nil && d.engine.ended }

// handlerPool is the goroutines that user functions run in.
type handlerPool struct {
	w       *World
	process *process
	box     *mailbox
	// workers is how many goroutines serve the partitions in line (actors/pool.go).
	workers int
	line    []*engine
	// seats are the deliveries that users' actors hold, standing those that wait for one.
	seats    int
	standing []*mailbox
}

// deliverNext gives the handler its next records: those that come again first, then new ones.
func (s *partitionShell) deliverNext() {
	if !s.machine.CanDeliver() || s.lost || s.tracker == nil || s.sought {
		return
	}
	if s.engine != nil {
		s.fillEngine()
		return
	}
	if s.delivery != nil || !s.up || s.backoff.set || s.paused {
		return
	}
	s.window.Update(s.tracker.InTransit())
	records, attempt := s.again, s.attempt
	if len(records) == 0 {
		limit := min(s.w.script.MaxRecords, s.window.Room(s.tracker.InTransit()))
		if s.w.mutant == MutantNoWindow {
			limit = s.w.script.MaxRecords
		}
		records, attempt = s.takeFresh(limit), 1
	}
	s.w.check.inTransit(s)
	if len(records) == 0 {
		return
	}
	s.again, s.attempt = records, attempt // until the session is known to go on
	if !s.process.session.enter(s.box) {
		return
	}
	s.again = nil
	d := &delivery{shell: s, truth: s.truth, records: records, attempt: attempt, open: len(records)}
	if s.w.script.AnyOrder {
		d.acked = make([]bool, len(records))
	}
	s.delivery = d
	s.feed(rebalance.DeliveryStarted{})
	s.run(d)
}

// run lets the user's function begin, when the gate is free.
func (s *partitionShell) run(d *delivery) {
	if s.stopped {
		return
	}
	if !s.process.enterGate(s.part, s.epoch, s) {
		s.runner = d
		return
	}
	pool := s.process.handlers
	d.running = true
	s.w.check.handlerEntered(d)
	if s.w.script.AnyOrder {
		pool.all(d)
		return
	}
	pool.next(d)
}

// all begins every record of a handler that settles them in any order.
func (p *handlerPool) all(d *delivery) {
	if !p.process.session.hold(d) {
		return
	}
	if d.halted || d.suspended {
		p.leave(d)
		return
	}
	for i := range d.records {
		p.w.check.recordStarted(d, i)
		p.later(d, i, p.w.workTime(d))
	}
}

// wakeHeld lets a handler's goroutine that waits for the session look again: its context ended.
func (p *handlerPool) wakeHeld(d *delivery) {
	if d.running && d.held {
		p.w.post(p.box, message{kind: messageHandlerGoesOn, payload: d})
	}
}

func (p *handlerPool) goesOn(d *delivery) {
	switch {
	case !d.running || !d.held:
	case d.engine != nil:
		p.work(d)
	case p.w.script.AnyOrder:
		p.all(d)
	default:
		p.next(d)
	}
}

// workTime is how long one record takes.
func (w *World) workTime(d *delivery) time.Duration {
	if w.faulty && w.rng.IntN(1000) < w.script.StuckPermille {
		d.stuck = true
		return w.script.Stuck
	}
	if w.script.Work == 0 {
		return 0
	}
	return time.Duration(w.rng.Int64N(int64(w.script.Work)))
}

func (p *handlerPool) later(d *delivery, index int, wait time.Duration) {
	p.w.timeline.push(p.w.at+int64(wait), eventPost, int64(index)|int64(d.step)<<32, d)
}

// next begins the next record of an in-order handler, or returns.
func (p *handlerPool) next(d *delivery) {
	if d.current < len(d.records) && (d.held || d.pace.due(d.current, p.w.at)) && !p.process.session.hold(d) {
		return
	}
	if d.halted || d.suspended || d.current == len(d.records) {
		p.leave(d)
		return
	}
	p.w.check.recordStarted(d, d.current)
	p.later(d, d.current, p.w.workTime(d))
}

// cancel ends the context: a handler that looks at it stops at once.
func (p *handlerPool) cancel(d *delivery) {
	if d.held {
		p.wakeHeld(d)
		return
	}
	if !d.running || d.stuck || p.w.script.AnyOrder || d.engine != nil && p.w.script.Handler >= HandleAsync {
		return
	}
	d.step++
	d.fails = true
	p.w.timeline.push(p.w.at, eventPost, int64(d.current)|int64(d.step)<<32, d)
}

func (p *handlerPool) receive(m *message) {
	switch m.kind { //nolint:exhaustive // the other messages are not for handlers
	case messageHandlerGoesOn:
		p.goesOn(m.payload.(*delivery))
	case messageWorker:
		p.serve(m.payload.(*worker))
	case messageAcknowledges:
		p.acknowledges(m.payload.(*handle))
	default:
		p.step(m)
	}
}

// step is the end of what the user's function did with one record.
func (p *handlerPool) step(m *message) {
	d, index, step := m.payload.(*delivery), int(m.part), m.seq
	if !d.running || step != d.step {
		return
	}
	if d.engine != nil {
		p.worked(d)
		return
	}
	fails := d.fails || p.w.faulty && p.w.rng.IntN(100) < p.w.script.FailPercent
	if d.ended {
		p.w.stats.Stale++
	}
	if p.w.script.AnyOrder {
		p.verdict(d, index, fails)
		return
	}
	if fails {
		if p.w.mutant != MutantSkipFailed {
			p.exit(d)
			p.w.post(d.shell.box, message{kind: messageHandlerFailed, payload: d})
			return
		}
	} else {
		p.w.check.acked(d, index)
	}
	d.low, d.current = index+1, index+1
	p.stale(d, index)
	if p.w.rng.IntN(2) == 0 {
		p.w.post(d.shell.box, message{kind: messageAck, payload: d})
	}
	p.next(d)
}

// stale is a mutant: an acknowledgment of an old epoch is looked up by partition alone.
func (p *handlerPool) stale(d *delivery, index int) {
	if p.w.mutant != MutantStaleEpoch || !d.ended {
		return
	}
	if v := p.process.group.parts[d.shell.part]; v != nil && v.shell.tracker != nil && v.shell != d.shell {
		v.shell.tracker.Ack(d.records[index].Offset)
	}
}

// verdict is an acknowledgment or a refusal of one record, of a handler that settles them in any order.
func (p *handlerPool) verdict(d *delivery, index int, fails bool) {
	if d.acked[index] {
		return // it was skipped meanwhile
	}
	d.open--
	if fails && p.w.mutant != MutantSkipFailed {
		d.nacks++
	} else {
		d.acked[index] = true
		d.low = index + 1
		if !fails {
			p.w.check.acked(d, index)
		}
	}
	p.stale(d, index)
	if d.open > 0 {
		if p.w.rng.IntN(2) == 0 {
			p.w.post(d.shell.box, message{kind: messageAck, payload: d})
		}
		return
	}
	p.exit(d)
	if d.nacks > 0 {
		p.w.post(d.shell.box, message{kind: messageHandlerFailed, payload: d})
		return
	}
	p.w.post(d.shell.box, message{kind: messageDelivered, payload: d})
}

// leave returns from the user's function without a failure.
func (p *handlerPool) leave(d *delivery) {
	p.exit(d)
	p.w.post(d.shell.box, message{kind: messageDelivered, payload: d})
}

// exit gives the places back.
func (p *handlerPool) exit(d *delivery) {
	d.running = false
	p.w.check.handlerExited(d)
	p.process.leaveGate(d.shell.part, d.shell.epoch)
}

// acknowledged takes over what a delivery reports.
func (s *partitionShell) acknowledged(d *delivery) {
	if d != s.delivery {
		s.w.stats.Stale++
		return
	}
	s.collect()
	s.offer()
}

// delivered ends a delivery without a failure. When the flow was stopped meanwhile, some records may be left.
func (s *partitionShell) delivered(d *delivery) {
	if d != s.delivery {
		s.w.stats.Stale++
		return
	}
	if d.left {
		s.ended()
		s.pump()
		return
	}
	s.collect()
	s.offer()
	if (d.suspended || d.cut) && s.machine.CanDeliver() {
		s.keep(d)
		if s.attempt = 1; len(s.again) == len(d.records) {
			s.attempt = d.attempt
		}
	}
	s.ended()
	s.pump()
}

func (s *partitionShell) ended() {
	d := s.delivery
	s.delivery = nil
	d.ended = true
	s.rewindNow()
	s.feed(rebalance.DeliveryEnded{})
	s.pausedNow()
}

// keep has the records that were not acknowledged come again.
func (s *partitionShell) keep(d *delivery) {
	s.again, s.attempt = nil, d.attempt+1
	for i := range d.records {
		if next, open := s.tracker.NextUnacked(d.records[i].Offset); open && next == d.records[i].Offset {
			s.again = append(s.again, d.records[i])
		}
	}
}

// handlerFailed keeps the records that were not acknowledged for another attempt, after a while.
func (s *partitionShell) handlerFailed(d *delivery) {
	if d != s.delivery {
		s.w.stats.Stale++
		return
	}
	if d.left || d.cut { // it failed because its context ended, or at the last moment
		s.delivered(d)
		return
	}
	s.collect()
	s.keep(d)
	s.offer()
	if len(s.again) > 0 && s.machine.CanDeliver() {
		s.w.setAlarmIn(&s.backoff, backoffInitial)
		s.up = false
	}
	s.ended()
	s.pump()
}
