package actors

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// ask runs a call with a limit and returns what it found.
func ask[V any](t *testing.T, limit time.Duration, call func(context.Context) (V, error)) (V, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return call(ctx)
}

// must is ask for what has to succeed.
func must[V any](t *testing.T, call func(context.Context) (V, error)) V {
	t.Helper()
	v, err := ask(t, time.Minute, call)
	require.NoError(t, err)
	return v
}

func (w *treeWorld) endOffsets(named ...kafka.TopicPartition) func(context.Context) (map[kafka.TopicPartition]int64, error) {
	return func(ctx context.Context) (map[kafka.TopicPartition]int64, error) {
		return w.tree.EndOffsets(ctx, named)
	}
}

func (w *treeWorld) committed(named ...kafka.TopicPartition) func(context.Context) (map[kafka.TopicPartition]kafka.CommittedOffset, error) {
	return func(ctx context.Context) (map[kafka.TopicPartition]kafka.CommittedOffset, error) {
		return w.tree.Committed(ctx, named)
	}
}

func (w *treeWorld) positions(named ...kafka.TopicPartition) func(context.Context) (map[kafka.TopicPartition]int64, error) {
	return func(ctx context.Context) (map[kafka.TopicPartition]int64, error) { return w.tree.Position(ctx, named) }
}

func TestTree_QuestionsForOffsetsAreAnswered(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(3)
		w.c.topic("orders", 3, 10)
		w.c.topic("other", 2, 4)
		other := func(p int32) kafka.TopicPartition { return kafka.TopicPartition{Topic: "other", Partition: p} }
		w.c.with(func() {
			for _, l := range w.c.topics["orders"].parts {
				l.every = 1000
			}
			w.c.log(other(1)).start = 2
			w.c.committed[other(0)] = CommittedOffset{Offset: 3, LeaderEpoch: 7, Metadata: "mine"}
		})
		w.start()
		w.sleep(5 * time.Second)
		assert.Equal(t, []kafka.TopicPartition{at(0), at(1), at(2)}, w.tree.CurrentAssignment())

		every := map[kafka.TopicPartition]int64{at(0): 10, at(1): 10, at(2): 10}
		assert.Equal(t, every, must(t, w.endOffsets()))
		assert.Equal(t, every, must(t, w.endOffsets(kafka.WholeTopic("orders"))))
		assert.Equal(t, every, must(t, w.positions()))
		assert.Equal(t, map[kafka.TopicPartition]int64{at(1): 10}, must(t, w.positions(at(1), at(1))))
		assert.Equal(t, map[kafka.TopicPartition]int64{other(0): 4, other(1): 4, at(1): 10}, must(t, w.endOffsets(kafka.WholeTopic("other"), other(1), at(1))))
		assert.Equal(t, map[kafka.TopicPartition]int64{other(0): 0, other(1): 2},
			must(t, func(ctx context.Context) (map[kafka.TopicPartition]int64, error) {
				return w.tree.BeginningOffsets(ctx, []kafka.TopicPartition{kafka.WholeTopic("other")})
			}))
		none := kafka.CommittedOffset{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}
		assert.Equal(t, map[kafka.TopicPartition]kafka.CommittedOffset{
			other(0): {Offset: 3, LeaderEpoch: 7, Metadata: "mine", Text: "mine"}, other(1): none, at(2): {Offset: 10, LeaderEpoch: 1, Text: "troupe topic 01010000000000000000000000000000"},
		}, must(t, w.committed(kafka.WholeTopic("other"), at(2))))
		assert.False(t, none.Found())

		times := must(t, func(ctx context.Context) (map[kafka.TopicPartition]kafka.OffsetAndTimestamp, error) {
			return w.tree.OffsetsForTimes(ctx, map[kafka.TopicPartition]time.Time{
				kafka.WholeTopic("orders"): time.UnixMilli(0), at(1): time.UnixMilli(4000).Add(1), at(2): time.Unix(60, 0),
			})
		})
		assert.Equal(t, map[kafka.TopicPartition]kafka.OffsetAndTimestamp{
			at(0): {Offset: 0, Timestamp: time.UnixMilli(0).UTC(), LeaderEpoch: 1}, at(1): {Offset: 5, Timestamp: time.UnixMilli(5000).UTC(), LeaderEpoch: 1},
			at(2): {Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch},
		}, times)
		assert.Empty(t, must(t, func(ctx context.Context) (map[kafka.TopicPartition]kafka.OffsetAndTimestamp, error) {
			return w.tree.OffsetsForTimes(ctx, nil)
		}))

		require.NoError(t, w.tree.Pause(context.Background(), nil))
		w.c.produce(at(0), 5)
		lag := must(t, func(ctx context.Context) (map[kafka.TopicPartition]PartitionLag, error) {
			return w.tree.Lag(ctx, []kafka.TopicPartition{at(0), at(1)})
		})
		assert.Equal(t, map[kafka.TopicPartition]PartitionLag{
			at(0): {Position: 10, Committed: 10, End: 15, Lag: 5, CommittedLag: 5}, at(1): {Position: 10, Committed: 10, End: 10},
		}, lag)
		assert.EqualValues(t, 15, must(t, w.endOffsets(at(0)))[at(0)])
	})
}

func TestTree_BadInputOfAQuestionIsToldAllAtOnce(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 1)
		w.start()
		w.sleep(5 * time.Second)
		bad, nameless := kafka.TopicPartition{Topic: "orders", Partition: -2}, kafka.TopicPartition{}
		for _, call := range []func(context.Context) (map[kafka.TopicPartition]int64, error){w.endOffsets(bad, nameless), w.positions(bad, nameless)} {
			_, err := ask(t, time.Second, call)
			var argument *ArgumentError
			require.ErrorAs(t, err, &argument)
			assert.ErrorContains(t, err, "partition -2: want 0 or more, or kafka.AnyPartition")
			assert.ErrorContains(t, err, "no topic: want the name of a topic")
		}
		_, err := w.tree.OffsetsForTimes(context.Background(), map[kafka.TopicPartition]time.Time{at(0): {}, bad: time.Now()})
		assert.ErrorContains(t, err, "orders-0: the time 0001-01-01T00:00:00Z: want a time from 1970 on")
		assert.ErrorContains(t, err, "partition -2")

		_, err = ask(t, time.Second, w.positions(at(7), at(0), kafka.TopicPartition{Topic: "other"}))
		var unassigned *UnassignedError
		require.ErrorAs(t, err, &unassigned)
		assert.Equal(t, &UnassignedError{Operation: "position", Partitions: []kafka.TopicPartition{at(7), {Topic: "other"}}, State: "ASSIGNED"}, unassigned)
		_, err = ask(t, time.Second, func(ctx context.Context) (map[kafka.TopicPartition]PartitionLag, error) {
			return w.tree.Lag(ctx, []kafka.TopicPartition{at(7)})
		})
		require.ErrorAs(t, err, &unassigned)
		assert.Equal(t, "lag", unassigned.Operation)

		missing := kafka.TopicPartition{Topic: "nowhere", Partition: 3}
		for name, call := range map[string]func() error{
			"end offsets": func() error { _, err := ask(t, time.Minute, w.endOffsets(at(0), missing, at(7))); return err },
			"committed":   func() error { _, err := ask(t, time.Minute, w.committed(at(0), missing, at(7))); return err },
		} {
			var unknown *UnknownPartitionError
			require.ErrorAs(t, call(), &unknown, name)
			assert.Equal(t, []kafka.TopicPartition{missing, at(7)}, unknown.Partitions)
		}
	})
}

func TestTree_AQuestionIsAnsweredInEveryState(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		held := make(chan struct{})
		w.c.hook("JoinGroup", func(context.Context) error { <-held; return nil })
		w.start()
		w.sleep(time.Second)
		assert.Equal(t, "JOINING", w.state())
		named := []kafka.TopicPartition{at(0), at(1)}
		every := map[kafka.TopicPartition]int64{at(0): 10, at(1): 10}
		assert.Equal(t, every, must(t, w.endOffsets(named...)))
		assert.Len(t, must(t, w.committed(named...)), 2)
		var unassigned *UnassignedError
		for _, call := range []func(context.Context) (map[kafka.TopicPartition]int64, error){w.endOffsets(), w.positions(), w.positions(at(0))} {
			_, err := ask(t, time.Second, call)
			require.ErrorAs(t, err, &unassigned)
			assert.Equal(t, "JOINING", unassigned.State)
		}
		assert.Empty(t, w.tree.CurrentAssignment())

		close(held)
		w.sleep(10 * time.Second)
		assert.Equal(t, "ASSIGNED", w.state())
		for range 10 { // some while the group is there, some with its death in their way, some between two groups
			go func() { assert.Equal(t, every, must(t, w.endOffsets(named...))) }()
		}
		w.kill("group")
		for range 10 {
			go func() { assert.Equal(t, every, must(t, w.endOffsets(named...))) }()
		}
		w.sleep(time.Minute)

		var release sync.WaitGroup
		release.Add(1)
		w.setHandle(func(context.Context, *kafka.Record) error { release.Wait(); return nil })
		w.c.produce(at(0), 1)
		w.sleep(5 * time.Second)
		w.tree.StartClose(time.Now().Add(20 * time.Second))
		w.sleep(time.Second)
		assert.Equal(t, "LEAVING", w.state())
		assert.EqualValues(t, 11, must(t, w.endOffsets(named...))[at(0)])
		assert.EqualValues(t, 11, must(t, w.positions(at(0)))[at(0)])
		release.Done()
		w.sleep(time.Minute)
		for _, call := range []func(context.Context) (map[kafka.TopicPartition]int64, error){w.endOffsets(), w.positions(), w.endOffsets(at(0))} {
			_, err := ask(t, time.Second, call)
			assert.ErrorIs(t, err, ErrClosing)
		}
	})
}

func TestTree_AFrozenBrokerHoldsUpNoOtherAnswerAndNothingElse(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(3)
		w.c.topic("orders", 3, 10)
		w.start()
		w.sleep(5 * time.Second)
		joins := w.c.count("JoinGroup")
		w.c.with(func() {
			w.c.onLookup = func(ctx context.Context, broker kafka.Broker, _ []OffsetQuery) error {
				if broker.ID != 2 {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}
		})
		stuck := make(chan error, 1)
		go func() {
			_, err := ask(t, 90*time.Second, w.endOffsets())
			stuck <- err
		}()
		w.sleep(time.Second)
		start := time.Now()
		assert.Equal(t, map[kafka.TopicPartition]int64{at(0): 10, at(2): 10}, must(t, w.endOffsets(at(0), at(2))))
		assert.Less(t, time.Since(start), time.Second)
		w.c.produce(at(1), 5)
		w.sleep(time.Second)
		assert.EqualValues(t, 15, w.c.committedAt(at(1)))
		assert.Len(t, must(t, w.committed()), 3)
		assert.ErrorIs(t, <-stuck, context.DeadlineExceeded)
		assert.Equal(t, joins, w.c.count("JoinGroup"))
		assert.NoError(t, w.tree.Healthy())
	})
}

// Nobody who asks may make the close wait, and nobody who asked may be left waiting.
func TestTree_AQuestionThatHangsIsEndedByTheClose(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(5 * time.Second)
		for _, api := range []string{"ListOffsets", "OffsetFetch", "Metadata"} {
			w.c.hook(api, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		}
		answers := make(chan error, 3)
		go func() { _, err := w.tree.EndOffsets(context.Background(), nil); answers <- err }()
		go func() { _, err := w.tree.Committed(context.Background(), nil); answers <- err }()
		go func() {
			_, err := w.tree.EndOffsets(context.Background(), []kafka.TopicPartition{kafka.WholeTopic("other")})
			answers <- err
		}()
		w.sleep(time.Second)
		start := time.Now()
		require.NoError(t, w.tree.Close(context.Background()))
		assert.Less(t, time.Since(start), time.Second)
		for range cap(answers) {
			assert.ErrorIs(t, <-answers, ErrClosing)
		}
	})
}

func TestTree_AfterASeekTheLagHasWhatTheCoordinatorHas(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.settings.Strategy = commit.OnDemand()
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(5 * time.Second)
		require.NoError(t, w.tree.Commit(context.Background(), nil))
		require.NoError(t, w.tree.Pause(context.Background(), nil))
		require.NoError(t, w.tree.Seek(context.Background(), rebalance.StartAtOffset(4), nil))
		lag := must(t, func(ctx context.Context) (map[kafka.TopicPartition]PartitionLag, error) { return w.tree.Lag(ctx, nil) })
		committed := must(t, w.committed())[at(0)].Offset
		assert.Equal(t, PartitionLag{Position: 4, Committed: committed, End: 10, Lag: 6, CommittedLag: 10 - committed}, lag[at(0)])
	})
}

func TestTree_ALeaderThatMovesIsFollowedAndACoordinatorToo(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(3)
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(5 * time.Second)
		w.c.with(func() {
			l := w.c.log(at(0))
			l.leader, l.epoch = 3, l.epoch+1
			w.c.coordinator = 2
		})
		assert.EqualValues(t, 10, must(t, w.endOffsets(at(0)))[at(0)])
		assert.EqualValues(t, 10, must(t, w.committed(at(0)))[at(0)].Offset)
		w.c.with(func() { w.c.log(at(0)).leader = -1 })
		_, err := ask(t, 5*time.Second, w.endOffsets(at(0)))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var question *QuestionError
		require.ErrorAs(t, err, &question, "what stood in the way is told")
		assert.Equal(t, at(0), question.TopicPartition)
		asked := w.c.count("ListOffsets") + w.c.count("Metadata")
		w.sleep(10 * time.Second)
		assert.LessOrEqual(t, w.c.count("ListOffsets")+w.c.count("Metadata")-asked, 10, "nobody waits any more, nothing is asked any more but by the group")
		w.c.with(func() { w.c.log(at(0)).leader = 1 })
		w.sleep(5 * time.Second)
		assert.EqualValues(t, 10, must(t, w.endOffsets(at(0)))[at(0)])
	})
}

func TestTree_ARefusalEndsAQuestionAtOnce(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(5 * time.Second)
		w.c.hook("ListOffsets", func(context.Context) error { return coded("ListOffsets", kafka.TopicAuthorizationFailed) })
		w.c.hook("OffsetFetch", func(context.Context) error { return coded("OffsetFetch", kafka.GroupAuthorizationFailed) })
		start := time.Now()
		_, err := ask(t, time.Minute, w.endOffsets())
		assert.ErrorIs(t, err, kafka.TopicAuthorizationFailed)
		_, err = ask(t, time.Minute, w.committed())
		assert.ErrorIs(t, err, kafka.GroupAuthorizationFailed)
		assert.Less(t, time.Since(start), time.Second)
	})
}

func TestTree_AGroupThatTheCoordinatorDoesNotKnowHasNothingCommitted(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		held := make(chan struct{})
		w.c.hook("JoinGroup", func(context.Context) error { <-held; return nil })
		w.c.hook("OffsetFetch", func(context.Context) error { return coded("OffsetFetch", kafka.GroupIDNotFound) })
		w.start()
		committed := must(t, w.committed(at(0)))
		assert.Equal(t, map[kafka.TopicPartition]kafka.CommittedOffset{at(0): {Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}}, committed)
		w.c.hook("OffsetFetch", nil)
		close(held)
		w.sleep(5 * time.Second)
		assert.EqualValues(t, 10, must(t, w.committed())[at(0)].Offset)
	})
}

func TestTree_AnInquirerThatDiesIsReplacedAndTheQuestionAskedAgain(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(5 * time.Second)
		w.c.panicOnce("ListOffsets")
		assert.EqualValues(t, 10, must(t, w.endOffsets())[at(1)])
		assert.Equal(t, 1, w.restarted("inquirer"))
		assert.Zero(t, w.restarted("group"))
		w.c.hook("ListOffsets", func(context.Context) error { panic("injected") })
		_, err := ask(t, time.Minute, w.endOffsets())
		assert.ErrorIs(t, err, ErrInquirerFailed, "a question that kills every inquirer does not end the consumer")
		w.c.hook("ListOffsets", nil)
		w.sleep(time.Minute)
		assert.NoError(t, w.tree.Healthy())
		assert.Zero(t, w.restarted("group"))
		assert.EqualValues(t, 10, must(t, w.endOffsets())[at(1)])
	})
}

func TestTree_ConnectionsOfQuestionsAreMadeOnDemandAndClosedWhenIdle(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(5 * time.Second)
		var mu sync.Mutex
		during := 0
		ctx, cancel := context.WithCancel(context.Background())
		w.c.with(func() {
			w.c.onLookup = func(context.Context, kafka.Broker, []OffsetQuery) error {
				mu.Lock()
				defer mu.Unlock()
				during++
				time.Sleep(time.Second)
				return nil
			}
		})
		for range 10 {
			go func() { _, _ = w.tree.EndOffsets(ctx, nil) }()
		}
		w.sleep(5 * time.Second)
		cancel()
		mu.Lock()
		assert.Equal(t, 2, during, "one that was under way, and one for all that came meanwhile")
		mu.Unlock()
		w.sleep(2 * inquirerIdle)
		assert.EqualValues(t, 10, must(t, w.endOffsets())[at(0)], "what was closed is made anew")
	})
}

func TestTree_APositionIsWaitedForUntilItIsKnown(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		var early, inside error
		w.settings.Callbacks.Timeout = 30 * time.Second
		w.settings.Callbacks.Assigning = func(ctx context.Context, token *Token, _ []kafka.TopicPartition) error {
			_, early = token.tree.Position(ctx, nil)
			return nil
		}
		w.settings.Callbacks.Assigned = func(ctx context.Context, token *Token, _ []kafka.TopicPartition) error {
			_, inside = token.tree.EndOffsets(ctx, nil)
			return nil
		}
		w.c.hook("ListOffsets", func(context.Context) error { time.Sleep(10 * time.Second); return nil })
		w.start()
		w.sleep(5 * time.Second)
		_, err := ask(t, time.Second, w.positions())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "does not know yet where it begins")
		start := time.Now()
		at := must(t, w.positions())
		assert.Len(t, at, 1)
		assert.Greater(t, time.Since(start), time.Second)
		w.sleep(time.Minute)
		var held *HeldError
		require.ErrorAs(t, early, &held)
		assert.ErrorIs(t, early, ErrSelfWait)
		assert.NoError(t, inside)
	})
}

func TestTree_WithoutAGroupEverythingButCommittedIsAnswered(t *testing.T) {
	inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(5 * time.Second)
		assert.Len(t, must(t, w.endOffsets()), 2)
		assert.Len(t, must(t, w.positions()), 2)
		_, err := ask(t, time.Second, w.committed())
		assert.ErrorIs(t, err, ErrNoGroup)
		lag := must(t, func(ctx context.Context) (map[kafka.TopicPartition]PartitionLag, error) { return w.tree.Lag(ctx, nil) })
		assert.Equal(t, PartitionLag{Position: 10, Committed: kafka.NoOffset, End: 10, CommittedLag: -1}, lag[at(0)])
	})
}
