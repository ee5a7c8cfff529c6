package actors

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// closeIn closes the tree with that much time and returns the result and how long it took.
func (w *treeWorld) closeIn(limit time.Duration) (*CloseError, time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	begun := time.Now()
	err := w.tree.Close(ctx)
	took := time.Since(begun)
	closing, _ := errors.AsType[*CloseError](err)
	return closing, took, err
}

// idle fails the test unless no worker goroutine is left now.
func (w *treeWorld) idle() {
	synctest.Wait()
	count := &w.tree.shared.workers
	count.mu.Lock()
	defer count.mu.Unlock()
	assert.Zero(w.t, count.running, "workers still run")
}

func TestClose_NamesTheHandlerThatIsStuck(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 8)
		release := make(chan struct{})
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 1 && r.Offset == 6 {
				<-release
			}
			return nil
		})
		w.start()
		w.sleep(time.Second)
		closing, took, err := w.closeIn(5 * time.Second)
		assert.LessOrEqual(t, took, 5*time.Second)
		if assert.NotNil(t, closing, "%v", err) {
			assert.Len(t, closing.Running, 1)
			assert.Equal(t, at(1), closing.Running[0].TopicPartition)
			assert.Equal(t, int64(6), closing.Running[0].Offset)
			assert.Greater(t, closing.Running[0].Age, 3*time.Second)
			assert.Empty(t, closing.Uncommitted)
		}
		assert.Equal(t, int64(6), w.c.committedAt(at(1)))
		assert.Equal(t, int64(8), w.c.committedAt(at(0)))
		assert.Len(t, eventsOf[event.HandlerAbandoned](w), 1)
		w.idle()
		close(release)
	})
}

func TestClose_WithAFrozenNetworkReturnsInTimeAndNamesWhatIsNotCommitted(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 8)
		w.c.onCommit = func(ctx context.Context, _ *CommitRound) (map[kafka.TopicPartition]error, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		w.start()
		w.sleep(time.Second)
		w.c.with(func() { w.c.frozen = true })
		closing, took, err := w.closeIn(5 * time.Second)
		assert.LessOrEqual(t, took, 5*time.Second)
		if assert.NotNil(t, closing, "%v", err) {
			assert.Len(t, closing.Uncommitted, 2)
			assert.Equal(t, at(0), closing.Uncommitted[0].TopicPartition)
			assert.Equal(t, int64(8), closing.Uncommitted[0].Pending)
			assert.Contains(t, err.Error(), "orders-1 not committed up to 8")
		}
		w.idle()
		again, took, _ := w.closeIn(5 * time.Second)
		assert.NotNil(t, again, "every caller gets the result")
		assert.Zero(t, took)
	})
}

func TestClose_AtOnceFromManyGoroutinesAndAgain(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 8)
		w.start()
		w.sleep(time.Second)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { assert.NoError(t, w.tree.Close(context.Background())) })
		}
		wg.Wait()
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.ErrorIs(t, w.tree.WaitJoined(context.Background()), ErrClosing)
		<-w.tree.Done()
		assert.Len(t, eventsOf[event.Closed](w), 1)
	})
}

func TestClose_BeforeTheFirstJoinAndWithoutACoordinator(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 8)
		w.start()
		_, took, err := w.closeIn(5 * time.Second)
		assert.NoError(t, err)
		assert.Less(t, took, time.Second)
	})
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 8)
		w.c.with(func() { w.c.coordinator = 0 })
		w.start()
		w.sleep(3 * time.Second)
		_, took, err := w.closeIn(5 * time.Second)
		assert.NoError(t, err)
		assert.Less(t, took, time.Second)
	})
}

func TestClose_WhenTheCoordinatorIsGoneIsBounded(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 8)
		w.start()
		w.sleep(time.Second)
		w.c.with(func() { w.c.coordinator = 0 })
		w.c.produce(at(0), 4)
		w.sleep(2 * time.Second)
		closing, took, err := w.closeIn(5 * time.Second)
		assert.LessOrEqual(t, took, 5*time.Second)
		if assert.NotNil(t, closing, "%v", err) {
			assert.Len(t, closing.Uncommitted, 1)
			assert.Equal(t, []int64{8, 12}, []int64{closing.Uncommitted[0].Committed, closing.Uncommitted[0].Pending})
		}
		w.idle()
	})
}

func TestClose_InsideAHandlerStartsTheClose(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 0)
		w.start()
		w.sleep(time.Second)
		var err error
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			err = w.tree.Close(ctx)
			return nil
		})
		w.c.produce(at(0), 1)
		w.sleep(5 * time.Second)
		assert.ErrorIs(t, err, ErrClosing)
		<-w.tree.Done()
		assert.NoError(t, w.tree.Err())
		assert.Equal(t, int64(1), w.c.committedAt(at(0)))
	})
}

func TestClose_WithAnActorStuckInItsReceiveReturnsAtTheDeadline(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 3)
		release := make(chan struct{})
		w.useActors(func(_ actor.Context, d *Deliver) {
			if d.TopicPartition() == at(1) {
				<-release
			}
			_ = d.AckAll()
		})
		w.start()
		w.sleep(time.Second)
		closing, took, err := w.closeIn(5 * time.Second)
		assert.LessOrEqual(t, took, 5*time.Second)
		if assert.NotNil(t, closing, "%v", err) {
			assert.Len(t, closing.Running, 1)
			assert.Equal(t, at(1), closing.Running[0].TopicPartition)
			assert.Equal(t, int64(0), closing.Running[0].Offset)
			assert.True(t, strings.Contains(strings.Join(closing.Actors, ","), "handler"), "%v", closing.Actors)
		}
		assert.Equal(t, int64(3), w.c.committedAt(at(0)))
		w.idle()
		close(release)
	})
}

// Case B18: a close that comes at any moment of joining, rebalancing and losing ends in time and leaves nothing behind.
func TestClose_AtAnyMomentEndsInTime(t *testing.T) {
	for i := range 60 {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 3, 30)
			slow := func(context.Context) error { time.Sleep(20 * time.Millisecond); return nil }
			for _, api := range []string{"Metadata", "FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "OffsetFetch", "OffsetCommit", "ListOffsets", "LeaveGroup"} {
				w.c.hook(api, slow)
			}
			w.setHandle(func(_ context.Context, r *kafka.Record) error {
				time.Sleep(10 * time.Millisecond)
				return nil
			})
			w.start()
			wait := time.Duration(i*5) * time.Millisecond
			if i >= 30 { // through a rebalance, which the first heartbeat after a second tells
				time.Sleep(700 * time.Millisecond)
				w.c.rival(i%2 == 0)
				if i%5 == 0 {
					w.c.expel()
				}
				wait = time.Duration(250+(i-30)*13) * time.Millisecond
			}
			time.Sleep(wait)
			_, took, err := w.closeIn(5 * time.Second)
			assert.NoError(t, err, "closed after step %d", i)
			assert.Less(t, took, 2*time.Second, "closed after step %d", i)
			for p := range int32(3) {
				done := w.offsets(at(p))
				if len(done) > 0 && i%5 != 0 {
					assert.Equal(t, done[len(done)-1]+1, w.c.committedAt(at(p)), "closed after step %d", i)
				}
			}
			w.c.mu.Lock()
			for member, joined := range w.c.members {
				assert.False(t, joined, "%s is left, closed after step %d", member, i)
			}
			w.c.mu.Unlock()
		})
	}
}

func TestClose_WithoutAnyTimeLeavesNothingBehind(t *testing.T) {
	for i := range 40 {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 3, 300)
			for _, api := range []string{"Metadata", "JoinGroup", "SyncGroup", "OffsetFetch", "OffsetCommit", "Fetch"} {
				w.c.hook(api, func(context.Context) error { time.Sleep(3 * time.Millisecond); return nil })
			}
			w.start()
			time.Sleep(time.Duration(i) * time.Millisecond)
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			begun := time.Now()
			err := w.tree.Close(ctx)
			assert.Zero(t, time.Since(begun))
			w.sleep(100 * time.Millisecond)
			w.tree.StartClose(time.Now())
			w.sleep(30 * time.Second)
			w.idle()
			if err != nil { // a tree that owns nothing yet may be closed before anybody looks at ctx
				assert.ErrorIs(t, err, context.Canceled)
			}
			assert.Empty(t, w.tree.shared.sys.alive())
		})
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 3, 300)
			w.start()
			time.Sleep(time.Duration(i) * time.Millisecond)
			w.tree.StartClose(time.Now())
			w.sleep(100 * time.Millisecond)
			w.idle()
			assert.Empty(t, w.tree.shared.sys.alive())
		})
	}
}

func TestClose_AHeartbeatActorThatDiesWhileItLeavesHoldsNobodyUp(t *testing.T) {
	for seed := range uint64(10) { // the jitter decides whether LeaveGroup is tried again before the actor is back
		inTree(t, func(w *treeWorld) {
			w.settings.Seed = seed
			w.c.topic("orders", 2, 10)
			var begun atomic.Bool
			w.c.hook("LeaveGroup", func(ctx context.Context) error {
				if begun.Swap(true) {
					return nil
				}
				<-ctx.Done()
				return context.Cause(ctx)
			})
			w.start()
			w.sleep(3 * time.Second)
			time.AfterFunc(500*time.Millisecond, func() { w.kill("heartbeat") })
			_, took, err := w.closeIn(30 * time.Second)
			assert.NoError(t, err)
			assert.Less(t, took, 2*time.Second)
			assert.Equal(t, 1, linesWith(w.c.lines(), "leave "))
		})
	}
}
