package sim

import (
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// want asks for more records when there is room for them.
func (s *partitionShell) want() {
	if !s.machine.CanDeliver() || s.wanting != nil || s.intake.set || s.reset || s.sought || s.rewind != nil || s.chunks >= maxChunks || !s.routed() {
		return
	}
	s.wanting = &call{
		api: apiFetch, process: s.process, box: s.box, part: s.part, epoch: s.epoch, offset: s.fetchFrom, topicID: s.topicID,
		lastEpoch: s.lastEpoch, proves: s.unproven,
	}
	s.w.send(s.wanting, s.w.script.Request)
}

// proven lets offsets be committed: a fetch has shown that the topic's id is the present one.
func (s *partitionShell) proven() {
	if s.unproven {
		s.unproven = false
		s.offer()
	}
}

// routed reports whether it is known where to read.
func (s *partitionShell) routed() bool { return !s.orphaned && s.topicID != kafka.TopicID{} }

// called takes the outcome of a fetch or of a look-up.
func (s *partitionShell) called(c *call) {
	if c.api == apiListOffsets {
		if c != s.lookup || !s.reset || s.orphaned || s.machine.State() >= rebalance.PartitionRevoking {
			return
		}
		if c.err != nil {
			s.process.group.doubtLeader(s)
			s.retryIntake()
			return
		}
		s.reset, s.failures = false, 0
		if s.sought {
			s.soughtFound(c)
			return
		}
		s.lastEpoch = c.lastEpoch
		s.reposition(c.offset, c.line)
		return
	}
	if c != s.wanting {
		return
	}
	s.wanting = nil
	switch {
	case !s.machine.CanDeliver():
	case c.err == nil && c.diverging != nil:
		s.proven()
		s.truncated(c)
	case c.err == nil && c.next == c.offset:
		s.proven()
		s.pump()
	case c.err == nil:
		s.failures = 0
		s.surplus.Push(chunk{records: c.records, next: c.next, epoch: c.lastEpoch, from: c.offset, line: c.line}, len(c.records))
		s.chunks++
		s.fetchFrom, s.lastEpoch = c.next, c.lastEpoch
		s.proven()
		s.pump()
	case c.err == kafka.OffsetOutOfRange:
		s.reset, s.latest = true, false
		s.lookUp()
	default:
		s.process.group.doubtLeader(s)
		s.retryIntake()
	}
}

func (s *partitionShell) lookUp() {
	if s.routed() {
		s.lookup = &call{api: apiListOffsets, process: s.process, box: s.box, part: s.part, latest: s.latest}
		s.w.send(s.lookup, s.w.script.Request)
	}
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

// passOver moves the position over what the log has lost at its start, once everything that was fetched before is delivered.
func (s *partitionShell) passOver() {
	if s.rewind == nil && s.fetchFrom > s.tracker.Position() {
		s.w.check.skipped(s, s.fetchFrom, s.line)
		s.tracker.AdvanceIn(s.fetchFrom, s.lastEpoch)
		s.offer()
	}
}

// take returns up to limit records to deliver.
func (s *partitionShell) take(limit int) []kafka.Record {
	for limit > 0 {
		records, _, _ := s.surplus.Take(limit)
		if len(records) > 0 {
			s.w.check.machine(s.tracker.Deliver(records))
			s.tracker.AdvanceIn(s.surplus.Position(), records[len(records)-1].LeaderEpoch)
			s.offer()
			return records
		}
		c, ok := s.surplus.Front()
		if !ok {
			s.passOver()
			return nil
		}
		s.w.check.taken(s, &c)
		s.w.check.machine(s.surplus.Decoded(c.records, c.next, len(c.records), len(c.records), nil))
		s.surplus.Finish()
		s.chunks--
		if len(c.records) == 0 {
			s.tracker.AdvanceIn(s.surplus.Position(), c.epoch)
			s.offer()
		}
	}
	return nil
}
