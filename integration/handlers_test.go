package integration

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

// These stories are of handlers that do what no handler should: each was found by somebody who tried to break a member.

var everyOrder = map[string]api.HandlerOption{"partition": api.PartitionOrder(), "key": api.KeyOrder(4), "none": api.Unordered(4)}

func inEveryOrder(t *testing.T, tell func(t *testing.T, b *embeddedBroker, order api.HandlerOption)) {
	for name, order := range everyOrder {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) { tell(t, b, order) })
		})
	}
}

func TestABatchThatAFailingHandlerSortedAndFilteredComesAgainAsItWas(t *testing.T) {
	inEveryOrder(t, func(t *testing.T, b *embeddedBroker, order api.HandlerOption) {
		b.CreateTopic(t, "orders", 1)
		fill(t, b, "orders", 1, 6)
		var mu sync.Mutex
		failed, stored := false, map[int64]bool{}
		m := spawn(t, config(b, "billing"), api.WithDialer(b.Dial), api.HandleBatch("orders", func(_ context.Context, rs []kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			slices.SortFunc(rs, func(a, b kafka.Record) int { return int(b.Offset - a.Offset) })
			if !failed {
				failed = true
				_ = slices.DeleteFunc(rs, func(r kafka.Record) bool { return r.Offset%2 == 1 })
				return errors.New("deadlock")
			}
			for i := range rs {
				stored[rs[i].Offset] = true
			}
			return nil
		}, order, api.Restart(quick())))
		pause(10 * time.Second)
		mu.Lock()
		assert.Len(t, stored, 6, "every record was given to a call that succeeded")
		mu.Unlock()
		assert.Equal(t, int64(6), b.Committed(t, "billing")[at("orders", 0)])
		m.mustClose(t)
	})
}

func TestWhatAHandlerWritesIntoItsRecordDecidesNothing(t *testing.T) {
	inEveryOrder(t, func(t *testing.T, b *embeddedBroker, order api.HandlerOption) {
		b.CreateTopic(t, "orders", 1)
		fill(t, b, "orders", 1, 20)
		var mu sync.Mutex
		failed, done := false, map[int64]bool{}
		m := spawn(t, config(b, "billing"), api.WithDialer(b.Dial), api.Handle("orders", func(ctx context.Context, r *kafka.Record) error {
			offset := r.Offset
			*r = kafka.Record{Offset: 7}
			if offset == 15 {
				<-ctx.Done()
				return ctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			if offset == 3 && !failed {
				failed = true
				return errors.New("no")
			}
			done[offset] = true
			return nil
		}, order, api.Restart(quick())))
		pause(10 * time.Second)
		// Those before 15 are committed though, in key order, one claim has them all.
		assert.Equal(t, int64(15), b.Committed(t, "billing")[at("orders", 0)])
		mu.Lock()
		for offset := range int64(15) {
			assert.True(t, done[offset], offset)
		}
		mu.Unlock()
		m.mustClose(t)
	})
}

func TestTheHandleOfAnAttemptThatEndedItsGoroutineIsOfNoUse(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 1)
		fill(t, b, "orders", 1, 1)
		given := make(chan *actors.RecordDelivery, 9)
		var calls atomic.Int32
		m := spawn(t, config(b, "billing"), api.WithDialer(b.Dial), api.HandleAsync("orders", func(_ context.Context, d *actors.RecordDelivery) {
			if given <- d; calls.Add(1) == 1 {
				runtime.Goexit()
			}
		}, api.KeyOrder(2), api.Restart(quick())))
		pause(5 * time.Second)
		require.Len(t, given, 2)
		handles := []*actors.RecordDelivery{<-given, <-given}
		_ = handles[0].Ack()
		pause(5 * time.Second)
		assert.Zero(t, b.Committed(t, "billing")[at("orders", 0)], "the second attempt is under way")
		assert.NoError(t, handles[1].Ack())
		pause(5 * time.Second)
		assert.Equal(t, int64(1), b.Committed(t, "billing")[at("orders", 0)])
		m.mustClose(t)
	})
}

func TestARefusalThenTheEndOfTheGoroutineIsOneFailure(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 1)
		fill(t, b, "orders", 1, 1)
		var calls atomic.Int32
		spawn(t, config(b, "billing"), api.WithDialer(b.Dial), api.HandleAsync("orders", func(_ context.Context, d *actors.RecordDelivery) {
			if calls.Add(1) == 1 {
				_ = d.Nack(errors.New("later"))
				pause(5 * time.Second)
				runtime.Goexit()
			}
		}, api.KeyOrder(2), api.Restart(quick())))
		pause(20 * time.Second)
		assert.EqualValues(t, 2, calls.Load(), "the second attempt is not settled")
	})
}

func TestASlotThatComesFreeIsUsedThoughTheOneBeforeWokeThePool(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "a", 2)
		b.CreateTopic(t, "b", 2)
		fill(t, b, "a", 2, 1)
		c := config(b, "billing")
		c.Concurrency = 2
		var began atomic.Int32
		hold, release := make(chan struct{}), make(chan struct{})
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("a", func(context.Context, *kafka.Record) error {
			<-release
			return nil
		}), api.Handle("b", func(context.Context, *kafka.Record) error {
			began.Add(1)
			<-hold
			return nil
		}, api.Unordered(2)))
		pause(3 * time.Second)
		fill(t, b, "b", 2, 1)
		for range 2 {
			pause(3 * time.Second)
			release <- struct{}{}
		}
		pause(3 * time.Second)
		assert.EqualValues(t, 2, began.Load())
		close(hold)
		m.mustClose(t)
	})
}

func TestAKeyFunctionThatEndsItsGoroutineStopsItsPartitionAloudAndNoOther(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		fill(t, b, "orders", 2, 50)
		l := newLedger()
		m := spawn(t, config(b, "billing"), api.WithDialer(b.Dial), api.Handle("orders", l.note("a"), api.KeyOrder(4), api.OrderBy(func(r *kafka.Record) []byte {
			if r.Offset == 10 && r.Partition == 0 {
				runtime.Goexit()
			}
			return []byte("k")
		})))
		pause(time.Minute)
		assert.Empty(t, l.offsets(at("orders", 0)))
		assert.Len(t, l.offsets(at("orders", 1)), 50)
		assert.Error(t, m.Healthy())
		m.mustClose(t)
	})
}

func TestADeliveryThatWasPausedWhileItWaitedForASlotComesAfterResume(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "a", 1)
		b.CreateTopic(t, "b", 1)
		fill(t, b, "a", 1, 1)
		c := config(b, "billing")
		c.Concurrency = 1
		hold := make(chan struct{})
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("a", func(context.Context, *kafka.Record) error {
			<-hold
			return nil
		}), api.HandleAsync("b", func(_ context.Context, d *actors.RecordDelivery) { _ = d.Ack() }))
		pause(2 * time.Second)
		fill(t, b, "b", 1, 1)
		pause(2 * time.Second)
		require.NoError(t, m.Pause(context.Background(), at("b", 0)))
		require.NoError(t, m.Resume(context.Background()))
		close(hold)
		pause(5 * time.Second)
		assert.Equal(t, int64(1), b.Committed(t, "billing")[at("b", 0)])
		m.mustClose(t)
	})
}

func TestABatchDoesNotWaitToBeFilledWhenTheWindowLetsNothingMoreIn(t *testing.T) {
	inEveryOrder(t, func(t *testing.T, b *embeddedBroker, order api.HandlerOption) {
		b.CreateTopic(t, "orders", 1)
		fill(t, b, "orders", 1, 300)
		c := config(b, "billing")
		c.MaxInTransit, c.ResumeBelow = 15, 1
		l := newLedger()
		m := spawn(t, c, api.WithDialer(b.Dial), api.HandleBatch("orders", func(ctx context.Context, rs []kafka.Record) error {
			for i := range rs {
				l.close(l.open(ctx, "a", &rs[i]), nil)
			}
			return nil
		}, order, api.MaxRecords(10), api.MaxWait(3*time.Second)))
		m.allHandledIn(t, 10*time.Second, l, 300)
		m.mustClose(t)
	})
}

func TestAPauseThatMeetsAFailureRestartsNoActor(t *testing.T) {
	const attempts = 500
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 1)
		fill(t, b, "orders", 1, 1)
		var m *member
		var pausers sync.WaitGroup
		ready, calls := make(chan struct{}), 0
		policy := supervisor.Policy{MaxRestarts: 2 * attempts, Backoff: supervisor.Backoff{Initial: time.Millisecond, Max: time.Millisecond}}
		m = spawn(t, config(b, "billing"), api.WithDialer(b.Dial), api.Handle("orders", func(context.Context, *kafka.Record) error {
			<-ready
			if calls++; calls == attempts {
				return nil
			}
			for range 4 {
				pausers.Go(func() {
					for range 3 {
						_ = m.Pause(context.Background())
						runtime.Gosched()
						_ = m.Resume(context.Background())
					}
				})
			}
			return errors.New("no")
		}, api.Restart(policy)))
		close(ready)
		pause(time.Minute)
		pausers.Wait()
		require.NoError(t, m.Resume(context.Background()))
		pause(time.Second)
		assert.Empty(t, told[event.ActorRestarted](m))
		assert.Equal(t, int64(1), b.Committed(t, "billing")[at("orders", 0)])
		m.mustClose(t)
	})
}

func TestAHandlerThatFailsWhileItsPartitionIsDrainedIsTold(t *testing.T) {
	inEveryOrder(t, func(t *testing.T, b *embeddedBroker, order api.HandlerOption) {
		b.CreateTopic(t, "orders", 1)
		fill(t, b, "orders", 1, 1)
		fails := make(chan error)
		m := spawn(t, config(b, "billing"), api.WithDialer(b.Dial), api.Handle("orders", func(context.Context, *kafka.Record) error {
			return <-fails
		}, order))
		pause(3 * time.Second)
		closed := make(chan error)
		go func() { closed <- m.Close(context.Background()) }()
		pause(time.Second)
		fails <- errors.New("disk full")
		assert.NoError(t, <-closed)
		failed := told[event.HandlerFailed](m)
		require.Len(t, failed, 1)
		assert.ErrorContains(t, failed[0].Err, "disk full")
		assert.Zero(t, b.Committed(t, "billing")[at("orders", 0)])
	})
}

func TestAPartitionThatIsLostWhileItsRevocationWaitsForACallbackHasOneEnd(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		var revoked, lost atomic.Int32
		c := config(b, "billing")
		c.CloseTimeout = time.Minute
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", newLedger().note("a")), api.WithCallbacks(api.Callbacks{
			OnRevoking: func(ctx context.Context, _ *api.Token, _ []kafka.TopicPartition) error { <-ctx.Done(); return nil },
			OnRevoked: func(_ context.Context, _ *api.Token, tps []kafka.TopicPartition) error {
				revoked.Add(int32(len(tps)))
				return nil
			},
			OnLost: func(_ context.Context, _ *api.Token, tps []kafka.TopicPartition) error {
				lost.Add(int32(len(tps)))
				return nil
			},
		}))
		m.joined(t)
		pause(2 * time.Second)
		b.Freeze()
		_ = m.Close(context.Background()) // it can tell nobody that it leaves
		b.Thaw()
		assert.Zero(t, revoked.Load())
		assert.EqualValues(t, 2, lost.Load())
	})
}
