package rebalance

import (
	"errors"
	"slices"
	"testing"
)

// asked returns the topics of the JoinGroup among the last effects.
func (r *rig) asked() []string {
	r.t.Helper()
	subscription, err := DecodeSubscription(find[SendJoin](r.t, r.effects).Request.Protocols[0].Metadata)
	if err != nil {
		r.t.Fatal(err)
	}
	return subscription.Topics
}

func TestAMemberJoinsWhenItKnowsWhatToSubscribeTo(t *testing.T) {
	for _, topics := range [][]string{{"u", "t", "u"}, {}, nil} {
		r := newRig(t, func(c *MemberConfig) { c.Topics = nil })
		r.step(Start{}, "").in(StateUnjoined)
		r.step(SubscriptionChanged{Topics: topics}, ">JOINING SendJoin")
		want := slices.Compact(slices.Sorted(slices.Values(topics)))
		if got := r.asked(); !slices.Equal(got, want) {
			t.Errorf("asks for %v, want %v", got, want)
		}
		if reason := find[SendJoin](t, r.effects).Request.Reason; reason != "first join" {
			t.Errorf("reason %q", reason)
		}
	}
	r := newRig(t, func(c *MemberConfig) { c.Topics = nil })
	r.step(SubscriptionChanged{Topics: []string{"t"}}, "").step(Start{}, ">JOINING SendJoin")
	r = newRig(t, func(c *MemberConfig) { c.Topics = nil })
	r.step(Start{}, "").step(Leave{}, ">LEAVING >UNJOINED Left")
	r.step(SubscriptionChanged{Topics: []string{"t"}}, "").in(StateUnjoined)
}

func TestATopicMoreIsAskedForInANewRebalance(t *testing.T) {
	r := coopRig(t).settled()
	r.step(SubscriptionChanged{Topics: []string{"t", "w", "v", "u", "x"}}, ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	if got := r.asked(); !slices.Equal(got, []string{"t", "u", "v", "w", "x"}) {
		t.Errorf("asks for %v", got)
	}
	if got := find[SendJoin](t, r.effects).Request.Reason; got != "subscribed to u, v, w and 1 more" {
		t.Errorf("reason %q", got)
	}
}

func TestATopicThatIsGoneIsLeftToTheLeader(t *testing.T) {
	r := coopRig(t).settled()
	r.step(SubscriptionChanged{Topics: []string{"t", "u"}}, ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
	r.step(SubscriptionChanged{Topics: []string{"t"}, Gone: []string{"u"}}, "").in(StateAssigned)
	r.step(SubscriptionChanged{Topics: []string{"t"}}, "").in(StateAssigned)
	r.step(Rejoin{}, ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	if got := r.asked(); !slices.Equal(got, []string{"t"}) {
		t.Errorf("asks for %v", got)
	}
}

func TestATopicNoLongerWantedIsGivenUp(t *testing.T) {
	r := coopRig(t).settled()
	r.step(SubscriptionChanged{Topics: []string{"u"}}, ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	if got := find[SendJoin](t, r.effects).Request.Reason; got != "subscribed to u" {
		t.Errorf("reason %q", got)
	}
	r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("u", 0)), "EnterGeneration >ASSIGNING AssignPartitions(1) >REVOKING RevokePartitions(2)")
	r = coopRig(t).settled()
	r.step(SubscriptionChanged{}, ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	if got := find[SendJoin](t, r.effects).Request.Reason; got != "no longer subscribed to t" {
		t.Errorf("reason %q", got)
	}
}

// An assignment answers the JoinGroup that was sent, whatever the member wants by now.
func TestAnAssignmentIsCheckedAgainstWhatItsJoinGroupAskedFor(t *testing.T) {
	r := newRig(t, func(c *MemberConfig) { c.Topics = []string{"t", "u"} }).to(StateJoining)
	r.step(SubscriptionChanged{Topics: []string{"t", "v"}, Gone: []string{"u"}}, "")
	r.step(r.joinOK(5, "other"), ">SYNCING SendSync")
	r.step(r.syncOK(tp("u", 0), tp("v", 0)), "EnterGeneration >ASSIGNING Refused AssignPartitions(1) >REVOKING RevokePartitions(1)")
	var refused Refused
	for _, e := range r.effects {
		if e, ok := e.(Refused); ok {
			refused = e
		}
	}
	if granted := r.m.Granted(); len(granted) != 1 || granted[0].TopicPartition != tp("u", 0) || !errors.Is(refused.Err, ErrForeignPartition) {
		t.Errorf("granted %v, refused %v", granted, refused.Err)
	}
	r.releaseAll(r.m.Granted(), ">REVOKED >JOINING HoldCommits SendJoin")
	if got := r.asked(); !slices.Equal(got, []string{"t", "v"}) {
		t.Errorf("asks for %v", got)
	}
}

func TestASubscriptionThatCannotBeWrittenIsRefusedAndTheOldOneStays(t *testing.T) {
	r := coopRig(t).settled()
	if err := r.try(SubscriptionChanged{Topics: []string{"t", string(make([]byte, 1<<15))}}); err == nil || len(r.effects) > 0 {
		t.Errorf("%v, %v", err, r.effects)
	}
	r.step(Rejoin{}, ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	if got := r.asked(); !slices.Equal(got, []string{"t"}) {
		t.Errorf("asks for %v", got)
	}
}

func TestATopicLetGoIsRevokedBeforeTheMemberJoinsAgain(t *testing.T) {
	r := coopRig(t).settled()
	mine := r.m.Granted()
	r.step(SubscriptionChanged{Topics: []string{"u"}, LetGo: []string{"t"}}, ">REVOKING RevokePartitions(2)")
	r.step(SubscriptionChanged{Topics: []string{"t", "u"}}, "").in(StateRevoking) // subscribed again, with another handler
	r.releaseAll(mine, ">REVOKED >JOINING HoldCommits SendJoin")
	if got := r.asked(); !slices.Equal(got, []string{"t", "u"}) {
		t.Errorf("asks for %v", got)
	}
	r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(2)")
	for i, grant := range r.m.Granted() {
		if grant.Epoch <= mine[i].Epoch {
			t.Errorf("%v is held on from %v", grant, mine[i])
		}
	}
}

func TestATopicLetGoWhileItsPlaceIsAskedForIsNotTaken(t *testing.T) {
	for name, assignor := range map[string]Assignor{"eager": Range(), "cooperative": cooperative{}} {
		for _, resubscribed := range []bool{false, true} {
			r := newRig(t, func(c *MemberConfig) { c.Assignors, c.Topics = []Assignor{assignor}, []string{"t", "u"} }).to(StateJoining)
			r.step(SubscriptionChanged{Topics: []string{"u"}, LetGo: []string{"t"}}, "")
			if resubscribed {
				r.step(SubscriptionChanged{Topics: []string{"t", "u"}}, "")
			}
			r.step(r.joinOK(5, "other"), ">SYNCING SendSync")
			_ = r.try(r.syncOK(tp("t", 0), tp("u", 0)))
			if granted := r.m.Granted(); len(granted) > 1 || len(granted) == 1 && granted[0].TopicPartition != tp("u", 0) {
				t.Errorf("%s: granted %v", name, granted)
			}
			if r.m.State() != StateRevoking && r.m.State() != StateJoining {
				t.Errorf("%s: no rebalance follows, %v", name, r.m.State())
			}
		}
	}
}

func TestWhatIsHeldOfATopicLetGoDuringARebalanceIsRevokedAtItsEnd(t *testing.T) {
	for _, again := range []bool{false, true} {
		r := coopRig(t).settled()
		mine := r.m.Granted()
		r.step(Rejoin{}, ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
		r.step(SubscriptionChanged{LetGo: []string{"t"}}, "")
		if again {
			r.step(SubscriptionChanged{Topics: []string{"t"}}, "")
		}
		r.step(r.joinOK(2, "other"), ">SYNCING JoinGeneration SendSync")
		r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(0) >REVOKING RevokePartitions(2)")
		r.releaseAll(mine, ">REVOKED >JOINING HoldCommits SendJoin")
		if got := len(r.asked()); got != map[bool]int{false: 0, true: 1}[again] {
			t.Errorf("asks for %d topics", got)
		}
	}
}

func TestATopicThatGoesToAnotherHandlerComesBackAsANewGrant(t *testing.T) {
	r := coopRig(t).settled()
	r.step(SubscriptionChanged{Topics: []string{"t"}, LetGo: []string{"t"}}, ">REVOKING RevokePartitions(2)")
	if reason := find[Moved](t, r.effects).Cause; reason != "subscribed anew to t" {
		t.Errorf("cause %q", reason)
	}
	r = coopRig(t).settled()
	r.step(SubscriptionChanged{Topics: []string{"t"}, LetGo: []string{"other"}}, "").in(StateAssigned)
}
