package actors

import (
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// orphans are partitions whose group actor died: they were lost with it, and OnLost of them is still to be called.
type orphans struct {
	grants []rebalance.Grant
	last   map[kafka.TopicPartition]*cell
}

// orphaned notes, when the group actor dies, the partitions that the user was told of and has not been told the end of.
func (g *group) orphaned() {
	calls, o := g.shared.settings.Callbacks, &g.shared.orphans
	if g.finishing || calls.Lost == nil {
		return
	}
	if o.last == nil {
		o.last = make(map[kafka.TopicPartition]*cell)
	}
	assigned := calls.Assigning != nil || calls.Assigned != nil
	add := func(grant rebalance.Grant, c *cell) {
		if epoch, known := g.callbacks.known[grant.TopicPartition]; assigned && (!known || epoch != grant.Epoch) {
			return
		}
		o.grants = append(o.grants, grant)
		o.last[grant.TopicPartition] = c
	}
	for _, p := range g.parts {
		if told := p.leaving != nil && p.leaving.told; !told && !p.cell.lost.Load() {
			add(rebalance.Grant{TopicPartition: p.tp, Epoch: p.epoch}, p.cell)
		}
	}
	for _, call := range g.callbacks.queue { // an OnLost or OnRevoked that waited for its turn
		if call.begun || call.rights != capability.RightsGone {
			continue
		}
		grants, last := call.grants, call.last
		if l := call.revocation; l != nil {
			grants, last = l.grants, l.last
		}
		for _, grant := range grants {
			add(grant, last[grant.TopicPartition])
		}
	}
	slices.SortFunc(o.grants, func(a, b rebalance.Grant) int { return a.TopicPartition.Compare(b.TopicPartition) })
}

// adopt tells the user of what was lost with the group actor before this one.
func (g *group) adopt(ctx actor.Context) {
	lost, calls := g.shared.orphans, g.shared.settings.Callbacks
	g.shared.orphans = orphans{}
	g.callbacks.known = make(map[kafka.TopicPartition]kafka.AssignmentEpoch)
	for _, grant := range lost.grants {
		g.callbacks.known[grant.TopicPartition] = grant.Epoch
	}
	g.queueCallback(ctx, &callbackCall{
		name: "OnLost", function: calls.Lost, rights: capability.RightsGone, grants: lost.grants, last: lost.last,
		timeout: calls.Timeout, then: func(actor.Context) {},
	})
}
