package sim

import (
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
)

// strategy is the script's commit strategy; nil is the default.
func (w *World) strategy() commit.Strategy {
	if w.mutant == MutantStrategyIgnored {
		return nil
	}
	switch w.script.Strategy {
	case StrategyRecords:
		return commit.EveryRecords(w.script.StrategyRecords)
	case StrategyEvery:
		return commit.Every(w.script.StrategyEvery)
	case StrategyDemand:
		return commit.OnDemand()
	case StrategyManual:
		return commit.Manual()
	case StrategyOpportunistic:
	}
	return nil
}

// hookAnswer is the start hook's answer for offsets that are kept outside of Kafka: where everything below was handled.
type hookAnswer struct {
	group *groupShell
	id    uint64
}

func (w *World) hookAnswers(h *hookAnswer) {
	c := &call{offsets: make([]int64, w.script.Partitions), texts: make([]string, w.script.Partitions)}
	c.marks = make([]commitMark, w.script.Partitions)
	for part := range c.offsets {
		l := w.logs[part]
		c.marks[part] = commitMark{leaderEpoch: kafka.NoLeaderEpoch, line: l}
		if c.offsets[part] = kafka.NoOffset; l.floor > 0 {
			c.offsets[part] = l.limit(l.floor)
		}
	}
	w.post(h.group.box, message{kind: messageOffsetsFetched, seq: h.id, payload: c})
}

// commitWanted is Consumer.Commit at one partition: what is finished now is committed, whatever the strategy says.
func (s *partitionShell) commitWanted(deadline int64) {
	if s.tracker == nil || s.orphaned || !s.machine.CanCommit() {
		return
	}
	if s.collect(); s.held != nil {
		s.held, s.offered = nil, kafka.NoOffset
	}
	s.offer()
	s.flushID++
	d := demand{id: s.flushID, target: s.finishedPoint(), run: s.positionEpoch}
	if s.unproven || s.sought {
		d.target = kafka.NoOffset // there is nothing to commit yet
	}
	s.demands = append(s.demands, d)
	s.w.post(s.process.committer.box, message{
		kind: messageFlushWanted, seq: s.flushID, part: int32(s.part), epoch: uint64(s.epoch), at: deadline, payload: s,
	})
}

// demand is a commit that a user waits for, and what it is to reach.
type demand struct {
	id     uint64
	target int64
	run    uint32
	// call is the call of CommitOffsets that it is of, nil for none.
	call *placing
}
