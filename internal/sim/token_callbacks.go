package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// callbacks are the group's calls of the user's callbacks, one at a time, as actors/callbacks.go has them.
type callbacks struct {
	callbackAlarm alarm
	queue         []*callbackCall
	// leavings are the revocations whose OnRevoked has not returned.
	leavings []*leavingSet
}

// callbackCall is one call.
type callbackCall struct {
	name   string
	rights capability.Rights
	grants []rebalance.Grant
	// past: it is about partitions that are gone.
	past     bool
	deadline time.Time
	then     func()
	// leaving is the revocation of an OnRevoked.
	leaving *leavingSet
	begun   bool
	id      uint64
	user    *tokenUser
}

// leavingSet is the partitions of one revocation.
type leavingSet struct {
	grants         []rebalance.Grant
	left           int
	revoking, told bool
	deadline       time.Time
}

const (
	// callbackTimeout is how long a callback may take that nothing else bounds.
	callbackTimeout = 2 * time.Second
	// callbackGrace is how much longer it is waited for.
	callbackGrace = 100 * time.Millisecond
)

var errCallbackOverdue = errors.New("callback is overdue")

// queueCallback runs a callback after those before it, and goes on then.
func (g *groupShell) queueCallback(call *callbackCall) {
	if !g.w.script.Callbacks || len(call.grants) == 0 {
		call.then()
		return
	}
	q := &g.tokens.queue
	if len(*q) > 0 && (*q)[0].begun && call.deadline.Before((*q)[0].deadline) {
		g.hurry()
	}
	*q = append(*q, call)
	g.nextCallback()
}

// hurry ends the context of the callback that runs.
func (g *groupShell) hurry() {
	call := g.tokens.queue[0]
	if now := g.process.now(); now.Before(call.deadline) {
		call.deadline = now
	}
	g.callbackDeadline()
}

func (g *groupShell) callbackDeadline() {
	g.tokens.callbackAlarm.set = false
	if q := g.tokens.queue; len(q) > 0 && q[0].begun {
		g.w.setAlarm(&g.tokens.callbackAlarm, q[0].deadline.Add(callbackGrace), true)
	}
}

// nextCallback begins the first call, with a token that it takes by force.
func (g *groupShell) nextCallback() {
	d := &g.tokens
	if len(d.queue) == 0 || d.queue[0].begun {
		return
	}
	call := d.queue[0]
	call.begun = true
	if call.leaving != nil {
		call.leaving.told, call.grants = true, call.leaving.grants
	}
	g.w.stats.Callbacks++
	d.nextID++
	call.id = d.nextID
	holder := capability.Holder(call.name)
	g.stepDesk(capability.Asked{ID: call.id, Holder: holder, Op: "rebalance", How: capability.Force, Rights: call.rights, Partitions: g.about(call)})
	rng := g.w.token
	call.user = &tokenUser{process: g.process, id: call.id, holder: holder, key: d.granted[call.id], steps: rng.IntN(4), callback: call}
	delete(d.granted, call.id)
	switch {
	case g.w.faulty && rng.IntN(10) == 0: // it never returns
		call.user.steps = 1 << 20
		g.process.users.later(call.user, tokenActs)
	case g.w.faulty && rng.IntN(6) == 0: // it hands on what it has, and returns at once
		g.process.users.hand(call.user)
		g.w.post(g.box, message{kind: messageCallbackDone, seq: call.id})
	default:
		g.process.users.later(call.user, tokenActs)
	}
	g.callbackDeadline()
}

// about is what a callback's token covers: nothing that was lost, or came back under another epoch, while the call waited.
func (g *groupShell) about(call *callbackCall) (out []kafka.TopicPartition) {
	for _, grant := range call.grants {
		v := g.parts[grant.TopicPartition.Partition]
		present := v != nil && v.epoch == grant.Epoch
		switch {
		case g.w.mutant == MutantCallbackOfOldEpoch:
		case call.past && v != nil && !present:
			continue
		case !call.past && (!present || v.lost || v.revoking && call.rights != capability.RightsRevoking):
			continue
		}
		out = append(out, grant.TopicPartition)
	}
	return out
}

// callbackDone is the end of a callback: it returned, or its time is over.
func (g *groupShell) callbackDone(id uint64, cause error) {
	d := &g.tokens
	if len(d.queue) == 0 || d.queue[0].id != id || !d.queue[0].begun {
		return
	}
	call := d.queue[0]
	d.queue = d.queue[1:]
	call.user.left = true
	g.stepDesk(capability.Ended{ID: id, Cause: cause})
	g.callbackDeadline()
	call.then()
	if !g.process.ended {
		g.nextCallback()
	}
}

// assigningCallback comes before it is decided where partitions start.
func (g *groupShell) assigningCallback(grants []rebalance.Grant) {
	g.queueCallback(&callbackCall{
		name: "OnAssigning", rights: capability.RightsAssigning, grants: grants, deadline: g.process.now().Add(callbackTimeout),
		then: func() {
			for _, grant := range grants {
				if part := int(grant.TopicPartition.Partition); g.present(grant) && !g.parts[part].revoking && !g.parts[part].lost {
					g.starts.waiting = append(g.starts.waiting, part)
				}
			}
			if len(grants) > 0 {
				g.starts.fresh = false // an answer that is still under way may be older than another owner's last commit
			}
			g.requestStarts()
		},
	})
}

// present reports whether a grant is the one that its partition has.
func (g *groupShell) present(grant rebalance.Grant) bool {
	v := g.parts[grant.TopicPartition.Partition]
	return v != nil && v.epoch == grant.Epoch
}

// assignedCallback comes when it is decided, before the member is told.
func (g *groupShell) assignedCallback(grants []rebalance.Grant) {
	g.queueCallback(&callbackCall{
		name: "OnAssigned", rights: capability.RightsAssigned, grants: grants, deadline: g.process.now().Add(callbackTimeout),
		then: func() {
			for _, grant := range grants {
				if !g.w.script.Callbacks || g.present(grant) {
					g.feed(rebalance.PartitionStarted(grant))
				}
			}
		},
	})
}

// revokingCallback comes with the drain; partitions are not let go before it has returned.
func (g *groupShell) revokingCallback(e rebalance.RevokePartitions) {
	if !g.w.script.Callbacks {
		return
	}
	// The member calls what was not let go by its deadline lost: a callback that never returns has to be given up before.
	l := &leavingSet{revoking: true, deadline: e.Deadline.Add(-2 * callbackGrace)}
	for _, grant := range e.Grants {
		if v := g.parts[grant.TopicPartition.Partition]; g.present(grant) && v.leaving == nil {
			v.leaving = l
			l.grants = append(l.grants, grant)
			l.left++
		}
	}
	g.tokens.leavings = append(g.tokens.leavings, l)
	g.queueCallback(&callbackCall{
		name: "OnRevoking", rights: capability.RightsRevoking, grants: slices.Clone(l.grants), deadline: e.DrainUntil,
		then: func() {
			l.revoking = false
			g.leavingOn(l)
		},
	})
}

// leavingOn calls OnRevoked when all is drained, and tells the member then.
func (g *groupShell) leavingOn(l *leavingSet) {
	if l.left > 0 || l.revoking {
		return
	}
	g.queueCallback(&callbackCall{
		name: "OnRevoked", rights: capability.RightsGone, grants: l.grants, past: true, leaving: l, deadline: l.deadline,
		then: func() {
			g.tokens.leavings = slices.DeleteFunc(g.tokens.leavings, func(other *leavingSet) bool { return other == l })
			for _, grant := range l.grants {
				g.feed(rebalance.PartitionReleased(grant))
			}
		},
	})
}

// lostCallback comes after a loss. What was drained already waits for it alone.
func (g *groupShell) lostCallback(lost []rebalance.Grant) {
	if !g.w.script.Callbacks {
		return
	}
	lost = slices.Clone(lost)
	var drained []rebalance.Grant
	for _, l := range g.tokens.leavings {
		if l.told {
			lost = slices.DeleteFunc(lost, func(grant rebalance.Grant) bool { return slices.Contains(l.grants, grant) })
		}
	}
	for _, grant := range lost {
		if g.view(int(grant.TopicPartition.Partition), grant.Epoch) == nil {
			drained = append(drained, grant)
		}
	}
	for _, l := range g.tokens.leavings {
		if !l.told {
			l.grants = slices.DeleteFunc(l.grants, func(grant rebalance.Grant) bool { return slices.Contains(drained, grant) })
		}
	}
	if q := g.tokens.queue; len(q) > 0 && q[0].begun && q[0].name == "OnRevoking" {
		g.hurry()
	}
	g.queueCallback(&callbackCall{
		name: "OnLost", rights: capability.RightsGone, grants: lost, past: true, deadline: g.process.now().Add(callbackTimeout),
		then: func() {
			for _, grant := range drained {
				g.feed(rebalance.PartitionReleased(grant))
			}
		},
	})
}

// lostWhileLeaving takes a partition out of its revocation.
func (g *groupShell) lostWhileLeaving(v *grantView) {
	l := v.leaving
	if l == nil {
		return
	}
	v.leaving = nil
	l.left--
	l.grants = slices.DeleteFunc(l.grants, func(grant rebalance.Grant) bool { return grant.TopicPartition == tpOf(v.part) })
	g.leavingOn(l)
}
