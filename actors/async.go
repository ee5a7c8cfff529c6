package actors

import (
	"errors"
	"sync/atomic"

	"github.com/troupego/troupe/pkg/kafka"
)

// RecordDelivery is one record in the hands of an asynchronous handler. Its methods are safe from any goroutine, may be
// called again, and also after the partition is gone or the consumer is closed.
type RecordDelivery struct {
	// record is the handler's own; what comes again after a Nack is not changed by it.
	record  kafka.Record
	offset  int64
	tp      kafka.TopicPartition
	epoch   kafka.AssignmentEpoch
	attempt int

	// delivery has the record under OrderPartition, engine under the other orders: there seq is the record's number, which
	// is never used again.
	delivery *Delivery
	engine   *engine
	seq      uint64
	// context is what the handler was called with by an engine.
	context *claimContext
	verdict atomic.Int32
	// cause is that of the refusal, set before the verdict is.
	cause atomic.Pointer[HandlerError]
}

// The verdict of a record that an engine has: taken while it is being given.
const (
	verdictOpen int32 = iota
	verdictTaken
	verdictAcked
	verdictRefused
	verdictStale
)

// errRefused is the cause of a Nack without one.
var errRefused = errors.New("troupe: record refused without a cause")

// Record returns the record. With api.RecycleRecords it is valid until Ack.
func (d *RecordDelivery) Record() *kafka.Record { return &d.record }

// TopicPartition returns where the record comes from.
func (d *RecordDelivery) TopicPartition() kafka.TopicPartition { return d.tp }

// Epoch returns the assignment epoch the delivery belongs to.
func (d *RecordDelivery) Epoch() kafka.AssignmentEpoch { return d.epoch }

// Offset returns the record's offset, also after Ack.
func (d *RecordDelivery) Offset() int64 { return d.offset }

// Attempt returns how often the record was delivered under this ownership, this time included: 1 for the first time.
func (d *RecordDelivery) Attempt() int { return d.attempt }

// Ack acknowledges the record: it is finished and may be committed. Acknowledging again does nothing. It returns ErrStale,
// which is counted, when the ownership or the delivery had ended before.
func (d *RecordDelivery) Ack() error {
	if d.engine == nil {
		return d.delivery.Ack(d.offset)
	}
	return d.settle(nil)
}

// Nack says that the record failed with cause: it is delivered again, after a backoff, and counts against the restart
// budget. A record that has its verdict already keeps it.
func (d *RecordDelivery) Nack(cause error) error {
	if cause == nil {
		cause = errRefused
	}
	if d.engine == nil {
		return d.delivery.Nack(d.offset, cause)
	}
	return d.settle(&HandlerError{TopicPartition: d.tp, Offset: d.offset, Err: cause})
}

func (d *RecordDelivery) settle(failure *HandlerError) error {
	if d.engine == nil {
		if failure == nil {
			return d.delivery.Ack(d.offset)
		}
		return d.delivery.Nack(d.offset, failure.Err)
	}
	if !d.verdict.CompareAndSwap(verdictOpen, verdictTaken) {
		if d.verdict.Load() == verdictStale {
			d.engine.shared.board.acks.stale.Add(1)
			return ErrStale
		}
		d.engine.shared.board.acks.repeated.Add(1)
		return nil
	}
	if err := d.engine.settleOne(d.seq, d.attempt, failure); err != nil {
		d.verdict.Store(verdictStale)
		d.engine.shared.board.acks.stale.Add(1)
		return err
	}
	d.context.cancel(nil)
	if failure != nil {
		d.cause.Store(failure)
		d.verdict.Store(verdictRefused)
	} else {
		d.verdict.Store(verdictAcked)
	}
	return nil
}

// Verdict returns what was said about the record, and why when it was refused. It is for tests and for handlers that want
// to know what is left; a record whose acknowledgment was stale is open.
func (d *RecordDelivery) Verdict() (Verdict, error) {
	if d.engine == nil {
		return d.delivery.Verdict(d.offset)
	}
	switch d.verdict.Load() {
	case verdictAcked:
		return VerdictAcked, nil
	case verdictRefused:
		return VerdictRefused, d.cause.Load().Err
	}
	return VerdictOpen, nil
}
