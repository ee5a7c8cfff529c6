package sim

import (
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// seekKind is where a user wants to go on.
type seekKind uint8

// The kinds of seeks. Back and forward are by records, from the first one that is not finished, to an offset that the user knows;
// the others have to be looked up, and nothing is delivered meanwhile.
const (
	seekBack seekKind = iota
	seekForward
	seekEarliest
	seekLatest
)

// seekSide is the partition's side of Seek (actors/partition_seek.go).
type seekSide struct {
	// sought is true while the old position is given up and the new one not known: the tracker stands for nothing.
	sought bool
	// left is the engine of the position before, while calls of it run.
	left *engine
}

// seekWanted gives the old position up, and goes on at the new one as soon as its offset is known.
func (s *partitionShell) seekWanted(kind seekKind, by int) {
	if !s.w.faulty || s.w.script.Strategy == StrategyManual || !s.machine.CanDeliver() || s.tracker == nil || s.orphaned || s.unproven {
		return
	}
	l, from := s.truth.log, s.tracker.Committable()
	s.leavePosition()
	switch kind {
	case seekBack:
		s.seekTo(l.limit(max(l.index(from)-by, l.index(l.start))), l)
	case seekForward:
		s.seekTo(l.limit(min(l.index(from)+by, len(l.records))), l)
	case seekEarliest, seekLatest:
		s.sought, s.reset, s.latest = true, true, kind == seekLatest
		s.lookUp()
	}
}

// leavePosition makes everything of the present position stale. A call that runs is waited for before the next begins.
func (s *partitionShell) leavePosition() {
	s.sought, s.reset, s.latest, s.rewind, s.failures = false, false, false, nil, 0
	s.intake.set, s.backoff.set = false, false
	s.before, s.held, s.userAt = commit.OffsetMap{}, nil, kafka.NoOffset
	s.rewound()
	s.w.post(s.process.committer.box, message{
		kind: messagePositionLeft, part: int32(s.part), epoch: uint64(s.epoch), seq: uint64(s.positionEpoch),
	})
	s.tracker = commit.NewTracker(s.tracker.Committable())
	s.window.Update(0)
	if s.w.mutant != MutantFetchedKept {
		s.surplus.Drop()
		s.restart(kafka.NoOffset)
	}
	s.again, s.attempt, s.retries, s.full = nil, 1, nil, false
	if s.engine != nil {
		s.leaveEngine()
		return
	}
	s.up = true
	s.leaveDelivery()
}

// leaveDelivery makes the outstanding delivery stale. One that a function works on is over when that has returned; a user's
// actor gets the next one in its turn.
func (s *partitionShell) leaveDelivery() {
	d := s.delivery
	if d == nil {
		return
	}
	d.left, d.halted, d.canceled = true, true, true
	s.process.handlers.cancel(d)
	if !s.w.script.AnyOrder {
		s.haltRunner(d)
		return
	}
	if s.runner == d {
		s.runner = nil
	}
	s.ended()
}

// haltRunner ends a delivery that waits for the gate, so that nobody waits for it in turn.
func (s *partitionShell) haltRunner(d *delivery) {
	if s.runner == d {
		s.runner = nil
		s.w.post(s.box, message{kind: messageDelivered, payload: d})
	}
}

// leaveEngine makes the engine stale and starts another, whose calls begin when those of the old one have returned.
func (s *partitionShell) leaveEngine() {
	if s.gated && s.w.script.Handler != HandleActor {
		s.left = s.engine
	}
	s.w.check.leftBehind(s)
	s.endEngine()
	s.startEngine()
	s.notBusy()
}

// engineLeft is told when the last call of an engine that was left has returned.
func (s *partitionShell) engineLeft(e *engine) {
	if e != s.left {
		s.w.stats.Stale++
		return
	}
	s.left = nil
	s.notBusy()
	s.rewindNow()
	s.pump()
	s.pausedNow()
}

// notBusy tells the machine that no handler runs any more, if that is so.
func (s *partitionShell) notBusy() {
	if s.busy && s.left == nil && !s.engine.working() {
		s.busy = false
		s.feed(rebalance.DeliveryEnded{})
	}
}

// soughtFound is the answer to the look-up of a seek. One that is of another topic than the one that is read is asked again.
func (s *partitionShell) soughtFound(c *call) {
	if c.line.topicID != s.topicID {
		s.reset = true
		s.retryIntake()
		return
	}
	s.seekTo(c.offset, c.line)
}

// seekTo goes on at an offset of a log.
func (s *partitionShell) seekTo(offset int64, l *partitionLog) {
	old := s.tracker.Committable()
	s.sought, s.latest, s.line, s.lastEpoch = false, false, l, kafka.NoLeaderEpoch
	for _, e := range l.epochs {
		if e.from < offset {
			s.lastEpoch = e.epoch
		}
	}
	s.tracker = commit.NewTracker(offset)
	s.tracker.StartEpoch(s.lastEpoch)
	s.truth = s.w.check.seeks(s, offset)
	if s.engine != nil {
		s.engine.truth = s.truth
	}
	if s.w.mutant != MutantFetchedKept {
		s.restart(offset)
	}
	if s.w.mutant == MutantSeeksTooFar {
		after := l.limit(l.index(offset + 1))
		s.tracker.Advance(after)
		s.restart(after)
	}
	if s.w.mutant == MutantSeekCommitsOld && old < offset {
		s.offered = offset
		s.w.post(s.process.committer.box, message{kind: messageOffered, payload: &commit.Offset{
			TopicPartition: tpOf(s.part), Epoch: s.epoch, PositionEpoch: s.positionEpoch, Offset: old, LeaderEpoch: s.lastEpoch,
			Finished: s.finished, Metadata: s.metadata(old),
		}})
	}
	s.offer()
	s.pump()
}
