package commit

import "time"

// opportunistic is [Opportunistic].
type opportunistic struct{}

// Opportunistic commits as soon as something is finished and no round is in flight, with at least the spacing between two
// rounds (200 ms). It is the default.
func Opportunistic() Strategy { return opportunistic{} }

// Name implements [Strategy].
func (opportunistic) Name() string { return "opportunistic" }

// Due implements [Strategy].
func (opportunistic) Due(State) (time.Time, bool) { return time.Time{}, true }
