package rebalance

import "strconv"

// State is the member's state in its group.
type State uint8

const (
	// StateUnjoined: not in the group and not trying to be. Nothing is sent. A member is here before Start and after it has
	// left, or rests here when it has given up; a member that lost its membership passes through on its way to JOINING. Left by
	// Start or Leave.
	StateUnjoined State = iota
	// StateJoining: a JoinGroup is under way or waits for its next try. Under an eager assignor the member owns nothing
	// (lost partitions may still be on their way out); under a cooperative one it goes on with what it has, and its commits
	// wait. Entered from UNJOINED, from REVOKED, and from SYNCING when the
	// generation is gone. Left when the coordinator answers. Without a group: the first answer about the topics is waited for.
	StateJoining
	// StateSyncing: JoinGroup was answered; the group leader asks for partition counts and assigns; a SyncGroup is under way
	// or waits for its next try. Left when SyncGroup is answered.
	StateSyncing
	// StateAssigning: the member is in the generation and its partitions look for their starting positions. Heartbeats go
	// out. Left when the last one has started.
	StateAssigning
	// StateAssigned: every partition runs. Heartbeats and commits go out. Left by a rebalance, a loss or Leave.
	StateAssigned
	// StateRevoking: partitions drain and commit in the generation the member is in: all of them when a rebalance has begun
	// (eager), those that move after SyncGroup was answered (cooperative), while the rest run. Heartbeats and commits go
	// out; no JoinGroup does. Left when the last one is released, at the latest at the deadline.
	StateRevoking
	// StateRevoked: everything that had to be given up is. Nothing is sent; the member goes on to JOINING in the same step.
	StateRevoked
	// StateLeaving: partitions drain and commit for the last time, then LeaveGroup goes out; a static member that leaves for
	// good sends none. Entered by Leave from anywhere, by GiveUp from wherever the member is in the group or on its way there.
	// Left to UNJOINED when done, at the latest at the deadline; to FATAL when a member that would come back is fenced.
	StateLeaving
	// StateFatal: the coordinator said something that another try cannot change, such as FENCED_INSTANCE_ID. Nothing is
	// sent. Left only by Leave.
	StateFatal
)

// memberMoves are the legal changes of a member's state.
var memberMoves = moves[State]{
	StateUnjoined:  {StateJoining, StateLeaving},
	StateJoining:   {StateUnjoined, StateSyncing, StateLeaving, StateFatal},
	StateSyncing:   {StateUnjoined, StateJoining, StateAssigning, StateLeaving, StateFatal},
	StateAssigning: {StateUnjoined, StateAssigned, StateRevoking, StateLeaving, StateFatal},
	StateAssigned:  {StateUnjoined, StateRevoking, StateLeaving, StateFatal},
	StateRevoking:  {StateUnjoined, StateRevoked, StateLeaving, StateFatal},
	StateRevoked:   {StateUnjoined, StateJoining, StateLeaving, StateFatal},
	StateLeaving:   {StateUnjoined, StateFatal},
	StateFatal:     {StateLeaving},
}

// String returns the state's word in upper case.
func (s State) String() string {
	switch s {
	case StateUnjoined:
		return "UNJOINED"
	case StateJoining:
		return "JOINING"
	case StateSyncing:
		return "SYNCING"
	case StateAssigning:
		return "ASSIGNING"
	case StateAssigned:
		return "ASSIGNED"
	case StateRevoking:
		return "REVOKING"
	case StateRevoked:
		return "REVOKED"
	case StateLeaving:
		return "LEAVING"
	case StateFatal:
		return "FATAL"
	}
	return "State(" + strconv.Itoa(int(s)) + ")"
}
