package rebalance

import "slices"

// slot is one partition that a member claims, with what decides whether it keeps it.
type slot struct {
	topic     int
	partition int32
	rank      int32 // how many of the topic the member claims before it
	near      bool  // in the member's rack
}

// spreadEvenly assigns when all members ask for the same topics. Every member gets the same number, some one more: first
// those who claim more, so that nothing moves that need not. Claims above that number are given up, and everything without
// an owner goes to who has least.
func (g *stickyGroup) spreadEvenly() {
	everybody := g.topics[0].askers
	total := int32(0)
	for _, topic := range g.topics {
		total += topic.info.Partitions
	}
	each, extra := total/int32(len(everybody)), total%int32(len(everybody))
	claims := g.slots()
	for _, m := range everybody {
		keep := int(each)
		if len(claims[m]) > keep && extra > 0 {
			keep++
			extra--
		}
		if len(claims[m]) > keep {
			slices.SortFunc(claims[m], compareSlots)
			claims[m] = claims[m][:keep]
		}
		for _, s := range claims[m] {
			g.give(s.topic, s.partition, m)
		}
	}
	if g.racks {
		g.spreadByRack(each, extra)
	}
	least := newLeastLoaded(g.load, everybody)
	for t, topic := range g.topics {
		for p, owner := range topic.owner {
			if owner == nobody {
				g.give(t, int32(p), least.first())
				least.grown()
			}
		}
	}
}

// slots lists each member's claims in the order of topics and partitions.
func (g *stickyGroup) slots() [][]slot {
	claims := make([][]slot, len(g.members))
	for t, topic := range g.topics {
		for p, m := range topic.claimant {
			if m == nobody {
				continue
			}
			s := slot{topic: t, partition: int32(p), near: g.racks && topic.info.inRack(int32(p), g.members[m].Rack)}
			if n := len(claims[m]); n > 0 && claims[m][n-1].topic == t {
				s.rank = claims[m][n-1].rank + 1
			}
			claims[m] = append(claims[m], s)
		}
	}
	return claims
}

// compareSlots puts first what a member rather keeps: what is in its rack, and of every topic about as many as of the others.
func compareSlots(a, b slot) int {
	switch {
	case a.near != b.near && a.near:
		return -1
	case a.near != b.near:
		return 1
	case a.rank != b.rank:
		return int(a.rank - b.rank)
	}
	return a.topic - b.topic
}

// spreadByRack gives partitions without an owner to the member in one of their racks who has least, as long as it may have
// more: each, and one more for as many as extra says.
func (g *stickyGroup) spreadByRack(each, extra int32) {
	residents := make(map[string][]int)
	for _, m := range g.topics[0].askers {
		if rack := g.members[m].Rack; rack != "" {
			residents[rack] = append(residents[rack], m)
		}
	}
	least := make(map[string]*leastLoaded, len(residents))
	for rack, members := range residents {
		least[rack] = newLeastLoaded(g.load, members)
	}
	for t, topic := range g.topics {
		for p, owner := range topic.owner {
			if owner != nobody {
				continue
			}
			var best *leastLoaded
			for _, rack := range topic.info.racksOf(int32(p)) {
				if h := least[rack]; h != nil && (best == nil || h.before(h.first(), best.first())) {
					best = h
				}
			}
			if best == nil {
				continue
			}
			switch load := g.load[best.first()]; {
			case load > each || load == each && extra == 0:
				continue
			case load == each:
				extra--
			}
			g.give(t, int32(p), best.first())
			best.grown()
		}
	}
}

// leastLoaded is a heap of members, the one that has least on top, of several the first.
type leastLoaded struct {
	load    []int32 // by member; only the top one's may change
	members []int
}

func newLeastLoaded(load []int32, members []int) *leastLoaded {
	h := &leastLoaded{load: load, members: slices.Clone(members)}
	for i := len(h.members)/2 - 1; i >= 0; i-- {
		h.sink(i)
	}
	return h
}

// first returns the member on top.
func (h *leastLoaded) first() int { return h.members[0] }

// grown puts the heap in order after the top member got more.
func (h *leastLoaded) grown() { h.sink(0) }

func (h *leastLoaded) before(a, b int) bool {
	if h.load[a] != h.load[b] {
		return h.load[a] < h.load[b]
	}
	return a < b
}

func (h *leastLoaded) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h.members); child++ {
			if h.before(h.members[child], h.members[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.members[i], h.members[least] = h.members[least], h.members[i]
		i = least
	}
}
