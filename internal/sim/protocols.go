package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// ProtocolKind is what the members of a group offer.
type ProtocolKind uint8

// The kinds. Under ProtocolMixed each process draws one of four lists; under ProtocolUpgrade a slot's first process offers range
// alone, and each further one that an upgrade starts is one step on the way to cooperative-sticky alone.
const (
	ProtocolRange ProtocolKind = iota
	ProtocolSticky
	ProtocolRoundRobin
	ProtocolCooperative
	ProtocolMixed
	ProtocolUpgrade
)

var protocolNames = [...]string{"range", "sticky", "roundrobin", "cooperative", "mixed", "upgrade"}

// offer is a list of assignors that a member offers, preferred first.
type offer uint8

const (
	offerRange offer = iota
	offerRangeFirst
	offerStickyFirst
	offerCooperative
	offerSticky
	offerRoundRobin
)

var offers = [...][]rebalance.Assignor{
	offerRange:       {rebalance.Range()},
	offerRangeFirst:  {rebalance.Range(), rebalance.CooperativeSticky()},
	offerStickyFirst: {rebalance.CooperativeSticky(), rebalance.Range()},
	offerCooperative: {rebalance.CooperativeSticky()},
	offerSticky:      {rebalance.Sticky()},
	offerRoundRobin:  {rebalance.RoundRobin()},
}

// both is the list that has something in common with every other one; which of the two is preferred depends on the seed.
func (s *Script) both() offer { return offerRangeFirst + offer(s.Seed%2) }

// firstOffer is what a slot's first process offers.
func (w *World) firstOffer() offer {
	switch w.script.Protocols {
	case ProtocolSticky:
		return offerSticky
	case ProtocolRoundRobin:
		return offerRoundRobin
	case ProtocolCooperative:
		return offerCooperative
	case ProtocolMixed:
		return offer(w.change.IntN(4))
	case ProtocolRange, ProtocolUpgrade:
	}
	return offerRange
}

// upgrade takes what a slot's next process offers one step further.
func (w *World) upgrade(slot int) {
	switch w.offers[slot] {
	case offerRange:
		w.offers[slot] = w.script.both()
	case offerRangeFirst, offerStickyFirst:
		w.offers[slot] = offerCooperative
	case offerCooperative, offerSticky, offerRoundRobin:
	}
}

// agree has the rolling upgrade go on where members have nothing in common: those that offer range alone are replaced.
func (w *World) agree() {
	if !slices.Contains(w.offers, offerRange) || !slices.Contains(w.offers, offerCooperative) {
		return
	}
	for slot, p := range w.slots {
		if w.offers[slot] != offerRange {
			continue
		}
		w.offers[slot] = w.script.both()
		if p == nil || p.dead || p.ended {
			continue
		}
		p.close(5 * time.Second)
	}
}

// close ends a consumer by itself within limit; another process takes its place.
func (p *process) close(limit time.Duration) {
	if p.closeBy != 0 {
		return
	}
	w := p.w
	p.closeBy, p.closeAsked, p.replace = w.at+int64(limit), w.at, true
	w.post(p.group.box, message{kind: messageShutdown, at: p.at() + int64(limit)/2, offset: p.closeBy - p.behind})
}

// supports reports whether one of the protocols is offered by every member of the group (INCONSISTENT_GROUP_PROTOCOL).
func (g *coordinator) supports(protocols []rebalance.Protocol) bool {
	if g.phase == groupEmpty {
		return len(protocols) > 0
	}
	return slices.ContainsFunc(protocols, func(p rebalance.Protocol) bool { return g.offeredByAll(p.Name) })
}

func (g *coordinator) offeredByAll(name string) bool {
	return !slices.ContainsFunc(g.members, func(m *groupMember) bool { return !m.offers(name) })
}

func (m *groupMember) offers(name string) bool {
	return slices.ContainsFunc(m.protocols, func(p rebalance.Protocol) bool { return p.Name == name })
}

// metadata is the member's subscription under a protocol.
func (m *groupMember) metadata(name string) []byte {
	for _, p := range m.protocols {
		if p.Name == name {
			return p.Metadata
		}
	}
	return nil
}

// selectProtocol lets each member vote for the first protocol on its list that all of them offer. The one with most votes is
// taken; Kafka leaves open which of several.
func (g *coordinator) selectProtocol() string {
	best, most := "", 0
	votes := make(map[string]int, 2)
	for _, m := range g.members {
		for _, p := range m.protocols {
			if g.offeredByAll(p.Name) {
				votes[p.Name]++
				break
			}
		}
	}
	for name, n := range votes {
		if n > most || n == most && (name < best) == (g.w.script.Seed%2 == 0) {
			best, most = name, n
		}
	}
	return best
}

// sameProtocols reports whether a JoinGroup offers just what the member offered before.
func (m *groupMember) sameProtocols(c *call) bool {
	return slices.EqualFunc(m.protocols, c.join.Protocols, func(a, b rebalance.Protocol) bool {
		return a.Name == b.Name && string(a.Metadata) == string(b.Metadata)
	})
}

// claims checks that a JoinGroup says just what the process has: nothing under an eager list, and under a cooperative one all
// that is neither lost nor released, in the generation that it is in.
func (c *checker) claims(g *groupShell, protocols []rebalance.Protocol) {
	var held []kafka.TopicPartition
	for _, v := range g.parts {
		if v != nil && !v.lost && !v.released {
			held = append(held, tpOf(v.part))
		}
	}
	for _, p := range protocols {
		subscription, err := rebalance.DecodeSubscription(p.Metadata)
		c.machine(err)
		switch owned := subscription.Owned; {
		case len(owned) == 0 && len(held) == 0:
		case !slices.Equal(owned, held):
			c.w.violate("CLAIM", fmt.Sprintf("JoinGroup claims %v under %s, the member has %v", owned, p.Name, held))
		case subscription.Generation != g.generation:
			c.w.violate("CLAIM", fmt.Sprintf("JoinGroup claims %v in generation %d, the member is in %d", owned, subscription.Generation, g.generation))
		}
	}
}

// revokes checks that a cooperative member gives up only what it was not given anew, unless it closes.
func (c *checker) revokes(g *groupShell, e rebalance.RevokePartitions) {
	if !g.process.cooperative() || e.Closing || g.entering == nil {
		return
	}
	assignment, err := rebalance.DecodeAssignment(g.entering)
	c.machine(err)
	for _, grant := range e.Grants {
		if slices.Contains(assignment.Partitions, grant.TopicPartition) {
			c.w.violate("KEPT", fmt.Sprintf("%s epoch %d is revoked, though it is kept", grant.TopicPartition, grant.Epoch))
		}
	}
}

// drains checks that a partition is drained only when it is given up.
func (c *checker) drains(s *partitionShell) {
	if v := s.process.group.view(s.part, s.epoch); v != nil && !v.revoking && !v.lost {
		c.w.violate("KEPT", fmt.Sprintf("%s epoch %d drains, though it is kept", tpOf(s.part), s.epoch))
	}
}

// loses checks that what a member keeps is not lost to a code that only means that a rebalance is under way, nor to how long one
// takes: where nothing goes wrong the session goes on for as long.
func (c *checker) loses(g *groupShell, e rebalance.LosePartitions) {
	state, name := g.before, "G6"
	if state == rebalance.StateJoining || state == rebalance.StateSyncing {
		name = "KEPT"
	}
	if name == "KEPT" && (errors.Is(e.Cause, kafka.IllegalGeneration) || errors.Is(e.Cause, kafka.RebalanceInProgress)) {
		c.w.violate("KEPT", fmt.Sprintf("%d partitions lost in %s to %v", len(e.Grants), state, e.Cause))
	}
	if errors.Is(e.Cause, rebalance.ErrSessionExpired) && c.calm() && c.w.script.StallPermyriad == 0 {
		c.w.violate(name, fmt.Sprintf("%d partitions lost in %s though nothing went wrong: %v", len(e.Grants), state, e.Cause))
	}
}

// granted checks that nothing is granted anew that the process has.
func (c *checker) granted(old *grantView, grant rebalance.Grant) {
	if old != nil && !old.lost && !old.released {
		c.w.violate("KEPT", fmt.Sprintf("%s granted as epoch %d, epoch %d is still there", grant.TopicPartition, grant.Epoch, old.epoch))
	}
}

// letGo checks that no round is let go between JoinGroup and SyncGroup, as far as the committer knows of them.
func (c *checker) letGo(committer *committerShell, round *commit.Round) {
	if committer.held {
		c.w.violate("HELD", fmt.Sprintf("a round of generation %d is sent between JoinGroup and SyncGroup", round.Generation))
	}
}

// cooperative reports whether the process keeps its partitions over a JoinGroup.
func (p *process) cooperative() bool { return p.offer == offerCooperative }

// unowned says which partition has no owner in the present generation; an empty text when each has one.
func (w *World) unowned() string {
	var b strings.Builder
	owners := make([]int, w.script.Partitions)
	for _, p := range w.slots {
		for _, v := range p.group.parts {
			if v != nil && !v.lost && !v.revoking {
				owners[v.part]++
			}
		}
	}
	for part, n := range owners[:w.topic.count] {
		switch {
		case n == 0:
			fmt.Fprintf(&b, "; %s has no owner", tpOf(part))
		case n > 1:
			w.violate("STATE", fmt.Sprintf("%s has %d owners in generation %d", tpOf(part), n, w.coordinator.generation))
		}
	}
	return b.String()
}
