package actors

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestPause_IsExactAndLossless(t *testing.T) {
	for _, order := range []Order{OrderPartition, OrderKey, OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 2, 300)
				reg := &w.settings.Registrations[0]
				reg.Order, reg.Workers = order, 3
				var mu sync.Mutex
				paused := false
				calls := map[int64]int{}
				broken := 0
				reg.Record = func(_ context.Context, r *kafka.Record) error {
					mu.Lock()
					if paused {
						broken++
					}
					calls[int64(r.Partition)*1000+r.Offset]++
					mu.Unlock()
					time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					if paused {
						broken++
					}
					return nil
				}
				w.start()
				for range 40 {
					w.sleep(time.Duration(5+rand.IntN(10)) * time.Millisecond)
					assert.NoError(t, w.tree.Pause(context.Background(), nil))
					mu.Lock()
					paused = true
					mu.Unlock()
					w.sleep(50 * time.Millisecond)
					mu.Lock()
					paused = false
					mu.Unlock()
					assert.NoError(t, w.tree.Resume(context.Background(), nil))
				}
				w.sleep(5 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				assert.Zero(t, broken, "nothing runs while paused")
				assert.Len(t, calls, 600)
				for id, n := range calls {
					assert.Equal(t, 1, n, "record %d", id)
				}
				assert.Equal(t, int64(300), w.c.committedAt(at(0)))
			})
		})
	}
}

func TestPause_HoldsForPartitionsThatComeLater(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.tree = nil
		joining := make(chan struct{})
		w.c.hook("JoinGroup", func(context.Context) error { <-joining; return nil })
		w.start()
		assert.NoError(t, w.tree.Pause(context.Background(), []kafka.TopicPartition{kafka.WholeTopic("orders")}))
		var unassigned *UnassignedError
		assert.ErrorAs(t, w.tree.Pause(context.Background(), []kafka.TopicPartition{at(1)}), &unassigned)
		assert.ErrorAs(t, w.tree.Resume(context.Background(), []kafka.TopicPartition{at(0)}), &unassigned, "it is resumed all the same")
		close(joining)
		w.sleep(2 * time.Second)
		assert.Len(t, w.offsets(at(0)), 10)
		assert.Empty(t, w.offsets(at(1)))
		assert.Equal(t, []string{"user"}, w.tree.Stats().Partitions[1].PauseReasons)
		assert.NoError(t, w.tree.Healthy(), "a pause is wanted")
		assert.NoError(t, w.tree.Resume(context.Background(), []kafka.TopicPartition{at(1)}))
		w.sleep(time.Second)
		assert.Len(t, w.offsets(at(1)), 10)
		assert.ErrorIs(t, w.tree.Pause(context.Background(), []kafka.TopicPartition{{Topic: "other"}}), ErrNotSubscribed)
	})
}
