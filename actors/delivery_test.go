package actors

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
)

var errTest = errors.New("disk full")

// deliveryOf returns a delivery of records at those offsets, its tracker, and the count of its signals.
func deliveryOf(offsets ...int64) (d *Delivery, tracker *commit.Tracker, signals *atomic.Int64) {
	records := make([]kafka.Record, len(offsets))
	for i, o := range offsets {
		records[i] = kafka.Record{Topic: "orders", Offset: o}
	}
	d = newDelivery(at(0), 1, records, 1, new(ackCounts))
	signals = new(atomic.Int64)
	d.told = func() { signals.Add(1) }
	tracker = commit.NewTracker(offsets[0])
	if err := tracker.Deliver(records); err != nil {
		panic(err)
	}
	return d, tracker, signals
}

func TestDelivery_TheFirstVerdictWins(t *testing.T) {
	d, tracker, _ := deliveryOf(3, 4, 9)
	assert.NoError(t, d.Ack(3))
	assert.NoError(t, d.Nack(3, errTest), "acknowledged stays so")
	assert.NoError(t, d.Nack(4, errTest))
	assert.NoError(t, d.Nack(4, errors.New("another")))
	assert.NoError(t, d.Ack(4), "refused stays so")
	assert.NoError(t, d.AckUpTo(4))
	assert.False(t, d.settledAll())
	assert.NoError(t, d.AckAll())
	assert.NoError(t, d.AckAll())
	assert.True(t, d.settledAll())
	assert.Equal(t, 2, d.collect(tracker))
	assert.Zero(t, d.collect(tracker), "collecting again finds nothing new")
	assert.Equal(t, int64(4), tracker.Committable())
	offset, refused, cause := d.firstNack()
	assert.True(t, refused)
	assert.Equal(t, int64(4), offset)
	assert.Equal(t, errTest, cause)
	verdict, cause := d.Verdict(4)
	assert.Equal(t, VerdictRefused, verdict)
	assert.Equal(t, errTest, cause)
}

func TestDelivery_HolesAreNotInIt(t *testing.T) {
	d, tracker, _ := deliveryOf(3, 4, 9, 70, 200)
	for _, hole := range []int64{-1, 0, 2, 5, 8, 10, 69, 199, 201} {
		assert.ErrorIs(t, d.Ack(hole), ErrNotInDelivery)
		assert.ErrorIs(t, d.Nack(hole, errTest), ErrNotInDelivery)
	}
	assert.Equal(t, uint64(18), d.counts.foreign.Load())
	assert.NoError(t, d.AckUpTo(100), "up to a hole means up to the record before it")
	assert.Equal(t, 4, d.collect(tracker))
	assert.Equal(t, int64(200), tracker.Committable())
	assert.NoError(t, d.AckUpTo(2), "below the first is nothing")
}

func TestDelivery_AfterItsEndEveryVerdictIsStaleAndCounted(t *testing.T) {
	d, _, _ := deliveryOf(1, 2)
	d.end(ErrClosing)
	assert.ErrorIs(t, context.Cause(d.Context()), ErrClosing)
	assert.ErrorIs(t, d.Ack(1), ErrStale)
	assert.ErrorIs(t, d.AckUpTo(1), ErrStale)
	assert.ErrorIs(t, d.AckAll(), ErrStale)
	assert.ErrorIs(t, d.Nack(2, errTest), ErrStale)
	assert.ErrorIs(t, d.Ack(5), ErrNotInDelivery)
	assert.Equal(t, uint64(4), d.counts.stale.Load())
	assert.Equal(t, d, DeliveryFrom(d.Context()))
	assert.Nil(t, DeliveryFrom(context.Background()))
}

func TestDelivery_ANackedRecordIsNeverAcknowledgedWhoeverRaces(t *testing.T) {
	for round := range 200 {
		offsets := upTo(0, 130)
		d, tracker, _ := deliveryOf(offsets...)
		var wg sync.WaitGroup
		acks := []func(){
			func() { _ = d.AckAll() }, func() { _ = d.AckUpTo(100) },
			func() {
				for _, o := range offsets {
					_ = d.Ack(o)
				}
			},
			func() {
				for i := range 40 {
					_ = d.Nack(int64(i*3), errTest)
				}
			},
			func() { d.collect(tracker) },
		}
		for _, f := range acks {
			wg.Go(f)
		}
		wg.Wait()
		d.collect(tracker)
		assert.True(t, d.settledAll())
		for i := range d.nacks {
			next, open := tracker.NextUnacked(int64(i))
			if !assert.True(t, open && next == int64(i), "round %d: %d was refused and acknowledged", round, i) {
				return
			}
		}
		assert.Equal(t, len(d.nacks), tracker.Unacked())
	}
}

func TestDelivery_SignalsCoalesceAndTheLastOneIsNeverLost(t *testing.T) {
	d, _, signals := deliveryOf(upTo(0, 100)...)
	assert.NoError(t, d.Ack(0))
	assert.NoError(t, d.Ack(1))
	assert.NoError(t, d.Ack(2))
	assert.Equal(t, int64(1), signals.Load())
	d.rearm(d.progress())
	assert.Equal(t, int64(1), signals.Load(), "nothing new, no signal")
	assert.NoError(t, d.Ack(3))
	assert.Equal(t, int64(2), signals.Load())
	seen := d.progress()
	assert.NoError(t, d.Ack(4))
	d.rearm(seen)
	assert.Equal(t, int64(3), signals.Load(), "what came since seen is signaled at once")
	assert.NoError(t, d.AckUpTo(98))
	assert.Equal(t, int64(3), signals.Load())
	assert.NoError(t, d.Ack(99))
	assert.Equal(t, int64(4), signals.Load(), "the last record signals, armed or not")
	d.end(nil)
	d.rearm(0)
	assert.Equal(t, int64(4), signals.Load())
}

// The partition's part is played by one goroutine: collect on each signal and rearm after a while. All must arrive.
func TestDelivery_EverySettlementReachesThePartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, tracker, _ := deliveryOf(upTo(0, 300)...)
		signals := make(chan struct{}, 1000)
		d.told = func() { signals <- struct{}{} }
		for g := range 4 {
			go func() {
				for o := range int64(300) {
					if o%4 == int64(g) {
						time.Sleep(time.Duration(1+g) * 700 * time.Microsecond)
						if err := d.Ack(o); err != nil {
							t.Error(err)
						}
					}
				}
			}()
		}
		handled := 0
		for tracker.Unacked() > 0 {
			select {
			case <-signals:
			case <-time.After(time.Minute):
				t.Fatal("a signal was lost")
			}
			handled++
			seen := d.progress()
			d.collect(tracker)
			time.AfterFunc(signalSpacing, func() { d.rearm(seen) })
		}
		assert.Less(t, handled, 30)
		time.Sleep(time.Second)
	})
}

func TestDelivery_AttemptIsThatOfTheRecordWorkedOn(t *testing.T) {
	d, _, _ := deliveryOf(1, 2)
	d.attempt, d.perRecord = 3, true
	assert.Equal(t, 3, d.Attempt())
	d.current.Store(1)
	assert.Equal(t, 1, d.Attempt(), "only the first record was tried before")
	assert.Equal(t, int64(2), d.currentOffset())
	d.perRecord, d.byActor = false, true
	assert.Equal(t, 3, d.Attempt())
	assert.NoError(t, d.Ack(1))
	assert.Equal(t, int64(2), d.currentOffset(), "a user's actor works on the first without a verdict")
}
