package rebalance

import (
	"errors"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestLeaveInEachState(t *testing.T) {
	for _, c := range []struct {
		state State
		want  string
		last  string
	}{
		{StateUnjoined, ">LEAVING >UNJOINED Left", ""},
		{StateJoining, ">LEAVING >UNJOINED Left", ""},
		{StateSyncing, ">LEAVING SendLeave", ""},
		{StateAssigning, ">LEAVING RevokePartitions(2)", "SendLeave"},
		{StateAssigned, ">LEAVING RevokePartitions(2)", "SendLeave"},
		{StateRevoking, ">LEAVING RevokePartitions(2)", "SendLeave"},
		{StateFatal, ">LEAVING >UNJOINED Left", ""},
	} {
		t.Run(c.state.String(), func(t *testing.T) {
			r := newRig(t, nil).to(c.state)
			r.step(Leave{DrainUntil: r.now.Add(10 * time.Second), Deadline: r.now.Add(15 * time.Second)}, c.want)
			if c.last != "" {
				revoke := find[RevokePartitions](t, r.effects)
				if !revoke.Closing || revoke.DrainUntil.Sub(r.now) != 10*time.Second || revoke.Deadline.Sub(r.now) != 13*time.Second {
					t.Errorf("revoke %+v", revoke)
				}
				r.releaseAll(revoke.Grants, c.last)
			}
			if r.m.State() == StateLeaving {
				want := "LeaveGeneration >UNJOINED Left"
				if c.state == StateSyncing {
					want = ">UNJOINED Left" // no generation was entered
				}
				r.step(LeaveAnswered{Seq: r.m.seq}, want)
			}
			if err := find[Left](t, r.effects).Err; err != nil {
				t.Errorf("left with %v", err)
			}
			if _, ok := r.m.Deadline(); ok || r.m.MemberID() != "" || r.m.State() != StateUnjoined {
				t.Error("not out of the group")
			}
		})
	}
}

func TestLeaveWhileJoiningAgainLeavesWithTheIDItHas(t *testing.T) {
	r := newRig(t, nil).to(StateRevoking)
	r.releaseAll(r.m.Granted(), ">REVOKED >JOINING HoldCommits SendJoin")
	stale := r.joinOK(6, "other")
	r.step(Leave{DrainUntil: r.now, Deadline: r.now.Add(time.Second)}, ">LEAVING SendLeave")
	r.step(stale, "")
	r.step(LeaveAnswered{Seq: r.m.seq, Err: kafka.GroupAuthorizationFailed}, "LeaveGeneration >UNJOINED Left")
	if err := find[Left](t, r.effects).Err; !errors.Is(err, kafka.GroupAuthorizationFailed) {
		t.Errorf("left with %v", err)
	}
}

// A coordinator that moves is asked again: until it hears of it, nobody else gets the partitions for a whole session.
func TestLeaveGroupIsTriedAgainForAShortTime(t *testing.T) {
	r := newRig(t, nil).to(StateLeaving)
	r.releaseAll(r.m.Granted(), "SendLeave")
	r.step(LeaveAnswered{Seq: r.m.seq, Err: kafka.NotCoordinator}, "Refused").tickDue("SendLeave")
	r.step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED Left")
	if err := find[Left](t, r.effects).Err; err != nil {
		t.Errorf("left with %v", err)
	}

	r = newRig(t, nil).to(StateLeaving)
	r.releaseAll(r.m.Granted(), "SendLeave")
	began := r.now
	for tries := 0; r.m.State() == StateLeaving; tries++ {
		if tries > 0 {
			r.tickDue("SendLeave")
		}
		effects, err := r.m.Step(r.now, LeaveAnswered{Seq: r.m.seq, Err: errNetwork})
		if r.effects = effects; err != nil {
			t.Fatal(err)
		}
	}
	if err := find[Left](t, r.effects).Err; !errors.Is(err, errNetwork) || r.now.Sub(began) > leaveTries {
		t.Errorf("left with %v after %v", err, r.now.Sub(began))
	}
}

func TestLeaveIsBoundedByItsDeadline(t *testing.T) {
	r := newRig(t, nil).to(StateLeaving)
	began := r.now
	r.tickDue("Refused LosePartitions(2) SendLeave")
	r.tickDue("LeaveGeneration >UNJOINED Left")
	if err := find[Left](t, r.effects).Err; !errors.Is(err, ErrLeaveUnfinished) || r.now.Sub(began) != 14*time.Second {
		t.Errorf("left with %v after %v", err, r.now.Sub(began))
	}
	r.step(PartitionReleased{tp("t", 0), 1}, "") // too late, and harmless
}

func TestLeaveWithADeadlineThatHasPassed(t *testing.T) {
	r := newRig(t, nil).to(StateAssigned)
	r.step(Leave{}, ">LEAVING RevokePartitions(2)")
	r.step(Tick{}, "LosePartitions(2) LeaveGeneration >UNJOINED Left")
}

func TestSecondLeaveOnlyShortens(t *testing.T) {
	r := newRig(t, nil).to(StateLeaving)
	r.step(Leave{DrainUntil: r.now.Add(time.Hour), Deadline: r.now.Add(time.Hour)}, "")
	r.step(Leave{DrainUntil: r.now.Add(time.Second), Deadline: r.now.Add(time.Second)}, "RevokePartitions(2)")
	r.wait(time.Second).step(Tick{}, "LosePartitions(2) LeaveGeneration >UNJOINED Left")
}

func TestLossWhileLeaving(t *testing.T) {
	for name, c := range map[string]struct {
		in   Input
		want string
	}{
		"unknown member":     {HeartbeatAnswered{Generation: 5, Err: kafka.UnknownMemberID}, "LosePartitions(2) LeaveGeneration"},
		"fenced instance":    {HeartbeatAnswered{Generation: 5, Err: kafka.FencedInstanceID}, "LosePartitions(2) LeaveGeneration"},
		"illegal generation": {HeartbeatAnswered{Generation: 5, Err: kafka.IllegalGeneration}, "LosePartitions(2) LeaveGeneration SendLeave"},
		"session":            {SessionExpired{Generation: 5}, "LosePartitions(2) LeaveGeneration SendLeave"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil).to(StateLeaving).step(c.in, c.want)
			if r.m.request.kind == requestLeave {
				r.step(LeaveAnswered{Seq: r.m.seq, Err: kafka.UnknownMemberID}, "")
			}
			r.step(PartitionReleased{tp("t", 0), 1}, "")
			r.step(PartitionReleased{tp("t", 1), 2}, ">UNJOINED Left")
		})
	}
}

func TestMemberMayStartAgainAfterItLeft(t *testing.T) {
	r := newRig(t, nil).to(StateLeaving)
	r.releaseAll(r.m.Granted(), "SendLeave").step(LeaveAnswered{Seq: r.m.seq}, "LeaveGeneration >UNJOINED Left")
	r.step(Start{}, ">JOINING SendJoin").step(r.joinOK(9, "other"), ">SYNCING SendSync")
	r.step(r.syncOK(tp("t", 0)), "EnterGeneration >ASSIGNING AssignPartitions(1)")
	if got := r.m.Granted()[0].Epoch; got != 3 {
		t.Errorf("epoch %d", got)
	}
}
