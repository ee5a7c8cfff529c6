package actors

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// worker runs blocking calls for one actor, one at a time and in order, each in a goroutine of its own, and brings the
// outcome back as a workDone. It belongs to the actor's turn: only run is executed elsewhere.
type worker struct {
	sys    *system
	self   *actor.PID
	group  *workerCount
	base   context.Context
	end    context.CancelFunc
	cancel context.CancelFunc
	busy   bool
	queue  []func(context.Context) any
}

// workerCount counts the goroutines of all workers of a tree. When somebody waits for them no further one starts.
type workerCount struct {
	mu      sync.Mutex
	running int
	// none is made by the first who waits, and closed when none runs any more.
	none chan struct{}
}

func (c *workerCount) start() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.none != nil {
		return false
	}
	c.running++
	return true
}

func (c *workerCount) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if c.running == 0 && c.none != nil {
		close(c.none)
	}
}

func (c *workerCount) wait() {
	c.mu.Lock()
	if c.none == nil {
		c.none = make(chan struct{})
		if c.running == 0 {
			close(c.none)
		}
	}
	c.mu.Unlock()
	<-c.none
}

// workPanic is what a call that panicked brings back; the actor panics with it in its own turn.
type workPanic struct {
	value any
	stack string
}

func newWorker(sys *system, self *actor.PID, group *workerCount) *worker {
	base, end := context.WithCancel(context.Background())
	return &worker{sys: sys, self: self, group: group, base: base, end: end}
}

// do queues a call. Its result must be a message the actor knows.
func (w *worker) do(call func(context.Context) any) {
	w.queue = append(w.queue, call)
	w.next()
}

func (w *worker) next() {
	if w.busy || len(w.queue) == 0 || w.base.Err() != nil || !w.group.start() {
		return
	}
	call := w.queue[0]
	w.queue = w.queue[1:]
	w.busy = true
	ctx, cancel := context.WithCancel(w.base)
	w.cancel = cancel
	go func() {
		defer w.group.end()
		defer cancel()
		w.sys.root.Send(w.self, &workDone{worker: w, result: w.run(ctx, call)})
	}()
}

func (w *worker) run(ctx context.Context, call func(context.Context) any) (result any) {
	defer func() {
		if v := recover(); v != nil {
			result = &workPanic{value: v, stack: string(debug.Stack())}
		}
	}()
	return call(ctx)
}

// finished takes the outcome and starts the next call. It panics with what the call panicked with.
func (w *worker) finished(m *workDone) any {
	w.busy = false
	w.next()
	if p, ok := m.result.(*workPanic); ok {
		panic(fmt.Errorf("worker call panicked: %v\n%s", p.value, p.stack))
	}
	return m.result
}

// abort ends the call that runs, and forgets those that wait.
func (w *worker) abort() {
	w.queue = nil
	if w.busy {
		w.cancel()
	}
}

// stop ends everything for good.
func (w *worker) stop() {
	w.queue = nil
	w.end()
}

// alarm is one timer of an actor: setting it again replaces the time, and an older ring is stale.
type alarm struct {
	timer *time.Timer
	seq   uint64
	at    time.Time
	set   bool
}

// setAt arms the alarm for at, or stops it when ok is false, in the manner of a machine's Deadline.
func (a *alarm) setAt(sys *system, self *actor.PID, at time.Time, ok bool) {
	if !ok {
		a.stop()
		return
	}
	if a.set && a.at.Equal(at) {
		return
	}
	a.stop()
	a.set, a.at = true, at
	seq := a.seq
	root := sys.root
	a.timer = time.AfterFunc(time.Until(at), func() { root.Send(self, &alarmRang{alarm: a, seq: seq}) })
}

// rang reports whether the ring is the one that was set last, and clears it.
func (a *alarm) rang(m *alarmRang) bool {
	if m.alarm != a || m.seq != a.seq || !a.set {
		return false
	}
	a.set = false
	a.seq++
	return true
}

func (a *alarm) stop() {
	a.seq++
	a.set = false
	if a.timer != nil {
		a.timer.Stop()
	}
}
