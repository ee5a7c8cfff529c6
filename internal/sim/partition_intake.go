package sim

import (
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// want asks for more records when there is room for them.
func (s *partitionShell) want() {
	if !s.machine.CanDeliver() || s.wanting != nil || s.intake.set || s.reset || s.chunks >= maxChunks {
		return
	}
	s.wanting = &call{api: apiFetch, process: s.process, box: s.box, part: s.part, epoch: s.epoch, offset: s.fetchFrom}
	s.w.send(s.wanting, s.w.script.Request)
}

// called takes the outcome of a fetch or of a look-up.
func (s *partitionShell) called(c *call) {
	if c.api == apiListOffsets {
		if !s.reset {
			return
		}
		if c.err != nil {
			s.retryIntake()
			return
		}
		s.reset, s.failures = false, 0
		s.reposition(c.offset)
		return
	}
	if c != s.wanting {
		return
	}
	s.wanting = nil
	switch {
	case !s.machine.CanDeliver():
	case c.err == nil:
		s.failures = 0
		s.surplus.Push(chunk{records: c.records, next: c.next}, len(c.records))
		s.chunks++
		s.fetchFrom = c.next
		s.pump()
	case c.err == kafka.OffsetOutOfRange:
		s.reset = true
		s.lookUp()
	default:
		s.retryIntake()
	}
}

func (s *partitionShell) lookUp() {
	s.w.send(&call{api: apiListOffsets, process: s.process, box: s.box, part: s.part}, s.w.script.Request)
}

func (s *partitionShell) retryIntake() {
	s.failures++
	s.w.setAlarmIn(&s.intake, min(backoffInitial<<min(s.failures-1, 16), backoffMax))
}

func (s *partitionShell) intakeRetry() {
	if s.reset {
		s.lookUp()
		return
	}
	s.pump()
}

// reposition goes on at another offset than expected.
func (s *partitionShell) reposition(offset int64) {
	switch s.machine.State() {
	case rebalance.PartitionAssigning:
		s.feed(rebalance.PositionKnown{Offset: offset})
		return
	case rebalance.PartitionAssigned:
	case rebalance.PartitionRevoking, rebalance.PartitionRevoked:
		return
	}
	s.surplus.Drop()
	s.chunks = 0
	if offset < s.tracker.Position() {
		offset = s.tracker.Position() // the log did not shrink; records in transit end by their acknowledgment
	}
	s.tracker.DropBelow(offset)
	s.w.check.skipped(s, offset)
	s.restart(offset)
	s.offer()
	s.pump()
}

// take returns up to limit records to deliver.
func (s *partitionShell) take(limit int) []kafka.Record {
	for limit > 0 {
		records, _, _ := s.surplus.Take(limit)
		if len(records) > 0 {
			s.w.check.machine(s.tracker.Deliver(records))
			s.tracker.Advance(s.surplus.Position())
			s.offer()
			return records
		}
		c, ok := s.surplus.Front()
		if !ok {
			return nil
		}
		s.w.check.machine(s.surplus.Decoded(c.records, c.next, len(c.records), len(c.records), nil))
		s.surplus.Finish()
		s.chunks--
		if len(c.records) == 0 {
			s.tracker.Advance(s.surplus.Position())
			s.offer()
		}
	}
	return nil
}
