package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// hangTimeout is the request time-out of the members here: well below the session, as by default.
const hangTimeout = 10 * time.Second

// confluentinc/librdkafka#843 and others: a partition stalls in silence when its leader hangs and another node takes over.
func TestB36_APartitionLeavesALeaderThatHangs(t *testing.T) {
	for node := range int32(3) { // one of them coordinates the group, one is asked for metadata
		t.Run(fmt.Sprintf("InAFetch/Node%d", node), func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) { leaderHangs(t, b, node, false) }, kafkatest.Brokers(3))
		})
		t.Run(fmt.Sprintf("InALookup/Node%d", node), func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) { leaderHangs(t, b, node, true) }, kafkatest.Brokers(3))
		})
	}
}

// hanging starts a member with a partition on each of three nodes, of which the first is the one to hang. inLookup freezes
// it at the moment that it is asked where the log begins.
func hanging(t *testing.T, b *embeddedBroker, node int32, inLookup bool, stuckAfter time.Duration) (m *member, l *ledger, frozen time.Time) {
	t.Helper()
	b.CreateTopic(t, "orders", 3)
	for p := range int32(3) {
		require.NoError(t, b.Cluster().MoveTopicPartition("orders", p, (node+p)%3))
	}
	fill(t, b, "orders", 3, 10)
	asked := make(chan struct{}, 100)
	if inLookup {
		b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Nodes: []int32{node}, Observe: true, When: func(kmsg.Request) bool {
			asked <- struct{}{}
			time.Sleep(100 * time.Millisecond) // the answer finds the node frozen
			return true
		}})
	}
	c := plain(b)
	c.RequestTimeout, c.StuckAfter = hangTimeout, stuckAfter
	l = newLedger()
	m = spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
	if inLookup {
		<-asked
	} else {
		eventually(t, 10*time.Second, "every record handled", func() bool { return l.distinct() == 30 })
		time.Sleep(3 * time.Second)
	}
	b.Freeze(node)
	return m, l, time.Now()
}

func leaderHangs(t *testing.T, b *embeddedBroker, node int32, inLookup bool) {
	m, l, frozen := hanging(t, b, node, inLookup, 0)
	require.NoError(t, b.Cluster().MoveTopicPartition("orders", 0, (node+1)%3))
	for b.Cluster().CoordinatorFor("billing") == node {
		b.Cluster().RehashCoordinators()
	}
	fill(t, b, "orders", 3, 10)
	eventually(t, 2*time.Second, "the others go on", func() bool { return len(l.of(at("orders", 1))) == 20 && len(l.of(at("orders", 2))) == 20 })
	eventually(t, hangTimeout+2*time.Second-time.Since(frozen), "it is read at the new leader", func() bool { return l.distinct() == 60 })
	require.Empty(t, told[event.PartitionStuck](m), "it was mended before")
	require.Empty(t, told[event.PartitionsLost](m))
	require.EqualValues(t, 1, m.Stats().Rebalances)
	time.Sleep(2 * time.Minute) // also if the node never comes back
	require.EqualValues(t, 1, m.Stats().Rebalances)
	require.NoError(t, m.Healthy())
	fill(t, b, "orders", 3, 10)
	eventually(t, 2*time.Second, "it flows", func() bool { return l.distinct() == 90 })
	b.Thaw(node)
	m.mustClose(t)
	require.Empty(t, l.repeated())
	require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
}

// Nobody takes over: then the partition says so.
func TestB36_APartitionThatIsStuckIsTold(t *testing.T) {
	for name, inLookup := range map[string]bool{"InAFetch": false, "InALookup": true} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) {
				const stuckAfter = 30 * time.Second
				node := (b.Cluster().CoordinatorFor("billing") + 1) % 3
				m, l, frozen := hanging(t, b, node, inLookup, stuckAfter)
				stuck := tellsOf(t, m, stuckAfter+time.Second, func(event.PartitionStuck) bool { return true })
				require.GreaterOrEqual(t, time.Since(frozen), stuckAfter-time.Second, "not before its time")
				want := event.PartitionStuck{TopicPartition: at("orders", 0), Offset: 10, Waiting: "fetch", Leader: stuck.Leader}
				if inLookup {
					want.Offset, want.Waiting = kafka.NoOffset, "offset"
				}
				require.Equal(t, want.TopicPartition, stuck.TopicPartition)
				require.Equal(t, want.Offset, stuck.Offset)
				require.Equal(t, want.Waiting, stuck.Waiting)
				require.Equal(t, node, stuck.Leader.ID)
				require.GreaterOrEqual(t, stuck.Age, stuckAfter)
				require.ErrorContains(t, m.Healthy(), "orders-0 cannot be read on")
				p, _ := m.partition(at("orders", 0))
				require.NotNil(t, p.Stuck)
				require.Equal(t, want.Waiting, p.Stuck.Waiting)
				fill(t, b, "orders", 3, 10)
				eventually(t, 2*time.Second, "the others go on", func() bool { return len(l.of(at("orders", 1))) == 20 && len(l.of(at("orders", 2))) == 20 })
				time.Sleep(10*stuckAfter - time.Since(frozen))
				require.Len(t, told[event.PartitionStuck](m), 4, "at 30, 60, 120 and 240 s")
				b.Thaw(node)
				eventually(t, hangTimeout+2*time.Second, "it flows again", func() bool { return l.distinct() == 60 })
				require.NoError(t, m.Healthy())
				p, _ = m.partition(at("orders", 0))
				require.Nil(t, p.Stuck)
				time.Sleep(10 * time.Minute)
				require.Len(t, told[event.PartitionStuck](m), 4, "waiting for records is not being stuck")
				require.NoError(t, m.Healthy())
				m.mustClose(t)
				require.Empty(t, l.repeated())
				require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
			}, kafkatest.Brokers(3))
		})
	}
}
