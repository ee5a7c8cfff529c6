package actors

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

// skip finishes the record at offset in the place of its handler. Where a call is at work on it, its context ends, and its
// lane goes on when it has returned. It reports how often the record was given out, and false when it is not open here.
func (e *engine) skip(offset int64) (attempt int, ok bool) {
	e.mu.Lock()
	e.settleBegun()
	found, ok := e.lanes.ByOffset(offset)
	if !ok || e.ended {
		e.mu.Unlock()
		return 0, false
	}
	var ended *claimContext
	if found.State == buffer.LaneClaimed {
		ended = e.skipClaimed(found.Seq, offset)
	} else if e.lanes.Skip(found.Seq) {
		delete(e.refused, found.Seq)
		e.fresh++
	}
	e.active = true
	told, offer := e.tell(), e.reg.Actor == nil && e.claimable(time.Now())
	e.mu.Unlock()
	if ended != nil {
		ended.cancel(ErrSkipped)
	}
	if told {
		e.notify()
	}
	if offer {
		e.pool.offer(e)
	}
	return found.Attempt, true
}

// skipClaimed finishes a record that a call or an asynchronous handler has, and returns the context that ends with it. The
// caller holds mu.
func (e *engine) skipClaimed(seq uint64, offset int64) *claimContext {
	if e.reg.Async != nil {
		e.spoil(seq)
	}
	for _, w := range e.calls {
		if !slices.ContainsFunc(w.claimed[w.settled:], func(c buffer.Claimed) bool { return c.Seq == seq }) {
			continue
		}
		if e.reg.Async != nil && offset < w.call.offset.Load() {
			break // the call for it has returned
		}
		if e.skipped == nil {
			e.skipped = make(map[uint64]struct{})
		}
		e.skipped[seq] = struct{}{}
		w.cut.Store(true)
		if e.reg.Batch == nil && w.call.offset.Load() != offset {
			return nil // it does not begin any more
		}
		w.canceled = true
		return w.ctx.Load()
	}
	ended := e.contexts[seq]
	e.done(seq)
	return ended
}

// skippedInDelivery is called when a record is skipped that an actor has.
func (e *engine) skippedInDelivery(seq uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spoil(seq)
}

// spoil has the memory of a record never be used again: an asynchronous handler or an actor that it was skipped for has it until
// its own verdict, or for ever. The caller holds mu.
func (e *engine) spoil(seq uint64) {
	for i := range e.slabs {
		if e.slabs[i].seq >= seq {
			e.slabs[i].spoiled = true
			return
		}
	}
}

// claimContext is the context of the calls over one claim: the engine's, and what is worked on. It ends by itself when a record
// that is worked on is skipped. The standard context behind it is made when somebody asks for more than what is worked on.
type claimContext struct {
	engine *engine
	// record is the one that is worked on; records are those of a batch.
	record  atomic.Pointer[kafka.Record]
	records []kafka.Record
	attempt atomic.Int64
	// handle is an asynchronous handler's.
	handle *RecordDelivery

	cause atomic.Pointer[error]
	inner atomic.Pointer[innerContext]
}

// cancel ends the context; the first cause holds.
func (c *claimContext) cancel(cause error) {
	why := &noCause
	if cause != nil {
		kept := cause // a variable of its own, which takes memory only here
		why = &kept
	}
	if !c.cause.CompareAndSwap(nil, why) {
		return
	}
	if inner := c.inner.Load(); inner != nil {
		inner.cancel(cause)
	}
}

func (c *claimContext) get() *innerContext {
	if inner := c.inner.Load(); inner != nil {
		return inner
	}
	ctx, cancel := context.WithCancelCause(c.engine.ctx)
	inner := &innerContext{Context: ctx, cancel: cancel}
	if !c.inner.CompareAndSwap(nil, inner) {
		cancel(nil)
		return c.inner.Load()
	}
	if c.handle != nil && c.engine.skippedUnseen(c) {
		c.cancel(ErrSkipped)
	}
	if cause := c.cause.Load(); cause != nil { // it ended before, or meanwhile
		inner.cancel(*cause)
	}
	return inner
}

// skippedUnseen keeps the context of a record that an asynchronous handler has, for a skip to end it, and reports whether the
// record was skipped before.
func (e *engine) skippedUnseen(c *claimContext) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	seq := c.handle.seq
	if e.ended || c.handle.verdict.Load() != verdictOpen {
		return false
	}
	if _, skipped := e.skipped[seq]; skipped || !e.lanes.IsClaimed(seq) {
		return true
	}
	if e.contexts == nil {
		e.contexts = make(map[uint64]*claimContext)
	}
	e.contexts[seq] = c
	return false
}

// Deadline implements context.Context.
func (c *claimContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *claimContext) Done() <-chan struct{} { return c.get().Done() }

// Err implements context.Context.
func (c *claimContext) Err() error {
	if c.handle == nil && c.cause.Load() == nil {
		return c.engine.ctx.Err()
	}
	return c.get().Err()
}

// Value implements context.Context.
func (c *claimContext) Value(key any) any {
	if key == (deliveryKey{}) {
		return c.describe()
	}
	return c.get().Value(key)
}

// describe is what DeliveryFrom returns for a call: it tells what is worked on. Acknowledging through it means nothing.
func (c *claimContext) describe() *Delivery {
	e, records := c.engine, c.records
	if record := c.record.Load(); record != nil {
		records = []kafka.Record{*record}
	}
	d := newDelivery(e.tp, e.epoch, records, int(c.attempt.Load()), &e.shared.board.acks)
	d.ctx = c
	return d
}
