package supervisor

import "github.com/asynkron/protoactor-go/actor"

// Outcome is what a message meant for the parent's children: one of ChildFailed, BudgetSpent, ChildRespawned and ChildStopped.
type Outcome interface{ outcome() }

// ChildFailed says that a child failed and that its incarnation is gone: its last handler has returned. Messages it sent before it
// died may still be in the parent's mailbox.
type ChildFailed struct {
	Key  string
	Role string
	// PID is the incarnation that is gone.
	PID *actor.PID
	// Reason is what it panicked with, or ErrStoppedUnexpectedly.
	Reason any
	// Message is the message it failed on, without its envelope; nil when unknown. It is not delivered again.
	Message any
	// Decision is what happens now. ChildRespawned follows, unless the Action is Stop.
	Decision Decision
}

// BudgetSpent follows the ChildFailed that spent the child's restart budget.
type BudgetSpent struct {
	Key    string
	Role   string
	Reason any
	// Decision is the same as in ChildFailed. With Probe, what the child serves is to be paused until Supervisor.Succeed
	// reports the end of probing. With Stop the supervisor has forgotten the child, and the parent is to give up.
	Decision Decision
}

// ChildRespawned says that a successor is there and has been sent nothing yet.
type ChildRespawned struct {
	Key  string
	Role string
	PID  *actor.PID
	// Decision is that of the failure before, with the wait that has passed.
	Decision Decision
}

// ChildStopped says that a child which was to stop, or whose parent is stopping, is gone. The supervisor has forgotten it.
type ChildStopped struct {
	Key  string
	Role string
	PID  *actor.PID
	// Reason is nil, or why it had failed before its stop was complete.
	Reason any
}

func (ChildFailed) outcome()    {}
func (BudgetSpent) outcome()    {}
func (ChildRespawned) outcome() {}
func (ChildStopped) outcome()   {}
