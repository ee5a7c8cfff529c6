package integration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// The tests of this file count goroutines, so they run alone.

// usage is what a consumer may leak.
type usage struct {
	goroutines int
	// connections are those the broker sees, sockets those of this process, both ends counted, where the system tells.
	connections, sockets int
}

func measure(b *embeddedBroker) usage {
	open, _ := b.Connections()
	return usage{goroutines: runtime.NumGoroutine(), connections: open, sockets: openSockets()}
}

// openSockets counts the sockets of this process, on Linux.
func openSockets() (sockets int) {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return 0
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "socket:") {
			sockets++
		}
	}
	return sockets
}

// backTo demands that the usage is no more than what it was, but for five. It may be less: what was counted first has
// connections that are opened again when there is something to ask.
func backTo(t *testing.T, b *embeddedBroker, base usage, after string) {
	t.Helper()
	const slack = 5
	near := func(a, b int) bool { return a-b <= slack }
	var now usage
	if !waitFor(20*time.Second, func() bool {
		now = measure(b)
		return near(now.goroutines, base.goroutines) && near(now.connections, base.connections) && near(now.sockets, base.sockets)
	}) {
		stacks := make([]byte, 1<<20)
		t.Fatalf("after %s: %+v, at first %+v\n%s", after, now, base, stacks[:runtime.Stack(stacks, true)])
	}
}

// IBM/sarama#3434 and others: goroutines and memory grow with each rebalance or restart.
func TestB50_NothingGrowsWithRebalancesRestartsAndCuts(t *testing.T) {
	const rebalances, restarts, cuts = 100, 50, 100
	b := newEmbedded(t)
	b.CreateTopic(t, "orders", 4)
	l := newLedger()
	n := fill(t, b, "orders", 4, 10)
	idle := measure(b)
	c := config(b, "billing")
	c.HeartbeatInterval = 10 * time.Millisecond
	m := spawn(t, c, api.Handle("orders", l.note("a")))
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	empty := func() bool { return l.distinct() == n }

	pause(200 * time.Millisecond) // connections that serve the start only are closed
	base := measure(b)
	for i := range rebalances {
		before, generation := m.Stats().Rebalances, int32(m.Stats().Generation)
		b.Cluster().Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.Heartbeat}, Group: "billing", Err: kerr.RebalanceInProgress,
			// One of the generation before may still be on its way; its answer concerns nobody.
			When: func(req kmsg.Request) bool { return req.(*kmsg.HeartbeatRequest).Generation == generation },
		})
		eventually(t, patience, "a rebalance", func() bool {
			s := m.Stats()
			return s.Rebalances > before && len(s.Partitions) == 4 && s.State == "ASSIGNED"
		})
		if i%10 == 0 {
			n += fill(t, b, "orders", 4, 1)
			eventually(t, patience, "records flow", empty)
		}
	}
	require.GreaterOrEqual(t, m.Stats().Rebalances, uint64(rebalances))
	backTo(t, b, base, "the rebalances")

	for range cuts {
		b.Cut()
		n += fill(t, b, "orders", 4, 1)
		eventually(t, patience, "records flow", empty)
	}
	backTo(t, b, base, "the cuts")
	m.mustClose(t)
	backTo(t, b, idle, "the close")

	for i := range restarts {
		m := spawn(t, config(b, "billing"), api.Handle("orders", l.note("b")))
		if i%2 == 0 { // the others are closed at whatever they are just doing
			n += fill(t, b, "orders", 4, 1)
			eventually(t, patience, "records flow", empty)
		}
		m.mustClose(t)
	}
	backTo(t, b, idle, "the restarts")
	last := spawn(t, config(b, "billing"), api.Handle("orders", l.note("last")))
	eventually(t, patience, "records flow", empty)
	last.mustClose(t)
	require.Empty(t, l.repeated())
	require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
}

// frozenClose closes a consumer that has finished what it cannot commit any more, because the broker hangs.
func frozenClose(t *testing.T, opts ...kafkatest.Option) {
	b := kafkatest.NewBroker(t, append(opts, kafkatest.Topic("orders", 3))...)
	ctx := t.Context()
	require.NoError(t, b.Produce(ctx, "orders", numbered(3, 10)...))
	committed := func(p int32) int64 {
		offsets, err := b.Committed("billing")
		require.NoError(t, err)
		return offsets[at("orders", p)]
	}
	require.Zero(t, committed(0)) // the broker's own client has its connections now
	openAtFirst, _ := b.Connections()
	l := newLedger()
	release := make(chan struct{})
	c := api.Config{Brokers: b.Addrs(), GroupID: "billing"}
	m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.watch("a", func(_ context.Context, r *kafka.Record) error {
		if r.Offset == 6 && r.Partition < 2 {
			<-release
		}
		return nil
	})))
	eventually(t, patience, "all but the held records are committed", func() bool {
		return committed(0) == 6 && committed(1) == 6 && committed(2) == 10
	})
	b.Freeze()
	close(release)
	eventually(t, patience, "the rest is handled", func() bool { return l.distinct() == 30 })

	started := time.Now()
	closing, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := m.Close(closing)
	require.Less(t, time.Since(started), 3*time.Second)
	var typed *actors.CloseError
	require.ErrorAs(t, err, &typed)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, typed.Running)
	require.Len(t, typed.Uncommitted, 2, "%v", err)
	for i, u := range typed.Uncommitted {
		require.Equal(t, at("orders", int32(i)), u.TopicPartition)
		require.EqualValues(t, 6, u.Committed)
		require.EqualValues(t, 10, u.Pending)
	}
	require.True(t, within(5*time.Second, m.Done()))
	// Nothing of the consumer is left; the frozen broker's own goroutines, one or two for each connection, still are.
	open, _ := b.Connections()
	noConsumerIsLeft(t)
	t.Logf("%d connections at first, %d that the broker has not seen closed", openAtFirst, open)
	require.EqualValues(t, 6, committed(0))
	b.Thaw()
	eventually(t, 5*time.Second, "the broker has seen all of them closed", func() bool { open, _ := b.Connections(); return open <= openAtFirst })
}

func TestAFrozenBrokerDoesNotHoldAClose(t *testing.T) {
	t.Run("Loopback", func(t *testing.T) { frozenClose(t) })
	t.Run("Bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { frozenClose(t, kafkatest.InMemory()) })
	})
}

// A close while no answer ever came: the broker was frozen before the consumer was started.
func TestABrokerThatWasFrozenFromTheStartDoesNotHoldAClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.NewBroker(t, kafkatest.InMemory(), kafkatest.Topic("orders", 3))
		b.Freeze()
		m := spawn(t, api.Config{Brokers: b.Addrs(), GroupID: "billing"}, api.WithDialer(b.Dial), api.Handle("orders", newLedger().note("a")))
		tellsOf(t, m, 5*time.Second, func(event.ConnectFailed) bool { return true })
		started := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			require.ErrorAs(t, err, new(*actors.CloseError))
		}
		require.Less(t, time.Since(started), 3*time.Second)
		noConsumerIsLeft(t)
		b.Thaw()
		if errors.Is(m.WaitJoined(t.Context()), context.Canceled) {
			t.Error("WaitJoined waited on after the end")
		}
	})
}
