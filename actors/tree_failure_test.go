package actors

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

func TestTree_ARecordThatFailsIsDeliveredAgainAndNothingAfterItBefore(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		var attempts []int
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Partition == 0 && r.Offset == 4 {
				attempts = append(attempts, DeliveryFrom(ctx).Attempt())
				switch len(attempts) {
				case 1:
					return errHandler
				case 2:
					panic("handler bug")
				}
			}
			return nil
		})
		w.start()
		w.sleep(5 * time.Second)
		assert.Equal(t, []int{1, 2, 3}, attempts)
		assert.Equal(t, upTo(0, 10), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 10), w.offsets(at(1)))
		failed := eventsOf[event.HandlerFailed](w)
		assert.Len(t, failed, 2)
		assert.ErrorIs(t, failed[0].Err, errHandler)
		assert.Equal(t, []any{int64(4), 1, false}, []any{failed[0].Offset, failed[0].Attempt, failed[0].Panic})
		assert.Equal(t, []any{int64(4), 2, true}, []any{failed[1].Offset, failed[1].Attempt, failed[1].Panic})
		assert.Len(t, eventsOf[event.HandlerRestarted](w), 2)
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
	})
}

func TestTree_AHandlerThatNeverSucceedsIsPausedProbedAndResumed(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		var mu sync.Mutex
		fails, tries := true, []time.Time(nil)
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if r.Partition == 0 && r.Offset == 2 {
				tries = append(tries, time.Now())
				if fails {
					return errHandler
				}
			}
			return nil
		})
		w.start()
		w.sleep(2 * time.Minute)
		paused := eventsOf[event.PartitionPaused](w)
		assert.NotEmpty(t, paused)
		assert.Equal(t, int64(2), paused[0].Offset)
		assert.ErrorIs(t, paused[0].Err, errHandler)
		for i := 1; i < len(paused); i++ {
			assert.Greater(t, paused[i].ProbeIn, paused[i-1].ProbeIn, "probes come at growing intervals")
		}
		assert.ErrorIs(t, w.tree.Healthy(), ErrNotHealthy)
		assert.ErrorContains(t, w.tree.Healthy(), "orders-0")
		assert.Equal(t, "paused", w.tree.Stats().Partitions[0].Condition)
		assert.Less(t, len(tries), 12)
		assert.Equal(t, upTo(0, 10), w.offsets(at(1)))
		mu.Lock()
		fails = false
		mu.Unlock()
		w.sleep(5 * time.Minute)
		assert.Len(t, eventsOf[event.PartitionResumed](w), 1)
		assert.Equal(t, upTo(0, 10), w.offsets(at(0)))
		assert.NoError(t, w.tree.Healthy())
	})
}

func TestTree_StopAllEndsTheConsumerInOrderWithTheHandlersError(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.settings.Registrations[0].Restart.OnSpent = supervisor.StopAll
		w.settings.Registrations[0].Restart.MaxRestarts = 2
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 0 && r.Offset == 7 {
				return errHandler
			}
			return nil
		})
		w.start()
		w.sleep(30 * time.Second)
		select {
		case <-w.tree.Done():
		default:
			t.Error("the tree still runs")
		}
		assert.ErrorIs(t, w.tree.Err(), errHandler)
		assert.Equal(t, int64(7), w.c.committedAt(at(0)))
		assert.Equal(t, int64(10), w.c.committedAt(at(1)))
		lines := w.c.lines()
		assert.Equal(t, "leave member-1", lines[len(lines)-1])
		assert.Len(t, eventsOf[event.HandlerFailed](w), 3)
		assert.ErrorIs(t, w.tree.Close(context.Background()), errHandler)
	})
}

func TestTree_ABatchThatFailsComesAgainWhole(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 12)
		var batches [][]int64
		w.settings.Registrations[0].Record = nil
		w.settings.Registrations[0].Batch = func(_ context.Context, records []kafka.Record) error {
			var offsets []int64
			for i := range records {
				offsets = append(offsets, records[i].Offset)
			}
			batches = append(batches, offsets)
			if len(batches) == 2 {
				return errHandler
			}
			return nil
		}
		w.start()
		w.sleep(3 * time.Second)
		assert.Equal(t, [][]int64{upTo(0, 5), upTo(5, 10), upTo(5, 10), upTo(10, 12)}, batches)
		assert.Equal(t, int64(12), w.c.committedAt(at(0)))
	})
}

func TestTree_AHandlerThatEndsItsGoroutineFails(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		var once sync.Once
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 3 {
				exit := false
				once.Do(func() { exit = true })
				if exit {
					goexit()
				}
			}
			return nil
		})
		w.start()
		w.sleep(3 * time.Second)
		assert.Equal(t, upTo(0, 5), w.offsets(at(0)))
		failed := eventsOf[event.HandlerFailed](w)
		assert.Len(t, failed, 1)
		assert.Equal(t, int64(3), failed[0].Offset)
	})
}
