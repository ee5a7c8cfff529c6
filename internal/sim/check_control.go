package sim

import (
	"fmt"
	"slices"

	"github.com/troupego/troupe/commit"
)

// seeks begins the run of positions of a seek. What the run before had not finished below it need not be handled any more as
// soon as something is stored of the new one: until then a restart begins below.
func (c *checker) seeks(s *partitionShell, offset int64) *truth {
	old := s.truth
	s.truth = c.begin(s, offset)
	same := old.floor // up to where the places of the two are of the same records
	for l := old.log; l != nil && l != s.truth.log; l = l.successor {
		same = min(same, l.kept)
	}
	s.truth.inherit(old)
	for index := same; index < s.truth.first; index++ {
		if index >= old.floor && old.log == s.truth.log && old.isAcked(index) {
			continue
		}
		s.truth.passes(index)
		c.w.stats.Passed++
	}
	if c.w.stats.Seeks++; s.truth.first > old.next {
		c.w.stats.SeeksForward++
	}
	return s.truth
}

// rewinds begins the run of positions of a log that has lost its end.
func (c *checker) rewinds(s *partitionShell, offset int64) *truth {
	t := c.begin(s, offset)
	t.inherit(s.truth)
	return t
}

// inherit takes over what the run before had passed over below where this one begins.
func (t *truth) inherit(old *truth) {
	for index := range old.passed {
		if index < t.first {
			t.passes(index)
		}
	}
}

func (t *truth) passes(index int) {
	if t.passed == nil {
		t.passed = map[int]struct{}{}
	}
	t.passed[index] = struct{}{}
}

// isPlaced reports whether an offset is one that a user committed.
func (t *truth) isPlaced(offset *commit.Offset) bool {
	at, ok := t.placed[offset.PositionEpoch]
	return ok && at == offset.Offset
}

// passOver notes, when an offset is stored, that what was passed over with a right to and lies below need not be handled.
func (c *checker) passOver(t *truth, offset int64) {
	for index := range t.passed {
		if t.log.records[index].Offset < offset {
			c.passed(t, index)
		}
	}
}

// passed notes that about one record, if it was passed over.
func (c *checker) passed(t *truth, index int) {
	if _, passed := t.passed[index]; passed {
		delete(t.passed, index)
		t.log.pass(index)
	}
}

// leftBehind forgets what handlers have begun that need not return for others to begin: those that settle later, and actors.
func (c *checker) leftBehind(s *partitionShell) {
	if c.w.script.Handler >= HandleAsync {
		s.begun = nil
	}
}

// skips checks the answer to a Skip: it is granted for a record that was delivered and is not acknowledged, and for no other.
func (c *checker) skips(s *partitionShell, offset int64, standing commit.Standing, granted bool) {
	t := s.truth
	index := t.log.index(offset)
	open := index < t.next && t.log.records[index].Offset == offset && index >= t.first && !t.isAcked(index)
	if !granted {
		c.w.stats.SkipsRefused++
		if open && s.rewind == nil && !s.lost && s.machine.CanDeliver() {
			c.w.violate("SKIP", fmt.Sprintf("%s epoch %d: %d is open (%d for its tracker), and the skip is refused", tpOf(s.part), s.epoch, offset, standing))
		}
		return
	}
	if !open {
		c.w.violate("SKIP", fmt.Sprintf("%s epoch %d: %d skipped, which is not open", tpOf(s.part), s.epoch, offset))
		return
	}
	c.w.stats.Skips++
	if t.taken == nil {
		t.taken = map[int]struct{}{}
	}
	t.taken[index] = struct{}{}
	t.ack(index)
	t.passes(index)
	if c.w.script.Strategy == StrategyManual {
		c.passed(t, index) // whoever keeps the offsets has been told
	}
	if c.w.script.Handler >= HandleAsync && s.engine != nil {
		s.begun = slices.DeleteFunc(s.begun, func(b begunRecord) bool { return b.index == index })
	}
}

// places notes an offset of a user's, which begins a position epoch of its own.
func (t *truth) places(run uint32, offset int64) {
	if t.runs = run; t.placed == nil {
		t.placed = map[uint32]int64{}
	}
	t.placed[run] = offset
}

// placedStored notes that an offset of a user's is stored.
func (c *checker) placedStored(p *process, offset *commit.Offset) {
	lane := &p.committer.lanes[offset.TopicPartition.Partition]
	if at := lane.placedPart; at != nil && lane.epoch == offset.Epoch && lane.placedRun == offset.PositionEpoch && lane.placed == offset.Offset {
		at.stored = true
	}
}

// placeAnswered checks, once a call of CommitOffsets has all its answers and none is an error, that the coordinator has stored all
// of its offsets, but where something newer has taken their place.
func (c *checker) placeAnswered(call *placing, err error) {
	call.open--
	call.failed = call.failed || err != nil
	if call.open > 0 || call.failed {
		return
	}
	if len(call.parts) > 1 {
		c.w.stats.PlacedTogether++
	}
	for _, at := range call.parts {
		if at.shell == nil || !at.stored && at.shell.positionEpoch == at.run && !c.gone(at.shell.truth) {
			c.w.violate("PLACED", fmt.Sprintf("%s: a commit over %d partitions is confirmed, and this one is not stored", tpOf(at.part), len(call.parts)))
		}
	}
}

// gathered checks, when the last of a call comes to the committer in time, that the others have waited for it.
func (c *checker) gathered(call *placing) {
	if call.left > 0 || call.last.Sub(call.first) >= commit.GatherWait {
		return
	}
	for _, at := range call.parts {
		if at.sent {
			c.w.violate("PLACED", fmt.Sprintf("%s: sent before the others of its call, which came in time", tpOf(at.part)))
		}
	}
}

// together checks that what one call placed goes out in one round, if it came to the committer in time.
func (c *checker) together(committer *committerShell, round *commit.Round) {
	var calls []*placing
	for i := range round.Offsets {
		offset := &round.Offsets[i]
		lane := &committer.lanes[offset.TopicPartition.Partition]
		if lane.epoch == offset.Epoch && lane.placedPart != nil && !lane.placedPart.sent && lane.placedRun == offset.PositionEpoch && lane.placed == offset.Offset {
			lane.placedPart.sent = true
			calls = append(calls, lane.call)
		}
	}
	for _, call := range calls {
		if call.left > 0 || call.last.Sub(call.first) >= commit.GatherWait {
			continue
		}
		for _, at := range call.parts {
			if !at.arrived || at.sent {
				continue
			}
			lane := &committer.lanes[at.part]
			if lane.placedPart == at && lane.run == at.run && committer.fenced[at.part] < lane.epoch {
				c.w.violate("PLACED", fmt.Sprintf("%s: left out of the round with others of its call", tpOf(at.part)))
			}
		}
	}
}
