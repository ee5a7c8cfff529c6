package actors

import (
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
)

// The gates also keep what the member has given up because it took too long: they know when a handler returns, and outlive
// the group actor.

// tellGroup says which actor hears of handlers that were given up and have returned.
func (g *gates) tellGroup(group *actor.PID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.group = group
}

// giveUp notes a record that is worked on for too long.
func (g *gates) giveUp(w work) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.given == nil {
		g.given = make(map[kafka.TopicPartition]work)
	}
	g.given[w.tp] = w
}

// awaitReturn notes what a handler works on that was not waited for, should it still run.
func (g *gates) awaitReturn(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, noted := g.given[tp]; noted || !g.holds(tp, epoch) {
		return
	}
	if g.given == nil {
		g.given = make(map[kafka.TopicPartition]work)
	}
	g.given[tp] = work{tp: tp, epoch: epoch, offset: g.held[tp].work.currentOffset(), since: g.held[tp].since}
}

// holds reports whether a handler of that epoch has the partition's place. The caller holds mu.
func (g *gates) holds(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) bool {
	held := g.held[tp]
	return held != nil && held.busy && held.epoch == epoch
}

// returned reports whether every handler that was given up has returned, and then forgets them. A record that an asynchronous
// handler has not acknowledged is none to wait for: its function has returned.
func (g *gates) returned() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for tp, w := range g.given {
		if g.holds(tp, w.epoch) {
			return false
		}
	}
	g.given = nil
	return true
}

// leftGivenUp forgets a handler that was given up and has returned, and returns whom to tell. The caller holds mu.
func (g *gates) leftGivenUp(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) *actor.PID {
	if w, given := g.given[tp]; !given || w.epoch != epoch {
		return nil
	}
	delete(g.given, tp)
	return g.group
}

// blocking lists the handlers that somebody else has been waiting for since before a time.
func (g *gates) blocking(before time.Time) []work {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []work
	for tp, held := range g.held {
		if held.busy && held.waiting != nil && !held.wanted.After(before) {
			out = append(out, work{tp: tp, epoch: held.epoch, offset: held.work.currentOffset(), since: held.since})
		}
	}
	return out
}

// givenUp lists what was given up and has not returned, in order.
func (g *gates) givenUp(now time.Time) []RunningHandler {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []RunningHandler
	for tp, w := range g.given {
		out = append(out, RunningHandler{TopicPartition: tp, Offset: w.offset, Age: now.Sub(w.since)})
	}
	slices.SortFunc(out, func(a, b RunningHandler) int { return a.TopicPartition.Compare(b.TopicPartition) })
	return out
}
