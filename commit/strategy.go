package commit

import (
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// State is what a [Strategy] decides on: one partition with something finished that is not committed.
type State struct {
	TopicPartition kafka.TopicPartition
	// Committed is the last confirmed offset, kafka.NoOffset for none; Finished the one that could be committed now.
	Committed, Finished int64
	// Records is how many records were finished since Committed.
	Records uint64
	// Since is when the first of them was offered, LastCommit when the last offset was confirmed under this ownership: the
	// zero time for none.
	Since, LastCommit time.Time
}

// Strategy says when a finished offset is committed. It must be a pure function of the state: no clock, no side effect.
// Whatever it says, offsets are committed before a partition is given up and when the consumer closes, one round is in
// flight at a time, and two rounds are at least the spacing apart.
type Strategy interface {
	// Name is for events and logs.
	Name() string
	// Due returns the time from which on the offset is committed; one in the past, as the zero time, means at once. False
	// means not before the state has changed.
	Due(state State) (at time.Time, ok bool)
}
