package sim

// choice is a field of a script with named values; the first is the default.
type choice struct {
	value *uint8
	names []string
}

// Order is what is kept between the records of a partition.
type Order uint8

// The orders. Under OrderKey and OrderNone several workers share a partition's records.
const (
	OrderPartition Order = iota
	OrderKey
	OrderNone
)

var orderNames = [...]string{"partition", "key", "none"}

// HandlerKind is what a worker hands to user code at once.
type HandlerKind uint8

// The kinds of handlers. An asynchronous one returns at once and acknowledges later, as an actor does.
const (
	HandleRecord HandlerKind = iota
	HandleBatch
	HandleAsync
	HandleActor
)

var handlerNames = [...]string{"record", "batch", "async", "actor"}

// StrategyKind is a commit strategy.
type StrategyKind uint8

// The strategies of package commit.
const (
	StrategyOpportunistic StrategyKind = iota
	StrategyRecords
	StrategyEvery
	StrategyDemand
	StrategyManual
)

var strategyNames = [...]string{"opportunistic", "records", "every", "demand", "manual"}

// String returns the strategy's name.
func (k StrategyKind) String() string { return strategyNames[k] }

// lazy reports whether some offsets are committed only when consumers close.
func (s *Script) lazy() bool { return s.Strategy == StrategyRecords || s.Strategy == StrategyDemand }

// ofPartition reports whether the fault's Member is a partition.
func (k FaultKind) ofPartition() bool {
	return k == FaultRetain || k == FaultTruncate || k == FaultRestore || k == FaultDiverge
}
