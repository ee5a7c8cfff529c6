package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// produceAt writes one record for each of the timestamps, as batches of their own, which is how most brokers find them.
func produceAt(t *testing.T, b broker, topic string, partition int32, millis ...int64) {
	t.Helper()
	producer := newAdmin(t, b.Addrs(), nil).client
	for _, at := range millis {
		r := &kgo.Record{Topic: topic, Partition: partition, Timestamp: time.UnixMilli(at), Value: []byte(strconv.FormatInt(at, 10))}
		require.NoError(t, producer.ProduceSync(requestContext(t), r).FirstErr())
	}
}

// abort writes records in a transaction of their own and aborts it.
func abort(t *testing.T, b broker, topic string, records ...kafka.Record) {
	t.Helper()
	id := "integration-abort-" + strconv.FormatInt(transactionalIDs.Add(1), 10)
	producer, err := kgo.NewClient(append(slices.Clone(newAdmin(t, b.Addrs(), nil).opts), kgo.TransactionalID(id))...)
	require.NoError(t, err)
	defer producer.Close()
	require.NoError(t, producer.BeginTransaction())
	require.NoError(t, producer.ProduceSync(requestContext(t), toKgo(topic, records)...).FirstErr())
	require.NoError(t, producer.EndTransaction(requestContext(t), kgo.TryAbort))
}

func TestResetByTimeStartsAtTheFirstRecordThatIsYoungEnough(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		orders, clicks, audit, group, l := unique(t, "orders"), unique(t, "clicks"), unique(t, "audit"), unique(t, "group"), newLedger()
		now := time.Now()
		ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
		for _, topic := range []string{orders, clicks, audit} {
			b.CreateTopic(t, topic, 3)
			produceAt(t, b, topic, 0, ago(3*time.Hour), ago(2*time.Hour), ago(30*time.Minute), ago(time.Minute))
			produceAt(t, b, topic, 1, ago(4*time.Hour), ago(3*time.Hour)) // partition 2 stays empty
		}
		c := config(b, group)
		c.Reset = rebalance.ResetByDuration(time.Hour)
		m := spawn(t, c, api.Handle(orders, l.note("a")),
			api.Handle(clicks, l.note("a"), api.ResetTo(rebalance.ResetAt(ago(2*time.Hour)))),
			api.Handle(audit, l.note("a"), api.ResetTo(rebalance.ResetLatest)))
		eventually(t, patience, "all that is young enough is handled", func() bool { return l.distinct() == 2+3 })
		// The start is committed at once: a restart before the first record must not skip what came meanwhile.
		ends := b.EndOffsets(t, orders)
		for _, topic := range []string{clicks, audit} {
			for tp, end := range b.EndOffsets(t, topic) {
				ends[tp] = end
			}
		}
		eventually(t, patience, "every start is committed", func() bool { return assert.ObjectsAreEqual(ends, b.Committed(t, group)) })
		m.mustClose(t)
		require.Equal(t, []int64{2, 3}, l.offsets(at(orders, 0)))
		require.Equal(t, []int64{1, 2, 3}, l.offsets(at(clicks, 0)))
		starts := make(map[kafka.TopicPartition]int64)
		for _, e := range told[event.PositionReset](m) {
			require.Equal(t, rebalance.ReasonNoCommit, e.Reason)
			starts[e.TopicPartition] = e.To
		}
		require.Equal(t, map[kafka.TopicPartition]int64{
			at(orders, 0): 2, at(orders, 1): 2, at(orders, 2): 0,
			at(clicks, 0): 1, at(clicks, 1): 2, at(clicks, 2): 0,
			at(audit, 0): 4, at(audit, 1): 2, at(audit, 2): 0,
		}, starts)

		produceAt(t, b, orders, 1, ago(5*time.Hour)) // however old it is: it was written after the start
		m = spawn(t, c, api.Handle([]string{orders, clicks, audit}, l.note("b")))
		eventually(t, patience, "what came meanwhile is handled", func() bool { return len(l.of(at(orders, 1))) == 1 })
		m.mustClose(t)
		require.Equal(t, 6, l.distinct())
	})
}

func TestResetByTimeHoldsForAPositionThatIsOutOfRange(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 2)
		now := time.Now()
		for p := range int32(2) {
			produceAt(t, b, topic, p, now.Add(-3*time.Hour).UnixMilli(), now.Add(-2*time.Hour).UnixMilli(), now.UnixMilli())
			b.Commit(t, group, at(topic, p), 99)
		}
		m := spawn(t, config(b, group), api.Handle(topic, l.note("a"), api.ResetTo(rebalance.ResetByDuration(time.Hour))))
		eventually(t, patience, "the last record of each is handled", func() bool { return l.distinct() == 2 })
		m.mustClose(t)
		for p := range int32(2) {
			require.Equal(t, []int64{2}, l.offsets(at(topic, p)))
		}
		require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
		resets := told[event.PositionReset](m)
		require.Len(t, resets, 2)
		for _, e := range resets {
			require.Equal(t, rebalance.ReasonBeyondEnd, e.Reason)
			require.EqualValues(t, 99, e.From)
		}
	})
}

// flow is a stream of records to some partitions, for as long as it is not stopped.
type flow struct {
	stop func()
}

// keepFlowing produces one record after the other to the partitions until stop is called.
func keepFlowing(t *testing.T, b broker, topic string, partitions ...int32) flow {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			for _, p := range partitions {
				// The record that stop interrupts may be lost, or be written all the same.
				if err := b.TryProduce(ctx, topic, kafka.Record{Partition: p}); err != nil && ctx.Err() == nil {
					t.Errorf("produce: %v", err)
					return
				}
			}
			pause(5 * time.Millisecond)
		}
	})
	stop := sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(stop)
	return flow{stop: stop}
}

// flows demands that each partition has more records begun within a short time.
func (f flow) flows(t *testing.T, l *ledger, when string, partitions ...kafka.TopicPartition) {
	t.Helper()
	before := make(map[kafka.TopicPartition]int)
	for _, tp := range partitions {
		before[tp] = len(l.of(tp))
	}
	for _, tp := range partitions {
		eventually(t, 10*time.Second, fmt.Sprintf("%s flows %s", tp, when), func() bool { return len(l.of(tp)) > before[tp]+3 })
	}
}

// IBM/sarama#2855 and others, both halves: the others never stop, whatever becomes of one.
func TestB06_TheOthersFlowWhileOneIsOutOfRange(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 3)
		for range 60 { // batches of their own, so that only some are fetched ahead
			b.Produce(t, topic, kafka.Record{Partition: 1, Value: make([]byte, 2000)})
		}
		others := tps(topic, 0, 2)
		c := config(b, group)
		c.PartitionMaxBytes = 4 << 10
		entered, release := make(chan struct{}), make(chan struct{})
		handle := l.watch("a", func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 1 && r.Offset == 0 {
				close(entered)
				<-release
			}
			return nil
		})
		m := spawn(t, c, api.Handle(topic, handle, api.MaxRecords(1)))
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		receive(t, entered)
		stream := keepFlowing(t, b, topic, 0, 2)
		stream.flows(t, l, "beside a slow one", others...)
		b.DeleteRecords(t, topic, 1, 50)
		stream.flows(t, l, "while records are gone that the slow one has not read", others...)
		free()
		reset := tellsOf(t, m, patience, func(e event.PositionReset) bool { return e.Reason == rebalance.ReasonOutOfRange })
		require.Equal(t, at(topic, 1), reset.TopicPartition)
		require.EqualValues(t, 50, reset.To)
		eventually(t, patience, "it resumes at the start of the log", func() bool {
			offsets := l.offsets(at(topic, 1))
			return offsets[len(offsets)-1] == 59
		})
		stream.flows(t, l, "after the reset", others...)
		stream.stop()
		eventually(t, patience, "all is committed", func() bool { return assert.ObjectsAreEqual(b.EndOffsets(t, topic), b.Committed(t, group)) })
		m.mustClose(t)
		require.Len(t, told[event.PositionReset](m), 3+1, "three starts and one reset")
		require.Len(t, told[event.PartitionsAssigned](m), 1, "no rebalance")
		require.Empty(t, told[event.PartitionFailed](m))
		l.inOrder(t, tps(topic, 0, 1, 2)...)

		// The second half: a stored offset above the end.
		b.Commit(t, group, at(topic, 1), 1000)
		l = newLedger()
		stream = keepFlowing(t, b, topic, 0, 2)
		m = spawn(t, c, api.Handle(topic, l.note("b"), api.MaxRecords(1)))
		beyond := tellsOf(t, m, patience, func(e event.PositionReset) bool { return e.TopicPartition == at(topic, 1) })
		require.Equal(t, rebalance.ReasonBeyondEnd, beyond.Reason, "which is an event of its own")
		require.EqualValues(t, 1000, beyond.From)
		require.EqualValues(t, 50, beyond.To)
		eventually(t, patience, "it starts at the start of the log", func() bool { return len(l.of(at(topic, 1))) == 10 })
		stream.flows(t, l, "beside it", others...)
		stream.stop()
		eventually(t, patience, "all is committed", func() bool { return assert.ObjectsAreEqual(b.EndOffsets(t, topic), b.Committed(t, group)) })
		m.mustClose(t)
		require.Len(t, told[event.PositionReset](m), 1, "and only one")
		l.inOrder(t, tps(topic, 0, 1, 2)...)
	})
}

// B06 with policy none: loud, and nobody else stops.
func TestB06_WithoutAPolicyOutOfRangeFailsLoudlyAndAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 2)
		fill(t, b, topic, 2, 5)
		b.Commit(t, group, at(topic, 0), 0)
		b.Commit(t, group, at(topic, 1), 1000)
		m := spawn(t, config(b, group), api.Handle(topic, l.note("a"), api.ResetTo(rebalance.ResetNone)))
		failed := tellsOf(t, m, patience, func(e event.PartitionFailed) bool { return e.TopicPartition == at(topic, 1) })
		require.ErrorIs(t, failed.Err, rebalance.ErrNoOffset)
		require.ErrorIs(t, failed.Err, kafka.OffsetOutOfRange)
		stream := keepFlowing(t, b, topic, 0)
		stream.flows(t, l, "beside the one that stands still", at(topic, 0))
		stream.stop()
		require.Error(t, m.Healthy())
		m.mustClose(t)
		require.Empty(t, l.of(at(topic, 1)))
		require.EqualValues(t, 1000, b.Committed(t, group)[at(topic, 1)])
	})
}

// store keeps positions outside of Kafka, with what was done up to there, as a database would in one transaction.
type store struct {
	mu        sync.Mutex
	next      map[kafka.TopicPartition]int64
	asked     [][]kafka.TopicPartition
	failures  int
	processed int
}

func (s *store) positions(_ context.Context, partitions []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, partitions)
	if s.failures > 0 {
		s.failures--
		return nil, errors.New("no database")
	}
	out := make(map[kafka.TopicPartition]int64)
	for _, tp := range partitions {
		if next, ok := s.next[tp]; ok {
			out[tp] = next
		}
	}
	return out, nil
}

func (s *store) handle(_ context.Context, r *kafka.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next[r.TopicPartition()] = r.Offset + 1
	s.processed++
	return nil
}

func (s *store) done() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processed
}

func TestResetPositionsFromOutsideAreWherePartitionsStart(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 3)
		fill(t, b, topic, 3, 20)
		b.Commit(t, group, at(topic, 0), 3) // what Kafka has is not asked for
		kept := &store{next: map[kafka.TopicPartition]int64{at(topic, 0): 12, at(topic, 1): 0}, failures: 2}
		c := config(b, group)
		c.CommitStrategy = commit.Manual()
		parts := []api.Part{api.WithPositions(kept.positions), api.Handle(topic, l.watch("a", kept.handle), api.ResetTo(rebalance.ResetLatest))}
		m := spawn(t, c, parts...)
		m.allHandledIn(t, patience, l, 8+20)
		eventually(t, patience, "all are assigned", func() bool { return len(told[event.PositionReset](m)) == 1 })
		fill(t, b, topic, 3, 2)
		m.allHandledIn(t, patience, l, 8+20+6)
		m.mustClose(t)
		require.EqualValues(t, 12, l.offsets(at(topic, 0))[0])
		require.EqualValues(t, 0, l.offsets(at(topic, 1))[0])
		require.EqualValues(t, 20, l.offsets(at(topic, 2))[0], "by the reset policy, since the store does not know it")
		refused := 0
		for _, e := range told[event.ConnectFailed](m) {
			if e.Purpose == "start positions" {
				refused++
			}
		}
		require.Equal(t, 2, refused)

		// After a restart, and when partitions move, the store says where to go on, and nothing is done twice.
		fill(t, b, topic, 3, 5)
		one := spawn(t, c, parts...)
		two := spawn(t, c, parts...)
		settled(t, 3, one, two)
		fill(t, b, topic, 3, 5)
		eventually(t, patience, "every record handled", func() bool { return l.distinct() == 8+20+6+30 })
		one.mustClose(t)
		two.mustClose(t)
		require.Empty(t, l.repeated())
		l.inOrder(t, tps(topic, 0, 1, 2)...)
		require.Equal(t, l.distinct(), kept.done())
	})
}

// A topic of nothing but aborted transactions is read to its end.
func TestResetATopicOfAbortedRecordsReachesItsEnd(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 1)
		for i := range 4 {
			abort(t, b, topic, kafka.Record{Value: fmt.Appendf(nil, "never-%d", i)}, kafka.Record{Value: fmt.Appendf(nil, "nor-%d", i)})
		}
		// A real broker writes a marker a moment after it says that the transaction has ended.
		var ends map[kafka.TopicPartition]int64
		eventually(t, patience, "eight records and four markers are there", func() bool {
			ends = b.EndOffsets(t, topic)
			return ends[at(topic, 0)] == 12
		})
		m := spawn(t, config(b, group), api.Handle(topic, l.note("a")))
		eventually(t, patience, "the commit is at the high watermark", func() bool {
			return assert.ObjectsAreEqual(ends, b.Committed(t, group))
		})
		eventually(t, patience, "no lag", func() bool {
			p, ok := m.partition(at(topic, 0))
			return ok && p.LagKnown && p.Lag == 0
		})
		m.mustClose(t)
		require.Zero(t, l.distinct())

		// What is read uncommitted is there.
		c := config(b, unique(t, "all"))
		c.IsolationLevel = api.ReadUncommitted
		m = spawn(t, c, api.Handle(topic, l.note("b")))
		m.allHandledIn(t, patience, l, 8)
		m.mustClose(t)
	})
}
