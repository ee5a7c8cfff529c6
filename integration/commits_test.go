package integration

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// When offsets are committed, what is told when they are not, and acknowledgments that say nothing new.

// committing starts a member with a strategy, on a topic with one partition.
func committing(t *testing.T, b *embeddedBroker, strategy commit.Strategy, l *ledger, parts ...api.Part) *member {
	t.Helper()
	c := plain(b)
	c.CommitStrategy = strategy
	return spawn(t, c, append([]api.Part{api.WithDialer(b.Dial), api.Handle("orders", l.note("a"))}, parts...)...)
}

// begun waits until the start is committed, and returns what is committed besides from then on.
func begun(t *testing.T, b *embeddedBroker) func() int64 {
	t.Helper()
	committed := func() int64 {
		if offset, ok := b.Committed(t, "billing")[at("orders", 0)]; ok {
			return offset
		}
		return kafka.NoOffset
	}
	eventually(t, 5*time.Second, "the start is committed", func() bool { return committed() == 0 })
	return committed
}

func TestStrategy_EveryRecordsWaitsForSoMany(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 1)
		l := newLedger()
		m := committing(t, b, commit.EveryRecords(100), l)
		committed := begun(t, b)
		fill(t, b, "orders", 1, 99)
		time.Sleep(time.Minute)
		require.Equal(t, 99, l.distinct())
		require.Zero(t, committed(), "fewer than a hundred")
		fill(t, b, "orders", 1, 1)
		eventually(t, 2*time.Second, "a hundred are committed", func() bool { return committed() == 100 })
		fill(t, b, "orders", 1, 7)
		time.Sleep(time.Minute)
		require.EqualValues(t, 100, committed())
		m.mustClose(t)
		require.EqualValues(t, 107, committed(), "the rest goes with the close")
	})
}

func TestStrategy_EveryWaitsForItsTime(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 1)
		l := newLedger()
		m := committing(t, b, commit.Every(10*time.Second), l)
		committed := begun(t, b)
		time.Sleep(time.Minute)
		commits := tap(b, "billing", "orders")
		for range 60 {
			fill(t, b, "orders", 1, 5)
			time.Sleep(time.Second)
		}
		require.Equal(t, 300, l.distinct())
		seen := map[int64]bool{}
		for _, c := range commits.list() {
			seen[c.offset] = true
		}
		assert.GreaterOrEqual(t, len(seen), 5)
		assert.LessOrEqual(t, len(seen), 8, "one each ten seconds: %v", seen)
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 300, committed())
		m.mustClose(t)
	})
}

func TestStrategy_OnDemandCommitsWhenAsked(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 1)
		l := newLedger()
		m := committing(t, b, commit.OnDemand(), l)
		committed := begun(t, b)
		fill(t, b, "orders", 1, 50)
		time.Sleep(10 * time.Minute)
		require.Equal(t, 50, l.distinct())
		require.Zero(t, committed())
		require.NoError(t, m.Commit(t.Context()))
		require.EqualValues(t, 50, committed(), "it is there when Commit returns")
		require.NoError(t, m.Commit(t.Context()), "nothing to commit")

		fill(t, b, "orders", 1, 50)
		eventually(t, 5*time.Second, "more is handled", func() bool { return l.distinct() == 100 })
		b.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		started := time.Now()
		require.Error(t, m.Commit(ctx))
		require.Less(t, time.Since(started), 4*time.Second)
		require.EqualValues(t, 50, committed())
		b.Thaw()
		require.NoError(t, m.Commit(t.Context()))
		require.EqualValues(t, 100, committed(), "what could not be committed stayed due")
		fill(t, b, "orders", 1, 5)
		eventually(t, 5*time.Second, "more is handled", func() bool { return l.distinct() == 105 })
		m.mustClose(t)
		require.EqualValues(t, 105, committed(), "a close commits, too")
	})
}

// With Manual nothing is ever committed, and a restart begins where the hook says.
func TestStrategy_ManualCommitsNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 2)
		n := fill(t, b, topic, 2, 40)
		kept := &store{next: make(map[kafka.TopicPartition]int64)}
		c := config(b, group)
		c.CommitStrategy = commit.Manual()
		join := func(name string) *member {
			return spawn(t, c, api.WithPositions(kept.positions), api.Handle(topic, l.watch(name, kept.handle)))
		}
		one := join("one")
		one.allHandledIn(t, patience, l, n)
		require.NoError(t, one.Commit(t.Context()))
		two := join("two") // a rebalance, and then a close
		settled(t, 2, one, two)
		n += fill(t, b, topic, 2, 10)
		two.allHandledIn(t, patience, l, n)
		one.mustClose(t)
		two.mustClose(t)
		require.Empty(t, b.Committed(t, group))
		n += fill(t, b, topic, 2, 10)
		three := join("three")
		three.allHandledIn(t, patience, l, n)
		three.mustClose(t)
		require.Empty(t, b.Committed(t, group))
		require.Empty(t, l.repeated())
		l.inOrder(t, tps(topic, 0, 1)...)
	})
}

// brittle is a strategy that panics when it is asked the second time.
type brittle struct{ asked *atomic.Int64 }

func (brittle) Name() string { return "brittle" }

func (s brittle) Due(commit.State) (time.Time, bool) {
	if s.asked.Add(1) > 1 {
		panic(errors.New("no such table"))
	}
	return time.Time{}, true
}

func TestStrategy_OneThatPanicsIsReplacedAndToldOf(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 1)
		l, asked := newLedger(), new(atomic.Int64)
		m := committing(t, b, brittle{asked}, l)
		for n := 1; n <= 10; n++ {
			fill(t, b, "orders", 1, 10)
			eventually(t, 2*time.Second, "commits go on", func() bool {
				return b.Committed(t, "billing")[at("orders", 0)] == int64(10*n)
			})
		}
		m.mustClose(t)
		failed := told[event.StrategyFailed](m)
		require.Len(t, failed, 1)
		require.Equal(t, "brittle", failed[0].Strategy)
		require.ErrorIs(t, failed[0].Err, commit.ErrStrategyPanicked)
		require.ErrorContains(t, failed[0].Err, "no such table")
		require.EqualValues(t, 2, asked.Load(), "it is not asked again")
		require.Empty(t, told[event.ActorRestarted](m))
	})
}

// A commit that stands still is told of again and again, ever more seldom, and is in the stats until it moves.
func TestCommitBlocked_IsToldAndInTheStats(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		fill(t, b, "orders", 2, 30)
		l, release := newLedger(), make(chan struct{})
		c := plain(b)
		c.BlockedAfter = 5 * time.Second
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.watch("a", func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 1 && r.Offset == 12 {
				<-release
			}
			return nil
		}), api.Unordered(4)))
		eventually(t, 3*time.Second, "the others are handled", func() bool { return l.distinct() == 59 })
		p, _ := m.partition(at("orders", 1))
		require.Nil(t, p.Blocked, "not for long enough")
		time.Sleep(time.Minute)
		blocked := told[event.CommitBlocked](m)
		require.Len(t, blocked, 4, "after 5, 10, 20 and 40 seconds")
		for i, e := range blocked {
			assert.Equal(t, at("orders", 1), e.TopicPartition)
			assert.EqualValues(t, 12, e.Offset)
			assert.Equal(t, "running", e.Handler)
			assert.Equal(t, 1, e.Attempt)
			assert.Equal(t, 17, e.Finished)
			assert.InDelta(t, (5 * time.Second << i).Seconds(), e.Age.Seconds(), 0.1)
		}
		p, _ = m.partition(at("orders", 1))
		require.NotNil(t, p.Blocked)
		require.EqualValues(t, 12, p.Blocked.Offset)
		require.Equal(t, 17, p.Blocked.Finished)
		require.Equal(t, "running", p.Blocked.Handler)
		p, _ = m.partition(at("orders", 0))
		require.Nil(t, p.Blocked)
		close(release)
		eventually(t, 5*time.Second, "it is committed", func() bool { return b.Committed(t, "billing")[at("orders", 1)] == 30 })
		p, _ = m.partition(at("orders", 1))
		require.Nil(t, p.Blocked)
		m.mustClose(t)
	})
}

// The state of partitions that were given up is freed, also where records were not finished: what a member holds after
// fifty rebalances is what it held after ten. It measures the memory of this process, so it runs alone.
func TestTheStateOfRevokedPartitionsIsFreed(t *testing.T) {
	// What each round fetches is 800 KiB; a few answers under way are what the heap differs by.
	const rounds, warm, slack = 50, 10, 8 << 20
	b := newEmbedded(t)
	b.CreateTopic(t, "orders", 4)
	records := make([]kafka.Record, 0, 4*200)
	for p := range int32(4) {
		for range 200 {
			records = append(records, kafka.Record{Partition: p, Value: make([]byte, 1000)})
		}
	}
	b.Produce(t, "orders", records...)
	c := config(b, "billing")
	c.HeartbeatInterval, c.OffsetMap = 10*time.Millisecond, true
	handle := api.Handle("orders", func(_ context.Context, r *kafka.Record) error {
		if r.Offset%50 == 10 {
			return errors.New("never") // so that each revocation leaves holes, and what is beyond them
		}
		return nil
	}, api.Unordered(8), api.Restart(slowRestart()))
	quiet := api.WithObserver(func(event.Event) {}) // a log of events would grow
	system := actor.NewActorSystem()                // each takes more than what is measured here
	stays := spawn(t, c, handle, quiet, api.WithActorSystem(system))
	var first int64
	for i := range rounds {
		consumer, err := api.Spawn(t.Context(), c, handle, api.WithActorSystem(system)) // by spawn, the test would hold it to its end
		require.NoError(t, err)
		comes := &member{Consumer: consumer}
		settled(t, 4, stays, comes)
		eventually(t, patience, "what it was given is in work", func() bool {
			for _, p := range append(stays.Stats().Partitions, comes.Stats().Partitions...) {
				if p.Position < 200 {
					return false
				}
			}
			return true
		})
		comes.mustClose(t)
		settled(t, 4, stays)
		if i+1 == warm {
			first = liveHeap()
		}
	}
	last := liveHeap()
	t.Logf("live heap after %d rounds %d KiB, after %d %d KiB", warm, first>>10, rounds, last>>10)
	require.Less(t, last, first+slack)
	stays.mustClose(t)
}

// acknowledged is what a handler of each kind leaves for others to acknowledge.
type acknowledged interface {
	Ack() error
	Nack(cause error) error
}

// ofDelivery is one record of an actor's delivery.
type ofDelivery struct {
	*actors.Deliver
	offset int64
}

func (d ofDelivery) Ack() error             { return d.Deliver.Ack(d.offset) }
func (d ofDelivery) Nack(cause error) error { return d.Deliver.Nack(d.offset, cause) }

// Acknowledgments that come twice, too late, or for what was never delivered have a typed answer, are counted where they
// are too late, and change nothing.
func TestAcks_ThatSayNothingNewChangeNothing(t *testing.T) {
	for name, option := range map[string]api.HandlerOption{"PartitionOrder": api.PartitionOrder(), "KeyOrder": api.KeyOrder(4), "Unordered": api.Unordered(4)} {
		for _, kind := range []string{"HandleAsync", "HandleActor"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				story(t, func(t *testing.T, b *embeddedBroker) { lateAndTwice(t, b, kind, option) })
			})
		}
	}
}

func lateAndTwice(t *testing.T, b *embeddedBroker, kind string, option api.HandlerOption) {
	b.CreateTopic(t, "orders", 1)
	fill(t, b, "orders", 1, 6)
	var mu sync.Mutex
	held := make(map[int64]acknowledged)
	hold := func(offset int64, d acknowledged) {
		mu.Lock()
		defer mu.Unlock()
		held[offset] = d
	}
	reg := api.HandleAsync("orders", func(_ context.Context, d *actors.RecordDelivery) { hold(d.Offset(), d) }, option)
	if kind == "HandleActor" {
		reg = api.HandleActor("orders", func(kafka.TopicPartition) actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				if d, ok := ctx.Message().(*actors.Deliver); ok {
					for _, r := range d.Records() {
						hold(r.Offset, ofDelivery{d, r.Offset})
					}
				}
			})
		}, option)
	}
	m := spawn(t, plain(b), api.WithDialer(b.Dial), reg)
	eventually(t, 5*time.Second, "every record is held", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(held) == 6
	})
	cause := errors.New("too late")
	for _, offset := range []int64{0, 1, 3} {
		for range 3 {
			require.NoError(t, held[offset].Ack())
		}
		require.NoError(t, held[offset].Nack(cause), "it has its verdict")
	}
	if d, ok := held[0].(ofDelivery); ok {
		require.ErrorIs(t, d.Deliver.Ack(99), actors.ErrNotInDelivery)
		require.ErrorIs(t, d.Deliver.Nack(-1, cause), actors.ErrNotInDelivery)
	}
	eventually(t, 5*time.Second, "what is contiguous is committed", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == 2 })
	require.Zero(t, m.Stats().StaleAcks)
	require.Empty(t, told[event.HandlerFailed](m))
	closeAtOnce(t, m)

	before := m.Stats().StaleAcks
	for _, offset := range []int64{2, 4} {
		require.ErrorIs(t, held[offset].Ack(), actors.ErrStale)
		require.ErrorIs(t, held[offset].Ack(), actors.ErrStale)
		require.ErrorIs(t, held[offset].Nack(cause), actors.ErrStale)
	}
	require.Equal(t, before+6, m.Stats().StaleAcks)
	require.EqualValues(t, 2, b.Committed(t, "billing")[at("orders", 0)])

	// The next consumer is not touched by what the other's deliveries are told.
	l := newLedger()
	next := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("next"), option))
	eventually(t, 5*time.Second, "the rest is handled", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == 6 })
	require.ErrorIs(t, held[5].Ack(), actors.ErrStale)
	require.Zero(t, next.Stats().StaleAcks)
	require.Equal(t, before+7, m.Stats().StaleAcks)
	next.mustClose(t)
	require.Equal(t, []int64{2, 3, 4, 5}, sorted(l.offsets(at("orders", 0))))
}

func sorted(offsets []int64) []int64 {
	slices.Sort(offsets)
	return offsets
}
