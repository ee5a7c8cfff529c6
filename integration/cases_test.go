package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// IBM/sarama and others: the lag stays 1 for ever, because the commit never passes the transaction's marker.
func TestB03_ACommitPassesTransactionMarkers(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 1)
		for i := range 3 {
			b.Transaction(t, topic, kafka.Record{Value: fmt.Appendf(nil, "paid-%d", i)})
		}
		// A real broker writes a marker a moment after it says that the transaction has ended.
		var ends map[kafka.TopicPartition]int64
		eventually(t, patience, "three records and three markers are there", func() bool {
			ends = b.EndOffsets(t, topic)
			return ends[at(topic, 0)] == 6
		})
		release := make(chan struct{})
		var third atomic.Int64
		m := spawn(t, config(b, group), api.Handle(topic, l.watch("a", func(_ context.Context, r *kafka.Record) error {
			if string(r.Value) == "paid-2" {
				third.Store(r.Offset)
				<-release
			}
			return nil
		})))
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		eventually(t, patience, "all before the third is committed", func() bool {
			return third.Load() > 0 && b.Committed(t, group)[at(topic, 0)] == third.Load()
		})
		pause(700 * time.Millisecond)
		require.Equal(t, third.Load(), b.Committed(t, group)[at(topic, 0)], "the third is still with its handler")
		free()
		eventually(t, 3*time.Second, "the commit is at the high watermark", func() bool {
			return assert.ObjectsAreEqual(ends, b.Committed(t, group))
		})
		eventually(t, patience, "no lag", func() bool {
			p, ok := m.partition(at(topic, 0))
			return ok && p.LagKnown && p.Lag == 0 && p.Committed == 6
		})
		m.mustClose(t)
		// A marker may come after the next record, so which offsets the records have is the broker's choice.
		require.Len(t, l.offsets(at(topic, 0)), 3)
		require.Equal(t, ends, b.Committed(t, group))
	})
}

// IBM/sarama#2855 and others: out-of-range on one partition stops it for days.
func TestB06_OutOfRangeConcernsOnePartition(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 3)
		for range 60 { // batches of their own, so that only some are fetched ahead
			b.Produce(t, topic, kafka.Record{Partition: 1, Value: make([]byte, 2000)})
		}
		c := config(b, group)
		c.PartitionMaxBytes = 4 << 10
		entered, release := make(chan struct{}), make(chan struct{})
		m := spawn(t, c, api.Handle(topic, l.watch("a", func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 1 && r.Offset == 0 {
				close(entered)
				<-release
			}
			return nil
		}), api.MaxRecords(1)))
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		receive(t, entered)
		n := fill(t, b, topic, 1, 20)
		eventually(t, patience, "the others flow", func() bool { return len(l.of(at(topic, 0))) == n })
		b.DeleteRecords(t, topic, 1, 50)
		free()
		tellsOf(t, m, patience, func(e event.PositionReset) bool { return e.Reason == rebalance.ReasonOutOfRange })
		eventually(t, patience, "what is left is handled", func() bool {
			offsets := l.offsets(at(topic, 1))
			return len(offsets) > 10 && offsets[len(offsets)-1] == 59
		})
		fill(t, b, topic, 3, 5)
		eventually(t, patience, "all flow on", func() bool { return assert.ObjectsAreEqual(b.EndOffsets(t, topic), b.Committed(t, group)) })
		m.mustClose(t)
		var resets []event.PositionReset
		for _, e := range told[event.PositionReset](m) {
			if e.Reason == rebalance.ReasonOutOfRange {
				resets = append(resets, e)
			}
		}
		require.Len(t, resets, 1)
		require.Equal(t, at(topic, 1), resets[0].TopicPartition)
		require.EqualValues(t, 50, resets[0].To)
		require.Less(t, resets[0].From, int64(50))
		require.Empty(t, l.repeated())
		l.inOrder(t, tps(topic, 0, 1, 2)...)
		require.Len(t, told[event.PartitionsAssigned](m), 1, "no rebalance")
	})
}

// The same with a stored offset above the end of the log, and below its start.
func TestB06_ACommitOutsideOfTheLogIsReset(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 3)
		fill(t, b, topic, 3, 20)
		b.Commit(t, group, at(topic, 0), 10)
		b.Commit(t, group, at(topic, 1), 99)
		b.Commit(t, group, at(topic, 2), 2)
		b.DeleteRecords(t, topic, 2, 15)
		m := spawn(t, config(b, group), api.Handle(topic, l.note("a")))
		eventually(t, patience, "all is handled", func() bool { return l.distinct() == 10+20+5 })
		m.mustClose(t)
		require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
		resets := map[kafka.TopicPartition][2]int64{}
		for _, e := range told[event.PositionReset](m) {
			resets[e.TopicPartition] = [2]int64{e.From, e.To}
		}
		require.Equal(t, map[kafka.TopicPartition][2]int64{at(topic, 1): {99, 0}, at(topic, 2): {2, 15}}, resets)
		require.EqualValues(t, 10, l.offsets(at(topic, 0))[0])
	})
}

// IBM/sarama#2677: offsets vanish on restart. (That the retention field is -1 in the bytes is a test of internal/wire.)
func TestB10_TheCommitIsThereAfterARestart(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 2)
		n := fill(t, b, topic, 2, 30)
		m := spawn(t, config(b, group), api.Handle(topic, l.note("a")))
		eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
		m.mustClose(t)
		eventually(t, patience, "the group is empty", func() bool { return len(b.Group(t, group).Members) == 0 })
		committed := b.Committed(t, group)
		require.Equal(t, b.EndOffsets(t, topic), committed)
		again := newLedger()
		m = spawn(t, config(b, group), api.Handle(topic, again.note("b")))
		m.joined(t)
		eventually(t, patience, "it starts at the commit", func() bool {
			p, ok := m.partition(at(topic, 1))
			return ok && p.Position == 30 && p.Committed == 30
		})
		m.mustClose(t)
		require.Empty(t, again.of(at(topic, 0)))
		require.Empty(t, told[event.PositionReset](m))
		require.Equal(t, committed, b.Committed(t, group))
	})
}

// segmentio/kafka-go#390 and others: a clean stop loses the last commits.
func TestB15_ACloseTriesTheLastCommitUntilItIsConfirmed(t *testing.T) {
	t.Parallel()
	b := newEmbedded(t)
	b.CreateTopic(t, "orders", 1)
	fill(t, b, "orders", 1, 100)
	entered, release := make(chan struct{}), make(chan struct{})
	m := spawn(t, config(b, "billing"), api.Handle("orders", func(_ context.Context, r *kafka.Record) error {
		if r.Offset == 99 {
			close(entered)
			<-release
		}
		return nil
	}))
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	receive(t, entered)
	eventually(t, patience, "all others are committed", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == 99 })

	var mu sync.Mutex
	var seen []string
	note := func(what string) int {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, what)
		return len(seen)
	}
	b.Cluster().ControlKey(kmsg.OffsetCommit.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		commit := req.(*kmsg.OffsetCommitRequest)
		switch note("commit") {
		case 1:
			resp := commit.ResponseKind().(*kmsg.OffsetCommitResponse)
			for _, topic := range commit.Topics {
				answer := kmsg.NewOffsetCommitResponseTopic()
				answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
				for _, p := range topic.Partitions {
					part := kmsg.NewOffsetCommitResponseTopicPartition()
					part.Partition, part.ErrorCode = p.Partition, kerr.RequestTimedOut.Code
					answer.Partitions = append(answer.Partitions, part)
				}
				resp.Topics = append(resp.Topics, answer)
			}
			return resp, nil, true
		case 2:
			return nil, errors.New("the connection is cut"), true
		}
		return nil, nil, false
	})
	committedAtLeave := make(chan int64, 1)
	b.Cluster().ControlKey(kmsg.LeaveGroup.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		note("leave")
		b.Cluster().SleepControl(func() {
			committed, _ := b.Broker.Committed("billing")
			committedAtLeave <- committed[at("orders", 0)]
		})
		return nil, nil, false
	})
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		closed <- m.Close(ctx)
	}()
	tellsOf(t, m, patience, func(e event.PartitionsRevoked) bool { return e.Closing })
	free()
	require.NoError(t, receive(t, closed))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"commit", "commit", "commit", "leave"}, seen)
	require.EqualValues(t, 100, receive(t, committedAtLeave))
	require.EqualValues(t, 100, b.Committed(t, "billing")[at("orders", 0)])
}

// closeAll closes a consumer from many goroutines at once and demands the same result everywhere.
func closeAll(t *testing.T, m *member) error {
	t.Helper()
	const closers = 10
	results := make(chan error, closers)
	for range closers {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			results <- m.Close(ctx)
		}()
	}
	first := receive(t, results)
	for range closers - 1 {
		require.Equal(t, first, receive(t, results))
	}
	return first
}

// IBM/sarama#598 and others: a second or concurrent Close panics; records are lost at close.
func TestB19_CloseMayBeCalledByAnyoneAtAnyTime(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 3)
		n := fill(t, b, topic, 3, 200)
		t.Run("BeforeTheFirstJoin", func(t *testing.T) {
			m := spawn(t, config(b, group), api.Handle(topic, l.note("early")))
			require.NoError(t, closeAll(t, m))
			require.NoError(t, m.Err())
		})
		t.Run("InsideAHandler", func(t *testing.T) {
			var m *member
			spawned, inside := make(chan struct{}), make(chan error, 3)
			m = spawn(t, config(b, group), api.Handle(topic, l.watch("inside", func(ctx context.Context, r *kafka.Record) error {
				<-spawned
				if r.Offset == 20 {
					if r.Partition == 0 {
						ctx = context.Background() // not the handler's: recognized all the same
					}
					inside <- m.Close(ctx)
				}
				return nil
			}), api.MaxRecords(5)))
			close(spawned)
			require.ErrorIs(t, receive(t, inside), actors.ErrClosing)
			require.True(t, within(patience, m.Done()))
			require.NoError(t, closeAll(t, m))
			require.NoError(t, m.Err())
		})
		t.Run("ManyAtOnce", func(t *testing.T) {
			before := l.distinct()
			m := spawn(t, config(b, group), api.Handle(topic, l.watch("many", func(context.Context, *kafka.Record) error {
				pause(time.Millisecond)
				return nil
			}), api.MaxRecords(5)))
			eventually(t, patience, "it works", func() bool { return l.distinct() > before })
			require.NoError(t, closeAll(t, m))
		})
		t.Run("AfterTheTreeFailed", func(t *testing.T) {
			broken := errors.New("broken")
			m := spawn(t, config(b, group), api.Handle(topic, func(context.Context, *kafka.Record) error { return broken },
				api.Restart(supervisor.Policy{MaxRestarts: 1, OnSpent: supervisor.StopAll, Backoff: quick().Backoff})))
			require.True(t, within(patience, m.Done()))
			require.ErrorIs(t, m.Err(), broken)
			require.ErrorIs(t, closeAll(t, m), broken)
		})
		m := spawn(t, config(b, group), api.Handle(topic, l.note("last")))
		eventually(t, patience, "what was dropped at close is delivered to the next member", func() bool { return l.distinct() == n })
		m.mustClose(t)
		require.Empty(t, l.repeated())
		require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
	})
}

// IBM/sarama#1554 and others: nobody reads the errors and the core blocks.
func TestB51_ErrorsThatNobodyReadsBlockNothing(t *testing.T) {
	t.Parallel()
	const partitions, perPartition, failures = 20, 100, 10_000
	b := newEmbedded(t)
	b.CreateTopic(t, "orders", partitions)
	n := fill(t, b, "orders", partitions, perPartition)
	l := newLedger()
	stuck := make(chan struct{})
	defer close(stuck)
	var failed atomic.Int64
	handle := api.Handle("orders", l.watch("a", func(ctx context.Context, r *kafka.Record) error {
		if actors.DeliveryFrom(ctx).Attempt() <= failures/(partitions*perPartition) {
			failed.Add(1)
			return errors.New("again")
		}
		return nil
	}), api.Restart(supervisor.Policy{MaxRestarts: 10_000, Window: time.Second, Backoff: supervisor.Backoff{Initial: supervisor.NoDelay}}))
	a := spawn(t, config(b, "billing"), handle, api.WithObserver(func(event.Event) { <-stuck }), api.WithObserverBuffer(64))
	eventually(t, patience, "half of it is done", func() bool { return l.distinct() > n/2 })
	other := spawn(t, config(b, "billing"), handle)
	settled(t, partitions, a, other)
	eventually(t, 2*patience, "every record handled", func() bool { return l.distinct() == n })
	require.GreaterOrEqual(t, failed.Load(), int64(failures))
	started := time.Now()
	stats := a.Stats()
	a.mustClose(t)
	require.Less(t, time.Since(started), 10*time.Second)
	other.mustClose(t)
	require.Greater(t, stats.EventsDropped, uint64(failures/2))
	require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
	l.noOverlap(t)
}

// nackingActor acknowledges everything but one record, which it refuses for ever.
type nackingActor struct {
	bad  int64
	seen chan<- delivered
}

type delivered struct {
	offsets []int64
	attempt int
	when    time.Time
}

func (a nackingActor) Receive(ctx actor.Context) {
	m, ok := ctx.Message().(*actors.Deliver)
	if !ok {
		return
	}
	d := delivered{attempt: m.Attempt(), when: time.Now()}
	for _, r := range m.Records() {
		d.offsets = append(d.offsets, r.Offset)
		if r.Offset == a.bad {
			_ = m.Nack(r.Offset, errors.New("not this one"))
			continue
		}
		_ = m.Ack(r.Offset)
	}
	a.seen <- d
}

// segmentio/kafka-go#764 and others: record 2 fails, the acknowledgment of 3 commits past it, and it is lost.
func TestB45_ACommitNeverPassesARecordThatFailed(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group := unique(t, "topic"), unique(t, "group")
		b.CreateTopic(t, topic, 1)
		fill(t, b, topic, 1, 11) // 1..10, and 0 before them
		const backoff = 100 * time.Millisecond
		policy := supervisor.Policy{MaxRestarts: 1000, Backoff: supervisor.Backoff{Initial: backoff, Max: backoff, Jitter: supervisor.NoJitter}}
		consume := func(bad int64) (*member, <-chan delivered) {
			seen := make(chan delivered, 1000)
			return spawn(t, config(b, group), api.HandleActor(topic, func(kafka.TopicPartition) actor.Actor {
				return nackingActor{bad, seen}
			}, api.Restart(policy))), seen
		}
		m, seen := consume(4)
		first := receive(t, seen)
		require.Equal(t, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, first.offsets)
		for last, attempt := first.when, 2; attempt <= 4; attempt++ {
			again := receive(t, seen)
			require.Equal(t, []int64{4}, again.offsets, "the others are acknowledged")
			require.Equal(t, attempt, again.attempt)
			require.GreaterOrEqual(t, again.when.Sub(last), backoff)
			last = again.when
		}
		require.EqualValues(t, 4, b.Committed(t, group)[at(topic, 0)])
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := m.Close(ctx); err != nil { // it may say that 4 was never finished
			require.ErrorAs(t, err, new(*actors.CloseError))
		}
		require.Equal(t, map[kafka.TopicPartition]int64{at(topic, 0): 4}, b.Committed(t, group))

		m, seen = consume(kafka.NoOffset)
		require.Equal(t, []int64{4, 5, 6, 7, 8, 9, 10}, receive(t, seen).offsets)
		eventually(t, patience, "all is committed", func() bool { return b.Committed(t, group)[at(topic, 0)] == 11 })
		m.mustClose(t)
	})
}
