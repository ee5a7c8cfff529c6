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

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// PartitionsFunc is told of partitions that come or go. It may block until ctx ends.
type PartitionsFunc func(ctx context.Context, partitions []kafka.TopicPartition) error

// Callbacks are told of a rebalance; each may be nil. They run in goroutines of their own, one after the other; the network
// and the partitions that stay never wait for them.
type Callbacks struct {
	// Assigned: these partitions are the member's; nothing of them is delivered before it returns.
	Assigned PartitionsFunc
	// Revoking: these partitions are about to be given up; handlers may still run. Revoked: they have ended, what they
	// finished is committed; the partitions are let go when it returns.
	Revoking, Revoked PartitionsFunc
	// Lost: these partitions are another member's by now, or may be.
	Lost PartitionsFunc
	// Timeout bounds Assigned and Lost; Revoking and Revoked have the times of the drain.
	Timeout time.Duration
}

// ErrCallbackOverdue means that a callback did not return in time; the member goes on without it.
var ErrCallbackOverdue = errors.New("troupe: callback did not return in time")

// callbackDone: a callback's goroutine, or its deadline -> group. The first one counts.
type callbackDone struct {
	silent
	seq uint64
	err error
}

// callbacks are the group's calls of the user's callbacks: one at a time, in order, each bounded.
type callbacks struct {
	queue []*callbackCall
	seq   uint64
	// revocations are those whose OnRevoked has not returned.
	revocations []*leaving
}

type callbackCall struct {
	seq        uint64
	name       string
	function   PartitionsFunc
	partitions []kafka.TopicPartition
	// revocation is that of an OnRevoked: partitions are what is left of it when the call begins.
	revocation *leaving
	deadline   time.Time
	// then goes on with what waited for the call.
	then  func(ctx actor.Context)
	begun bool
	end   context.CancelFunc
	timer *time.Timer
}

// callback runs one of the user's callbacks, after those before it, and then goes on. Without a function it goes on at once.
func (g *group) callback(ctx actor.Context, name string, function PartitionsFunc, partitions []kafka.TopicPartition, deadline time.Time, then func(actor.Context)) {
	g.queueCallback(ctx, &callbackCall{name: name, function: function, partitions: partitions, deadline: deadline, then: then})
}

func (g *group) queueCallback(ctx actor.Context, call *callbackCall) {
	if call.function == nil || len(call.partitions) == 0 {
		call.then(ctx)
		return
	}
	c := &g.callbacks
	c.seq++
	call.seq = c.seq
	if len(c.queue) > 0 && c.queue[0].begun && call.deadline.Before(c.queue[0].deadline) {
		c.queue[0].hurry() // the newer one must not wait longer than it has time itself
	}
	c.queue = append(c.queue, call)
	g.nextCallback()
}

// nextCallback begins the first call in the queue if it has not begun.
func (g *group) nextCallback() {
	if len(g.callbacks.queue) == 0 || g.callbacks.queue[0].begun {
		return
	}
	call := g.callbacks.queue[0]
	call.begun = true
	if l := call.revocation; l != nil {
		l.told, call.partitions = true, partitionsOf(l.grants)
		if len(l.grants) == 0 { // all were lost while it waited
			call.function = func(context.Context, []kafka.TopicPartition) error { return nil }
		}
	}
	root, self, shared := g.shared.sys.root, g.self, g.shared
	callCtx, cancel := context.WithDeadlineCause(context.Background(), call.deadline, ErrCallbackOverdue)
	call.end = cancel
	overdue := fmt.Errorf("%s: %w", call.name, ErrCallbackOverdue)
	// A little later than the context ends, so that a callback that heeds it is in time.
	call.timer = time.AfterFunc(time.Until(call.deadline)+callbackGrace, func() { root.Send(self, &callbackDone{seq: call.seq, err: overdue}) })
	go func() {
		err := errGoexit
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %w", panicError(v))
				shared.logger.Error("callback panicked", zap.String("callback", call.name), zap.ByteString("stack", debug.Stack()))
			}
			root.Send(self, &callbackDone{seq: call.seq, err: err})
		}()
		err = call.function(callCtx, call.partitions)
	}()
}

// hurry ends a call's context now.
func (c *callbackCall) hurry() {
	c.end()
	c.timer.Reset(callbackGrace)
}

// callbackGrace is how long after its context has ended a callback is waited for.
const callbackGrace = 100 * time.Millisecond

func (g *group) callbackDone(ctx actor.Context, m *callbackDone) {
	c := &g.callbacks
	if len(c.queue) == 0 || c.queue[0].seq != m.seq {
		return // the other of call and deadline came first
	}
	call := c.queue[0]
	c.queue = c.queue[1:]
	call.timer.Stop()
	call.end()
	if m.err != nil {
		g.shared.observe(event.CallbackFailed{Member: g.shared.member(), Callback: call.name, Partitions: call.partitions, Err: m.err})
		g.shared.logger.Warn("callback failed", zap.String("callback", call.name), zap.Error(m.err))
	}
	call.then(ctx)
	g.nextCallback()
}

// stopCallbacks ends the call that runs, and forgets those that wait.
func (g *group) stopCallbacks() {
	for _, call := range g.callbacks.queue {
		if call.begun {
			call.timer.Stop()
			call.end()
		}
	}
	g.callbacks.queue, g.callbacks.revocations = nil, nil
}

// assignedCallback tells the user of new partitions, and then lets them start.
func (g *group) assignedCallback(ctx actor.Context, grants []rebalance.Grant) {
	deadline := time.Now().Add(g.shared.settings.Callbacks.Timeout)
	g.callback(ctx, "OnAssigned", g.shared.settings.Callbacks.Assigned, partitionsOf(grants), deadline, func(ctx actor.Context) {
		for _, grant := range grants {
			p := g.parts[grant.TopicPartition]
			if p == nil || p.epoch != grant.Epoch {
				continue // given up or lost meanwhile
			}
			p.told = true
			if p.phase == partStarting || p.phase == partRestarting {
				g.starts.add(p.tp)
			}
		}
		g.requestStarts(ctx)
	})
}

// leaving is the partitions of one revocation and who still waits for them.
type leaving struct {
	grants []rebalance.Grant
	left   int
	// revoking is true until OnRevoking has returned, told from when OnRevoked is called.
	revoking, told bool
	deadline       time.Time
}

// revokingCallback tells the user that partitions are about to be given up. They are not let go before it has returned.
func (g *group) revokingCallback(ctx actor.Context, grants []rebalance.Grant, drainUntil, deadline time.Time) {
	calls := g.shared.settings.Callbacks
	if calls.Revoking == nil && calls.Revoked == nil {
		return
	}
	l := &leaving{revoking: true, deadline: deadline}
	for _, grant := range grants {
		if p := g.parts[grant.TopicPartition]; p != nil && p.epoch == grant.Epoch && p.leaving == nil {
			p.leaving = l
			l.grants = append(l.grants, grant)
			l.left++
		}
	}
	g.callbacks.revocations = append(g.callbacks.revocations, l)
	g.callback(ctx, "OnRevoking", calls.Revoking, partitionsOf(l.grants), drainUntil, func(ctx actor.Context) {
		l.revoking = false
		g.leavingOn(ctx, l)
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
	for _, grant := range lost {
		if g.part(grant.TopicPartition, grant.Epoch) == nil {
			waiting = append(waiting, grant)
		}
	}
	for _, l := range g.callbacks.revocations {
		if !l.told {
			l.grants = slices.DeleteFunc(l.grants, func(grant rebalance.Grant) bool { return slices.Contains(waiting, grant) })
		}
	}
	if q := g.callbacks.queue; len(q) > 0 && q[0].begun && q[0].name == "OnRevoking" {
		q[0].hurry() // there is nothing to save any more
	}
	calls := g.shared.settings.Callbacks
	g.callback(ctx, "OnLost", calls.Lost, partitionsOf(lost), time.Now().Add(calls.Timeout), func(ctx actor.Context) {
		for _, grant := range waiting {
			g.feed(ctx, rebalance.PartitionReleased(grant))
		}
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
		name: "OnRevoked", function: g.shared.settings.Callbacks.Revoked, partitions: partitionsOf(l.grants), revocation: l, deadline: l.deadline,
		then: func(ctx actor.Context) {
			g.callbacks.revocations = slices.DeleteFunc(g.callbacks.revocations, func(other *leaving) bool { return other == l })
			for _, grant := range l.grants {
				g.feed(ctx, rebalance.PartitionReleased(grant))
			}
		},
	})
}
