package integration

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// kept returns the partitions that one holding goes through in both pictures of a group, in order, and those that do not.
func kept(before, after map[kafka.TopicPartition]holding) (stayed, moved []kafka.TopicPartition) {
	for tp, holding := range after {
		if before[tp] == holding {
			stayed = append(stayed, tp)
		} else {
			moved = append(moved, tp)
		}
	}
	slices.SortFunc(stayed, kafka.TopicPartition.Compare)
	slices.SortFunc(moved, kafka.TopicPartition.Compare)
	return stayed, moved
}

// revokedSince returns all partitions that members have told to be revoked, in order, without the first so many events.
func revokedSince(events []int, members ...*member) (out []kafka.TopicPartition) {
	for i, m := range members {
		for _, e := range told[event.PartitionsRevoked](m)[events[i]:] {
			out = append(out, e.Partitions...)
		}
	}
	slices.SortFunc(out, kafka.TopicPartition.Compare)
	return out
}

// thinker is an assignor that takes its time when it is told to.
type thinker struct {
	rebalance.Assignor
	next *atomic.Int64
}

func (a thinker) Assign(members []rebalance.AssignorMember, topics map[string]rebalance.TopicInfo) map[string][]kafka.TopicPartition {
	pause(time.Duration(a.next.Swap(0)))
	return a.Assignor.Assign(members, topics)
}

// The coordinator knows a member in the new generation alone from the JoinGroup on: what is kept is not lost to how long SyncGroup takes.
func TestPartitionsThatStayOutlastAGroupLeaderThatThinksForLongerThanASession(t *testing.T) {
	everywhere(t, leaderThinks)
}

func leaderThinks(t *testing.T, b broker) {
	const partitions, session = 4, 6 * time.Second
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	assignor := thinker{Assignor: rebalance.CooperativeSticky(), next: new(atomic.Int64)}
	c := config(b, group)
	c.Assignors, c.SessionTimeout = []rebalance.Assignor{assignor}, session
	one, two := spawn(t, c, api.Handle(topic, l.note("one"))), spawn(t, c, api.Handle(topic, l.note("two")))
	settled(t, partitions, one, two)
	stop := stream(t, b, topic, partitions)
	defer stop()
	before := ownership(one, two)
	assignor.next.Store(int64(2*session + time.Second))
	require.NoError(t, one.Rejoin(requestContext(t), "test"))
	eventually(t, patience, "the leader thinks", func() bool { return assignor.next.Load() == 0 })
	pause(session + session/2)
	handled := l.distinct()
	eventually(t, session/2, "what stays is handled on", func() bool { return l.distinct() > handled })
	require.Equal(t, before, ownership(one, two))
	settled(t, partitions, one, two)
	n := stop()
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	allCommitted(t, b, topic, group)
	require.Equal(t, before, ownership(one, two))
	for _, m := range []*member{one, two} {
		m.mustClose(t)
		require.Empty(t, told[event.PartitionsLost](m))
	}
	l.noOverlap(t)
	require.Empty(t, l.repeated())
}

// longestGap is the longest time in a span in which no record of a partition was begun.
func (l *ledger) longestGap(tp kafka.TopicPartition, from, to time.Time) (longest time.Duration) {
	last := from
	for _, e := range l.of(tp) {
		if e.start.After(last) && e.start.Before(to) {
			longest, last = max(longest, e.start.Sub(last)), e.start
		}
	}
	return max(longest, to.Sub(last))
}

func TestPartitionsThatStayAreNeverRevokedAndAreHandledOnWhileAMemberJoins(t *testing.T) {
	everywhere(t, thirdMemberJoins)
}

func thirdMemberJoins(t *testing.T, b broker) {
	const (
		partitions = 6
		// longestKept leaves room for a machine that does much else; a group that stands still for a session breaks it.
		longestKept = 3 * time.Second
	)
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	one, two := spawn(t, config(b, group), api.Handle(topic, l.note("one"))), spawn(t, config(b, group), api.Handle(topic, l.note("two")))
	settled(t, partitions, one, two)
	stop := stream(t, b, topic, partitions)
	defer stop()
	flows := func() { // each partition, for a while
		t.Helper()
		for _, tp := range tps(topic, 0, 1, 2, 3, 4, 5) {
			handled := len(l.of(tp))
			eventually(t, patience, "records flow", func() bool { return len(l.of(tp)) > handled+20 })
		}
	}
	flows()
	before := ownership(one, two)
	events := []int{len(told[event.PartitionsRevoked](one)), len(told[event.PartitionsRevoked](two))}
	began := time.Now()
	three := spawn(t, config(b, group), api.Handle(topic, l.note("three")))
	settled(t, partitions, one, two, three)
	took := time.Since(began)
	flows()
	stayed, moved := kept(before, ownership(one, two, three))
	require.Len(t, stayed, 4)
	require.Equal(t, three.owned(), moved)
	require.Equal(t, moved, revokedSince(events, one, two))
	var gap, movingGap time.Duration
	for _, tp := range stayed {
		gap = max(gap, l.longestGap(tp, began, began.Add(took)))
	}
	for _, tp := range moved {
		movingGap = max(movingGap, l.longestGap(tp, began, time.Now()))
	}
	t.Logf("%s: settled after %v; longest delivery gap: kept partitions %v, moving ones %v", b.Version(), took, gap, movingGap)
	require.Less(t, gap, longestKept)

	n := stop()
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	allCommitted(t, b, topic, group)
	for _, m := range []*member{one, two, three} {
		m.mustClose(t)
		require.Empty(t, told[event.PartitionsLost](m))
	}
	l.noOverlap(t)
	require.Empty(t, l.repeated())
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

// KIP-345: a static member that comes back within its session is given what it had, and nobody else is asked.
func TestAStaticMemberThatRestartsCausesNoRebalanceAndGetsItsPartitionsBack(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		if _, embedded := b.(*embeddedBroker); embedded {
			// kfake starts a rebalance when a subscription has other bytes than the last one, and each has the generation
			// before it: there, only a member that has joined once may come back.
			staticMemberRestarts(t, b, rebalance.Range(), 1)
			return
		}
		staticMemberRestarts(t, b, rebalance.Range(), 0, 1)
		staticMemberRestarts(t, b, rebalance.CooperativeSticky(), 0, 1)
	})
}

// staticMemberRestarts restarts those of two members, of which the first leads.
func staticMemberRestarts(t *testing.T, b broker, assignor rebalance.Assignor, which ...int) {
	t.Helper()
	const partitions = 6
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	join := func(instance string) *member {
		c := config(b, group)
		c.GroupInstanceID, c.Assignors = instance, []rebalance.Assignor{assignor}
		return spawn(t, c, api.Handle(topic, l.note(instance)))
	}
	members := []*member{join("0")}
	settled(t, partitions, members...)
	members = append(members, join("1"))
	settled(t, partitions, members...)
	require.True(t, members[0].Stats().Leader)
	n := fill(t, b, topic, partitions, 10)
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	for _, i := range which {
		other := members[1-i]
		owned, generation := members[i].owned(), members[i].Stats().Generation
		others, rebalances := ownership(other), other.Stats().Rebalances
		revoked := len(told[event.PartitionsRevoked](other))
		members[i].mustClose(t)
		n += fill(t, b, topic, partitions, 10)
		members[i] = join(strconv.Itoa(i))
		eventually(t, patience, "the member has its partitions back", func() bool { return slices.Equal(members[i].owned(), owned) })
		eventually(t, patience, "what came meanwhile is handled", func() bool { return l.distinct() == n })
		require.Equal(t, generation, members[i].Stats().Generation)
		require.Equal(t, others, ownership(other))
		require.Equal(t, rebalances, other.Stats().Rebalances)
		require.Len(t, told[event.PartitionsRevoked](other), revoked)
	}
	for _, m := range members {
		m.mustClose(t)
	}
	l.noOverlap(t)
	require.Empty(t, l.repeated())
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

// A cooperative member keeps its partitions over a rebalance, but not the positions of a topic that is another one now.
func TestATopicMadeAnewUnderCooperativeMembersIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	const partitions = 4
	b := newEmbedded(t)
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	one, two := spawn(t, config(b, group), api.Handle(topic, l.note("one"))), spawn(t, config(b, group), api.Handle(topic, l.note("two")))
	settled(t, partitions, one, two)
	n := fill(t, b, topic, partitions, 20)
	eventually(t, patience, "the old topic is handled and committed", func() bool {
		committed := b.Committed(t, group)
		return l.distinct() == n && len(committed) == partitions && committed[at(topic, 0)] == 20
	})
	require.NoError(t, b.Cluster().DeleteTopic(topic))
	b.CreateTopic(t, topic, partitions)
	fill(t, b, topic, partitions, 7)
	want := slices.Concat(upTo(20), upTo(7))
	for _, tp := range tps(topic, 0, 1, 2, 3) {
		eventually(t, patience, "the new topic is handled", func() bool { return len(l.of(tp)) >= len(want) })
		require.Equal(t, want, l.offsets(tp), "%s", tp)
	}
	eventually(t, patience, "the new topic is committed", func() bool {
		for _, offset := range b.Committed(t, group) {
			if offset != 7 {
				return false
			}
		}
		return true
	})
	one.mustClose(t)
	two.mustClose(t)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

// upTo returns the offsets below an end.
func upTo(end int64) (out []int64) {
	for offset := range end {
		out = append(out, offset)
	}
	return out
}

func TestASlowOnRevokedHoldsOnlyThePartitionsThatMove(t *testing.T) {
	everywhere(t, slowOnRevoked)
}

func slowOnRevoked(t *testing.T, b broker) {
	const (
		partitions = 4
		slow       = time.Second
	)
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	var mu sync.Mutex
	var began, ended time.Time
	var given []kafka.TopicPartition
	one := spawn(t, config(b, group), api.Handle(topic, l.note("one")), api.WithCallbacks(api.Callbacks{
		OnRevoked: func(_ context.Context, _ *api.Token, partitions []kafka.TopicPartition) error {
			mu.Lock()
			defer mu.Unlock()
			if !began.IsZero() {
				return nil // that of the close
			}
			began = time.Now()
			pause(slow)
			ended, given = time.Now(), slices.Clone(partitions)
			return nil
		},
	}))
	settled(t, partitions, one)
	stop := stream(t, b, topic, partitions)
	defer stop()
	eventually(t, patience, "records flow", func() bool { return l.distinct() > 100 })
	before := ownership(one)
	two := spawn(t, config(b, group), api.Handle(topic, l.note("two")))
	settled(t, partitions, one, two)
	handled := l.distinct()
	eventually(t, patience, "records flow on", func() bool { return l.distinct() > handled+100 })
	stayed, moved := kept(before, ownership(one, two))
	n := stop()
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	allCommitted(t, b, topic, group)

	mu.Lock()
	slices.SortFunc(given, kafka.TopicPartition.Compare)
	require.Equal(t, two.owned(), given)
	require.Equal(t, moved, given)
	require.Len(t, stayed, 2)
	during := func(tp kafka.TopicPartition) (count int) {
		for _, e := range l.of(tp) {
			if e.start.After(began) && e.start.Before(ended) {
				count++
			}
		}
		return count
	}
	for _, tp := range moved {
		require.Zero(t, during(tp), "%s was handled while its callback ran", tp)
	}
	for _, tp := range stayed {
		require.Greater(t, during(tp), 10, "%s stays", tp)
		t.Logf("%s: longest delivery gap of %s while OnRevoked took %v: %v", b.Version(), tp, ended.Sub(began), l.longestGap(tp, began, ended))
	}
	mu.Unlock()
	one.mustClose(t)
	two.mustClose(t)
	require.Empty(t, told[event.CallbackFailed](one))
	l.noOverlap(t)
	require.Empty(t, l.repeated())
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}
