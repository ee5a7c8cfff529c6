package commit

import (
	"fmt"
	"strconv"
	"time"
)

// The strategies that are given. The two without arguments that [Rounds] treats in a way of their own are told by type.
type (
	opportunistic struct{}
	everyRecords  struct{ n int }
	every         struct{ d time.Duration }
	onDemand      struct{}
	manual        struct{}
)

// Opportunistic commits as soon as something is finished and no round is in flight, with at least the spacing between two
// rounds (200 ms). It is the default.
func Opportunistic() Strategy { return opportunistic{} }

// EveryRecords commits a partition when n of its records were finished since its last commit; n is at least 1, see
// [Validate]. Fewer wait for the partition to be given up or the consumer to close, however long that takes, so an idle
// topic may show a lag below n.
func EveryRecords(n int) Strategy { return everyRecords{n: n} }

// Every commits a partition d after its last commit, or after the first finished record when there was none; d is above
// zero, see [Validate]. Partitions are committed together: what is finished elsewhere goes along in the same round.
func Every(d time.Duration) Strategy { return every{d: d} }

// OnDemand commits only when asked to: by Consumer.Commit, before a partition is given up, and on close.
func OnDemand() Strategy { return onDemand{} }

// Manual commits nothing, not even before a partition is given up or on close: the offsets are kept outside Kafka.
func Manual() Strategy { return manual{} }

// IsManual reports whether the strategy is [Manual]. Nil is not.
func IsManual(strategy Strategy) bool {
	_, is := strategy.(manual)
	return is
}

// Validate returns a *[StrategyError] when an argument of a given strategy is out of its bounds. Nil, which is
// [Opportunistic], and strategies of your own are always right.
func Validate(strategy Strategy) error {
	switch s := strategy.(type) {
	case everyRecords:
		if s.n < 1 {
			return &StrategyError{Strategy: "EveryRecords", Field: "n", Value: strconv.Itoa(s.n), Want: "at least 1"}
		}
	case every:
		if s.d <= 0 {
			return &StrategyError{Strategy: "Every", Field: "d", Value: s.d.String(), Want: "more than 0s"}
		}
	}
	return nil
}

// Name implements [Strategy].
func (opportunistic) Name() string { return "opportunistic" }

// Due implements [Strategy].
func (opportunistic) Due(State) (time.Time, bool) { return time.Time{}, true }

// Name implements [Strategy].
func (s everyRecords) Name() string { return fmt.Sprintf("every_records(%d)", s.n) }

// Due implements [Strategy]. A number out of its bounds counts as 1.
func (s everyRecords) Due(state State) (time.Time, bool) {
	return time.Time{}, state.Records >= uint64(max(s.n, 1))
}

// Name implements [Strategy].
func (s every) Name() string { return fmt.Sprintf("every(%s)", s.d) }

// Due implements [Strategy].
func (s every) Due(state State) (time.Time, bool) {
	if state.LastCommit.IsZero() {
		return state.Since.Add(s.d), true
	}
	return state.LastCommit.Add(s.d), true
}

// Name implements [Strategy].
func (onDemand) Name() string { return "on_demand" }

// Due implements [Strategy].
func (onDemand) Due(State) (time.Time, bool) { return time.Time{}, false }

// Name implements [Strategy].
func (manual) Name() string { return "manual" }

// Due implements [Strategy].
func (manual) Due(State) (time.Time, bool) { return time.Time{}, false }
