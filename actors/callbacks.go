package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// PartitionsFunc is told of partitions that come or go. The token is over exactly these, until it returns. It may block until
// ctx ends.
type PartitionsFunc func(ctx context.Context, token *Token, partitions []kafka.TopicPartition) error

// Callbacks are told of a rebalance; each may be nil. They run in goroutines of their own, one after the other; the network
// and the partitions that stay never wait for them.
type Callbacks struct {
	// Assigning: these partitions are the member's; where they start is decided when it has returned. Assigned: that is
	// decided; nothing of them is delivered before it returns.
	Assigning, Assigned PartitionsFunc
	// Revoking: these partitions are about to be given up; handlers may still run. Revoked: they have ended, what they
	// finished is committed; the partitions are let go when it returns.
	Revoking, Revoked PartitionsFunc
	// Lost: these partitions are another member's by now, or may be.
	Lost PartitionsFunc
	// Timeout bounds Assigning, Assigned and Lost; Revoking and Revoked have the times of the drain.
	Timeout time.Duration
	// Strict has a callback that fails end the consumer.
	Strict bool
}

// ErrCallbackOverdue means that a callback did not return in time; the member goes on without it.
var ErrCallbackOverdue = errors.New("troupe: callback did not return in time")

// ErrCallbackCut is what a callback's context ends with when another one cannot wait for it any longer.
var ErrCallbackCut = errors.New("troupe: callback was cut short for one that cannot wait")

// callbackDone: a callback's goroutine, or its deadline -> group. The first one counts.
type callbackDone struct {
	silent
	seq uint64
	err error
	// died is true when it panicked, ended its goroutine, or is overdue: its token is revoked.
	died bool
}

// callbacks are the group's calls of the user's callbacks: one at a time, in order, each bounded.
type callbacks struct {
	queue []*callbackCall
	seq   uint64
	// revocations are those whose OnRevoked has not returned.
	revocations []*leaving
	// arrived are partitions whose start is decided since OnAssigned was last called.
	arrived []rebalance.Grant
	// known are the ownerships that the user was told of, and not of their end.
	known map[kafka.TopicPartition]kafka.AssignmentEpoch
}

type callbackCall struct {
	seq        uint64
	name       string
	function   PartitionsFunc
	rights     capability.Rights
	grants     []rebalance.Grant
	partitions []kafka.TopicPartition
	// last is how far partitions had come that are gone; token is the number of the call's token.
	last  map[kafka.TopicPartition]*cell
	token uint64
	// revocation is that of an OnRevoking or OnRevoked. The latter is about what is left of it when the call begins.
	revocation *leaving
	// deadline is when it has to be done; timeout is how long it has from when it begins, where there is no deadline.
	deadline time.Time
	timeout  time.Duration
	// then goes on with what waited for the call.
	then  func(ctx actor.Context)
	begun bool
	// cut is why its context was ended before its time; nil when it was not.
	cut error

	end   context.CancelCauseFunc
	timer *time.Timer
}

// queueCallback runs one of the user's callbacks, after those before it, and then goes on. Without a function it goes on at once.
func (g *group) queueCallback(ctx actor.Context, call *callbackCall) {
	if call.function == nil || len(call.grants) == 0 {
		call.then(ctx)
		return
	}
	c := &g.callbacks
	c.seq++
	call.seq = c.seq
	c.queue = append(c.queue, call)
	g.nextCallback(ctx)
	g.hurryCallback()
}

// nextCallback begins the first call in the queue if it has not begun.
func (g *group) nextCallback(ctx actor.Context) {
	if len(g.callbacks.queue) == 0 || g.callbacks.queue[0].begun {
		return
	}
	call := g.callbacks.queue[0]
	if g.addressed(call); len(call.grants) == 0 { // all were lost while it waited, or the user has never heard of them
		g.callbacks.queue = g.callbacks.queue[1:]
		call.then(ctx)
		g.nextCallback(ctx)
		return
	}
	call.begun = true
	call.partitions = partitionsOf(call.grants)
	slices.SortFunc(call.partitions, kafka.TopicPartition.Compare)
	if call.deadline.IsZero() {
		call.deadline = time.Now().Add(call.timeout)
	}
	token := g.callbackToken(ctx, call)
	endable, end := context.WithCancelCause(withToken(context.Background(), token))
	callCtx, cancel := context.WithDeadlineCause(endable, call.deadline, ErrCallbackOverdue)
	call.end = func(why error) { end(why); cancel() }
	root, self, overdue := g.shared.sys.root, g.self, fmt.Errorf("%s: %w", call.name, ErrCallbackOverdue)
	// A little later than the context ends, so that a callback that heeds it is in time.
	call.timer = time.AfterFunc(max(time.Until(call.deadline), 0)+callbackGrace, func() {
		root.Send(self, &callbackDone{seq: call.seq, err: overdue, died: true})
	})
	function, partitions := call.function, slices.Clone(call.partitions) // which are the user's from here on
	go g.shared.runCallback(self, call.seq, call.name, func() error { return function(callCtx, token, partitions) })
	g.hurryCallback()
}

// addressed settles which partitions a call is about, when it begins. Nobody hears of the end of what they were not told of: where
// partitions start may not have been decided yet.
func (g *group) addressed(call *callbackCall) {
	calls, c := g.shared.settings.Callbacks, &g.callbacks
	if l := call.revocation; l != nil && call.rights == capability.RightsGone {
		l.told, call.grants, call.last = true, l.grants, l.last
	}
	switch {
	case calls.Assigning == nil && calls.Assigned == nil:
		return
	case call.rights&capability.MayPause != 0:
		for _, grant := range call.grants {
			c.known[grant.TopicPartition] = grant.Epoch
		}
		return
	}
	call.grants = slices.DeleteFunc(slices.Clone(call.grants), func(grant rebalance.Grant) bool {
		epoch, known := c.known[grant.TopicPartition]
		if known = known && epoch == grant.Epoch; known && call.rights == capability.RightsGone {
			delete(c.known, grant.TopicPartition)
		}
		return !known
	})
}

// hurryCallback ends the time of the call that runs if one that waits has to be done before: that must not wait for longer than it
// has time itself.
func (g *group) hurryCallback() {
	q := g.callbacks.queue
	for i := 1; i < len(q); i++ {
		if deadline := q[i].deadline; !deadline.IsZero() && deadline.Before(q[0].deadline) && q[0].cut == nil {
			q[0].hurry(ErrCallbackCut)
		}
	}
}

// covered returns the partitions of a call that its token may be over: not those that were given up, lost, or granted anew
// while the call waited for its turn. Of those it can only say that they came, or went.
func (g *group) covered(call *callbackCall) (out []kafka.TopicPartition) {
	for _, grant := range call.grants {
		p := g.parts[grant.TopicPartition]
		switch {
		case p != nil && p.epoch != grant.Epoch:
			continue
		case call.rights&capability.MayPause != 0 && (p == nil || p.phase == partLeaving):
			continue
		case call.rights == capability.RightsRevoking && !slices.Contains(call.revocation.grants, grant):
			continue // lost
		}
		out = append(out, grant.TopicPartition)
	}
	return out
}

// callbackToken takes the token over the partitions of a call, from whoever has it: a rebalance cannot wait.
func (g *group) callbackToken(ctx actor.Context, call *callbackCall) *Token {
	call.token = g.shared.tokens.Add(1)
	g.stepDesk(ctx, capability.Asked{
		ID: call.token, Holder: capability.Holder(call.name), Op: "rebalance", How: capability.Force, Rights: call.rights, Partitions: g.covered(call),
	})
	token := g.shared.tree.newToken(g.desk.granted[call.token], call.token)
	token.last = call.last
	delete(g.desk.granted, call.token)
	return token
}

// runCallback runs a callback in its goroutine, and tells the group of its end, however it comes.
func (s *shared) runCallback(group *actor.PID, seq uint64, name string, function func() error) {
	done := &callbackDone{seq: seq, err: errGoexit, died: true}
	defer func() {
		if v := recover(); v != nil {
			done.err = fmt.Errorf("panic: %w", panicError(v))
			s.logger.Error("callback panicked", zap.String("callback", name), zap.ByteString("stack", debug.Stack()))
		}
		s.sys.root.Send(group, done)
	}()
	err := function()
	done.err, done.died = err, false
}

// hurry ends a call's context now, for a reason.
func (c *callbackCall) hurry(why error) {
	if c.cut == nil {
		c.cut = why
	}
	c.end(why)
	c.timer.Reset(callbackGrace)
}

// callbackGrace is how long after its context has ended a callback is waited for.
const callbackGrace = 100 * time.Millisecond

// heeded reports whether a call returned because its context was ended before its time, and says so: it has not failed.
func (c *callbackCall) heeded(m *callbackDone) bool {
	return c.cut != nil && !m.died && (errors.Is(m.err, c.cut) || errors.Is(m.err, context.Canceled))
}

func (g *group) callbackDone(ctx actor.Context, m *callbackDone) {
	c := &g.callbacks
	if len(c.queue) == 0 || c.queue[0].seq != m.seq {
		return // the other of call and deadline came first
	}
	call := c.queue[0]
	c.queue = c.queue[1:]
	call.timer.Stop()
	call.end(nil)
	err := m.err
	if call.heeded(m) {
		err = nil
	}
	ended := capability.Ended{ID: call.token}
	if m.died {
		ended.Cause = m.err
	}
	effects := g.desk.Step(time.Now(), ended)
	for _, effect := range effects {
		if revoked, ok := effect.(capability.Revoked); ok && !m.died { // a call with its token was under way
			err = errors.Join(err, revocation(revoked))
		}
	}
	g.runDesk(ctx, effects)
	if err != nil {
		g.shared.observe(event.CallbackFailed{Member: g.shared.member(), Callback: call.name, Partitions: call.partitions, Err: err})
		g.shared.logger.Warn("callback failed", zap.String("callback", call.name), zap.Error(err))
	}
	call.then(ctx)
	if err != nil && g.shared.settings.Callbacks.Strict {
		g.closeByItself(ctx, fmt.Errorf("troupe: callback %s of %v: %w", call.name, call.partitions, err))
	}
	g.nextCallback(ctx)
}

// stopCallbacks ends the call that runs, and forgets those that wait.
func (g *group) stopCallbacks() {
	why := rebalance.ErrLost
	if g.ended() {
		why = ErrClosing
	}
	for _, call := range g.callbacks.queue {
		if call.begun {
			call.timer.Stop()
			call.end(why)
		}
	}
	g.callbacks.queue, g.callbacks.revocations = nil, nil
}

// assigningCallback tells the user of new partitions, and then has it decided where they start.
func (g *group) assigningCallback(ctx actor.Context, grants []rebalance.Grant) {
	calls := g.shared.settings.Callbacks
	g.queueCallback(ctx, &callbackCall{
		name: "OnAssigning", function: calls.Assigning, rights: capability.RightsAssigning, grants: grants,
		timeout: calls.Timeout,
		then: func(ctx actor.Context) {
			for _, grant := range grants {
				p := g.parts[grant.TopicPartition]
				if p == nil || p.epoch != grant.Epoch {
					continue // given up or lost meanwhile
				}
				p.told = true
				if p.phase == partStarting || p.phase == partRestarting {
					g.decideStart(ctx, p)
				}
			}
			g.assignedCallback(ctx)
			g.requestStarts(ctx)
		},
	})
}

// assignedCallback tells the user of partitions whose start is decided since it was last called, and then lets them deliver.
func (g *group) assignedCallback(ctx actor.Context) {
	grants := g.callbacks.arrived
	g.callbacks.arrived = nil
	slices.SortFunc(grants, func(a, b rebalance.Grant) int { return a.TopicPartition.Compare(b.TopicPartition) }) // starts are decided in no order
	calls := g.shared.settings.Callbacks
	g.queueCallback(ctx, &callbackCall{
		name: "OnAssigned", function: calls.Assigned, rights: capability.RightsAssigned, grants: grants,
		timeout: calls.Timeout,
		then: func(ctx actor.Context) {
			for _, grant := range grants {
				p := g.parts[grant.TopicPartition]
				if p == nil || p.epoch != grant.Epoch {
					continue
				}
				p.held = false
				g.tell(ctx, p.key, &deliveryHeld{epoch: p.epoch})
				g.feed(ctx, rebalance.PartitionStarted(grant))
			}
		},
	})
}

// hurryAssigning ends the context of a callback about new partitions that all are given up again.
func (g *group) hurryAssigning(gone []kafka.TopicPartition, why error) {
	q := g.callbacks.queue
	if len(q) == 0 || !q[0].begun || q[0].rights&capability.MayPause == 0 {
		return
	}
	if !slices.ContainsFunc(q[0].partitions, func(tp kafka.TopicPartition) bool { return !slices.Contains(gone, tp) }) {
		q[0].hurry(why)
	}
}

// leaving is the partitions of one revocation and who still waits for them.
type leaving struct {
	grants []rebalance.Grant
	left   int
	// last is how far they have come, for OnRevoked.
	last map[kafka.TopicPartition]*cell
	// revoking is true until OnRevoking has returned, told from when OnRevoked is called.
	revoking, told bool
	deadline       time.Time
}

// revokingCallback tells the user that partitions are about to be given up. They are not let go before it has returned.
func (g *group) revokingCallback(ctx actor.Context, grants []rebalance.Grant, drainUntil, deadline time.Time) {
	calls := g.shared.settings.Callbacks
	g.hurryAssigning(partitionsOf(grants), rebalance.ErrRevoked)
	if calls.Revoking == nil && calls.Revoked == nil {
		return
	}
	l := &leaving{revoking: true, deadline: deadline, last: make(map[kafka.TopicPartition]*cell)}
	for _, grant := range grants {
		if p := g.parts[grant.TopicPartition]; p != nil && p.epoch == grant.Epoch && p.leaving == nil {
			p.leaving = l
			l.grants = append(l.grants, grant)
			l.last[p.tp] = p.cell
			l.left++
		}
	}
	for _, call := range g.callbacks.queue { // a close that does not drain any more
		if call.name == "OnRevoking" && drainUntil.Before(call.deadline) {
			if call.deadline = drainUntil; call.begun {
				call.hurry(ErrClosing)
			}
		}
	}
	g.callbacks.revocations = append(g.callbacks.revocations, l)
	g.queueCallback(ctx, &callbackCall{
		name: "OnRevoking", function: calls.Revoking, rights: capability.RightsRevoking, grants: slices.Clone(l.grants), last: l.last,
		revocation: l, deadline: drainUntil,
		then: func(ctx actor.Context) {
			l.revoking = false
			for _, grant := range l.grants {
				if p := g.part(grant.TopicPartition, grant.Epoch); p != nil {
					g.tell(ctx, p.key, &callbackReturned{epoch: p.epoch})
				}
			}
			g.leavingOn(ctx, l)
		},
	})
}

// lostCallback tells the user of partitions that are gone, but for those whose end it was told already: nobody hears of one
// both as revoked and as lost. Only those of them that are drained, and so have nothing else to wait for, wait for it.
func (g *group) lostCallback(ctx actor.Context, lost []rebalance.Grant) {
	lost = slices.Clone(lost)
	var waiting []rebalance.Grant
	for _, l := range g.callbacks.revocations {
		if l.told {
			lost = slices.DeleteFunc(lost, func(grant rebalance.Grant) bool { return slices.Contains(l.grants, grant) })
		}
	}
	last := make(map[kafka.TopicPartition]*cell)
	for _, grant := range lost {
		if p := g.part(grant.TopicPartition, grant.Epoch); p != nil {
			last[p.tp] = p.cell
		} else {
			waiting = append(waiting, grant)
		}
	}
	for _, l := range g.callbacks.revocations {
		if !l.told {
			for _, grant := range waiting {
				if cell := l.last[grant.TopicPartition]; cell != nil && cell.epoch == grant.Epoch {
					last[grant.TopicPartition] = cell
				}
			}
			l.grants = slices.DeleteFunc(l.grants, func(grant rebalance.Grant) bool { return slices.Contains(waiting, grant) })
		}
	}
	if q := g.callbacks.queue; len(q) > 0 && q[0].begun && q[0].rights == capability.RightsRevoking {
		q[0].hurry(rebalance.ErrLost) // there is nothing to save any more
	}
	g.hurryAssigning(partitionsOf(lost), rebalance.ErrLost)
	calls := g.shared.settings.Callbacks
	g.queueCallback(ctx, &callbackCall{
		name: "OnLost", function: calls.Lost, rights: capability.RightsGone, grants: lost, last: last, timeout: calls.Timeout,
		then: func(ctx actor.Context) {
			for _, grant := range waiting {
				g.feed(ctx, rebalance.PartitionReleased(grant))
			}
		},
	})
}

// drained tells the member that a partition was let go, or has it wait for the callbacks about it.
func (g *group) drained(ctx actor.Context, p *part) {
	if l := p.leaving; l != nil {
		l.left--
		g.leavingOn(ctx, l)
		return
	}
	g.feed(ctx, rebalance.PartitionReleased{TopicPartition: p.tp, Epoch: p.epoch})
}

// lostWhileLeaving takes a partition out of a revocation: it is lost, and no callback delays that.
func (g *group) lostWhileLeaving(ctx actor.Context, p *part) {
	l := p.leaving
	if l == nil {
		return
	}
	p.leaving = nil
	l.left--
	l.grants = slices.DeleteFunc(l.grants, func(grant rebalance.Grant) bool { return grant.TopicPartition == p.tp })
	g.leavingOn(ctx, l)
}

// leavingOn calls OnRevoked when the last partition is drained and OnRevoking has returned, and then tells the member.
func (g *group) leavingOn(ctx actor.Context, l *leaving) {
	if l.left > 0 || l.revoking {
		return
	}
	g.queueCallback(ctx, &callbackCall{
		name: "OnRevoked", function: g.shared.settings.Callbacks.Revoked, rights: capability.RightsGone, grants: l.grants,
		revocation: l, deadline: l.deadline,
		then: func(ctx actor.Context) {
			g.callbacks.revocations = slices.DeleteFunc(g.callbacks.revocations, func(other *leaving) bool { return other == l })
			for _, grant := range l.grants {
				g.feed(ctx, rebalance.PartitionReleased(grant))
			}
		},
	})
}
