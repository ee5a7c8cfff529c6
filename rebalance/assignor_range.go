package rebalance

import (
	"cmp"
	"maps"
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// Range returns Kafka's range assignor: each topic's partitions are cut into runs of consecutive numbers, one run per
// member that asks for the topic, the first members getting one more when the numbers do not divide.
//
// Where racks are known it is rack-aware as the Java client is (KIP-881): each member gets as many as before, and first of
// the partitions that have a replica in its rack. Topics with the same members and the same number of partitions stay
// co-partitioned: a member gets the same numbers of each.
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
	ordered, asking := askingMembers(members)
	out := make(map[string][]kafka.TopicPartition, len(ordered))
	for _, member := range ordered {
		out[member.MemberID] = nil
	}
	cuts := make([]*rangeCut, 0, len(asking))
	for _, topic := range slices.Sorted(maps.Keys(asking)) {
		if info := topics[topic]; info.Partitions > 0 {
			cuts = append(cuts, newRangeCut(topic, info, asking[topic]))
		}
	}
	cutByRack(cuts, ordered)
	for _, cut := range cuts {
		cut.fill()
		for p, taker := range cut.owner {
			id := ordered[cut.takers[taker]].MemberID
			out[id] = append(out[id], kafka.TopicPartition{Topic: cut.topic, Partition: int32(p)})
		}
	}
	return out
}

// rangeCut is one topic while it is cut. Takers are named by their position among those who ask for the topic.
type rangeCut struct {
	topic  string
	info   TopicInfo
	takers []int   // members, in order
	each   int32   // what every taker gets
	extra  int32   // how many may still get one more
	taken  []int32 // by taker
	owner  []int   // by partition, the taker or -1
}

func newRangeCut(topic string, info TopicInfo, takers []int) *rangeCut {
	n := int32(len(takers))
	return &rangeCut{
		topic: topic, info: info, takers: takers, each: info.Partitions / n, extra: info.Partitions % n,
		taken: make([]int32, n), owner: slices.Repeat([]int{-1}, int(info.Partitions)),
	}
}

// room returns how many more a taker may get now.
func (c *rangeCut) room(taker int) int32 {
	most := c.each
	if c.extra > 0 {
		most++
	}
	return max(0, most-c.taken[taker])
}

func (c *rangeCut) give(taker int, partition int32) {
	c.owner[partition] = taker
	c.taken[taker]++
	if c.taken[taker] > c.each {
		c.extra--
	}
}

// fill gives every taker in order what it may still get of the partitions left.
func (c *rangeCut) fill() {
	next := int32(0)
	for taker := range c.takers {
		for room := c.room(taker); room > 0 && int(next) < len(c.owner); next++ {
			if c.owner[next] < 0 {
				c.give(taker, next)
				room--
			}
		}
	}
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
