package buffer

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// LanesConfig configures [Lanes].
type LanesConfig struct {
	// Capacity is the most records in transit: pushed and not below the lowest one that is unfinished or not collected.
	// What is outside 1 to 1<<30 counts as the nearer bound.
	Capacity int
	// Ordered makes records of one key share a lane and keep their order; else every record is a lane of its own.
	Ordered bool
}

// Claimed is a record that a worker took.
type Claimed struct {
	// Seq is the number that Push gave it, to settle it with.
	Seq    uint64
	Record *kafka.Record
	// Offset is the record's, whatever becomes of Record.
	Offset int64
	// Attempt counts how often the record was claimed and not returned, this time included: 1 for the first time.
	Attempt int
}

// slotState is where one record is.
type slotState uint8

const (
	// slotFree: no record is here.
	slotFree slotState = iota
	// slotWaiting: pushed, returned or failed, and not claimed.
	slotWaiting
	// slotClaimed: a worker has it.
	slotClaimed
	// slotFinished: done and not yet reported by Collect.
	slotFinished
	// slotCollected: reported, and something below it is not. Its record is not kept any more.
	slotCollected
	// slotDropped: forgotten by Drop. It is never finished, so Low stays below it.
	slotDropped
)

// none is the link that leads nowhere.
const none = ^uint32(0)

// laneSlot is one record in transit. What describes the lane is in the slot of its head, the lowest unfinished record, and
// moves on with it.
type laneSlot struct {
	record *kafka.Record
	// offset is the record's; the record itself may be changed by whoever has claimed it.
	offset int64
	// hash is the lane's number: the key's hash, or the sequence number from 1 on where every record is a lane of its own.
	hash uint64
	// next is the next record of the lane, finished ones included until a claim walks over them.
	next uint32
	// tail, waiting, claimed and failed belong to the lane and count only where head is set: its last slot, its records in
	// slotWaiting and in slotClaimed, and whether one failed since the lane was last ready.
	tail    uint32
	waiting uint32
	claimed uint32
	// attempt is how often the record was claimed and not returned.
	attempt uint32
	state   slotState
	head    bool
	failed  bool
}

// isReady and isParked are about the lane of a head. A lane with claimed records is neither.
func (s *laneSlot) isReady() bool  { return s.claimed == 0 && !s.failed }
func (s *laneSlot) isParked() bool { return s.claimed == 0 && s.failed }

// Lanes schedules the records of one partition for workers that run at once. Records of one lane never overlap and keep
// their order; of the lanes that are ready, the one whose head has the lowest offset goes first, so that the contiguous
// finished point moves and the last record of a burst does not wait behind younger ones. It is not safe for concurrent use.
//
// A lane is known by the 64-bit seeded hash of its key, and keys are not kept: two keys of equal hash (one pair of keys in
// 2^64) share a lane, which costs them parallelism and never order, while a key that is compared later could have been
// changed by the handler that owns the record. A nil key is a class of its own, beside the empty key: records without a
// key keep their order among themselves.
//
// Memory per slot: 48 bytes, 8 of table (two entries of 4, so that it is at most half full), and two bits with their
// summary, in all 56.3 bytes beside the record. The ring doubles from 64 slots up to Capacity (in whole words of 64), so
// at Capacity that is the cost of a waiting record; it does not shrink. Unordered lanes have no table.
//
// Invariants (checked by Valid): the slots from low to next hold what is in transit, all others are free; a lane's head is
// its lowest unfinished record, from which all its unfinished ones are reached in ascending order; ready has exactly the
// heads of lanes that are not claimed from and not parked, fresh exactly the finished slots; the table has exactly the
// heads; the counters are the sums over the slots.
type Lanes struct {
	capacity int
	ordered  bool
	dropped  bool
	hash     func(key []byte) uint64

	slots []laneSlot
	// low is the lowest sequence number in transit, lowAt its slot, next the number of the next push.
	low, next uint64
	lowAt     uint32
	ready     slotBits
	fresh     slotBits
	// table finds a lane's head, see lanes_table.go.
	table []uint32

	waiting, claimed           int
	readyLanes, readyRecords   int
	parkedLanes, parkedRecords int
}

// NewLanes returns lanes without records. Memory is taken as records are pushed.
func NewLanes(config LanesConfig) *Lanes {
	seed := maphash.MakeSeed()
	return &Lanes{
		capacity: min(max(config.Capacity, 1), 1<<30),
		ordered:  config.Ordered,
		hash:     func(key []byte) uint64 { return maphash.Bytes(seed, key) },
	}
}

// Push adds a record behind all others of its lane and returns its sequence number, which rises by 1 from 0. It returns
// false, and keeps nothing, when there is no Room. The record is kept until it is collected or dropped, the key is not.
func (l *Lanes) Push(record *kafka.Record, key []byte) (seq uint64, ok bool) {
	if l.Room() == 0 {
		return 0, false
	}
	if l.inTransit() == len(l.slots) {
		l.grow()
	}
	seq = l.next
	at := l.slotOf(seq)
	l.next++
	l.waiting++
	slot := &l.slots[at]
	*slot = laneSlot{record: record, offset: record.Offset, hash: seq + 1, next: none, tail: at, waiting: 1, state: slotWaiting, head: true}
	if l.ordered {
		slot.hash = l.hashOf(key)
		if head, found := l.findOrAdd(slot.hash, at); found {
			slot.head = false
			l.join(head, at)
			return seq, true
		}
	}
	l.makeReady(at)
	return seq, true
}

// join puts the slot at the end of a lane.
func (l *Lanes) join(head, at uint32) {
	lane := &l.slots[head]
	l.slots[lane.tail].next = at
	lane.tail = at
	lane.waiting++
	if lane.isReady() {
		l.readyRecords++
	} else if lane.isParked() {
		l.parkedRecords++
	}
}

func (l *Lanes) hashOf(key []byte) uint64 {
	if key == nil {
		return ^l.hash(nil)
	}
	return l.hash(key)
}

// Room returns how many records can be pushed.
func (l *Lanes) Room() int {
	if l.dropped {
		return 0
	}
	return l.capacity - l.inTransit()
}

// inTransit is the number of slots in use.
func (l *Lanes) inTransit() int { return int(l.next - l.low) }

// slotOf returns the slot of a sequence number that is in transit or next.
func (l *Lanes) slotOf(seq uint64) uint32 {
	at := uint64(l.lowAt) + (seq - l.low)
	if at >= uint64(len(l.slots)) {
		at -= uint64(len(l.slots))
	}
	return uint32(at)
}

// seqOf is the reverse of slotOf.
func (l *Lanes) seqOf(at uint32) uint64 {
	if at < l.lowAt {
		return l.low + uint64(at) + uint64(len(l.slots)) - uint64(l.lowAt)
	}
	return l.low + uint64(at-l.lowAt)
}

// find returns the slot of a sequence number, and whether it is in transit.
func (l *Lanes) find(seq uint64) (at uint32, ok bool) {
	if seq < l.low || seq >= l.next {
		return 0, false
	}
	return l.slotOf(seq), true
}

// Claim takes, from the ready lane whose head has the lowest offset, its first records in order, at most that many, and
// appends them to into. The lane is busy until each of them is settled: nothing more of it is claimed till then. It
// returns into unchanged when no lane is ready.
func (l *Lanes) Claim(into []Claimed, most int) []Claimed {
	if l.readyLanes == 0 || most <= 0 {
		return into
	}
	head, _ := l.ready.first(l.lowAt)
	return l.take(head, into, most)
}

// apartFrom is how often a record was claimed before ClaimHeads gives it out alone.
const apartFrom = 2

// ClaimHeads does as Claim with one ready lane after the other, lowest head first, until it has that many records in total
// or no lane is ready. What it appends is in offset order. A head that was claimed twice before is claimed alone: a batch
// fails as a whole, and a record that always fails must not keep those of other keys from being finished.
func (l *Lanes) ClaimHeads(into []Claimed, most int) []Claimed {
	from := len(into)
	var apart []uint32
	for l.readyLanes > len(apart) && len(into)-from < most {
		head, _ := l.ready.first(l.lowAt)
		if l.slots[head].attempt < apartFrom {
			into = l.take(head, into, most-(len(into)-from))
			continue
		}
		if len(into) == from {
			into = l.take(head, into, 1)
			break
		}
		l.ready.clear(head)
		apart = append(apart, head)
	}
	for _, head := range apart {
		l.ready.set(head)
	}
	slices.SortFunc(into[from:], func(a, b Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
	return into
}

// take claims from a ready lane, and takes finished records that it walks over out of the lane.
func (l *Lanes) take(head uint32, into []Claimed, most int) []Claimed {
	lane := &l.slots[head]
	l.ready.clear(head)
	l.readyLanes--
	l.readyRecords -= int(lane.waiting)
	taken, last := 0, head
	for at := head; at != none && taken < most; {
		slot := &l.slots[at]
		next := slot.next
		if slot.state == slotWaiting {
			slot.state = slotClaimed
			slot.attempt++
			into = append(into, Claimed{Seq: l.seqOf(at), Record: slot.record, Offset: slot.offset, Attempt: int(slot.attempt)})
			taken++
			last = at
		} else {
			l.slots[last].next = next
			if lane.tail == at {
				lane.tail = last
			}
		}
		at = next
	}
	lane.claimed = uint32(taken)
	lane.waiting -= uint32(taken)
	l.claimed += taken
	l.waiting -= taken
	return into
}

// makeReady lets the lane of a head be claimed.
func (l *Lanes) makeReady(head uint32) {
	l.ready.set(head)
	l.readyLanes++
	l.readyRecords += int(l.slots[head].waiting)
}

// smallestRing is the number of slots to begin with.
const smallestRing = 64

// grow doubles the ring, up to the capacity in whole words, and puts its low end first.
func (l *Lanes) grow() {
	old, lowAt := l.slots, l.lowAt
	whole := (l.capacity + wordBits - 1) / wordBits * wordBits
	size := min(max(2*len(old), smallestRing), whole)
	l.slots = make([]laneSlot, size)
	copied := copy(l.slots, old[lowAt:])
	copy(l.slots[copied:], old[:lowAt])
	l.lowAt = 0
	l.ready, l.fresh = newSlotBits(size), newSlotBits(size)
	if l.ordered {
		l.table = make([]uint32, tableEntriesPerSlot*size)
	}
	moved := func(at uint32) uint32 {
		if at == none {
			return none
		}
		if at < lowAt {
			return at + uint32(len(old)) - lowAt
		}
		return at - lowAt
	}
	for at := range uint32(len(old)) {
		slot := &l.slots[at]
		slot.next, slot.tail = moved(slot.next), moved(slot.tail)
		if slot.state == slotFinished {
			l.fresh.set(at)
		}
		if !slot.head {
			continue
		}
		if slot.isReady() {
			l.ready.set(at)
		}
		if l.ordered {
			l.findOrAdd(slot.hash, at)
		}
	}
}
