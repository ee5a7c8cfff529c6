package rebalance

import (
	"maps"
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// RoundRobin returns Kafka's round robin assignor: the partitions of all topics in order are dealt around the members in
// order, passing over a member that does not ask for the topic.
func RoundRobin() Assignor { return roundRobinAssignor{} }

type roundRobinAssignor struct{}

// Name returns "roundrobin".
func (roundRobinAssignor) Name() string { return "roundrobin" }

// Protocol returns [Eager].
func (roundRobinAssignor) Protocol() RebalanceProtocol { return Eager }

// UserData returns nil: round robin remembers nothing.
func (roundRobinAssignor) UserData([]string, []kafka.TopicPartition, kafka.Generation) []byte {
	return nil
}

// Assign deals the partitions around.
func (roundRobinAssignor) Assign(members []AssignorMember, topics map[string]TopicInfo) map[string][]kafka.TopicPartition {
	ordered, asking := askingMembers(members)
	out := make(map[string][]kafka.TopicPartition, len(ordered))
	for _, member := range ordered {
		out[member.MemberID] = nil
	}
	turn := 0 // the member whose turn it is, an index into ordered
	for _, topic := range slices.Sorted(maps.Keys(asking)) {
		takers := asking[topic]
		// The first who asks for the topic, from the one whose turn it is; none after it means from the start again.
		next, _ := slices.BinarySearch(takers, turn)
		for p := range topics[topic].Partitions {
			next %= len(takers)
			id := ordered[takers[next]].MemberID
			out[id] = append(out[id], kafka.TopicPartition{Topic: topic, Partition: p})
			turn = takers[next] + 1
			next++
		}
	}
	return out
}

// askingMembers returns the members in Java's order and, for each topic, who asks for it: indices into the ordered members,
// ascending. A member id that comes twice counts once.
func askingMembers(members []AssignorMember) (ordered []AssignorMember, asking map[string][]int) {
	ordered = slices.Clone(members)
	slices.SortStableFunc(ordered, compareMembers)
	seen := make(map[string]bool, len(ordered))
	ordered = slices.DeleteFunc(ordered, func(m AssignorMember) bool {
		twice := seen[m.MemberID]
		seen[m.MemberID] = true
		return twice
	})
	asking = make(map[string][]int)
	for i, member := range ordered {
		for _, topic := range member.Topics {
			who := asking[topic]
			if len(who) == 0 || who[len(who)-1] != i {
				asking[topic] = append(who, i)
			}
		}
	}
	return ordered, asking
}
