package actors

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func TestSeek_BadInputAndWrongStatesAreTypedErrors(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		w.start()
		w.sleep(time.Second)
		seek := func(to rebalance.StartPosition, partitions ...kafka.TopicPartition) error {
			return w.tree.Seek(context.Background(), to, partitions)
		}
		for _, to := range []rebalance.StartPosition{
			rebalance.StartAtOffset(-1), rebalance.StartBy(rebalance.ResetNone), rebalance.StartBy(rebalance.ResetByDuration(-time.Second)),
		} {
			wrong, ok := errors.AsType[*rebalance.StartPositionError](seek(to))
			assert.True(t, ok, to)
			assert.NotEmpty(t, wrong.Want)
		}
		unassigned, ok := errors.AsType[*UnassignedError](seek(rebalance.StartAtOffset(3), at(0), at(7)))
		assert.True(t, ok)
		assert.Equal(t, []kafka.TopicPartition{at(7)}, unassigned.Partitions)
		assert.ErrorIs(t, seek(rebalance.StartAtOffset(3), kafka.WholeTopic("others")), ErrNotSubscribed)
		assert.Len(t, w.resets(), 1, "nothing was sought")
		assert.NoError(t, seek(rebalance.StartAtOffset(3), kafka.WholeTopic("orders")))
		w.sleep(time.Second)
		assert.Equal(t, []string{"-1>0 no_commit", "20>3 seek"}, w.resets())

		w.setHandle(func(context.Context, *kafka.Record) error { time.Sleep(5 * time.Second); return nil })
		w.c.produce(at(0), 1)
		w.sleep(time.Second)
		w.tree.StartClose(time.Now().Add(20 * time.Second))
		w.sleep(time.Second)
		state, ok := errors.AsType[*StateError](seek(rebalance.StartAtOffset(3), at(0)))
		assert.True(t, ok)
		assert.Equal(t, "REVOKING", state.State)
		w.sleep(time.Minute)
		assert.ErrorIs(t, seek(rebalance.StartAtOffset(3), at(0)), ErrClosing)
	})
}

func TestSeek_APositionOutsideOfTheLogFollowsTheResetPolicy(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		w.start()
		w.sleep(time.Second)
		w.seek(rebalance.StartAtOffset(1000))
		w.sleep(5 * time.Second)
		assert.Equal(t, []string{"-1>0 no_commit", "20>1000 seek", "1000>0 beyond_end"}, w.resets())
		assert.Equal(t, append(upTo(0, 20), upTo(0, 20)...), w.offsets(at(0)))
		assert.Equal(t, int64(20), w.c.committedAt(at(0)))
	})
}

func TestSeek_MendsAPartitionThatHasNoPosition(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		w.settings.Registrations[0].Reset = rebalance.ResetNone
		w.start()
		w.sleep(time.Second)
		assert.Len(t, eventsOf[event.PartitionFailed](w), 1)
		assert.Error(t, w.tree.Healthy())
		w.seek(rebalance.StartAtOffset(5), at(0))
		w.sleep(time.Second)
		assert.NoError(t, w.tree.Healthy())
		assert.Equal(t, upTo(5, 20), w.offsets(at(0)))
		w.seek(rebalance.StartAtOffset(50), at(0))
		w.sleep(time.Second)
		assert.Len(t, eventsOf[event.PartitionFailed](w), 2)
		w.seek(rebalance.StartBy(rebalance.ResetLatest), at(0))
		w.c.produce(at(0), 1)
		w.sleep(time.Second)
		assert.NoError(t, w.tree.Healthy())
		assert.Equal(t, int64(21), w.c.committedAt(at(0)))
	})
}

func TestSeek_DecidesTheStartOfAPartitionThatHasNotStarted(t *testing.T) {
	block := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, to := range []rebalance.StartPosition{rebalance.StartAtOffset(12), rebalance.StartBy(rebalance.ResetLatest)} {
		t.Run("in a group, "+to.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 20)
				w.c.hook("OffsetFetch", block)
				w.start()
				w.sleep(time.Second)
				w.seek(to, at(0))
				w.c.produce(at(0), 2)
				w.sleep(time.Second)
				want := int64(20)
				if offset, ok := to.Offset(); ok {
					want = offset
				}
				assert.Equal(t, upTo(want, 22), w.offsets(at(0)))
				assert.Equal(t, int64(22), w.c.committedAt(at(0)))
			})
		})
		t.Run("beside a positions function, "+to.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 20)
				w.settings.Strategy = commit.Manual()
				w.settings.Positions = func(ctx context.Context, _ []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				w.start()
				w.sleep(time.Second)
				w.seek(to, at(0))
				w.c.produce(at(0), 2)
				w.sleep(time.Second)
				assert.Contains(t, [][]int64{upTo(12, 22), upTo(20, 22)}, w.offsets(at(0)))
				assert.Equal(t, kafka.NoOffset, w.c.committedAt(at(0)))
			})
		})
		for _, name := range []string{"OnAssigning", "OnAssigned"} {
			t.Run("before "+name+" has returned, "+to.String(), func(t *testing.T) {
				inTree(t, func(w *treeWorld) {
					w.c.topic("orders", 1, 20)
					seeks := func(ctx context.Context, token *Token, partitions []kafka.TopicPartition) error {
						assert.NoError(t, token.Seek(ctx, to, partitions...))
						time.Sleep(5 * time.Second)
						assert.Empty(t, w.offsets(at(0)))
						return nil
					}
					if w.settings.Callbacks.Timeout = time.Minute; name == "OnAssigned" {
						w.settings.Callbacks.Assigned = seeks
					} else {
						w.settings.Callbacks.Assigning = seeks
					}
					w.start()
					w.sleep(time.Minute)
					w.c.produce(at(0), 2)
					w.sleep(time.Second)
					assert.Contains(t, [][]int64{upTo(12, 22), upTo(20, 22)}, w.offsets(at(0)))
					assert.Equal(t, int64(22), w.c.committedAt(at(0)))
				})
			})
		}
	}
}

func TestSeek_TheLookUpIsAskedAgainUntilTheContextEndsAndHoldsAllTheSame(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		w.start()
		w.sleep(time.Second)
		refused := 5
		w.c.hook("ListOffsets", func(context.Context) error {
			if refused--; refused >= 0 {
				return coded("ListOffsets", kafka.NotLeaderForPartition)
			}
			return nil
		})
		w.seek(rebalance.StartBy(rebalance.ResetEarliest), at(0))
		w.sleep(time.Second)
		assert.Equal(t, append(upTo(0, 20), upTo(0, 20)...), w.offsets(at(0)))

		refused = 100
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		assert.ErrorIs(t, w.tree.Seek(ctx, rebalance.StartBy(rebalance.ResetEarliest), nil), context.DeadlineExceeded)
		w.c.with(func() { refused = 0 })
		w.sleep(5 * time.Second)
		assert.Len(t, w.offsets(at(0)), 60)
		assert.Equal(t, int64(20), w.c.committedAt(at(0)))
	})
}

func TestSeek_TheLastOneWinsAndSaysSoToTheOneBefore(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		w.start()
		w.sleep(time.Second)
		w.c.hook("ListOffsets", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		first := make(chan error, 1)
		go func() { first <- w.tree.Seek(context.Background(), rebalance.StartBy(rebalance.ResetEarliest), nil) }()
		w.sleep(time.Second)
		w.seek(rebalance.StartAtOffset(15), at(0))
		assert.ErrorIs(t, <-first, ErrSought)
		w.sleep(time.Second)
		assert.Equal(t, append(upTo(0, 20), upTo(15, 20)...), w.offsets(at(0)))
	})
}

func TestSeek_WinsAgainstAResetThatIsUnderWay(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		w.start()
		w.sleep(time.Second)
		w.c.hook("ListOffsets", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		w.seek(rebalance.StartAtOffset(1000), at(0))
		w.sleep(time.Second)
		w.seek(rebalance.StartAtOffset(18), at(0))
		w.c.hook("ListOffsets", nil)
		w.sleep(time.Minute)
		assert.Equal(t, append(upTo(0, 20), 18, 19), w.offsets(at(0)))
	})
}

func TestSeek_APartitionActorThatDiesBeforeTheCommitGoesOnThere(t *testing.T) {
	for _, order := range allOrders {
		t.Run(order.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				v := newVisits(order)
				v.install(&w.settings.Registrations[0], order, "Record")
				w.c.topic("orders", 1, 60)
				w.start()
				w.sleep(5 * time.Second)
				assert.Equal(t, int64(60), w.c.committedAt(at(0)))
				w.c.hook("OffsetCommit", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
				mark := v.mark()
				w.seek(rebalance.StartAtOffset(30), at(0))
				w.kill("partition-orders-0-1")
				w.sleep(5 * time.Second)
				assert.Equal(t, upTo(30, 60), distinct(v.since(mark, at(0))))
				w.c.hook("OffsetCommit", nil)
				w.sleep(30 * time.Second)
				assert.Empty(t, v.wrong)
				mark = v.mark()
				w.kill("partition-orders-0-1")
				w.sleep(5 * time.Second)
				assert.Empty(t, v.since(mark, at(0)), "it is committed now")
			})
		})
	}
}

func TestSeek_AHandlerThatDoesNotReturnAfterItIsStillOverdue(t *testing.T) {
	for _, order := range allOrders {
		t.Run(order.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.settings.MaxProcessingTime = time.Minute
				w.settings.Registrations[0].Order, w.settings.Registrations[0].Workers = order, 2
				w.c.topic("orders", 1, 1)
				release := make(chan struct{})
				w.setHandle(func(context.Context, *kafka.Record) error { <-release; return nil })
				w.start()
				w.sleep(time.Second)
				w.seek(rebalance.StartAtOffset(0), at(0))
				assert.False(t, w.tree.Stats().Partitions[0].HandlerSince.IsZero())
				w.sleep(2 * time.Minute)
				assert.Len(t, eventsOf[event.ProcessingOverdue](w), 1)
				close(release)
				w.sleep(time.Minute)
				assert.Equal(t, int64(1), w.c.committedAt(at(0)))
			})
		})
	}
}

func TestSeek_WhileItsOffsetIsLookedUpNoOtherOneIsTakenForACommit(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.topic("orders", 1, 20)
		w.start()
		w.sleep(time.Second)
		w.c.hook("ListOffsets", func(context.Context) error { return coded("ListOffsets", kafka.NotLeaderForPartition) })
		first := make(chan error, 1)
		go func() { first <- w.tree.Seek(context.Background(), rebalance.StartBy(rebalance.ResetEarliest), nil) }()
		w.sleep(time.Second)
		state, ok := errors.AsType[*StateError](w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 20, "")}))
		require.True(t, ok)
		assert.Equal(t, at(0), state.TopicPartition)
		assert.Equal(t, "SEEKING", state.State)
		w.c.hook("OffsetCommit", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		w.c.hook("ListOffsets", nil)
		require.NoError(t, <-first)
		w.kill("partition-orders-0-1")
		w.c.hook("OffsetCommit", nil)
		w.sleep(time.Minute)
		assert.Equal(t, append(upTo(0, 20), upTo(0, 20)...), w.offsets(at(0)), "it begins where it was sought")
		assert.Equal(t, int64(20), w.c.committedAt(at(0)))
	})
}
