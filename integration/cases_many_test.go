package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

const (
	manyTopics     = 15
	manyPartitions = 200 // of each
	many           = manyTopics * manyPartitions
	manyNodes      = 3
)

// criteo/garmadon#81 and others: with thousands of partitions the start takes minutes, asks for each one, and the member is
// put out meanwhile. In virtual time each answer takes a while, so that it shows what waits for what; in real time, what it costs.
func TestB55_ThousandsOfPartitionsStartAndEndTogether(t *testing.T) {
	t.Run("VirtualTime", func(t *testing.T) {
		story(t, func(t *testing.T, b *embeddedBroker) { thousands(t, b, slowLine{b.Dial, 10 * time.Millisecond}.Dial) }, kafkatest.Brokers(manyNodes))
	})
	t.Run("RealTime", func(t *testing.T) {
		thousands(t, newEmbedded(t, kafkatest.Brokers(manyNodes)), directDial)
	})
}

// beatTimes is when heartbeats came to a group's coordinator.
type beatTimes struct {
	mu    sync.Mutex
	times []time.Time
}

func tapBeats(b *embeddedBroker, group string) *beatTimes {
	p := &beatTimes{}
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Group: group, Observe: true, Count: -1, When: func(kmsg.Request) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.times = append(p.times, time.Now())
		return true
	}})
	return p
}

// longest is the longest time without one since a start.
func (p *beatTimes) longest(since time.Time) (longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range append(p.times, time.Now()) {
		longest, since = max(longest, at.Sub(since)), at
	}
	return longest
}

func thousands(t *testing.T, b *embeddedBroker, dial dialFunc) {
	dialer := api.WithDialer(dial)
	var names []string
	for i := range manyTopics {
		names = append(names, fmt.Sprintf("orders-%d", i))
		b.CreateTopic(t, names[i], manyPartitions)
		fill(t, b, names[i], manyPartitions, 1)
	}
	l, beats := newLedger(), tapBeats(b, "billing")
	observe := func(key kmsg.Key) *kfake.FaultHandle {
		return b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{key}, Observe: true, Count: -1})
	}
	fetches := observe(kmsg.OffsetFetch)
	var lookups [manyNodes]*kfake.FaultHandle
	for node := range lookups {
		lookups[node] = b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Nodes: []int32{int32(node)}, Observe: true, Count: -1})
	}
	c := plain(b)
	c.Assignors = []rebalance.Assignor{rebalance.Range()} // which gives up all of them for the other member
	one := spawn(t, c, dialer, api.Handle(names, l.note("one")))
	began := time.Now()
	eventually(t, 10*time.Second, "the first record is handled", func() bool { return l.distinct() > 0 })
	first := time.Since(began)
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == many })
	all := time.Since(began)
	t.Logf("%d partitions: the first record after %v, all after %v; %d OffsetFetch", many, first, all, fetches.Hits())
	assert.LessOrEqual(t, fetches.Hits(), 2)
	for node, lookup := range lookups {
		assert.LessOrEqual(t, lookup.Hits(), 2, "ListOffsets at node %d", node)
	}
	require.EqualValues(t, 1, one.Stats().Rebalances)
	eventually(t, patience, "everything committed", func() bool { return len(b.Committed(t, "billing")) == many && uncommitted(one) == 0 })

	two := spawn(t, c, dialer, api.Handle(names, l.note("two")))
	settled(t, many, one, two)
	var revoking, revoked time.Duration
	for _, e := range toldWhen[event.MemberMoved](one) {
		switch e.event.To {
		case rebalance.StateRevoking.String():
			revoking = e.at.Sub(began)
		case rebalance.StateRevoked.String():
			revoked = e.at.Sub(began)
		}
	}
	t.Logf("revoked within %v; the longest time without a heartbeat %v", revoked-revoking, beats.longest(began))
	assert.Positive(t, revoking)
	// A machine that does much else takes longer for everything: then the start says by how much. In virtual time it takes 3 s
	// at most, whatever the machine.
	limit := max(3*time.Second, 10*all)
	assert.Less(t, revoked-revoking, limit, "revoking all")
	assert.Less(t, beats.longest(began), 2*3*time.Second, "no heartbeat is late: at most one interval over the time of it")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ended := time.Now()
	require.NoError(t, one.Close(ctx))
	assert.Less(t, time.Since(ended), limit, "revoking all to close")
	require.NoError(t, two.Close(ctx))
	require.Empty(t, l.repeated())
	for _, m := range []*member{one, two} {
		require.Empty(t, told[event.PartitionsLost](m))
	}
	for _, name := range names {
		for p := range int32(manyPartitions) {
			require.Len(t, l.of(at(name, p)), 1)
		}
	}
}

// uncommitted counts the partitions with records that are finished and not committed.
func uncommitted(m *member) (count int) {
	for _, p := range m.Stats().Partitions {
		if p.Committed < p.Position {
			count++
		}
	}
	return count
}
