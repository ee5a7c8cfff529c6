package rebalance

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestSkippedAssignmentOfAReturningStaticLeader(t *testing.T) {
	r := newRig(t, func(c *MemberConfig) { c.GroupInstanceID = "i" }).to(StateJoining)
	in := r.joinOK(5, "me")
	in.Response.SkipAssignment = true
	r.step(in, ">SYNCING SendSync")
	if sync := find[SendSync](t, r.effects); len(sync.Request.Assignments) != 0 {
		t.Error("assigned anew")
	}
	r.step(r.syncOK(tp("t", 0)), "EnterGeneration >ASSIGNING AssignPartitions(1)")
	if enter := find[EnterGeneration](t, r.effects); !enter.Leader || !slices.Equal(enter.Topics, []string{"t", "u"}) {
		t.Errorf("entered %+v", enter)
	}
	r.step(TopicsChanged{Partitions: r.counts(2, 2)}, "") // its first look
	r.step(TopicsChanged{Partitions: r.counts(2, 3)}, ">REVOKING RevokePartitions(1)")
}

// asLeader brings the member to ASSIGNED as the group's leader; topic t has 4 partitions, u has 2.
func asLeader(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, nil).to(StateJoining)
	r.step(r.joinOK(5, "me"), ">SYNCING QueryTopics")
	if query := find[QueryTopics](t, r.effects); !slices.Equal(query.Topics, []string{"t", "u"}) {
		t.Fatalf("asked for %v", query.Topics)
	}
	r.step(TopicsKnown{Seq: r.m.seq, Partitions: r.counts(4, 2)}, "SendSync")
	return r
}

func TestLeaderAssignsOverTheUnionAndToEachOnlyWhatItAskedFor(t *testing.T) {
	r := asLeader(t)
	got := make(map[string][]kafka.TopicPartition)
	for _, a := range find[SendSync](t, r.effects).Request.Assignments {
		decoded, err := DecodeAssignment(a.Assignment)
		if err != nil {
			t.Fatal(err)
		}
		got[a.MemberID] = decoded.Partitions
	}
	if !slices.Equal(got["me"], []kafka.TopicPartition{tp("t", 0), tp("t", 1)}) ||
		!slices.Equal(got["other"], []kafka.TopicPartition{tp("t", 2), tp("t", 3), tp("u", 0), tp("u", 1)}) {
		t.Errorf("assigned %v", got)
	}
}

func TestEveryMemberGetsAnEntryEvenWhenItCannotBeRead(t *testing.T) {
	r := newRig(t, nil).to(StateJoining)
	in := r.joinOK(5, "me")
	in.Response.Members = append(in.Response.Members, JoinMember{MemberID: "broken", Metadata: []byte{0}})
	r.step(in, ">SYNCING Refused QueryTopics")
	r.step(TopicsKnown{Seq: r.m.seq}, "SendSync") // no topic exists
	assignments := find[SendSync](t, r.effects).Request.Assignments
	if len(assignments) != 3 {
		t.Fatalf("%d entries", len(assignments))
	}
	for _, a := range assignments {
		if decoded, err := DecodeAssignment(a.Assignment); err != nil || len(a.Assignment) == 0 || len(decoded.Partitions) != 0 {
			t.Errorf("%q gets %v (%d bytes): %v", a.MemberID, decoded.Partitions, len(a.Assignment), err)
		}
	}
}

// greedy gives every partition to everybody.
type greedy struct{ rangeAssignor }

func (greedy) Assign(members []AssignorMember, topics map[string]TopicInfo) map[string][]kafka.TopicPartition {
	out := make(map[string][]kafka.TopicPartition)
	for _, member := range members {
		for topic := range topics {
			out[member.MemberID] = append(out[member.MemberID], kafka.TopicPartition{Topic: topic})
		}
	}
	return out
}

func TestAClaimOfAGenerationToComeOutdoesNobody(t *testing.T) {
	for generation, refused := range map[kafka.Generation]bool{4: false, 5: true, 105: true} {
		r := newRig(t, func(c *MemberConfig) { c.Assignors = []Assignor{CooperativeSticky()} }).to(StateJoining)
		in := r.joinOK(5, "me")
		in.Response.Protocol = CooperativeSticky().Name()
		in.Response.Members = nil
		for id, s := range map[string]Subscription{
			"me":   {Topics: []string{"t"}, Owned: []kafka.TopicPartition{tp("t", 0), tp("t", 1)}, Generation: 4},
			"liar": {Topics: []string{"t"}, Owned: []kafka.TopicPartition{tp("t", 0)}, Generation: generation},
		} {
			metadata, err := EncodeSubscription(s)
			if err != nil {
				t.Fatal(err)
			}
			in.Response.Members = append(in.Response.Members, JoinMember{MemberID: id, Metadata: metadata})
		}
		want := ">SYNCING QueryTopics"
		if refused {
			want = ">SYNCING Refused QueryTopics"
		}
		r.step(in, want)
		if refused && !errors.Is(find[Refused](t, r.effects).Err, ErrFutureClaim) {
			t.Errorf("refused %v", find[Refused](t, r.effects).Err)
		}
		r.step(TopicsKnown{Seq: r.m.seq, Partitions: r.counts(2, 0)}, "SendSync")
		for _, a := range find[SendSync](t, r.effects).Request.Assignments {
			decoded, err := DecodeAssignment(a.Assignment)
			if err != nil {
				t.Fatal(err)
			}
			if a.MemberID == "liar" && slices.Contains(decoded.Partitions, tp("t", 0)) {
				t.Errorf("a claim of generation %d got what another one has", generation)
			}
		}
	}
}

func TestAssignorThatGivesWhatWasNotAskedForOrIsGivenAlreadyIsRefused(t *testing.T) {
	r := newRig(t, func(c *MemberConfig) { c.Assignors = []Assignor{greedy{}} }).to(StateJoining)
	r.step(r.joinOK(5, "me"), ">SYNCING QueryTopics")
	r.step(TopicsKnown{Seq: r.m.seq, Partitions: r.counts(1, 1)}, "Refused Refused SendSync")
	given := map[kafka.TopicPartition]string{}
	for _, a := range find[SendSync](t, r.effects).Request.Assignments {
		decoded, err := DecodeAssignment(a.Assignment)
		if err != nil {
			t.Fatal(err)
		}
		for _, tp := range decoded.Partitions {
			if other, twice := given[tp]; twice {
				t.Errorf("%s is given to %s and %s", tp, other, a.MemberID)
			}
			given[tp] = a.MemberID
		}
	}
}

func TestLeaderWithoutMetadataRetriesWhileTheGenerationLives(t *testing.T) {
	r := newRig(t, nil).to(StateJoining)
	r.step(r.joinOK(5, "me"), ">SYNCING QueryTopics")
	began := r.now
	tries := 0
	for r.m.State() == StateSyncing && tries < 100 {
		tries++
		r.step(TopicsKnown{Seq: r.m.seq, Err: errNetwork}, "Refused")
		at, _ := r.m.Deadline()
		r.now = at
		if err := r.try(Tick{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.now.Sub(began); got != 45*time.Second || r.m.State() != StateJoining {
		t.Errorf("gave up after %v in %s, %d tries", got, r.m.State(), tries)
	}
}

func TestLeaderThatGetsNoAnswerAboutTopicsJoinsAgain(t *testing.T) {
	r := newRig(t, nil).to(StateJoining)
	r.step(r.joinOK(5, "me"), ">SYNCING QueryTopics").tickDue(">JOINING SendJoin")
}

func TestOnlyTheLeaderRejoinsWhenTopicsChange(t *testing.T) {
	for name, c := range map[string]struct {
		change func(map[string]TopicInfo)
		want   string
	}{
		"nothing":       {func(map[string]TopicInfo) {}, ""},
		"count":         {func(m map[string]TopicInfo) { m["t"] = TopicInfo{ID: m["t"].ID, Partitions: 5} }, ">REVOKING RevokePartitions(2)"},
		"topic id":      {func(m map[string]TopicInfo) { m["u"] = TopicInfo{ID: kafka.TopicID{9}, Partitions: 2} }, ">REVOKING RevokePartitions(2)"},
		"unknown id":    {func(m map[string]TopicInfo) { m["u"] = TopicInfo{Partitions: 2} }, ""},
		"topic gone":    {func(m map[string]TopicInfo) { delete(m, "u") }, ">REVOKING RevokePartitions(2)"},
		"foreign topic": {func(m map[string]TopicInfo) { m["x"] = TopicInfo{Partitions: 1} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := asLeader(t)
			r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(2)")
			counts := r.counts(4, 2)
			c.change(counts)
			r.startAll().step(TopicsChanged{Partitions: counts}, c.want)
			newRig(t, nil).to(StateAssigned).step(TopicsChanged{Partitions: counts}, "")
		})
	}
}

func TestTopicThatAppearsMakesTheLeaderRejoin(t *testing.T) {
	r := newRig(t, nil).to(StateJoining)
	r.step(r.joinOK(5, "me"), ">SYNCING QueryTopics")
	r.step(TopicsKnown{Seq: r.m.seq, Partitions: map[string]TopicInfo{}}, "SendSync")
	r.step(r.syncOK(), "EnterGeneration >ASSIGNING AssignPartitions(0) >ASSIGNED")
	r.step(TopicsChanged{Partitions: map[string]TopicInfo{}}, "")
	r.step(TopicsChanged{Partitions: map[string]TopicInfo{"t": {Partitions: 1}}}, ">REVOKING >REVOKED >JOINING HoldCommits SendJoin")
}

func TestChangeDuringARebalanceIsRemembered(t *testing.T) {
	r := asLeader(t)
	r.step(TopicsChanged{Partitions: r.counts(8, 2)}, "")
	r.step(r.syncOK(tp("t", 0)), "EnterGeneration >ASSIGNING AssignPartitions(1) >REVOKING RevokePartitions(1)")
	r.releaseAll(r.m.Granted(), ">REVOKED >JOINING HoldCommits SendJoin")
	r.step(Rejoin{Cause: "subscription changed"}, "") // the JoinGroup is out already
	r.step(r.joinOK(6, "other"), ">SYNCING JoinGeneration SendSync")
	r.step(r.syncOK(), "EnterGeneration >ASSIGNING AssignPartitions(0) >REVOKING >REVOKED >JOINING HoldCommits SendJoin")
	if got := find[SendJoin](t, r.effects).Request.Reason; got != "subscription changed" {
		t.Errorf("reason %q", got)
	}
}
