package integration

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

// endsByItself waits until the consumer has ended and demands that it did so cleanly.
func (m *member) endsByItself(t *testing.T) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-m.Done():
	case <-timer.C:
		t.Fatalf("the consumer has not ended after %v: %+v", patience, m.Stats())
	}
	require.NoError(t, m.Err())
	m.mustClose(t)
	require.Empty(t, told[event.PartitionsLost](m))
}

// wholeTopic is a range over all of a topic as it is.
func wholeTopic(topic string) api.Part {
	return api.ReadRange(kafka.WholeTopic(topic), rebalance.StartPosition{}, rebalance.EndOfLog())
}

// aRangeEndsByItself is the rule for every broker, old and secured ones included: offsets, times, an empty partition, markers at
// the end, a log that begins later, and a producer that goes on.
func aRangeEndsByItself(t *testing.T, b broker) {
	topic, l := unique(t, "topic"), newLedger()
	b.CreateTopic(t, topic, 8)
	now := time.Now()
	var times []int64
	for i := range int64(10) {
		times = append(times, now.Add(-time.Duration(10-i)*time.Hour).UnixMilli())
	}
	for _, p := range []int32{0, 1, 2, 4, 5, 6} {
		for _, at := range times { // in batches of their own, which is how most brokers find them
			b.Produce(t, topic, kafka.Record{Partition: p, TimestampMillis: at, Value: []byte("v")})
		}
	}
	b.Transaction(t, topic, kafka.Record{Partition: 6, Value: []byte("the marker behind it is the last offset")})
	b.Transaction(t, topic, kafka.Record{Partition: 7, Value: []byte("gone soon")})
	marked := func() bool {
		ends := b.EndOffsets(t, topic)
		return ends[at(topic, 6)] == 12 && ends[at(topic, 7)] == 2
	}
	eventually(t, patience, "the markers are written", marked)
	b.DeleteRecords(t, topic, 7, 2) // the marker included
	b.DeleteRecords(t, topic, 4, 6)
	ends := b.EndOffsets(t, topic)
	since := func(i int) rebalance.StartPosition { return rebalance.StartBy(rebalance.ResetAt(times[i])) }
	read := func(p int32, from rebalance.StartPosition, to rebalance.EndPosition) api.Part {
		return api.ReadRange(at(topic, p), from, to)
	}
	m := spawn(t, aloneConfig(b), api.Handle(topic, l.watch("a", func(_ context.Context, r *kafka.Record) error {
		return b.TryProduce(context.WithoutCancel(t.Context()), topic, kafka.Record{Partition: r.Partition, Value: []byte("later")})
	})),
		read(0, rebalance.StartAtOffset(2), rebalance.EndAtOffset(7)),
		read(1, since(3), rebalance.EndAt(times[8]-1)),
		read(2, rebalance.StartPosition{}, rebalance.EndAtOffset(1000)),
		read(3, rebalance.StartPosition{}, rebalance.EndOfLog()),
		read(4, rebalance.StartAtOffset(1), rebalance.EndAtOffset(8)),
		read(5, since(9), rebalance.EndOfLog()),
		read(6, rebalance.StartPosition{}, rebalance.EndAt(now.Add(time.Hour).UnixMilli())),
		read(7, rebalance.StartPosition{}, rebalance.EndOfLog()))
	m.endsByItself(t)
	for p, want := range [][]int64{{2, 3, 4, 5, 6}, {3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, nil, {6, 7}, {9}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, nil} {
		assert.Equal(t, want, l.offsets(at(topic, int32(p))), "partition %d", p)
	}
	assert.Empty(t, l.repeated())
	found := make(map[kafka.TopicPartition]int64)
	for _, e := range told[event.RangeEndSet](m) {
		found[e.TopicPartition] = e.End
	}
	for tp, end := range ends {
		if tp.Partition == 2 || tp.Partition >= 5 {
			assert.Equal(t, end, found[tp], "%s ends where its log ended", tp)
		}
	}
	assert.Len(t, told[event.RangeRead](m), 8)
}

// Every engine with every kind of handler, under handlers that fail in every way, on a log with holes, to whose end a producer adds.
func TestRangeHoldsInEveryEngine(t *testing.T) {
	withoutAGroup(t, func(t *testing.T, b broker) {
		for name, e := range map[string]engine{"partition": inPartitionOrder, "key": inKeyOrder, "none": inNoOrder} {
			for kindName, kind := range map[string]handlerKind{
				"record": recordKind, "batch": batchKind, "async": asyncKind, "actor": actorKind,
			} {
				t.Run(name+"/"+kindName, func(t *testing.T) { rangeEngine(t, b, e, kind) })
			}
		}
	})
}

func rangeEngine(t *testing.T, b broker, e engine, kind handlerKind) {
	const partitions = 3
	topic := unique(t, "topic")
	b.CreateTopic(t, topic, partitions+1) // the last one stays empty
	log := newHoleyLog(t, b, topic)
	defer log.close()
	s := &script{ledger: newLedger(), failed: make(map[spot]bool)}
	for i := range 5 {
		log.write(t, partitions, 6, i%3 == 1) // the last one is aborted
	}
	m := spawn(t, aloneConfig(b), kind(s, topic, "a", e), wholeTopic(topic))
	eventually(t, patience, "all know where they end", func() bool { return len(told[event.RangeEndSet](m)) == partitions+1 })
	n := len(log.committed)
	later := newHoleyLog(t, b, topic)
	defer later.close()
	later.write(t, partitions, 6, false)
	m.endsByItself(t)
	log.demand(t, s.ledger)
	s.ledger.noOverlapIn(t, e.lane)
	s.ledger.afterItsPredecessors(t, e.lane)
	assert.Equal(t, n, s.ledger.distinct(), "nothing from beyond the end")
	assert.Empty(t, s.ledger.repeated())
	assert.NotEmpty(t, told[event.HandlerFailed](m), "handlers fail in this test")
}

func TestRangeUnderReadCommittedEndsBeforeAnOpenTransaction(t *testing.T) {
	withoutAGroup(t, func(t *testing.T, b broker) {
		topic := unique(t, "topic")
		b.CreateTopic(t, topic, 1)
		fill(t, b, topic, 1, 5)
		id := "integration-open-" + strconv.FormatInt(transactionalIDs.Add(1), 10)
		producer, err := kgo.NewClient(append(slices.Clone(newAdmin(t, b.Addrs(), nil).opts), kgo.TransactionalID(id))...)
		require.NoError(t, err)
		defer producer.Close()
		require.NoError(t, producer.BeginTransaction())
		require.NoError(t, producer.ProduceSync(requestContext(t), &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr())
		fill(t, b, topic, 1, 3)
		for level, want := range map[api.IsolationLevel][]int64{
			api.ReadCommitted: {0, 1, 2, 3, 4}, api.ReadUncommitted: {0, 1, 2, 3, 4, 5, 6, 7, 8},
		} {
			l, c := newLedger(), aloneConfig(b)
			c.IsolationLevel = level
			m := spawn(t, c, api.Handle(topic, l.note("a")), wholeTopic(topic))
			m.endsByItself(t)
			assert.Equal(t, want, l.offsets(at(topic, 0)))
		}
		require.NoError(t, producer.EndTransaction(requestContext(t), kgo.TryAbort))
	})
}

func TestRangeOfWhatDoesNotExistIsATypedError(t *testing.T) {
	withoutAGroup(t, func(t *testing.T, b broker) {
		topic, missing := unique(t, "topic"), unique(t, "missing")
		b.CreateTopic(t, topic, 1)
		for of, part := range map[kafka.TopicPartition]api.Part{
			kafka.WholeTopic(missing): wholeTopic(missing),
			at(topic, 3):              api.ReadRange(at(topic, 3), rebalance.StartPosition{}, rebalance.EndOfLog()),
		} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := api.Run(ctx, aloneConfig(b), api.Handle(of.Topic, newLedger().note("a")), part)
			var gone *rebalance.RangeError
			if assert.ErrorAs(t, err, &gone) {
				assert.ErrorIs(t, err, rebalance.ErrNoPartition)
				assert.Equal(t, of, gone.TopicPartition)
			}
		}
	})
}

func TestRangeFollowsItsLeaders(t *testing.T) {
	t.Parallel()
	const partitions = 4
	b := newEmbedded(t, kafkatest.Brokers(3), kafkatest.Topic("orders", partitions))
	noGroupRequests(t, b)
	n, l := fill(t, b, "orders", partitions, 200), newLedger()
	slow := l.watch("a", func(context.Context, *kafka.Record) error { pause(time.Millisecond); return nil })
	m := spawn(t, aloneConfig(b), api.Handle("orders", slow, api.MaxRecords(10)), wholeTopic("orders"))
	stop := stream(t, b, "orders", partitions)
	defer stop()
	eventually(t, patience, "all know where they end", func() bool { return len(told[event.RangeEndSet](m)) == partitions })
	for i := int32(0); ; i++ {
		select {
		case <-m.Done():
		default:
			require.NoError(t, b.Cluster().MoveTopicPartition("orders", i%partitions, i%3))
			pause(20 * time.Millisecond)
			continue
		}
		break
	}
	m.endsByItself(t)
	require.GreaterOrEqual(t, l.distinct(), n)
	var ends int64
	for _, e := range told[event.RangeEndSet](m) {
		ends += e.End
	}
	require.EqualValues(t, ends, l.distinct())
	require.Empty(t, l.repeated())
}
