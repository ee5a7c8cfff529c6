package buffer

import (
	"fmt"
	"sort"

	"github.com/troupego/troupe/pkg/kafka"
)

// LaneState is where the lowest unfinished record stands.
type LaneState uint8

const (
	// LaneWaiting: the record waits in a lane that is ready, or for others of its lane that are claimed.
	LaneWaiting LaneState = iota
	// LaneClaimed: a worker has the record.
	LaneClaimed
	// LaneParked: the record waits in a parked lane, for Unpark.
	LaneParked
)

// String returns the state in snake case.
func (s LaneState) String() string {
	switch s {
	case LaneWaiting:
		return "waiting"
	case LaneClaimed:
		return "claimed"
	case LaneParked:
		return "parked"
	}
	return fmt.Sprintf("LaneState(%d)", uint8(s))
}

// Lowest is what Lanes knows of the lowest unfinished record.
type Lowest struct {
	Seq    uint64
	Record *kafka.Record
	// Offset is the record's, whatever becomes of Record.
	Offset int64
	// Attempt counts how often the record was claimed and not returned; 0 when it never was.
	Attempt int
	State   LaneState
	// Lane tells the lanes of one partition apart and does not give the key away: it is a hash with a seed of this Lanes
	// alone, or Seq + 1 where every record is a lane of its own.
	Lane uint64
}

// Done finishes a claimed record. It returns false, and changes nothing, when the record is not claimed.
func (l *Lanes) Done(seq uint64) bool {
	at, ok := l.findClaimed(seq)
	if !ok {
		return false
	}
	l.slots[at].state = slotFinished
	l.fresh.set(at)
	l.claimed--
	if l.dropped {
		return true
	}
	head, _ := l.headOf(at)
	l.slots[head].claimed--
	if head == at {
		if head, ok = l.advance(at); !ok {
			return true
		}
	}
	l.settle(head)
	return true
}

// Fail ends the claim of a record that is to be tried again: it waits at its old place, and its lane is parked once all
// that was claimed of it is settled. After Drop it only ends the claim. It returns false, and changes nothing, when the
// record is not claimed.
func (l *Lanes) Fail(seq uint64) bool { return l.giveBack(seq, true) }

// Return ends the claim of a record that was never begun: it waits at its old place and the attempt does not count. After
// Drop it only ends the claim. It returns false, and changes nothing, when the record is not claimed.
func (l *Lanes) Return(seq uint64) bool { return l.giveBack(seq, false) }

func (l *Lanes) giveBack(seq uint64, failed bool) bool {
	at, ok := l.findClaimed(seq)
	if !ok {
		return false
	}
	l.claimed--
	slot := &l.slots[at]
	if l.dropped {
		slot.state, slot.record = slotDropped, nil
		return true
	}
	slot.state = slotWaiting
	if !failed {
		slot.attempt--
	}
	l.waiting++
	head, _ := l.headOf(at)
	lane := &l.slots[head]
	lane.claimed--
	lane.waiting++
	lane.failed = lane.failed || failed
	l.settle(head)
	return true
}

func (l *Lanes) findClaimed(seq uint64) (at uint32, ok bool) {
	at, ok = l.find(seq)
	return at, ok && l.slots[at].state == slotClaimed
}

// headOf returns the head of the lane of a slot, and false when the lane is gone.
func (l *Lanes) headOf(at uint32) (head uint32, ok bool) {
	if l.slots[at].head {
		return at, true
	}
	if !l.ordered {
		return 0, false
	}
	return l.lookUp(l.slots[at].hash)
}

// advance makes the next unfinished record the head after the head was finished. It returns false when there is none: then
// the lane is gone.
func (l *Lanes) advance(old uint32) (head uint32, ok bool) {
	gone := &l.slots[old]
	gone.head = false
	for at := gone.next; at != none; at = l.slots[at].next {
		slot := &l.slots[at]
		if slot.state != slotWaiting && slot.state != slotClaimed {
			continue
		}
		slot.head, slot.failed = true, gone.failed
		slot.tail, slot.waiting, slot.claimed = gone.tail, gone.waiting, gone.claimed
		l.replace(gone.hash, old, at)
		return at, true
	}
	if l.ordered {
		l.remove(gone.hash, old)
	}
	return 0, false
}

// settle makes a lane ready or parked when nothing of it is claimed any more.
func (l *Lanes) settle(head uint32) {
	lane := &l.slots[head]
	switch {
	case lane.isReady():
		l.makeReady(head)
	case lane.isParked():
		l.parkedLanes++
		l.parkedRecords += int(lane.waiting)
	}
}

// Skip finishes a record that waits, whether its lane is ready, parked or claimed from. A lane whose head it was is not parked
// any more, and one that is claimed from is not parked because of what failed before. It returns false, and changes nothing,
// when the record does not wait.
func (l *Lanes) Skip(seq uint64) bool {
	at, ok := l.find(seq)
	if !ok || l.slots[at].state != slotWaiting {
		return false
	}
	head, _ := l.headOf(at)
	lane := &l.slots[head]
	switch {
	case lane.isReady():
		l.ready.clear(head)
		l.readyLanes--
		l.readyRecords -= int(lane.waiting)
	case lane.isParked():
		l.parkedLanes--
		l.parkedRecords -= int(lane.waiting)
	}
	lane.waiting--
	l.waiting--
	l.slots[at].state = slotFinished
	l.fresh.set(at)
	if head == at || lane.claimed > 0 {
		lane.failed = false
	}
	if head == at {
		if head, ok = l.advance(at); !ok {
			return true
		}
	}
	l.settle(head)
	return true
}

// Unpark makes the parked lane whose lowest unfinished record that is ready again. It returns false when there is none.
func (l *Lanes) Unpark(seq uint64) bool {
	head, ok := l.find(seq)
	if !ok {
		return false
	}
	lane := &l.slots[head]
	if !lane.head || !lane.isParked() {
		return false
	}
	l.parkedLanes--
	l.parkedRecords -= int(lane.waiting)
	lane.failed = false
	l.makeReady(head)
	return true
}

// Head returns the lowest unfinished record of the lane that a record in transit belongs to, finished or not, and whether
// that lane is parked. It returns false when the lane is gone.
func (l *Lanes) Head(seq uint64) (head uint64, parked bool, ok bool) {
	at, ok := l.find(seq)
	if !ok || l.dropped {
		return 0, false, false
	}
	if at, ok = l.headOf(at); !ok {
		return 0, false, false
	}
	return l.seqOf(at), l.slots[at].isParked(), true
}

// Lane returns the number of the lane that a record in transit belongs to, as in [Lowest]; 0 for any other record.
func (l *Lanes) Lane(seq uint64) uint64 {
	at, ok := l.find(seq)
	if !ok {
		return 0
	}
	return l.slots[at].hash
}

// Collect reports each record finished since the last Collect, in offset order and exactly once, and frees what lies below
// the lowest unfinished one. A record is not kept from when it is reported on. visit must not use these Lanes.
func (l *Lanes) Collect(visit func(seq uint64, offset int64)) {
	for at, ok := l.fresh.first(l.lowAt); ok; at, ok = l.fresh.first(at) {
		slot := &l.slots[at]
		offset := slot.offset
		slot.state, slot.record = slotCollected, nil
		l.fresh.clear(at)
		visit(l.seqOf(at), offset)
	}
	for l.low < l.next && l.slots[l.lowAt].state == slotCollected {
		l.slots[l.lowAt] = laneSlot{}
		l.low++
		if l.lowAt++; int(l.lowAt) == len(l.slots) {
			l.lowAt = 0
		}
	}
	if l.low == l.next {
		l.lowAt = 0 // few records in transit keep to few cache lines
	}
}

// Low returns the sequence number of the lowest record that is not both finished and collected: that of the next push when
// nothing is in transit. Records that Drop forgot are never finished.
func (l *Lanes) Low() uint64 { return l.low }

// Ready returns the number of lanes that can be claimed from.
func (l *Lanes) Ready() int { return l.readyLanes }

// ReadyRecords returns the number of records that wait in ready lanes.
func (l *Lanes) ReadyRecords() int { return l.readyRecords }

// Claimed returns the number of records claimed and not settled.
func (l *Lanes) Claimed() int { return l.claimed }

// Waiting returns the number of records neither claimed nor finished, those in parked lanes included.
func (l *Lanes) Waiting() int { return l.waiting }

// Parked returns the number of parked lanes.
func (l *Lanes) Parked() int { return l.parkedLanes }

// ParkedRecords returns the number of records that wait in parked lanes.
func (l *Lanes) ParkedRecords() int { return l.parkedRecords }

// Lowest describes the lowest record that is neither finished nor dropped. It returns false when there is none.
func (l *Lanes) Lowest() (Lowest, bool) {
	for seq := l.low; seq < l.next; seq++ {
		slot := &l.slots[l.slotOf(seq)]
		lowest := Lowest{Seq: seq, Record: slot.record, Offset: slot.offset, Attempt: int(slot.attempt), Lane: slot.hash}
		switch slot.state {
		case slotWaiting:
			if slot.isParked() { // the lowest of all is the head of its lane
				lowest.State = LaneParked
			}
			return lowest, true
		case slotClaimed:
			lowest.State = LaneClaimed
			return lowest, true
		case slotFree, slotFinished, slotCollected, slotDropped:
		}
	}
	return Lowest{}, false
}

// ByOffset describes the record at offset. It returns false when there is none that is neither finished nor dropped.
func (l *Lanes) ByOffset(offset int64) (Lowest, bool) {
	after := sort.Search(l.inTransit(), func(i int) bool { return l.slots[l.slotOf(l.low+uint64(i))].offset >= offset })
	seq := l.low + uint64(after)
	at, ok := l.find(seq)
	if !ok || l.slots[at].offset != offset {
		return Lowest{}, false
	}
	slot := &l.slots[at]
	found := Lowest{Seq: seq, Record: slot.record, Offset: offset, Attempt: int(slot.attempt), Lane: slot.hash}
	switch slot.state {
	case slotWaiting:
		if slot.head && slot.isParked() {
			found.State = LaneParked
		}
		return found, true
	case slotClaimed:
		found.State = LaneClaimed
		return found, true
	case slotFree, slotFinished, slotCollected, slotDropped:
	}
	return Lowest{}, false
}

// IsClaimed reports whether a record is claimed and not settled.
func (l *Lanes) IsClaimed(seq uint64) bool {
	_, claimed := l.findClaimed(seq)
	return claimed
}

// EachClaimed visits the records that are claimed and not settled, lowest first, with how often each was claimed. It looks
// through all that are in transit.
func (l *Lanes) EachClaimed(visit func(offset int64, attempt int)) {
	left := l.claimed
	for seq := l.low; seq < l.next && left > 0; seq++ {
		if slot := &l.slots[l.slotOf(seq)]; slot.state == slotClaimed {
			visit(slot.offset, int(slot.attempt))
			left--
		}
	}
}

// Drop forgets every record that is neither claimed nor finished and returns how many. From then on nothing can be pushed
// or claimed and there are no lanes; claimed records can still be settled, and what was finished is collected.
func (l *Lanes) Drop() int {
	for seq := l.low; seq < l.next; seq++ {
		slot := &l.slots[l.slotOf(seq)]
		slot.head, slot.failed = false, false
		if slot.state == slotWaiting {
			slot.state, slot.record = slotDropped, nil
		}
	}
	forgotten := l.waiting
	l.dropped = true
	l.ready, l.table = newSlotBits(len(l.slots)), nil
	l.waiting, l.readyLanes, l.readyRecords, l.parkedLanes, l.parkedRecords = 0, 0, 0, 0, 0
	return forgotten
}
