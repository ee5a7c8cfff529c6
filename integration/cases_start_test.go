package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// Cases about where a member starts, and on what.

// twmb/franz-go#479 and others: two processes with one instance id fence each other in a hot loop.
func TestB29_TheNewerMemberOfAnInstanceIDRuns(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 3)
		c := config(b, group)
		c.GroupInstanceID = "billing-0"
		n := fill(t, b, topic, 3, 20)
		older := spawn(t, c, api.Handle(topic, l.note("older")))
		eventually(t, patience, "everything committed", func() bool {
			return l.distinct() == n && assert.ObjectsAreEqual(b.EndOffsets(t, topic), b.Committed(t, group))
		})
		newer := spawn(t, c, api.Handle(topic, l.note("newer")))
		require.True(t, within(patience, older.Done()), "the older one ends")
		require.ErrorIs(t, older.Err(), kafka.FencedInstanceID)
		settled(t, 3, newer)
		n += fill(t, b, topic, 3, 20)
		eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
		generation := newer.Stats().Generation
		newer.mustClose(t) // a static member does not leave

		again := spawn(t, c, api.Handle(topic, l.note("again")))
		settled(t, 3, again)
		require.Equal(t, generation, again.Stats().Generation, "a restart within the session is no rebalance")
		n += fill(t, b, topic, 3, 20)
		eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
		again.mustClose(t)
		require.Empty(t, l.repeated())
		l.noOverlap(t)
	})
}

// The same for a minute, with other members in the group: no loop of joins by the one that was fenced, nothing moves.
func TestB29_TheMemberThatWasFencedJoinsNoMore(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 4)
		joins, l := tapGroup(b, "billing", kmsg.JoinGroup), newLedger()
		join := func(name, instance string) *member {
			c := plain(b)
			c.ClientID, c.GroupInstanceID = name, instance
			return spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.note(name)))
		}
		other := join("other", "") // which leads: a static leader that starts anew asks for a rebalance of its own
		settled(t, 4, other)
		older := join("older", "billing-0")
		settled(t, 4, other, older)
		n := fill(t, b, "orders", 4, 10)
		eventually(t, 5*time.Second, "everything committed", func() bool {
			return l.distinct() == n && assert.ObjectsAreEqual(b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
		})
		id := older.Stats().MemberID
		newer := join("newer", "billing-0")
		require.True(t, within(30*time.Second, older.Done()), "the older one ends")
		require.ErrorIs(t, older.Err(), kafka.FencedInstanceID)
		ended, before := time.Now(), len(joins.of(id))
		settled(t, 4, other, newer)
		settledAt := joins.all()
		n += fill(t, b, "orders", 4, 10)
		time.Sleep(time.Minute)
		require.Equal(t, n, l.distinct())
		require.LessOrEqual(t, len(joins.of(id))-before, 1, "JoinGroup of the fenced one in %v", time.Since(ended))
		require.Equal(t, settledAt, joins.all(), "JoinGroup of anybody")
		require.Empty(t, told[event.PartitionsLost](other))
		other.mustClose(t)
		newer.mustClose(t)
		l.noOverlap(t)
		require.Empty(t, l.repeated())
	})
}

// segmentio/kafka-go#646 and others: a topic that grows is not noticed.
func TestB30_ATopicThatGrowsIsConsumedAsAWhole(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		c := config(b, group)
		m := spawn(t, c, api.Handle(topic, l.note("a")))
		tellsOf(t, m, patience, func(e event.TopicMissing) bool { return e.Topic == topic })
		b.CreateTopic(t, topic, 3)
		n := fill(t, b, topic, 3, 20)
		m.allHandledIn(t, c.MetadataMaxAge+3*time.Second, l, n)
		b.AddPartitions(t, topic, 3)
		n += fill(t, b, topic, 6, 20)
		m.allHandledIn(t, c.MetadataMaxAge+3*time.Second, l, n)
		require.Len(t, m.owned(), 6)
		m.mustClose(t)
		require.Empty(t, l.repeated(), "the old ones are not delivered again")
		require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
	})
}

// librdkafka#3935 and others: a record larger than the fetch limit stops the partition, or spins.
func TestB42_ARecordLargerThanTheFetchLimitIsDelivered(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 2)
		n := fill(t, b, topic, 2, 10) + 1
		b.Produce(t, topic, kafka.Record{Partition: 1, Value: make([]byte, 900<<10)})
		n += fill(t, b, topic, 2, 10)
		c := config(b, group)
		c.PartitionMaxBytes, c.FetchMaxBytes = 16<<10, 64<<10
		m := spawn(t, c, api.Handle(topic, l.note("a")))
		eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
		m.mustClose(t)
		l.inOrder(t, tps(topic, 0, 1)...)
		require.Empty(t, told[event.PartitionFailed](m))
	})
}

// librdkafka#3265 and others: the start is given up while a transaction on the offsets is open.
func TestB56_AnOpenTransactionOnTheOffsetsIsWaitedFor(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		fill(t, b, "orders", 2, 60)
		b.Commit(t, "billing", at("orders", 0), 50)
		open := b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetFetch}, Topic: "orders", Partitions: []int32{0}, Err: kerr.UnstableOffsetCommit, Count: -1})
		l := newLedger()
		m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
		time.Sleep(5 * time.Second)
		other := spawn(t, api.Config{Brokers: b.Addrs(), GroupID: "shipping"}, api.WithDialer(b.Dial), api.Handle("orders", newLedger().note("b")))
		time.Sleep(5 * time.Second)
		started := time.Now()
		other.mustClose(t)
		require.Less(t, time.Since(started), 5*time.Second)
		require.Empty(t, l.of(at("orders", 0)))
		require.Equal(t, 60, l.distinct(), "the other partition does not wait")
		require.Less(t, open.Hits(), 200, "it is not hammered")
		open.Remove()
		eventually(t, 15*time.Second, "it starts", func() bool { return l.distinct() == 70 })
		require.EqualValues(t, 50, l.offsets(at("orders", 0))[0])
		require.EqualValues(t, 1, m.Stats().Rebalances)
		m.mustClose(t)
	})
}

// apache/kafka#15536 and others: what others wrote beside an offset is not ours to read.
func TestB57_ForeignMetadataOfACommitIsIgnored(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 1)
		fill(t, b, topic, 1, 20)
		b.Commit(t, group, at(topic, 0), 7, "xyz\x01\x00\xff")
		m := spawn(t, config(b, group), api.Handle(topic, l.note("a")))
		eventually(t, patience, "every record from the commit on handled", func() bool { return l.distinct() == 13 })
		m.mustClose(t)
		require.EqualValues(t, 7, l.offsets(at(topic, 0))[0])
		require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
	})
}

// B23: a record that waits for its next attempt holds back neither its neighbors nor a rebalance.
func TestB23_ABackoffHoldsNothingBack(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		l := newLedger()
		handle := func(name string) api.Part {
			return api.Handle("orders", l.watch(name, func(ctx context.Context, r *kafka.Record) error {
				if r.Partition == 0 && r.Offset == 3 && name == "one" {
					return fmt.Errorf("attempt %d", actors.DeliveryFrom(ctx).Attempt())
				}
				return nil
			}), api.Restart(slowRestart()))
		}
		c := plain(b)
		c.Assignors = []rebalance.Assignor{rebalance.Range()} // which takes everything from everybody
		one := spawn(t, c, api.WithDialer(b.Dial), handle("one"))
		n := fill(t, b, "orders", 2, 10)
		eventually(t, 5*time.Second, "the other partition is done", func() bool { return len(l.of(at("orders", 1))) == 10 })
		tellsOf(t, one, 5*time.Second, func(e event.HandlerFailed) bool { return e.Offset == 3 })
		two := spawn(t, c, api.WithDialer(b.Dial), handle("two"))
		started := time.Now()
		settled(t, 2, one, two)
		require.Less(t, time.Since(started), 5*time.Second, "the heartbeat tells of it within 3 s")
		released := tellsOf(t, one, time.Second, func(e event.PartitionReleased) bool { return e.TopicPartition == at("orders", 0) })
		require.EqualValues(t, 3, released.Committed)
		if len(one.owned()) == 1 && one.owned()[0].Partition == 0 {
			one.mustClose(t)
		}
		eventually(t, 10*time.Second, "the new owner handles the record", func() bool { return l.distinct() == n })
		two.mustClose(t)
		require.Empty(t, l.repeated())
	})
}

// confluentinc/parallel-consumer#409 and others: what retention removed is tracked as unfinished for ever, so each restart
// begins below the log again.
func TestB04_WhatRetentionRemovedBlocksNoCommit(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 1)
		fill(t, b, topic, 1, 100)
		first := spawn(t, config(b, group), api.Handle(topic, l.watch("first", func(_ context.Context, r *kafka.Record) error {
			if r.Offset >= 10 {
				return errors.New("not yet")
			}
			return nil
		}), api.Restart(slowRestart())))
		eventually(t, patience, "the first ten are committed", func() bool { return b.Committed(t, group)[at(topic, 0)] == 10 })
		first.mustClose(t)
		b.DeleteRecords(t, topic, 0, 60)

		second := newLedger()
		m := spawn(t, config(b, group), api.Handle(topic, second.note("second")))
		eventually(t, patience, "the commit reaches the end", func() bool { return b.Committed(t, group)[at(topic, 0)] == 100 })
		m.mustClose(t)
		require.Len(t, second.offsets(at(topic, 0)), 40)
		require.EqualValues(t, 60, second.offsets(at(topic, 0))[0])
		second.inOrder(t, at(topic, 0))
		resets := told[event.PositionReset](m)
		require.Len(t, resets, 1, "one event for what was skipped")
		require.Equal(t, rebalance.ReasonOutOfRange, resets[0].Reason)
		require.EqualValues(t, 10, resets[0].From)
		require.EqualValues(t, 60, resets[0].To)

		third := newLedger()
		m = spawn(t, config(b, group), api.Handle(topic, third.note("third")))
		settled(t, 1, m)
		pause(time.Second)
		m.mustClose(t)
		require.Zero(t, third.distinct(), "a restart delivers nothing")
		require.Empty(t, told[event.PositionReset](m))
		require.EqualValues(t, 100, b.Committed(t, group)[at(topic, 0)])
	})
}

// The same while the member runs, and holds some of what is removed: those records it has, so they are handled.
func TestB04_WhatRetentionRemovesAheadOfARunningMemberIsSkippedOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 1)
		for range 100 { // batches of their own, so that only some are fetched ahead
			b.Produce(t, topic, kafka.Record{Value: make([]byte, 2000)})
		}
		c := config(b, group)
		c.PartitionMaxBytes = 4 << 10
		release := make(chan struct{})
		m := spawn(t, c, api.Handle(topic, l.watch("a", func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 10 {
				<-release
			}
			return nil
		}), api.MaxRecords(1)))
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		eventually(t, patience, "the first ten are committed", func() bool { return b.Committed(t, group)[at(topic, 0)] == 10 })
		b.DeleteRecords(t, topic, 0, 60)
		free()
		eventually(t, patience, "the commit reaches the end", func() bool { return b.Committed(t, group)[at(topic, 0)] == 100 })
		m.mustClose(t)
		reset := tellsOf(t, m, patience, func(e event.PositionReset) bool { return e.Reason == rebalance.ReasonOutOfRange })
		require.EqualValues(t, 60, reset.To)
		require.Less(t, reset.From, int64(60))
		var want []int64
		for offset := range int64(100) {
			if offset < reset.From || offset >= reset.To {
				want = append(want, offset)
			}
		}
		require.Equal(t, want, l.offsets(at(topic, 0)))
		require.Len(t, told[event.PositionReset](m), 2, "the start, and the skip")
	})
}

// apache/kafka#10167 and others: what is written to a new partition before the group knows of it is lost with latest.
func TestB09_PartitionsAddedLaterStartAtTheirBeginning(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 2)
		fill(t, b, topic, 2, 3)
		c := config(b, group)
		c.MetadataMaxAge = 3 * time.Second
		handle := func(name string) api.Part { return api.Handle(topic, l.note(name), api.ResetTo(rebalance.ResetLatest)) }
		m := spawn(t, c, handle("one"))
		eventually(t, patience, "both start at the end, and that is committed", func() bool {
			return assert.ObjectsAreEqual(map[kafka.TopicPartition]int64{at(topic, 0): 3, at(topic, 1): 3}, b.Committed(t, group))
		})
		toPartition := func(partition int32) []kafka.Record {
			var records []kafka.Record
			for range 10 {
				records = append(records, kafka.Record{Partition: partition})
			}
			return records
		}
		b.AddPartitions(t, topic, 2)
		b.Produce(t, topic, toPartition(3)...)
		m.allHandledIn(t, patience, l, 10)
		m.mustClose(t)

		// The same while nobody is there: the group has been on this topic before.
		b.AddPartitions(t, topic, 1)
		b.Produce(t, topic, toPartition(4)...)
		m = spawn(t, c, handle("two"))
		m.allHandledIn(t, patience, l, 20)
		m.mustClose(t)
		for _, tp := range tps(topic, 3, 4) {
			require.Equal(t, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, l.offsets(tp), "%s", tp)
		}
		require.Empty(t, l.of(at(topic, 0)))
		require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
	})
}
