package rebalance

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestStickyAssignorsHaveKafkasNames(t *testing.T) {
	for name, c := range map[string]struct {
		assignor Assignor
		protocol RebalanceProtocol
	}{"range": {Range(), Eager}, "roundrobin": {RoundRobin(), Eager}, "sticky": {Sticky(), Eager}, "cooperative-sticky": {CooperativeSticky(), Cooperative}} {
		if c.assignor.Name() != name || c.assignor.Protocol() != c.protocol {
			t.Errorf("%q is %s, %s", name, c.assignor.Name(), c.assignor.Protocol())
		}
	}
	if RoundRobin().UserData([]string{"t"}, nil, 3) != nil {
		t.Error("round robin sends user data")
	}
}

// The first rounds of a cooperative group of 3 partitions, one member after the other.
func TestCooperativeStickyMovesInTwoRounds(t *testing.T) {
	topics := map[string]TopicInfo{"t": {Partitions: 3}}
	member := func(id string, generation kafka.Generation, owned ...int32) AssignorMember {
		m := AssignorMember{MemberID: id, Topics: []string{"t"}, Generation: generation}
		for _, p := range owned {
			m.Owned = append(m.Owned, tp("t", p))
		}
		return m
	}
	parts := func(numbers ...int32) (out []kafka.TopicPartition) {
		for _, p := range numbers {
			out = append(out, tp("t", p))
		}
		return out
	}
	none := kafka.NoGeneration
	for name, c := range map[string]struct {
		members []AssignorMember
		want    map[string][]kafka.TopicPartition
	}{
		"first":             {[]AssignorMember{member("a", none)}, map[string][]kafka.TopicPartition{"a": parts(0, 1, 2)}},
		"b joins":           {[]AssignorMember{member("a", 1, 0, 1, 2), member("b", none)}, map[string][]kafka.TopicPartition{"a": parts(0, 1), "b": nil}},
		"a has let go":      {[]AssignorMember{member("a", 2, 0, 1), member("b", 2)}, map[string][]kafka.TopicPartition{"a": parts(0, 1), "b": parts(2)}},
		"nothing more":      {[]AssignorMember{member("a", 3, 0, 1), member("b", 3, 2)}, map[string][]kafka.TopicPartition{"a": parts(0, 1), "b": parts(2)}},
		"a leaves":          {[]AssignorMember{member("b", 3, 2)}, map[string][]kafka.TopicPartition{"b": parts(0, 1, 2)}},
		"a missed a round":  {[]AssignorMember{member("a", 2, 0), member("b", 4, 1, 2)}, map[string][]kafka.TopicPartition{"a": parts(0), "b": parts(1, 2)}},
		"a is out of date":  {[]AssignorMember{member("a", 2, 0, 1), member("b", 4, 1, 2)}, map[string][]kafka.TopicPartition{"a": parts(0), "b": parts(1, 2)}},
		"both say the same": {[]AssignorMember{member("a", 4, 0, 1), member("b", 4, 1, 2)}, map[string][]kafka.TopicPartition{"a": parts(0), "b": parts(2)}},
		"asks no longer": {
			[]AssignorMember{{MemberID: "a", Topics: []string{"u"}, Owned: parts(0), Generation: 4}, member("b", 4, 1, 2)},
			map[string][]kafka.TopicPartition{"a": nil, "b": parts(1, 2)},
		},
	} {
		if got := CooperativeSticky().Assign(c.members, topics); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s\n got  %v\n want %v", name, got, c.want)
		}
	}
}

// Subscriptions older than version 2 carry the generation in the user data: 4 bytes of it, or the eager format.
func TestGenerationOfAnOldSubscriptionIsInItsUserData(t *testing.T) {
	sticky, err := encodeStickyData([]kafka.TopicPartition{tp("t", 0)}, 7)
	if err != nil {
		t.Fatal(err)
	}
	owned := []kafka.TopicPartition{tp("t", 0)}
	for name, c := range map[string]struct {
		member AssignorMember
		want   kafka.Generation
	}{
		"4 bytes":      {AssignorMember{Owned: owned, Generation: kafka.NoGeneration, UserData: []byte{0, 0, 0, 7}}, 7},
		"eager format": {AssignorMember{Owned: owned, Generation: kafka.NoGeneration, UserData: sticky}, 7},
		"nothing":      {AssignorMember{Owned: owned, Generation: kafka.NoGeneration}, kafka.NoGeneration},
		"nonsense":     {AssignorMember{Owned: owned, Generation: kafka.NoGeneration, UserData: []byte{1, 2, 3, 4, 5}}, kafka.NoGeneration},
		"the field":    {AssignorMember{Owned: owned, Generation: 9, UserData: []byte{0, 0, 0, 7}}, 9},
	} {
		if got := ownedClaim(c.member); got.generation != c.want || !slices.Equal(got.partitions, owned) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestEagerStickyTakesClaimsFromUserDataAlone(t *testing.T) {
	claims := func(id string, partition int32) AssignorMember {
		return AssignorMember{
			MemberID: id, Topics: []string{"t"}, Generation: kafka.NoGeneration,
			UserData: Sticky().UserData(nil, []kafka.TopicPartition{tp("t", partition)}, 3),
			Owned:    []kafka.TopicPartition{tp("t", 1-partition)},
		}
	}
	got := Sticky().Assign([]AssignorMember{claims("a", 1), claims("b", 0)}, map[string]TopicInfo{"t": {Partitions: 2}})
	want := map[string][]kafka.TopicPartition{"a": {tp("t", 1)}, "b": {tp("t", 0)}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

func TestFreshStickyGroupSpreadsEachTopic(t *testing.T) {
	topics := map[string]TopicInfo{"t": {Partitions: 6}, "u": {Partitions: 3}}
	members := []AssignorMember{{MemberID: "a", Topics: []string{"t", "u"}}, {MemberID: "b", Topics: []string{"t", "u"}}, {MemberID: "c", Topics: []string{"t", "u"}}}
	for id, partitions := range Sticky().Assign(members, topics) {
		count := make(map[string]int)
		for _, p := range partitions {
			count[p.Topic]++
		}
		if count["t"] != 2 || count["u"] != 1 {
			t.Errorf("%s has %v", id, partitions)
		}
	}
}

// A group whose members come, go, change their mind, and lag behind, over many rounds.
func TestStickyGroupsStayWholeEvenAndAtRest(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, assignor := range []Assignor{Sticky(), CooperativeSticky()} {
		for range 150 {
			equal := random.IntN(2) == 0
			members, topics := randomGroup(random, 5, 4, 8, equal)
			generation := kafka.Generation(0)
			for round := range 12 {
				members = changeMembers(random, members, equal, round)
				generation = settle(t, assignor, members, topics, generation)
			}
		}
	}
}

// changeMembers lets a member join, leave or ask for other topics.
func changeMembers(random *rand.Rand, members []AssignorMember, equal bool, round int) []AssignorMember {
	members = slices.Clone(members)
	i := random.IntN(len(members))
	switch kind := random.IntN(3); {
	case kind == 0 && len(members) > 1:
		return slices.Delete(members, i, i+1)
	case kind == 1 && !equal:
		members[i].Topics = members[random.IntN(len(members))].Topics
		return members
	}
	return append(members, AssignorMember{
		MemberID: fmt.Sprint("new", round), Topics: members[i].Topics, Rack: members[i].Rack, Generation: kafka.NoGeneration,
	})
}

// settle runs rounds until nothing moves, checks each, and leaves the members with their claims. Eager groups need one
// round and cooperative ones two; one more changes nothing.
func settle(t *testing.T, assignor Assignor, members []AssignorMember, topics map[string]TopicInfo, generation kafka.Generation) kafka.Generation {
	t.Helper()
	claimOf, rounds := stickyClaim, 1
	if assignor.Protocol() == Cooperative {
		claimOf, rounds = ownedClaim, 2
	}
	var last map[string][]kafka.TopicPartition
	for round := 1; round <= rounds+1; round++ {
		generation++
		result := assignor.Assign(members, topics)
		if err := CheckAssignment(members, topics, result); err != nil {
			t.Fatal(err)
		}
		if assignor.Protocol() == Cooperative {
			checkNobodyElseHasIt(t, members, result)
		}
		switch {
		case round > rounds && !reflect.DeepEqual(result, last):
			t.Fatalf("%s: round %d still moves\n%v\n%v", assignor.Name(), round, last, result)
		case round >= rounds:
			checkComplete(t, members, topics, result)
			checkEven(t, members, result)
		}
		checkKeptWhatItShould(t, divide(members, topics, claimOf))
		last = result
		copy(members, withClaims(assignor, members, result, generation))
	}
	return generation
}

// checkNobodyElseHasIt: what a member gets, no other member works on.
func checkNobodyElseHasIt(t *testing.T, members []AssignorMember, result map[string][]kafka.TopicPartition) {
	t.Helper()
	for p, id := range ownersOf(result) {
		for _, m := range members {
			if m.MemberID != id && slices.Contains(m.Owned, p) {
				t.Fatalf("%s goes to %s and is still with %s", p, id, m.MemberID)
			}
		}
	}
}

// checkEven: nobody has two more than another who could take one of them over (the Java client's guarantee), and with equal
// subscriptions nobody has two more than anybody.
func checkEven(t *testing.T, members []AssignorMember, result map[string][]kafka.TopicPartition) {
	t.Helper()
	for _, a := range members {
		for _, b := range members {
			if len(result[a.MemberID]) < len(result[b.MemberID])+2 {
				continue
			}
			for _, p := range result[a.MemberID] {
				if slices.Contains(b.Topics, p.Topic) {
					t.Fatalf("%s has %d and %s has %d, and could have %s", a.MemberID, len(result[a.MemberID]), b.MemberID, len(result[b.MemberID]), p)
				}
			}
		}
	}
}

// checkKeptWhatItShould: a member that gives up a good claim gets nothing new of the same topic. That it gives up as few as
// can be is tested on small groups by trying everything.
func checkKeptWhatItShould(t *testing.T, d divided) {
	t.Helper()
	owners := ownersOf(d.result)
	for p, id := range d.good {
		if owners[p] == id {
			continue
		}
		for _, mine := range d.result[id] {
			if mine.Topic == p.Topic && d.good[mine] != id {
				t.Fatalf("%s gives up %s and gets %s", id, p, mine)
			}
		}
	}
}

func TestCooperativeStickyGivesNothingThatAnotherMayHold(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 4000 {
		members, topics := randomGroup(random, 5, 3, 5, random.IntN(2) == 0)
		members = randomClaims(random, CooperativeSticky(), members, topics, false)
		result := CooperativeSticky().Assign(members, topics)
		if err := CheckAssignment(members, topics, result); err != nil {
			t.Fatal(err)
		}
		full := divide(members, topics, ownedClaim)
		owners, whole := ownersOf(result), ownersOf(full.result)
		for p, id := range whole {
			others := slices.ContainsFunc(members, func(m AssignorMember) bool { return m.MemberID != id && slices.Contains(m.Owned, p) })
			want := id
			if others && full.good[p] != id {
				want = ""
			}
			if owners[p] != want {
				t.Fatalf("%s goes to %q and not to %q\n%+v", p, owners[p], want, members)
			}
		}
	}
}

func TestAnswerDoesNotDependOnTheOrderOfMembers(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for _, assignor := range []Assignor{Range(), RoundRobin(), Sticky(), CooperativeSticky()} {
		for range 500 {
			members, topics := randomGroup(random, 6, 4, 7, random.IntN(2) == 0)
			members = randomClaims(random, assignor, members, topics, false)
			before := fmt.Sprint(members, topics)
			first := assignor.Assign(members, topics)
			if fmt.Sprint(members, topics) != before {
				t.Fatal("the arguments were changed")
			}
			if assignor.Protocol() == Eager {
				checkComplete(t, members, topics, first)
			}
			random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			if again := assignor.Assign(members, topics); !reflect.DeepEqual(first, again) {
				t.Fatalf("%s\n%v\n%v", assignor.Name(), first, again)
			}
		}
	}
}

func TestStickyPrefersARackWhereItCostsNothing(t *testing.T) {
	topics := map[string]TopicInfo{"t": {Partitions: 4, Racks: [][]string{{"b"}, {"b"}, {"a"}, {"a"}}}, "u": {Partitions: 1}}
	for name, other := range map[string][]string{"equal": {"t"}, "unequal": {"t", "u"}} {
		members := []AssignorMember{{MemberID: "x", Topics: []string{"t"}, Rack: "a"}, {MemberID: "y", Topics: other, Rack: "b"}}
		got := ownersOf(Sticky().Assign(members, topics))
		for p := range int32(4) {
			want := "y"
			if p >= 2 {
				want = "x"
			}
			if got[tp("t", p)] != want && name == "equal" || got[tp("t", p)] == "y" && want == "x" {
				t.Errorf("%s: %d goes to %s", name, p, got[tp("t", p)])
			}
		}
	}
	// What a member has stays, wherever it is; of what it must give up, the far ones go first.
	far := AssignorMember{MemberID: "x", Topics: []string{"t"}, Rack: "a", Generation: 1}
	for p := range int32(4) {
		far.Owned = append(far.Owned, tp("t", p))
	}
	if got := CooperativeSticky().Assign([]AssignorMember{far}, topics); len(got["x"]) != 4 {
		t.Errorf("moved: %v", got)
	}
	got := CooperativeSticky().Assign([]AssignorMember{far, {MemberID: "y", Topics: []string{"t"}, Rack: "b"}}, topics)
	if want := []kafka.TopicPartition{tp("t", 2), tp("t", 3)}; !slices.Equal(got["x"], want) {
		t.Errorf("kept %v", got["x"])
	}
}

func TestRackAwareAnswersAreNoLessEvenOrSticky(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	for range 1000 {
		members, topics := randomGroup(random, 6, 3, 8, random.IntN(2) == 0)
		members = randomClaims(random, Sticky(), members, topics, false)
		squares, moves := divide(members, topics, stickyClaim).cost()
		for i := range members {
			members[i].Rack = ""
		}
		if s, m := divide(members, topics, stickyClaim).cost(); s != squares || m != moves {
			t.Fatalf("with racks %d, %d; without %d, %d", squares, moves, s, m)
		}
	}
}
