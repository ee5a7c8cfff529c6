package rebalance

import "time"

// PartitionInput is one thing that happened to a partition, given to [Partition.Step].
//
//sumtype:decl
type PartitionInput interface{ partitionInput() }

// PositionKnown says where the partition starts: the first offset to deliver.
type PositionKnown struct{ Offset int64 }

// DrainRequested asks the partition to drain and commit for the last time: it was revoked, or the consumer closes.
// At DrainUntil the handler is no longer waited for, at Deadline the final commit neither. Asked again, the earlier times hold.
type DrainRequested struct {
	DrainUntil time.Time
	Deadline   time.Time
}

// OwnershipLost says that the partition belongs to somebody else already: nothing more may be committed.
type OwnershipLost struct{ Cause error }

// DeliveryStarted says that records were given to the handler. Told again for further deliveries, it changes nothing.
type DeliveryStarted struct{}

// DeliveryEnded says that no delivery is outstanding any more.
type DeliveryEnded struct{}

// FinalCommitAnswered answers [RequestFinalCommit]: Err is nil when the coordinator confirmed the commit or there was
// nothing to commit.
type FinalCommitAnswered struct{ Err error }

// PartitionTick says that the time [Partition.Deadline] named has come.
type PartitionTick struct{}

func (PositionKnown) partitionInput()       {}
func (DrainRequested) partitionInput()      {}
func (OwnershipLost) partitionInput()       {}
func (DeliveryStarted) partitionInput()     {}
func (DeliveryEnded) partitionInput()       {}
func (FinalCommitAnswered) partitionInput() {}
func (PartitionTick) partitionInput()       {}

// PartitionEffect is one thing the shell must do after [Partition.Step], in the order given.
//
//sumtype:decl
type PartitionEffect interface{ partitionEffect() }

// StartFlow: fetch and deliver from Offset on.
type StartFlow struct{ Offset int64 }

// StopFlow: stop fetching, drop what was not delivered, deliver nothing new. A delivery under way may end its current
// record. Comes once, and only after StartFlow.
type StopFlow struct{}

// CancelHandler: cancel the handler's context with Cause, so that one that waits on it returns. Comes at most once, and only
// while a delivery is outstanding: shortly before the drain ends, or at once when the partition is lost.
type CancelHandler struct{ Cause error }

// RequestFinalCommit: commit what is acknowledged, answer with [FinalCommitAnswered] before Deadline. Comes at most once.
type RequestFinalCommit struct{ Deadline time.Time }

// AbandonHandler: the handler still runs and is no longer waited for. Its record may be delivered elsewhere too; count it.
// Its late acknowledgements are stale.
type AbandonHandler struct{}

// Release: the partition is in REVOKED: fence its epoch and let it go. Comes exactly once.
type Release struct {
	// Lost is true when ownership was lost, so that nothing was committed at the end.
	Lost bool
	// Cause is why the last acknowledgements may not count: the loss, or the failure of the final commit. Nil when the
	// coordinator confirmed it.
	Cause error
}

// PartitionMoved reports a change of state, for logs and events.
type PartitionMoved struct {
	From, To PartitionState
	// Cause is short and human.
	Cause string
	// Err is the error behind the cause, nil when there is none.
	Err error
}

func (StartFlow) partitionEffect()          {}
func (StopFlow) partitionEffect()           {}
func (CancelHandler) partitionEffect()      {}
func (RequestFinalCommit) partitionEffect() {}
func (AbandonHandler) partitionEffect()     {}
func (Release) partitionEffect()            {}
func (PartitionMoved) partitionEffect()     {}
