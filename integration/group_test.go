package integration

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

// settled waits until the members own the topics' partitions among themselves, each of them at least one.
func settled(t *testing.T, partitions int, members ...*member) {
	t.Helper()
	eventually(t, patience, "the group settles", func() bool {
		owners, generations := map[kafka.TopicPartition]int{}, map[kafka.Generation]bool{}
		for _, m := range members {
			stats := m.Stats()
			if len(stats.Partitions) == 0 || stats.State != rebalance.StateAssigned.String() {
				return false
			}
			generations[stats.Generation] = true
			for _, p := range stats.Partitions {
				owners[p.TopicPartition]++
			}
		}
		return len(owners) == partitions && len(generations) == 1
	})
}

// stream produces rounds of records to every partition until it is stopped, and returns how many that were.
func stream(t *testing.T, b broker, topic string, partitions int32) (stop func() int) {
	t.Helper()
	done := make(chan struct{})
	total := make(chan int, 1)
	ctx := context.WithoutCancel(t.Context())
	go func() {
		n := 0
		for !within(50*time.Millisecond, done) {
			records := numbered(partitions, 5)
			if err := b.TryProduce(ctx, topic, records...); err != nil {
				t.Errorf("produce: %v", err)
				break
			}
			n += len(records)
		}
		total <- n
	}()
	return sync.OnceValue(func() int {
		close(done)
		return <-total
	})
}

func membersJoinAndLeave(t *testing.T, b broker) {
	const partitions = 6
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	work := func(context.Context, *kafka.Record) error {
		pause(time.Millisecond)
		return nil
	}
	join := func(name string) *member { return spawn(t, config(b, group), api.Handle(topic, l.watch(name, work))) }
	stop := stream(t, b, topic, partitions)
	defer stop()
	one, two := join("one"), join("two")
	settled(t, partitions, one, two)
	three := join("three")
	settled(t, partitions, one, two, three)
	require.Len(t, b.Group(t, group).Members, 3)
	before := l.distinct()
	eventually(t, patience, "records flow with three", func() bool { return l.distinct() > before+100 })
	one.mustClose(t)
	settled(t, partitions, two, three)
	before = l.distinct()
	eventually(t, patience, "records flow with the two left", func() bool { return l.distinct() > before+100 })
	n := stop()
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	two.mustClose(t)
	three.mustClose(t)
	ends := b.EndOffsets(t, topic)
	l.allHandled(t, ends)
	l.noOverlap(t)
	// Handlers end inside the drain deadline and the coordinator is there, so that nothing has to be repeated.
	require.Empty(t, l.repeated())
	require.Equal(t, ends, b.Committed(t, group))
	for _, m := range []*member{one, two, three} {
		require.Empty(t, told[event.PartitionsLost](m))
		require.Zero(t, m.Stats().StaleAcks)
	}
}

func resetEarliest(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	fill(t, b, topic, 2, 10)
	b.DeleteRecords(t, topic, 0, 4)
	m := spawn(t, config(b, group), api.Handle(topic, l.note("a")))
	eventually(t, patience, "what is left is handled", func() bool { return l.distinct() == 16 })
	require.EqualValues(t, 4, l.offsets(at(topic, 0))[0])
	reset := tellsOf(t, m, patience, func(e event.PositionReset) bool { return e.TopicPartition == at(topic, 0) })
	require.Equal(t, rebalance.ReasonNoCommit, reset.Reason)
	require.EqualValues(t, 4, reset.To)
	m.mustClose(t)
}

func resetLatest(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	fill(t, b, topic, 2, 10)
	c := config(b, group)
	c.Reset = rebalance.ResetLatest
	m := spawn(t, c, api.Handle(topic, l.note("a")))
	// The start is committed at once: a restart before the first record must not skip what came meanwhile.
	eventually(t, patience, "the start is committed", func() bool {
		committed := b.Committed(t, group)
		return committed[at(topic, 0)] == 10 && committed[at(topic, 1)] == 10
	})
	m.mustClose(t)
	fill(t, b, topic, 2, 5)
	m = spawn(t, c, api.Handle(topic, l.note("b")))
	eventually(t, patience, "what came meanwhile is handled", func() bool { return l.distinct() == 10 })
	m.mustClose(t)
	require.Equal(t, []int64{10, 11, 12, 13, 14}, l.offsets(at(topic, 0)))
}

func resetNone(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	fill(t, b, topic, 2, 10)
	b.Commit(t, group, at(topic, 0), 3)
	b.Commit(t, group, at(topic, 1), 3)
	b.DeleteRecords(t, topic, 1, 8)
	c := config(b, group)
	c.Reset = rebalance.ResetNone
	m := spawn(t, c, api.Handle(topic, l.note("a")))
	failed := tellsOf(t, m, patience, func(event.PartitionFailed) bool { return true })
	require.Equal(t, at(topic, 1), failed.TopicPartition)
	require.ErrorIs(t, failed.Err, rebalance.ErrNoOffset)
	require.ErrorIs(t, failed.Err, kafka.OffsetOutOfRange)
	require.EqualValues(t, 3, failed.Offset)
	eventually(t, patience, "the partition with a valid commit is handled", func() bool { return l.distinct() == 7 })
	require.Empty(t, l.of(at(topic, 1)))
	m.mustClose(t)
	require.Equal(t, map[kafka.TopicPartition]int64{at(topic, 0): 10, at(topic, 1): 3}, b.Committed(t, group))
}

// B09: records written to a new partition before the group knew of it are not lost with policy latest.
func newPartitionStartsAtItsBeginning(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	fill(t, b, topic, 2, 3)
	c := config(b, group)
	c.Reset, c.MetadataMaxAge = rebalance.ResetLatest, 2*time.Second
	m := spawn(t, c, api.Handle(topic, l.note("a")))
	eventually(t, patience, "the start is committed", func() bool { return len(b.Committed(t, group)) == 2 })
	b.AddPartitions(t, topic, 2)
	var records []kafka.Record
	for range 10 {
		records = append(records, kafka.Record{Partition: 3})
	}
	b.Produce(t, topic, records...)
	eventually(t, patience, "the new partition is handled from its start", func() bool { return l.distinct() == 10 })
	require.Equal(t, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, l.offsets(at(topic, 3)))
	reset := tellsOf(t, m, patience, func(e event.PositionReset) bool { return e.TopicPartition == at(topic, 3) })
	require.Equal(t, rebalance.ReasonNewPartition, reset.Reason)
	changed := tellsOf(t, m, patience, func(e event.TopicChanged) bool { return e.NewCount == 4 })
	require.EqualValues(t, 2, changed.OldCount)
	m.mustClose(t)
	require.Empty(t, l.repeated())
}

// keepingActor keeps its deliveries until somebody acknowledges them.
type keepingActor struct{ kept chan *actors.Deliver }

func (a keepingActor) Receive(ctx actor.Context) {
	if m, ok := ctx.Message().(*actors.Deliver); ok {
		a.kept <- m
	}
}

// B13: an acknowledgment that lands after the partition was given up is counted and changes nothing, also when the
// partition is back under a new epoch.
func lateAckIsStale(t *testing.T, b broker) {
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 2)
	fill(t, b, topic, 2, 10)
	kept := make(chan *actors.Deliver, 16)
	c := config(b, group)
	c.DrainTimeout = 300 * time.Millisecond
	c.Assignors = []rebalance.Assignor{rebalance.Range()} // which takes everything from everybody
	a := spawn(t, c, api.HandleActor(topic, func(kafka.TopicPartition) actor.Actor { return keepingActor{kept} }))
	first, second := receive(t, kept), receive(t, kept)
	require.NoError(t, first.Ack(0))
	eventually(t, patience, "the first record is committed", func() bool { return b.Committed(t, group)[first.TopicPartition()] == 1 })

	// The other member only takes partitions; it never acknowledges.
	others := make(chan *actors.Deliver, 16)
	other := spawn(t, c, api.HandleActor(topic, func(kafka.TopicPartition) actor.Actor { return keepingActor{others} }))
	again, moved := receive(t, kept), receive(t, others)
	require.ErrorIs(t, first.AckAll(), actors.ErrStale)
	require.ErrorIs(t, second.AckAll(), actors.ErrStale)
	require.ErrorIs(t, second.Nack(3, errors.New("late")), actors.ErrStale)
	require.EqualValues(t, 3, a.Stats().StaleAcks)
	for _, d := range []*actors.Deliver{first, second} {
		require.Error(t, d.Context().Err())
	}
	for _, d := range []*actors.Deliver{again, moved} {
		want := int64(0)
		if d.TopicPartition() == first.TopicPartition() {
			want = 1
		}
		require.Equal(t, want, d.Records()[0].Offset, "%s starts at its commit", d.TopicPartition())
		require.NoError(t, d.Ack(want))
		eventually(t, patience, "one more record is committed", func() bool { return b.Committed(t, group)[d.TopicPartition()] >= want+1 })
		require.Equal(t, want+1, b.Committed(t, group)[d.TopicPartition()], "the late acknowledgment has no part in it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, _ = a.Close(ctx), other.Close(ctx) // their actors keep records
}

func TestLeadersAndCoordinatorsMove(t *testing.T) {
	t.Parallel()
	const partitions = 6
	b := newEmbedded(t, kafkatest.Brokers(3), kafkatest.Topic("orders", partitions))
	l := newLedger()
	work := func(context.Context, *kafka.Record) error {
		pause(500 * time.Microsecond)
		return nil
	}
	one := spawn(t, config(b, "billing"), api.Handle("orders", l.watch("one", work)))
	two := spawn(t, config(b, "billing"), api.Handle("orders", l.watch("two", work)))
	settled(t, partitions, one, two)
	stop := stream(t, b, "orders", partitions)
	defer stop()
	for i := range 12 {
		before := l.distinct()
		switch i % 3 {
		case 0:
			b.Cluster().ShufflePartitionLeaders()
		case 1:
			for p := range int32(partitions) {
				require.NoError(t, b.Cluster().MoveTopicPartition("orders", p, (p+int32(i))%3))
			}
		case 2:
			b.Cluster().RehashCoordinators()
		}
		eventually(t, patience, "records flow on", func() bool { return l.distinct() >= before+60 })
	}
	n := stop()
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	one.mustClose(t)
	two.mustClose(t)
	ends := b.EndOffsets(t, "orders")
	l.allHandled(t, ends)
	l.noOverlap(t)
	require.Empty(t, l.repeated())
	require.Equal(t, ends, b.Committed(t, "billing"))
	require.Empty(t, told[event.PartitionsLost](one))
	require.Empty(t, told[event.PartitionsLost](two))
}
