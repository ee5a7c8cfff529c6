package actors

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

// Delivery is the records handed to a handler at once, under one assignment epoch. All methods are safe from any
// goroutine, also after the partition is gone: then they return ErrStale and are counted.
type Delivery struct {
	tp      kafka.TopicPartition
	epoch   kafka.AssignmentEpoch
	attempt int
	// perRecord is true when the handler takes one record at a time, so that only the first one was tried before.
	perRecord bool
	// byActor is true for a user's actor, which acknowledges records one by one; async for an asynchronous function, which
	// does so too, and returned when the calls for all records have.
	byActor, async, returned bool
	// engine has the records under OrderKey and OrderNone, claims what they are there.
	engine *engine
	claims []buffer.Claimed
	// leases are the slabs that the records lie in, in leaseSpace while they are few.
	leases     []*buffer.Lease
	leaseSpace [4]*buffer.Lease
	// records are what the handler gets, original what comes again: a function changes records as it likes, and what it had
	// when it failed is put back; an actor gets copies.
	records, original []kafka.Record
	// first is the first record's offset, count how many there are, offsets their offsets when these have holes: the records
	// themselves may be recycled when the last verdict is given.
	first   int64
	count   int
	offsets []int64
	ctx     context.Context
	started time.Time

	// low is the number of leading records that are done, in the way an in-order handler reports. For records settled one
	// by one, claimed has one bit for each that has its verdict (the first one wins), acked one for each acknowledged, and
	// settled counts the claimed ones.
	low     atomic.Int64
	claimed []atomic.Uint64
	acked   []atomic.Uint64
	settled atomic.Int64
	// current is the index of the record a function handler works on.
	current atomic.Int64
	ending  atomic.Int32
	// halted is set when the flow stops for good, suspended by the user's pause.
	halted, suspended atomic.Bool
	// cut is true from when one of its records was skipped: the others come again, whatever the handler says of its failure.
	cut bool
	// left is set when the position of the records was left: nothing that is said of them counts.
	left atomic.Bool
	// begun is set when the handler is given the first record: before, the delivery may wait for its turn.
	begun atomic.Bool
	// armed lets one acknowledgment send a signal; the partition arms it again when it can use another one.
	armed atomic.Bool
	// root and partition are where the signal goes, told is called instead where it is set; with neither nobody is told.
	root      *actor.RootContext
	partition *actor.PID
	told      func()
	counts    *ackCounts

	mu    sync.Mutex
	nacks map[int]error
	// skipped are the records that were skipped, which cannot be refused any more.
	skipped map[int]struct{}

	// What every delivery needs lies in it, so that it is one allocation: bitmaps for 512 records, its context, and the
	// messages about it, each of which is sent once.
	bitmaps     [16]atomic.Uint64
	context     deliveryContext
	signal      ackSignal
	toRunner    deliver
	fromRunner  ran
	toPartition delivered
}

// deliveryContext is a delivery's context: it knows its delivery. The standard context behind it is made when somebody asks
// for more than that, which most handlers never do.
type deliveryContext struct {
	delivery *Delivery
	cause    atomic.Pointer[error]
	inner    atomic.Pointer[innerContext]
}

type innerContext struct {
	context.Context
	cancel context.CancelCauseFunc
}

// noCause is the cause of a delivery that ended well.
var noCause error

// cancel ends the context; the first cause holds.
func (c *deliveryContext) cancel(cause error) {
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

func (c *deliveryContext) get() *innerContext {
	if inner := c.inner.Load(); inner != nil {
		return inner
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	inner := &innerContext{Context: ctx, cancel: cancel}
	if !c.inner.CompareAndSwap(nil, inner) {
		inner = c.inner.Load()
	}
	if cause := c.cause.Load(); cause != nil { // it ended before, or meanwhile
		inner.cancel(*cause)
	}
	return inner
}

// Deadline implements context.Context.
func (c *deliveryContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *deliveryContext) Done() <-chan struct{} { return c.get().Done() }

// Err implements context.Context.
func (c *deliveryContext) Err() error {
	if c.cause.Load() == nil {
		return nil
	}
	return c.get().Err()
}

// Value implements context.Context.
func (c *deliveryContext) Value(key any) any {
	if key == (deliveryKey{}) {
		return c.delivery
	}
	return c.get().Value(key)
}

// How a delivery ended.
const (
	deliveryOpen int32 = iota
	// deliveryComplete: every record has its verdict.
	deliveryComplete
	// deliveryCutOff: ownership or handler ended before that.
	deliveryCutOff
)

func newDelivery(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch, records []kafka.Record, attempt int, counts *ackCounts) *Delivery {
	d := &Delivery{
		tp: tp, epoch: epoch, attempt: attempt, records: records, original: records, count: len(records), counts: counts, started: time.Now(),
	}
	if last := len(records) - 1; last >= 0 {
		d.first = records[0].Offset
		if records[last].Offset-d.first != int64(last) {
			d.offsets = make([]int64, len(records))
			for i := range records {
				d.offsets[i] = records[i].Offset
			}
		}
	}
	d.context.delivery = d
	d.signal.delivery = d
	d.ctx = &d.context
	words := (len(records) + 63) / 64
	bitmaps := d.bitmaps[:]
	if 2*words > len(bitmaps) {
		bitmaps = make([]atomic.Uint64, 2*words)
	}
	d.claimed, d.acked = bitmaps[:words:words], bitmaps[words:2*words]
	d.armed.Store(true)
	return d
}

// TopicPartition returns where the records come from.
func (d *Delivery) TopicPartition() kafka.TopicPartition { return d.tp }

// Epoch returns the assignment epoch the delivery belongs to.
func (d *Delivery) Epoch() kafka.AssignmentEpoch { return d.epoch }

// Records returns the records, in offset order. They may be kept, unless api.RecycleRecords is set: then each is valid
// until its Ack, and all are until the last verdict is given.
func (d *Delivery) Records() []kafka.Record { return d.records }

// Context ends, with one of the causes in errors.go, when the work is no longer wanted.
func (d *Delivery) Context() context.Context { return d.ctx }

// Attempt returns how often the current record (for a function handler) or the delivery's records were delivered under
// this ownership, this time included: 1 for the first time. Deliveries by an earlier owner are not known.
func (d *Delivery) Attempt() int {
	if d.perRecord && d.current.Load() > 0 {
		return 1
	}
	return d.attempt
}

// Ack acknowledges the record at offset: it is finished and may be committed. Acknowledging again does nothing.
func (d *Delivery) Ack(offset int64) error {
	i, err := d.place(offset)
	if err != nil || i < 0 {
		return err
	}
	fresh := d.ackIndex(i)
	d.counts.repeated.Add(uint64(1 - fresh))
	return d.settle(fresh)
}

// AckUpTo acknowledges every record of the delivery up to and including offset.
func (d *Delivery) AckUpTo(offset int64) error {
	if d.over() {
		return d.late()
	}
	fresh := 0
	for i := range d.count {
		if d.offset(i) > offset {
			break
		}
		fresh += d.ackIndex(i)
	}
	return d.settle(fresh)
}

// AckAll acknowledges every record of the delivery.
func (d *Delivery) AckAll() error { return d.AckUpTo(d.offset(d.count - 1)) }

// offset is the i-th record's.
func (d *Delivery) offset(i int) int64 {
	if d.offsets != nil {
		return d.offsets[i]
	}
	return d.first + int64(i)
}

// Nack says that the record at offset failed. It is delivered again, after a backoff, once every other record of the
// delivery is acknowledged or refused as well. It counts against the restart budget. A record that is acknowledged
// already stays so.
func (d *Delivery) Nack(offset int64, cause error) error {
	i, err := d.place(offset)
	if err != nil || i < 0 {
		return err
	}
	if !d.claim(i) {
		d.counts.repeated.Add(1)
		return nil
	}
	if cause == nil {
		cause = errRefused
	}
	d.mu.Lock()
	if _, skipped := d.skipped[i]; !skipped {
		if d.nacks == nil {
			d.nacks = make(map[int]error)
		}
		d.nacks[i] = cause
	}
	d.mu.Unlock()
	if d.engine != nil {
		c := &d.claims[i]
		_ = d.engine.settleOne(c.Seq, c.Attempt, &HandlerError{TopicPartition: d.tp, Offset: offset, Err: cause}) // settle says it
	}
	return d.settle(1)
}

// place finds a record that may get a verdict. It returns -1 without an error when every record has its verdict already.
func (d *Delivery) place(offset int64) (int, error) {
	i, ok := d.index(offset)
	if !ok {
		d.counts.foreign.Add(1)
		return -1, ErrNotInDelivery
	}
	if !d.over() {
		return i, nil
	}
	err := d.late()
	if err == nil {
		d.counts.repeated.Add(1)
	}
	return -1, err
}

// claim gives a record its verdict's owner; the first caller wins.
func (d *Delivery) claim(i int) bool {
	bit := uint64(1) << (i % 64)
	return d.claimed[i/64].Or(bit)&bit == 0
}

func (d *Delivery) ackIndex(i int) int {
	if !d.claim(i) {
		return 0
	}
	d.acked[i/64].Or(uint64(1) << (i % 64))
	if d.engine != nil {
		_ = d.engine.settleOne(d.claims[i].Seq, 0, nil) // settle says whether it was stale
	}
	return 1
}

// settle counts, signals, and finds out whether the delivery ended meanwhile.
func (d *Delivery) settle(fresh int) error {
	if fresh > 0 {
		all := d.settled.Add(int64(fresh)) == int64(d.count)
		if d.armed.CompareAndSwap(true, false) || all {
			d.notify()
		}
	}
	if d.over() {
		return d.late()
	}
	return nil
}

// over reports whether the delivery has ended.
func (d *Delivery) over() bool { return d.ending.Load() != deliveryOpen }

// late is the answer to an acknowledgment after the end: when every record had its verdict before, it says nothing new.
func (d *Delivery) late() error {
	if d.ending.Load() == deliveryComplete {
		return nil
	}
	d.counts.stale.Add(1)
	return ErrStale
}

// index finds a record: at once when the offsets have no holes, else by halving.
func (d *Delivery) index(offset int64) (int, bool) {
	if d.offsets != nil {
		return slices.BinarySearch(d.offsets, offset)
	}
	i := offset - d.first
	return int(i), i >= 0 && i < int64(d.count)
}

// finishedUpTo is how an in-order handler reports that the first n records are done. What comes after the end is as late as
// an acknowledgment would be.
func (d *Delivery) finishedUpTo(n int) {
	before := d.low.Swap(int64(n))
	if d.over() {
		d.counts.stale.Add(uint64(int64(n) - before))
		return
	}
	if n == d.count {
		return // the handler returns now, and that is told
	}
	if d.armed.CompareAndSwap(true, false) {
		d.notify()
	}
}

// withhold says that the records from n on were not begun, and will not be in this delivery.
func (d *Delivery) withhold(n int) {
	fresh := 0
	for i := n; i < d.count; i++ {
		if d.claim(i) {
			fresh++
		}
	}
	d.settled.Add(int64(fresh))
}

// cancel ends the context.
func (d *Delivery) cancel(cause error) { d.context.cancel(cause) }

// notify tells the partition.
func (d *Delivery) notify() {
	switch {
	case d.told != nil:
		d.told()
	case d.partition != nil:
		d.root.Send(d.partition, &d.signal)
	}
}

// rearm lets the next acknowledgment signal again, and signals at once when there was one meanwhile.
func (d *Delivery) rearm(seen int64) {
	if d.over() {
		return
	}
	d.armed.Store(true)
	if d.progress() != seen && d.armed.CompareAndSwap(true, false) {
		d.notify()
	}
}

// progress is a number that grows with everything reported.
func (d *Delivery) progress() int64 { return d.low.Load() + d.settled.Load() }

// collect moves what was acknowledged into the tracker and returns how many records were new to it.
func (d *Delivery) collect(tracker *commit.Tracker) int {
	fresh := 0
	if low := d.low.Load(); low > 0 {
		fresh += tracker.AckUpTo(d.offset(int(low - 1)))
	}
	for w := range d.acked {
		for word := d.acked[w].Load(); word != 0; word &= word - 1 {
			i := w*64 + bits.TrailingZeros64(word)
			if tracker.Ack(d.offset(i)) == commit.Acked {
				fresh++
			}
		}
	}
	return fresh
}

// firstNack returns the lowest refused record.
func (d *Delivery) firstNack() (offset int64, refused bool, cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	low := -1
	for i := range d.nacks {
		if low < 0 || i < low {
			low = i
		}
	}
	if low < 0 {
		return 0, false, nil
	}
	return d.offset(low), true, d.nacks[low]
}

// settledAll reports whether every record is acknowledged or refused.
func (d *Delivery) settledAll() bool {
	n := int64(d.count)
	return d.low.Load() == n || d.settled.Load() == n
}

// end makes every later acknowledgment stale, unless all records have their verdict, and ends the context with cause.
func (d *Delivery) end(cause error) {
	how := deliveryCutOff
	if cause == nil && d.settledAll() {
		how = deliveryComplete
	}
	d.ending.CompareAndSwap(deliveryOpen, how)
	d.cancel(cause)
}

// halt asks a function handler to take no further record.
func (d *Delivery) halt() { d.halted.Store(true) }

// stops reports whether no further record may begin.
func (d *Delivery) stops() bool { return d.halted.Load() || d.suspended.Load() }

// currentOffset is the offset of the record being worked on: for a user's actor or an asynchronous function, the first
// without a verdict.
func (d *Delivery) currentOffset() int64 {
	if d.byActor || d.async {
		for i := range d.count {
			if d.openAt(i) {
				return d.offset(i)
			}
		}
	}
	return d.offset(int(min(d.current.Load(), int64(d.count-1))))
}
