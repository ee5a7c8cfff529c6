package actors

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// Range gives the ghost ("ghost" sorts before "member-1") the lower half of the partitions.

func TestTree_WorkThatEndsInTheDrainIsCommittedAndNotRedelivered(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 8)
		w.settings.Registrations[0].MaxRecords = 1
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 5 {
				time.Sleep(4 * time.Second)
			}
			return nil
		})
		w.start()
		w.sleep(500 * time.Millisecond)
		w.c.rival(true)
		w.sleep(8 * time.Second)
		lines := w.c.lines()
		assert.Equal(t, upTo(0, 6), w.offsets(at(0)), "the ghost has it now")
		assert.Less(t, index(lines, "commit orders-0 6"), index(lines, "join member-1 generation 2"))
		assert.GreaterOrEqual(t, index(lines, "commit orders-0 6"), 0)
		assert.Equal(t, upTo(0, 8), w.offsets(at(1)), "nothing twice")
		assert.Empty(t, eventsOf[event.HandlerAbandoned](w))
		assert.Zero(t, w.tree.Stats().StaleAcks)
	})
}

func TestTree_WorkThatOutlivesTheDrainIsAbandonedAndItsReturnAwaited(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 8)
		release := make(chan struct{})
		var once sync.Once
		var cause error
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Offset == 5 {
				once.Do(func() {
					<-release
					cause = context.Cause(ctx)
				})
			}
			return nil
		})
		w.start()
		w.sleep(500 * time.Millisecond)
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(20 * time.Second)
		assert.Equal(t, "ASSIGNED", w.state())
		assert.Equal(t, int64(5), w.c.committedAt(at(0)))
		assert.Equal(t, upTo(0, 5), w.offsets(at(0)), "the new epoch waits")
		abandoned := eventsOf[event.HandlerAbandoned](w)
		assert.Len(t, abandoned, 1)
		assert.Equal(t, int64(5), abandoned[0].Offset)
		assert.Equal(t, kafka.AssignmentEpoch(1), abandoned[0].Epoch)
		assert.Empty(t, eventsOf[event.HandlerReturned](w))
		close(release)
		w.sleep(time.Second)
		assert.ErrorIs(t, cause, rebalance.ErrRevoked)
		assert.Equal(t, []int64{0, 1, 2, 3, 4, 5, 5, 6, 7}, w.offsets(at(0)))
		assert.Equal(t, int64(8), w.c.committedAt(at(0)))
		assert.Len(t, eventsOf[event.HandlerReturned](w), 1)
	})
}

func TestTree_AfterALossNothingOfTheOldOwnershipIsCommitted(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 8)
		var once sync.Once
		var cause error
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Offset == 3 {
				once.Do(func() {
					w.c.expel()
					time.Sleep(3 * time.Second)
					cause = context.Cause(ctx)
				})
			}
			return nil
		})
		w.start()
		w.sleep(10 * time.Second)
		assert.ErrorIs(t, cause, rebalance.ErrLost)
		lines := w.c.lines()
		expelled := index(lines, "expelled")
		rejoined := index(lines, "join member-2 generation 2")
		assert.Greater(t, rejoined, expelled)
		assert.False(t, slices.ContainsFunc(lines[expelled:rejoined], func(l string) bool { return strings.HasPrefix(l, "commit") }))
		assert.Len(t, eventsOf[event.PartitionsLost](w), 1)
		assert.Equal(t, upTo(0, 8), distinct(w.offsets(at(0))))
		assert.Equal(t, int64(8), w.c.committedAt(at(0)))
		first := slices.IndexFunc(lines[rejoined:], func(l string) bool { return strings.HasPrefix(l, "commit") })
		assert.Positive(t, first, "the new epoch commits again")
	})
}

func TestTree_ALateAcknowledgmentIsStaleCountedAndNeverCommitted(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 6)
		started, release, acked := make(chan *Delivery, 10), make(chan struct{}), make(chan error, 1)
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Partition == 0 && r.Offset == 2 {
				started <- DeliveryFrom(ctx)
				<-release
			}
			return nil
		})
		w.start()
		w.sleep(500 * time.Millisecond)
		d := <-started
		w.c.rival(true)
		w.sleep(15 * time.Second)
		go func() { acked <- d.AckAll() }()
		assert.ErrorIs(t, <-acked, ErrStale)
		assert.ErrorIs(t, d.Nack(3, errTest), ErrStale)
		close(release)
		w.sleep(5 * time.Second)
		assert.Equal(t, int64(2), w.c.committedAt(at(0)))
		assert.Equal(t, uint64(3), w.tree.Stats().StaleAcks, "these two, and the return of the function")
		assert.Equal(t, int64(6), w.c.committedAt(at(1)))
	})
}

func TestTree_RebalancesInARowLoseNothing(t *testing.T) {
	for seed := range 10 {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 4, 0)
			w.settings.Seed = uint64(seed)
			w.setHandle(func(_ context.Context, r *kafka.Record) error {
				time.Sleep(time.Duration(r.Offset%7) * time.Millisecond)
				return nil
			})
			w.start()
			for i := range 12 {
				for p := range int32(4) {
					w.c.produce(at(p), 9)
				}
				w.sleep(time.Duration(50+(seed*531+i*977)%2500) * time.Millisecond)
				if (seed+i)%5 == 0 {
					w.c.expel()
				} else {
					w.c.rival(i%2 == 0)
				}
			}
			w.c.rival(false)
			w.sleep(30 * time.Second)
			assert.Equal(t, "ASSIGNED", w.state())
			for p := range int32(4) {
				assert.Equal(t, upTo(0, 108), distinct(w.offsets(at(p))), "seed %d partition %d", seed, p)
				assert.Equal(t, int64(108), w.c.committedAt(at(p)))
			}
		})
	}
}

func TestTree_ACoordinatorThatMovesIsFollowed(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(3)
		w.c.topic("orders", 3, 10)
		w.start()
		w.sleep(500 * time.Millisecond)
		for _, next := range []int32{2, 0, 3} {
			w.c.with(func() { w.c.coordinator = next })
			w.c.produce(at(0), 5)
			w.sleep(3 * time.Second)
		}
		w.sleep(3 * time.Second)
		assert.Equal(t, int64(25), w.c.committedAt(at(0)))
		assert.Equal(t, uint64(1), w.tree.Stats().Rebalances, "the generation goes on")
		assert.NoError(t, w.tree.Healthy())
	})
}

func TestTree_ACommitWhoseAnswerIsLostIsRepeated(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		fails := 3
		w.c.onCommit = func(context.Context, *CommitRound) (map[kafka.TopicPartition]error, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if fails == 0 {
				return nil, nil
			}
			fails--
			return nil, &kafka.RequestError{API: "OffsetCommit", Unanswered: true, Err: errors.New("connection reset")}
		}
		w.start()
		w.sleep(10 * time.Second)
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
		assert.Len(t, eventsOf[event.CommitFailed](w), 3)
	})
}

func TestTree_ALeaderThatMovesIsFollowed(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(3)
		w.c.topic("orders", 3, 20)
		w.start()
		w.sleep(300 * time.Millisecond)
		for i := range 8 {
			w.c.with(func() {
				for p := range int32(3) {
					l := w.c.log(at(p))
					l.leader, l.epoch = (l.leader+int32(i)%2)%3+1, l.epoch+1
					l.produce(20)
				}
			})
			w.sleep(time.Duration(100*i) * time.Millisecond)
		}
		w.sleep(10 * time.Second)
		for p := range int32(3) {
			assert.Equal(t, upTo(0, 180), w.offsets(at(p)), "each once, in order")
		}
	})
}

func TestTree_APartitionWithoutALeaderWaitsAndTheOthersGoOn(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(2)
		w.c.topic("orders", 2, 20)
		w.c.with(func() { w.c.log(at(1)).leader = -1 })
		w.start()
		w.sleep(3 * time.Second)
		assert.Equal(t, upTo(0, 20), w.offsets(at(0)))
		assert.Empty(t, w.offsets(at(1)))
		w.c.with(func() { w.c.log(at(1)).leader = 1 })
		w.sleep(3 * time.Second)
		assert.Equal(t, upTo(0, 20), w.offsets(at(1)))
	})
}

func TestTree_AHandlerThatRunsOnIsToldThoughThePartitionsActorIsStoppedInTheDrain(t *testing.T) {
	for _, order := range allOrders {
		t.Run(order.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 8)
				w.settings.Registrations[0].Order, w.settings.Registrations[0].Workers = order, 1
				w.settings.Registrations[0].KeyFunc = func(*kafka.Record) []byte { return nil }
				release, _ := w.stuckAt(at(0), 5)
				w.start()
				w.sleep(time.Second)
				closed := make(chan error, 1)
				go func() { closed <- w.tree.Close(context.Background()) }()
				w.sleep(time.Second)
				w.kill("partition-orders-0-1")
				closing, _ := errors.AsType[*CloseError](<-closed)
				if assert.NotNil(t, closing) {
					assert.Len(t, closing.Running, 1)
				}
				abandoned := eventsOf[event.HandlerAbandoned](w)
				if assert.Len(t, abandoned, 1) {
					assert.Equal(t, int64(5), abandoned[0].Offset)
				}
				assert.Empty(t, eventsOf[event.HandlerReturned](w))
				close(release)
				w.sleep(time.Second)
				assert.Len(t, eventsOf[event.HandlerReturned](w), 1)
			})
		})
	}
}
