package actors

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func offsetOf(partition int32, offset int64, metadata string) kafka.OffsetAndMetadata {
	return kafka.OffsetAndMetadata{TopicPartition: at(partition), Offset: offset, Metadata: metadata}
}

// userText is what the user gave along with the committed offset.
func (c *fakeCluster) userText(t *testing.T, tp kafka.TopicPartition) string {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := commit.ParseMetadata(c.committed[tp].Metadata, c.committed[tp].Offset)
	require.NoError(t, err)
	return m.User
}

func TestTree_AnEarlierOffsetIsCommittedAndHoldsUntilMoreIsFinished(t *testing.T) {
	for name, restart := range map[string]bool{"until more comes": false, "over a close": true} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				t := w.t
				w.c.topic("orders", 2, 10)
				w.start()
				w.sleep(3 * time.Second)
				require.Equal(t, int64(10), w.c.committedAt(at(0)))
				require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 4, "päck")}))
				assert.Equal(t, int64(4), w.c.committedAt(at(0)))
				assert.Equal(t, "päck", w.c.userText(t, at(0)))
				assert.Equal(t, []event.CommitSetBack{{Member: w.tree.shared.member(), TopicPartition: at(0), Epoch: 1, From: 10, To: 4}},
					withoutEpoch(eventsOf[event.CommitSetBack](w)))
				w.sleep(time.Minute)
				assert.Equal(t, int64(4), w.c.committedAt(at(0)))
				assert.Equal(t, upTo(0, 10), w.offsets(at(0)), "nothing is delivered again here")
				if !restart {
					w.c.produce(at(0), 1)
					w.sleep(time.Second)
					assert.Equal(t, int64(11), w.c.committedAt(at(0)))
					assert.Empty(t, w.c.userText(t, at(0)), "another offset goes without the text")
					return
				}
				w.kill(committerKey) // the next one is told nothing of what is above
				w.sleep(time.Minute)
				require.NoError(t, w.tree.Close(context.Background()), "what lies above is not reported as left over")
				assert.Equal(t, int64(4), w.c.committedAt(at(0)))
				assert.Equal(t, int64(10), w.c.committedAt(at(1)))
				w.start()
				w.sleep(3 * time.Second)
				assert.Equal(t, append(upTo(0, 10), upTo(4, 10)...), w.offsets(at(0)))
				assert.Equal(t, int64(10), w.c.committedAt(at(0)))
			})
		})
	}
}

func withoutEpoch(events []event.CommitSetBack) []event.CommitSetBack {
	for i := range events {
		events[i].Epoch = 1
	}
	return events
}

func TestTree_OnDemandCommitsWhatTheUserNamesAndNoMoreUntilAsked(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.settings.Strategy = commit.OnDemand()
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(3 * time.Second)
		require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 6, "six")}))
		require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 6, "")}))
		assert.Equal(t, int64(6), w.c.committedAt(at(0)))
		assert.Empty(t, w.c.userText(t, at(0)))
		require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 8, "eight")}))
		w.c.produce(at(0), 5)
		w.sleep(time.Minute)
		assert.Equal(t, int64(8), w.c.committedAt(at(0)))
		require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 8, "")}))
		require.NoError(t, w.tree.Commit(t.Context(), nil))
		assert.Equal(t, int64(15), w.c.committedAt(at(0)), "what is finished, though it was set below")
	})
}

func TestTree_OffsetsOfOneCallGoOutInOneRound(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.topic("orders", 4, 10)
		w.start()
		w.sleep(3 * time.Second)
		before := w.c.count("OffsetCommit")
		var offsets []kafka.OffsetAndMetadata
		for i := range int32(4) {
			offsets = append(offsets, offsetOf(i, int64(i)+1, strings.Repeat("\x00", int(i))))
		}
		started := time.Now()
		require.NoError(t, w.tree.CommitOffsets(t.Context(), offsets))
		assert.Equal(t, before+1, w.c.count("OffsetCommit"))
		assert.Less(t, time.Since(started), commit.GatherWait)
		for _, o := range offsets {
			assert.Equal(t, o.Offset, w.c.committedAt(o.TopicPartition))
			assert.Equal(t, o.Metadata, w.c.userText(t, o.TopicPartition))
		}
	})
}

func TestTree_AnOffsetAboveWhatIsFinishedIsRefusedAndTheOthersAreCommitted(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(3 * time.Second)
		err := w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 6, ""), offsetOf(1, 3, "")})
		refused, ok := errors.AsType[*OffsetError](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, OffsetError{TopicPartition: at(0), Offset: 6, Field: "Offset", Highest: 5, Want: refused.Want}, *refused)
		assert.Equal(t, int64(5), w.c.committedAt(at(0)))
		assert.Equal(t, int64(3), w.c.committedAt(at(1)))
		require.NoError(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 5, "here")}))
		assert.Equal(t, "here", w.c.userText(t, at(0)))
		close(h.release)
		w.sleep(3 * time.Second)
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
	})
}

func TestTree_OffsetsThatAreWrongInThemselvesAreRefusedAllAtOnceAndNothingIsCommitted(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(3 * time.Second)
		before := w.c.count("OffsetCommit")
		commitAll := func(offsets ...kafka.OffsetAndMetadata) error { return w.tree.CommitOffsets(t.Context(), offsets) }
		long := strings.Repeat("x", commit.MaxUserBytes+1)
		err := commitAll(offsetOf(0, 3, ""), offsetOf(0, 4, ""), offsetOf(1, -1, ""), offsetOf(kafka.AnyPartition, 0, ""), offsetOf(3, 0, long))
		for _, want := range []string{"orders-0 at 4: TopicPartition", "orders-1 at -1: Offset", "orders--1 at 0: TopicPartition", "orders-3 at 0: Metadata"} {
			assert.ErrorContains(t, err, want)
		}
		var unassigned *UnassignedError
		require.ErrorAs(t, commitAll(offsetOf(0, 3, ""), offsetOf(7, 3, "")), &unassigned)
		assert.Equal(t, []kafka.TopicPartition{at(7)}, unassigned.Partitions)
		assert.ErrorIs(t, commitAll(kafka.OffsetAndMetadata{TopicPartition: kafka.TopicPartition{Topic: "others"}}), ErrNotSubscribed)
		assert.NoError(t, commitAll())
		w.sleep(time.Second)
		assert.Equal(t, before, w.c.count("OffsetCommit"))
		require.NoError(t, commitAll(offsetOf(0, 3, long[1:])), "the longest that fits")
		assert.Equal(t, long[1:], w.c.userText(t, at(0)))
	})
}

func TestTree_UnderManualExplicitOffsetsAreATypedError(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.settings.Strategy = commit.Manual()
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(3 * time.Second)
		assert.ErrorIs(t, w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 3, "")}), commit.ErrManual)
		assert.ErrorIs(t, done(t, w.tree.CommitOffsetsAsync(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 3, "")})), commit.ErrManual)
		assert.NoError(t, done(t, w.tree.CommitAsync(t.Context(), nil)))
	})
}

// done waits for a future and returns how it ended.
func done(t *testing.T, f *Future) error {
	t.Helper()
	<-f.Done()
	return f.Err()
}

// While a rebalance is under way, a kept partition's commit waits for its end, and one that goes away is a typed error.
func TestTree_ACommitOfAKeptPartitionWaitsForTheRebalance(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.settings.Assignors = []rebalance.Assignor{rebalance.CooperativeSticky()}
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(3 * time.Second)
		w.c.hook("JoinGroup", func(context.Context) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		require.NoError(t, w.tree.Rejoin(t.Context(), "test"))
		w.sleep(time.Second)
		before := w.c.count("OffsetCommit")
		first := w.tree.CommitOffsetsAsync(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 2, "two"), offsetOf(1, 9, "nine")})
		second := w.tree.CommitOffsetsAsync(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 3, "three")})
		w.sleep(time.Second)
		assert.Equal(t, before, w.c.count("OffsetCommit"))
		assert.NoError(t, first.Err())
		require.NoError(t, done(t, first))
		require.NoError(t, done(t, second))
		assert.Equal(t, int64(3), w.c.committedAt(at(0)), "of two the later wins")
		assert.Equal(t, "three", w.c.userText(t, at(0)))
		assert.Equal(t, "nine", w.c.userText(t, at(1)))
		lines := w.c.lines()
		assert.Less(t, slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "generation 2") }), index(lines, "commit orders-0 3"))
	})
}

func TestTree_ALostPartitionsCommitIsATypedErrorAndNothingIsSent(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(3 * time.Second)
		w.c.hook("OffsetCommit", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		f := w.tree.CommitOffsetsAsync(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 2, "")})
		w.c.expel()
		err := done(t, f)
		_, fenced := errors.AsType[*commit.FlushError](err)
		_, gone := errors.AsType[*StateError](err)
		assert.True(t, fenced || gone, "%v", err)
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
		w.c.hook("OffsetCommit", nil)
		w.sleep(time.Minute)
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
	})
}

func TestTree_ACommitIsBoundedAndWhatWasNotConfirmedStaysDue(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(3 * time.Second)
		w.c.hook("OffsetCommit", func(context.Context) error { return coded("OffsetCommit", kafka.CoordinatorLoadInProgress) })
		started := time.Now()
		err := done(t, w.tree.CommitOffsetsAsync(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 2, "")}))
		assert.ErrorIs(t, err, commit.ErrFlushDeadline)
		assert.InDelta(t, w.settings.CloseTimeout, time.Since(started), float64(goneEvery))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = w.tree.CommitOffsets(ctx, []kafka.OffsetAndMetadata{offsetOf(0, 3, "")})
		assert.True(t, errors.Is(err, commit.ErrFlushDeadline) || errors.Is(err, context.DeadlineExceeded), "%v", err)
		w.c.hook("OffsetCommit", nil)
		w.sleep(3 * time.Second)
		assert.Equal(t, int64(3), w.c.committedAt(at(0)))
	})
}

func TestTree_MetadataThatTheBrokerDoesNotTakeIsATypedErrorAndCommitsGoOn(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.onCommit = func(_ context.Context, round *CommitRound) (map[kafka.TopicPartition]error, error) {
			results := make(map[kafka.TopicPartition]error)
			for _, o := range round.Round().Offsets {
				if results[o.TopicPartition] = nil; len(o.Metadata) > 60 {
					results[o.TopicPartition] = kafka.OffsetMetadataTooLarge
					continue
				}
				w.c.with(func() { w.c.committed[o.TopicPartition] = CommittedOffset{Offset: o.Offset, Metadata: o.Metadata} })
			}
			return results, nil
		}
		w.settings.Strategy = commit.OnDemand()
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(3 * time.Second)
		err := w.tree.CommitOffsets(t.Context(), []kafka.OffsetAndMetadata{offsetOf(0, 2, strings.Repeat("x", 40)), offsetOf(1, 2, "y")})
		var flush *commit.FlushError
		require.ErrorAs(t, err, &flush)
		assert.ErrorIs(t, err, commit.ErrMetadataTooLarge)
		assert.Equal(t, at(0), flush.TopicPartition)
		assert.Equal(t, int64(2), w.c.committedAt(at(1)))
		require.NoError(t, w.tree.Close(context.Background()))
		assert.Equal(t, int64(10), w.c.committedAt(at(0)), "as if it had never been asked for")
		assert.Equal(t, int64(2), w.c.committedAt(at(1)))
	})
}

func TestTree_ACommitInsideOfAHandlerIsAnswered(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.topic("orders", 1, 5)
		w.start()
		w.sleep(3 * time.Second)
		tree, answers := w.tree, make(chan error, 2)
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Offset == 7 {
				answers <- tree.Commit(ctx, nil)
				answers <- tree.CommitOffsets(ctx, []kafka.OffsetAndMetadata{offsetOf(0, 6, "in")})
			}
			return nil
		})
		w.c.produce(at(0), 5)
		w.sleep(10 * time.Second)
		assert.NoError(t, <-answers)
		assert.NoError(t, <-answers)
		assert.Contains(t, w.c.lines(), "commit orders-0 6")
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
	})
}

func TestTree_AFutureIsDoneWithATypedErrorWhenTheConsumerEnds(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(3 * time.Second)
		w.c.hook("OffsetCommit", func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		offsets := []kafka.OffsetAndMetadata{offsetOf(0, 2, "")}
		futures := []*Future{w.tree.CommitOffsetsAsync(t.Context(), offsets), w.tree.CommitAsync(t.Context(), []kafka.TopicPartition{at(0)})}
		w.sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_ = w.tree.Close(ctx)
		w.sleep(time.Second)
		for i, f := range append(futures, w.tree.CommitOffsetsAsync(t.Context(), offsets), w.tree.CommitAsync(t.Context(), nil)) {
			assert.Error(t, done(t, f), "future %d", i)
		}
		assert.ErrorIs(t, w.tree.CommitOffsets(t.Context(), offsets), ErrClosing)
	})
}

// A Commit that comes while a partition is given up must not take the answer of the final commit away.
func TestTree_ACommitDuringTheDrainDoesNotHoldUpTheFinalCommit(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		t := w.t
		w.settings.Strategy = commit.OnDemand()
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(3 * time.Second)
		w.c.hook("OffsetCommit", func(context.Context) error {
			time.Sleep(2 * time.Second)
			return nil
		})
		started := time.Now()
		futures := make(chan *Future, 2)
		time.AfterFunc(time.Second, func() {
			futures <- w.tree.CommitAsync(context.Background(), nil)
			futures <- w.tree.CommitOffsetsAsync(context.Background(), []kafka.OffsetAndMetadata{offsetOf(0, 4, "")})
		})
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Less(t, time.Since(started), 6*time.Second)
		assert.NoError(t, done(t, <-futures))
		assert.NoError(t, done(t, <-futures))
		assert.Equal(t, int64(4), w.c.committedAt(at(0)))
	})
}

// Whoever waits for a commit hears by its type that it was not confirmed, however its partition ends.
func TestTree_ACommitWhosePartitionEndsIsATypedError(t *testing.T) {
	for how, end := range map[string]func(w *treeWorld){
		"lost":           func(w *treeWorld) { w.c.expel() },
		"its actor dies": func(w *treeWorld) { w.kill("partition-orders-0-1") },
	} {
		t.Run(how, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.settings.Strategy = commit.OnDemand()
				w.c.topic("orders", 1, 10)
				w.start()
				w.sleep(3 * time.Second)
				w.c.hook("OffsetCommit", func(ctx context.Context) error {
					<-ctx.Done()
					return ctx.Err()
				})
				f := w.tree.CommitAsync(context.Background(), nil)
				w.sleep(time.Second)
				end(w)
				err := done(w.t, f)
				failed, ok := errors.AsType[*commit.FlushError](err)
				if assert.True(w.t, ok, "%v", err) {
					assert.Equal(w.t, at(0), failed.TopicPartition)
					assert.Equal(w.t, int64(10), failed.Offset)
				}
				w.c.hook("OffsetCommit", nil)
			})
		})
	}
}
