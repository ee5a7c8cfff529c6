package rebalance

import (
	"slices"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// rig drives a member as a shell would and checks its invariants after every step.
type rig struct {
	t   *testing.T
	m   *Member
	now time.Time
	// effects are those of the last step.
	effects []Effect
	// joins counts SendJoin.
	joins int
}

func testConfig() MemberConfig {
	return MemberConfig{
		GroupID: "g", Topics: []string{"t"}, Assignors: []Assignor{Range()},
		SessionTimeout: 45 * time.Second, RebalanceTimeout: 60 * time.Second, HeartbeatInterval: 3 * time.Second,
		DrainTimeout: 30 * time.Second, BackoffInitial: 100 * time.Millisecond, BackoffMax: 2 * time.Second, Seed: 1,
	}
}

func newRig(t *testing.T, change func(*MemberConfig)) *rig {
	t.Helper()
	config := testConfig()
	if change != nil {
		change(&config)
	}
	m, err := NewMember(config)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, m: m, now: epoch0}
}

// step gives an input that must be accepted and compares the effects to words.
func (r *rig) step(in Input, want string) *rig {
	r.t.Helper()
	if err := r.try(in); err != nil {
		r.t.Fatalf("%T in %s: %v", in, r.m.state, err)
	}
	if got := summary(r.effects); got != want {
		r.t.Fatalf("%T\n got  %q\n want %q", in, got, want)
	}
	return r
}

func (r *rig) try(in Input) error {
	r.t.Helper()
	effects, err := r.m.Step(r.now, in)
	r.effects = effects
	for _, e := range effects {
		if _, ok := e.(SendJoin); ok {
			r.joins++
		}
	}
	if invalid := r.m.Valid(); invalid != nil {
		r.t.Fatalf("after %T: %v", in, invalid)
	}
	return err
}

// tickDue lets the time pass until the deadline, which must exist, and ticks.
func (r *rig) tickDue(want string) *rig {
	r.t.Helper()
	at, ok := r.m.Deadline()
	if !ok {
		r.t.Fatalf("no deadline in %s", r.m.state)
	}
	r.now = later(r.now, at)
	return r.step(Tick{}, want)
}

func (r *rig) wait(d time.Duration) *rig { r.now = r.now.Add(d); return r }

func (r *rig) in(state State) *rig {
	r.t.Helper()
	if r.m.State() != state {
		r.t.Fatalf("state %s, want %s", r.m.State(), state)
	}
	return r
}

func subscriptionOf(topics ...string) []byte {
	encoded, err := EncodeSubscription(Subscription{Topics: topics, Generation: kafka.NoGeneration})
	if err != nil {
		panic(err)
	}
	return encoded
}

func assignmentOf(partitions ...kafka.TopicPartition) []byte {
	encoded, err := EncodeAssignment(Assignment{Partitions: partitions})
	if err != nil {
		panic(err)
	}
	return encoded
}

// joinOK answers the JoinGroup under way: a follower unless the member leads.
func (r *rig) joinOK(generation kafka.Generation, leader string) JoinAnswered {
	response := JoinResponse{Generation: generation, MemberID: "me", LeaderID: leader, Protocol: "range"}
	if leader == "me" {
		response.Members = []JoinMember{{MemberID: "me", Metadata: subscriptionOf("t")}, {MemberID: "other", Metadata: subscriptionOf("t", "u")}}
	}
	return JoinAnswered{Seq: r.m.seq, Response: response}
}

func (r *rig) joinError(err error) JoinAnswered { return JoinAnswered{Seq: r.m.seq, Err: err} }
func (r *rig) syncError(err error) SyncAnswered { return SyncAnswered{Seq: r.m.seq, Err: err} }

func (r *rig) syncOK(partitions ...kafka.TopicPartition) SyncAnswered {
	return SyncAnswered{Seq: r.m.seq, Response: SyncResponse{Protocol: "range", Assignment: assignmentOf(partitions...)}}
}

func (r *rig) heartbeat(err error) HeartbeatAnswered {
	return HeartbeatAnswered{Generation: r.m.Generation(), Err: err}
}

func (r *rig) counts(t, u int32) map[string]TopicInfo {
	return map[string]TopicInfo{"t": {ID: kafka.TopicID{1}, Partitions: t}, "u": {ID: kafka.TopicID{2}, Partitions: u}}
}

// to brings the member from UNJOINED to a state by the usual way, owning t-0 and t-1. REVOKED is only ever passed through
// and so is made by hand.
func (r *rig) to(state State) *rig {
	r.t.Helper()
	usual := func(until State) bool {
		steps := []struct {
			state State
			do    func()
		}{
			{StateJoining, func() { r.step(Start{}, ">JOINING SendJoin") }},
			{StateSyncing, func() { r.step(r.joinOK(5, "other"), ">SYNCING SendSync") }},
			{StateAssigning, func() {
				r.step(r.syncOK(tp("t", 0), tp("t", 1)), "EnterGeneration >ASSIGNING AssignPartitions(2)")
			}},
			{StateAssigned, func() { r.startAll() }},
			{StateRevoking, func() { r.step(r.heartbeat(kafka.RebalanceInProgress), ">REVOKING RevokePartitions(2)") }},
		}
		for _, s := range steps {
			s.do()
			if s.state == until {
				return true
			}
		}
		return false
	}
	switch state {
	case StateUnjoined:
	case StateLeaving:
		r.to(StateAssigned)
		r.step(Leave{DrainUntil: r.now.Add(10 * time.Second), Deadline: r.now.Add(14 * time.Second)}, ">LEAVING RevokePartitions(2)")
	case StateFatal:
		r.to(StateJoining)
		r.step(r.joinError(kafka.InvalidGroupID), ">FATAL Failed")
	case StateRevoked:
		r.to(StateRevoking)
		r.m.held.clear()
		r.m.state = StateRevoked
	default:
		if !usual(state) {
			r.t.Fatalf("no way to %s", state)
		}
	}
	return r.in(state)
}

// startAll answers PartitionStarted for everything granted.
func (r *rig) startAll() *rig {
	r.t.Helper()
	grants := r.m.held.in(holdStarting)
	for i, g := range grants {
		want := ""
		if i == len(grants)-1 {
			want = ">ASSIGNED"
		}
		r.step(PartitionStarted(g), want)
	}
	return r
}

// releaseAll releases all grants but the last without an effect; the last one has the effects given.
func (r *rig) releaseAll(grants []Grant, want string) *rig {
	r.t.Helper()
	for i, g := range slices.Clone(grants) {
		w := ""
		if i == len(grants)-1 {
			w = want
		}
		r.step(PartitionReleased(g), w)
	}
	return r
}
