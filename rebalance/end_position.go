package rebalance

import (
	"fmt"

	"github.com/troupego/troupe/pkg/kafka"
)

// EndPosition says where the reading of a partition ends that is read without a group: the first offset that is not read any
// more. It is the end of the log as of the start ([EndOfLog], the zero value), an offset ([EndAtOffset]) or a time ([EndAt]).
// Values can be compared with ==.
type EndPosition struct {
	kind  endKind
	value int64
}

type endKind uint8

const (
	endOfLog endKind = iota
	endAtOffset
	endAtTime
)

// EndOfLog ends where the log ends when the reading starts; under read_committed at the last stable offset of that moment.
// What is written later is not waited for.
func EndOfLog() EndPosition { return EndPosition{} }

// EndAtOffset ends before an offset of at least 0. One that the log has not reached when the reading starts stands for the end
// of the log, so that nobody waits for records that may never come.
func EndAtOffset(offset int64) EndPosition { return EndPosition{kind: endAtOffset, value: offset} }

// EndAt ends before the first record whose timestamp is not below millis, in milliseconds since the Unix epoch, at least 0;
// at the end of the log where there is none.
func EndAt(millis int64) EndPosition { return EndPosition{kind: endAtTime, value: millis} }

// Offset returns the offset of [EndAtOffset], and false for any other position.
func (p EndPosition) Offset() (int64, bool) { return p.value, p.kind == endAtOffset }

// String returns "end", or "offset:" or "timestamp:" and the number.
func (p EndPosition) String() string {
	switch p.kind {
	case endOfLog:
		return "end"
	case endAtOffset:
		return fmt.Sprintf("offset:%d", p.value)
	case endAtTime:
		return fmt.Sprintf("timestamp:%d", p.value)
	}
	return fmt.Sprintf("EndPosition(%d)", p.kind)
}

// Validate returns nil, or an *[EndPositionError] that says what would be right for a reading that begins at start. That an
// end lies before the start can be seen where both are offsets or both are times; elsewhere there is then nothing to read.
func (p EndPosition) Validate(start StartPosition) error {
	unit := map[endKind]string{endAtOffset: "an offset of at least %d", endAtTime: "a timestamp of at least %d ms"}[p.kind]
	if unit == "" {
		return nil
	}
	least := int64(0)
	switch policy, byPolicy := start.Policy(); {
	case p.kind == endAtOffset && !byPolicy:
		least = max(start.offset, 0)
	case p.kind == endAtTime && byPolicy && policy.kind() == kindAt:
		least = max(policy.millis(), 0)
	}
	if p.value >= least {
		return nil
	}
	want := fmt.Sprintf(unit, least)
	if least > 0 {
		want += ", where the range begins"
	}
	return &EndPositionError{Position: p, Want: want}
}

// EndPositionError means that an end position is none, or lies before the start. It wraps [ErrConfig].
type EndPositionError struct {
	Position EndPosition
	// Want is what would be right.
	Want string
}

// Error says what is wrong and what would be right.
func (e *EndPositionError) Error() string {
	return fmt.Sprintf("%v: end position %s: want %s", ErrConfig, e.Position, e.Want)
}

// Unwrap returns [ErrConfig].
func (e *EndPositionError) Unwrap() error { return ErrConfig }

// EndSearch finds the offset that an [EndPosition] stands for, by one question to the partition's leader after the other
// (ListOffsets): ask for Timestamp, give the offset to Answered. It is not safe for concurrent use.
type EndSearch struct {
	end EndPosition
	// log is the end of the log, kafka.NoOffset until it is known: it comes first, so that it is that of the start.
	log int64
	// again is true for a second look; then position is what a fetch asked for that found nothing, and seen the end of the log
	// that it saw.
	again          bool
	position, seen int64
}

// Search returns the questions that find p for the first time.
func (p EndPosition) Search() *EndSearch { return &EndSearch{end: p, log: kafka.NoOffset} }

// SearchAgain returns the questions for what is true when a fetch at position, below the end, found nothing although nothing
// but this partition's emptiness held it up. seen is the end of the log that it saw. Either the log is shorter now than it was
// at the start, since it lost its end, or it has nothing left between position and end, since that was compacted away.
func SearchAgain(end, position, seen int64) *EndSearch {
	return &EndSearch{end: EndAtOffset(end), log: kafka.NoOffset, again: true, position: position, seen: seen}
}

// Timestamp returns what to ask for next, as in [StartFromReset], or [TimestampEarliestLocal].
func (s *EndSearch) Timestamp() int64 {
	switch {
	case s.log == kafka.NoOffset:
		return TimestampLatest
	case s.again:
		return TimestampEarliestLocal
	}
	return s.end.value
}

// Answered takes the answer, [kafka.NoOffset] where there is no such record, and returns where the range ends; false means
// that there is one more question. An answer that is none to the question for the end of the log is asked for again.
func (s *EndSearch) Answered(offset int64) (end int64, done bool) {
	bound, byOffset := s.end.Offset()
	switch {
	case s.log == kafka.NoOffset && offset < 0:
		return 0, false
	case s.log == kafka.NoOffset:
		s.log = offset
		switch {
		case byOffset && s.again && s.log >= bound && s.seen >= bound:
			return 0, false
		case byOffset:
			return min(bound, s.log), true
		case s.end.kind == endOfLog:
			return s.log, true
		}
		return 0, false
	case s.again && offset <= s.position:
		// The empty answer came from the leader's own disk, which has all from there on. From a remote tier it could be a
		// read that took too long.
		return s.position, true
	case s.again:
		return bound, true
	case offset < 0:
		return s.log, true
	}
	return min(offset, s.log), true
}
