package buffer

import (
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// twinRecord is one record of lanesTwin.
type twinRecord struct {
	seq      uint64
	class    string
	record   *kafka.Record
	attempt  int
	claimed  bool
	finished bool
	// collected records were reported, dropped ones forgotten.
	collected, dropped bool
}

func (r *twinRecord) unfinished() bool { return !r.finished && !r.dropped }

// lanesTwin is Lanes in the plainest way: it keeps every record ever pushed and looks through all of them each time.
type lanesTwin struct {
	capacity int
	records  []*twinRecord
	failed   map[string]bool
	dropped  bool
}

func (w *lanesTwin) low() uint64 {
	for _, r := range w.records {
		if !r.collected {
			return r.seq
		}
	}
	return uint64(len(w.records))
}

// lane returns the unfinished records of a class, and whether one is claimed.
func (w *lanesTwin) lane(class string) (lane []*twinRecord, busy bool) {
	if w.dropped {
		return nil, false
	}
	for _, r := range w.records {
		if r.class == class && r.unfinished() {
			lane = append(lane, r)
			busy = busy || r.claimed
		}
	}
	return lane, busy
}

// lanes returns the lanes that are ready and those that are parked, lowest head first.
func (w *lanesTwin) lanes() (ready, parked [][]*twinRecord) {
	seen := map[string]bool{}
	for _, r := range w.records {
		if seen[r.class] || !r.unfinished() {
			continue
		}
		seen[r.class] = true
		lane, busy := w.lane(r.class)
		switch {
		case busy || len(lane) == 0:
		case w.failed[r.class]:
			parked = append(parked, lane)
		default:
			ready = append(ready, lane)
		}
	}
	return ready, parked
}

func (w *lanesTwin) claim(most, lanes int) (got []Claimed) {
	ready, _ := w.lanes()
	for _, lane := range ready[:min(len(ready), lanes)] {
		apart := lanes > 1 && lane[0].attempt >= apartFrom
		if apart && len(got) > 0 {
			continue
		}
		if apart {
			most = min(most, 1)
		}
		for _, r := range lane {
			if len(got) < most {
				r.claimed = true
				r.attempt++
				got = append(got, Claimed{Seq: r.seq, Record: r.record, Offset: r.record.Offset, Attempt: r.attempt})
			}
		}
	}
	slices.SortFunc(got, func(a, b Claimed) int { return int(a.Seq) - int(b.Seq) })
	return got
}

func (w *lanesTwin) settle(seq uint64, how int) bool {
	if seq >= uint64(len(w.records)) || !w.records[seq].claimed {
		return false
	}
	r := w.records[seq]
	r.claimed = false
	switch how {
	case settleDone:
		r.finished = true
		if lane, _ := w.lane(r.class); len(lane) == 0 {
			delete(w.failed, r.class)
		}
	case settleFail:
		w.failed[r.class] = true
	case settleReturn:
		r.attempt--
	}
	if !r.finished && w.dropped {
		r.dropped = true
	}
	return true
}

const (
	settleDone = iota
	settleFail
	settleReturn
)

func (w *lanesTwin) skip(seq uint64) bool {
	if seq >= uint64(len(w.records)) || w.records[seq].claimed || !w.records[seq].unfinished() {
		return false
	}
	r := w.records[seq]
	if lane, busy := w.lane(r.class); busy || lane[0] == r {
		delete(w.failed, r.class)
	}
	r.finished = true
	return true
}

// byOffset is what Lanes knows of an unfinished record; its offset is its number.
func (w *lanesTwin) byOffset(offset int64) (found Lowest, ok bool) {
	if offset < 0 || offset >= int64(len(w.records)) || !w.records[offset].unfinished() {
		return Lowest{}, false
	}
	r := w.records[offset]
	found = Lowest{Seq: r.seq, Record: r.record, Offset: offset, Attempt: r.attempt}
	if r.claimed {
		found.State = LaneClaimed
	}
	_, parked := w.lanes()
	for _, lane := range parked {
		if lane[0] == r {
			found.State = LaneParked
		}
	}
	return found, true
}

func (w *lanesTwin) unpark(seq uint64) bool {
	_, parked := w.lanes()
	for _, lane := range parked {
		if lane[0].seq == seq {
			delete(w.failed, lane[0].class)
			return true
		}
	}
	return false
}

func (w *lanesTwin) drop() (n int) {
	for _, r := range w.records {
		if r.unfinished() && !r.claimed {
			r.dropped = true
			n++
		}
	}
	w.dropped = true
	return n
}

// lanesHash is a hash to test with; nil is the real one.
type lanesHash struct {
	name string
	hash func(key []byte) uint64
}

func number(key []byte) (n uint64) {
	for _, b := range key {
		n = n*10 + uint64(b-'0')
	}
	return n
}

var lanesHashes = []lanesHash{
	{"real", nil},
	{"one lane for all", func([]byte) uint64 { return 7 }},
	{"three lanes", func(key []byte) uint64 { return number(key) % 3 << 62 }},
	{"all at the table's first place", number},
	{"all at the table's last place", func(key []byte) uint64 { return ^number(key) }},
	{"neighbors around the table's end", func(key []byte) uint64 { return number(key)%8<<61 - number(key)%5<<57 }},
}
