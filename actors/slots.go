package actors

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
)

// slotWaiter is who can wait for a slot. wake tells it to ask again.
type slotWaiter interface {
	wake()
	same(other slotWaiter) bool
}

// actorWaiter is an actor that waits for a slot; it gets a placeFree.
type actorWaiter struct {
	sys *system
	pid *actor.PID
}

func (w actorWaiter) wake() { w.sys.root.Send(w.pid, &placeFree{}) }

func (w actorWaiter) same(other slotWaiter) bool {
	o, ok := other.(actorWaiter)
	return ok && o.pid.Equal(w.pid)
}

func (p *pool) same(other slotWaiter) bool { return other == slotWaiter(p) }

// slots is the register behind Concurrency: how many handlers may run at once in the member, first come, first served.
// A limit of zero lets everyone in. Whoever runs is counted also without a limit: one may be set meanwhile.
type slots struct {
	sys *system
	// limit changes under mu.
	limit atomic.Int64
	used  atomic.Int64
	mu    sync.Mutex
	// queue is empty without a limit.
	queue []slotWaiter
	// waiting is len(queue), for a look without the lock.
	waiting atomic.Int32
}

func newSlots(sys *system, limit int) *slots {
	s := &slots{sys: sys}
	s.limit.Store(int64(limit))
	return s
}

// setLimit changes the limit. Those who wait may enter at once when it is raised; when it is lowered nobody may before enough
// have left.
func (s *slots) setLimit(limit int) {
	s.mu.Lock()
	s.limit.Store(int64(limit))
	var woken []slotWaiter
	if limit == 0 {
		woken, s.queue = s.queue, nil
		s.waiting.Store(0)
	} else if first := s.first(); first != nil {
		woken = []slotWaiter{first}
	}
	s.mu.Unlock()
	for _, waiter := range woken {
		waiter.wake()
	}
}

// unlimited reports whether everyone may enter.
func (s *slots) unlimited() bool { return s.limit.Load() == 0 }

// enter takes a slot; without one, the actor gets a placeFree in its turn and must ask again. A waiter is queued once.
func (s *slots) enter(pid *actor.PID) bool {
	if s.unlimited() {
		s.used.Add(1)
		return true
	}
	return s.enterAs(actorWaiter{s.sys, pid})
}

func (s *slots) enterAs(waiter slotWaiter) bool {
	if s.unlimited() {
		s.used.Add(1)
		return true
	}
	s.mu.Lock()
	woken, entered := s.tryEnter(waiter)
	s.mu.Unlock()
	if woken != nil {
		woken.wake()
	}
	return entered
}

func (s *slots) tryEnter(waiter slotWaiter) (woken slotWaiter, entered bool) {
	at := slices.IndexFunc(s.queue, waiter.same)
	if s.free() && (len(s.queue) == 0 || at == 0) {
		if at == 0 {
			s.remove(0)
		}
		s.used.Add(1)
		return s.first(), true // places that got free together have told only the first of the queue
	}
	s.line(at, waiter)
	return nil, false
}

// mayEnter reports whether asking for a slot makes sense now; when not, waiter is queued.
func (s *slots) mayEnter(waiter slotWaiter) bool {
	if s.unlimited() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.queue, waiter.same)
	if s.free() && (len(s.queue) == 0 || at == 0) {
		return true
	}
	s.line(at, waiter)
	return false
}

// line puts a waiter at the end of the queue, unless it has its place there. The caller holds mu.
func (s *slots) line(at int, waiter slotWaiter) {
	if at < 0 {
		s.queue = append(s.queue, waiter)
		s.waiting.Add(1)
	}
}

// free reports whether a slot is free. The caller holds mu.
func (s *slots) free() bool { return s.unlimited() || s.used.Load() < s.limit.Load() }

// contended reports whether somebody waits for a slot, or more are used than there may be since the limit was lowered.
func (s *slots) contended() bool {
	limit := s.limit.Load()
	return limit > 0 && (s.waiting.Load() > 0 || s.used.Load() > limit)
}

// leave gives a slot back and wakes the first in the queue.
func (s *slots) leave() {
	// Given back before the look at the limit: who comes under one that is set right after it finds the slot free.
	if s.used.Add(-1); s.unlimited() {
		return
	}
	s.mu.Lock()
	woken := s.first()
	s.mu.Unlock()
	if woken != nil {
		woken.wake()
	}
}

// pass gives a waiter's turn to the next, when it was its turn and it did not use it. One that waits keeps its place.
func (s *slots) pass(waiter slotWaiter) {
	if s.unlimited() {
		return
	}
	s.mu.Lock()
	var woken slotWaiter
	if s.free() && len(s.queue) > 0 && s.queue[0].same(waiter) {
		s.remove(0)
		woken = s.first()
	}
	s.mu.Unlock()
	if woken != nil {
		woken.wake()
	}
}

// passActor is pass for an actor.
func (s *slots) passActor(pid *actor.PID) { s.pass(actorWaiter{s.sys, pid}) }

// forget takes an actor that is gone out of the queue.
func (s *slots) forget(pid *actor.PID) {
	if s.unlimited() {
		return
	}
	s.mu.Lock()
	if at := slices.IndexFunc(s.queue, actorWaiter{s.sys, pid}.same); at >= 0 {
		s.remove(at)
	}
	woken := s.first()
	s.mu.Unlock()
	if woken != nil {
		woken.wake()
	}
}

func (s *slots) remove(at int) {
	s.queue = slices.Delete(s.queue, at, at+1)
	s.waiting.Add(-1)
}

// first is who may enter now, nil for nobody. The caller holds mu, and wakes it after giving mu back: a pool that is woken
// asks again at once.
func (s *slots) first() slotWaiter {
	if len(s.queue) > 0 && s.free() {
		return s.queue[0]
	}
	return nil
}

// concurrencyOperation changes how many handlers may run at once.
type concurrencyOperation struct{ limit int }

// SetConcurrency changes how many handlers may run at once; see api.Consumer.SetConcurrency. The limit is not negative.
func (t *Tree) SetConcurrency(ctx context.Context, limit int) error {
	return t.do(ctx, nil, &concurrencyOperation{limit: limit})
}

func (o *concurrencyOperation) word() string { return "set concurrency" }

func (o *concurrencyOperation) run(_ actor.Context, g *group, m *request) {
	if g.ended() {
		m.reply(ErrClosing)
		return
	}
	g.shared.slots.setLimit(o.limit)
	m.reply(nil)
}
