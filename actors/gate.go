package actors

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
)

// gates is the register that keeps G2: in one tree never two handlers at once on one partition, whatever restarts,
// crashes or changes of ownership lie between. It outlives the group actor, as user code may. A place is taken before a
// handler starts and given back when it has returned.
type gates struct {
	sys  *system
	mu   sync.Mutex
	held map[kafka.TopicPartition]*gate
	// given are those that the member gave up, until they return; group is who hears of it. See gate_giveup.go.
	given map[kafka.TopicPartition]work
	group *actor.PID
}

// worked tells the record that a handler works on. It is asked from other goroutines.
type worked interface{ currentOffset() int64 }

// gate is one partition's place. It is kept when it is free, so that taking it costs nothing.
type gate struct {
	busy      bool
	epoch     kafka.AssignmentEpoch
	since     time.Time
	work      worked
	abandoned bool
	onReturn  func()
	// waiting wants the place, since wanted.
	waiting *actor.PID
	wanted  time.Time
}

func newGates(sys *system) *gates {
	return &gates{sys: sys, held: make(map[kafka.TopicPartition]*gate)}
}

// enter takes the partition's place. If it is taken, waiter gets a placeFree when it is free; only the newest waiter does.
func (g *gates) enter(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch, work worked, waiter *actor.PID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	held := g.held[tp]
	switch {
	case held == nil:
		held = &gate{}
		g.held[tp] = held
	case held.busy:
		if held.waiting == nil {
			held.wanted = time.Now()
		}
		held.waiting = waiter
		return false
	}
	*held = gate{busy: true, epoch: epoch, since: time.Now(), work: work}
	return true
}

// leave gives the place back.
func (g *gates) leave(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) {
	g.mu.Lock()
	held := g.held[tp]
	if held == nil || !held.busy || held.epoch != epoch {
		g.mu.Unlock()
		return
	}
	onReturn, waiting := held.onReturn, held.waiting
	*held = gate{}
	group := g.leftGivenUp(tp, epoch)
	g.mu.Unlock()
	if group != nil {
		g.sys.root.Send(group, &givenUpReturned{})
	}
	if onReturn != nil {
		onReturn()
	}
	if waiting != nil {
		g.sys.root.Send(waiting, &placeFree{})
	}
}

// abandon marks a handler that is no longer waited for; onReturn is called when it returns at last. It reports the record
// and the age, and false when no handler of that epoch runs.
func (g *gates) abandon(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch, onReturn func()) (offset int64, age time.Duration, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	held := g.held[tp]
	if held == nil || !held.busy || held.epoch != epoch || held.abandoned {
		return 0, 0, false
	}
	held.abandoned, held.onReturn = true, onReturn
	return held.work.currentOffset(), time.Since(held.since), true
}

// running lists the handlers that have not returned, in order.
func (g *gates) running() []RunningHandler {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]RunningHandler, 0, len(g.held))
	for tp, held := range g.held {
		if held.busy {
			out = append(out, RunningHandler{TopicPartition: tp, Offset: held.work.currentOffset(), Age: time.Since(held.since)})
		}
	}
	slices.SortFunc(out, func(a, b RunningHandler) int { return a.TopicPartition.Compare(b.TopicPartition) })
	return out
}

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
// A limit of zero lets everyone in.
type slots struct {
	sys   *system
	limit int
	mu    sync.Mutex
	used  int
	queue []slotWaiter
	// waiting is len(queue), for a look without the lock.
	waiting atomic.Int32
}

// enter takes a slot; without one, the actor gets a placeFree in its turn and must ask again. A waiter is queued once.
func (s *slots) enter(pid *actor.PID) bool {
	if s.limit == 0 {
		return true
	}
	return s.enterAs(actorWaiter{s.sys, pid})
}

func (s *slots) enterAs(waiter slotWaiter) bool {
	if s.limit == 0 {
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
	if s.used < s.limit && (len(s.queue) == 0 || at == 0) {
		if at == 0 {
			s.remove(0)
		}
		s.used++
		return s.first(), true // places that got free together have told only the first of the queue
	}
	if at < 0 {
		s.queue = append(s.queue, waiter)
		s.waiting.Add(1)
	}
	return nil, false
}

// mayEnter reports whether asking for a slot makes sense now; when not, waiter is queued.
func (s *slots) mayEnter(waiter slotWaiter) bool {
	if s.limit == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.queue, waiter.same)
	if s.used < s.limit && (len(s.queue) == 0 || at == 0) {
		return true
	}
	if at < 0 {
		s.queue = append(s.queue, waiter)
		s.waiting.Add(1)
	}
	return false
}

// contended reports whether somebody waits for a slot.
func (s *slots) contended() bool { return s.waiting.Load() > 0 }

// leave gives a slot back and wakes the first in the queue.
func (s *slots) leave() {
	if s.limit == 0 {
		return
	}
	s.mu.Lock()
	s.used--
	woken := s.first()
	s.mu.Unlock()
	if woken != nil {
		woken.wake()
	}
}

// pass gives a waiter's turn to the next, when it was its turn and it did not use it. One that waits keeps its place.
func (s *slots) pass(waiter slotWaiter) {
	if s.limit == 0 {
		return
	}
	s.mu.Lock()
	var woken slotWaiter
	if s.used < s.limit && len(s.queue) > 0 && s.queue[0].same(waiter) {
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
	if s.limit == 0 {
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
	if len(s.queue) > 0 && s.used < s.limit {
		return s.queue[0]
	}
	return nil
}
