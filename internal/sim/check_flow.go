package sim

import (
	"fmt"
	"slices"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
)

// begunRecord is a record that an engine's handler has begun and not given its verdict on.
type begunRecord struct {
	index int
	call  *delivery
}

// laneOf is what orders a record under the key order; a nil key is a class of its own.
func laneOf(r *kafka.Record) int {
	if len(r.Key) == 0 {
		return 0
	}
	return int(r.Key[0])
}

// laneStarted checks the order and the exclusion of one lane: a record begins when every earlier one of its lane has been
// acknowledged, or was begun by the same call, and nothing else of the lane is out.
func (c *checker) laneStarted(d *delivery, index int) {
	s, t, l := d.shell, d.truth, d.truth.log
	byKey := c.w.script.Order == OrderKey
	lane := laneOf(&l.records[index])
	for _, b := range s.begun {
		if b.index == index || byKey && b.call != d && laneOf(&l.records[b.index]) == lane {
			c.w.violate("G2", fmt.Sprintf("%s epoch %d: record %d begun while %d of lane %d is out", tpOf(s.part), s.epoch, index, b.index, lane))
		}
	}
	if t.isAcked(index) {
		c.w.violate("G2", fmt.Sprintf("%s epoch %d: record %d begun again", tpOf(s.part), s.epoch, index))
	}
	for earlier := t.floor; byKey && earlier < index; earlier++ {
		if laneOf(&l.records[earlier]) != lane || t.isAcked(earlier) {
			continue
		}
		if !slices.ContainsFunc(s.begun, func(b begunRecord) bool { return b.index == earlier && b.call == d }) {
			c.w.violate("G2", fmt.Sprintf("%s epoch %d: record %d begun before %d of lane %d", tpOf(s.part), s.epoch, index, earlier, lane))
		}
	}
	if len(s.begun) > 0 {
		c.w.stats.Parallel++
	}
	s.begun = append(s.begun, begunRecord{index: index, call: d})
}

// put ends what a call has begun without a verdict.
func (c *checker) put(d *delivery) {
	d.shell.begun = slices.DeleteFunc(d.shell.begun, func(b begunRecord) bool { return b.call == d })
}

// settled is called when an asynchronous handler, or an actor, gives its verdict on a record.
func (c *checker) settled(d *delivery, offset int64, acked, stale bool) {
	s := d.shell
	index := d.truth.log.index(offset)
	s.begun = slices.DeleteFunc(s.begun, func(b begunRecord) bool { return b.index == index && b.call == d })
	if acked {
		c.finished(d.truth, index, stale)
	}
}

// finished notes that user code has acknowledged a record.
func (c *checker) finished(t *truth, index int, stale bool) {
	t.log.handle(index)
	if !stale {
		t.ack(index)
	}
}

// mapSkipped checks that a record that the offset map calls finished was acknowledged by somebody.
func (c *checker) mapSkipped(s *partitionShell, offset int64) {
	index := s.truth.log.index(offset)
	if !s.truth.log.done(index) {
		c.w.violate("G1", fmt.Sprintf("%s epoch %d: %d skipped as finished, and nobody ever acknowledged it", tpOf(s.part), s.epoch, offset))
	}
	c.w.stats.Skipped++
	s.truth.ack(index)
}

// storedMap checks the offset map beside an offset that is stored: every record in it was acknowledged under its epoch, or
// by whoever wrote the map that the epoch started with.
func (c *checker) storedMap(offset *commit.Offset, t *truth) {
	l := t.log
	m, err := commit.ParseMetadata(offset.Metadata, offset.Offset)
	if err != nil {
		c.w.violate("STATE", err.Error())
		return
	}
	if !m.Map.Empty() {
		c.w.stats.Maps++
	}
	for i := range m.Map.Runs() {
		first, last := m.Map.Run(i)
		for index := l.index(first); index < len(l.records) && l.records[index].Offset <= last; index++ {
			c.passed(t, index)
			if l.records[index].Offset >= l.start && !l.done(index) {
				c.w.violate("G3", fmt.Sprintf("%s: the map beside %d says %d is finished, and nobody acknowledged it",
					offset.TopicPartition, offset.Offset, l.records[index].Offset))
			}
		}
	}
}

// windowAsked checks, before records are taken for an engine, that its window opens only below the lower mark.
func (c *checker) windowAsked(s *partitionShell) {
	before := s.full
	switch n := s.tracker.InTransit(); {
	case n >= c.w.script.MaxInTransit:
		if s.full = true; !before {
			c.w.stats.Closed++
		}
	case n < c.w.script.ResumeBelow, n == 0:
		s.full = false
	}
}

// windowHeld checks that nothing was taken through a closed window.
func (c *checker) windowHeld(s *partitionShell, records []kafka.Record) {
	if s.full && s.engine != nil {
		c.w.violate("G8", fmt.Sprintf("%s: offset %d delivered while the window is closed", tpOf(s.part), records[0].Offset))
	}
}

// mayBegin checks what forbids a record to begin: a pause, a loss, a revocation.
func (c *checker) mayBegin(d *delivery) {
	s := d.shell
	switch {
	case s.paused:
		c.w.violate("PAUSE", fmt.Sprintf("%s epoch %d: a record begins while paused", tpOf(s.part), s.epoch))
	case s.process.pauses.known[s.part]:
		c.w.violate("PAUSE", fmt.Sprintf("%s epoch %d: a record begins after Pause has returned", tpOf(s.part), s.epoch))
	case s.gone:
		c.w.violate("G4", fmt.Sprintf("%s epoch %d: a record begins after the loss was marked", tpOf(s.part), s.epoch))
	}
}

// pauseReturned checks, when a call of Pause returns, that no handler is inside.
func (c *checker) pauseReturned(p *process, part int) {
	for _, d := range c.inside[part] {
		if d.shell.process == p && p.pauses.known[part] && !d.over() && !c.w.script.AnyOrder {
			c.w.violate("PAUSE", fmt.Sprintf("%s epoch %d: Pause returned with a handler inside", tpOf(part), d.shell.epoch))
		}
	}
}

// laneCommits is what the checker knows of one partition's commits under one epoch, for the strategies.
type laneCommits struct {
	epoch     kafka.AssignmentEpoch
	committed int64
	counted   uint64
	// at is when something was confirmed last, opened when the epoch began.
	at, opened int64
	confirmed  bool
	// shortened: the broker refused the metadata, so the rest is sent at once.
	shortened bool
	// placed is the last offset that a user committed, placedRun its position epoch, 0 for none.
	placed    int64
	placedRun uint32
	// call and placedPart are what it came with, run is the latest position epoch that the committer has heard of.
	call       *placing
	placedPart *placedPart
	run        uint32
}

// sending checks that a round goes out only when the strategy asks for it, or a flush does.
func (c *checker) sending(committer *committerShell, round *commit.Round) {
	script := &c.w.script
	if script.Strategy == StrategyOpportunistic {
		return
	}
	due := false
	for i := range round.Offsets {
		offset := &round.Offsets[i]
		part := int(offset.TopicPartition.Partition)
		lane := &committer.lanes[part]
		flushed := lane.shortened && lane.epoch == offset.Epoch
		lane.shortened = false
		for _, owner := range committer.flushes {
			flushed = flushed || owner.shell.part == part && owner.shell.epoch == offset.Epoch
		}
		flushed = flushed || lane.epoch == offset.Epoch && lane.placedRun > 0 && lane.placedRun == offset.PositionEpoch && lane.placed == offset.Offset
		known := lane.epoch == offset.Epoch
		onlyMap := known && offset.Offset == lane.committed
		switch script.Strategy {
		case StrategyRecords:
			due = due || flushed || onlyMap || known && offset.Finished-lane.counted >= uint64(script.StrategyRecords)
		case StrategyEvery:
			last := lane.opened
			if lane.confirmed {
				last = lane.at
			}
			due = due || flushed || onlyMap || known && c.w.at-last >= int64(script.StrategyEvery)
		case StrategyDemand:
			due = due || flushed
		case StrategyManual, StrategyOpportunistic:
		}
	}
	if !due {
		c.w.violate("STRATEGY", fmt.Sprintf("a round with %d offsets, though %s asks for none of them", len(round.Offsets), script.Strategy))
	}
}
