package integration

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// inTheMiddleOfARebalance asks for a rebalance and returns at once.
func inTheMiddleOfARebalance(t *testing.T, members ...*member) {
	t.Helper()
	for _, m := range members {
		require.NoError(t, m.Rejoin(t.Context(), "a test changes things while it goes on"))
	}
}

// inOneLane has an engine handle each partition's records one after the other.
var inOneLane = api.OrderBy(func(*kafka.Record) []byte { return nil })

// givenAnew waits until all partitions of a topic are under other assignment epochs than before: their handler is the new one.
func givenAnew(t *testing.T, m *member, before map[kafka.TopicPartition]kafka.AssignmentEpoch, topic string, partitions int) {
	t.Helper()
	eventually(t, patience, "its partitions are given anew", func() bool {
		anew := 0
		for tp, epoch := range epochsOf(m) {
			if tp.Topic == topic && epoch != before[tp] {
				anew++
			}
		}
		return anew == partitions
	})
}

// subscribesAtRunTime adds a topic to one member of two, with another handler for it later, all in the middle of rebalances.
func subscribesAtRunTime(t *testing.T, b broker) {
	group, l := unique(t, "group"), newLedger()
	first, second := unique(t, "topic")+"-first", unique(t, "topic")+"-second"
	b.CreateTopic(t, first, 4)
	b.CreateTopic(t, second, 4)
	n := fill(t, b, first, 4, 10)
	left := spawn(t, config(b, group), api.Handle(first, l.note("left")))
	require.NoError(t, left.Subscribe(t.Context(), api.Handle(second, l.note("left"), api.KeyOrder(3), inOneLane)), "before it has joined")
	right := spawn(t, config(b, group), api.Handle(first, l.note("right")))
	settled(t, 8, left, right)
	n += fill(t, b, second, 4, 10)
	left.allHandledIn(t, patience, l, n)
	require.Equal(t, []string{first, second}, left.Stats().Subscription)

	old := epochsOf(left)
	inTheMiddleOfARebalance(t, left, right)
	require.NoError(t, left.Unsubscribe(t.Context(), second))
	require.NoError(t, left.Subscribe(t.Context(), api.Handle(second, l.note("another"))))
	givenAnew(t, left, old, second, 4)
	n += fill(t, b, second, 4, 10)
	left.allHandledIn(t, patience, l, n)
	require.NoError(t, right.Subscribe(t.Context(), api.Handle(second, l.note("right"))))
	require.ErrorAs(t, right.Subscribe(t.Context(), api.Handle(second, l.note("right"))), new(*api.ConfigError))
	settled(t, 8, left, right)
	n += fill(t, b, second, 4, 10) + fill(t, b, first, 4, 10)
	left.allHandledIn(t, patience, l, n)
	right.mustClose(t)
	left.mustClose(t)
	require.Empty(t, l.repeated(), "what is let go is committed first")
	l.noOverlap(t)
	require.Equal(t, all(t, b.EndOffsets, first, second), b.Committed(t, group))
	for p := range int32(4) {
		for _, e := range l.of(at(second, p)) {
			require.Equal(t, e.offset < 10, e.member == "left", "offset %d by %s", e.offset, e.member)
		}
	}
}

// unsubscribesAtRunTime lets topics go to another member, all of them at last, and comes back.
func unsubscribesAtRunTime(t *testing.T, b broker) {
	group, l := unique(t, "group"), newLedger()
	topic, other := unique(t, "topic")+"-a", unique(t, "topic")+"-b"
	b.CreateTopic(t, topic, 3)
	b.CreateTopic(t, other, 1)
	n := fill(t, b, topic, 3, 10) + fill(t, b, other, 1, 10)
	left := spawn(t, config(b, group), api.Handle([]string{topic, other}, l.note("left")))
	right := spawn(t, config(b, group), api.Handle(topic, l.note("right")))
	left.allHandledIn(t, patience, l, n)
	settled(t, 4, left, right)
	inTheMiddleOfARebalance(t, right)
	require.NoError(t, left.Unsubscribe(t.Context(), topic))
	eventually(t, patience, "the other member has the topic alone", func() bool {
		return len(right.owned()) == 3 && slices.Equal(left.owned(), []kafka.TopicPartition{at(other, 0)})
	})
	n += fill(t, b, topic, 3, 10) + fill(t, b, other, 1, 10)
	left.allHandledIn(t, patience, l, n)
	require.ErrorAs(t, left.Unsubscribe(t.Context(), topic), new(*api.ConfigError))

	require.NoError(t, left.Unsubscribe(t.Context()))
	eventually(t, patience, "it stays in the group with nothing", func() bool {
		s := left.Stats()
		return s.State == "ASSIGNED" && len(s.Partitions) == 0 && len(s.Subscription) == 0
	})
	require.NoError(t, left.Healthy())
	right.mustClose(t)
	eventually(t, patience, "also as its leader, alone", func() bool { return left.Stats().Leader && left.Stats().State == "ASSIGNED" })
	require.NoError(t, left.Subscribe(t.Context(), api.Handle([]string{topic, other}, l.note("left"))))
	n += fill(t, b, topic, 3, 10) + fill(t, b, other, 1, 10)
	left.allHandledIn(t, patience, l, n)
	left.mustClose(t)
	require.ErrorIs(t, left.Unsubscribe(t.Context()), actors.ErrClosing)
	require.Empty(t, l.repeated())
	l.noOverlap(t)
	require.Equal(t, all(t, b.EndOffsets, topic, other), b.Committed(t, group))
}

// subscribesToAPatternAtRunTime has a pattern and a name for one of its topics come and go.
func subscribesToAPatternAtRunTime(t *testing.T, b broker) {
	prefix, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	one, two := prefix+".one", prefix+".two"
	b.CreateTopic(t, one, 2)
	b.CreateTopic(t, two, 2)
	m := spawn(t, config(b, group), api.Handle(one, l.note("named")))
	m.joined(t)
	pattern := api.Matching(prefix + `\..*`)
	require.NoError(t, m.Subscribe(t.Context(), api.Handle(pattern, l.note("matched"))))
	n := fill(t, b, one, 2, 10) + fill(t, b, two, 2, 10)
	m.allHandledIn(t, patience, l, n)
	old := epochsOf(m)
	inTheMiddleOfARebalance(t, m)
	require.NoError(t, m.Unsubscribe(t.Context(), one))
	givenAnew(t, m, old, one, 2)
	require.ErrorAs(t, m.Unsubscribe(t.Context(), two), new(*api.ConfigError), "a pattern goes as a whole")
	n += fill(t, b, one, 2, 10)
	m.allHandledIn(t, patience, l, n)
	for p := range int32(2) {
		for _, e := range l.of(at(one, p)) {
			require.Equal(t, e.offset < 10, e.member == "named", "offset %d by %s", e.offset, e.member)
		}
	}
	require.NoError(t, m.Unsubscribe(t.Context(), pattern.String()))
	eventually(t, patience, "everything is let go", func() bool { return len(m.owned()) == 0 && m.Stats().State == "ASSIGNED" })
	m.mustClose(t)
	require.Empty(t, l.repeated())
	require.Equal(t, all(t, b.EndOffsets, one, two), b.Committed(t, group))
}

// concurrencyChanges raises and lowers the limit under handlers that run, and in the middle of a rebalance.
func concurrencyChanges(t *testing.T, b broker) {
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 4)
	fill(t, b, topic, 4, 10)
	var running, handled atomic.Int64
	release := make(chan struct{})
	c := config(b, group)
	c.Concurrency = 1
	m := spawn(t, c, api.Handle(topic, func(ctx context.Context, _ *kafka.Record) error {
		running.Add(1)
		defer running.Add(-1)
		select {
		case <-release:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		handled.Add(1)
		return nil
	}, api.MaxRecords(1)))
	runs := func(want int64) {
		t.Helper()
		eventually(t, patience, "as many run as may", func() bool { return running.Load() == want })
	}
	eventually(t, patience, "all partitions", func() bool { return len(m.owned()) == 4 })
	runs(1)
	inTheMiddleOfARebalance(t, m)
	require.NoError(t, m.SetConcurrency(t.Context(), 3))
	runs(3)
	require.NoError(t, m.SetConcurrency(t.Context(), 0))
	runs(4)
	require.NoError(t, m.SetConcurrency(t.Context(), 2))
	for range 2 {
		release <- struct{}{}
	}
	runs(2)
	pause(300 * time.Millisecond)
	require.EqualValues(t, 2, running.Load())
	require.Equal(t, 2, m.Stats().Concurrency)
	require.EqualValues(t, 2, handled.Load(), "none was canceled")
	close(release)
	eventually(t, patience, "all is handled", func() bool { return handled.Load() == 40 })
	m.mustClose(t)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

// abandonWaitsForNobody leaves a handler that is deaf behind, while a close drains and while a rebalance goes on.
func abandonWaitsForNobody(t *testing.T, b broker) {
	for name, before := range map[string]func(t *testing.T, m *member){
		"at rest":   func(t *testing.T, m *member) {},
		"in a join": func(t *testing.T, m *member) { inTheMiddleOfARebalance(t, m) },
		"while closing": func(t *testing.T, m *member) {
			go func() { _ = m.Close(context.Background()) }()
			pause(200 * time.Millisecond)
		},
	} {
		topic, group := unique(t, "topic"), unique(t, "group")
		b.CreateTopic(t, topic, 2)
		fill(t, b, topic, 2, 5)
		release, entered, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		let := sync.OnceFunc(func() { close(release) })
		t.Cleanup(let)
		var others atomic.Int64
		m := spawn(t, config(b, group), api.Handle(topic, func(ctx context.Context, r *kafka.Record) error {
			if r.Partition == 1 && r.Offset == 3 {
				context.AfterFunc(ctx, func() { ended <- context.Cause(ctx) })
				close(entered)
				<-release // deaf to its context
			}
			if r.Partition == 0 {
				others.Add(1)
			}
			return nil
		}))
		receive(t, entered)
		eventually(t, patience, "the other partition is handled", func() bool { return others.Load() == 5 })
		before(t, m)
		started := time.Now()
		err := m.Abandon(t.Context())
		require.Less(t, time.Since(started), 10*time.Second)
		var typed *actors.CloseError
		require.ErrorAs(t, err, &typed)
		require.ErrorIs(t, err, actors.ErrAbandoned)
		require.Len(t, typed.Running, 1, "%v", err)
		require.Equal(t, at(topic, 1), typed.Running[0].TopicPartition)
		require.ErrorIs(t, receive(t, ended), actors.ErrClosing)
		committed := b.Committed(t, group)
		if name != "in a join" { // there the coordinator may be a generation ahead, and take no commit of this one any more
			require.Equal(t, map[kafka.TopicPartition]int64{at(topic, 0): 5, at(topic, 1): 3}, committed, name)
		}
		require.LessOrEqual(t, committed[at(topic, 1)], int64(3), "never beyond what a handler is at work on")
		require.Empty(t, b.Group(t, group).Members, "it has left")
		let()
	}
}
