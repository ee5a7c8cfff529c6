package rebalance

import (
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// ledBy answers the JoinGroup under way of a cooperative group's leader; other says that it owns these partitions.
func (r *rig) ledBy(generation kafka.Generation, owned ...kafka.TopicPartition) JoinAnswered {
	r.t.Helper()
	other, err := EncodeSubscription(Subscription{Topics: []string{"t"}, Owned: owned, Generation: generation - 1})
	if err != nil {
		r.t.Fatal(err)
	}
	return JoinAnswered{Seq: r.m.seq, Response: JoinResponse{
		Generation: generation, MemberID: "me", LeaderID: "me", Protocol: "cooperative-sticky",
		Members: []JoinMember{{MemberID: "me", Metadata: subscriptionOf("t")}, {MemberID: "other", Metadata: other}},
	}}
}

// given answers the SyncGroup under way.
func (r *rig) given(partitions ...kafka.TopicPartition) SyncAnswered {
	return SyncAnswered{Seq: r.m.seq, Response: SyncResponse{Protocol: "cooperative-sticky", Assignment: assignmentOf(partitions...)}}
}

func stickyRig(t *testing.T) *rig {
	return newRig(t, func(c *MemberConfig) { c.Assignors = []Assignor{CooperativeSticky()} })
}

func TestLeaderAsksForTheRebalanceThatAHeldBackPartitionWaitsFor(t *testing.T) {
	r := stickyRig(t)
	r.step(Start{}, ">JOINING SendJoin")
	r.step(r.ledBy(1, tp("t", 0), tp("t", 1)), ">SYNCING QueryTopics")
	r.step(TopicsKnown{Seq: r.m.seq, Partitions: map[string]TopicInfo{"t": {Partitions: 2}}}, "SendSync")
	r.step(r.given(), "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
	if at, ok := r.m.Deadline(); !ok || at.Sub(r.now) != r.m.config.RebalanceTimeout {
		t.Fatalf("deadline %v, %t", at.Sub(r.now), ok)
	}
	// Whoever owned it was started anew, with the same group instance id, and does not join again.
	r.tickDue(">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(r.ledBy(2, tp("t", 1)), ">SYNCING JoinGeneration QueryTopics")
	r.step(TopicsKnown{Seq: r.m.seq, Partitions: map[string]TopicInfo{"t": {Partitions: 2}}}, "SendSync")
	r.step(r.given(tp("t", 0)), "EnterGeneration >ASSIGNING AssignPartitions(1)")
	if at, ok := r.m.Deadline(); ok {
		t.Fatalf("nothing is held back, and yet there is a deadline %v", at)
	}
}

func TestLeaderDoesNotAskWhenThePartitionsAreGivenUpInTime(t *testing.T) {
	r := stickyRig(t)
	r.step(Start{}, ">JOINING SendJoin")
	r.step(r.ledBy(1, tp("t", 0), tp("t", 1)), ">SYNCING QueryTopics")
	r.step(TopicsKnown{Seq: r.m.seq, Partitions: map[string]TopicInfo{"t": {Partitions: 2}}}, "SendSync")
	r.step(r.given(), "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
	r.wait(time.Second).step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	if at, ok := r.m.Deadline(); ok {
		t.Fatalf("deadline %v in JOINING", at)
	}
}

func TestReturningStaticLeaderOfACooperativeGroupHasItAssignAnewOnce(t *testing.T) {
	r := newRig(t, func(c *MemberConfig) {
		c.GroupInstanceID, c.Assignors = "i", []Assignor{CooperativeSticky()}
	})
	r.step(Start{}, ">JOINING SendJoin")
	in := r.ledBy(5, tp("t", 1))
	in.Response.SkipAssignment = true
	r.step(in, ">SYNCING SendSync")
	r.step(r.given(tp("t", 0)), "EnterGeneration >ASSIGNING AssignPartitions(1)")
	r.step(PartitionStarted(r.m.Granted()[0]), ">ASSIGNED")
	r.tickDue(">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	r.step(r.ledBy(6, tp("t", 1)), ">SYNCING JoinGeneration QueryTopics")
	r.step(TopicsKnown{Seq: r.m.seq, Partitions: map[string]TopicInfo{"t": {Partitions: 2}}}, "SendSync")
	r.step(r.given(tp("t", 0)), "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
	if at, ok := r.m.Deadline(); ok {
		t.Fatalf("deadline %v once the plan is its own", at)
	}
}

func TestReturningStaticLeaderHasTheGroupAssignAnewWhenWhatItWasGivenIsGone(t *testing.T) {
	r := newRig(t, func(c *MemberConfig) { c.GroupInstanceID = "i" }).to(StateJoining)
	in := r.joinOK(5, "me")
	in.Response.SkipAssignment = true
	r.step(in, ">SYNCING SendSync")
	r.step(r.syncOK(tp("t", 0)), "EnterGeneration >ASSIGNING AssignPartitions(1)")
	r.step(TopicsChanged{Partitions: map[string]TopicInfo{}}, ">REVOKING RevokePartitions(1)")
}
