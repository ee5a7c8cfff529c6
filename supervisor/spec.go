package supervisor

import "github.com/asynkron/protoactor-go/actor"

// ChildSpec says how a child is made, and how its failures are answered.
type ChildSpec struct {
	// Key names the child among its parent's children, over all its incarnations.
	Key string
	// Role says what kind of actor it is, for logs and events. Optional.
	Role string
	// Spawn makes one incarnation: a child of the actor whose context it gets. It runs in the parent's turn and must give each
	// incarnation a name of its own.
	Spawn func(ctx actor.Context) *actor.PID
	// Policy is the child's restart budget. Zero fields mean their defaults.
	Policy Policy
}
