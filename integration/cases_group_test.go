package integration

import (
	"context"
	"slices"
	"sync"
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
	"github.com/troupego/troupe/rebalance"
)

// Cases about partitions that go to another member, and come back.

// handles keeps what an asynchronous handler or a handler actor was given, by offset; of a record that came again, the last.
type handles struct {
	mu   sync.Mutex
	held map[spot]acknowledged
}

func (h *handles) hold(s spot, d acknowledged) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		h.held = make(map[spot]acknowledged)
	}
	h.held[s] = d
}

func (h *handles) of(s spot) acknowledged {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[s]
}

// akka/alpakka-kafka#118 and others: a member goes on committing a partition that it gave up, by a timer, and takes the
// commit of the new owner back.
func TestB12_NothingOfAPartitionThatWasGivenUpIsCommittedByAnyTimer(t *testing.T) {
	for name, strategy := range map[string]commit.Strategy{"Opportunistic": commit.Opportunistic(), "Every": commit.Every(100 * time.Millisecond)} {
		for _, assignor := range []rebalance.Assignor{rebalance.Range(), rebalance.CooperativeSticky()} {
			t.Run(name+"/"+assignor.Name(), func(t *testing.T) {
				story(t, func(t *testing.T, b *embeddedBroker) { nothingAfterRevoke(t, b, strategy, assignor) })
			})
		}
	}
}

func nothingAfterRevoke(t *testing.T, b *embeddedBroker, strategy commit.Strategy, assignor rebalance.Assignor) {
	b.CreateTopic(t, "orders", 2)
	fill(t, b, "orders", 2, 10)
	commits := tap(b, "billing", "orders")
	c := plain(b)
	c.CommitStrategy, c.Assignors, c.DrainTimeout = strategy, []rebalance.Assignor{assignor}, 300*time.Millisecond
	// Of each partition the first member finishes offset 5 to 9 too late, so that it has something to commit at any time.
	var late handles
	one := spawn(t, c, api.WithDialer(b.Dial), api.HandleAsync("orders", func(_ context.Context, d *actors.RecordDelivery) {
		if d.Offset() >= 5 && d.Offset() < 10 {
			late.hold(spot{d.TopicPartition(), d.Offset()}, d)
			return
		}
		_ = d.Ack()
	}, api.Unordered(100)))
	eventually(t, 5*time.Second, "the first five are committed", func() bool {
		return assert.ObjectsAreEqual(map[kafka.TopicPartition]int64{at("orders", 0): 5, at("orders", 1): 5}, b.Committed(t, "billing"))
	})
	two := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", newLedger().note("two")))
	settled(t, 2, one, two)
	kept, moved := one.owned()[0], two.owned()[0]
	released := tellsOf(t, one, time.Second, func(e event.PartitionReleased) bool { return e.TopicPartition == moved })
	require.EqualValues(t, 5, released.Committed)
	revoked := time.Now()
	b.Produce(t, "orders", manyOf(moved.Partition, 90)...)
	eventually(t, 5*time.Second, "the new owner has committed all", func() bool { return b.Committed(t, "billing")[moved] == 100 })

	stale := one.Stats().StaleAcks
	for offset := int64(5); offset < 10; offset++ {
		require.ErrorIs(t, late.of(spot{moved, offset}).Ack(), actors.ErrStale)
		_ = late.of(spot{kept, offset}).Ack() // under the eager protocol it came again, and this is the handle of now
	}
	require.Equal(t, stale+5, one.Stats().StaleAcks)
	for range 30 { // for 3 s, in which the first member goes on committing what it has
		b.Produce(t, "orders", kafka.Record{Partition: kept.Partition})
		time.Sleep(100 * time.Millisecond)
		require.EqualValues(t, 100, b.Committed(t, "billing")[moved])
	}
	owner, rounds := one.Stats().MemberID, 0
	for _, commit := range commits.list() {
		if commit.member == owner && commit.when.After(revoked) {
			rounds++
			assert.Equal(t, kept, commit.tp, "committed at %d by the member that gave it up", commit.offset)
		}
	}
	require.Greater(t, rounds, 10, "commits of what it kept")
	one.mustClose(t)
	two.mustClose(t)
	commits.orderly(t)
	require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
}

func manyOf(partition int32, count int) []kafka.Record {
	records := make([]kafka.Record, count)
	for i := range records {
		records[i].Partition = partition
	}
	return records
}

// lateKind is a kind of handler that holds offset 5. A function holds it inside of its first call.
type lateKind struct {
	name string
	// part returns the registration, and what finishes one held record after the other, in the order they came.
	part func(l *ledger, option api.HandlerOption) (part api.Registration, finish func() error)
	// inHandler is true where the next ownership has to wait for the call with the held record, and holds none.
	inHandler bool
}

const lateOffset = 5

var lateKinds = []lateKind{
	{"Handle", func(l *ledger, option api.HandlerOption) (api.Registration, func() error) {
		release := make(chan struct{})
		return api.Handle("orders", l.watch("one", func(_ context.Context, r *kafka.Record) error {
			if r.Offset == lateOffset {
				<-release
			}
			return nil
		}), option, api.MaxRecords(1)), func() error { close(release); return actors.ErrStale }
	}, true},
	{"HandleBatch", func(l *ledger, option api.HandlerOption) (api.Registration, func() error) {
		release := make(chan struct{})
		return api.HandleBatch("orders", func(ctx context.Context, records []kafka.Record) error {
			for i := range records {
				e := l.open(ctx, "one", &records[i])
				if records[i].Offset == lateOffset {
					<-release
				}
				l.close(e, nil)
			}
			return nil
		}, option, api.MaxRecords(1)), func() error { close(release); return actors.ErrStale }
	}, true},
	{"HandleAsync", func(l *ledger, option api.HandlerOption) (api.Registration, func() error) {
		held := make(chan acknowledged, 2)
		return api.HandleAsync("orders", func(ctx context.Context, d *actors.RecordDelivery) {
			e := l.open(ctx, "one", d.Record())
			l.close(e, nil)
			if d.Offset() == lateOffset {
				held <- d
				return
			}
			_ = d.Ack()
		}, option), func() error { return (<-held).Ack() }
	}, false},
	{"HandleActor", func(l *ledger, option api.HandlerOption) (api.Registration, func() error) {
		held := make(chan acknowledged, 2)
		return api.HandleActor("orders", func(kafka.TopicPartition) actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				d, ok := ctx.Message().(*actors.Deliver)
				if !ok {
					return
				}
				for i, r := range d.Records() {
					l.close(l.open(d.Context(), "one", &d.Records()[i]), nil)
					if r.Offset == lateOffset {
						held <- ofDelivery{d, r.Offset}
						continue
					}
					_ = d.Ack(r.Offset)
				}
			})
		}, option, api.MaxRecords(1)), func() error { return (<-held).Ack() }
	}, false},
}

// redpanda-data/connect#4477 and others: an acknowledgment that lands after the partition was given up counts for the
// partition's next ownership, and is committed.
func TestB13_ALateAckOfAnOlderOwnershipIsCountedAndIgnored(t *testing.T) {
	for order, option := range map[string]api.HandlerOption{"PartitionOrder": api.PartitionOrder(), "KeyOrder": api.KeyOrder(1), "Unordered": api.Unordered(1)} {
		for _, kind := range lateKinds {
			for _, assignor := range []rebalance.Assignor{rebalance.Range(), rebalance.CooperativeSticky()} {
				for name, commits := range map[string]bool{"TheOtherCommits20": true, "TheOtherCommitsNothing": false} {
					t.Run(order+"/"+kind.name+"/"+assignor.Name()+"/"+name, func(t *testing.T) {
						story(t, func(t *testing.T, b *embeddedBroker) { lateAck(t, b, kind, option, assignor, commits) })
					})
				}
			}
		}
	}
}

// lateAck moves the partition to another member, which finishes everything or nothing, and back; then the first ownership's
// record is acknowledged. Where the other one finished nothing, the new ownership has that very record in its hands, too.
func lateAck(t *testing.T, b *embeddedBroker, kind lateKind, option api.HandlerOption, assignor rebalance.Assignor, commits bool) {
	tp := at("orders", 0)
	b.CreateTopic(t, "orders", 1)
	fill(t, b, "orders", 1, 20)
	tapped, l, own := tap(b, "billing", "orders"), newLedger(), &owners{}
	c := plain(b)
	c.DrainTimeout, c.ClientID = 300*time.Millisecond, "one"
	c.Assignors = []rebalance.Assignor{steered{assignor, "two"}}
	part, finish := kind.part(l, option)
	one := spawn(t, c, api.WithDialer(b.Dial), own.callbacks("one"), part)
	eventually(t, 5*time.Second, "the first five are committed, and the sixth is held", func() bool {
		return b.Committed(t, "billing")[tp] == lateOffset && len(l.of(tp)) > lateOffset
	})
	c.ClientID = "two"
	two := spawn(t, c, api.WithDialer(b.Dial), own.callbacks("two"), api.Handle("orders", l.watch("two", func(ctx context.Context, _ *kafka.Record) error {
		if commits {
			return nil
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})))
	eventually(t, 20*time.Second, "the partition is the other's", func() bool { return len(two.owned()) == 1 && len(one.owned()) == 0 })
	want := int64(lateOffset)
	if commits {
		want = 20
		eventually(t, 5*time.Second, "the other has committed", func() bool { return b.Committed(t, "billing")[tp] == want })
	}
	two.mustClose(t)
	settled(t, 1, one)
	time.Sleep(2 * time.Second)
	before, ok := one.partition(tp)
	require.True(t, ok)
	stale := one.Stats().StaleAcks
	require.Equal(t, want, before.Committed)
	if kind.inHandler {
		require.Len(t, told[event.HandlerAbandoned](one), 1)
		calls := slices.DeleteFunc(l.of(tp), func(e entry) bool { return e.member != "one" || e.offset < lateOffset })
		require.Len(t, calls, 1, "calls while that of the first ownership has not returned")
	}
	require.ErrorIs(t, finish(), actors.ErrStale)
	if !kind.inHandler || commits { // else the new ownership begins now, and has the record's second call to wait for
		time.Sleep(2 * time.Second)
		after, _ := one.partition(tp)
		require.Equal(t, before, after, "the new ownership, its tracker included")
		require.Equal(t, want, b.Committed(t, "billing")[tp])
	}
	if !kind.inHandler && !commits {
		require.NoError(t, finish(), "the record of the new ownership")
	}
	fill(t, b, "orders", 1, 5)
	eventually(t, 10*time.Second, "the new ownership goes on", func() bool { return b.Committed(t, "billing")[tp] == 25 })
	require.Equal(t, stale+1, one.Stats().StaleAcks)
	one.mustClose(t)
	tapped.orderly(t)
	own.disjoint(t, tp)
	l.allHandled(t, b.EndOffsets(t, "orders"))
}

// B14: a partition goes to the other member and back; its old owner commits nothing meanwhile and goes on where the
// other one stopped, not at its own old place.
func TestB14_APartitionThatComesBackGoesOnAtTheCommit(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		commits := tap(b, "billing", "orders")
		l := newLedger()
		one := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("one")))
		n := fill(t, b, "orders", 2, 10)
		eventually(t, 10*time.Second, "every record handled", func() bool { return l.distinct() == n })
		for range 3 {
			two := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("two")))
			settled(t, 2, one, two)
			n += fill(t, b, "orders", 2, 20)
			eventually(t, 10*time.Second, "every record handled", func() bool { return l.distinct() == n })
			time.Sleep(3 * time.Second)
			require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
			two.mustClose(t)
			settled(t, 2, one)
			n += fill(t, b, "orders", 2, 10)
			eventually(t, 10*time.Second, "every record handled", func() bool { return l.distinct() == n })
		}
		one.mustClose(t)
		require.Empty(t, l.repeated())
		l.inOrder(t, tps("orders", 0, 1)...)
		commits.orderly(t)
	})
}

// The same with a partition that was paused when it went: the pause holds, the position does not.
func TestB14_APausedPartitionThatComesBackGoesOnAtTheCommit(t *testing.T) {
	for _, assignor := range []rebalance.Assignor{rebalance.Range(), rebalance.CooperativeSticky()} {
		for name, paused := range map[string]bool{"Paused": true, "Flowing": false} {
			t.Run(assignor.Name()+"/"+name, func(t *testing.T) {
				story(t, func(t *testing.T, b *embeddedBroker) { thereAndBack(t, b, assignor, paused) })
			})
		}
	}
}

func thereAndBack(t *testing.T, b *embeddedBroker, assignor rebalance.Assignor, paused bool) {
	tp := at("orders", 0)
	b.CreateTopic(t, "orders", 1)
	fill(t, b, "orders", 1, 10)
	commits, l := tap(b, "billing", "orders"), newLedger()
	c := plain(b)
	c.ClientID, c.Assignors = "one", []rebalance.Assignor{steered{assignor, "two"}}
	one := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.note("one")))
	eventually(t, 5*time.Second, "the first ten are committed", func() bool { return b.Committed(t, "billing")[tp] == 10 })
	if paused {
		require.NoError(t, one.Pause(t.Context(), tp))
	}
	c.ClientID = "two"
	two := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.note("two")))
	eventually(t, 10*time.Second, "the partition is the other's", func() bool { return len(two.owned()) == 1 })
	fill(t, b, "orders", 1, 20)
	eventually(t, 5*time.Second, "the other has committed", func() bool { return b.Committed(t, "billing")[tp] == 30 })
	two.mustClose(t)
	settled(t, 1, one)
	before := len(l.of(tp))
	fill(t, b, "orders", 1, 5)
	if paused {
		time.Sleep(5 * time.Second)
		require.Len(t, l.of(tp), before, "the pause holds")
		p, _ := one.partition(tp)
		require.EqualValues(t, 30, p.Position)
		require.NoError(t, one.Resume(t.Context(), tp))
	}
	eventually(t, 5*time.Second, "it goes on", func() bool { return b.Committed(t, "billing")[tp] == 35 })
	require.EqualValues(t, 30, l.of(tp)[before].offset, "the first that comes")
	one.mustClose(t)
	l.inOrder(t, tp)
	commits.orderly(t)
}
