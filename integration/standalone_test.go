package integration

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

// aloneConfig is config without a group.
func aloneConfig(b broker) api.Config {
	c := config(b, "")
	c.SessionTimeout, c.HeartbeatInterval, c.RebalanceTimeout = 0, 0, 0
	return c
}

// assignment is one partition and its start.
func assignment(topic string, partition int32, start rebalance.StartPosition) api.Assignment {
	return api.Assignment{Partition: at(topic, partition), Start: start}
}

// ofAGroup are the requests that nobody sends who is in no group.
var ofAGroup = []kmsg.Key{
	kmsg.FindCoordinator, kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat, kmsg.LeaveGroup, kmsg.OffsetFetch, kmsg.OffsetCommit,
	kmsg.ConsumerGroupHeartbeat,
}

// withoutAGroup runs a test on the embedded broker, where no request of a group may come, and on a real Kafka.
func withoutAGroup(t *testing.T, test func(t *testing.T, b broker)) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b broker) {
		if embedded, ok := b.(*embeddedBroker); ok {
			noGroupRequests(t, embedded)
		}
		test(t, b)
	})
}

func noGroupRequests(t *testing.T, b *embeddedBroker) {
	t.Helper()
	b.Cluster().Fault(kfake.Fault{Keys: ofAGroup, Observe: true, Count: -1, When: func(req kmsg.Request) bool {
		const transaction = 1 // a producer's coordinator
		if find, ok := req.(*kmsg.FindCoordinatorRequest); !ok || find.CoordinatorType != transaction {
			t.Errorf("a consumer without a group sent %T", req)
		}
		return true
	}})
}

func TestStandaloneEachPartitionBeginsWhereItIsAssigned(t *testing.T) {
	withoutAGroup(t, func(t *testing.T, b broker) {
		topic, whole, l := unique(t, "topic"), unique(t, "whole"), newLedger()
		b.CreateTopic(t, topic, 6)
		b.CreateTopic(t, whole, 2)
		now := time.Now()
		var times []int64
		for i := range int64(10) { // the records are an hour apart, the last one half an hour old
			times = append(times, now.Add(-time.Duration(10-i)*time.Hour+30*time.Minute).UnixMilli())
		}
		for p := range int32(6) {
			produceAt(t, b, topic, p, times...)
		}
		fill(t, b, whole, 2, 10)
		m := spawn(t, aloneConfig(b), api.Handle([]string{topic, whole}, l.note("a")),
			api.Assign(
				assignment(topic, 0, rebalance.StartPosition{}),
				assignment(topic, 1, rebalance.StartAtOffset(7)),
				assignment(topic, 2, rebalance.StartBy(rebalance.ResetLatest)),
				assignment(topic, 3, rebalance.StartBy(rebalance.ResetAt(times[4]))),
				assignment(topic, 4, rebalance.StartBy(rebalance.ResetByDuration(2*time.Hour))),
			),
			api.AssignTopic(whole, rebalance.StartBy(rebalance.ResetLatest)))
		m.joined(t)
		eventually(t, patience, "each knows where it begins", func() bool {
			return len(told[event.PositionReset](m)) == 4+2 // one has its offset
		})
		fill(t, b, topic, 6, 2)
		n := fill(t, b, whole, 2, 3)
		m.allHandledIn(t, patience, l, (10+2)+(3+2)+2+(6+2)+(2+2)+n)
		m.mustClose(t)
		for p, first := range []int64{0, 7, 10, 4, 8} {
			require.Equal(t, first, l.offsets(at(topic, int32(p)))[0], "partition %d", p)
		}
		require.Empty(t, l.of(at(topic, 5)), "it is not assigned")
		require.EqualValues(t, 10, l.offsets(at(whole, 1))[0])
		require.Empty(t, l.repeated())
		l.inOrder(t, tps(topic, 0, 1, 2, 3, 4)...)
		for _, e := range told[event.PositionReset](m) {
			require.Equal(t, rebalance.ReasonAssigned, e.Reason)
		}
	})
}

// withoutAGroupWhereAssigned is the rule for every broker, old and secured ones included.
func withoutAGroupWhereAssigned(t *testing.T, b broker) {
	topic, l := unique(t, "topic"), newLedger()
	b.CreateTopic(t, topic, 4)
	fill(t, b, topic, 4, 10)
	kept := &store{next: map[kafka.TopicPartition]int64{}}
	parts := []api.Part{
		api.Handle(topic, l.watch("a", kept.handle)), api.WithPositions(kept.positions),
		api.Assign(assignment(topic, 0, rebalance.StartPosition{}), assignment(topic, 1, rebalance.StartAtOffset(4)),
			assignment(topic, 2, rebalance.StartBy(rebalance.ResetLatest))),
	}
	m := spawn(t, aloneConfig(b), parts...)
	m.joined(t)
	m.allHandledIn(t, patience, l, 10+6)
	eventually(t, patience, "the end is known", func() bool { return len(told[event.PositionReset](m)) == 2 })
	fill(t, b, topic, 4, 5)
	m.allHandledIn(t, patience, l, 16+15)
	m.mustClose(t)
	fill(t, b, topic, 4, 5)
	m = spawn(t, aloneConfig(b), parts...)
	m.allHandledIn(t, patience, l, 16+15+15)
	m.mustClose(t)
	require.Empty(t, l.repeated())
	for p, first := range []int64{0, 4, 10} {
		require.Equal(t, first, l.offsets(at(topic, int32(p)))[0], "partition %d", p)
	}
	l.inOrder(t, tps(topic, 0, 1, 2)...)
	require.Empty(t, l.of(at(topic, 3)), "it is not assigned")
}

// Every engine with every kind of handler, under handlers that fail in every way, on a log with holes.
func TestStandaloneHoldsInEveryEngine(t *testing.T) {
	withoutAGroup(t, func(t *testing.T, b broker) {
		for name, e := range map[string]engine{"partition": inPartitionOrder, "key": inKeyOrder, "none": inNoOrder} {
			for kindName, kind := range map[string]handlerKind{
				"record": recordKind, "batch": batchKind, "async": asyncKind, "actor": actorKind,
			} {
				t.Run(name+"/"+kindName, func(t *testing.T) { standaloneEngine(t, b, e, kind) })
			}
		}
	})
}

func standaloneEngine(t *testing.T, b broker, e engine, kind handlerKind) {
	const partitions = 3
	topic := unique(t, "topic")
	b.CreateTopic(t, topic, partitions)
	log := newHoleyLog(t, b, topic)
	defer log.close()
	s := &script{ledger: newLedger(), failed: make(map[spot]bool)}
	log.write(t, partitions, 6, false)
	m := spawn(t, aloneConfig(b), kind(s, topic, "a", e), api.AssignTopic(topic, rebalance.StartPosition{}))
	for i := range 4 {
		log.write(t, partitions, 6, i%3 == 1)
	}
	m.allHandledIn(t, patience, s.ledger, len(log.committed))
	m.mustClose(t)
	log.demand(t, s.ledger)
	s.ledger.noOverlapIn(t, e.lane)
	s.ledger.afterItsPredecessors(t, e.lane)
	assert.Empty(t, s.ledger.repeated())
	assert.Zero(t, m.Stats().StaleAcks)
	assert.NotEmpty(t, told[event.HandlerFailed](m), "handlers fail in this test")
}

func TestStandaloneWhatAppearsLaterIsReadFromItsBeginning(t *testing.T) {
	withoutAGroup(t, func(t *testing.T, b broker) {
		grows, late, l := unique(t, "grows"), unique(t, "late"), newLedger()
		b.CreateTopic(t, grows, 1)
		fill(t, b, grows, 1, 10)
		m := spawn(t, aloneConfig(b), api.Handle([]string{grows, late}, l.note("a")),
			api.AssignTopic(grows, rebalance.StartBy(rebalance.ResetLatest)),
			api.Assign(assignment(late, 0, rebalance.StartPosition{}), assignment(late, 2, rebalance.StartBy(rebalance.ResetLatest))))
		m.joined(t)
		tellsOf(t, m, patience, func(e event.TopicMissing) bool { return e.Topic == late })
		eventually(t, patience, "the missing topic is told", func() bool { return slices.Contains(m.Stats().MissingTopics, late) })
		eventually(t, patience, "the end is known", func() bool {
			p, ok := m.partition(at(grows, 0))
			return ok && p.Position == 10
		})
		b.AddPartitions(t, grows, 2)
		fill(t, b, grows, 3, 5)
		b.CreateTopic(t, late, 2)
		fill(t, b, late, 2, 5)
		m.allHandledIn(t, patience, l, 15+5)
		tellsOf(t, m, patience, func(e event.PartitionMissing) bool { return e.TopicPartition == at(late, 2) })
		require.Equal(t, tps(late, 2), m.Stats().MissingPartitions)
		require.NoError(t, m.Healthy())
		b.AddPartitions(t, late, 2)
		b.Produce(t, late, kafka.Record{Partition: 2, Value: []byte("a")}, kafka.Record{Partition: 3, Value: []byte("b")})
		m.allHandledIn(t, patience, l, 15+5+1)
		require.Empty(t, m.Stats().MissingPartitions)
		m.mustClose(t)
		require.EqualValues(t, 10, l.offsets(at(grows, 0))[0])
		require.Empty(t, l.of(at(late, 1)), "it is not assigned")
		require.Empty(t, l.repeated())
	})
}

func TestStandaloneOutOfRangeIsAnsweredByTheResetPolicy(t *testing.T) {
	withoutAGroup(t, func(t *testing.T, b broker) {
		topic, l := unique(t, "topic"), newLedger()
		b.CreateTopic(t, topic, 3)
		fill(t, b, topic, 3, 20)
		b.DeleteRecords(t, topic, 0, 6)
		m := spawn(t, aloneConfig(b), api.Handle(topic, l.note("a")), api.Assign(
			assignment(topic, 0, rebalance.StartAtOffset(2)), assignment(topic, 1, rebalance.StartAtOffset(900)), assignment(topic, 2, rebalance.StartAtOffset(20))))
		m.allHandledIn(t, patience, l, 14+20)
		reasons := make(map[kafka.TopicPartition]string)
		for _, e := range told[event.PositionReset](m) {
			reasons[e.TopicPartition] = e.Reason
		}
		require.Equal(t, map[kafka.TopicPartition]string{
			at(topic, 0): rebalance.ReasonOutOfRange, at(topic, 1): rebalance.ReasonBeyondEnd,
		}, reasons, "the end of the log is in range")
		m.mustClose(t)
		require.Empty(t, l.repeated())
	})
}

func TestStandaloneStoredPositionsWinAndWithoutThemItBeginsAnew(t *testing.T) {
	withoutAGroup(t, func(t *testing.T, b broker) {
		topic, l := unique(t, "topic"), newLedger()
		b.CreateTopic(t, topic, 3)
		kept := &store{next: map[kafka.TopicPartition]int64{at(topic, 1): 4}, failures: 1}
		parts := []api.Part{
			api.WithPositions(kept.positions), api.Handle(topic, l.watch("a", kept.handle)), api.AssignTopic(topic, rebalance.StartPosition{}),
		}
		want := fill(t, b, topic, 3, 10) - 4
		for range 3 { // each goes on where the one before it was
			m := spawn(t, aloneConfig(b), parts...)
			m.allHandledIn(t, patience, l, want)
			want += fill(t, b, topic, 3, 10)
			eventually(t, patience, "some of it is handled, the rest is for the next", func() bool { return l.distinct() > want-30 })
			require.NoError(t, m.Commit(t.Context()))
			m.mustClose(t)
			m = spawn(t, aloneConfig(b), parts...)
			m.allHandledIn(t, patience, l, want)
			m.mustClose(t)
		}
		require.Empty(t, l.repeated())
		require.Equal(t, l.distinct(), kept.done())
		require.EqualValues(t, 4, l.offsets(at(topic, 1))[0])
		l.inOrder(t, tps(topic, 0, 1, 2)...)
		for range 2 { // nobody remembers anything
			again := newLedger()
			m := spawn(t, aloneConfig(b), api.Handle(topic, again.note("a")), api.Assign(assignment(topic, 1, rebalance.StartAtOffset(30))))
			m.allHandledIn(t, patience, again, 10)
			m.mustClose(t)
			require.Empty(t, again.repeated())
		}
	})
}

func TestStandaloneFollowsItsLeaders(t *testing.T) {
	t.Parallel()
	const partitions = 6
	b := newEmbedded(t, kafkatest.Brokers(3), kafkatest.Topic("orders", partitions))
	noGroupRequests(t, b)
	l := newLedger()
	m := spawn(t, aloneConfig(b), api.Handle("orders", l.note("a"), api.KeyOrder(8)), api.AssignTopic("orders", rebalance.StartPosition{}))
	stop := stream(t, b, "orders", partitions)
	defer stop()
	for i := range 8 {
		before := l.distinct()
		if i%2 == 0 {
			b.Cluster().ShufflePartitionLeaders()
		} else {
			for p := range int32(partitions) {
				require.NoError(t, b.Cluster().MoveTopicPartition("orders", p, (p+int32(i))%3))
			}
		}
		eventually(t, patience, "records flow on", func() bool { return l.distinct() >= before+60 })
	}
	n := stop()
	m.allHandledIn(t, patience, l, n)
	m.mustClose(t)
	l.allHandled(t, b.EndOffsets(t, "orders"))
	require.Empty(t, l.repeated())
}

func TestStandaloneStoryBrokersHangLongerThanAnySession(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		noGroupRequests(t, b)
		b.CreateTopic(t, "orders", 2)
		l := newLedger()
		m := spawn(t, api.Config{Brokers: b.Addrs()}, api.WithDialer(b.Dial), api.Handle("orders", l.note("a")),
			api.AssignTopic("orders", rebalance.StartPosition{}))
		m.joined(t)
		n := fill(t, b, "orders", 2, 10)
		eventually(t, 2*time.Second, "records flow", func() bool { return l.distinct() == n })
		b.Freeze()
		time.Sleep(10 * time.Minute)
		require.Error(t, m.Healthy())
		b.Thaw()
		n += fill(t, b, "orders", 2, 10)
		eventually(t, time.Minute, "records flow again", func() bool { return l.distinct() == n })
		eventually(t, time.Minute, "it is healthy again", func() bool { return m.Healthy() == nil })
		require.Empty(t, told[event.PartitionsLost](m), "there is nobody to lose them to")
		require.Empty(t, l.repeated())
		b.Freeze()
		started := time.Now()
		m.mustClose(t)
		require.Less(t, time.Since(started), 5*time.Second, "there is nothing to tell the brokers")
	})
}

func TestStandaloneStoryATopicMadeAnewIsReadFromItsBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newEmbedded(t, kafkatest.InMemory(), kafkatest.Topic("orders", 2))
		noGroupRequests(t, b)
		fill(t, b, "orders", 2, 20)
		var mu sync.Mutex
		seen := make(map[string]int)
		m := spawn(t, api.Config{Brokers: b.Addrs(), MetadataMaxAge: 10 * time.Second}, api.WithDialer(b.Dial),
			api.Handle("orders", func(_ context.Context, r *kafka.Record) error {
				time.Sleep(500 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				seen[string(r.Value)]++
				return nil
			}),
			api.Assign(assignment("orders", 0, rebalance.StartAtOffset(5)), assignment("orders", 1, rebalance.StartBy(rebalance.ResetLatest))))
		m.joined(t)
		time.Sleep(3 * time.Second)
		require.NoError(t, b.Cluster().DeleteTopic("orders"))
		time.Sleep(30 * time.Second)
		b.CreateTopic(t, "orders", 2)
		b.Produce(t, "orders", kafka.Record{Value: []byte("new a")}, kafka.Record{Value: []byte("new b")}, kafka.Record{Partition: 1, Value: []byte("new c")})
		time.Sleep(3 * time.Minute)
		mu.Lock()
		require.Equal(t, []int{1, 1, 1}, []int{seen["new a"], seen["new b"], seen["new c"]})
		mu.Unlock()
		lost := told[event.PartitionsLost](m)
		require.Len(t, lost, 1)
		require.ErrorIs(t, lost[0].Err, rebalance.ErrTopicRecreated)
		require.NoError(t, m.Healthy())
		m.mustClose(t)
		time.Sleep(afterTree)
	})
}
