package rebalance

import (
	"errors"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func (r *rig) giveUp() GiveUp {
	return GiveUp{DrainUntil: r.now.Add(10 * time.Second), Deadline: r.now.Add(14 * time.Second), Reason: "a handler of t-0 takes too long"}
}

func asStatic(c *MemberConfig) { c.GroupInstanceID = "till-1" }

func asCooperative(c *MemberConfig) { c.Assignors = []Assignor{cooperative{}} }

func TestAMemberThatGivesUpDrainsLeavesRestsAndComesBack(t *testing.T) {
	for name, change := range map[string]func(*MemberConfig){"dynamic": nil, "static": asStatic, "cooperative": asCooperative} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, change).to(StateAssigned)
			r.step(r.giveUp(), ">LEAVING RevokePartitions(2)")
			revoke := find[RevokePartitions](t, r.effects)
			if revoke.Closing || revoke.DrainUntil.Sub(r.now) != 10*time.Second || revoke.Deadline.Sub(r.now) != 12*time.Second {
				t.Errorf("revoke %+v", revoke)
			}
			r.releaseAll(revoke.Grants, "SendLeave")
			leave := find[SendLeave](t, r.effects).Request
			if leave.MemberID != "me" || leave.GroupInstanceID != r.m.config.GroupInstanceID || leave.Reason != r.giveUp().Reason {
				t.Errorf("leave %+v", leave)
			}
			r.step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED GaveUp")
			if err := find[GaveUp](t, r.effects).Err; err != nil {
				t.Errorf("gave up with %v", err)
			}
			if _, ok := r.m.Deadline(); ok || r.m.MemberID() != "" {
				t.Error("a member that rests waits for nothing and has no id")
			}
			r.step(r.giveUp(), "").step(Tick{}, "")
			r.step(Start{Reason: "the handler has returned"}, ">JOINING SendJoin")
			if join := find[SendJoin](t, r.effects).Request; join.Reason != "the handler has returned" || join.MemberID != "" {
				t.Errorf("join %+v", join)
			}
		})
	}
}

func TestGivingUpIsBoundedByItsDeadlineAndTheIDIsKept(t *testing.T) {
	r := newRig(t, nil).to(StateAssigned)
	began := r.now
	r.step(r.giveUp(), ">LEAVING RevokePartitions(2)")
	r.tickDue("Refused LosePartitions(2) SendLeave")
	r.tickDue("LeaveGeneration >UNJOINED GaveUp")
	if err := find[GaveUp](t, r.effects).Err; !errors.Is(err, ErrLeaveUnfinished) || r.now.Sub(began) != 14*time.Second {
		t.Errorf("gave up with %v after %v", err, r.now.Sub(began))
	}
	r.step(Start{}, ">JOINING SendJoin")
	if id := find[SendJoin](t, r.effects).Request.MemberID; id != "me" {
		t.Errorf("joins as %q: the coordinator may still wait for the old id", id)
	}
}

func TestLeaveGroupIsTriedAgainWhileAMemberGivesUp(t *testing.T) {
	r := newRig(t, nil).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)")
	r.releaseAll(r.m.Granted(), "SendLeave")
	for _, err := range []error{errNetwork, kafka.NotCoordinator, kafka.CoordinatorLoadInProgress} {
		r.step(LeaveAnswered{Seq: r.m.seq, Err: err}, "Refused")
		r.tickDue("SendLeave")
	}
	r.step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED GaveUp")
	if err := find[GaveUp](t, r.effects).Err; err != nil {
		t.Errorf("gave up with %v", err)
	}

	r = newRig(t, nil).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)")
	r.releaseAll(r.m.Granted(), "SendLeave")
	for r.m.State() == StateLeaving { // it ends, whatever the coordinator says
		if r.m.request.seq == 0 {
			r.now, _ = r.m.Deadline()
			if err := r.try(Tick{}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := r.try(LeaveAnswered{Seq: r.m.seq, Err: errNetwork}); err != nil {
			t.Fatal(err)
		}
	}
	if err := find[GaveUp](t, r.effects).Err; !errors.Is(err, errNetwork) || r.now.Sub(epoch0) > 14*time.Second {
		t.Errorf("gave up with %v after %v", err, r.now.Sub(epoch0))
	}
	if r.m.MemberID() != "me" {
		t.Error("the coordinator may still count the member in")
	}
}

// r0GiveUp is giveUp at the time at which every rig begins.
func r0GiveUp() GiveUp {
	return GiveUp{DrainUntil: epoch0.Add(10 * time.Second), Deadline: epoch0.Add(14 * time.Second), Reason: "test"}
}

func TestAMemberThatIsClosedWhileItGivesUpDoesNotComeBack(t *testing.T) {
	later := Leave{DrainUntil: epoch0.Add(time.Hour), Deadline: epoch0.Add(time.Hour)}
	sooner := Leave{DrainUntil: epoch0.Add(time.Second), Deadline: epoch0.Add(2 * time.Second)}
	r := newRig(t, nil).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)").step(later, "")
	r.step(sooner, "RevokePartitions(2)")
	if !find[RevokePartitions](t, r.effects).Closing {
		t.Error("it is closing now")
	}
	r.releaseAll(r.m.Granted(), "SendLeave").step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED Left")

	r = newRig(t, nil).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)")
	r.releaseAll(r.m.Granted(), "SendLeave").step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED GaveUp")
	r.step(sooner, ">LEAVING >UNJOINED Left") // while it rests

	r = newRig(t, nil).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)")
	r.releaseAll(r.m.Granted(), "SendLeave").step(LeaveAnswered{Seq: r.m.seq, Err: errNetwork}, "Refused")
	r.step(later, "SendLeave") // it does not wait for the next try
	r.step(LeaveAnswered{Seq: r.m.seq, Err: kafka.GroupAuthorizationFailed}, "LeaveGeneration >UNJOINED Left")

	r = newRig(t, asStatic).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)")
	r.step(later, "").releaseAll(r.m.Granted(), "LeaveGeneration >UNJOINED Left") // as a static member that is closed
}

func TestGiveUpDoesNotHoldUpALeave(t *testing.T) {
	r := newRig(t, nil).to(StateLeaving)
	r.step(GiveUp{}, "")
	r.releaseAll(r.m.Granted(), "SendLeave").step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED Left")
}

func TestASecondGiveUpOnlyShortens(t *testing.T) {
	r := newRig(t, nil).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)")
	r.step(GiveUp{DrainUntil: epoch0.Add(time.Hour), Deadline: epoch0.Add(time.Hour)}, "")
	r.step(GiveUp{DrainUntil: epoch0.Add(time.Second), Deadline: epoch0.Add(time.Second)}, "RevokePartitions(2)")
	r.wait(time.Second).step(Tick{}, "LosePartitions(2) LeaveGeneration >UNJOINED GaveUp")
	if r.m.MemberID() != "me" {
		t.Error("there was no time for LeaveGroup: the coordinator still counts the member in")
	}
}

func TestLossWhileGivingUp(t *testing.T) {
	for name, c := range map[string]struct {
		in   Input
		want string
		id   string
	}{
		"unknown member":     {HeartbeatAnswered{Generation: 5, Err: kafka.UnknownMemberID}, "LosePartitions(2) LeaveGeneration", ""},
		"illegal generation": {HeartbeatAnswered{Generation: 5, Err: kafka.IllegalGeneration}, "LosePartitions(2) LeaveGeneration SendLeave", ""},
		"session":            {SessionExpired{Generation: 5}, "LosePartitions(2) LeaveGeneration SendLeave", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)").step(c.in, c.want)
			if r.m.request.kind == requestLeave {
				r.step(LeaveAnswered{Seq: r.m.seq, Err: kafka.UnknownMemberID}, "")
			}
			r.step(PartitionReleased{tp("t", 0), 1}, "")
			r.step(PartitionReleased{tp("t", 1), 2}, ">UNJOINED GaveUp")
			if r.m.MemberID() != c.id {
				t.Errorf("member id %q", r.m.MemberID())
			}
		})
	}
}

func TestAMemberThatIsFencedWhileItGivesUpNeverComesBack(t *testing.T) {
	r := newRig(t, asStatic).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)")
	r.step(HeartbeatAnswered{Generation: 5, Err: kafka.FencedInstanceID}, "LosePartitions(2) LeaveGeneration >FATAL Failed")
	r.step(GiveUp{}, "")

	r = newRig(t, asStatic).to(StateAssigned).step(r0GiveUp(), ">LEAVING RevokePartitions(2)")
	r.releaseAll(r.m.Granted(), "SendLeave")
	r.step(LeaveAnswered{Seq: r.m.seq, Err: kafka.FencedInstanceID}, "LeaveGeneration >FATAL Failed")
}

// A cooperative member that waits for its place in the next generation could not commit: it waits, for half of the drain.
func TestGiveUpWhileTheMemberJoinsAgainWaitsForItsPlace(t *testing.T) {
	joining := func(t *testing.T) *rig {
		r := newRig(t, asCooperative).to(StateAssigned)
		return r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	}
	r := joining(t).step(r0GiveUp(), "").step(r0GiveUp(), "")
	r.step(r.joinOK(6, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(0) >LEAVING RevokePartitions(2)")
	r.releaseAll(r.m.Granted(), "SendLeave").step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED GaveUp")

	r = joining(t).step(r0GiveUp(), "")
	r.tickDue("ResumeCommits >LEAVING RevokePartitions(2)")
	if waited := r.now.Sub(epoch0); waited != 5*time.Second {
		t.Errorf("waited for %v", waited)
	}

	r = joining(t).step(r0GiveUp(), "") // and is closed meanwhile
	r.step(Leave{DrainUntil: epoch0.Add(time.Second), Deadline: epoch0.Add(2 * time.Second)}, "").step(r0GiveUp(), "")
	r.tickDue("ResumeCommits >LEAVING RevokePartitions(2)")
	r.releaseAll(r.m.Granted(), "SendLeave").step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED Left")

	r = joining(t).step(r0GiveUp(), "") // and is put out meanwhile
	r.step(r.joinError(kafka.UnknownMemberID), "LosePartitions(2) LeaveGeneration >UNJOINED >LEAVING")
	r.releaseAll([]Grant{{tp("t", 0), 1}, {tp("t", 1), 2}}, ">UNJOINED GaveUp")

	r = joining(t).step(r0GiveUp(), "") // and is refused for good meanwhile
	r.step(r.joinError(kafka.InvalidGroupID), "LosePartitions(2) LeaveGeneration >FATAL Failed")
}
