package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// errTopicRecreated is why nothing is committed for a partition of a topic that was made anew.
var errTopicRecreated = errors.New("the topic was deleted and made anew")

// positionSide is the partition's side of a position that is set back, as in actors/partition_rewind.go.
type positionSide struct {
	// topicID is the incarnation that is read, lastEpoch the leader epoch of what was read last.
	topicID   kafka.TopicID
	lastEpoch int32
	// orphaned is true when the topic was made anew: nothing of this ownership may be committed to it.
	orphaned bool
	// positionEpoch rises when the position is set back, rewind is where to go on after what is outstanding, nil for nowhere.
	positionEpoch uint32
	rewind        *int64
	// unproven is true when the commit was of another incarnation, until a fetch has shown that ours is the present one.
	unproven bool
	// line is the log that the position was found in, for the checker.
	line *partitionLog
}

// truncated goes back to where the logs agree (KIP-320).
func (s *partitionShell) truncated(c *call) {
	s.w.stats.Truncated++
	s.lastEpoch = c.diverging.epoch
	if s.w.mutant == MutantWindowKept {
		// What was delivered and fetched stays as it is.
		s.line = c.line
		s.fetchFrom = min(c.diverging.end, s.fetchFrom)
		s.surplus.Drop()
		s.surplus, s.chunks = buffer.NewSurplus[chunk](s.fetchFrom, nil), 0
		s.pump()
		return
	}
	s.reposition(min(c.diverging.end, s.fetchFrom), c.line)
}

// reposition goes on at another offset than expected, in that log.
func (s *partitionShell) reposition(offset int64, line *partitionLog) {
	if s.tracker != nil && offset < s.fetchFrom {
		offset = min(offset, s.tracker.Position()) // what was fetched and not delivered is asked for again
	}
	s.line = line
	if s.machine.State() == rebalance.PartitionAssigning {
		s.feed(rebalance.PositionKnown{Offset: offset})
		return
	}
	if offset >= s.fetchFrom && !s.surplus.Empty() {
		s.fetchFrom = offset // what was fetched before the log lost it is delivered all the same
		s.pump()
		return
	}
	s.surplus.Drop()
	s.chunks = 0
	if offset >= s.tracker.Position() {
		s.tracker.AdvanceIn(offset, s.lastEpoch)
		s.w.check.skipped(s, offset, line)
		s.restart(offset)
		s.offer()
		s.pump()
		return
	}
	s.rewind = &offset
	s.forgetPlaced(offset)
	s.rewound()
	s.truth.runs, s.truth.lowest = s.positionEpoch, min(s.truth.lowest, offset)
	s.offer()
	if s.engine != nil {
		s.engine.stop()
	}
	s.rewindNow()
	s.pump()
}

// rewindNow starts a new run of positions below the present one, once nothing is outstanding.
func (s *partitionShell) rewindNow() {
	if s.rewind == nil || !s.machine.CanDeliver() || s.delivery != nil || s.busy {
		return
	}
	offset := min(*s.rewind, s.tracker.Committable())
	if s.w.mutant == MutantFailedForgotten {
		offset = *s.rewind
	}
	s.rewind, s.again = nil, nil
	s.before = commit.OffsetMap{}
	s.endEngine()
	s.tracker = commit.NewTracker(offset)
	s.tracker.StartEpoch(s.lastEpoch)
	s.forgetPlaced(offset)
	s.rewound()
	s.truth = s.w.check.rewinds(s, offset)
	s.startEngine()
	s.restart(offset)
	s.offer()
}

// rewound begins a new position epoch: lower offsets may be committed again.
func (s *partitionShell) rewound() {
	s.positionEpoch++
	s.offered = kafka.NoOffset
}

// begin begins the truth of a run of positions, which starts at an offset of the log that it was found in.
func (c *checker) begin(s *partitionShell, offset int64) *truth {
	line := s.line
	for line.successor != nil && offset <= line.cut {
		line = line.successor
	}
	first := line.index(offset)
	t := &truth{
		part: s.part, epoch: s.epoch, first: first, next: first, floor: first, stored: kafka.NoOffset, log: line,
		run: s.positionEpoch, runs: s.positionEpoch, order: c.commits, begun: offset, lowest: offset,
	}
	s.process.truths = append(s.process.truths, t)
	return t
}

// truthOf is what happened in the run of positions that an offset belongs to.
func (p *process) truthOf(offset *commit.Offset) *truth {
	part := int(offset.TopicPartition.Partition)
	for _, t := range p.truths {
		if t.part == part && t.epoch == offset.Epoch && t.run <= offset.PositionEpoch && offset.PositionEpoch <= t.runs {
			return t
		}
	}
	return nil
}

// taken checks that records of the log that they came from may follow what was delivered before.
func (c *checker) taken(s *partitionShell, k *chunk) {
	if !s.truth.follow(k.line) {
		c.w.violate("LOG", fmt.Sprintf("%s epoch %d: records from %d on are of a log that parts with what was delivered below that", tpOf(s.part),
			s.epoch, k.from))
		return
	}
	c.skipped(s, k.from, k.line)
}

// offers checks that nothing is offered above where the log was cut off, once the partition knows.
func (c *checker) offers(s *partitionShell, offset int64) {
	if s.rewind != nil && offset > *s.rewind {
		c.w.violate("LOG", fmt.Sprintf("%s epoch %d: %d offered for commit, the log has lost what is above %d", tpOf(s.part), s.epoch, offset, *s.rewind))
	}
	if s.orphaned {
		c.w.violate("LOG", fmt.Sprintf("%s epoch %d: %d offered for commit, the topic was made anew", tpOf(s.part), s.epoch, offset))
	}
}

// gone reports whether a run of positions belongs to a log that has lost its end, or to a topic that is gone: what the
// coordinator has of the partition says nothing of it.
func (c *checker) gone(t *truth) bool {
	return t.log != c.w.logs[t.part] || t.part >= c.w.topic.count
}

// diverging reports whether a log loses its end under those who read it.
func (s *Script) diverging() bool {
	return slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Kind == FaultDiverge })
}
