package commit

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// State is what a [Strategy] decides on: one partition with something finished that is not committed.
type State struct {
	TopicPartition kafka.TopicPartition
	// Committed is the last confirmed offset, kafka.NoOffset for none; Finished the one that could be committed now.
	Committed, Finished int64
	// Records is how many records were finished since Committed: 0 when only transaction markers, aborted or compacted
	// records were passed.
	Records uint64
	// Since is when the first of them was offered, LastCommit when the last offset was confirmed under this ownership: the
	// zero time for none.
	Since, LastCommit time.Time
}

// Strategy says when a finished offset is committed. It must be a pure function of the state: no clock, no side effect.
// It is asked once per change of a partition's state, not at each step. One that panics is replaced by [Opportunistic] for
// as long as the consumer lives, and [StrategyFailed] tells of it.
// Whatever it says, offsets are committed before a partition is given up and when the consumer closes ([Manual]
// excepted), one round is in flight at a time, and two rounds are at least the spacing apart.
type Strategy interface {
	// Name is for events and logs.
	Name() string
	// Due returns the time at which the offset is committed at the latest; one in the past, as the zero time, means at once.
	// A round that goes out for another partition takes the offset along before that time. False means not before the state
	// has changed, in no round.
	Due(state State) (at time.Time, ok bool)
}

// StrategyError says that an argument of a strategy is out of its bounds. [Validate] returns it.
type StrategyError struct {
	// Strategy is the constructor's name, Field the argument's, Value what was given and Want what would be right.
	Strategy, Field, Value, Want string
}

// Error names all four.
func (e *StrategyError) Error() string {
	return fmt.Sprintf("commit: %s: %s is %s, want %s", e.Strategy, e.Field, e.Value, e.Want)
}

// ErrStrategyPanicked means that a strategy panicked: [StrategyFailed] carries it, together with what was thrown if that
// is an error.
var ErrStrategyPanicked = errors.New("commit: the strategy panicked")
