package actors

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// resets returns the position resets as "from>to reason".
func (w *treeWorld) resets() []string {
	var out []string
	for _, e := range eventsOf[event.PositionReset](w) {
		out = append(out, fmt.Sprintf("%d>%d %s", e.From, e.To, e.Reason))
	}
	return out
}

// diverge cuts the log off at end and gives it a new leader epoch; a fetch that read further is told so, as KIP-320 has it.
func (w *treeWorld) diverge(tp kafka.TopicPartition, end int64) {
	w.c.with(func() {
		l := w.c.log(tp)
		l.epoch++
		l.end = end
		for len(l.offsets) > 0 && l.offsets[len(l.offsets)-1] >= end {
			l.offsets = l.offsets[:len(l.offsets)-1]
		}
		old := l.epoch - 1
		w.c.onFetch = func(_ kafka.Broker, p FetchPartition) *FetchedPartition {
			if p.TopicPartition == tp && p.LastFetchedEpoch == old && p.Offset > end {
				part := failedPart(0)
				part.Err, part.Diverging = nil, &EpochEnd{Epoch: old, EndOffset: end}
				return part
			}
			return nil
		}
	})
}

func TestTree_ATruncatedLogSetsThePositionBackAndCommitsGoBackOnlyThen(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		w.start()
		w.sleep(time.Second)
		assert.Equal(t, int64(20), w.c.committedAt(at(0)))
		w.diverge(at(0), 12)
		w.sleep(3 * time.Second)
		assert.Equal(t, []string{"-1>0 no_commit", "20>12 truncated"}, w.resets())
		assert.Equal(t, int64(12), w.c.committedAt(at(0)), "there is nothing beyond")
		w.c.produce(at(0), 3)
		w.sleep(time.Second)
		assert.Equal(t, append(upTo(0, 20), 12, 13, 14), w.offsets(at(0)))
		assert.Equal(t, int64(15), w.c.committedAt(at(0)))
		assert.Equal(t, int64(15), w.tree.Stats().Partitions[0].Committed)
	})
}

func TestTree_ATruncationWhileAHandlerRunsWaitsForIt(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		release := make(chan struct{})
		var once sync.Once
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 7 {
				once.Do(func() { <-release })
			}
			return nil
		})
		w.start()
		w.sleep(time.Second)
		w.diverge(at(0), 6)
		w.c.produce(at(0), 3)
		w.sleep(2 * time.Second)
		close(release)
		w.sleep(2 * time.Second)
		assert.Equal(t, append(upTo(0, 8), 6, 7, 8), w.offsets(at(0)), "8 and 9 were not begun, and are gone")
		assert.Equal(t, int64(9), w.c.committedAt(at(0)))
	})
}

// The log is cut off above the position, amid what was fetched and not delivered: what lies between is still there.
func TestTree_ATruncationAheadOfThePositionSkipsNothing(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 40)
		release := make(chan struct{})
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 2 {
				<-release
			}
			return nil
		})
		w.settings.Registrations[0].MaxRecords = 3
		w.c.batch, w.c.chunkBatches = 15, 1
		w.start()
		w.sleep(time.Second)
		// Two chunks are held, up to 30; the next want goes out when the first is used up.
		w.diverge(at(0), 22)
		w.c.produce(at(0), 3)
		close(release)
		w.sleep(3 * time.Second)
		assert.Subset(t, w.offsets(at(0)), upTo(0, 25))
		assert.Equal(t, int64(25), w.c.committedAt(at(0)))
	})
}

func TestTree_OutOfRangeGoesToTheStartOfTheLogAndDeliversWhatWasFetched(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 60)
		release := make(chan struct{})
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 2 {
				<-release
			}
			return nil
		})
		w.c.batch, w.c.chunkBatches = 15, 1
		w.start()
		w.sleep(time.Second)
		w.c.with(func() {
			l := w.c.log(at(0))
			l.start, l.offsets = 50, l.offsets[50:]
		})
		close(release)
		w.sleep(3 * time.Second)
		assert.Equal(t, append(upTo(0, 30), upTo(50, 60)...), w.offsets(at(0)))
		assert.Equal(t, []string{"-1>0 no_commit", "30>50 out_of_range"}, w.resets())
		assert.Equal(t, int64(60), w.c.committedAt(at(0)))
	})
}

func TestTree_AfterAResetTheOldLeaderEpochSaysNothing(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.settings.Registrations[0].Reset = rebalance.ResetLatest
		w.c.with(func() {
			l := w.c.log(at(0))
			l.start, l.end, l.epoch, l.offsets = 5000, 9000, 9, nil
			w.c.committed[at(0)] = CommittedOffset{Offset: 100, LeaderEpoch: 5}
			w.c.onFetch = func(_ kafka.Broker, p FetchPartition) *FetchedPartition {
				if p.LastFetchedEpoch == 5 && p.Offset > 5000 {
					part := failedPart(0)
					part.Err, part.Diverging = nil, &EpochEnd{Epoch: 5, EndOffset: 5000}
					return part
				}
				return nil
			}
		})
		w.start()
		w.sleep(3 * time.Second)
		assert.Equal(t, []string{"100>9000 out_of_range"}, w.resets())
	})
}

func TestTree_OutOfRangeWithoutAPolicyStandsStillVisibly(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.settings.Registrations[0].Reset = rebalance.ResetNone
		w.c.with(func() {
			w.c.committed[at(0)] = CommittedOffset{Offset: 100}
			w.c.committed[at(1)] = CommittedOffset{Offset: 3}
		})
		w.start()
		w.sleep(3 * time.Second)
		failed := eventsOf[event.PartitionFailed](w)
		assert.Len(t, failed, 1)
		assert.ErrorIs(t, failed[0].Err, kafka.OffsetOutOfRange)
		assert.ErrorIs(t, failed[0].Err, rebalance.ErrNoOffset)
		assert.ErrorIs(t, w.tree.Healthy(), ErrNotHealthy)
		assert.Equal(t, upTo(3, 10), w.offsets(at(1)))
		assert.Equal(t, int64(100), w.c.committedAt(at(0)))
	})
}

func TestTree_AFollowersWordIsNeverAReset(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(2)
		w.c.topic("orders", 1, 10)
		w.c.with(func() {
			w.c.onFetch = func(broker kafka.Broker, p FetchPartition) *FetchedPartition {
				switch {
				case broker.ID == 1 && p.Offset == 10: // once it has read so far the leader sends it away
					part := failedPart(0)
					part.Err, part.PreferredReadReplica = nil, 2
					return part
				case broker.ID == 2:
					return failedPart(kafka.OffsetOutOfRange)
				}
				return nil
			}
		})
		w.start()
		w.sleep(2 * time.Second)
		w.c.with(func() { w.c.onFetch = nil })
		w.c.produce(at(0), 5)
		w.sleep(2 * time.Second)
		assert.Equal(t, upTo(0, 15), w.offsets(at(0)))
		assert.Equal(t, []string{"-1>0 no_commit"}, w.resets())
		assert.Positive(t, w.c.count("Fetch"))
	})
}

func TestTree_AReplicaThatBecameTheLeaderIsReadAsTheLeader(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(2)
		w.c.topic("orders", 1, 10)
		w.settings.MetadataMaxAge = 500 * time.Millisecond
		var mu sync.Mutex
		leader := int32(1)
		w.c.with(func() {
			w.c.onFetch = func(broker kafka.Broker, p FetchPartition) *FetchedPartition {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case leader == 1 && broker.ID == 1 && p.Offset == 10:
					part := failedPart(0)
					part.Err, part.PreferredReadReplica = nil, 2
					return part
				case leader == 1 && broker.ID == 2: // nothing new on the follower
					part := failedPart(0)
					part.Err = nil
					return part
				}
				return nil
			}
		})
		w.start()
		w.sleep(300 * time.Millisecond)
		mu.Lock()
		leader = 2
		mu.Unlock()
		w.c.with(func() {
			l := w.c.log(at(0))
			l.leader, l.epoch, l.start, l.end = 2, 2, 20, 20
			l.offsets = nil
			l.produce(5)
		})
		w.sleep(10 * time.Second)
		assert.Equal(t, append(upTo(0, 10), upTo(20, 25)...), w.offsets(at(0)))
		assert.Equal(t, []string{"-1>0 no_commit", "10>20 out_of_range"}, w.resets())
	})
}

func TestTree_OfATopicMadeAnewNothingOldIsCommitted(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.settings.MetadataMaxAge = time.Second
		release := make(chan struct{})
		var once sync.Once
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 8 {
				once.Do(func() { <-release })
			}
			return nil
		})
		w.start()
		w.sleep(500 * time.Millisecond)
		w.c.with(func() {
			clear(w.c.committed)
			delete(w.c.topics, "orders")
			w.c.note("recreated")
		})
		w.c.topic("orders", 1, 4)
		w.c.with(func() { w.c.topics["orders"].id = kafka.TopicID{9, 9} })
		w.sleep(1500 * time.Millisecond)
		close(release)
		w.sleep(20 * time.Second)
		assert.Equal(t, "ASSIGNED", w.state())
		assert.Equal(t, append(upTo(0, 9), upTo(0, 4)...), w.offsets(at(0))[:13])
		assert.Equal(t, int64(4), w.c.committedAt(at(0)))
		lines := w.c.lines()
		for _, l := range lines[index(lines, "recreated"):] {
			assert.False(t, strings.HasPrefix(l, "commit") && l > "commit orders-0 4", l)
		}
	})
}

func TestTree_ABatchThatCannotBeReadStopsItsPartitionOnly(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 20)
		var mu sync.Mutex
		bad := true
		w.c.onDecode = func(tp kafka.TopicPartition, from int64) error {
			mu.Lock()
			defer mu.Unlock()
			if bad && tp == at(0) && from >= 10 {
				return &kafka.BatchError{TopicPartition: tp, BaseOffset: 10, LastOffset: 14, Err: kafka.ErrCorruptBatch}
			}
			return nil
		}
		w.start()
		w.sleep(10 * time.Second)
		assert.Equal(t, upTo(0, 10), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 20), w.offsets(at(1)))
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
		failed := eventsOf[event.PartitionFailed](w)
		assert.NotEmpty(t, failed)
		assert.Less(t, len(failed), 20)
		assert.Equal(t, int64(10), failed[0].Offset)
		assert.ErrorIs(t, w.tree.Healthy(), ErrNotHealthy)
		mu.Lock()
		bad = false
		mu.Unlock()
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(0, 20), w.offsets(at(0)))
		assert.NoError(t, w.tree.Healthy())
	})
}
