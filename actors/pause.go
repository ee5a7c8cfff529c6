package actors

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

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
	done chan struct{}
	mu   sync.Mutex
	left map[*cell]*actor.PID
	errs []error
}

// one is called when a partition has answered, or is gone.
func (w *waiter) one(c *cell, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waiting := w.left[c]; !waiting {
		return
	}
	if delete(w.left, c); err != nil {
		w.errs = append(w.errs, err)
	}
	if len(w.left) == 0 {
		close(w.done)
	}
}

// forget stops waiting for partitions whose actor is gone: it may have stopped with our message unread.
func (w *waiter) forget(board *board) {
	owned := make(map[*cell]bool)
	for _, c := range board.owned() {
		owned[c] = true
	}
	w.mu.Lock()
	left := maps.Clone(w.left)
	w.mu.Unlock()
	for c, pid := range left {
		if !owned[c] || c.pid.Load() != pid {
			w.one(c, nil)
		}
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
			if pid := p.Lookup(handlerKey); pid != nil { // one that has failed gives its delivery back by itself
				ctx.Send(pid, &deliveryRecalled{delivery: d})
			}
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
		w.one(p.cell, nil)
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
		if t.shared.registration(tp.Topic) == nil || tp.Partition < 0 {
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
	w := &waiter{done: make(chan struct{}), left: make(map[*cell]*actor.PID)}
	for _, c := range t.shared.board.owned() {
		if pid := c.pid.Load(); pid != nil && which(c) {
			w.left[c] = pid
		}
	}
	if len(w.left) == 0 {
		close(w.done)
		return w
	}
	for _, pid := range maps.Clone(w.left) { // they answer meanwhile
		t.shared.sys.root.Send(pid, message(w))
	}
	return w
}

// goneEvery is how often somebody who waits looks for partitions that are gone.
const goneEvery = 100 * time.Millisecond

func (t *Tree) await(ctx context.Context, w *waiter) error {
	ticker := time.NewTicker(goneEvery)
	defer ticker.Stop()
	for waiting := true; waiting; {
		select {
		case <-w.done:
			waiting = false
		case <-t.done:
			waiting = false
		case <-ticker.C:
			w.forget(t.shared.board)
		case <-ctx.Done():
			return fmt.Errorf("troupe: waiting for the partitions: %w", context.Cause(ctx))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) == 0 {
		return nil
	}
	return w.errs[0]
}
