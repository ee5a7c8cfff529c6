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

// placing is one call of CommitOffsets, over one partition or several (actors/partition_place.go).
type placing struct {
	// left counts the partitions that have not come to the committer, nor refused; id is the committer's.
	left int
	id   uint64
	// parts, answers left, and whether one was refused or failed; for the checker, as is when the first and the last came to the committer.
	parts       []*placedPart
	open        int
	failed      bool
	first, last time.Time
}

// placedPart is one partition of a call; shell is nil before it was placed.
type placedPart struct {
	shell *partitionShell
	part  int
	run   uint32
	// arrived at the committer, sent in a round, stored by the coordinator.
	arrived, sent, stored bool
}

// placedAt is one partition's part in a call, on its way to the partition.
type placedAt struct {
	call *placing
	at   *placedPart
}

// commitOffsets is Consumer.CommitOffsets over partitions that the process owns, each with an offset that lies back by so much
// from what is finished.
func (g *groupShell) commitOffsets(parts []int, back func() int64, deadline int64) {
	call := &placing{left: len(parts), open: len(parts)}
	for i, part := range parts {
		at := &placedPart{part: part}
		call.parts = append(call.parts, at)
		if g.w.mutant == MutantCommitsHalf && i > 0 && i >= len(parts)/2 {
			call.left--
			g.w.check.placeAnswered(call, nil)
			continue
		}
		g.w.post(g.parts[part].shell.box, message{kind: messagePlaceWanted, seq: uint64(back()), at: deadline, payload: &placedAt{call: call, at: at}})
	}
}

// errNotPlaced is why a partition refuses an offset of a user's.
var errNotPlaced = errors.New("nothing can be committed of it now")

// placeWanted is one partition's part of a call.
func (s *partitionShell) placeWanted(back, deadline int64, in *placedAt) {
	if s.tracker == nil || s.sought || s.orphaned || s.unproven || !s.machine.CanCommit() || s.w.script.Strategy == StrategyManual {
		in.call.left--
		s.w.check.placeAnswered(in.call, errNotPlaced)
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
	s.truth.places(s.positionEpoch, offset)
	s.held, s.userAt, s.userText = nil, offset, strings.Repeat("u", int(back))
	if offset < finished {
		s.held = &placement{offset: offset, above: finished}
	}
	s.finalTarget = min(s.finalTarget, offset)
	s.w.stats.Placed++
	s.flushID++
	in.at.shell, in.at.run = s, s.positionEpoch
	s.demands = append(s.demands, demand{id: s.flushID, target: offset, run: s.positionEpoch, call: in.call})
	s.w.check.offers(s, offset)
	s.w.post(s.process.committer.box, message{
		kind: messagePlaced, seq: s.flushID, at: deadline, payload: &placed{shell: s, in: in, offset: commit.Offset{
			TopicPartition: tpOf(s.part), Epoch: s.epoch, PositionEpoch: s.positionEpoch, Offset: offset, LeaderEpoch: s.tracker.CommittableEpoch(),
			Finished: s.finished, Metadata: s.metadata(offset),
		}},
	})
	s.offer()
}

// placed is an offset on its way to the committer.
type placed struct {
	shell  *partitionShell
	in     *placedAt
	offset commit.Offset
}

// place commits an offset of a user's, together with the others of the same call.
func (c *committerShell) place(m *message) {
	p := m.payload.(*placed)
	call := p.in.call
	c.nextID++
	c.flushes[c.nextID] = flushOwner{shell: p.shell, id: m.seq}
	c.heard(p.shell.part, p.offset.Epoch, p.offset.PositionEpoch)
	if lane := &c.lanes[p.shell.part]; lane.epoch == p.offset.Epoch {
		lane.placed, lane.placedRun, lane.call, lane.placedPart = p.offset.Offset, p.offset.PositionEpoch, call, p.in.at
		p.in.at.arrived = true
	}
	if call.id == 0 {
		call.id, call.first = c.nextID, c.process.now()
	}
	call.left--
	call.last = c.process.now()
	c.w.check.gathered(call)
	in := commit.Place{ID: c.nextID, Offset: p.offset, Deadline: epochStart.Add(time.Duration(m.at)), Call: call.id, Last: call.left <= 0}
	if c.w.mutant == MutantCallNotGathered {
		in.Call, in.Last = 0, true
	}
	c.feed(in)
}

// heard notes the latest position epoch that the committer has heard of, for the checker.
func (c *committerShell) heard(part int, epoch kafka.AssignmentEpoch, run uint32) {
	if lane := &c.lanes[part]; lane.epoch == epoch && run > lane.run {
		lane.run = run
	}
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
			p.group.commitOffsets([]int{v.part}, func() int64 { return int64(max(p.w.extra.IntN(40)-10, 0)) }, deadline)
		}
	}
}
