package rebalance

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// bigGroup has 1,000 members and 100,000 partitions in that many topics. A member asks for all topics, or each with that
// probability. Three quarters of the members hold an earlier division among themselves; the others are new.
func bigGroup(assignor Assignor, topicCount int, share float64, racks bool) ([]AssignorMember, map[string]TopicInfo) {
	random := rand.New(rand.NewPCG(1, 2))
	topics := make(map[string]TopicInfo)
	for i := range topicCount {
		info := TopicInfo{Partitions: int32(100_000 / topicCount)}
		for range info.Partitions {
			if racks {
				info.Racks = append(info.Racks, []string{fmt.Sprint("r", random.IntN(6)), fmt.Sprint("r", random.IntN(6))})
			}
		}
		topics[fmt.Sprint("topic-", i)] = info
	}
	members := make([]AssignorMember, 1000)
	for m := range members {
		members[m] = AssignorMember{MemberID: fmt.Sprint("member-", m), Generation: kafka.NoGeneration}
		if racks {
			members[m].Rack = fmt.Sprint("r", random.IntN(6))
		}
		for i := range topicCount {
			if random.Float64() < share {
				members[m].Topics = append(members[m].Topics, fmt.Sprint("topic-", i))
			}
		}
	}
	if share < 1 {
		members[0].Topics = nil // its topics are some that only few ask for
		for i := range topicCount / 10 {
			members[0].Topics = append(members[0].Topics, fmt.Sprint("topic-", i))
		}
	}
	old := members[:750]
	return withClaims(assignor, members, assignor.Assign(old, topics), 3), topics
}

func BenchmarkAssign1000MembersX100000Partitions(b *testing.B) {
	for _, assignor := range []Assignor{Range(), RoundRobin(), Sticky(), CooperativeSticky()} {
		for _, c := range []struct {
			name   string
			topics int
			share  float64
			racks  bool
		}{
			{"Equal10", 10, 1, false}, {"Equal1000", 1000, 1, false}, {"Equal1000Racks", 1000, 1, true},
			{"Uneven10", 10, 0.5, false}, {"Uneven100", 100, 0.1, false}, {"Uneven1000", 1000, 0.5, false},
			{"Uneven1000Few", 1000, 0.01, false}, {"Uneven1000Racks", 1000, 0.5, true},
		} {
			b.Run(assignor.Name()+c.name, func(b *testing.B) {
				members, topics := bigGroup(assignor, c.topics, c.share, c.racks)
				b.ResetTimer()
				for b.Loop() {
					assignor.Assign(members, topics)
				}
			})
		}
	}
}

// Every member can only hand on to its neighbor, and the first claims everything: the worst case for evening out.
func BenchmarkAssignAlongAChainOfMembers(b *testing.B) {
	topics := make(map[string]TopicInfo)
	members := make([]AssignorMember, 1000)
	for m := range members {
		topics[fmt.Sprintf("topic-%04d", m)] = TopicInfo{Partitions: 100}
		members[m] = AssignorMember{
			MemberID: fmt.Sprintf("member-%04d", m), Generation: 3,
			Topics: []string{fmt.Sprintf("topic-%04d", m), fmt.Sprintf("topic-%04d", (m+1)%1000)},
		}
		for p := range int32(100) {
			members[m].Owned = append(members[m].Owned, tp(members[m].Topics[0], p))
		}
	}
	topics["topic-0000"] = TopicInfo{Partitions: 10_000}
	for b.Loop() {
		CooperativeSticky().Assign(members, topics)
	}
}
