package commit

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// naiveLane is everything that was offered under one epoch of a partition, nothing forgotten, and what was confirmed.
type naiveLane struct {
	opened time.Time
	offers []naiveOffer
	// confirmed, its text and count, and when.
	confirmed int64
	text      string
	counted   uint64
	at        time.Time
	finished  uint64
	// refused: metadata was too large. again: something was, and is sent anew at once.
	refused, again bool
	// run is the position epoch, high the highest offset offered in any; placed is what the user placed and nobody confirmed.
	run  uint32
	high int64
	// from is the position that was sought last.
	from   int64
	placed *Offset
	// withdrawn: who placed it was told that its metadata is too large.
	withdrawn bool
}

type naiveOffer struct {
	at time.Time
	Offset
}

// state is what a strategy is to be told of the lane if that offset is about to be sent.
func (n *naiveLane) state(offset *Offset) State {
	state := State{
		TopicPartition: offset.TopicPartition, Committed: n.confirmed, Finished: offset.Offset,
		Records: offset.Finished - n.counted, LastCommit: n.at,
	}
	for _, offer := range n.offers {
		if offer.Offset.Offset > n.confirmed {
			state.Since = offer.at
			break
		}
	}
	return state
}

// scattered is due whenever a hash of the state says so.
type scattered struct{}

func (scattered) Name() string { return "scattered" }

func (scattered) Due(s State) (time.Time, bool) {
	sum := uint64(s.Committed)*7 + uint64(s.Finished)*13 + s.Records*31 + uint64(s.Since.UnixMilli()) + uint64(s.LastCommit.UnixMilli())*3
	return s.Since.Add(time.Duration(sum%700) * time.Millisecond), sum%5 > 0
}

// fragile is every until it panics.
type fragile struct {
	Strategy
	left *int
}

func (f fragile) Due(s State) (time.Time, bool) {
	if *f.left--; *f.left < 0 {
		panic(errors.New("broken"))
	}
	return f.Strategy.Due(s)
}

// chooseStrategy returns a strategy for the machine, and the one to compare it with.
func chooseStrategy(c choices) (given, naive Strategy) {
	switch c.pick(8) {
	case 1:
		given = EveryRecords(1 + c.pick(20))
	case 2:
		given = Every(time.Duration(1+c.pick(2000)) * time.Millisecond)
	case 3:
		given = OnDemand()
	case 4:
		given = Manual()
	case 5:
		given = scattered{}
	case 6:
		left := c.pick(30)
		return fragile{Every(time.Second), &left}, Every(time.Second)
	case 7:
		return nil, Opportunistic()
	default:
		given = Opportunistic()
	}
	return given, given
}

// asked checks that somebody asked for a round, and for each offset in it: the strategy, a flush, a map that is due or
// goes along, or a refusal of metadata.
func (m *coordinator) asked(round Round) error {
	wanted := false
	for i := range round.Offsets {
		offset := &round.Offsets[i]
		n := m.lanes[offset.TopicPartition]
		if n == nil {
			return fmt.Errorf("%s is not open", offset.TopicPartition)
		}
		at, allowed := m.naive.Due(n.state(offset))
		due := allowed && !at.After(m.now)
		if offset.Offset == n.confirmed { // the map alone
			allowed, due = offset.Metadata != n.text, !m.now.Before(later(n.opened, n.at).Add(DefaultMapSpacing))
			if _, only := m.naive.(onDemand); only {
				due = false
			}
		}
		for id := range m.flushes {
			if m.flushed[id] == offset.TopicPartition {
				allowed, due = true, true
			}
		}
		if n.placed != nil {
			if offset.Offset != n.placed.Offset || !n.again && !n.refused && offset.Metadata != n.placed.Metadata {
				return fmt.Errorf("%s: %d with %q goes before %d with %q", offset.TopicPartition, offset.Offset, offset.Metadata, n.placed.Offset, n.placed.Metadata)
			}
			allowed, due = true, true
		}
		if n.again {
			allowed, due, n.again = true, true, false
		}
		switch {
		case !allowed || IsManual(m.naive):
			return fmt.Errorf("%s: nobody asked for %d", offset.TopicPartition, offset.Offset)
		case n.refused && hasMap(offset.Metadata):
			return fmt.Errorf("%s: a map is sent again", offset.TopicPartition)
		}
		wanted = wanted || due
	}
	if !wanted {
		return errors.New("nobody asked for it yet")
	}
	return nil
}

// place has the user commit an offset at or below what is finished, now and then as one of several.
func (m *coordinator) place(tp kafka.TopicPartition) error {
	if m.spaced {
		return nil
	}
	epoch, open := m.epochs[tp]
	n := m.lanes[tp]
	m.flushID++
	in := Place{ID: m.flushID, Deadline: m.now.Add(time.Duration(m.c.pick(2000)) * time.Millisecond), Call: uint64(m.c.pick(3)), Last: m.c.pick(2) == 0}
	in.Offset = Offset{TopicPartition: tp, Epoch: epoch, PositionEpoch: 1}
	m.flushes[in.ID], m.targets[in.ID], m.flushed[in.ID] = in.Deadline, -1, tp
	if !open {
		in.Offset.Epoch = m.epoch + 1
		return m.step(in)
	}
	in.Offset.PositionEpoch, in.Offset.Offset, in.Offset.Finished = n.run, int64(m.c.pick(int(n.high)+1)), n.finished
	if IsManual(m.naive) || m.c.pick(16) == 0 { // refused: under Manual, or as of an old position epoch
		m.targets[in.ID] = 1 << 40
		return m.step(in)
	}
	n.run++
	in.Offset.PositionEpoch = n.run
	in.Offset.Metadata = simMark
	if size := m.c.pick(12); size > 0 && m.c.pick(2) == 0 {
		in.Offset.Metadata += mapSeparator + "0123456789AB"[:size]
	}
	if size := m.c.pick(24); size > 0 {
		in.Offset.Metadata += userSeparator + "0123456789ABCDEFGHIJKLMN"[:size]
	}
	for id := range m.flushes {
		if m.flushed[id] == tp {
			m.targets[id] = min(m.targets[id], in.Offset.Offset)
		}
	}
	m.targets[in.ID], m.offered[tp] = in.Offset.Offset, in.Offset.Offset
	n.offers, n.confirmed, n.text, n.placed, n.again = nil, kafka.NoOffset, "", &in.Offset, false
	return m.step(in)
}

// rewind begins a position epoch before anything is offered in it, back or forward, now and then one that is stale.
func (m *coordinator) rewind(tp kafka.TopicPartition) error {
	epoch, open := m.epochs[tp]
	n := m.lanes[tp]
	switch {
	case !open:
		return m.step(Rewound{TopicPartition: tp, Epoch: m.epoch, PositionEpoch: 1 << 20})
	case m.c.pick(8) == 0:
		return m.step(Rewound{TopicPartition: tp, Epoch: epoch - 1, PositionEpoch: 1 << 20})
	case m.c.pick(8) == 0:
		return m.step(Rewound{TopicPartition: tp, Epoch: epoch, PositionEpoch: n.run})
	}
	for id := range m.flushes {
		if m.flushed[id] == tp {
			m.targets[id] = kafka.NoOffset
		}
	}
	n.run++
	n.from = int64(m.c.pick(2*int(n.high) + 2))
	m.offered[tp], n.high = kafka.NoOffset, n.from
	n.offers, n.confirmed, n.text, n.placed, n.again = nil, kafka.NoOffset, "", nil, false
	if err := m.step(Rewound{TopicPartition: tp, Epoch: epoch, PositionEpoch: n.run}); err != nil {
		return err
	}
	for id := range m.flushes {
		if m.flushed[id] == tp {
			return fmt.Errorf("%s: flush %d waits for a position that was left", tp, id)
		}
	}
	return nil
}
