package rebalance

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// chooser picks numbers for the random tests, from a seed or from a fuzzer's bytes.
type chooser func(n int) int

func seeded(seed uint64) chooser {
	random := rand.New(rand.NewPCG(seed, 0))
	return random.IntN
}

func fromBytes(data []byte) chooser {
	return func(n int) int {
		if len(data) == 0 {
			return 0
		}
		b := int(data[0])
		data = data[1:]
		return b % n
	}
}

// modelShell follows a member's effects as a shell must be able to, and fails when they contradict each other.
type modelShell struct {
	t   *testing.T
	m   *Member
	now time.Time

	state   State
	waiting requestKind // what is under way
	seq     uint64
	entered kafka.Generation
	// given is every grant not released: false = the member's, true = lost.
	given    map[Grant]bool
	revoking map[Grant]bool
	epoch    kafka.AssignmentEpoch
	leaving  int
	givingUp bool
	// generation is the coordinator's.
	generation kafka.Generation
}

func (s *modelShell) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf(format, args...)
}

func (s *modelShell) sent(kind requestKind, seq uint64) {
	if seq <= s.seq {
		s.fail("Seq %d after %d", seq, s.seq)
	}
	s.waiting, s.seq = kind, seq
}

func (s *modelShell) apply(e Effect) {
	s.t.Helper()
	switch e := e.(type) {
	case Moved:
		if e.From != s.state || memberMoves.check(e.From, e.To) != nil {
			s.fail("moved from %s to %s, was in %s", e.From, e.To, s.state)
		}
		s.state, s.waiting = e.To, requestNone
	case SendJoin:
		for g := range s.revoking {
			s.fail("SendJoin while %v is revoking", g)
		}
		s.sent(requestJoin, e.Seq)
	case QueryTopics:
		s.sent(requestTopics, e.Seq)
	case SendSync:
		s.sent(requestSync, e.Seq)
	case SendLeave:
		if len(s.revoking) > 0 || e.Request.MemberID == "" {
			s.fail("SendLeave %+v with %d revoking", e, len(s.revoking))
		}
		s.sent(requestLeave, e.Seq)
	case HoldCommits:
		if s.entered == kafka.NoGeneration {
			s.fail("HoldCommits without a generation")
		}
	case EnterGeneration:
		s.entered = e.Generation
	case LeaveGeneration:
		if s.entered == kafka.NoGeneration {
			s.fail("LeaveGeneration without a generation")
		}
		s.entered = kafka.NoGeneration
	case AssignPartitions:
		s.assign(e)
	case RevokePartitions:
		for _, g := range e.Grants {
			if lost, ok := s.given[g]; !ok || lost {
				s.fail("revoked %v: given %t, lost %t", g, ok, lost)
			}
			s.revoking[g] = true
		}
		if e.Deadline.Before(e.DrainUntil) || e.DrainUntil.Before(s.now) || len(e.Grants) == 0 {
			s.fail("%+v at %v", e, s.now)
		}
	case LosePartitions:
		for _, g := range e.Grants {
			if lost, ok := s.given[g]; !ok || lost {
				s.fail("lost %v: given %t, lost %t", g, ok, lost)
			}
			s.given[g] = true
			delete(s.revoking, g)
		}
		if e.Cause == nil || len(e.Grants) == 0 {
			s.fail("%+v", e)
		}
	case Left:
		if s.leaving != 1 {
			s.fail("Left after %d Leaves", s.leaving)
		}
		s.leaving, s.givingUp = 0, false
		s.left()
	case GaveUp:
		if s.leaving != 0 || !s.givingUp {
			s.fail("GaveUp after %d Leaves, giving up %t", s.leaving, s.givingUp)
		}
		s.givingUp = false
		s.left()
	case Failed:
		if s.state != StateFatal {
			s.fail("Failed in %s", s.state)
		}
	case Refused:
		if e.Err == nil {
			s.fail("refused nothing")
		}
	}
}

// left checks that nothing is the member's any more when it is out of the group.
func (s *modelShell) left() {
	for g, lost := range s.given {
		if !lost {
			s.fail("left with %v", g)
		}
	}
	clear(s.given)
}

func (s *modelShell) assign(e AssignPartitions) {
	for _, g := range e.Grants {
		if g.Epoch <= s.epoch {
			s.fail("epoch %d after %d", g.Epoch, s.epoch)
		}
		s.epoch = g.Epoch
		for other, lost := range s.given {
			if !lost && other.TopicPartition == g.TopicPartition {
				s.fail("%v granted while %v is the member's", g, other)
			}
		}
		s.given[g] = false
	}
}

func (s *modelShell) step(in Input) {
	s.t.Helper()
	if _, ok := in.(Leave); ok && s.leaving == 0 {
		s.leaving = 1
	}
	if _, ok := in.(GiveUp); ok && s.state != StateUnjoined && s.state != StateFatal {
		s.givingUp = true
	}
	if released, ok := in.(PartitionReleased); ok {
		g := Grant(released)
		if lost, given := s.given[g]; given && (lost || s.revoking[g]) {
			delete(s.given, g)
			delete(s.revoking, g)
		}
	}
	effects, err := s.m.Step(s.now, in)
	for _, e := range effects {
		s.apply(e)
	}
	if err != nil && !errors.Is(err, ErrUnexpectedInput) {
		s.fail("%T in %s: %v", in, s.m.State(), err)
	}
	if err := s.m.Valid(); err != nil {
		s.fail("after %+v [%s]: %v", in, summary(effects), err)
	}
	if s.state != s.m.State() || s.entered != s.m.Generation() {
		s.fail("state %s, moved to %s; generation %d, entered %d", s.m.State(), s.state, s.m.Generation(), s.entered)
	}
	var owned []Grant
	for g, lost := range s.given {
		if !lost {
			owned = append(owned, g)
		}
	}
	slices.SortFunc(owned, compareGrants)
	if !slices.Equal(owned, s.m.Granted()) {
		s.fail("granted %v, the effects say %v", s.m.Granted(), owned)
	}
	s.settleTicks()
}

// settleTicks checks that a tick at the deadline moves the deadline on.
func (s *modelShell) settleTicks() {
	for i := 0; ; i++ {
		at, ok := s.m.Deadline()
		if !ok || at.After(s.now) {
			return
		}
		if i > 4 {
			s.fail("deadline %v does not move on in %s", at.Sub(epoch0), s.m.State())
		}
		effects, err := s.m.Step(s.now, Tick{})
		if err != nil {
			s.fail("tick: %v", err)
		}
		for _, e := range effects {
			s.apply(e)
		}
		if err := s.m.Valid(); err != nil {
			s.fail("after a tick: %v", err)
		}
	}
}

var randomErrors = []error{
	nil, nil, nil, nil, errNetwork, kafka.NotCoordinator, kafka.CoordinatorLoadInProgress, kafka.RebalanceInProgress, kafka.IllegalGeneration,
	kafka.UnknownMemberID, kafka.MemberIDRequired, kafka.GroupAuthorizationFailed, kafka.FencedInstanceID, kafka.ErrorCode(999),
}

func randomMember(t *testing.T, choose chooser, steps int) {
	t.Helper()
	config := testConfig()
	config.Topics = []string{"t", "u"}
	if choose(4) == 0 {
		config.GroupInstanceID = "i"
	}
	if choose(4) == 0 {
		config.Topics = nil // as with a pattern
	}
	if choose(2) == 0 {
		config.Assignors = []Assignor{cooperative{}}
	}
	m, err := NewMember(config)
	if err != nil {
		t.Fatal(err)
	}
	s := &modelShell{
		t: t, m: m, now: epoch0, entered: kafka.NoGeneration, given: make(map[Grant]bool), revoking: make(map[Grant]bool),
	}
	for range steps {
		s.step(s.random(choose))
	}
	// However it stands, leaving ends, and on time.
	if choose(2) == 0 {
		s.step(GiveUp{DrainUntil: s.now.Add(3 * time.Second), Deadline: s.now.Add(5 * time.Second)})
		for range choose(7) {
			s.now = s.now.Add(time.Second)
			s.step(s.random(choose))
		}
	}
	s.step(Leave{DrainUntil: s.now.Add(time.Second), Deadline: s.now.Add(2 * time.Second)})
	for range 4 {
		s.now = s.now.Add(time.Second)
		s.step(Tick{})
	}
	if s.leaving != 0 || m.State() != StateUnjoined || len(m.Granted()) != 0 {
		t.Fatalf("did not leave: %s, %v", m.State(), m.Granted())
	}
}

func (s *modelShell) random(choose chooser) Input {
	seq := s.seq
	if choose(8) == 0 {
		seq = uint64(choose(int(s.seq) + 2))
	}
	generation := s.entered
	if choose(8) == 0 {
		generation = kafka.Generation(choose(4) - 1)
	}
	err := randomErrors[choose(len(randomErrors))]
	partition := tp([]string{"t", "u", "x"}[choose(3)], int32(choose(3)))
	g := s.pick(choose, partition)
	switch choose(17) {
	case 0:
		return Start{}
	case 1, 2, 3:
		return s.answer(choose, seq, err)
	case 4, 5:
		return HeartbeatAnswered{Generation: generation, Err: err}
	case 6:
		if choose(3) == 0 {
			return SessionExpired{Generation: generation}
		}
		return CommitFenced{Generation: generation, Err: err}
	case 7, 8:
		return PartitionStarted(g)
	case 9, 10, 11:
		return PartitionReleased(g)
	case 12:
		return TopicsChanged{Partitions: map[string]TopicInfo{"t": {Partitions: int32(choose(3))}, "u": {Partitions: 1}}}
	case 13:
		if choose(4) == 0 {
			return Leave{DrainUntil: s.now.Add(time.Duration(choose(9)) * time.Second), Deadline: s.now.Add(time.Duration(choose(12)) * time.Second)}
		}
		if choose(3) == 0 {
			return TopicRecreated{Topic: []string{"t", "u"}[choose(2)]}
		}
		if choose(4) == 0 {
			return GiveUp{DrainUntil: s.now.Add(time.Duration(choose(9)) * time.Second), Deadline: s.now.Add(time.Duration(choose(12)) * time.Second), Reason: "random"}
		}
		return Rejoin{Cause: "random"}
	case 15:
		return SubscriptionChanged{Topics: [][]string{{"t"}, {"t", "u"}, {"u"}, {}}[choose(4)], Gone: [][]string{nil, {"t"}}[choose(2)], LetGo: [][]string{nil, {"t"}, {"u", "t"}}[choose(3)]}
	case 14:
		s.now = s.now.Add(time.Duration(choose(100)) * 100 * time.Millisecond)
	default:
		if at, ok := s.m.Deadline(); ok {
			s.now = later(s.now, at)
		}
	}
	return Tick{}
}

// pick returns a grant that exists, most of the time.
func (s *modelShell) pick(choose chooser, partition kafka.TopicPartition) Grant {
	if len(s.given) == 0 || choose(8) == 0 {
		return Grant{TopicPartition: partition, Epoch: kafka.AssignmentEpoch(choose(9))}
	}
	grants := make([]Grant, 0, len(s.given))
	for g := range s.given {
		grants = append(grants, g)
	}
	slices.SortFunc(grants, compareGrants)
	return grants[choose(len(grants))]
}

// answer answers what is under way, or something else.
func (s *modelShell) answer(choose chooser, seq uint64, err error) Input {
	kind := s.waiting
	if choose(8) == 0 {
		kind = requestKind(choose(5))
	}
	switch kind {
	case requestTopics:
		return TopicsKnown{Seq: seq, Partitions: map[string]TopicInfo{"t": {Partitions: 2}, "u": {Partitions: 1}}, Err: err}
	case requestSync:
		return SyncAnswered{Seq: seq, Err: err, Response: SyncResponse{
			Protocol: "range", Assignment: assignmentOf(tp("t", int32(choose(3))), tp("t", int32(choose(3))), tp("u", 0), tp([]string{"u", "x"}[choose(2)], 1)),
		}}
	case requestLeave:
		return LeaveAnswered{Seq: seq, Err: err}
	case requestNone, requestJoin:
	}
	s.generation++
	response := JoinResponse{Generation: s.generation, MemberID: "me", LeaderID: "other", Protocol: "range"}
	if choose(2) == 0 {
		response.LeaderID = "me"
		response.SkipAssignment = choose(3) == 0
		response.Members = []JoinMember{{MemberID: "me", Metadata: subscriptionOf("t", "u")}, {MemberID: "other", Metadata: []byte{byte(choose(2)), 3, 0}}}
	}
	if errors.Is(err, kafka.MemberIDRequired) {
		response = JoinResponse{MemberID: "me"}
	}
	return JoinAnswered{Seq: seq, Response: response, Err: err}
}

func TestAnySequenceOfInputsKeepsTheMembersPromises(t *testing.T) {
	runs := 3000
	if testing.Short() {
		runs = 300
	}
	visited := make(map[State]bool)
	for seed := range runs {
		choose := seeded(uint64(seed))
		randomMember(t, choose, 150)
	}
	// The random walk is worth something only when it gets everywhere.
	for seed := range 50 {
		choose := seeded(uint64(seed))
		m, err := NewMember(testConfig())
		if err != nil {
			t.Fatal(err)
		}
		s := &modelShell{t: t, m: m, now: epoch0, entered: kafka.NoGeneration, given: make(map[Grant]bool), revoking: make(map[Grant]bool)}
		for range 150 {
			s.step(s.random(choose))
			visited[m.State()] = true
		}
	}
	for state := range State(len(memberMoves)) {
		if state != StateRevoked && !visited[state] {
			t.Errorf("the random walk never comes to %s", state)
		}
	}
}

func FuzzMember(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	for seed := range uint64(4) {
		choose := seeded(seed)
		data := make([]byte, 600)
		for i := range data {
			data[i] = byte(choose(256))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { randomMember(t, fromBytes(data), min(len(data)/4, 500)) })
}
