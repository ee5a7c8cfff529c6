package integration

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// A story is a whole tree and its broker in virtual time: what takes minutes there takes moments here.
func story(t *testing.T, tell func(t *testing.T, b *embeddedBroker), opts ...kafkatest.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { tell(t, newEmbedded(t, append(opts, kafkatest.InMemory())...)) })
}

// plain is a configuration with the defaults, where a story is about them.
func plain(b *embeddedBroker) api.Config { return api.Config{Brokers: b.Addrs(), GroupID: "billing"} }

func TestStoryAnHourOfNothing(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 3)
		l := newLedger()
		m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
		m.joined(t)
		pause(3 * time.Second)
		quiet := tap(b, "billing", "orders")
		for range 12 {
			time.Sleep(5 * time.Minute)
			require.NoError(t, m.Healthy())
		}
		require.EqualValues(t, 1, m.Stats().Generation)
		require.Empty(t, quiet.list(), "nothing changed, so nothing is committed")
		n := fill(t, b, "orders", 3, 10)
		eventually(t, 2*time.Second, "records flow", func() bool { return l.distinct() == n })
		m.mustClose(t)
		require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
	})
}

// B21: one record takes longer than the session: no rebalance, one delivery, and the other partitions go on.
func TestB21_ASlowHandlerCostsNoMembership(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		fill(t, b, "orders", 2, 10)
		l := newLedger()
		c := plain(b)
		c.SessionTimeout = 6 * time.Second
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.watch("a", func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 0 && r.Offset == 3 {
				time.Sleep(10 * time.Minute)
			}
			return nil
		})))
		eventually(t, 5*time.Second, "the other partition is done", func() bool { return b.Committed(t, "billing")[at("orders", 1)] == 10 })
		eventually(t, 11*time.Minute, "both are done", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == 10 })
		require.EqualValues(t, 1, m.Stats().Rebalances)
		m.mustClose(t)
		require.Empty(t, l.repeated())
		require.Len(t, l.of(at("orders", 0)), 10)
	})
}

// B22: a member that is cut off stops by itself when its session must be over, and its partitions go to the other one.
func TestB22_AMemberThatIsCutOffStopsDelivering(t *testing.T) {
	t.Run("FromEverybody", func(t *testing.T) { cutOff(t, false) })
	t.Run("FromTheCoordinatorOnly", func(t *testing.T) { cutOff(t, true) }) // and can read on
}

func cutOff(t *testing.T, coordinatorOnly bool) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		const partitions, perPartition = 4, 500
		b.CreateTopic(t, "orders", partitions)
		coordinator := b.Cluster().CoordinatorFor("billing")
		for p := range int32(partitions) {
			require.NoError(t, b.Cluster().MoveTopicPartition("orders", p, 1-coordinator))
		}
		l := newLedger()
		c := plain(b)
		c.SessionTimeout, c.HeartbeatInterval = 6*time.Second, time.Second
		work := func(context.Context, *kafka.Record) error {
			time.Sleep(50 * time.Millisecond)
			return nil
		}
		hole := &blackhole{dial: b.Dial}
		if coordinatorOnly {
			hole.only = b.Addrs()[coordinator]
		}
		one := spawn(t, c, api.WithDialer(hole.Dial), api.Handle("orders", l.watch("one", work)))
		two := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.watch("two", work)))
		settled(t, partitions, one, two)
		n := fill(t, b, "orders", partitions, perPartition)
		eventually(t, 20*time.Second, "both work", func() bool { return l.distinct() > 100 })
		mine := one.owned()
		hole.on.Store(true)
		cut := time.Now()
		lost := tellsOf(t, one, 30*time.Second, func(event.PartitionsLost) bool { return true })
		require.ElementsMatch(t, mine, lost.Partitions)
		require.LessOrEqual(t, time.Since(cut), c.SessionTimeout+c.HeartbeatInterval+100*time.Millisecond)
		eventually(t, 30*time.Second, "the other takes over", func() bool { return len(two.owned()) == partitions })
		for _, tp := range mine {
			var taken time.Time
			for _, e := range l.of(tp) {
				if e.member == "two" && taken.IsZero() {
					taken = e.start
				}
			}
			overlaps := 0
			for _, e := range l.of(tp) {
				if e.member == "one" {
					assert.LessOrEqual(t, e.start.Sub(cut), c.SessionTimeout+c.HeartbeatInterval, "%s@%d begun after the session's end", tp, e.offset)
					if !taken.IsZero() && e.end.After(taken) {
						overlaps++
					}
				}
			}
			assert.LessOrEqual(t, overlaps, 1, "records of %s that both worked on at once: at most the one in its handler", tp)
		}
		eventually(t, 3*time.Minute, "every record handled", func() bool { return l.distinct() == n })
		hole.on.Store(false)
		settled(t, partitions, one, two)
		n += fill(t, b, "orders", partitions, 10)
		eventually(t, time.Minute, "every record handled", func() bool { return l.distinct() == n })
		one.mustClose(t)
		two.mustClose(t)
		l.allHandled(t, b.EndOffsets(t, "orders"))
		// What was handled and could not be committed comes again: no more than a session's worth of it.
		most := len(mine) * int((c.SessionTimeout+c.HeartbeatInterval+time.Second)/(50*time.Millisecond))
		require.LessOrEqual(t, len(l.repeated()), most)
		require.NotEmpty(t, l.repeated())
		require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
	}, kafkatest.Brokers(2), kafkatest.MinSessionTimeout(time.Second))
}

// A broker that hangs for less than the session changes nothing; for longer, the member joins anew by itself.
func TestStoryABrokerHangsAndComesBack(t *testing.T) {
	for name, tt := range map[string]struct {
		hang time.Duration
		lost bool
	}{"Shortly": {8 * time.Second, false}, "ForLong": {3 * time.Minute, true}} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) {
				b.CreateTopic(t, "orders", 3)
				l := newLedger()
				n := fill(t, b, "orders", 3, 100)
				m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
				eventually(t, 10*time.Second, "every record handled", func() bool { return l.distinct() == n })
				b.Freeze()
				time.Sleep(tt.hang)
				if tt.lost {
					require.NotEmpty(t, told[event.PartitionsLost](m))
					require.Error(t, m.Healthy())
				}
				b.Thaw()
				n += fill(t, b, "orders", 3, 100)
				eventually(t, time.Minute, "every record handled", func() bool { return l.distinct() == n })
				eventually(t, 10*time.Second, "healthy again", func() bool { return m.Healthy() == nil })
				m.mustClose(t)
				require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
				if !tt.lost {
					require.Empty(t, told[event.PartitionsLost](m))
					require.Empty(t, l.repeated())
					require.EqualValues(t, 1, m.Stats().Rebalances)
				}
			})
		})
	}
}

// B34: a coordinator that is loading, or is elsewhere, costs neither membership nor commits.
func TestB34_ACoordinatorThatLoadsIsWaitedFor(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 3)
		l := newLedger()
		c := plain(b)
		commits := tap(b, "billing", "orders")
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
		n := fill(t, b, "orders", 3, 50)
		eventually(t, 10*time.Second, "every record committed", func() bool { return b.Committed(t, "billing")[at("orders", 2)] == 50 })
		for _, code := range []*kerr.Error{kerr.CoordinatorLoadInProgress, kerr.NotCoordinator, kerr.CoordinatorNotAvailable} {
			loading := b.Cluster().Fault(kfake.Fault{
				Keys:  []kmsg.Key{kmsg.OffsetCommit, kmsg.Heartbeat, kmsg.OffsetFetch, kmsg.JoinGroup, kmsg.SyncGroup},
				Group: "billing", Err: code, Count: -1,
			})
			n += fill(t, b, "orders", 3, 50)
			time.Sleep(10 * time.Second)
			require.Equal(t, n, l.distinct(), "records flow without a coordinator, %v", code)
			require.Positive(t, loading.Hits())
			require.Less(t, loading.Hits(), 300, "it is not hammered, %v", code)
			loading.Remove()
			eventually(t, 15*time.Second, "every record committed", func() bool {
				return assert.ObjectsAreEqual(b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
			})
		}
		require.EqualValues(t, 1, m.Stats().Rebalances)
		require.Empty(t, told[event.PartitionsLost](m))
		m.mustClose(t)
		require.Empty(t, l.repeated())
		commits.orderly(t)
	})
}

// B35: a partition without a leader waits alone.
func TestB35_APartitionWithoutALeaderWaitsAlone(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 3)
		n := fill(t, b, "orders", 3, 10)
		var leaderless atomic.Bool
		leaderless.Store(true)
		known := b.metadata(t, "orders")[0]
		b.Cluster().ControlKey(kmsg.Metadata.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster().KeepControl()
			if !leaderless.Load() {
				return nil, nil, false
			}
			return withoutLeader(b, req, known, 1), nil, true
		})
		l := newLedger()
		m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
		eventually(t, 10*time.Second, "the others flow", func() bool { return l.distinct() == 20 })
		generation := m.Stats().Generation
		for second := range 10 {
			n += fill(t, b, "orders", 3, 1)
			time.Sleep(time.Second)
			require.Equal(t, 20+2*(second+1), l.distinct(), "the others never stop")
		}
		p, ok := m.partition(at("orders", 1))
		require.True(t, ok)
		require.Equal(t, "waiting", p.Condition)
		leaderless.Store(false)
		eventually(t, 3*time.Second, "the partition flows", func() bool { return l.distinct() == n })
		require.Equal(t, generation, m.Stats().Generation)
		require.EqualValues(t, 1, m.Stats().Rebalances)
		m.mustClose(t)
	}, kafkatest.Brokers(2))
}

// withoutLeader is a cluster's metadata with one partition that has no leader.
func withoutLeader(b *embeddedBroker, req kmsg.Request, known kmsg.MetadataResponseTopic, partition int) *kmsg.MetadataResponse {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	for id, addr := range b.Addrs() {
		host, port, _ := net.SplitHostPort(addr)
		number, _ := strconv.Atoi(port)
		node := kmsg.NewMetadataResponseBroker()
		node.NodeID, node.Host, node.Port = int32(id), host, int32(number)
		resp.Brokers = append(resp.Brokers, node)
	}
	known.Partitions = slices.Clone(known.Partitions)
	for i := range known.Partitions {
		if p := &known.Partitions[i]; int(p.Partition) == partition {
			p.Leader, p.ErrorCode = -1, kerr.LeaderNotAvailable.Code
		}
	}
	resp.Topics = append(resp.Topics, known)
	return resp
}
