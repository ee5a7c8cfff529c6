package rebalance

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// racksOf returns the racks of a partition's replicas; some may be empty or named twice.
func (t TopicInfo) racksOf(partition int32) []string {
	if int(partition) >= len(t.Racks) {
		return nil
	}
	return t.Racks[partition]
}

// inRack reports whether a replica of the partition is in the rack. Nothing is in an unknown rack.
func (t TopicInfo) inRack(partition int32, rack string) bool {
	return rack != "" && slices.Contains(t.racksOf(partition), rack)
}

// cutByRack gives partitions to takers in their rack, as Java's range assignor does, and leaves the others to
// [rangeCut.fill]. It does nothing when racks make no difference.
func cutByRack(cuts []*rangeCut, members []AssignorMember) {
	if !slices.ContainsFunc(cuts, func(c *rangeCut) bool { return c.racksMatter(members) }) {
		return
	}
	alike := make(map[string][]*rangeCut)
	var key strings.Builder
	for _, cut := range cuts {
		key.Reset()
		key.WriteString(strconv.Itoa(len(cut.owner)))
		for _, taker := range cut.takers {
			key.WriteByte(' ')
			key.WriteString(strconv.Itoa(taker))
		}
		alike[key.String()] = append(alike[key.String()], cut)
	}
	for _, together := range alike {
		switch {
		case len(together) > 1:
			cutTogether(together, members)
		case together[0].racksMatter(members):
			together[0].cutAlone(members)
		}
	}
}

// racksMatter reports whether some taker is in a rack of the topic, and the topic's partitions differ in their racks.
func (c *rangeCut) racksMatter(members []AssignorMember) bool {
	all := make(map[string]bool)
	for p := range c.owner {
		for _, rack := range c.info.racksOf(int32(p)) {
			all[rack] = true
		}
	}
	delete(all, "")
	if !slices.ContainsFunc(c.takers, func(m int) bool { return all[members[m].Rack] }) {
		return false
	}
	racks := slices.Collect(maps.Keys(all))
	for p := range c.owner {
		mine := c.info.racksOf(int32(p))
		if slices.ContainsFunc(racks, func(rack string) bool { return !slices.Contains(mine, rack) }) {
			return true
		}
	}
	return false
}

// cutAlone gives each taker in order the first partitions left that have a replica in its rack, as many as it may get. A
// taker whose rack is unknown is content with any.
func (c *rangeCut) cutAlone(members []AssignorMember) {
	near := make(map[string][]int32)
	for p := range int32(len(c.owner)) {
		near[""] = append(near[""], p)
		for _, rack := range c.info.racksOf(p) {
			if rack != "" {
				near[rack] = append(near[rack], p)
			}
		}
	}
	for taker, member := range c.takers {
		rack := members[member].Rack
		left := near[rack]
		for room := c.room(taker); room > 0 && len(left) > 0; left = left[1:] {
			if c.owner[left[0]] < 0 {
				c.give(taker, left[0])
				room--
			}
		}
		near[rack] = left
	}
}

// cutTogether gives each partition number of co-partitioned topics to the first taker with room in whose rack every topic
// has a replica of it. The topics have the same takers and counts and are cut alike, so the first one's room is that of all.
func cutTogether(cuts []*rangeCut, members []AssignorMember) {
	first := cuts[0]
	waiting := make(map[string][]int) // takers with room, by rack
	for taker, member := range first.takers {
		rack := members[member].Rack
		waiting[rack] = append(waiting[rack], taker)
	}
	for p := range int32(len(first.owner)) {
		best := -1
		consider := func(rack string) {
			queue := waiting[rack]
			// Room only shrinks, so who has none is passed over for good.
			for len(queue) > 0 && first.room(queue[0]) == 0 {
				queue = queue[1:]
			}
			waiting[rack] = queue
			if len(queue) > 0 && (best < 0 || queue[0] < best) {
				best = queue[0]
			}
		}
		consider("")
		for _, rack := range first.info.racksOf(p) {
			if !slices.ContainsFunc(cuts[1:], func(c *rangeCut) bool { return !c.info.inRack(p, rack) }) {
				consider(rack)
			}
		}
		if best >= 0 {
			for _, cut := range cuts {
				cut.give(best, p)
			}
		}
	}
}
