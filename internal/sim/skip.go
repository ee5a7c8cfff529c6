package sim

import (
	"slices"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// skipWanted is Consumer.Skip at a partition: of the first record that holds the commits up, of one further on among those that
// are not finished, or of what there is nothing to skip at.
func (s *partitionShell) skipWanted(which int) {
	if !s.w.faulty || s.machine.State() >= rebalance.PartitionRevoking || s.tracker == nil || s.sought {
		return
	}
	s.collect()
	s.offer()
	offset, open := s.tracker.FirstUnacked()
	for ; open && which > 0; which-- {
		next, more := s.tracker.NextUnacked(offset + 1)
		if !more {
			break
		}
		offset = next
	}
	if !open {
		offset = s.tracker.Position() - int64(which)
	}
	s.skip(offset)
	if next, more := s.tracker.NextUnacked(offset + 1); more && open && s.w.mutant == MutantSkipsTwo {
		s.takeOut(next)
		s.tracker.Ack(next)
		s.offer()
	}
}

// skip finishes a record without its handler.
func (s *partitionShell) skip(offset int64) {
	standing := s.tracker.Look(offset)
	found := standing == commit.StandsOpen && s.takeOut(offset)
	s.w.check.skips(s, offset, standing, found)
	if !found {
		return
	}
	s.acknowledge(offset)
	s.collect()
	if s.engine != nil {
		s.retryAlarm()
		if !s.busy && s.engine.working() {
			s.busy = true
			s.feed(rebalance.DeliveryStarted{})
		}
	} else if d := s.delivery; d != nil && s.w.script.AnyOrder && d.running && d.open == 0 {
		s.process.handlers.exit(d)
		s.delivered(d)
		return
	}
	s.offer()
	s.pump()
}

// takeOut takes a record out of what the handler has, or of what waits for it.
func (s *partitionShell) takeOut(offset int64) bool {
	if s.w.mutant == MutantSkippedStays {
		return true
	}
	if s.engine != nil {
		return s.takeOutOfOpen(offset) || s.engine.skip(offset)
	}
	at := func(r kafka.Record) bool { return r.Offset == offset }
	if d := s.delivery; d != nil && !d.left {
		if i := slices.IndexFunc(d.records, at); i >= 0 {
			s.skipAtWork(d, i)
			return true
		}
	}
	i := slices.IndexFunc(s.again, at)
	if i < 0 {
		return false
	}
	s.again = slices.Delete(slices.Clone(s.again), i, i+1)
	if (i == 0 || s.w.script.AnyOrder) && s.backoff.set {
		s.backoff.set, s.up, s.attempt = false, true, 1
	}
	return true
}

// skipAtWork gives a record of the outstanding delivery its verdict. The context ends if the handler is at work on it; nothing
// further of the delivery begins, and the rest comes again.
func (s *partitionShell) skipAtWork(d *delivery, i int) {
	d.cut, d.halted = true, true
	if s.w.script.AnyOrder {
		if !d.acked[i] {
			d.acked[i] = true
			d.open--
		}
	} else if d.running && !d.held && d.current == i {
		s.process.handlers.cancel(d)
	}
	s.haltRunner(d)
}

// takeOutOfOpen gives a record that the user's actor holds its verdict.
func (s *partitionShell) takeOutOfOpen(offset int64) bool {
	for _, d := range s.open {
		for i := range d.claims {
			if d.claims[i].Record.Offset != offset || d.acked[i] {
				continue
			}
			d.acked[i] = true
			s.engine.settleOne(d.claims[i].Seq, false)
			if d.open--; d.open == 0 {
				s.w.post(s.box, message{kind: messageHanded, payload: d})
			}
			return true
		}
	}
	return false
}

// skip finishes a record in the place of its handler. A lane whose call is at work on it goes on when that has returned.
func (e *engine) skip(offset int64) bool {
	for _, d := range e.calls { // what the calls that run have finished of their claims
		for i := range d.low {
			if e.shell.w.script.Handler == HandleRecord {
				e.done(d.claims[i].Seq)
			}
		}
	}
	found, ok := e.lanes.ByOffset(offset)
	if !ok || e.ended {
		return false
	}
	if found.State == buffer.LaneClaimed {
		e.skipClaimed(found.Seq)
	} else if e.lanes.Skip(found.Seq) {
		e.refused = slices.DeleteFunc(e.refused, func(seq uint64) bool { return seq == found.Seq })
		e.fresh++
	}
	e.active = true
	e.notify()
	e.offer()
	return true
}

// skipClaimed finishes a record that a call, or an asynchronous handler, has.
func (e *engine) skipClaimed(seq uint64) {
	for _, d := range e.calls {
		i := slices.IndexFunc(d.claims, func(c buffer.Claimed) bool { return c.Seq == seq })
		if i < d.low {
			continue // of another call, or one for it has returned
		}
		d.taken = append(d.taken, seq)
		d.cut = true
		if at := e.shell.w.script.Handler; !d.held && (at == HandleBatch || at == HandleRecord && i == d.low) {
			d.returns = true
			e.shell.process.handlers.cancel(d)
		}
		return
	}
	e.done(seq)
}
