package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// all adds up what several topics have.
func all(t *testing.T, of func(*testing.T, string) map[kafka.TopicPartition]int64, topics ...string) map[kafka.TopicPartition]int64 {
	t.Helper()
	out := make(map[kafka.TopicPartition]int64)
	for _, topic := range topics {
		maps.Copy(out, of(t, topic))
	}
	return out
}

func aPatternFollowsTheTopics(t *testing.T, b broker) {
	prefix, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	topic := func(name string) string { return prefix + "." + name }
	c := config(b, group)
	c.MetadataMaxAge = 200 * time.Millisecond
	m := spawn(t, c,
		api.Handle(api.Matching(prefix+`\..*`, "__.*").Except(`.*\.skip`, `.*\.gone[0-9]`), l.note("matched")),
		api.Handle(topic("named"), l.note("named")))
	m.joined(t)
	tellsOf(t, m, patience, func(e event.SubscriptionChanged) bool { return slices.Equal(e.Topics, []string{topic("named")}) })

	for name, partitions := range map[string]int32{"a": 2, "b": 1, "skip": 1, "gone7": 1, "named": 1} {
		b.CreateTopic(t, topic(name), partitions)
		fill(t, b, topic(name), partitions, 10)
	}
	b.CreateTopic(t, prefix, 1) // the whole name must match
	fill(t, b, prefix, 1, 10)
	n := 2*10 + 10 + 10
	m.allHandledIn(t, patience, l, n)
	b.CreateTopic(t, topic("later"), 3)
	n += fill(t, b, topic("later"), 3, 10)
	m.allHandledIn(t, patience, l, n)

	want := []string{topic("a"), topic("b"), topic("later"), topic("named")}
	require.Equal(t, want, m.Stats().Subscription, "neither others' nor the brokers' own topics")
	require.Empty(t, m.Stats().MissingTopics)
	for _, e := range l.of(at(topic("named"), 0)) {
		require.Equal(t, "named", e.member, "a name comes before a pattern")
	}
	require.NoError(t, m.Pause(t.Context(), at(topic("a"), 0)))
	require.NoError(t, m.Resume(t.Context(), at(topic("a"), 0)))
	require.ErrorIs(t, m.Pause(t.Context(), at(topic("skip"), 0)), actors.ErrNotSubscribed)
	m.mustClose(t)
	require.Equal(t, n, l.distinct())
	require.Empty(t, l.repeated())
	require.Equal(t, all(t, b.EndOffsets, want...), b.Committed(t, group))
}

func aTopicThatIsDeletedLeavesThePattern(t *testing.T, b broker) {
	prefix, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	kept, gone := prefix+".kept", prefix+".gone"
	b.CreateTopic(t, kept, 2)
	b.CreateTopic(t, gone, 2)
	n := fill(t, b, kept, 2, 10) + fill(t, b, gone, 2, 10)
	c := config(b, group)
	c.MetadataMaxAge = 200 * time.Millisecond
	m := spawn(t, c, api.Handle(api.Matching(prefix+".*"), l.note("a")))
	m.allHandledIn(t, patience, l, n)
	require.NoError(t, m.Commit(t.Context()))
	b.DeleteTopic(t, gone)
	tellsOf(t, m, patience, func(e event.SubscriptionChanged) bool {
		return slices.Equal(e.Topics, []string{kept}) && slices.Equal(e.Removed, []string{gone})
	})
	eventually(t, patience, "its partitions are given up", func() bool { return len(m.owned()) == 2 })
	n += fill(t, b, kept, 2, 10)
	m.allHandledIn(t, patience, l, n)
	eventually(t, patience, "healthy", func() bool { return m.Healthy() == nil })

	b.CreateTopic(t, gone, 1)
	b.Produce(t, gone, kafka.Record{Value: []byte("anew")}, kafka.Record{Value: []byte("anew")})
	eventually(t, patience, "the topic made anew is read from its beginning", func() bool {
		return len(l.of(at(gone, 0))) == 12
	})
	m.mustClose(t)
	require.EqualValues(t, 2, b.Committed(t, group)[at(gone, 0)])
}

func rejoinOnDemand(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 4)
	n := fill(t, b, topic, 4, 10)
	first := spawn(t, config(b, group), api.Handle(topic, l.note("first")))
	require.NoError(t, first.Rejoin(t.Context(), "before it has joined"))
	first.allHandledIn(t, patience, l, n)
	second := spawn(t, config(b, group), api.Handle(topic, l.note("second")))
	settled(t, 4, first, second)
	before, epochs := first.Stats().Generation, epochsOf(first)
	require.NoError(t, first.Rejoin(t.Context(), "a test asks for it"))
	eventually(t, patience, "a new generation for both", func() bool {
		return first.Stats().Generation > before && first.Stats().Generation == second.Stats().Generation &&
			first.Stats().State == "ASSIGNED" && second.Stats().State == "ASSIGNED"
	})
	require.Equal(t, epochs, epochsOf(first), "what stays is not even handed over")
	n += fill(t, b, topic, 4, 10)
	first.allHandledIn(t, patience, l, n)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := first.Rejoin(ended, ""); err != nil { // it may be answered before it looks at the context
		require.ErrorIs(t, err, context.Canceled)
	}
	second.mustClose(t)
	first.mustClose(t)
	require.ErrorIs(t, first.Rejoin(t.Context(), "too late"), actors.ErrClosing)
	require.Empty(t, l.repeated())
	l.noOverlap(t)
}

func epochsOf(m *member) map[kafka.TopicPartition]kafka.AssignmentEpoch {
	out := make(map[kafka.TopicPartition]kafka.AssignmentEpoch)
	for _, p := range m.Stats().Partitions {
		out[p.TopicPartition] = p.Epoch
	}
	return out
}

func TestTheReasonOfARejoinReachesTheCoordinator(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		var reason atomic.Value
		b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Observe: true, Count: -1, When: func(req kmsg.Request) bool {
			if text := req.(*kmsg.JoinGroupRequest).Reason; text != nil {
				reason.Store(*text)
			}
			return true
		}})
		for i, assignor := range []rebalance.Assignor{rebalance.CooperativeSticky(), rebalance.Range()} {
			c := plain(b)
			c.GroupID, c.Assignors = fmt.Sprintf("billing-%d", i), []rebalance.Assignor{assignor}
			m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", newLedger().note("a")))
			m.joined(t)
			require.NoError(t, m.Rejoin(t.Context(), "new hosts"))
			eventually(t, time.Minute, "joined again", func() bool { return m.Stats().Generation == 2 && len(m.owned()) == 2 })
			require.Equal(t, "new hosts", reason.Load())
			m.mustClose(t)
		}
	})
}

// Many members with one pattern find a new topic at different times; each asking for it in a rebalance of its own would be
// a storm.
func TestANewTopicOfAPatternCostsTwoGenerationsHoweverManyMembers(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders-0", 12)
		n := fill(t, b, "orders-0", 12, 10)
		l := newLedger()
		var members []*member
		for i := range 5 {
			c := plain(b)
			m := spawn(t, c, api.WithDialer(b.Dial), api.Handle(api.Matching("orders-.*"), l.note(fmt.Sprint(i))))
			members = append(members, m)
			time.Sleep(7 * time.Second) // so that their metadata is of different ages
		}
		settled(t, 12, members...)
		before := members[0].Stats().Generation
		b.CreateTopic(t, "orders-1", 12)
		n += fill(t, b, "orders-1", 12, 10)
		members[0].allHandledIn(t, 2*time.Minute, l, n)
		settled(t, 24, members...)
		time.Sleep(5 * time.Minute)
		t.Logf("generations: %d", members[0].Stats().Generation-before)
		assert.LessOrEqual(t, members[0].Stats().Generation, before+2+1, "the first to see it, then all; one more moves partitions")
		for _, m := range members {
			assert.GreaterOrEqual(t, len(m.owned()), 4, "balanced")
			m.mustClose(t)
		}
		require.Empty(t, l.repeated())
		l.noOverlap(t)
	})
}

// twmb/franz-go#434 and #523: one of many topics is deleted, and the client asks for it for ever and rebalances each time.
func TestB33_ADeletedTopicOfAPatternLeavesTheOthersAlone(t *testing.T) {
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprintf("Named=%t", named), func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) { deletedTopic(t, b, named) })
		})
	}
}

func deletedTopic(t *testing.T, b *embeddedBroker, named bool) {
	topics := []string{"orders-0", "orders-1", "orders-2", "orders-3", "orders-4"}
	for _, topic := range topics {
		b.CreateTopic(t, topic, 2)
	}
	var requests, handled atomic.Int64
	b.Cluster().Fault(kfake.Fault{Observe: true, Count: -1, When: func(kmsg.Request) bool {
		requests.Add(1)
		return true
	}})
	l := newLedger()
	handle := l.watch("a", func(_ context.Context, r *kafka.Record) error {
		if r.Topic != "orders-4" {
			handled.Add(1)
		}
		return nil
	})
	registration := api.Handle(api.Matching("orders-[0-9]"), handle)
	if named {
		registration = api.Handle(topics, handle)
	}
	c := plain(b)
	c.MetadataMaxAge = 10 * time.Second
	m := spawn(t, c, api.WithDialer(b.Dial), registration)
	m.joined(t)
	pause(3 * time.Second)
	// produced feeds the four others every 100 ms for 30 s and returns how many requests that took, and how many records
	// were handled in the time.
	produced := func() (asked, done int64) {
		asked, done = requests.Load(), handled.Load()
		for range 300 {
			for _, topic := range topics[:4] {
				fill(t, b, topic, 2, 1)
			}
			time.Sleep(100 * time.Millisecond)
		}
		return requests.Load() - asked, handled.Load() - done
	}
	usual, rate := produced()
	generation := m.Stats().Generation
	b.DeleteTopic(t, "orders-4")
	without, rateWithout := produced()
	assert.InDelta(t, rate, rateWithout, float64(rate)/10, "the others keep their rate")
	assert.Less(t, without, 2*usual, "requests in 30 s")
	assert.LessOrEqual(t, m.Stats().Generation, generation+2)
	assert.Len(t, m.owned(), 8)
	if named {
		assert.Equal(t, []string{"orders-4"}, m.Stats().MissingTopics, "it was asked for by name")
	} else {
		assert.NotContains(t, m.Stats().Subscription, "orders-4")
	}
	b.CreateTopic(t, "orders-4", 2)
	fill(t, b, "orders-4", 2, 5)
	eventually(t, 15*time.Second, "it is consumed again", func() bool {
		return len(l.of(at("orders-4", 0))) == 5 && len(l.of(at("orders-4", 1))) == 5
	})
	m.mustClose(t)
	require.Equal(t, all(t, b.EndOffsets, topics...), b.Committed(t, "billing"))
	require.Empty(t, l.repeated())
}

// A right that is taken away for a while does not take the topic out of the subscription, though lists of all topics do not
// have it any more.
func TestATopicThatMayNotBeSeenStaysInThePattern(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders-0", 1)
		l := newLedger()
		c := plain(b)
		c.MetadataMaxAge = time.Second
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle(api.Matching("orders-.*"), l.note("a")))
		m.joined(t)
		eventually(t, time.Minute, "owned", func() bool { return len(m.owned()) == 1 })
		var denied atomic.Bool
		known := b.metadata(t, "orders-0")[0]
		denied.Store(true)
		b.Cluster().ControlKey(int16(kmsg.Metadata), func(raw kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster().KeepControl()
			if !denied.Load() {
				return nil, nil, false
			}
			req := raw.(*kmsg.MetadataRequest)
			resp := withoutLeader(b, req, known, 0)
			resp.Topics = nil
			for _, asked := range req.Topics {
				topic := kmsg.NewMetadataResponseTopic()
				topic.Topic, topic.ErrorCode = asked.Topic, int16(kafka.TopicAuthorizationFailed)
				resp.Topics = append(resp.Topics, topic)
			}
			return resp, nil, true
		})
		time.Sleep(2 * time.Minute)
		require.Equal(t, []string{"orders-0"}, m.Stats().Subscription)
		require.Equal(t, []string{"orders-0"}, m.Stats().MissingTopics)
		require.Len(t, m.owned(), 1)
		denied.Store(false)
		n := fill(t, b, "orders-0", 1, 5)
		m.allHandledIn(t, time.Minute, l, n)
		m.mustClose(t)
	})
}

func TestAPatternWaitsForAClusterThatIsNotThere(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders-0", 1)
		b.Freeze()
		l := newLedger()
		m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle(api.Matching("orders-.*"), l.note("a")))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var unreachable *kafka.ConnectError
		require.ErrorAs(t, m.WaitJoined(ctx), &unreachable)
		require.True(t, errors.Is(m.Healthy(), actors.ErrNotHealthy))
		b.Thaw()
		n := fill(t, b, "orders-0", 1, 5)
		m.allHandledIn(t, 2*time.Minute, l, n)
		m.mustClose(t)

		b.Freeze()
		closing := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle(api.Matching("orders-.*"), l.note("a")))
		time.Sleep(time.Second)
		began := time.Now()
		_ = closing.Close(t.Context())
		require.LessOrEqual(t, time.Since(began), 30*time.Second)
		b.Thaw()
	})
}
