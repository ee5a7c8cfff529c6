package commit

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/troupego/troupe/pkg/kafka"
)

// Verdict is what an acknowledgment of one offset meant.
type Verdict uint8

const (
	// NotDelivered: no record of that offset was delivered. Nothing changed.
	NotDelivered Verdict = iota
	// Acked: the record is acknowledged now and was not before.
	Acked
	// AlreadyAcked: the record was acknowledged before, or lies below the finished point, where single records are no
	// longer remembered. Nothing changed.
	AlreadyAcked
)

// String returns the verdict in snake case.
func (v Verdict) String() string {
	switch v {
	case NotDelivered:
		return "not_delivered"
	case Acked:
		return "acked"
	case AlreadyAcked:
		return "already_acked"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// ErrBadDelivery is returned by [Tracker.Deliver] for records that do not ascend from the position.
var ErrBadDelivery = errors.New("commit: delivered offsets do not ascend from the position")

// wordBits is how many neighboring offsets share one word; wordMask cuts an offset to its place in the word.
const (
	wordBits = 64
	wordMask = wordBits - 1
)

// word holds the in-transit records among the 64 offsets from base on, one bit each. Offsets that do not exist (holes)
// simply have no bit.
type word struct {
	base             int64
	delivered, acked uint64
}

// epochMark says that records from that offset on have that leader epoch.
type epochMark struct {
	from  int64
	epoch int32
}

// Tracker knows, for one partition and one assignment epoch, which delivered records are not acknowledged, and from that
// the offset that may be committed. Contiguity is over the offsets that were delivered, never over integers: holes never
// block, an un-acknowledged record always does.
//
// Memory is one 24-byte word per 64 neighboring offsets in transit, whatever the holes between them, and is reused; in
// steady state nothing is allocated. It is not safe for concurrent use.
//
// Invariants (checked by Valid): words ascend by base and are never empty; acked is a subset of delivered; the lowest
// delivered bit of the first word is not acked, so it is the first un-acknowledged record; every bit lies in
// [start, position); inTransit and unacked are the number of delivered bits and of those not acked; finished is the number
// of records delivered in all less inTransit.
type Tracker struct {
	// words is a ring whose length is a power of two; head is the first used place, used how many are used.
	words      []word
	head, used int

	start     int64
	position  int64
	inTransit int
	unacked   int
	finished  uint64

	// finishedEpoch is the leader epoch of the highest record below the finished point. marks are the epoch changes above
	// it, from marksHead on; lastEpoch is that of the last delivered record.
	finishedEpoch int32
	lastEpoch     int32
	marks         []epochMark
	marksHead     int
}

// NewTracker returns a tracker with nothing delivered. position is the next offset to deliver; until something is
// delivered it is also the committable offset.
func NewTracker(position int64) *Tracker {
	return &Tracker{
		words:         make([]word, 4),
		start:         position,
		position:      position,
		finishedEpoch: kafka.NoLeaderEpoch,
		lastEpoch:     kafka.NoLeaderEpoch,
	}
}

// StartEpoch says which leader epoch goes with the position that the tracker starts at, for as long as nothing was delivered.
func (t *Tracker) StartEpoch(epoch int32) { t.finishedEpoch, t.lastEpoch = epoch, epoch }

// Deliver adds records that are being delivered for the first time. Their offsets must ascend strictly, from the position
// on, and may have holes. The position moves behind the last one. On ErrBadDelivery nothing was added.
// A record that is delivered again stays in transit and is not given to Deliver again.
func (t *Tracker) Deliver(run []kafka.Record) error {
	next := t.position
	for i := range run {
		offset := run[i].Offset
		if offset < next || offset == math.MaxInt64 {
			return fmt.Errorf("%w: offset %d at %d, at least %d wanted", ErrBadDelivery, offset, i, next)
		}
		next = offset + 1
	}
	if t.used == 0 && len(run) > 0 { // all that lies below is finished
		t.finishedEpoch, t.marks, t.marksHead = t.lastEpoch, t.marks[:0], 0
	}
	for i := 0; i < len(run); {
		base := run[i].Offset &^ wordMask
		var mask uint64
		for ; i < len(run) && run[i].Offset&^wordMask == base; i++ {
			mask |= 1 << (uint64(run[i].Offset) & wordMask)
			if run[i].LeaderEpoch != t.lastEpoch {
				t.mark(run[i].Offset, run[i].LeaderEpoch)
			}
		}
		t.push(base, mask)
	}
	t.inTransit += len(run)
	t.unacked += len(run)
	t.position = next
	return nil
}

// push adds delivered bits at the end of the ring.
func (t *Tracker) push(base int64, mask uint64) {
	if t.used > 0 {
		if last := t.at(t.used - 1); last.base == base {
			last.delivered |= mask
			return
		}
	}
	if t.used == len(t.words) {
		grown := make([]word, 2*len(t.words))
		for i := range t.used {
			grown[i] = *t.at(i)
		}
		t.words, t.head = grown, 0
	}
	t.used++
	*t.at(t.used - 1) = word{base: base, delivered: mask}
}

// mark notes that records from offset on have that leader epoch.
func (t *Tracker) mark(offset int64, epoch int32) {
	t.lastEpoch = epoch
	if t.marksHead > 0 && len(t.marks) == cap(t.marks) {
		t.marks = t.marks[:copy(t.marks, t.marks[t.marksHead:])]
		t.marksHead = 0
	}
	t.marks = append(t.marks, epochMark{from: offset, epoch: epoch})
}

// at returns the i-th used word.
func (t *Tracker) at(i int) *word { return &t.words[(t.head+i)&(len(t.words)-1)] }

// find returns the index of the first word that holds offsets at or above offset, t.used when there is none.
func (t *Tracker) find(offset int64) int {
	if t.used == 0 {
		return 0
	}
	base := offset &^ wordMask
	first := t.at(0).base
	if base <= first {
		return 0
	}
	// Bases ascend by at least 64, so a word cannot lie farther than its distance says. Without holes of a whole word
	// it lies exactly there.
	high := t.used
	if guess := uint64(base-first) / wordBits; guess < uint64(t.used) {
		if t.at(int(guess)).base == base {
			return int(guess)
		}
		high = int(guess)
	}
	low := 1
	for low < high {
		middle := int(uint(low+high) / 2)
		if t.at(middle).base < base {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// Ack acknowledges one record.
func (t *Tracker) Ack(offset int64) Verdict {
	if offset < t.Committable() {
		if offset < t.start {
			return NotDelivered
		}
		return AlreadyAcked
	}
	i := t.find(offset)
	if i == t.used {
		return NotDelivered
	}
	w := t.at(i)
	bit := uint64(1) << (uint64(offset) & wordMask)
	if w.base != offset&^wordMask || w.delivered&bit == 0 {
		return NotDelivered
	}
	if w.acked&bit != 0 {
		return AlreadyAcked
	}
	w.acked |= bit
	t.unacked--
	if i == 0 && w.delivered&(bit-1) == 0 {
		t.settle()
	}
	return Acked
}

// AckUpTo acknowledges every delivered record at or below offset and returns how many of them were not acknowledged
// before.
func (t *Tracker) AckUpTo(offset int64) int {
	newly := 0
	for i := range t.used {
		w := t.at(i)
		if w.base > offset {
			break
		}
		mask := ^uint64(0)
		if distance := uint64(offset - w.base); distance < wordMask {
			mask = 1<<(distance+1) - 1
		}
		fresh := w.delivered &^ w.acked & mask
		newly += bits.OnesCount64(fresh)
		w.acked |= fresh
	}
	t.unacked -= newly
	if newly > 0 {
		t.settle()
	}
	return newly
}

// settle forgets the acknowledged records below the first un-acknowledged one: they are finished.
func (t *Tracker) settle() {
	for t.used > 0 {
		w := t.at(0)
		open := w.delivered &^ w.acked
		finished := w.delivered
		if open != 0 {
			finished &= open&-open - 1
		}
		if finished == 0 {
			return
		}
		passed := bits.OnesCount64(finished)
		t.inTransit -= passed
		t.finished += uint64(passed)
		if t.marksHead < len(t.marks) {
			t.passMarks(w.base + int64(bits.Len64(finished)) - 1)
		}
		if open != 0 {
			w.delivered &^= finished
			w.acked &^= finished
			return
		}
		t.head = (t.head + 1) & (len(t.words) - 1)
		t.used--
	}
}

// passMarks moves the finished epoch along: the record at offset is the highest finished one.
func (t *Tracker) passMarks(offset int64) {
	for t.marksHead < len(t.marks) && t.marks[t.marksHead].from <= offset {
		t.finishedEpoch = t.marks[t.marksHead].epoch
		t.marksHead++
	}
	if t.marksHead == len(t.marks) {
		t.marks, t.marksHead = t.marks[:0], 0
	}
}

// Advance says that there is nothing to deliver below position: what lay there were transaction markers, aborted or
// compacted records. With nothing in transit that is the committable offset (case B03). A position below the present one
// is ignored.
func (t *Tracker) Advance(position int64) {
	t.position = max(t.position, position)
}

// AdvanceIn is Advance over what was written under a leader epoch: as long as nothing is in transit, that is the epoch that is
// committed along.
func (t *Tracker) AdvanceIn(position int64, epoch int32) {
	if position > t.position && epoch != t.lastEpoch {
		t.mark(t.position, epoch)
	}
	t.Advance(position)
}

// DropBelow says that the log now starts at offset (retention or DeleteRecords, case B04). Offsets below it that were
// never delivered are passed over and their number, holes included, is returned. Records in transit stay: they end by
// their acknowledgment.
func (t *Tracker) DropBelow(offset int64) (skipped int64) {
	if offset <= t.position {
		return 0
	}
	skipped = offset - t.position
	t.position = offset
	return skipped
}

// Committable returns the next offset to commit: that of the first delivered record that is not acknowledged, or the
// position when there is none. It never falls.
func (t *Tracker) Committable() int64 {
	if t.used == 0 {
		return t.position
	}
	w := &t.words[t.head]
	return w.base + int64(bits.TrailingZeros64(w.delivered))
}

// CommittableEpoch returns the leader epoch that is committed along with Committable: that of what lies below it, the one
// given to [Tracker.StartEpoch] before anything does, and kafka.NoLeaderEpoch when it is not known. Whoever starts there finds
// out by it whether the log has lost its end meanwhile (KIP-320).
func (t *Tracker) CommittableEpoch() int32 {
	if t.used == 0 {
		return t.lastEpoch
	}
	return t.finishedEpoch
}

// InTransit returns the number of records delivered and not below the finished point, acknowledged ones included.
func (t *Tracker) InTransit() int { return t.inTransit }

// Unacked returns the number of records delivered and not acknowledged.
func (t *Tracker) Unacked() int { return t.unacked }

// FinishedBeyond returns the number of records that are acknowledged and wait for one below them.
func (t *Tracker) FinishedBeyond() int { return t.inTransit - t.unacked }

// Finished returns how many records have come to lie below the finished point since the tracker was made. It never falls.
func (t *Tracker) Finished() uint64 { return t.finished }

// Standing is where one offset stands with a tracker.
type Standing uint8

const (
	// StandsOpen: a record of it was delivered and is not acknowledged.
	StandsOpen Standing = iota
	// StandsFinished: it is acknowledged, or lies below the finished point, where holes are not told from records any more.
	StandsFinished
	// StandsAhead: at or beyond the position; nothing there was delivered.
	StandsAhead
	// StandsBefore: below where the tracker started.
	StandsBefore
	// StandsNowhere: a hole between records in transit.
	StandsNowhere
)

// Look says where an offset stands.
func (t *Tracker) Look(offset int64) Standing {
	switch {
	case offset >= t.position:
		return StandsAhead
	case offset < t.start:
		return StandsBefore
	case offset < t.Committable():
		return StandsFinished
	}
	i := t.find(offset)
	if i == t.used {
		return StandsNowhere
	}
	w := t.at(i)
	bit := uint64(1) << (uint64(offset) & wordMask)
	switch {
	case w.base != offset&^wordMask || w.delivered&bit == 0:
		return StandsNowhere
	case w.acked&bit != 0:
		return StandsFinished
	}
	return StandsOpen
}

// Map returns what is acknowledged beyond Committable, with the leader epoch of the highest such record. Offsets that were
// not delivered are in no run: another owner may be shown what this one was not, such as records of aborted transactions.
// It takes a step per run and word in transit.
func (t *Tracker) Map() OffsetMap {
	if t.FinishedBeyond() == 0 {
		return OffsetMap{}
	}
	var runs []offsetRun
	for i := range t.used {
		w := t.at(i)
		for rest := w.delivered & w.acked; rest != 0; {
			low := bits.TrailingZeros64(rest)
			length := bits.TrailingZeros64(^(rest >> low))
			rest &^= (1<<length - 1) << low
			first := w.base + int64(low)
			if last := len(runs) - 1; last >= 0 && runs[last].last+1 == first {
				runs[last].last = first + int64(length) - 1
			} else {
				runs = append(runs, offsetRun{first: first, last: first + int64(length) - 1})
			}
		}
	}
	return OffsetMap{runs: runs, leaderEpoch: max(t.epochAt(runs[len(runs)-1].last), kafka.NoLeaderEpoch)}
}

// epochAt returns the leader epoch of the record in transit at offset.
func (t *Tracker) epochAt(offset int64) int32 {
	epoch := t.finishedEpoch
	for _, mark := range t.marks[t.marksHead:] {
		if mark.from > offset {
			break
		}
		epoch = mark.epoch
	}
	return epoch
}

// Position returns the next offset to deliver.
func (t *Tracker) Position() int64 { return t.position }

// FirstUnacked returns the lowest delivered offset that is not acknowledged, and whether there is one.
func (t *Tracker) FirstUnacked() (offset int64, ok bool) {
	if t.used == 0 {
		return 0, false
	}
	return t.Committable(), true
}

// NextUnacked returns the lowest delivered offset at or above from that is not acknowledged, and whether there is one.
// Going on with the offset after it visits all of them in order, as a redelivery does.
func (t *Tracker) NextUnacked(from int64) (offset int64, ok bool) {
	for i := t.find(from); i < t.used; i++ {
		w := t.at(i)
		open := w.delivered &^ w.acked
		if from > w.base {
			distance := uint64(from - w.base)
			if distance >= wordBits {
				continue
			}
			open &= ^uint64(0) << distance
		}
		if open != 0 {
			return w.base + int64(bits.TrailingZeros64(open)), true
		}
	}
	return 0, false
}

// Valid checks the invariants named at the type.
func (t *Tracker) Valid() error {
	delivered, unacked := 0, 0
	for i := range t.used {
		w := t.at(i)
		switch {
		case w.base&wordMask != 0:
			return fmt.Errorf("commit: word base %d is not a multiple of %d", w.base, wordBits)
		case w.delivered == 0:
			return fmt.Errorf("commit: word %d is empty", w.base)
		case w.acked&^w.delivered != 0:
			return fmt.Errorf("commit: word %d has acks of records never delivered", w.base)
		case i > 0 && t.at(i-1).base >= w.base:
			return fmt.Errorf("commit: word %d comes after %d", w.base, t.at(i-1).base)
		case i == 0 && w.acked&(w.delivered&-w.delivered) != 0:
			return fmt.Errorf("commit: word %d keeps a finished record", w.base)
		case w.base+int64(bits.Len64(w.delivered)) > t.position:
			return fmt.Errorf("commit: word %d reaches beyond position %d", w.base, t.position)
		case w.base+int64(bits.TrailingZeros64(w.delivered)) < t.start:
			return fmt.Errorf("commit: word %d begins before the start %d", w.base, t.start)
		}
		delivered += bits.OnesCount64(w.delivered)
		unacked += bits.OnesCount64(w.delivered &^ w.acked)
	}
	if delivered != t.inTransit || unacked != t.unacked {
		return fmt.Errorf("commit: %d in transit and %d un-acked counted, %d and %d found",
			t.inTransit, t.unacked, delivered, unacked)
	}
	if committable := t.Committable(); committable < t.start || committable > t.position {
		return fmt.Errorf("commit: committable %d outside of %d..%d", committable, t.start, t.position)
	}
	return nil
}
