package rebalance

import (
	"slices"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// coopRig drives a member whose only assignor is cooperative.
func coopRig(t *testing.T) *rig {
	return newRig(t, func(c *MemberConfig) { c.Assignors = []Assignor{cooperative{}} })
}

// settled brings a cooperative member to ASSIGNED with t-0 and t-1 in generation 1.
func (r *rig) settled() *rig {
	r.t.Helper()
	r.step(Start{}, ">JOINING SendJoin")
	r.step(r.joinOK(1, "other"), ">SYNCING SendSync")
	r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(2)")
	for _, g := range r.m.Granted() {
		r.step(PartitionStarted(g), map[bool]string{true: ">ASSIGNED", false: ""}[r.m.held.count(holdStarting) == 1])
	}
	return r.in(StateAssigned)
}

func TestCooperativeMemberKeepsItsPartitionsOverAJoinGroup(t *testing.T) {
	r := coopRig(t).settled()
	before := r.m.Granted()
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	if !slices.Equal(r.m.Granted(), before) {
		t.Errorf("holds %v", r.m.Granted())
	}
	subscription, err := DecodeSubscription(find[SendJoin](t, r.effects).Request.Protocols[0].Metadata)
	if err != nil || len(subscription.Owned) != 2 || subscription.Generation != 1 {
		t.Errorf("tells %+v, %v", subscription, err)
	}
	r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
	if !slices.Equal(r.m.Granted(), before) {
		t.Errorf("kept partitions have other epochs: %v, before %v", r.m.Granted(), before)
	}
	if !find[EnterGeneration](t, slices.Concat(r.effects)).Early {
		t.Error("heartbeats do not begin early")
	}
}

func TestCooperativeMemberGivesUpWhatMovesInTheNewGenerationAndJoinsAgain(t *testing.T) {
	r := coopRig(t).settled()
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 1), tp("t", 2)), "EnterGeneration >ASSIGNING AssignPartitions(1) >REVOKING RevokePartitions(1)")
	revoked := find[RevokePartitions](t, r.effects).Grants
	if len(revoked) != 1 || revoked[0].TopicPartition != tp("t", 0) || revoked[0].Epoch != 1 {
		t.Fatalf("gives up %v", revoked)
	}
	added := find[AssignPartitions](t, r.effects).Grants[0]
	r.step(PartitionStarted(added), "")
	r.step(r.heartbeat(kafka.RebalanceInProgress), "")
	r.in(StateRevoking)
	r.step(PartitionReleased(revoked[0]), ">REVOKED >JOINING HoldCommits SendJoin")
	if reason := find[SendJoin](t, r.effects).Request.Reason; reason != reasonGivenUp {
		t.Errorf("reason %q", reason)
	}
	r.step(r.joinOK(3, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 1), tp("t", 2)), "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
}

func TestCooperativeMemberDeclaresLostWhatIsNotReleasedAndKeepsTheRest(t *testing.T) {
	r := coopRig(t).settled()
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(0) >REVOKING RevokePartitions(1)")
	r.tickDue("Refused LosePartitions(1) >REVOKED >JOINING HoldCommits SendJoin")
	if owned := r.m.Granted(); len(owned) != 1 || owned[0].TopicPartition != tp("t", 1) {
		t.Errorf("owns %v", owned)
	}
}

func TestCooperativeMemberThatIsForgottenLosesEverythingAtOnce(t *testing.T) {
	r := coopRig(t).settled()
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(r.joinError(kafka.UnknownMemberID), "LosePartitions(2) LeaveGeneration >UNJOINED >JOINING SendJoin")
	if owned := r.m.Granted(); len(owned) != 0 {
		t.Errorf("owns %v", owned)
	}
	subscription, _ := DecodeSubscription(find[SendJoin](t, r.effects).Request.Protocols[0].Metadata)
	if len(subscription.Owned) != 0 || subscription.Generation != kafka.NoGeneration {
		t.Errorf("claims %+v", subscription)
	}
}

func TestCooperativeMemberWhoseSessionEndsWhileItJoinsLosesEverything(t *testing.T) {
	r := coopRig(t).settled()
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(HeartbeatAnswered{Generation: 1, Err: kafka.IllegalGeneration}, "") // the group has gone on: later, not lost
	r.step(SessionExpired{Generation: 1}, "LosePartitions(2) LeaveGeneration >UNJOINED >JOINING SendJoin")
}

// The coordinator refuses heartbeats of the generation before from the JoinGroup on, however long SyncGroup and the next JoinGroup take.
func TestCooperativeMemberIsAliveByTheGenerationThatItJoined(t *testing.T) {
	joined := func() *rig {
		r := coopRig(t).settled()
		r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
		r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
		if join := find[JoinGeneration](t, r.effects); join.Generation != 2 || join.MemberID != r.m.MemberID() {
			t.Errorf("%+v", join)
		}
		r.step(HeartbeatAnswered{Generation: 2}, "")
		r.step(r.syncError(kafka.RebalanceInProgress), ">JOINING HoldCommits SendJoin")
		r.step(HeartbeatAnswered{Generation: 2, Err: kafka.RebalanceInProgress}, "")
		r.step(HeartbeatAnswered{Generation: 1, Err: kafka.UnknownMemberID}, "") // it was under way; the next one says the same
		return r.in(StateJoining)
	}
	const gone = "LosePartitions(2) LeaveGeneration >UNJOINED >JOINING" // and JoinGroup after a backoff
	joined().step(HeartbeatAnswered{Generation: 2, Err: kafka.UnknownMemberID}, gone)
	joined().step(SessionExpired{Generation: 2}, gone)
	joined().step(SessionExpired{Generation: 1}, gone) // it was over before the heartbeats heard of the next generation
	r := joined()
	r.step(r.joinOK(3, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
	r.step(HeartbeatAnswered{Generation: 2, Err: kafka.UnknownMemberID}, "").step(SessionExpired{Generation: 2}, "").in(StateAssigned)
}

// Between JoinGroup and EnterGeneration there is no generation to commit the last offsets with.
func TestCooperativeMemberThatLeavesWhileItJoinsDoesSoInTheNextGeneration(t *testing.T) {
	r := coopRig(t).settled()
	leave := Leave{DrainUntil: r.now.Add(5 * time.Second), Deadline: r.now.Add(10 * time.Second)}
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(leave, "")
	r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 1), tp("t", 2)), "EnterGeneration >ASSIGNING AssignPartitions(1) >LEAVING RevokePartitions(3)")
	granted := r.m.Granted()
	r.step(PartitionReleased(granted[0]), "")
	r.step(PartitionReleased(granted[1]), "")
	r.step(PartitionReleased(granted[2]), "SendLeave")
	r.step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED Left")
}

func TestCooperativeMemberThatLeavesWhileItJoinsWaitsForHalfOfTheDrain(t *testing.T) {
	r := coopRig(t).settled()
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(Leave{DrainUntil: r.now.Add(6 * time.Second), Deadline: r.now.Add(10 * time.Second)}, "")
	r.step(Leave{DrainUntil: r.now.Add(4 * time.Second), Deadline: r.now.Add(20 * time.Second)}, "") // the sooner of each counts
	if at, ok := r.m.Deadline(); !ok || at.Sub(r.now) != 2*time.Second {
		t.Errorf("wants a Tick at %v, in %v", at, at.Sub(r.now))
	}
	r.wait(2*time.Second).step(Tick{}, "ResumeCommits >LEAVING RevokePartitions(2)")
	if resumed := find[ResumeCommits](t, r.effects); resumed.Generation != 2 || resumed.MemberID != "me" {
		t.Errorf("resumes %+v", resumed)
	}
	if revoked := find[RevokePartitions](t, r.effects); revoked.DrainUntil.Sub(r.now) != 2*time.Second {
		t.Errorf("drains for %v", revoked.DrainUntil.Sub(r.now))
	}
}

func TestCooperativeMemberThatLeavesDoesNotWaitForAJoinGroupThatIsNotUnderWay(t *testing.T) {
	leave := func(r *rig) Leave {
		return Leave{DrainUntil: r.now.Add(6 * time.Second), Deadline: r.now.Add(10 * time.Second)}
	}
	t.Run("refused", func(t *testing.T) {
		r := coopRig(t).settled()
		r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
		r.step(leave(r), "")
		r.step(JoinAnswered{Seq: r.m.seq, Err: kafka.NotCoordinator}, "Refused ResumeCommits >LEAVING RevokePartitions(2)")
	})
	t.Run("planned", func(t *testing.T) {
		r := coopRig(t).settled()
		r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
		r.step(JoinAnswered{Seq: r.m.seq, Err: kafka.NotCoordinator}, "Refused")
		r.step(leave(r), "ResumeCommits >LEAVING RevokePartitions(2)")
	})
	t.Run("member forgotten", func(t *testing.T) {
		r := coopRig(t).settled()
		r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
		r.step(leave(r), "")
		r.step(JoinAnswered{Seq: r.m.seq, Err: kafka.UnknownMemberID}, "LosePartitions(2) LeaveGeneration >UNJOINED >LEAVING")
	})
}

func TestCooperativeMemberWithADamagedAssignmentGivesUpEverythingOnce(t *testing.T) {
	r := coopRig(t).settled()
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
	damaged := SyncAnswered{Seq: r.m.seq, Response: SyncResponse{Protocol: "range", Assignment: []byte{0, 1, 0xff, 0xff}}}
	r.step(damaged, "Refused EnterGeneration >ASSIGNING AssignPartitions(0) >REVOKING RevokePartitions(2)")
	revoked := find[RevokePartitions](t, r.effects).Grants
	r.step(PartitionReleased(revoked[0]), "")
	r.step(PartitionReleased(revoked[1]), ">REVOKED >JOINING HoldCommits SendJoin")
	r.step(r.joinOK(3, "other"), ">SYNCING JoinGeneration SendSync")
	damaged.Seq = r.m.seq
	r.step(damaged, "Refused EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
}

func TestAMemberThatAlsoOffersAnEagerAssignorGivesEverythingUpFirst(t *testing.T) {
	r := newRig(t, func(c *MemberConfig) { c.Assignors = []Assignor{cooperative{}, named{"range"}} }).settled()
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING RevokePartitions(2)")
}

// named is an eager assignor of another name.
type named struct{ name string }

func (n named) Name() string                                                     { return n.name }
func (named) Protocol() RebalanceProtocol                                        { return Eager }
func (named) UserData([]string, []kafka.TopicPartition, kafka.Generation) []byte { return nil }
func (named) Assign([]AssignorMember, map[string]TopicInfo) map[string][]kafka.TopicPartition {
	return nil
}
