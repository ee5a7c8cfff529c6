package rebalance

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// aloneRig drives a consumer without a group as a shell would and checks its invariants after every step.
type aloneRig struct {
	t       *testing.T
	s       *Standalone
	now     time.Time
	effects []Effect
}

// newAloneRig assigns t-0 and t-1 by themselves and u whole.
func newAloneRig(t *testing.T) *aloneRig {
	t.Helper()
	s, err := NewStandalone(StandaloneConfig{
		Partitions: map[kafka.TopicPartition]StartPosition{tp("t", 0): StartBy(ResetLatest), tp("t", 1): StartAtOffset(7)},
		Topics:     map[string]StartPosition{"u": StartBy(ResetLatest)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &aloneRig{t: t, s: s, now: epoch0}
}

func (r *aloneRig) try(in Input) error {
	r.t.Helper()
	effects, err := r.s.Step(r.now, in)
	r.effects = effects
	if invalid := r.s.Valid(); invalid != nil {
		r.t.Fatalf("after %T [%s]: %v", in, summary(effects), invalid)
	}
	return err
}

func (r *aloneRig) step(in Input, want string) *aloneRig {
	r.t.Helper()
	if err := r.try(in); err != nil {
		r.t.Fatalf("%T in %s: %v", in, r.s.State(), err)
	}
	if got := summary(r.effects); got != want {
		r.t.Fatalf("%T\n got  %q\n want %q", in, got, want)
	}
	return r
}

func seen(counts map[string]int32) TopicsChanged {
	out := TopicsChanged{Partitions: make(map[string]TopicInfo)}
	for topic, n := range counts {
		out.Partitions[topic] = TopicInfo{Partitions: n}
	}
	return out
}

// to brings the consumer into a state; it is granted t-0, t-1 and u-0.
func (r *aloneRig) to(state State) *aloneRig {
	r.t.Helper()
	if state == StateUnjoined {
		return r
	}
	r.step(Start{}, ">JOINING")
	if state == StateJoining {
		return r
	}
	r.step(seen(map[string]int32{"t": 2, "u": 1}), ">ASSIGNING AssignPartitions(3)")
	if state == StateAssigning {
		return r
	}
	for _, g := range r.s.Granted() {
		if err := r.try(PartitionStarted(g)); err != nil {
			r.t.Fatal(err)
		}
	}
	if state == StateLeaving {
		r.step(r.leave(), ">LEAVING RevokePartitions(3)")
	}
	if r.s.State() != state {
		r.t.Fatalf("in %s, want %s", r.s.State(), state)
	}
	return r
}

func (r *aloneRig) leave() Leave {
	return Leave{DrainUntil: r.now.Add(10 * time.Second), Deadline: r.now.Add(20 * time.Second)}
}

func (r *aloneRig) tickDue(want string) *aloneRig {
	r.t.Helper()
	at, ok := r.s.Deadline()
	if !ok {
		r.t.Fatalf("no deadline in %s", r.s.State())
	}
	r.now = later(r.now, at)
	return r.step(Tick{}, want)
}

func (r *aloneRig) begin(tp kafka.TopicPartition, stored, finished int64) StartDecision {
	return r.s.Begin(epoch0.UnixMilli(), tp, Reached{Stored: stored, Finished: finished, LeaderEpoch: 3})
}

// aloneInputs are one fresh example of every input.
var aloneInputs = map[string]func(r *aloneRig) Input{
	"Start":               func(*aloneRig) Input { return Start{} },
	"JoinAnswered":        func(*aloneRig) Input { return JoinAnswered{} },
	"TopicsKnown":         func(*aloneRig) Input { return TopicsKnown{} },
	"SyncAnswered":        func(*aloneRig) Input { return SyncAnswered{} },
	"HeartbeatAnswered":   func(*aloneRig) Input { return HeartbeatAnswered{} },
	"SessionExpired":      func(*aloneRig) Input { return SessionExpired{} },
	"CommitFenced":        func(*aloneRig) Input { return CommitFenced{} },
	"PartitionStarted":    func(*aloneRig) Input { return PartitionStarted{TopicPartition: tp("t", 0), Epoch: 1} },
	"PartitionReleased":   func(*aloneRig) Input { return PartitionReleased{TopicPartition: tp("t", 0), Epoch: 1} },
	"TopicsChanged":       func(*aloneRig) Input { return seen(map[string]int32{"t": 1, "u": 2}) },
	"TopicRecreated":      func(*aloneRig) Input { return TopicRecreated{Topic: "t"} },
	"RangeRead":           func(*aloneRig) Input { return RangeRead{TopicPartition: tp("t", 0), Epoch: 1} },
	"SubscriptionChanged": func(*aloneRig) Input { return SubscriptionChanged{Topics: []string{"t"}} },
	"GiveUp":              func(*aloneRig) Input { return GiveUp{} },
	"Rejoin":              func(*aloneRig) Input { return Rejoin{} },
	"Leave":               func(r *aloneRig) Input { return r.leave() },
	"LeaveAnswered":       func(*aloneRig) Input { return LeaveAnswered{} },
	"Tick":                func(*aloneRig) Input { return Tick{} },
}

// aloneTable is what follows from the inputs that a consumer without a group takes; every other one is an error.
const aloneTable = `
UNJOINED Start: >JOINING
UNJOINED TopicsChanged: -
UNJOINED TopicRecreated: -
UNJOINED PartitionStarted: -
UNJOINED PartitionReleased: -
UNJOINED Leave: >LEAVING >UNJOINED Left
UNJOINED Tick: -
JOINING TopicsChanged: MissPartitions >ASSIGNING AssignPartitions(3)
JOINING TopicRecreated: -
JOINING PartitionStarted: -
JOINING PartitionReleased: -
JOINING Leave: >LEAVING >UNJOINED Left
JOINING Tick: -
ASSIGNING TopicsChanged: AssignPartitions(1)
ASSIGNING TopicRecreated: LosePartitions(2)
ASSIGNING PartitionStarted: -
ASSIGNING PartitionReleased: error
ASSIGNING Leave: >LEAVING RevokePartitions(3)
ASSIGNING Tick: -
ASSIGNED TopicsChanged: >ASSIGNING AssignPartitions(1)
ASSIGNED TopicRecreated: LosePartitions(2)
ASSIGNED PartitionStarted: -
ASSIGNED PartitionReleased: error
ASSIGNED Leave: >LEAVING RevokePartitions(3)
ASSIGNED Tick: -
LEAVING TopicsChanged: -
LEAVING TopicRecreated: -
LEAVING PartitionStarted: -
LEAVING PartitionReleased: -
LEAVING Leave: -
LEAVING Tick: -
`

func TestStandalone_EveryInputHasAnOutcomeInEveryState(t *testing.T) {
	sameNames(t, "inputs", slices.Collect(maps.Keys(aloneInputs)), implementers(t, "memberInput"))
	want := make(map[string]string)
	for line := range strings.Lines(strings.TrimSpace(aloneTable)) {
		key, outcome, _ := strings.Cut(strings.TrimSpace(line), ": ")
		want[key] = outcome
	}
	for _, state := range []State{StateUnjoined, StateJoining, StateAssigning, StateAssigned, StateLeaving} {
		for name, input := range aloneInputs {
			key := state.String() + " " + name
			expected, ok := want[key]
			if !ok {
				expected = "error"
			}
			delete(want, key)
			r := newAloneRig(t).to(state)
			err := r.try(input(r))
			if got := outcome(summary(r.effects), err); got != expected {
				t.Errorf("%s: %s, want %s", key, got, expected)
			}
			if err != nil && !errors.Is(err, ErrUnexpectedInput) {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("no such pairs: %v", want)
	}
}

func TestStandalone_PartitionsStartWhenTheyAppear(t *testing.T) {
	r := newAloneRig(t).to(StateJoining)
	r.step(seen(nil), ">ASSIGNING >ASSIGNED")
	r.step(seen(map[string]int32{"t": 1}), "MissPartitions >ASSIGNING AssignPartitions(1)")
	if missing := r.effects[0].(MissPartitions).Partitions; !slices.Equal(missing, []kafka.TopicPartition{tp("t", 1)}) {
		t.Errorf("missing %v", missing)
	}
	r.step(seen(map[string]int32{"t": 1}), "")
	r.step(PartitionStarted{TopicPartition: tp("t", 0), Epoch: 1}, ">ASSIGNED")
	r.step(seen(map[string]int32{"t": 3}), "MissPartitions >ASSIGNING AssignPartitions(1)")
	if missing := r.effects[0].(MissPartitions).Partitions; len(missing) > 0 {
		t.Errorf("missing %v", missing)
	}
	r.step(PartitionStarted{TopicPartition: tp("t", 1), Epoch: 2}, ">ASSIGNED")
	r.step(seen(map[string]int32{"t": 1}), "") // a broker that is behind
	r.step(seen(map[string]int32{"u": 2}), ">ASSIGNING AssignPartitions(2)")
}

func TestStandalone_WhereAPartitionBegins(t *testing.T) {
	none := kafka.NoOffset
	latest := StartFromReset{Timestamp: TimestampLatest, Reason: ReasonAssigned}
	beginning := StartFromReset{Timestamp: TimestampEarliest, Reason: ReasonNewPartition}
	at := func(offset int64) StartDecision { return StartAt{Offset: offset, LeaderEpoch: kafka.NoLeaderEpoch} }
	on := func(offset int64) StartDecision { return StartAt{Offset: offset, LeaderEpoch: 3} }
	for name, c := range map[string]struct {
		tp               kafka.TopicPartition
		stored, finished int64
		then             func(r *aloneRig)
		want             StartDecision
	}{
		"as assigned, by a policy":              {tp("t", 0), none, none, nil, latest},
		"as assigned, at an offset":             {tp("t", 1), none, none, nil, at(7)},
		"a whole topic":                         {tp("u", 0), none, none, nil, latest},
		"what is stored wins":                   {tp("t", 1), 4, none, nil, at(4)},
		"a new actor goes on":                   {tp("t", 0), none, 12, nil, on(12)},
		"what is stored wins over that":         {tp("t", 0), 15, 12, nil, at(15)},
		"a partition that was added":            {tp("u", 1), none, none, (*aloneRig).grow, beginning},
		"and is stored":                         {tp("u", 1), 9, none, (*aloneRig).grow, at(9)},
		"a topic made anew":                     {tp("t", 1), none, none, (*aloneRig).recreate, beginning},
		"what is stored of the old one":         {tp("t", 1), 90, none, (*aloneRig).recreate, beginning},
		"what may be stored of the old one":     {tp("t", 1), 90, 3, (*aloneRig).recreate, on(3)},
		"what is stored of the new one":         {tp("t", 1), 2, 3, (*aloneRig).recreate, at(2)},
		"an added partition in a topic of anew": {tp("u", 1), 5, none, func(r *aloneRig) { r.grow(); r.recreateTopic("u") }, beginning},
	} {
		r := newAloneRig(t).to(StateAssigned)
		if c.then != nil {
			c.then(r)
		}
		if got := r.begin(c.tp, c.stored, c.finished); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	r := newAloneRig(t).to(StateAssigned)
	if got := r.s.Begin(0, tp("t", 0), Reached{Stored: none, Finished: 12, Anew: true}); got != beginning {
		t.Errorf("finished in the topic that is gone: %+v", got)
	}
}

// TestStandalone_AnAddedPartitionWithAnOffsetBeginsThere: the offset was meant for this very partition.
func TestStandalone_AnAddedPartitionWithAnOffsetBeginsThere(t *testing.T) {
	r := newAloneRig(t).to(StateJoining)
	r.step(seen(map[string]int32{"t": 1, "u": 1}), "MissPartitions >ASSIGNING AssignPartitions(2)")
	r.step(seen(map[string]int32{"t": 2}), "MissPartitions AssignPartitions(1)")
	if got := r.begin(tp("t", 1), kafka.NoOffset, kafka.NoOffset); got != (StartAt{Offset: 7, LeaderEpoch: kafka.NoLeaderEpoch}) {
		t.Errorf("%+v", got)
	}
}

func (r *aloneRig) grow() {
	r.step(seen(map[string]int32{"t": 2, "u": 2}), ">ASSIGNING AssignPartitions(1)")
}

func (r *aloneRig) recreate() { r.recreateTopic("t") }

func (r *aloneRig) recreateTopic(topic string) {
	r.t.Helper()
	if err := r.try(TopicRecreated{Topic: topic}); err != nil {
		r.t.Fatal(err)
	}
	if lost, ok := r.effects[0].(LosePartitions); !ok || !errors.Is(lost.Cause, ErrTopicRecreated) {
		r.t.Fatalf("effects %v", r.effects)
	}
	if err := r.try(seen(map[string]int32{"t": 2, "u": 2})); err != nil {
		r.t.Fatal(err)
	}
}

func TestStandalone_LeavingWaitsForAllAndEndsInTime(t *testing.T) {
	r := newAloneRig(t).to(StateAssigned)
	r.step(TopicRecreated{Topic: "u"}, "LosePartitions(1)")
	r.step(r.leave(), ">LEAVING RevokePartitions(2)")
	revoke := r.effects[1].(RevokePartitions)
	if !revoke.Closing || !revoke.Deadline.Before(r.now.Add(20*time.Second)) || revoke.Deadline.Before(revoke.DrainUntil) {
		t.Errorf("%+v", revoke)
	}
	r.step(PartitionReleased{TopicPartition: tp("t", 0), Epoch: 1}, "")
	r.step(Leave{DrainUntil: r.now.Add(time.Hour), Deadline: r.now.Add(2 * time.Hour)}, "")
	r.step(Leave{DrainUntil: r.now.Add(time.Second), Deadline: r.now.Add(4 * time.Second)}, "RevokePartitions(1)")
	r.tickDue("Refused LosePartitions(1)")
	r.tickDue(">UNJOINED Left")
	left := r.effects[len(r.effects)-1].(Left)
	if !errors.Is(left.Err, ErrLeaveUnfinished) || r.now.After(epoch0.Add(4*time.Second)) {
		t.Errorf("left after %v: %v", r.now.Sub(epoch0), left.Err)
	}

	r = newAloneRig(t).to(StateLeaving)
	for i, g := range []Grant{{tp("t", 0), 1}, {tp("t", 1), 2}, {tp("u", 0), 3}} {
		r.step(PartitionReleased(g), []string{"", "", ">UNJOINED Left"}[i])
	}
	if left := r.effects[1].(Left); left.Err != nil {
		t.Error(left.Err)
	}
}

func TestStandalone_ASuccessorKnowsWhatWasSeenAndItsEpochsGoOn(t *testing.T) {
	r := newAloneRig(t).to(StateAssigned)
	r.recreateTopic("t")
	r.s = r.s.Successor()
	r.step(Start{}, ">JOINING")
	r.step(seen(map[string]int32{"t": 2, "u": 3}), ">ASSIGNING AssignPartitions(5)")
	for _, g := range r.effects[1].(AssignPartitions).Grants {
		if g.Epoch <= 6 {
			t.Errorf("epoch %d of %s after 6", g.Epoch, g.TopicPartition)
		}
	}
	for partition, want := range map[kafka.TopicPartition]string{
		tp("t", 0): ReasonNewPartition, tp("u", 0): ReasonAssigned, tp("u", 2): ReasonNewPartition,
	} {
		if got, ok := r.begin(partition, kafka.NoOffset, kafka.NoOffset).(StartFromReset); !ok || got.Reason != want {
			t.Errorf("%s: %+v, want %s", partition, got, want)
		}
	}
}

func TestStandalone_ABadConfigurationIsRefused(t *testing.T) {
	for name, config := range map[string]StandaloneConfig{
		"nothing":            {},
		"no topic":           {Partitions: map[kafka.TopicPartition]StartPosition{{}: {}}},
		"negative partition": {Partitions: map[kafka.TopicPartition]StartPosition{tp("t", -1): {}}},
		"negative offset":    {Partitions: map[kafka.TopicPartition]StartPosition{tp("t", 0): StartAtOffset(-1)}},
		"no policy":          {Topics: map[string]StartPosition{"t": StartBy(ResetPolicy(7))}},
		"an empty name":      {Topics: map[string]StartPosition{"": {}}},
		"both ways": {
			Topics: map[string]StartPosition{"t": {}}, Partitions: map[kafka.TopicPartition]StartPosition{tp("t", 0): {}},
		},
	} {
		if _, err := NewStandalone(config); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidFindsABrokenStandalone(t *testing.T) {
	for name, c := range map[string]struct {
		state State
		bust  func(s *Standalone)
	}{
		"held before it starts":       {StateJoining, func(s *Standalone) { s.epoch = 1; s.held.set(Grant{tp("t", 0), 1}, holdStarted) }},
		"nothing starts in ASSIGNING": {StateAssigning, func(s *Standalone) { s.held.move(holdStarted) }},
		"revoking in ASSIGNED":        {StateAssigned, func(s *Standalone) { s.held.move(holdRevoking) }},
		"nothing left in LEAVING":     {StateLeaving, func(s *Standalone) { s.held.clear() }},
		"no deadline in LEAVING":      {StateLeaving, func(s *Standalone) { s.releaseBy = time.Time{} }},
		"epoch from nowhere":          {StateAssigned, func(s *Standalone) { s.held.set(Grant{tp("u", 5), 99}, holdStarted) }},
		"not assigned":                {StateAssigned, func(s *Standalone) { s.held.set(Grant{tp("t", 5), 1}, holdStarted) }},
		"owned twice":                 {StateAssigned, func(s *Standalone) { s.held.set(Grant{tp("t", 0), 2}, holdStarted) }},
		"counts":                      {StateAssigned, func(s *Standalone) { s.held.counts[holdLost]++ }},
		"a state of a group":          {StateAssigned, func(s *Standalone) { s.state = StateRevoking }},
	} {
		r := newAloneRig(t).to(c.state)
		c.bust(r.s)
		if err := r.s.Valid(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStartPositionsSayWhatTheyAre(t *testing.T) {
	for want, p := range map[string]StartPosition{
		"earliest": {}, "latest": StartBy(ResetLatest), "offset:42": StartAtOffset(42), "timestamp:1000": StartBy(ResetAt(1000)),
		"by_duration:PT1H": StartBy(ResetByDuration(time.Hour)), "none": StartBy(ResetNone),
	} {
		if p.String() != want || p.Validate() != nil {
			t.Errorf("%s is called %s: %v", want, p, p.Validate())
		}
		offset, atOffset := p.Offset()
		policy, by := p.Policy()
		if atOffset == by || atOffset && offset != 42 || by && StartBy(policy) != p {
			t.Errorf("%s: offset %d %t, policy %s %t", p, offset, atOffset, policy, by)
		}
	}
	for _, p := range []StartPosition{StartAtOffset(-1), StartBy(ResetAt(-1)), StartBy(ResetByDuration(0)), StartBy(ResetPolicy(7))} {
		wrong, ok := errors.AsType[*StartPositionError](p.Validate())
		if !ok || wrong.Want == "" || !errors.Is(wrong, ErrConfig) || !strings.Contains(wrong.Error(), wrong.Want) {
			t.Errorf("%s: %v", p, p.Validate())
		}
	}
}
