package actors

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// ErrOverdue is why a handler's context ended that was at work for longer than MaxProcessingTime; *OverdueError wraps it.
var ErrOverdue = errors.New("troupe: longer at work than MaxProcessingTime allows")

// OverdueError names the record that was worked on for longer than MaxProcessingTime. It is the cause on the handler's
// context, and part of what Healthy returns while the member is out of the group because of it.
type OverdueError struct {
	TopicPartition kafka.TopicPartition
	Offset         int64
	// Age is for how long, Limit MaxProcessingTime.
	Age, Limit time.Duration
}

// Error names partition, offset and times.
func (e *OverdueError) Error() string {
	return fmt.Sprintf("troupe: gave up: handler of %s offset %d has run for %v, MaxProcessingTime is %v",
		e.TopicPartition, e.Offset, e.Age.Round(time.Millisecond), e.Limit)
}

// Unwrap returns ErrOverdue.
func (e *OverdueError) Unwrap() error { return ErrOverdue }

// overdueLooks is how many times within MaxProcessingTime the group looks at what is worked on. A handler gets the whole
// time, and up to one part of it more, since nothing is noted per record.
const overdueLooks = 8

// workWatch knows since when what one partition has at work is there, as far as the looks at it tell.
type workWatch struct {
	// marks say how many records of the delivery had begun at which look.
	delivery *Delivery
	marks    []workMark
	// claims are those of the engine, since when each was seen.
	claims map[workClaim]time.Time
}

type workMark struct {
	at    time.Time
	begun int
}

// workClaim is a record with an engine's worker, asynchronous handler or actor; once tells one time from the next.
type workClaim struct {
	offset int64
	once   int64
}

// work is a record that is worked on.
type work struct {
	tp     kafka.TopicPartition
	epoch  kafka.AssignmentEpoch
	offset int64
	since  time.Time
}

// look returns what has been at work for at least limit, the oldest of it.
func (w *workWatch) look(now time.Time, limit time.Duration, c *cell) (oldest work, overdue bool) {
	oldest = work{tp: c.tp, epoch: c.epoch}
	works := false
	if d := c.delivery.Load(); d != nil {
		oldest.offset, oldest.since, works = w.lookAtDelivery(now, d)
	} else {
		w.delivery, w.marks = nil, nil
		if e := c.engine.Load(); e != nil { // calls of a position that was left keep the place at the gate from this one
			oldest.offset, oldest.since, works = w.lookAtEngine(now, e)
		}
	}
	return oldest, works && now.Sub(oldest.since) >= limit
}

// alone reports whether nothing was at work at the last look that is in time.
func (w *workWatch) alone(now time.Time, limit time.Duration) bool {
	for _, seen := range w.claims {
		if now.Sub(seen) < limit {
			return false
		}
	}
	return true
}

func (w *workWatch) lookAtDelivery(now time.Time, d *Delivery) (offset int64, since time.Time, works bool) {
	if d != w.delivery {
		w.delivery, w.marks = d, w.marks[:0]
	}
	begun, open := d.begunRecords(), d.firstOpen()
	if last := len(w.marks) - 1; last < 0 || w.marks[last].begun < begun {
		w.marks = append(w.marks, workMark{now, begun})
	}
	for len(w.marks) > 1 && w.marks[0].begun <= open {
		w.marks = w.marks[1:]
	}
	if d.left.Load() && begun > 0 { // what it has finished does not count, only that it has not returned
		return d.offset(min(begun, d.count) - 1), w.marks[0].at, true
	}
	if open >= begun || d.over() {
		return 0, time.Time{}, false
	}
	return d.offset(open), w.marks[0].at, true
}

func (w *workWatch) lookAtEngine(now time.Time, e *engine) (offset int64, since time.Time, works bool) {
	before := w.claims
	w.claims = nil
	e.atWork(func(claim workClaim) {
		seen, known := before[claim]
		if !known {
			seen = now
		}
		if w.claims == nil {
			w.claims = make(map[workClaim]time.Time)
		}
		w.claims[claim] = seen
		if !works || seen.Before(since) {
			offset, since, works = claim.offset, seen, true
		}
	})
	return offset, since, works
}

// begunRecords is how many leading records the handler was given so far.
func (d *Delivery) begunRecords() int {
	switch {
	case !d.begun.Load():
		return 0
	case d.perRecord, d.async:
		return int(d.current.Load()) + 1
	}
	return d.count
}

// firstOpen is the index of the first record that is not finished, and has no verdict; count for none.
func (d *Delivery) firstOpen() int {
	if !d.byActor && !d.async {
		return int(d.low.Load())
	}
	for i := range d.claimed {
		if open := ^d.claimed[i].Load(); open != 0 {
			return min(i*64+bits.TrailingZeros64(open), d.count)
		}
	}
	return d.count
}

// atWork lists what handlers have: the calls of functions, and the records that asynchronous handlers and actors were given
// and have not settled.
func (e *engine) atWork(visit func(workClaim)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		return
	}
	if e.reg.Async == nil && e.reg.Actor == nil {
		for _, w := range e.calls {
			visit(workClaim{offset: w.call.offset.Load(), once: w.call.since.UnixNano()})
		}
		return
	}
	waiting := make(map[int64]bool) // claimed for calls that have not come to them
	for _, w := range e.calls {
		for i := range w.claimed {
			if offset := w.claimed[i].Offset; offset > w.call.offset.Load() {
				waiting[offset] = true
			}
		}
	}
	e.lanes.EachClaimed(func(offset int64, attempt int) {
		if !waiting[offset] {
			visit(workClaim{offset: offset, once: int64(attempt)})
		}
	})
}

// processingOverdue is the group's decision: nothing more begins here. The handler's context ends, and the drain is over, as
// soon as nothing else of the partition is at work: under key order, or none, the others share the context, and have the
// whole drain.
func (p *partition) processingOverdue(ctx actor.Context, m *processingOverdue) {
	p.handler.stopped, p.handler.overdue, p.handler.alone = true, m.cause, m.alone
	if d := p.handler.delivery; d != nil {
		d.halt()
	}
	if p.parallel != nil {
		p.parallel.stop()
	}
	if !m.alone {
		return
	}
	p.cancelHandler(m.cause)
	if p.machine.State() == rebalance.PartitionRevoking {
		p.drainNow(ctx, p.drain)
	}
}

// drainNow begins the drain, or hurries it.
func (p *partition) drainNow(ctx actor.Context, m drainWanted) {
	p.drain, p.closing = m, p.closing || m.closing
	if p.handler.alone {
		p.drain.drainUntil = time.Now()
	}
	p.feed(ctx, rebalance.DrainRequested{DrainUntil: p.drain.drainUntil, Deadline: p.drain.deadline})
}
