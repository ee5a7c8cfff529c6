package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// What docs/live-upgrade.md promises.
func TestARunningGroupMovesFromRangeToCooperativeStickyInTwoRollingSteps(t *testing.T) {
	everywhere(t, liveUpgrade)
}

func liveUpgrade(t *testing.T, b broker) {
	const partitions = 6
	before := []rebalance.Assignor{rebalance.Range()}
	steps := [][]rebalance.Assignor{
		{rebalance.CooperativeSticky(), rebalance.Range()},
		{rebalance.CooperativeSticky()},
	}
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	var all []*member
	join := func(assignors []rebalance.Assignor) *member {
		c := config(b, group)
		c.Assignors = assignors
		work := func(context.Context, *kafka.Record) error {
			pause(time.Millisecond)
			return nil
		}
		m := spawn(t, c, api.Handle(topic, l.watch(fmt.Sprintf("member %d", len(all)), work)))
		all = append(all, m)
		return m
	}
	stop := stream(t, b, topic, partitions)
	defer stop()
	members := []*member{join(before), join(before), join(before)}
	settled(t, partitions, members...)
	require.Equal(t, "range", protocolOf(t, b, group))
	for _, assignors := range steps {
		for i := range members {
			handled := l.distinct()
			members[i].mustClose(t)
			members[i] = join(assignors)
			settled(t, partitions, members...)
			eventually(t, patience, "records flow", func() bool { return l.distinct() > handled+60 })
		}
		require.Equal(t, "cooperative-sticky", protocolOf(t, b, group))
	}

	// Now that nobody offers an eager assignor, what stays is not given up.
	revoked := make([]int, len(members))
	for i, m := range members {
		revoked[i] = len(told[event.PartitionsRevoked](m))
	}
	held := ownership(members...)
	fourth := join(steps[1])
	settled(t, partitions, append(members, fourth)...)
	moved := make(map[kafka.TopicPartition]bool)
	for _, tp := range fourth.owned() {
		moved[tp] = true
	}
	for i, m := range members {
		for _, e := range told[event.PartitionsRevoked](m)[revoked[i]:] {
			for _, tp := range e.Partitions {
				require.True(t, moved[tp], "%s was revoked, and stays", tp)
			}
		}
	}
	for tp, now := range ownership(members...) {
		require.Equal(t, held[tp], now, "%s stayed with its member", tp)
	}

	n := stop()
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	allCommitted(t, b, topic, group)
	for _, m := range append(members, fourth) {
		m.mustClose(t)
	}
	ends := b.EndOffsets(t, topic)
	l.allHandled(t, ends)
	l.noOverlap(t)
	require.Empty(t, l.repeated())
	require.Equal(t, ends, b.Committed(t, group))
	for _, m := range all {
		require.Empty(t, told[event.PartitionsLost](m))
		require.Zero(t, m.Stats().StaleAcks)
	}
}

// The one step that docs/live-upgrade.md warns of hurts nobody else, and heals.
func TestAMemberThatSkipsTheFirstStepIsRefusedUntilTheOthersHaveTakenIt(t *testing.T) {
	everywhere(t, firstStepSkipped)
}

func firstStepSkipped(t *testing.T, b broker) {
	const partitions = 4
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	join := func(name string, assignors ...rebalance.Assignor) *member {
		c := config(b, group)
		c.Assignors = assignors
		return spawn(t, c, api.Handle(topic, l.note(name)))
	}
	one := join("one", rebalance.Range())
	settled(t, partitions, one)
	two := join("two", rebalance.CooperativeSticky())
	refused := tellsOf(t, two, patience, func(e event.ConnectFailed) bool { return errors.Is(e.Err, kafka.InconsistentGroupProtocol) })
	var mismatch *rebalance.ProtocolMismatchError
	require.ErrorAs(t, refused.Err, &mismatch)
	require.Equal(t, []string{"cooperative-sticky"}, mismatch.Offered)
	require.Equal(t, "range", mismatch.InUse)
	require.ErrorContains(t, refused.Err, `offers the assignors ["cooperative-sticky"], the group uses "range"`)
	require.ErrorIs(t, two.WaitJoined(t.Context()), kafka.InconsistentGroupProtocol)
	n := fill(t, b, topic, partitions, 10)
	eventually(t, patience, "the group goes on", func() bool { return l.distinct() == n })
	require.Equal(t, one.Stats().MemberID, onlyMember(t, b, group))
	one.mustClose(t)
	one = join("one again", rebalance.CooperativeSticky(), rebalance.Range())
	settled(t, partitions, one, two)
	n += fill(t, b, topic, partitions, 10)
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	allCommitted(t, b, topic, group)
	one.mustClose(t)
	two.mustClose(t)
	l.noOverlap(t)
	require.Empty(t, l.repeated())
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

// onlyMember returns the member id in a group of one.
func onlyMember(t *testing.T, b broker, group string) (id string) {
	t.Helper()
	view := b.Group(t, group)
	require.Len(t, view.Members, 1)
	for id = range view.Members {
	}
	return id
}

// holding is one time that a member has a partition; a partition that is given up and comes back has another epoch.
type holding struct {
	owner *member
	epoch kafka.AssignmentEpoch
}

// ownership returns who holds what.
func ownership(members ...*member) map[kafka.TopicPartition]holding {
	out := make(map[kafka.TopicPartition]holding)
	for _, m := range members {
		for _, p := range m.Stats().Partitions {
			out[p.TopicPartition] = holding{owner: m, epoch: p.Epoch}
		}
	}
	return out
}
