package actors

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/kafka"
)

// runner is the handler actor behind a user's function. It runs the function in a goroutine of its own, one delivery at a
// time, and fails in its own turn when the function failed, so that its supervisor replaces it and nothing else.
type runner struct {
	shared *shared
	reg    *Registration
	tp     kafka.TopicPartition
	epoch  kafka.AssignmentEpoch

	self    *actor.PID
	parent  *actor.PID
	waiting *Delivery
	running *Delivery
	// gated is true while the waiting delivery has the partition's gate and only lacks a slot.
	gated bool
}

// Receive implements actor.Actor.
func (r *runner) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		r.self, r.parent = ctx.Self(), ctx.Parent()
	case *deliver:
		r.waiting = m.delivery
		r.start()
	case *deliveryRecalled:
		r.recalled(m.delivery)
	case *placeFree:
		r.start()
	case *ran:
		r.finished(m)
	case *actor.Stopping:
		r.stop()
	}
}

// start runs the waiting delivery as soon as the partition's gate and one of the member's slots are free.
func (r *runner) start() {
	d := r.waiting
	if d == nil || r.running != nil {
		return
	}
	if !r.gated && !r.shared.gates.enter(r.tp, r.epoch, d, r.self) {
		return
	}
	r.gated = true
	if !r.shared.slots.enter(r.self) {
		return
	}
	r.waiting, r.running, r.gated = nil, d, false
	d.begun.Store(true)
	go r.run(d, r.self)
}

// run is the delivery's goroutine. Whatever the function does, also ending its goroutine, the places are given back and
// the runner hears of it.
func (r *runner) run(d *Delivery, self *actor.PID) {
	var failure *HandlerError
	returned := false
	defer func() {
		if !returned {
			failure = &HandlerError{TopicPartition: d.tp, Offset: d.currentOffset(), Err: errGoexit}
		}
		r.shared.slots.leave()
		r.shared.gates.leave(d.tp, d.epoch)
		d.fromRunner.delivery, d.fromRunner.err = d, failure
		r.shared.sys.root.Send(self, &d.fromRunner)
	}()
	failure = r.call(d)
	returned = true
}

var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit)")

// call runs the user's function over the delivery. Only it runs outside of the actor's turn.
func (r *runner) call(d *Delivery) (failure *HandlerError) {
	defer func() {
		if v := recover(); v != nil {
			failure = &HandlerError{TopicPartition: d.tp, Offset: d.currentOffset(), Panic: true, Err: panicError(v)}
			r.shared.logger.Error("handler panicked", zap.String("topic", d.tp.Topic), zap.Int32("partition", d.tp.Partition),
				zap.Int64("offset", failure.Offset), zap.ByteString("stack", debug.Stack()))
		}
	}()
	if r.reg.Batch != nil {
		return r.callBatch(d)
	}
	if r.reg.Async != nil {
		r.callAsync(d)
		return nil
	}
	var pace pacer
	at, saved := -1, kafka.Record{}
	defer func() {
		if at >= 0 { // it failed, in whatever way: the record comes again as it was
			d.records[at] = saved
		}
	}()
	for i := range d.records {
		if pace.due(i) {
			r.shared.session.hold(d.ctx)
		}
		if d.current.Store(int64(i)); d.stops() { // in this order: who halts it, to skip a record, looks at which one is at work
			return nil
		}
		at, saved = i, d.records[i]
		if err := r.reg.Record(d.ctx, &d.records[i]); err != nil {
			return &HandlerError{TopicPartition: d.tp, Offset: d.offset(i), Err: err}
		}
		at = -1
		d.finishedUpTo(i + 1)
	}
	return nil
}

// batchCopies are copies of batches that are being handled, for those that fail.
var batchCopies = sync.Pool{New: func() any { return new([]kafka.Record) }}

// callBatch calls a batch function. It may sort, filter or change the records; if it fails they come again as they were.
func (r *runner) callBatch(d *Delivery) *HandlerError {
	if r.shared.session.hold(d.ctx); d.stops() {
		return nil
	}
	saved := batchCopies.Get().(*[]kafka.Record)
	*saved = append((*saved)[:0], d.records...)
	failed := true
	defer func() {
		if failed {
			copy(d.records, *saved)
		}
		batchCopies.Put(saved)
	}()
	if err := r.reg.Batch(d.ctx, d.records); err != nil {
		return &HandlerError{TopicPartition: d.tp, Offset: d.first, Err: err}
	}
	failed = false
	d.finishedUpTo(d.count)
	return nil
}

// callAsync calls an asynchronous function with one record after the other. What is not begun when the delivery is halted
// is withheld.
func (r *runner) callAsync(d *Delivery) {
	var pace pacer
	begun := 0
	defer func() { d.withhold(begun) }() // also when the function ends its goroutine
	for i := range d.records {
		if pace.due(i) {
			r.shared.session.hold(d.ctx)
		}
		if d.current.Store(int64(i)); d.stops() {
			return
		}
		begun = i + 1
		handle := &RecordDelivery{record: d.records[i], offset: d.offset(i), tp: d.tp, epoch: d.epoch, attempt: d.attempt, delivery: d}
		if cause := r.callRecord(d, handle); cause != nil {
			_ = handle.Nack(cause) // a stale one is counted
		}
	}
}

// callRecord returns what the function panicked with.
func (r *runner) callRecord(d *Delivery, handle *RecordDelivery) (cause error) {
	defer func() {
		if v := recover(); v != nil {
			cause = &HandlerError{TopicPartition: d.tp, Offset: handle.offset, Panic: true, Err: panicError(v)}
			r.shared.logger.Error("handler panicked", zap.String("topic", d.tp.Topic), zap.Int32("partition", d.tp.Partition),
				zap.Int64("offset", handle.offset), zap.ByteString("stack", debug.Stack()))
		}
	}()
	r.reg.Async(d.ctx, handle)
	return nil
}

func panicError(v any) error {
	if err, ok := v.(error); ok {
		return err
	}
	return fmt.Errorf("%v", v)
}

// finished passes a success on and turns a failure into the actor's own. The failure of a halted delivery is only told, for
// the partition is going away; after the end of its context it is none.
func (r *runner) finished(m *ran) {
	if m.delivery != r.running {
		return
	}
	r.running = nil
	if m.err != nil && !m.delivery.halted.Load() {
		panic(m.err)
	}
	m.delivery.toPartition.delivery = m.delivery
	if m.err != nil && m.delivery.ctx.Err() == nil {
		m.delivery.toPartition.failure = m.err
	}
	r.shared.sys.root.Send(r.parent, &m.delivery.toPartition)
	r.start()
}

// recalled gives back a delivery that has not started: it waits behind the handler of an earlier ownership, or for a slot,
// and nobody should wait for it in turn.
func (r *runner) recalled(d *Delivery) {
	if r.waiting != d {
		return
	}
	r.waiting = nil
	if d.async {
		d.withhold(0)
	}
	if r.gated {
		r.gated = false
		r.shared.gates.leave(r.tp, r.epoch)
	}
	r.shared.slots.forget(r.self)
	r.shared.sys.root.Send(r.parent, &delivered{delivery: d})
}

// stop gives up what was waiting. A function that still runs keeps the gate and the slot until it returns.
func (r *runner) stop() {
	if r.gated {
		r.shared.gates.leave(r.tp, r.epoch)
	}
	r.shared.slots.forget(r.self)
	if r.running != nil {
		r.running.cancel(ErrHandlerRestarted)
	}
	r.waiting = nil
}
