package integration

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// The calls that only ask: Position, Committed, Lag, BeginningOffsets, EndOffsets, OffsetsForTimes, CurrentAssignment.

// everyOffset is what questionsForOffsets demands of a topic of three partitions: ten records each, 100 s apart.
const everyOffset = 10

// questionsForOffsets compares what is answered with what another client says.
func questionsForOffsets(t *testing.T, b broker) {
	topic, other, group, l := unique(t, "topic"), unique(t, "other"), unique(t, "group"), newLedger()
	first := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, name := range []string{topic, other} {
		b.CreateTopic(t, name, 3)
		var records []kafka.Record
		for p := range int32(3) {
			for i := range everyOffset {
				records = append(records, kafka.Record{Partition: p, Value: []byte("x"), TimestampMillis: first.Add(time.Duration(i) * 100 * time.Second).UnixMilli()})
			}
		}
		b.Produce(t, name, records...)
	}
	b.DeleteRecords(t, other, 1, 4)
	m := spawn(t, config(b, group), api.Handle(topic, l.note("a")))
	m.joined(t)
	m.allHandledIn(t, patience, l, 3*everyOffset)
	eventually(t, patience, "everything is committed", func() bool { return maps.Equal(b.EndOffsets(t, topic), b.Committed(t, group)) })
	ctx := requestContext(t)
	all := kafka.WholeTopic(other)

	require.Equal(t, tps(topic, 0, 1, 2), m.CurrentAssignment())
	ends, err := m.EndOffsets(ctx)
	require.NoError(t, err)
	require.Equal(t, b.EndOffsets(t, topic), ends)
	ends, err = m.EndOffsets(ctx, all, at(topic, 1))
	require.NoError(t, err)
	want := b.EndOffsets(t, other)
	want[at(topic, 1)] = everyOffset
	require.Equal(t, want, ends)
	begins, err := m.BeginningOffsets(ctx, all)
	require.NoError(t, err)
	require.Equal(t, map[kafka.TopicPartition]int64{at(other, 0): 0, at(other, 1): 4, at(other, 2): 0}, begins)

	positions, err := m.Position(ctx)
	require.NoError(t, err)
	require.Equal(t, map[kafka.TopicPartition]int64{at(topic, 0): everyOffset, at(topic, 1): everyOffset, at(topic, 2): everyOffset}, positions)
	committed, err := m.Committed(ctx, kafka.WholeTopic(topic), at(other, 2))
	require.NoError(t, err)
	require.Len(t, committed, 4)
	require.False(t, committed[at(other, 2)].Found())
	delete(committed, at(other, 2))
	for tp, offset := range b.Committed(t, group) {
		require.Equal(t, offset, committed[tp].Offset, "%s", tp)
	}

	times, err := m.OffsetsForTimes(ctx, map[kafka.TopicPartition]time.Time{
		at(topic, 0): first.Add(-time.Minute), at(topic, 1): first.Add(150 * time.Second), at(topic, 2): first.Add(300 * time.Second),
		at(other, 0): first.Add(time.Duration(everyOffset) * 100 * time.Second), at(other, 1): time.Unix(0, 0),
	})
	require.NoError(t, err)
	for tp, want := range map[kafka.TopicPartition]int64{at(topic, 0): 0, at(topic, 1): 2, at(topic, 2): 3, at(other, 1): 4} {
		require.Equal(t, want, times[tp].Offset, "%s", tp)
		require.True(t, times[tp].Timestamp.Equal(first.Add(time.Duration(want)*100*time.Second)), "%s: %v", tp, times[tp].Timestamp)
	}
	require.False(t, times[at(other, 0)].Found(), "nothing is that young")
	require.Equal(t, kafka.NoOffset, times[at(other, 0)].Offset)

	require.NoError(t, m.Pause(ctx))
	fillOne(t, b, topic, 1, 5)
	lags, err := m.Lag(ctx)
	require.NoError(t, err)
	require.Equal(t, actors.PartitionLag{Position: everyOffset, Committed: everyOffset, End: everyOffset + 5, Lag: 5, CommittedLag: 5}, lags[at(topic, 1)])
	require.Zero(t, lags[at(topic, 0)].Lag)
	require.NoError(t, m.CommitOffsets(ctx, kafka.OffsetAndMetadata{TopicPartition: at(topic, 0), Offset: 7, Metadata: "mine"}))
	committed, err = m.Committed(ctx, at(topic, 0))
	require.NoError(t, err)
	require.EqualValues(t, 7, committed[at(topic, 0)].Offset)
	require.Equal(t, "mine", committed[at(topic, 0)].Metadata)
	badQuestions(t, m, topic)
	m.mustClose(t)
	_, err = m.EndOffsets(ctx, at(topic, 0))
	require.ErrorIs(t, err, actors.ErrClosing)
}

// badQuestions asks what cannot be answered.
func badQuestions(t *testing.T, m *member, topic string) {
	t.Helper()
	ctx, missing := requestContext(t), unique(t, "missing")
	for name, ask := range map[string]func(context.Context, ...kafka.TopicPartition) error{
		"end offsets": func(ctx context.Context, tp ...kafka.TopicPartition) error {
			_, err := m.EndOffsets(ctx, tp...)
			return err
		},
		"beginning offsets": func(ctx context.Context, tp ...kafka.TopicPartition) error {
			_, err := m.BeginningOffsets(ctx, tp...)
			return err
		},
		"committed": func(ctx context.Context, tp ...kafka.TopicPartition) error {
			_, err := m.Committed(ctx, tp...)
			return err
		},
	} {
		var unknown *actors.UnknownPartitionError
		require.ErrorAs(t, ask(ctx, at(topic, 0), kafka.WholeTopic(missing), at(topic, 3)), &unknown, name)
		want := []kafka.TopicPartition{kafka.WholeTopic(missing), at(topic, 3)}
		slices.SortFunc(want, kafka.TopicPartition.Compare)
		require.Equal(t, want, unknown.Partitions, name)
		require.Equal(t, name, unknown.Operation)
		var argument *actors.ArgumentError
		require.ErrorAs(t, ask(ctx, at(topic, -5)), &argument, name)
	}
	var unassigned *actors.UnassignedError
	_, err := m.Position(ctx, at(topic, 0), at(topic, 3))
	require.ErrorAs(t, err, &unassigned)
	require.Equal(t, tps(topic, 3), unassigned.Partitions)
	_, err = m.Lag(ctx, at(missing, 0))
	require.ErrorAs(t, err, &unassigned)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := m.EndOffsets(ended); err != nil { // it may be answered before it looks at the context
		require.ErrorIs(t, err, context.Canceled)
	}
}

// listOffsets asks as another client does.
func listOffsets(t *testing.T, b broker, tp kafka.TopicPartition, isolation kafka.IsolationLevel, timestamp int64) int64 {
	t.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = int8(isolation)
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = tp.Topic
	want := kmsg.NewListOffsetsRequestTopicPartition()
	want.Partition, want.Timestamp = tp.Partition, timestamp
	topic.Partitions = append(topic.Partitions, want)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(requestContext(t), newAdmin(t, b.Addrs(), nil).client)
	require.NoError(t, err)
	checked(t, err, resp.Topics[0].Partitions[0].ErrorCode)
	return resp.Topics[0].Partitions[0].Offset
}

// questionsBesideATransaction: what is after the first record of an open transaction is not there yet under read_committed.
func questionsBesideATransaction(t *testing.T, b broker) {
	topic, l := unique(t, "topic"), newLedger()
	b.CreateTopic(t, topic, 1)
	fill(t, b, topic, 1, 5)
	id := "integration-open-" + strconv.FormatInt(transactionalIDs.Add(1), 10)
	producer, err := kgo.NewClient(append(slices.Clone(newAdmin(t, b.Addrs(), nil).opts), kgo.TransactionalID(id))...)
	require.NoError(t, err)
	defer producer.Close()
	require.NoError(t, producer.BeginTransaction())
	young := time.Now().Add(time.Hour).Truncate(time.Second)
	open := kafka.Record{Value: []byte("open"), TimestampMillis: young.UnixMilli()}
	require.NoError(t, producer.ProduceSync(requestContext(t), toKgo(topic, []kafka.Record{open, open})...).FirstErr())
	fill(t, b, topic, 1, 3)

	ctx, tp := requestContext(t), at(topic, 0)
	readers := make(map[kafka.IsolationLevel]*member)
	for isolation, level := range map[kafka.IsolationLevel]api.IsolationLevel{
		kafka.ReadCommitted: api.ReadCommitted, kafka.ReadUncommitted: api.ReadUncommitted,
	} {
		c := config(b, unique(t, "group"))
		c.IsolationLevel = level
		readers[isolation] = spawn(t, c, api.Handle(topic, l.note(isolation.String())))
		readers[isolation].joined(t)
	}
	for isolation, m := range readers {
		ends, err := m.EndOffsets(ctx)
		require.NoError(t, err)
		require.Equal(t, listOffsets(t, b, tp, isolation, -1), ends[tp], isolation)
		require.Equal(t, map[kafka.IsolationLevel]int64{kafka.ReadCommitted: 5, kafka.ReadUncommitted: 10}[isolation], ends[tp])
		eventually(t, patience, "it has read what it may", func() bool {
			lags, err := m.Lag(ctx)
			return err == nil && lags[tp].Lag == 0 && lags[tp].Position == ends[tp]
		})
		times, err := m.OffsetsForTimes(ctx, map[kafka.TopicPartition]time.Time{tp: young})
		require.NoError(t, err)
		require.Equal(t, listOffsets(t, b, tp, isolation, young.UnixMilli()), times[tp].Offset, isolation)
	}
	require.NoError(t, producer.EndTransaction(requestContext(t), kgo.TryCommit))
	eventually(t, patience, "the end moves on with the transaction", func() bool {
		ends, err := readers[kafka.ReadCommitted].EndOffsets(ctx)
		return err == nil && ends[tp] == 11 && ends[tp] == listOffsets(t, b, tp, kafka.ReadCommitted, -1)
	})
	for _, m := range readers {
		m.mustClose(t)
	}
}

// questionsInARebalance: while members come and go each question has the right answer, or the error that says why not.
func questionsInARebalance(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 4)
	n := fill(t, b, topic, 4, 10)
	m := spawn(t, config(b, group), api.Handle(topic, l.note("first")))
	ctx, stop := context.WithCancel(requestContext(t))
	defer stop()
	ends := b.EndOffsets(t, topic)
	var wg sync.WaitGroup
	ask := func(question func() error) {
		wg.Go(func() {
			for ctx.Err() == nil {
				assert.NoError(t, question())
			}
		})
	}
	patient := context.WithoutCancel(ctx)
	ask(func() error { // before the first join, too
		found, err := m.EndOffsets(patient, kafka.WholeTopic(topic))
		assert.Equal(t, ends, found)
		return err
	})
	ask(func() error {
		found, err := m.Committed(patient, kafka.WholeTopic(topic))
		assert.Len(t, found, 4)
		return err
	})
	ask(func() error {
		positions, err := m.Position(patient)
		if _, none := err.(*actors.UnassignedError); none {
			return nil
		}
		for tp, position := range positions {
			assert.LessOrEqual(t, position, ends[tp])
			assert.GreaterOrEqual(t, position, int64(0))
		}
		return err
	})
	m.allHandledIn(t, patience, l, n)
	for range 2 {
		second := spawn(t, config(b, group), api.Handle(topic, l.note("second")))
		settled(t, 4, m, second)
		second.mustClose(t)
		settled(t, 4, m)
	}
	stop()
	wg.Wait()
	committed, err := m.Committed(requestContext(t))
	require.NoError(t, err)
	for tp, end := range ends {
		require.Equal(t, end, committed[tp].Offset)
	}
	m.mustClose(t)
	require.Empty(t, l.repeated())
}

// A node that hangs has no answer for its own partition; when another takes over, that one is asked.
func TestQuestionsHaveTheirAnswersBesideANodeThatHangs(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 3)
		for p := range int32(3) {
			require.NoError(t, b.Cluster().MoveTopicPartition("orders", p, p))
		}
		fill(t, b, "orders", 3, 10)
		c, l := plain(b), newLedger()
		c.RequestTimeout = hangTimeout
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
		eventually(t, 10*time.Second, "every record handled", func() bool { return l.distinct() == 30 })
		node := (b.Cluster().CoordinatorFor("billing") + 1) % 3
		next, third := (node+1)%3, (node+2)%3
		b.Freeze(node)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := m.EndOffsets(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for range 3 {
			begun := time.Now()
			ends, err := m.EndOffsets(t.Context(), at("orders", next), at("orders", third))
			require.NoError(t, err)
			require.Len(t, ends, 2)
			committed, err := m.Committed(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 10, committed[at("orders", node)].Offset)
			require.Less(t, time.Since(begun), time.Second)
		}
		require.NoError(t, b.Cluster().MoveTopicPartition("orders", node, next))
		begun := time.Now()
		ends, err := m.EndOffsets(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 10, ends[at("orders", node)])
		require.Less(t, time.Since(begun), 2*hangTimeout)
		require.EqualValues(t, 1, m.Stats().Rebalances)
		require.NoError(t, m.Healthy())
		b.Thaw(node)
		m.mustClose(t)
	}, kafkatest.Brokers(3))
}

// What is open for questions is closed when nobody asks any more.
func TestQuestionsLeaveNoConnectionBehind(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 3)
		fill(t, b, "orders", 3, 10)
		l := newLedger()
		m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
		eventually(t, 10*time.Second, "every record handled", func() bool { return l.distinct() == 30 })
		time.Sleep(2 * time.Minute)
		before, _ := b.Connections()
		_, err := m.EndOffsets(t.Context(), kafka.WholeTopic("orders"))
		require.NoError(t, err)
		_, err = m.Committed(t.Context())
		require.NoError(t, err)
		during, _ := b.Connections()
		require.Greater(t, during, before)
		time.Sleep(2 * time.Minute)
		after, _ := b.Connections()
		require.Equal(t, before, after)
		m.mustClose(t)
	}, kafkatest.Brokers(3))
}
