package actors

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
)

// pauses is the register of what the user has paused. It holds for as long as the consumer lives, whoever owns the
// partitions meanwhile.
type pauses struct {
	mu  sync.Mutex
	all bool
	// named has what differs from all, and for single partitions what differs from that of their topic.
	named map[kafka.TopicPartition]bool
}

// set pauses or resumes partitions or whole topics, everything when none is named. Later calls win over earlier ones.
func (r *pauses) set(paused bool, named []kafka.TopicPartition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(named) == 0 {
		r.all, r.named = paused, nil
		return
	}
	if r.named == nil {
		r.named = make(map[kafka.TopicPartition]bool)
	}
	for _, tp := range named {
		if tp.Partition == kafka.AnyPartition {
			maps.DeleteFunc(r.named, func(other kafka.TopicPartition, _ bool) bool { return other.Topic == tp.Topic })
		}
		delete(r.named, tp)
		if paused != r.rule(tp) {
			r.named[tp] = paused
		}
	}
}

// rule returns what holds for a partition or topic that is not named itself.
func (r *pauses) rule(tp kafka.TopicPartition) bool {
	if paused, named := r.named[kafka.WholeTopic(tp.Topic)]; named {
		return paused
	}
	return r.all
}

func (r *pauses) holds(tp kafka.TopicPartition) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if paused, named := r.named[tp]; named {
		return paused
	}
	return r.rule(tp)
}

// waiter is somebody outside of the actors who waits for several partitions.
type waiter struct {
	done chan struct{}
	mu   sync.Mutex
	left map[*cell]*actor.PID
	errs []error
	// gone is the answer of a partition that is gone, nil for none; whole says that the consumer's end is no answer. outlives says
	// that the actor may die meanwhile: the next one answers.
	gone            func(*cell) error
	whole, outlives bool
}

// waitFor waits for partitions, whoever of their actors answers.
func waitFor(parts []*part, gone func(*cell) error) *waiter {
	w := &waiter{done: make(chan struct{}), left: make(map[*cell]*actor.PID), gone: gone, whole: true, outlives: true}
	for _, p := range parts {
		w.left[p.cell] = nil
	}
	return w
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
		if !owned[c] || !w.outlives && c.pid.Load() != pid {
			var err error
			if w.gone != nil {
				err = w.gone(c)
			}
			w.one(c, err)
		}
	}
}

// pauseChanged: group -> partition: look at the register. Answered through the waiter, when no call of
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
		quiet = p.parallel.pause() == 0 && p.left == nil && quiet
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

// pauseOperation pauses or resumes.
type pauseOperation struct {
	paused bool
	named  []kafka.TopicPartition
	// waiter is for those who want to know when no call of a handler runs any more.
	waiter *waiter
}

func (o *pauseOperation) word() string {
	if o.paused {
		return "pause"
	}
	return "resume"
}

func (o *pauseOperation) everything() bool { return len(o.named) == 0 }

// run notes it in the register and has the partitions look there. A partition that is named and not owned is refused; a resume
// of it holds all the same, so that it does not come back paused.
func (o *pauseOperation) run(ctx actor.Context, g *group, m *request) {
	parts, err := g.targets(o.word(), o.named)
	var unassigned *UnassignedError
	switch {
	case errors.As(err, &unassigned) && len(unassigned.Partitions) == 0: // a rule for what will be owned
	case errors.As(err, &unassigned):
		if !o.paused && m.key == nil { // a token says nothing about what it does not cover
			g.shared.pauses.set(false, unassigned.Partitions)
		}
		m.reply(err)
		return
	case err != nil:
		m.reply(err)
		return
	}
	if err := g.authorize(m, parts); err != nil {
		m.reply(err)
		return
	}
	g.shared.pauses.set(o.paused, o.named)
	o.waiter = g.ask(ctx, parts, nil, func(w *waiter) any { return &pauseChanged{waiter: w} })
	m.reply(nil)
}

// Pause stops the delivery of partitions, all of them when none is named; see api.Consumer.Pause.
func (t *Tree) Pause(ctx context.Context, partitions []kafka.TopicPartition) error {
	return t.pause(ctx, nil, true, partitions)
}

// Resume ends a pause.
func (t *Tree) Resume(ctx context.Context, partitions []kafka.TopicPartition) error {
	return t.pause(ctx, nil, false, partitions)
}

func (t *Tree) pause(ctx context.Context, key *capability.Key, paused bool, named []kafka.TopicPartition) error {
	op := &pauseOperation{paused: paused, named: named}
	if err := t.do(ctx, key, op); err != nil {
		return err
	}
	if t.InHandler(ctx) {
		return nil // the handler itself would be waited for
	}
	return t.await(ctx, op.waiter)
}

// ask sends partitions a message, each with the waiter to answer to. One whose actor is between two incarnations looks for
// itself when it starts. gone is the answer for one that cannot give it any more, nil for none.
func (g *group) ask(ctx actor.Context, parts []*part, gone func(*cell) error, message func(*waiter) any) *waiter {
	w := &waiter{done: make(chan struct{}), left: make(map[*cell]*actor.PID), gone: gone}
	for _, p := range parts {
		if pid := g.Lookup(p.key); pid != nil {
			w.left[p.cell] = pid
		}
	}
	if len(w.left) == 0 {
		close(w.done)
		return w
	}
	for _, pid := range maps.Clone(w.left) { // they answer meanwhile
		ctx.Send(pid, message(w))
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
			return fmt.Errorf("troupe: waiting for the partitions: %w", endOf(ctx))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(w.left) > 0 && w.whole:
		return errors.Join(append(w.errs, t.over())...)
	case len(w.errs) == 1:
		return w.errs[0]
	}
	return errors.Join(w.errs...)
}
