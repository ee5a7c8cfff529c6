package sim

import (
	"slices"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// join serves a JoinGroup.
func (g *coordinator) join(c *call) {
	id, instance := c.join.MemberID, c.join.GroupInstanceID
	if !g.supports(c.join.Protocols) {
		g.w.stats.Inconsistent++
		c.err = kafka.InconsistentGroupProtocol
		g.w.reply(c)
		return
	}
	if id == "" {
		switch holder := g.findInstance(instance); {
		case holder != nil:
			g.replaceStatic(holder, c)
		case instance != "":
			g.joinMember(g.add(c, g.newID(c)), c, true)
		default:
			id := g.newID(c)
			p := &pendingID{id: id}
			g.pending = append(g.pending, p)
			g.w.timeline.push(g.w.at+int64(c.join.SessionTimeout), eventSession, 1, p)
			c.err, c.joined.MemberID = kafka.MemberIDRequired, id
			g.w.reply(c)
		}
		return
	}
	if g.usePending(id) {
		g.joinMember(g.add(c, id), c, true)
		return
	}
	m, err := g.known(id, instance)
	if err != nil {
		c.err = err
		g.w.reply(c)
		return
	}
	g.joinMember(m, c, false)
}

// joinMember decides whether a known member's JoinGroup starts a rebalance, waits for one, or is answered at once.
func (g *coordinator) joinMember(m *groupMember, c *call, fresh bool) {
	changed := fresh || !m.sameProtocols(c)
	switch g.phase {
	case groupCompleting:
		if !changed {
			g.answerJoin(m, c, m.id == g.leader)
			return
		}
	case groupStable:
		if !changed && m.id != g.leader {
			g.answerJoin(m, c, false)
			return
		}
	case groupEmpty, groupPreparing:
	}
	g.update(m, c)
	m.joining = c // an earlier one has no answer; a client that waits for it, since the two came in the other order, hears so in time
	if g.phase != groupPreparing {
		g.prepare()
		return
	}
	g.tryComplete()
}

// answerJoin answers a JoinGroup with the present generation.
func (g *coordinator) answerJoin(m *groupMember, c *call, leads bool) {
	c.joined.Generation, c.joined.MemberID, c.joined.LeaderID, c.joined.Protocol = g.generation, m.id, g.leader, g.protocol
	if leads {
		c.joined.Members = g.protocolMembers()
	}
	g.touch(m)
	g.w.reply(c)
}

// replaceStatic gives a static member's place to a process that came without a member id (KIP-345).
func (g *coordinator) replaceStatic(m *groupMember, c *call) {
	old := m.id
	for _, waiting := range []*call{m.joining, m.syncing} {
		if waiting != nil {
			waiting.err = kafka.FencedInstanceID
			g.w.reply(waiting)
		}
	}
	m.joining, m.syncing = nil, nil
	m.id = g.newID(c)
	g.update(m, c)
	leads := g.leader == old
	if leads {
		g.leader = m.id
	}
	switch {
	case g.phase == groupStable && g.selectProtocol() == g.protocol:
		// Whatever else the new process says of itself: its predecessor's assignment is its own.
		g.w.stats.Returned++
		g.save()
		c.joined.SkipAssignment = leads
		g.answerJoin(m, c, leads)
	case g.phase == groupPreparing:
		m.joining = c
		g.tryComplete()
	default:
		m.joining = c
		g.touch(m)
		g.prepare()
	}
}

// prepare begins a rebalance: every member has to join again before the longest rebalance timeout.
func (g *coordinator) prepare() {
	empty := g.phase == groupEmpty
	for _, m := range g.members {
		if m.syncing != nil {
			m.syncing.err = kafka.RebalanceInProgress
			g.w.reply(m.syncing)
			m.syncing = nil
			g.touch(m)
		}
		m.assignment = nil
	}
	g.phase = groupPreparing
	g.timer++
	g.delayUntil = 0
	if delay := g.w.script.InitialDelay; empty && delay > 0 {
		g.delayUntil = g.w.at + int64(delay)
		g.w.timeline.push(g.delayUntil, eventJoinTimer, -g.timer, nil)
	}
	wait := time.Duration(0)
	for _, m := range g.members {
		wait = max(wait, m.rebalance)
	}
	g.w.timeline.push(g.w.at+int64(wait), eventJoinTimer, g.timer, nil)
	g.tryComplete()
}

// joinTimer is the end of the wait for members: who did not join is out, static members apart. A negative number is the
// end of the initial delay.
func (g *coordinator) joinTimer(number int64) {
	if g.phase != groupPreparing || number != g.timer && number != -g.timer {
		return
	}
	if number < 0 {
		g.tryComplete()
		return
	}
	for _, m := range slices.Clone(g.members) {
		if m.joining == nil && m.instance == "" {
			g.w.check.expired(m, "not back within the rebalance timeout")
			m.gone = true
			g.members = slices.DeleteFunc(g.members, func(other *groupMember) bool { return other == m })
		}
	}
	g.complete()
}

// tryComplete ends the wait when the last member has joined. Ids given and not used yet are waited for, too.
func (g *coordinator) tryComplete() {
	if g.phase != groupPreparing || g.w.at < g.delayUntil || len(g.pending) > 0 {
		return
	}
	for _, m := range g.members {
		if m.joining == nil {
			return
		}
	}
	g.complete()
}

// complete begins the next generation and answers everybody.
func (g *coordinator) complete() {
	g.timer++
	g.generation++
	if len(g.members) == 0 {
		g.phase, g.leader, g.protocol = groupEmpty, "", ""
		g.save()
		return
	}
	if !slices.ContainsFunc(g.members, func(m *groupMember) bool { return m.joining != nil }) {
		// Only static members that are away: wait for them, or for the end of their sessions.
		g.generation--
		g.phase = groupPreparing
		g.w.timeline.push(g.w.at+int64(time.Second), eventJoinTimer, g.timer, nil)
		return
	}
	g.phase, g.protocol = groupCompleting, g.selectProtocol()
	if m := g.find(g.leader); m == nil || m.joining == nil {
		for _, m := range g.members {
			if m.joining != nil {
				g.leader = m.id
				break
			}
		}
	}
	longest := time.Duration(0)
	for _, m := range g.members {
		longest = max(longest, m.rebalance)
		if c := m.joining; c != nil {
			m.joining = nil
			g.answerJoin(m, c, m.id == g.leader)
		}
	}
	g.w.timeline.push(g.w.at+int64(longest), eventSyncTimer, g.timer, nil)
}

// syncTimer is the end of the wait for SyncGroup: who did not send it is out.
func (g *coordinator) syncTimer(number int64) {
	if g.phase != groupCompleting || number != g.timer {
		return
	}
	for _, m := range slices.Clone(g.members) {
		if m.syncing == nil {
			m.gone = true
			g.members = slices.DeleteFunc(g.members, func(other *groupMember) bool { return other == m })
		}
	}
	g.prepare()
}

// sync serves a SyncGroup.
func (g *coordinator) sync(c *call) {
	m, err := g.known(c.sync.MemberID, c.sync.GroupInstanceID)
	switch {
	case err != nil:
		c.err = err
	case c.sync.Generation != g.generation:
		c.err = kafka.IllegalGeneration
	case g.phase == groupPreparing:
		c.err = kafka.RebalanceInProgress
	case g.phase == groupEmpty:
		c.err = kafka.UnknownMemberID
	case c.sync.Protocol != g.protocol:
		c.err = kafka.InconsistentGroupProtocol
	}
	if c.err != nil {
		g.w.reply(c)
		return
	}
	if g.phase == groupStable {
		c.synced.Protocol, c.synced.Assignment = g.protocol, m.assignment
		g.touch(m)
		g.w.reply(c)
		return
	}
	m.syncing = c
	if m.id != g.leader {
		return
	}
	for _, m := range g.members {
		m.assignment = nil
		for _, a := range c.sync.Assignments {
			if a.MemberID == m.id {
				m.assignment = a.Assignment
			}
		}
	}
	g.phase = groupStable
	g.timer++
	g.save()
	g.w.check.assigned()
	for _, m := range g.members {
		waiting := m.syncing
		m.syncing = nil
		g.touch(m)
		if waiting != nil {
			waiting.synced.Protocol, waiting.synced.Assignment = g.protocol, m.assignment
			g.w.reply(waiting)
		}
	}
}
