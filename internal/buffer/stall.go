package buffer

import (
	"math"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Stall notices that a partition cannot be read on: it waits for somebody, such as a broker, and its position does not move.
// Waiting for records is none. It is told the facts and reads no clock; it is not safe for concurrent use.
//
// Invariant: since is zero exactly while nothing is waited for; next is the age at which the stall is reported next, told is
// true once it was.
type Stall struct {
	after    time.Duration
	since    time.Time
	position int64
	next     time.Duration
	told     bool
}

// NewStall returns a Stall that reports at that age, and again each time the age has doubled. Zero or less never reports.
func NewStall(after time.Duration) *Stall { return &Stall{after: after, position: kafka.NoOffset} }

// Observe tells whether the partition waits for somebody, since when as far as that is known (zero: for now), and the next
// offset to read. It returns the age of a stall that is to be reported now. What is waited for may change while nothing
// moves: that is one stall. It ends when nothing is waited for, or the position moves.
func (s *Stall) Observe(now time.Time, waits bool, since time.Time, position int64) (age time.Duration, report bool) {
	if s.after <= 0 {
		return 0, false
	}
	if !waits {
		s.since, s.told = time.Time{}, false
		return 0, false
	}
	if s.since.IsZero() || position != s.position {
		s.since, s.position, s.next, s.told = now, position, s.after, false
	}
	if !since.IsZero() && since.Before(s.since) {
		s.since = since
	}
	age = now.Sub(s.since)
	if age < s.next {
		return 0, false
	}
	for s.next <= age && s.next < math.MaxInt64 {
		s.next = doubledStall(s.next)
	}
	s.told = true
	return age, true
}

// doubledStall returns twice the age, the longest there is instead of an overflow.
func doubledStall(d time.Duration) time.Duration {
	if d > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return 2 * d
}

// Deadline returns when Observe is wanted again if nothing changes before.
func (s *Stall) Deadline() (time.Time, bool) {
	if s.since.IsZero() || s.after <= 0 {
		return time.Time{}, false
	}
	return s.since.Add(s.next), true
}

// Waits reports whether something was waited for at the last Observe.
func (s *Stall) Waits() bool { return !s.since.IsZero() }

// Standing returns since when a stall stands that was reported and has not ended.
func (s *Stall) Standing() (since time.Time, ok bool) { return s.since, s.told }
