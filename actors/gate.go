package actors

import (
	"slices"
	"sync"
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
