// Package rebalance decides how a consumer joins its group, what it owns and when it lets go.
//
// It is pure: no I/O, no clock, no goroutine, no lock and no log. Each machine takes one input with the present time and
// returns the effects that its shell (in actors/) carries out in order; [Member.Deadline] and its siblings say when the
// shell must come back with a tick. Jitter comes from a seed given to the constructor, so the same inputs at the same times
// give the same effects.
//
//	Member      the membership of one consumer in its group     UNJOINED ... JOINING ... ASSIGNED ... REVOKING ...
//	Standalone  the same without a group, of what is assigned   UNJOINED, JOINING, ASSIGNING, ASSIGNED, LEAVING
//	Partition   one partition under one assignment epoch        ASSIGNING, ASSIGNED, REVOKING, REVOKED
//	Link        where the group's coordinator is                DOWN, INITIALIZED, DISCOVERING, STABLE
//	Pulse       when to send a heartbeat, when the session ends IDLE, BEATING, LAPSED
//
// Every machine has one table of legal moves and one method that changes its state. An illegal move and an input that
// cannot happen in a state are errors ([ErrIllegalMove], [ErrUnexpectedInput]) and leave the state as it was; an input that
// merely comes too late (an old Seq, generation or epoch) is ignored in silence, because it is a normal thing between
// actors. Valid checks what must always hold and is meant for tests.
//
// The authority is the coordinator: it alone says which generation is current. When the machine and the coordinator differ
// the machine gives up what it holds (lost, nothing more is committed) and joins again.
//
// Beside the machines are the codecs of the consumer protocol ([Subscription], [Assignment]), the assignors ([Assignor],
// [Range], [RoundRobin],
// [Sticky], [CooperativeSticky]) and the choice of a partition's starting position ([DecideStarts], [DecideOutOfRange]).
package rebalance
