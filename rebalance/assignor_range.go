package rebalance

import (
	"cmp"
	"maps"
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// Range returns Kafka's range assignor: each topic's partitions are cut into runs of consecutive numbers, one run per
// member that asks for the topic, the first members getting one more when the numbers do not divide.
func Range() Assignor { return rangeAssignor{} }

type rangeAssignor struct{}

// Name returns "range".
func (rangeAssignor) Name() string { return "range" }

// Protocol returns [Eager].
func (rangeAssignor) Protocol() RebalanceProtocol { return Eager }

// UserData returns nil: range remembers nothing.
func (rangeAssignor) UserData([]string, []kafka.TopicPartition, kafka.Generation) []byte { return nil }

// Assign cuts each topic into runs.
func (rangeAssignor) Assign(members []AssignorMember, topics map[string]TopicInfo) map[string][]kafka.TopicPartition {
	ordered := slices.Clone(members)
	slices.SortFunc(ordered, compareMembers)
	asking := make(map[string][]string, len(topics))
	out := make(map[string][]kafka.TopicPartition, len(members))
	for _, member := range ordered {
		out[member.MemberID] = nil
		for _, topic := range member.Topics {
			ids := asking[topic]
			if len(ids) == 0 || ids[len(ids)-1] != member.MemberID {
				asking[topic] = append(ids, member.MemberID)
			}
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(asking)) {
		ids, count := asking[topic], topics[topic].Partitions
		each, extra := count/int32(len(ids)), count%int32(len(ids))
		next := int32(0)
		for i, id := range ids {
			run := each
			if int32(i) < extra {
				run++
			}
			for ; run > 0; run-- {
				out[id] = append(out[id], kafka.TopicPartition{Topic: topic, Partition: next})
				next++
			}
		}
	}
	return out
}

// compareMembers is the Java client's order: static members first, by their instance id, so that a restart with a new
// member id moves nothing; then dynamic members by member id.
func compareMembers(a, b AssignorMember) int {
	switch {
	case a.GroupInstanceID != "" && b.GroupInstanceID != "":
		return cmp.Or(compareJava(a.GroupInstanceID, b.GroupInstanceID), compareJava(a.MemberID, b.MemberID))
	case a.GroupInstanceID != "":
		return -1
	case b.GroupInstanceID != "":
		return 1
	}
	return compareJava(a.MemberID, b.MemberID)
}

// compareJava compares as Java does, by UTF-16 units: characters beyond the basic plane sort as surrogates, below U+E000.
// Leaders in Java and in Go then cut the same way.
func compareJava(a, b string) int {
	left, right := []rune(a), []rune(b)
	for i := range min(len(left), len(right)) {
		x, y := left[i], right[i]
		if x == y {
			continue
		}
		if (x > 0xffff) == (y > 0xffff) {
			return cmp.Compare(x, y)
		}
		return cmp.Compare(firstUnit(x), firstUnit(y))
	}
	return cmp.Compare(len(left), len(right))
}

// firstUnit returns the first UTF-16 unit of a character.
func firstUnit(r rune) rune {
	if r > 0xffff {
		return 0xd800 + (r-0x10000)>>10
	}
	return r
}
