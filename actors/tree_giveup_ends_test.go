package actors

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func TestGiveUp_AHandlerThatNeverReturnsDoesNotHoldUpAClose(t *testing.T) {
	for name, wait := range map[string]time.Duration{
		"before": 3 * time.Second, "while it drains": 3600 * time.Millisecond, "while it rests": time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			inLimitedTree(t, func(w *treeWorld) {
				h, draining := newHanging("0@5"), newHanging("1@9")
				w.setHandle(func(ctx context.Context, r *kafka.Record) error {
					draining.visit(ctx, r.TopicPartition(), r.Offset)
					return h.handle(ctx, r)
				})
				w.start()
				w.sleep(wait)
				closing, took, err := w.closeIn(5 * time.Second)
				assert.LessOrEqual(t, took, 5*time.Second)
				if assert.NotNil(t, closing, "%v", err) {
					assert.Len(t, closing.Running, 2)
				}
				assert.Equal(t, int64(5), w.c.committedAt(at(0)))
				assert.Equal(t, int64(9), w.c.committedAt(at(1)))
				assert.Equal(t, 1, linesWith(w.c.lines(), "leave "))
				w.idle()
				close(h.release)
				close(draining.release)
				w.sleep(time.Minute)
				assert.Equal(t, 1, linesWith(w.c.lines(), "join "), "a closed member does not come back")
			})
		})
	}
}

func TestGiveUp_AConsumerThatFailsMeanwhileDoesNotComeBack(t *testing.T) {
	for name, wait := range map[string]time.Duration{"while it drains": 4 * time.Second, "while it rests": time.Minute} {
		t.Run(name, func(t *testing.T) {
			inLimitedTree(t, func(w *treeWorld) {
				h, draining := newHanging("0@5"), newHanging("1@10")
				w.setHandle(func(ctx context.Context, r *kafka.Record) error {
					draining.visit(ctx, r.TopicPartition(), r.Offset)
					return h.handle(ctx, r)
				})
				w.start()
				w.sleep(2 * time.Second)
				w.c.produce(at(1), 1)
				w.sleep(wait - 2*time.Second)
				for _, a := range w.tree.shared.sys.alive() {
					if a.Role == "group" {
						w.tree.shared.sys.root.Send(w.tree.shared.sys.actorSystem.NewLocalPID(a.Name), &consumerFailed{err: errTest})
					}
				}
				w.sleep(w.settings.CloseTimeout)
				<-w.tree.Done()
				assert.ErrorIs(t, w.tree.Err(), errTest)
				close(h.release)
				close(draining.release)
				w.sleep(time.Minute)
				assert.Equal(t, 1, linesWith(w.c.lines(), "leave "))
				assert.Equal(t, 1, linesWith(w.c.lines(), "join "))
				assert.Equal(t, int64(5), w.c.committedAt(at(0)))
			})
		})
	}
}

func TestGiveUp_ALossMeanwhileIsNoStall(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		h, draining := newHanging("0@5"), newHanging("1@9")
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			draining.visit(ctx, r.TopicPartition(), r.Offset)
			return h.handle(ctx, r)
		})
		w.settings.MaxProcessingTime = 6 * time.Second
		w.start()
		w.sleep(500 * time.Millisecond)
		close(draining.release) // partition 1 has nothing more to do
		w.sleep(5 * time.Second)
		draining = newHanging("1@10")
		w.c.produce(at(1), 1)
		w.sleep(1500 * time.Millisecond)
		assert.Equal(t, "LEAVING", w.state())
		w.c.expel()
		w.sleep(3 * time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		assert.Len(t, eventsOf[event.PartitionsLost](w), 1)
		assert.Len(t, w.tree.Stats().GaveUp, 2)
		close(h.release)
		close(draining.release)
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(0, 11), distinct(w.offsets(at(1))))
		assert.Equal(t, int64(11), w.c.committedAt(at(1)))
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
		assert.NoError(t, w.tree.Healthy())
	})
}

func TestGiveUp_ACoordinatorThatMovesMeanwhileHearsOfIt(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(3)
		w.c.topic("orders", 2, 10)
		w.settings.MaxProcessingTime = 3 * time.Second
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.c.hook("LeaveGroup", func(context.Context) error {
			if w.c.count("LeaveGroup") < 3 {
				w.c.with(func() { w.c.coordinator = 2 })
				return coded("LeaveGroup", kafka.NotCoordinator)
			}
			return nil
		})
		w.start()
		w.sleep(8 * time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		assert.Equal(t, 1, linesWith(w.c.lines(), "leave "), "others need not wait for the session's end")
		close(h.release)
		w.sleep(5 * time.Second)
		w.allDone()
	})
}

func TestGiveUp_WithoutACoordinatorItIsBoundedAndTheIDIsKept(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(2500 * time.Millisecond)
		w.c.with(func() { w.c.coordinator = 0 })
		w.sleep(30 * time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		w.c.with(func() { w.c.coordinator = 1 })
		close(h.release)
		w.sleep(5 * time.Second)
		w.allDone()
		assert.Equal(t, 2, linesWith(w.c.lines(), "join member-1 "), "the group need not wait for the old one: %v", w.c.lines())
	})
}

func TestGiveUp_AGroupActorThatDiesMeanwhileStaysOut(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		w.settings.MetadataMaxAge = 10 * time.Second
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(7 * time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		w.c.panicOnce("Metadata")
		w.sleep(time.Minute)
		assert.Equal(t, 1, w.restarted("group"))
		assert.Equal(t, 1, linesWith(w.c.lines(), "join "))
		assert.ErrorIs(t, w.tree.Healthy(), ErrOverdue)
		close(h.release)
		w.sleep(3 * time.Second)
		w.allDone()
	})
}

// A handler of an earlier ownership keeps the partition's gate: the member that owns the partition again can do nothing with
// it, and gives it up as well.
func TestGiveUp_AHandlerThatOutlivedItsOwnershipCountsWhenItHoldsUpTheNext(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		w.settings.DrainTimeout = time.Second
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(500 * time.Millisecond)
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(3 * time.Second)
		assert.Empty(t, eventsOf[event.ProcessingOverdue](w), "the new ownership waits, not for long yet")
		assert.Equal(t, "ASSIGNED", w.state())
		w.sleep(4 * time.Second)
		overdue := eventsOf[event.ProcessingOverdue](w)
		if assert.Len(t, overdue, 1) {
			assert.Equal(t, int64(5), overdue[0].Offset)
			assert.Equal(t, kafka.AssignmentEpoch(1), overdue[0].Epoch)
		}
		assert.Equal(t, "UNJOINED", w.state())
		close(h.release)
		w.sleep(5 * time.Second)
		w.allDone()
	})
}

func TestGiveUp_WithoutTheLimitNothingIsGivenUp(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(time.Hour)
		assert.Equal(t, uint64(1), w.tree.Stats().Rebalances)
		assert.NoError(t, w.tree.Healthy())
		assert.Empty(t, w.tree.Stats().GaveUp)
		close(h.release)
		w.sleep(time.Second)
		w.allDone()
	})
}

// Handlers that hang at any time, rebalances and losses at any time: nothing is lost, nobody is inside twice, and the member
// is back in the end.
func TestGiveUp_AtAnyMomentNothingIsLost(t *testing.T) {
	for seed := range 16 {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 4, 0)
			w.settings.Seed, w.settings.MaxProcessingTime, w.settings.DrainTimeout = uint64(seed), 2*time.Second, time.Duration(1+seed%4)*time.Second
			if seed%2 == 0 {
				w.settings.Assignors = []rebalance.Assignor{rebalance.CooperativeSticky()}
			}
			var calls atomic.Int64
			w.setHandle(func(context.Context, *kafka.Record) error {
				if n := calls.Add(1); (n*7+int64(seed))%61 == 0 {
					time.Sleep(time.Duration(1000+(n*977)%9000) * time.Millisecond)
				}
				return nil
			})
			w.start()
			for i := range 12 {
				for p := range int32(4) {
					w.c.produce(at(p), 9)
				}
				w.sleep(time.Duration(50+(seed*531+i*977)%2500) * time.Millisecond)
				switch {
				case (seed+i)%7 == 0:
					w.c.expel()
				case (seed+i)%3 == 0:
					w.c.rival(i%2 == 0)
				}
			}
			w.c.rival(false)
			w.sleep(4 * time.Minute)
			assert.Equal(t, "ASSIGNED", w.state(), "seed %d", seed)
			assert.NotEmpty(t, eventsOf[event.ProcessingOverdue](w), "seed %d", seed)
			for p := range int32(4) {
				assert.Equal(t, upTo(0, 108), distinct(w.offsets(at(p))), "seed %d partition %d", seed, p)
				assert.Equal(t, int64(108), w.c.committedAt(at(p)), "seed %d partition %d", seed, p)
			}
			assert.False(t, slices.ContainsFunc(eventsOf[event.Refused](w), func(e event.Refused) bool {
				return strings.Contains(e.Err.Error(), "illegal") || strings.Contains(e.Err.Error(), "unexpected")
			}), "seed %d", seed)
		})
	}
}
