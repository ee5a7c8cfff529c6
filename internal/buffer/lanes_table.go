package buffer

import "math/bits"

// The table of a Lanes finds the slot of a lane's head by the lane's hash: open addressing, the next free place after the
// hash's own. An entry is a slot's number plus 1, 0 is free. A removal closes the gap, so there are no tombstones and an
// unsuccessful search stays short however many lanes have come and gone.

// tableEntriesPerSlot keeps the table at most half full, for every lane has a slot.
const tableEntriesPerSlot = 2

// place returns the hash's own place in the table.
func (l *Lanes) place(hash uint64) int {
	high, _ := bits.Mul64(hash, uint64(len(l.table)))
	return int(high)
}

// after returns the place behind another one.
func (l *Lanes) after(place int) int {
	if place++; place < len(l.table) {
		return place
	}
	return 0
}

// findOrAdd returns the head of the lane of that hash, or adds the lane with that head and returns false.
func (l *Lanes) findOrAdd(hash uint64, add uint32) (head uint32, found bool) {
	place := l.place(hash)
	for ; l.table[place] != 0; place = l.after(place) {
		if head = l.table[place] - 1; l.slots[head].hash == hash {
			return head, true
		}
	}
	l.table[place] = add + 1
	return add, false
}

// lookUp returns the head of the lane of that hash.
func (l *Lanes) lookUp(hash uint64) (head uint32, found bool) {
	for place := l.place(hash); l.table[place] != 0; place = l.after(place) {
		if head = l.table[place] - 1; l.slots[head].hash == hash {
			return head, true
		}
	}
	return 0, false
}

// placeOf returns the place of a lane that is in the table.
func (l *Lanes) placeOf(hash uint64, head uint32) int {
	place := l.place(hash)
	for l.table[place] != head+1 {
		place = l.after(place)
	}
	return place
}

// replace gives the lane another head.
func (l *Lanes) replace(hash uint64, old, head uint32) { l.table[l.placeOf(hash, old)] = head + 1 }

// remove takes the lane out and moves back whatever stood behind it for lack of a place nearer to its own.
func (l *Lanes) remove(hash uint64, head uint32) {
	gap := l.placeOf(hash, head)
	for place := l.after(gap); l.table[place] != 0; place = l.after(place) {
		own := l.place(l.slots[l.table[place]-1].hash)
		// It may move into the gap unless its own place lies behind the gap, on the way to where it stands.
		if gap < place && (own <= gap || own > place) || gap > place && own <= gap && own > place {
			l.table[gap] = l.table[place]
			gap = place
		}
	}
	l.table[gap] = 0
}
