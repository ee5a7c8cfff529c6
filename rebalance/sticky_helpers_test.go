package rebalance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// withClaims returns the members with what they were given as their claim, told as the assignor has it told.
func withClaims(assignor Assignor, members []AssignorMember, given map[string][]kafka.TopicPartition, generation kafka.Generation) []AssignorMember {
	out := slices.Clone(members)
	for i := range out {
		mine, was := given[out[i].MemberID]
		if !was {
			continue
		}
		out[i].UserData = assignor.UserData(out[i].Topics, mine, generation)
		out[i].Generation = generation
		if assignor.Protocol() == Cooperative {
			out[i].Owned = mine
		}
	}
	return out
}

// randomGroup has some members and topics; with equal all ask for all topics. Racks are set for about half of the groups.
func randomGroup(random *rand.Rand, mostMembers, mostTopics, mostPartitions int, equal bool) ([]AssignorMember, map[string]TopicInfo) {
	racks := random.IntN(2) == 0
	rack := func() string { return []string{"", "a", "b", "c"}[random.IntN(4)] }
	topics := make(map[string]TopicInfo)
	for i := range 1 + random.IntN(mostTopics) {
		info := TopicInfo{Partitions: int32(random.IntN(mostPartitions + 1))}
		for range info.Partitions {
			if racks && random.IntN(10) > 0 {
				info.Racks = append(info.Racks, []string{rack(), rack()})
			}
		}
		topics[fmt.Sprint("t", i)] = info
	}
	members := make([]AssignorMember, 1+random.IntN(mostMembers))
	for m := range members {
		members[m] = AssignorMember{MemberID: fmt.Sprint("m", m), Generation: kafka.NoGeneration}
		if racks {
			members[m].Rack = rack()
		}
		if random.IntN(4) == 0 {
			members[m].GroupInstanceID = fmt.Sprint("i", random.IntN(100), m)
		}
		for i := range mostTopics {
			if equal || random.IntN(2) == 0 {
				members[m].Topics = append(members[m].Topics, fmt.Sprint("t", i))
			}
		}
	}
	return members, topics
}

// randomClaims makes each member claim some partitions: mostly what nobody else does, sometimes anything.
func randomClaims(random *rand.Rand, assignor Assignor, members []AssignorMember, topics map[string]TopicInfo, honest bool) []AssignorMember {
	given := make(map[string][]kafka.TopicPartition)
	for topic, info := range topics {
		for p := range info.Partitions {
			for range 2 {
				m := members[random.IntN(len(members))]
				if random.IntN(3) > 0 && slices.Contains(m.Topics, topic) {
					given[m.MemberID] = append(given[m.MemberID], tp(topic, p))
				}
				if honest || random.IntN(4) > 0 {
					break
				}
			}
		}
	}
	out := slices.Clone(members)
	for i, m := range members {
		generation := kafka.Generation(4)
		if !honest {
			generation = kafka.Generation(random.IntN(4) - 1)
			if random.IntN(5) == 0 {
				given[m.MemberID] = append(given[m.MemberID], tp("gone", 0), tp("t0", 99), tp("t0", -1), tp("t0", 0), tp("t0", 0))
			}
		}
		out[i] = withClaims(assignor, members[i:i+1], map[string][]kafka.TopicPartition{m.MemberID: given[m.MemberID]}, generation)[0]
	}
	return out
}

// ownersOf turns a result around.
func ownersOf(result map[string][]kafka.TopicPartition) map[kafka.TopicPartition]string {
	owners := make(map[kafka.TopicPartition]string)
	for id, partitions := range result {
		for _, p := range partitions {
			owners[p] = id
		}
	}
	return owners
}

// goodClaims is the naive reading of claims: by partition, the one member with the latest generation, if it asks for it.
func goodClaims(members []AssignorMember, topics map[string]TopicInfo, claimOf func(AssignorMember) claim) map[kafka.TopicPartition]string {
	good := make(map[kafka.TopicPartition]string)
	for topic, info := range topics {
		for p := range info.Partitions {
			latest, claimants := kafka.Generation(-2), []AssignorMember(nil)
			for _, m := range members {
				c := claimOf(m)
				if !slices.Contains(c.partitions, tp(topic, p)) {
					continue
				}
				if c.generation > latest {
					latest, claimants = c.generation, nil
				}
				if c.generation == latest {
					claimants = append(claimants, m)
				}
			}
			if len(claimants) == 1 && slices.Contains(claimants[0].Topics, topic) {
				good[tp(topic, p)] = claimants[0].MemberID
			}
		}
	}
	return good
}

func stickyClaim(m AssignorMember) claim {
	c, _ := decodeStickyData(m.UserData)
	return c
}

// divided is a full division before anything is held back, with the good claims it started from.
type divided struct {
	result map[string][]kafka.TopicPartition
	good   map[kafka.TopicPartition]string
}

func divide(members []AssignorMember, topics map[string]TopicInfo, claimOf func(AssignorMember) claim) divided {
	group := newStickyGroup(members, topics, claimOf)
	group.assign()
	return divided{result: group.result(), good: goodClaims(members, topics, claimOf)}
}

// cost is what a sticky assignor makes small: first the squares of the loads, then the good claims given up.
func (d divided) cost() (squares, moves int) {
	for _, partitions := range d.result {
		squares += len(partitions) * len(partitions)
	}
	owners := ownersOf(d.result)
	for p, id := range d.good {
		if owners[p] != id {
			moves++
		}
	}
	return squares, moves
}

// checkComplete fails unless the result is allowed and every partition that somebody asks for was given.
func checkComplete(t *testing.T, members []AssignorMember, topics map[string]TopicInfo, result map[string][]kafka.TopicPartition) {
	t.Helper()
	if err := CheckAssignment(members, topics, result); err != nil {
		t.Fatalf("%v\n%v\n%v", err, members, result)
	}
	owners := ownersOf(result)
	for topic, info := range topics {
		if !slices.ContainsFunc(members, func(m AssignorMember) bool { return slices.Contains(m.Topics, topic) }) {
			continue
		}
		for p := range info.Partitions {
			if owners[tp(topic, p)] == "" {
				t.Fatalf("%s has no owner\n%v\n%v", tp(topic, p), members, result)
			}
		}
	}
}
