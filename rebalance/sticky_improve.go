package rebalance

import "slices"

// improveWork bounds the search for improvements, in arcs looked at: a fraction of a second, enough to end it in groups of
// some hundred members and some ten thousand seats. It is a count so that the result never depends on the machine.
const improveWork = 40_000_000

// improve makes the division the best there is: the smallest sum of squares of the members' loads, and with that the fewest
// claims given up. It reports false when it ran out of work and left something to be desired.
//
// Its graph has the members, the topics and one sink. Handing a partition on goes from a member to the topic and on to
// another member; a member that hands on without getting one, or the other way round, goes through the sink. An arc costs
// what it makes worse, a balance weighing more than all claims. A cycle of negative cost is an improvement; Bellman and
// Ford's algorithm finds one while there is one, and when it finds none there is none (Klein 1967).
func (u *unevenGroup) improve() bool {
	s := newSearch(u)
	for done := 0; done < u.work; done += 2*len(u.have) + 2*len(u.members) {
		if !s.round() {
			return true
		}
		if cycles := s.cycles(); len(cycles) > 0 {
			for _, cycle := range cycles {
				s.improveAlong(cycle)
			}
			for v := range s.before {
				s.before[v] = step{from: nobody}
			}
		}
	}
	return false
}

// step is the arc by which a node is reached most cheaply.
type step struct {
	from int // node, or nobody
	seat int // of arcs between a member and a topic
}

// search is Bellman and Ford's algorithm. Nodes are the members, then the topics, then the sink.
type search struct {
	*unevenGroup
	weight int64   // of one step of balance; more than a cycle's claims together
	cost   []int64 // by node, how cheaply it was reached so far
	before []step  // by node
}

func newSearch(u *unevenGroup) *search {
	nodes := len(u.members) + len(u.topics) + 1
	return &search{
		unevenGroup: u, weight: int64(nodes) + 1, cost: make([]int64, nodes), before: slices.Repeat([]step{{from: nobody}}, nodes),
	}
}

func (s *search) sink() int { return len(s.members) + len(s.topics) }

// round looks at every arc once and reports whether any node was reached more cheaply.
func (s *search) round() bool {
	better := false
	reach := func(from, to int, cost int64, seat int) {
		if c := s.cost[from] + cost; c < s.cost[to] {
			s.cost[to], s.before[to] = c, step{from: from, seat: seat}
			better = true
		}
	}
	for m := range s.members {
		if s.load[m] > 0 {
			reach(s.sink(), m, -s.weight*int64(s.load[m]-1), 0)
		}
	}
	for t, topic := range s.topics {
		node := len(s.members) + t
		for i, m := range topic.askers {
			seat := s.base[t] + i
			if s.have[seat] > s.claimed[seat] {
				reach(m, node, 0, seat)
			} else if s.have[seat] > 0 {
				reach(m, node, 1, seat)
			}
		}
		for i, m := range topic.askers {
			seat := s.base[t] + i
			if s.have[seat] < s.claimed[seat] {
				reach(node, m, -1, seat)
			} else {
				reach(node, m, 0, seat)
			}
		}
	}
	for m := range s.members {
		reach(m, s.sink(), s.weight*int64(s.load[m]), 0)
	}
	return better
}

// cycles returns the cycles among the arcs by which nodes were reached, each as its nodes against the direction of the
// arcs. They have no node in common.
func (s *search) cycles() [][]int {
	var found [][]int
	seen := make([]int, len(s.before)) // by which walk, from 1
	for start := range s.before {
		v := start
		for v != nobody && seen[v] == 0 {
			seen[v] = start + 1
			v = s.before[v].from
		}
		if v == nobody || seen[v] != start+1 {
			continue
		}
		cycle := []int{v}
		for w := s.before[v].from; w != v; w = s.before[w].from {
			cycle = append(cycle, w)
		}
		found = append(found, cycle)
	}
	return found
}

// improveAlong hands partitions on along a cycle, as many as gain what the first one gains.
func (s *search) improveAlong(cycle []int) {
	amount := int32(1 << 30)
	giver, getter := nobody, nobody // whose loads change
	for _, v := range cycle {
		switch arc := s.before[v]; {
		case v == s.sink():
			getter = arc.from
		case arc.from == s.sink():
			giver = v
		case v >= len(s.members):
			amount = min(amount, s.have[arc.seat])
			if spare := s.have[arc.seat] - s.claimed[arc.seat]; spare > 0 {
				amount = min(amount, spare)
			}
		default:
			if missing := s.claimed[arc.seat] - s.have[arc.seat]; missing > 0 {
				amount = min(amount, missing)
			}
		}
	}
	if giver != nobody {
		amount = min(amount, max(1, (s.load[giver]-s.load[getter])/2))
		s.load[giver] -= amount
		s.load[getter] += amount
	}
	for _, v := range cycle {
		switch arc := s.before[v]; {
		case v == s.sink() || arc.from == s.sink():
		case v >= len(s.members):
			s.have[arc.seat] -= amount
		default:
			s.have[arc.seat] += amount
		}
	}
}
