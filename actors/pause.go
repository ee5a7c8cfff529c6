package actors

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
)

// pauses is the register of what the user has paused. It holds for as long as the consumer lives, whoever owns the
// partitions meanwhile.
type pauses struct {
	mu         sync.Mutex
	all        bool
	partitions map[kafka.TopicPartition]bool
}

// set pauses or resumes partitions, all of them when none is named.
func (r *pauses) set(paused bool, partitions []kafka.TopicPartition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(partitions) == 0 {
		r.all, r.partitions = paused, nil
		return
	}
	if r.partitions == nil {
		r.partitions = make(map[kafka.TopicPartition]bool)
	}
	for _, tp := range partitions {
		if r.partitions[tp] = paused; paused == r.all {
			delete(r.partitions, tp)
		}
	}
}

func (r *pauses) holds(tp kafka.TopicPartition) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if paused, named := r.partitions[tp]; named {
		return paused
	}
	return r.all
}

// waiter is somebody outside of the actors who waits for several partitions.
type waiter struct {
	left atomic.Int32
	done chan struct{}
	mu   sync.Mutex
	errs []error
}

func newWaiter(partitions int) *waiter {
	w := &waiter{done: make(chan struct{})}
	if w.left.Store(int32(partitions)); partitions == 0 {
		close(w.done)
	}
	return w
}

// one is called once for each partition.
func (w *waiter) one(err error) {
	if err != nil {
		w.mu.Lock()
		w.errs = append(w.errs, err)
		w.mu.Unlock()
	}
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
}

// pauseChanged: Tree.Pause and Tree.Resume -> partition: look at the register. Answered through the waiter, when no call of
// the handler runs any more or the pause is over.
type pauseChanged struct {
	silent
	waiter *waiter
}

// pausing is the partition's side of the user's pause.
type pausing struct {
	paused  bool
	waiters []*waiter
}

func (p *partition) pauseChanged(ctx actor.Context, m *pauseChanged) {
	p.waiters = append(p.waiters, m.waiter)
	if p.paused = p.shared.pauses.holds(p.tp); p.paused {
		if d := p.handler.delivery; d != nil && !d.byActor {
			d.suspended.Store(true)
			ctx.Send(p.Lookup(handlerKey), &deliveryRecalled{delivery: d})
		}
		if p.parallel != nil {
			p.parallel.pause()
		}
		p.pausedNow()
		return
	}
	p.resumeWaiters()
	if p.parallel != nil {
		p.parallel.resume()
	}
	p.pump(ctx)
}

// pausedNow answers those who wait for the pause, once nothing can begin and nothing runs.
func (p *partition) pausedNow() {
	if len(p.waiters) == 0 {
		return
	}
	d := p.handler.delivery
	quiet := d == nil || d.byActor || d.returned
	if p.parallel != nil {
		quiet = quiet && p.parallel.pause() == 0
	}
	if quiet {
		p.resumeWaiters()
	}
}

func (p *partition) resumeWaiters() {
	for _, w := range p.waiters {
		w.one(nil)
	}
	p.waiters = nil
}

// Pause stops the delivery of partitions, all of them when none is named; see api.Consumer.Pause.
func (t *Tree) Pause(ctx context.Context, partitions []kafka.TopicPartition) error {
	return t.pause(ctx, true, partitions)
}

// Resume ends a pause.
func (t *Tree) Resume(ctx context.Context, partitions []kafka.TopicPartition) error {
	return t.pause(ctx, false, partitions)
}

func (t *Tree) pause(ctx context.Context, paused bool, partitions []kafka.TopicPartition) error {
	for _, tp := range partitions {
		if t.shared.topics[tp.Topic] == nil || tp.Partition < 0 {
			return fmt.Errorf("%w: %s", ErrNotSubscribed, tp)
		}
	}
	t.shared.pauses.set(paused, partitions)
	w := t.tell(func(c *cell) bool { return len(partitions) == 0 || slices.Contains(partitions, c.tp) },
		func(w *waiter) any { return &pauseChanged{waiter: w} })
	if t.InHandler(ctx) {
		return nil // the handler itself would be waited for
	}
	return t.await(ctx, w)
}

// tell sends the partitions that are owned a message, each with the waiter to answer to.
func (t *Tree) tell(which func(*cell) bool, message func(*waiter) any) *waiter {
	var pids []*actor.PID
	for _, c := range t.shared.board.owned() {
		if pid := c.pid.Load(); pid != nil && which(c) {
			pids = append(pids, pid)
		}
	}
	w := newWaiter(len(pids))
	for _, pid := range pids {
		t.shared.sys.root.Send(pid, message(w))
	}
	return w
}

func (t *Tree) await(ctx context.Context, w *waiter) error {
	select {
	case <-w.done:
	case <-t.done:
	case <-ctx.Done():
		return fmt.Errorf("troupe: waiting for the partitions: %w", context.Cause(ctx))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) == 0 {
		return nil
	}
	return w.errs[0]
}
