package buffer

import "fmt"

// lanesCount is what the counters of a Lanes should say.
type lanesCount struct {
	waiting, claimed, readyLanes, readyRecords, parkedLanes, parkedRecords int
	// heads is the number of lanes, reached that of the records found from them.
	heads, reached int
}

// Valid checks the invariants named at the type.
func (l *Lanes) Valid() error {
	if l.next < l.low || l.inTransit() > len(l.slots) || l.inTransit() > l.capacity {
		return fmt.Errorf("buffer: %d to %d in transit in %d slots, capacity %d", l.low, l.next, len(l.slots), l.capacity)
	}
	var count lanesCount
	for at := range uint32(len(l.slots)) {
		if err := l.validSlot(at, &count); err != nil {
			return err
		}
	}
	if !l.dropped && count.reached != count.waiting+count.claimed {
		return fmt.Errorf("buffer: lanes reach %d of %d unfinished records", count.reached, count.waiting+count.claimed)
	}
	entries := 0
	for _, entry := range l.table {
		if entry != 0 {
			entries++
		}
	}
	if l.ordered && entries != count.heads {
		return fmt.Errorf("buffer: %d lanes in the table, %d heads", entries, count.heads)
	}
	kept := lanesCount{
		waiting: l.waiting, claimed: l.claimed, readyLanes: l.readyLanes, readyRecords: l.readyRecords,
		parkedLanes: l.parkedLanes, parkedRecords: l.parkedRecords, heads: count.heads, reached: count.reached,
	}
	if kept != count {
		return fmt.Errorf("buffer: counters %+v, counted %+v", kept, count)
	}
	return nil
}

func (l *Lanes) validSlot(at uint32, count *lanesCount) error {
	slot := &l.slots[at]
	seq := l.seqOf(at)
	if _, used := l.find(seq); used == (slot.state == slotFree) {
		return fmt.Errorf("buffer: %d is in state %d, in transit %t", seq, slot.state, used)
	}
	switch slot.state {
	case slotFree:
		if *slot != (laneSlot{}) {
			return fmt.Errorf("buffer: a free slot holds %+v", *slot)
		}
	case slotWaiting:
		count.waiting++
	case slotClaimed:
		count.claimed++
	case slotCollected, slotDropped:
		if slot.record != nil {
			return fmt.Errorf("buffer: %d in state %d keeps its record", seq, slot.state)
		}
	case slotFinished:
	}
	if slot.state == slotWaiting && l.dropped || slot.state == slotDropped && !l.dropped {
		return fmt.Errorf("buffer: %d is in state %d, dropped %t", seq, slot.state, l.dropped)
	}
	if l.fresh.has(at) != (slot.state == slotFinished) {
		return fmt.Errorf("buffer: %d is in state %d, fresh %t", seq, slot.state, l.fresh.has(at))
	}
	if l.ready.has(at) != (slot.head && slot.isReady()) {
		return fmt.Errorf("buffer: %d is ready %t, head %t, %d claimed, failed %t",
			seq, l.ready.has(at), slot.head, slot.claimed, slot.failed)
	}
	if slot.head {
		return l.validLane(at, count)
	}
	return nil
}

// validLane walks over the lane of a head.
func (l *Lanes) validLane(head uint32, count *lanesCount) error {
	lane := &l.slots[head]
	seq := l.seqOf(head)
	if lane.state != slotWaiting && lane.state != slotClaimed || l.dropped {
		return fmt.Errorf("buffer: head %d is in state %d, dropped %t", seq, lane.state, l.dropped)
	}
	if l.ordered {
		if found, ok := l.lookUp(lane.hash); !ok || found != head {
			return fmt.Errorf("buffer: the table has %d for head %d, found %t", l.seqOf(found), seq, ok)
		}
	}
	var waiting, claimed uint32
	last := head
	for at := head; at != none; at = l.slots[at].next {
		slot := &l.slots[at]
		if at != head && (slot.head || slot.hash != lane.hash || l.seqOf(at) <= l.seqOf(last)) {
			return fmt.Errorf("buffer: %d follows %d in the lane of %d", l.seqOf(at), l.seqOf(last), seq)
		}
		switch slot.state {
		case slotWaiting:
			waiting++
		case slotClaimed:
			claimed++
		case slotFinished, slotCollected:
		case slotFree, slotDropped:
			return fmt.Errorf("buffer: a slot in state %d is in the lane of %d", slot.state, seq)
		}
		last = at
	}
	if waiting != lane.waiting || claimed != lane.claimed || last != lane.tail {
		return fmt.Errorf("buffer: the lane of %d has %d waiting, %d claimed and ends at %d, kept %d, %d and %d",
			seq, waiting, claimed, l.seqOf(last), lane.waiting, lane.claimed, l.seqOf(lane.tail))
	}
	count.heads++
	count.reached += int(waiting + claimed)
	switch {
	case lane.isReady():
		count.readyLanes++
		count.readyRecords += int(waiting)
	case lane.isParked():
		count.parkedLanes++
		count.parkedRecords += int(waiting)
	}
	return nil
}
