package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// settled reports whether everything is done: the group is stable, every member is in it, and every partition is handled
// and committed to its end.
func (w *World) settled() bool {
	if w.closing {
		return w.closed()
	}
	if w.coordinator.phase != groupStable || w.coordinator.loadingUntil > w.at {
		return false
	}
	for part, l := range w.logs[:w.topic.count] {
		// What was sought or skipped counts once it is committed: a strategy that leaves a rest does so at the end.
		if l.floor < len(l.records) && !w.script.lazy() || len(l.records) < w.script.Records || !w.committedEnough(part) {
			return false
		}
	}
	for _, p := range w.slots {
		if p == nil || p.dead || p.ended || p.closeBy > 0 || !p.tokensSettled() {
			return false
		}
		member := p.group.member
		if member.State() != rebalance.StateAssigned || member.Generation() != w.coordinator.generation {
			return false
		}
	}
	return len(w.coordinator.members) == len(w.slots) && w.unowned() == ""
}

// committedEnough reports whether the strategy has nothing left to commit by itself.
func (w *World) committedEnough(part int) bool {
	switch w.script.Strategy {
	case StrategyManual:
		return w.committedOf(part) == kafka.NoOffset
	case StrategyDemand, StrategyRecords:
		// Its owner has all of it finished, nothing that a user placed holds it back, and it is committed on closing.
		return slices.ContainsFunc(w.slots, func(p *process) bool {
			v := p.group.parts[part]
			return v != nil && v.shell.tracker != nil && v.shell.committable() == w.logs[part].end
		})
	case StrategyOpportunistic, StrategyEvery:
	}
	return w.committedOf(part) == w.logs[part].end
}

// closed reports whether every consumer has closed and everything is committed.
func (w *World) closed() bool {
	for part, l := range w.logs[:w.topic.count] {
		if w.committedOf(part) != l.end || l.floor < len(l.records) {
			return false
		}
	}
	return !slices.ContainsFunc(w.slots, func(p *process) bool { return !p.ended })
}

// unsettled says what is missing.
func (w *World) unsettled() string {
	var b strings.Builder
	fmt.Fprintf(&b, "not settled: phase %d, generation %d, %d of %d members", w.coordinator.phase, w.coordinator.generation,
		len(w.coordinator.members), len(w.slots))
	for part, l := range w.logs[:w.topic.count] {
		fmt.Fprintf(&b, "; %s: %d of %d handled, committed %d of %d", tpOf(part), l.floor, len(l.records),
			w.coordinator.committed[part], l.end)
	}
	b.WriteString(w.unowned())
	for slot, p := range w.slots {
		if p == nil {
			continue
		}
		fmt.Fprintf(&b, "; slot %d: dead %t ended %t, %s generation %d id %q, link %s", slot, p.dead, p.ended, p.group.member.State(),
			p.group.member.Generation(), p.group.member.MemberID(), p.group.link.State())
		for _, u := range p.group.tokens.asked {
			fmt.Fprintf(&b, ", %s waits", u.holder)
		}
		for _, call := range p.group.tokens.queue {
			fmt.Fprintf(&b, ", %s has not returned", call.name)
		}
		for _, v := range p.group.parts {
			if v != nil {
				fmt.Fprintf(&b, ", %s epoch %d %s", tpOf(v.part), v.epoch, v.shell.machine.State())
			}
		}
	}
	return b.String()
}
