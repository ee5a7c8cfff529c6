package rebalance

import (
	"cmp"
	"math"
	"slices"
)

// unevenGroup assigns when members ask for different topics. It first settles only how many partitions of each topic each
// member has, since which ones does not matter to evenness, and of claimed ones a member keeps as many as it can.
//
// It starts from all claims, lays what nobody claims on who has least, evens out topic by topic until no two members can be
// made more even, and then searches for longer chains and for claims given up in vain ([unevenGroup.improve]).
type unevenGroup struct {
	*stickyGroup
	base    []int   // by topic: the first of its seats
	have    []int32 // by seat: how many partitions of the topic the member has
	claimed []int32 // by seat: how many of them it claims
	work    int     // bounds improve
}

// A seat is a pair of a topic and a member who asks for it: base of the topic plus the member's place among the askers.

func newUnevenGroup(g *stickyGroup) *unevenGroup {
	u := &unevenGroup{stickyGroup: g, work: improveWork}
	seats := 0
	for _, topic := range g.topics {
		u.base = append(u.base, seats)
		seats += len(topic.askers)
	}
	u.have, u.claimed = make([]int32, seats), make([]int32, seats)
	seatOf := make([]int, len(g.members))
	for t, topic := range g.topics {
		for i, m := range topic.askers {
			seatOf[m] = u.base[t] + i
		}
		for _, m := range topic.claimant {
			if m != nobody {
				u.claimed[seatOf[m]]++
				u.load[m]++
			}
		}
	}
	copy(u.have, u.claimed)
	return u
}

func (u *unevenGroup) assign() {
	u.place()
	// Moves across the mean first: they never move a partition that then moves on.
	low, high := u.mean()
	for u.level(high, low) {
	}
	u.levelAll()
	if !u.improve() {
		// A search that was cut short may have left two members uneven.
		u.levelAll()
	}
	clear(u.load)
	need, keep := make([]int32, len(u.members)), make([]int32, len(u.members))
	for t := range u.topics {
		u.choose(t, need, keep)
	}
}

// place lays what nobody claims on who has least, topics with few askers first: they have the least choice.
func (u *unevenGroup) place() {
	order := make([]int, len(u.topics))
	for t := range order {
		order[t] = t
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(u.topics[a].askers) - len(u.topics[b].askers) })
	for _, t := range order {
		topic := u.topics[t]
		free := topic.info.Partitions
		for i := range topic.askers {
			free -= u.claimed[u.base[t]+i]
		}
		if free == 0 {
			continue
		}
		least := newLeastLoaded(u.load, topic.askers)
		for range free {
			m := least.first()
			i, _ := slices.BinarySearch(topic.askers, m)
			u.have[u.base[t]+i]++
			u.load[m]++
			least.grown()
		}
	}
}

// levelAll levels until no two members differ by two or more where one could give to the other. It ends, because every step
// makes the sum of squares of the loads smaller.
func (u *unevenGroup) levelAll() {
	for u.level(0, math.MaxInt32) {
	}
}

// level moves partitions of each topic in turn from who has most to who has least of all while they differ by two or more
// and lie above and below those bounds. It reports whether it moved any.
func (u *unevenGroup) level(above, below int32) bool {
	moved := false
	for t, topic := range u.topics {
		least, most := int32(math.MaxInt32), int32(0)
		for i, m := range topic.askers {
			least = min(least, u.load[m])
			if u.have[u.base[t]+i] > 0 {
				most = max(most, u.load[m])
			}
		}
		if most-least >= 2 && most > above && least < below {
			u.levelTopic(t, above, below)
			moved = true
		}
	}
	return moved
}

// mean returns the mean load of the members that ask for anything, rounded down and up.
func (u *unevenGroup) mean() (low, high int32) {
	asks := make([]bool, len(u.members))
	total, count := int32(0), int32(0)
	for _, topic := range u.topics {
		total += topic.info.Partitions
		for _, m := range topic.askers {
			if !asks[m] {
				asks[m] = true
				count++
			}
		}
	}
	return total / count, (total + count - 1) / count
}

// levelTopic moves single partitions of one topic from the member with the most to the member with the least, from above
// the one bound to below the other. One that gave ends with the most or one fewer, one that got with the least or one more;
// so nobody does both, and two heaps in which only the top changes suffice.
func (u *unevenGroup) levelTopic(t int, above, below int32) {
	var givers, takers seatHeap
	for i, m := range u.topics[t].askers {
		s := u.base[t] + i
		takers = append(takers, weighed{key: u.load[m], member: m, seat: s})
		if u.have[s] > 0 {
			givers = append(givers, weighed{key: -u.load[m], member: m, seat: s})
		}
	}
	givers.order()
	takers.order()
	for len(givers) > 0 {
		from, to := &givers[0], &takers[0]
		most, least := u.load[from.member], u.load[to.member]
		if most-least < 2 || most <= above || least >= below {
			return
		}
		u.have[from.seat]--
		u.load[from.member]--
		from.key++
		u.have[to.seat]++
		u.load[to.member]++
		to.key++
		takers.sink(0)
		if u.have[from.seat] == 0 {
			givers[0] = givers[len(givers)-1]
			givers = givers[:len(givers)-1]
		}
		givers.sink(0)
	}
}

// choose picks which partitions of a topic each member gets: of its claims those in its rack first, then what is left, to
// members in the rack first. The slices are room by member.
func (u *unevenGroup) choose(t int, need, keep []int32) {
	topic := u.topics[t]
	for i, m := range topic.askers {
		need[m] = u.have[u.base[t]+i]
		keep[m] = min(need[m], u.claimed[u.base[t]+i])
	}
	keepClaims := func(all bool) {
		for p, m := range topic.claimant {
			if m != nobody && topic.owner[p] == nobody && keep[m] > 0 && (all || topic.info.inRack(int32(p), u.members[m].Rack)) {
				u.give(t, int32(p), m)
				keep[m]--
				need[m]--
			}
		}
	}
	waiting := rackQueues{need: need, near: make(map[string][]int)}
	for _, m := range topic.askers {
		waiting.all = append(waiting.all, m)
		if rack := u.members[m].Rack; u.racks && rack != "" {
			waiting.near[rack] = append(waiting.near[rack], m)
		}
	}
	deal := func(take func(p int32) int) {
		for p, owner := range topic.owner {
			if owner != nobody {
				continue
			}
			if m := take(int32(p)); m != nobody {
				u.give(t, int32(p), m)
			}
		}
	}
	if u.racks {
		keepClaims(false)
	}
	keepClaims(true)
	if u.racks {
		deal(func(p int32) int { return waiting.takeNear(topic.info.racksOf(p)) })
	}
	deal(func(int32) int { return waiting.take() })
}

// rackQueues are the members who need more, in order.
type rackQueues struct {
	need []int32 // by member
	all  []int
	near map[string][]int // by rack
}

// take returns the first member and counts down what it needs.
func (q *rackQueues) take() int { return q.takeFrom(&q.all) }

// takeNear is take for members in one of these racks.
func (q *rackQueues) takeNear(racks []string) int {
	for _, rack := range racks {
		queue := q.near[rack]
		m := q.takeFrom(&queue)
		q.near[rack] = queue
		if m != nobody {
			return m
		}
	}
	return nobody
}

// takeFrom passes over who needs nothing, for good: need only shrinks.
func (q *rackQueues) takeFrom(queue *[]int) int {
	for len(*queue) > 0 && q.need[(*queue)[0]] == 0 {
		*queue = (*queue)[1:]
	}
	if len(*queue) == 0 {
		return nobody
	}
	m := (*queue)[0]
	q.need[m]--
	return m
}

// weighed is a seat in a heap, with its member's load or the negative of it.
type weighed struct {
	key    int32
	member int
	seat   int
}

// seatHeap is a heap of seats, the smallest key on top, of several the first member's.
type seatHeap []weighed

func (h seatHeap) order() {
	// A sorted slice is a heap.
	slices.SortFunc(h, compareWeighed)
}

func compareWeighed(a, b weighed) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.member, b.member))
}

func (h seatHeap) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if compareWeighed(h[child], h[least]) < 0 {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
