package sim

import (
	"errors"
	"strings"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
)

// placement is an offset that a user committed, and what was finished then (actors/partition_place.go).
type placement struct{ offset, above int64 }

// placedSide is the partition's side of the offsets that users commit.
type placedSide struct {
	held     *placement
	userAt   int64
	userText string
}

// finishedPoint is below what everything is finished, and still in the log.
func (s *partitionShell) finishedPoint() int64 {
	offset := s.tracker.Committable()
	if s.rewind != nil && s.w.mutant != MutantCommitOverCut {
		offset = min(offset, *s.rewind) // what lies above is gone from the log, however finished it is
	}
	return offset
}

// committable is what would be committed now if this was the end.
func (s *partitionShell) committable() int64 {
	offset := s.finishedPoint()
	if s.held != nil && offset <= s.held.above {
		offset = min(offset, s.held.offset)
	}
	return offset
}

// placeWanted is Consumer.CommitOffsets at one partition, with an offset that lies back by so much from what is finished.
func (s *partitionShell) placeWanted(back, deadline int64) {
	if s.tracker == nil || s.orphaned || s.unproven || !s.machine.CanCommit() || s.w.script.Strategy == StrategyManual {
		return
	}
	s.collect()
	s.offer()
	finished := s.finishedPoint()
	offset := max(finished-back, 0)
	if start := s.truth.log.start; offset < start {
		offset = min(start, finished)
	}
	s.rewound()
	s.truth.runs = s.positionEpoch
	s.held, s.userAt, s.userText = nil, offset, strings.Repeat("u", int(back))
	if offset < finished {
		s.held = &placement{offset: offset, above: finished}
	}
	s.finalTarget = min(s.finalTarget, offset)
	s.w.stats.Placed++
	s.flushID++
	s.demands = append(s.demands, demand{id: s.flushID, target: offset, run: s.positionEpoch})
	s.w.check.offers(s, offset)
	s.w.post(s.process.committer.box, message{
		kind: messagePlaced, seq: s.flushID, at: deadline, payload: &placed{shell: s, offset: commit.Offset{
			TopicPartition: tpOf(s.part), Epoch: s.epoch, PositionEpoch: s.positionEpoch, Offset: offset, LeaderEpoch: s.tracker.CommittableEpoch(),
			Finished: s.finished, Metadata: s.metadata(offset),
		}},
	})
	s.offer()
}

// placed is an offset on its way to the committer.
type placed struct {
	shell  *partitionShell
	offset commit.Offset
}

// place commits an offset of a user's.
func (c *committerShell) place(m *message) {
	p := m.payload.(*placed)
	c.nextID++
	c.flushes[c.nextID] = flushOwner{shell: p.shell, id: m.seq}
	if lane := &c.lanes[p.shell.part]; lane.epoch == p.offset.Epoch {
		lane.placed, lane.placedRun = p.offset.Offset, p.offset.PositionEpoch
	}
	c.feed(commit.Place{ID: c.nextID, Offset: p.offset, Deadline: epochStart.Add(time.Duration(m.at)), Last: true})
}

// placeAnswered: what was given up because of its metadata holds nothing back.
func (s *partitionShell) placeAnswered(err error) {
	if errors.Is(err, commit.ErrMetadataTooLarge) {
		s.held, s.userAt, s.offered = nil, kafka.NoOffset, kafka.NoOffset
		s.offer()
	}
}

// forgetPlaced forgets what a user committed above an offset that the log was cut at.
func (s *partitionShell) forgetPlaced(offset int64) {
	if s.userAt > offset {
		s.userAt = kafka.NoOffset
	}
	if s.held == nil {
		return
	}
	if s.held.above = offset; s.held.offset >= offset {
		s.held = nil
	}
}

// userPlacesNow commits an offset of one partition of the process, back by so much. When faults are over it asks for what is
// finished in place of that.
func (p *process) userPlacesNow() {
	for _, v := range p.group.parts {
		switch {
		case v == nil, !p.free([]int{v.part}):
		case !p.w.faulty:
			p.w.post(v.shell.box, message{kind: messageCommitWanted, at: p.at() + int64(5*time.Second)})
		case p.w.extra.IntN(2) == 0:
			deadline := p.at() + p.w.extra.Int64N(int64(5*time.Second))
			p.w.post(v.shell.box, message{kind: messagePlaceWanted, seq: uint64(max(p.w.extra.IntN(40)-10, 0)), at: deadline})
		}
	}
}
