package rebalance

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/troupego/troupe/pkg/kafka"
)

const lostTwo = "LosePartitions(2) LeaveGeneration >UNJOINED >JOINING SendJoin"

func TestEagerRebalanceRevokesEverythingBeforeJoining(t *testing.T) {
	r := newRig(t, nil).to(StateAssigned)
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING RevokePartitions(2)")
	revoke := find[RevokePartitions](t, r.effects)
	if got := revoke.DrainUntil.Sub(r.now); got != 30*time.Second {
		t.Errorf("drain of %v", got)
	}
	if got := revoke.Deadline.Sub(revoke.DrainUntil); got != 3*time.Second || revoke.Closing {
		t.Errorf("final commit gets %v, closing %t", got, revoke.Closing)
	}
	r.wait(time.Second).step(r.heartbeat(kafka.RebalanceInProgress), "")
	r.step(PartitionReleased(revoke.Grants[0]), "")
	r.step(PartitionReleased(revoke.Grants[1]), ">REVOKED >JOINING HoldCommits SendJoin")
	join := find[SendJoin](t, r.effects)
	subscription, err := DecodeSubscription(join.Request.Protocols[0].Metadata)
	if err != nil || len(subscription.Owned) != 0 || subscription.Generation != 5 || join.Request.MemberID != "me" {
		t.Errorf("join %+v: subscription %+v: %v", join.Request, subscription, err)
	}
	if join.Request.Reason != "heartbeat: REBALANCE_IN_PROGRESS (27)" {
		t.Errorf("reason %q", join.Request.Reason)
	}
	r.step(r.joinOK(6, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(1)")
	if grants := r.m.Granted(); len(grants) != 1 || grants[0] != (Grant{tp("t", 1), 3}) {
		t.Errorf("a partition that came back has no fresh epoch: %v", grants)
	}
	r.startAll().in(StateAssigned)
	if r.joins != 2 {
		t.Errorf("%d JoinGroups for two generations", r.joins)
	}
}

func TestRebalanceWithNothingGrantedGoesStraightThrough(t *testing.T) {
	r := newRig(t, nil).to(StateSyncing)
	r.step(r.syncOK(), "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
	r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
}

func TestRepeatedRebalanceInProgressSendsOneJoinGroup(t *testing.T) {
	r := newRig(t, nil).to(StateRevoking)
	for range 5 {
		r.step(r.heartbeat(kafka.RebalanceInProgress), "")
	}
	r.releaseAll(r.m.Granted(), ">REVOKED >JOINING HoldCommits SendJoin")
	for range 5 {
		r.step(r.heartbeat(kafka.RebalanceInProgress), "")
	}
	r.step(r.joinOK(6, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.heartbeat(kafka.IllegalGeneration), "")
	r.step(CommitFenced{Generation: 5, Err: kafka.IllegalGeneration}, "")
	if r.joins != 2 {
		t.Errorf("%d JoinGroups", r.joins)
	}
}

func TestMemberIDRequiredKeepsTheIDAndJoinsAtOnce(t *testing.T) {
	r := newRig(t, nil).to(StateJoining)
	in := r.joinError(kafka.MemberIDRequired)
	in.Response.MemberID = "given"
	r.step(in, "SendJoin")
	if got := find[SendJoin](t, r.effects).Request.MemberID; got != "given" {
		t.Errorf("member id %q", got)
	}
	again := r.joinError(kafka.MemberIDRequired)
	again.Response.MemberID = "given"
	r.step(again, "Refused") // the same once more would be a loop
	r.tickDue("SendJoin")
}

func TestCoordinatorLoadingIsRetriedWithBackoffUnderTheSameID(t *testing.T) {
	r := newRig(t, nil).to(StateJoining)
	in := r.joinError(kafka.MemberIDRequired)
	in.Response.MemberID = "given"
	r.step(in, "SendJoin")
	var last time.Duration
	for i, err := range []error{kafka.CoordinatorLoadInProgress, kafka.CoordinatorNotAvailable, kafka.NotCoordinator, errNetwork, errNetwork, errNetwork, errNetwork} {
		r.step(r.joinError(err), "Refused")
		var attempt *AttemptError
		if refused := find[Refused](t, r.effects); !errors.As(refused.Err, &attempt) || !errors.Is(refused.Err, err) || attempt.Attempt != i+1 {
			t.Fatalf("refused %v", refused.Err)
		}
		wait := attempt.RetryAt.Sub(r.now)
		if wait > 2*time.Second || wait < 80*time.Millisecond || last < time.Second && wait <= last {
			t.Errorf("wait %d is %v after %v", i+1, wait, last)
		}
		last = wait
		r.step(Tick{}, "") // too early
		r.tickDue("SendJoin")
		if got := find[SendJoin](t, r.effects).Request.MemberID; got != "given" {
			t.Errorf("member id %q", got)
		}
	}
	if last < 1600*time.Millisecond {
		t.Errorf("backoff ends at %v", last)
	}
}

func TestSameSeedGivesTheSameJitter(t *testing.T) {
	waits := func(seed uint64) (out []time.Duration) {
		b := newBackoff(0, 0, seed)
		for range 12 {
			out = append(out, b.next())
		}
		return out
	}
	if !slices.Equal(waits(3), waits(3)) || slices.Equal(waits(3), waits(4)) {
		t.Error("jitter does not come from the seed alone")
	}
}

func TestLostMembershipLosesEverythingAndJoinsAgain(t *testing.T) {
	for name, c := range map[string]struct {
		in     func(r *rig) Input
		keepID bool
	}{
		"heartbeat unknown member":     {func(r *rig) Input { return r.heartbeat(kafka.UnknownMemberID) }, false},
		"heartbeat illegal generation": {func(r *rig) Input { return r.heartbeat(kafka.IllegalGeneration) }, true},
		"session":                      {func(*rig) Input { return SessionExpired{Generation: 5} }, true},
		"commit unknown member":        {func(*rig) Input { return CommitFenced{Generation: 5, Err: kafka.UnknownMemberID} }, false},
		"commit illegal generation":    {func(*rig) Input { return CommitFenced{Generation: 5, Err: kafka.IllegalGeneration} }, true},
	} {
		for _, state := range []State{StateAssigning, StateAssigned, StateRevoking} {
			t.Run(name+" in "+state.String(), func(t *testing.T) {
				r := newRig(t, nil).to(state)
				r.step(c.in(r), lostTwo)
				join := find[SendJoin](t, r.effects)
				if (join.Request.MemberID == "me") != c.keepID || r.m.Generation() != kafka.NoGeneration || len(r.m.Granted()) != 0 {
					t.Errorf("member id %q, generation %d, granted %v", join.Request.MemberID, r.m.Generation(), r.m.Granted())
				}
				// The new generation may come before the lost partitions are gone.
				r.step(r.joinOK(7, "other"), ">SYNCING SendSync")
				r.step(PartitionReleased{tp("t", 0), 1}, "")
				r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(2)")
				r.step(PartitionReleased{tp("t", 1), 2}, "")
				if got := r.m.Granted(); !slices.Equal(got, []Grant{{tp("t", 0), 3}, {tp("t", 1), 4}}) {
					t.Errorf("granted %v", got)
				}
				r.step(PartitionStarted{tp("t", 0), 1}, "") // of the old epoch
				r.startAll().in(StateAssigned)
			})
		}
	}
}

func TestStaleGenerationChangesNothing(t *testing.T) {
	for state := range State(len(memberMoves)) {
		if state == StateRevoked {
			continue
		}
		r := newRig(t, nil).to(state)
		for _, in := range []Input{
			HeartbeatAnswered{Generation: 4, Err: kafka.UnknownMemberID}, SessionExpired{Generation: 4},
			CommitFenced{Generation: 4, Err: kafka.FencedInstanceID},
			JoinAnswered{Seq: r.m.seq + 1}, JoinAnswered{}, SyncAnswered{Seq: r.m.seq + 1}, TopicsKnown{}, LeaveAnswered{Seq: 99},
			HeartbeatAnswered{Generation: kafka.NoGeneration, Err: kafka.UnknownMemberID},
		} {
			r.step(in, "").in(state)
		}
	}
}

func TestFencingLoopBacksOff(t *testing.T) {
	r := newRig(t, nil).to(StateJoining)
	r.step(r.joinError(kafka.UnknownMemberID), ">UNJOINED >JOINING SendJoin")
	for range 3 {
		r.step(r.joinError(kafka.UnknownMemberID), ">UNJOINED >JOINING")
		r.tickDue("SendJoin")
	}
}

func TestErrorsOfAHeartbeatThatProveNothing(t *testing.T) {
	for _, err := range []error{errNetwork, kafka.CoordinatorNotAvailable, kafka.NotCoordinator, kafka.CoordinatorLoadInProgress, nil} {
		newRig(t, nil).to(StateAssigned).step(HeartbeatAnswered{Generation: 5, Err: err}, "").in(StateAssigned)
	}
	newRig(t, nil).to(StateAssigned).step(HeartbeatAnswered{Generation: 5, Err: kafka.GroupAuthorizationFailed}, "Refused")
}

func TestCausesOfJoinAndSync(t *testing.T) {
	const (
		retried   = "Refused"
		forgotten = ">UNJOINED >JOINING SendJoin"
		rejoined  = ">JOINING SendJoin"
		fatal     = ">FATAL Failed"
	)
	for _, c := range []struct {
		err        error
		join, sync string
	}{
		{kafka.CoordinatorLoadInProgress, retried, retried},
		{kafka.CoordinatorNotAvailable, retried, retried},
		{kafka.NotCoordinator, retried, retried},
		{kafka.RequestTimedOut, retried, retried},
		{errNetwork, retried, retried},
		{&kafka.RequestError{API: "JoinGroup", Err: kafka.NotCoordinator}, retried, retried},
		{&kafka.ConnectError{Phase: "authenticate", Err: errNetwork}, retried, retried},
		{kafka.GroupAuthorizationFailed, retried, retried},
		{kafka.TopicAuthorizationFailed, retried, retried},
		{kafka.GroupMaxSizeReached, retried, retried},
		{kafka.SaslAuthenticationFailed, retried, retried},
		{kafka.UnknownServerError, retried, retried},
		{kafka.ErrorCode(999), retried, retried},
		{kafka.RebalanceInProgress, retried, rejoined},
		{kafka.IllegalGeneration, retried, rejoined},
		{kafka.UnknownMemberID, forgotten, forgotten},
		{kafka.FencedInstanceID, fatal, fatal},
		{kafka.InconsistentGroupProtocol, retried, retried},
		{kafka.InvalidSessionTimeout, fatal, fatal},
		{kafka.InvalidGroupID, fatal, fatal},
		{kafka.UnsupportedVersion, fatal, fatal},
		{&kafka.VersionError{API: "JoinGroup"}, fatal, fatal},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			r := newRig(t, nil).to(StateJoining)
			r.step(r.joinError(c.err), c.join)
			r = newRig(t, nil).to(StateSyncing)
			r.step(r.syncError(c.err), c.sync)
		})
	}
}

func TestMissingRightsAreRetriedSlowlyAndVisibly(t *testing.T) {
	r := newRig(t, nil).to(StateJoining)
	for range 3 {
		r.step(r.joinError(kafka.GroupAuthorizationFailed), "Refused")
		at, _ := r.m.Deadline()
		if wait := at.Sub(r.now); wait < 1600*time.Millisecond || wait > 2*time.Second {
			t.Errorf("wait %v", wait)
		}
		r.tickDue("SendJoin")
	}
	r.step(r.joinOK(1, "other"), ">SYNCING SendSync")
}

func TestSyncGroupIsRepeatedWhileItsGenerationLives(t *testing.T) {
	r := newRig(t, nil).to(StateSyncing)
	r.step(r.syncError(kafka.NotCoordinator), "Refused").tickDue("SendSync")
	r.wait(46*time.Second).step(r.syncError(errNetwork), ">JOINING Refused")
	r.tickDue("SendJoin")
}

func TestStaticMemberKeepsItsPlaceWhenItLeaves(t *testing.T) {
	r := newRig(t, func(c *MemberConfig) { c.GroupInstanceID = "i" }).to(StateAssigned)
	r.step(Leave{DrainUntil: r.now.Add(time.Second), Deadline: r.now.Add(3 * time.Second)}, ">LEAVING RevokePartitions(2)")
	r.releaseAll(r.m.Granted(), "LeaveGeneration >UNJOINED Left")
}

func TestFencedInstanceIsFatalAndDoesNotLeaveForTheOther(t *testing.T) {
	for _, in := range []Input{
		HeartbeatAnswered{Generation: 5, Err: kafka.FencedInstanceID}, CommitFenced{Generation: 5, Err: kafka.FencedInstanceID},
	} {
		r := newRig(t, func(c *MemberConfig) { c.GroupInstanceID = "i" }).to(StateAssigned)
		r.step(in, "LosePartitions(2) LeaveGeneration >FATAL Failed")
		if err := find[Failed](t, r.effects).Err; !errors.Is(err, kafka.FencedInstanceID) {
			t.Errorf("failed with %v", err)
		}
		if _, ok := r.m.Deadline(); ok || r.m.MemberID() != "" {
			t.Error("FATAL still wants something")
		}
		r.step(Leave{DrainUntil: r.now, Deadline: r.now.Add(time.Second)}, ">LEAVING")
		r.step(PartitionReleased{tp("t", 0), 1}, "")
		r.step(PartitionReleased{tp("t", 1), 2}, ">UNJOINED Left")
	}
}

func TestForeignPartitionIsRefusedAndTheRestGoesOn(t *testing.T) {
	r := newRig(t, nil).to(StateSyncing)
	r.step(r.syncOK(tp("t", 0), tp("x", 0), tp("t", -1), tp("t", 0)), "EnterGeneration >ASSIGNING Refused Refused AssignPartitions(1)")
	for _, e := range r.effects {
		if refused, ok := e.(Refused); ok && !errors.Is(refused.Err, ErrForeignPartition) {
			t.Errorf("refused %v", refused.Err)
		}
	}
}

func TestUnreadableAssignmentIsSeenAndTheMemberStays(t *testing.T) {
	r := newRig(t, nil).to(StateSyncing)
	r.step(SyncAnswered{Seq: r.m.seq, Response: SyncResponse{Assignment: []byte{0, 1, 0, 0, 9, 9}}},
		"Refused EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
	r = newRig(t, nil).to(StateSyncing)
	r.step(SyncAnswered{Seq: r.m.seq}, "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED") // no bytes = nothing
}

func TestAnswersThatMakeNoSense(t *testing.T) {
	for _, response := range []JoinResponse{{}, {Generation: 3, MemberID: "me", Protocol: "sticky"}, {Generation: -1, MemberID: "me", Protocol: "range"}} {
		r := newRig(t, nil).to(StateJoining)
		r.step(JoinAnswered{Seq: r.m.seq, Response: response}, "Refused")
		if err := find[Refused](t, r.effects).Err; !errors.Is(err, ErrBadAnswer) {
			t.Errorf("refused %v", err)
		}
	}
	r := newRig(t, nil).to(StateSyncing)
	r.step(SyncAnswered{Seq: r.m.seq, Response: SyncResponse{Protocol: "sticky"}}, ">JOINING SendJoin")
}

func TestPartitionThatIsNeverReleasedIsDeclaredLost(t *testing.T) {
	r := newRig(t, nil).to(StateRevoking)
	began := r.now
	r.step(PartitionReleased{tp("t", 1), 2}, "")
	r.tickDue("Refused LosePartitions(1) >REVOKED >JOINING HoldCommits SendJoin")
	if got := r.now.Sub(began); got > 57*time.Second || got <= 33*time.Second {
		t.Errorf("waited %v", got)
	}
	if err := find[LosePartitions](t, r.effects).Cause; !errors.Is(err, ErrNotReleased) {
		t.Errorf("cause %v", err)
	}
	r.step(PartitionReleased{tp("t", 0), 1}, "")
}

func TestLongestDrainStillLeavesTimeForTheJoinGroup(t *testing.T) {
	for _, drain := range []time.Duration{0, time.Second, 30 * time.Second, 52 * time.Second, 56999 * time.Millisecond} {
		r := newRig(t, func(c *MemberConfig) { c.DrainTimeout = drain }).to(StateRevoking)
		at, _ := r.m.Deadline()
		if limit := r.now.Add(57 * time.Second); !at.Before(limit) {
			t.Errorf("with a drain of %v JoinGroup goes out at %v of 57s", drain, at.Sub(r.now))
		}
	}
}

func TestReleaseOfAPartitionNobodyRevokedIsAnError(t *testing.T) {
	r := newRig(t, nil).to(StateAssigned)
	if err := r.try(PartitionReleased{tp("t", 0), 1}); !errors.Is(err, ErrUnexpectedInput) || len(r.m.Granted()) != 2 {
		t.Errorf("%v, granted %v", err, r.m.Granted())
	}
}

func TestMemberConfigIsChecked(t *testing.T) {
	for name, change := range map[string]func(*MemberConfig){
		"group":       func(c *MemberConfig) { c.GroupID = "" },
		"empty topic": func(c *MemberConfig) { c.Topics = []string{"t", ""} },
		"long topic":  func(c *MemberConfig) { c.Topics = []string{string(make([]byte, 1<<15))} },
		"assignors":   func(c *MemberConfig) { c.Assignors = nil },
		"nil":         func(c *MemberConfig) { c.Assignors = []Assignor{nil} },
		"session":     func(c *MemberConfig) { c.SessionTimeout = 0 },
		"rebalance":   func(c *MemberConfig) { c.RebalanceTimeout = 0 },
		"heartbeat":   func(c *MemberConfig) { c.HeartbeatInterval = 0 },
		"interval":    func(c *MemberConfig) { c.HeartbeatInterval = c.SessionTimeout },
		"drain":       func(c *MemberConfig) { c.DrainTimeout = 57 * time.Second },
		"no drain":    func(c *MemberConfig) { c.DrainTimeout = -1 },
		"backoff":     func(c *MemberConfig) { c.BackoffInitial = time.Minute },
		"no backoff":  func(c *MemberConfig) { c.BackoffMax = -1 },
	} {
		config := testConfig()
		change(&config)
		if _, err := NewMember(config); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type cooperative struct{ rangeAssignor }

func (cooperative) Protocol() RebalanceProtocol { return Cooperative }

func TestMemberTakesOverFromAnEarlierOne(t *testing.T) {
	r := newRig(t, func(c *MemberConfig) { c.LastEpoch, c.MemberID = 40, "me" }).step(Start{}, ">JOINING SendJoin")
	if got := find[SendJoin](t, r.effects).Request.MemberID; got != "me" {
		t.Errorf("member id %q", got)
	}
	r.step(r.joinOK(5, "other"), ">SYNCING SendSync")
	r.step(r.syncOK(tp("t", 0)), "EnterGeneration >ASSIGNING AssignPartitions(1)")
	if got := r.m.Granted(); got[0].Epoch != 41 || r.m.LastEpoch() != 41 {
		t.Errorf("granted %v, last epoch %d", got, r.m.LastEpoch())
	}
}

func TestReasonToldToTheCoordinatorIsShort(t *testing.T) {
	r := newRig(t, nil).to(StateAssigned)
	r.step(Rejoin{Cause: strings.Repeat("é", 1000)}, ">REVOKING RevokePartitions(2)")
	r.releaseAll(r.m.Granted(), ">REVOKED >JOINING HoldCommits SendJoin")
	if got := find[SendJoin](t, r.effects).Request.Reason; len(got) != 254 || !utf8.ValidString(got) {
		t.Errorf("%d bytes", len(got))
	}
}
