package rebalance

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// bestCost tries every division of a small group.
func bestCost(members []AssignorMember, topics map[string]TopicInfo, good map[kafka.TopicPartition]string) (squares, moves int) {
	var all []kafka.TopicPartition
	for topic, info := range topics {
		for p := range info.Partitions {
			if slices.ContainsFunc(members, func(m AssignorMember) bool { return slices.Contains(m.Topics, topic) }) {
				all = append(all, tp(topic, p))
			}
		}
	}
	squares = -1
	load := make([]int, len(members))
	var try func(i, moved int)
	try = func(i, moved int) {
		if i == len(all) {
			sum := 0
			for _, n := range load {
				sum += n * n
			}
			if squares < 0 || sum < squares || sum == squares && moved < moves {
				squares, moves = sum, moved
			}
			return
		}
		for m := range members {
			if !slices.Contains(members[m].Topics, all[i].Topic) {
				continue
			}
			cost := 0
			if id := good[all[i]]; id != "" && id != members[m].MemberID {
				cost = 1
			}
			load[m]++
			try(i+1, moved+cost)
			load[m]--
		}
	}
	try(0, 0)
	return squares, moves
}

func TestSmallGroupsAreAsEvenAndAsStickyAsCanBe(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	moving := 0
	for range 8000 {
		members, topics := randomGroup(random, 4, 4, 2, random.IntN(3) == 0)
		members = randomClaims(random, Sticky(), members, topics, random.IntN(2) == 0)
		d := divide(members, topics, stickyClaim)
		checkComplete(t, members, topics, d.result)
		squares, moves := d.cost()
		bestSquares, bestMoves := bestCost(members, topics, d.good)
		if squares != bestSquares || moves != bestMoves {
			t.Fatalf("%d, %d moves instead of %d, %d\n%+v\n%v", squares, moves, bestSquares, bestMoves, members, d)
		}
		if moves > 0 {
			moving++
		}
	}
	if moving < 500 {
		t.Errorf("only %d groups had to move anything", moving)
	}
}

// With equal subscriptions the short way and the general one must agree on what matters.
func TestGeneralWayIsAsGoodAsTheShortOne(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	for range 500 {
		members, topics := randomGroup(random, 12, 5, 30, true)
		members = randomClaims(random, Sticky(), members, topics, false)
		short := divide(members, topics, stickyClaim)
		group := newStickyGroup(members, topics, stickyClaim)
		if len(group.topics) > 0 {
			newUnevenGroup(group).assign()
		}
		general := divided{result: group.result(), good: short.good}
		shortSquares, shortMoves := short.cost()
		squares, moves := general.cost()
		if squares != shortSquares || moves != shortMoves {
			t.Fatalf("general %d, %d; short %d, %d", squares, moves, shortSquares, shortMoves)
		}
	}
}

// A chain of members, each sharing a topic with the next: no two differ by two, and yet the first can be relieved.
func TestChainOfMembersIsEvenedOut(t *testing.T) {
	topics := map[string]TopicInfo{"a": {Partitions: 3}, "b": {Partitions: 2}, "c": {Partitions: 1}}
	parts := func(topic string, n int32) (out []kafka.TopicPartition) {
		for p := range n {
			out = append(out, tp(topic, p))
		}
		return out
	}
	got := CooperativeSticky().Assign([]AssignorMember{
		{MemberID: "1", Topics: []string{"a"}, Owned: parts("a", 3), Generation: 1},
		{MemberID: "2", Topics: []string{"a", "b"}, Owned: parts("b", 2), Generation: 1},
		{MemberID: "3", Topics: []string{"b", "c"}, Owned: parts("c", 1), Generation: 1},
	}, topics)
	if len(got["1"]) != 2 || len(got["2"]) != 1 || len(got["3"]) != 1 { // one of a and one of b are held back
		t.Errorf("%v", got)
	}
}

// A search that is cut short at any moment leaves no two members who could be more even.
func TestSearchCutShortLeavesAnyTwoEven(t *testing.T) {
	random := rand.New(rand.NewPCG(15, 16))
	for range 2000 {
		members, topics := randomGroup(random, 8, 6, 12, false)
		members = randomClaims(random, Sticky(), members, topics, false)
		group := newStickyGroup(members, topics, stickyClaim)
		if len(group.topics) == 0 {
			continue
		}
		uneven := newUnevenGroup(group)
		uneven.work = random.IntN(400)
		uneven.assign()
		checkComplete(t, members, topics, group.result())
		checkEven(t, members, group.result())
	}
}

func TestBigGroupIsEvenBetweenAnyTwo(t *testing.T) {
	members, topics := bigGroup(Sticky(), 100, 0.1, false)
	result := Sticky().Assign(members, topics)
	checkComplete(t, members, topics, result)
	most, least := make(map[string]int), make(map[string]int)
	for _, m := range members {
		load := len(result[m.MemberID])
		for _, p := range result[m.MemberID] {
			most[p.Topic] = max(most[p.Topic], load)
		}
		for _, topic := range m.Topics {
			if n, ok := least[topic]; !ok || load < n {
				least[topic] = load
			}
		}
	}
	for topic := range topics {
		if most[topic] > least[topic]+1 {
			t.Errorf("%s: one of its owners has %d, one who asks for it %d", topic, most[topic], least[topic])
		}
	}
}
