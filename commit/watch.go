package commit

import (
	"math"
	"time"
)

// Blocked says that the committable offset of a partition stands still although something beyond it is finished.
type Blocked struct {
	// Offset is the committable offset: that of the record everything waits for.
	Offset int64
	// Since is when something beyond it was first seen finished, Age how long ago that is.
	Since time.Time
	Age   time.Duration
	// Rounds is how many commit rounds of the member went out since.
	Rounds uint64
}

// Watch notices when a partition's committable offset is blocked. It is told the facts and reads no clock; it is not safe
// for concurrent use.
//
// Invariant: blocked has an offset and a time exactly while active; next is the age at which it is reported next.
type Watch struct {
	after   time.Duration
	active  bool
	blocked Blocked
	// rounds is the member's count when the block began.
	rounds uint64
	next   time.Duration
}

// NewWatch returns a watch that reports a block of that age, and again each time the age has doubled. Zero or less never
// reports.
func NewWatch(after time.Duration) *Watch { return &Watch{after: after} }

// Observe tells the committable offset, how many records beyond it are finished ([Tracker.FinishedBeyond]) and how many
// commit rounds the member has sent in all. It returns a block that is to be reported now. A block ends when the offset
// moves, in either direction, or nothing beyond it is finished.
func (w *Watch) Observe(now time.Time, committable int64, finishedBeyond int, rounds uint64) (Blocked, bool) {
	if w.after <= 0 {
		return Blocked{}, false
	}
	if finishedBeyond <= 0 {
		w.active, w.blocked = false, Blocked{}
		return Blocked{}, false
	}
	if !w.active || w.blocked.Offset != committable {
		w.active, w.blocked = true, Blocked{Offset: committable, Since: now}
		w.rounds, w.next = rounds, w.after
	}
	w.blocked.Age, w.blocked.Rounds = now.Sub(w.blocked.Since), rounds-w.rounds
	if w.blocked.Age < w.next {
		return Blocked{}, false
	}
	for w.next <= w.blocked.Age && w.next < math.MaxInt64 {
		w.next = doubled(w.next)
	}
	return w.blocked, true
}

// doubled returns twice the duration, the longest there is instead of an overflow.
func doubled(d time.Duration) time.Duration {
	if d > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return 2 * d
}

// Deadline returns when Observe is wanted again if nothing changes before: when a block is to be reported.
func (w *Watch) Deadline() (time.Time, bool) {
	if !w.active {
		return time.Time{}, false
	}
	return w.blocked.Since.Add(w.next), true
}

// Blocked returns the block that was reported and has not ended, as of the last Observe.
func (w *Watch) Blocked() (Blocked, bool) {
	if !w.active || w.blocked.Age < w.after {
		return Blocked{}, false
	}
	return w.blocked, true
}
