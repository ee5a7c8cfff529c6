package integration

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// A member keeps its partitions over a rebalance that overtakes its SyncGroup and then takes longer than its session: the
// coordinator counts it in all the while, and its heartbeats name the generation that the group has reached.
func TestAMemberWhoseSyncGroupIsOvertakenKeepsItsPartitionsForLongerThanASession(t *testing.T) {
	t.Run("Embedded", func(t *testing.T) {
		story(t, func(t *testing.T, b *embeddedBroker) { syncGroupIsOvertaken(t, b, api.WithDialer(b.Dial)) })
	})
	t.Run("Kafka", func(t *testing.T) {
		t.Parallel()
		syncGroupIsOvertaken(t, realKafka.broker(t))
	})
}

func syncGroupIsOvertaken(t *testing.T, b broker, parts ...api.Part) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	const longest = time.Minute
	leader := newBare(t, b, group, longest, topic)
	require.NoError(t, leader.join(requestContext(t)))
	require.NoError(t, leader.sync(requestContext(t), nil))
	c := config(b, group)
	c.SessionTimeout = 6 * time.Second
	c.RebalanceTimeout = longest
	one := spawn(t, c, append(parts, api.Handle(topic, l.note("one")))...)
	leader.awaitRebalance(t)
	require.NoError(t, leader.join(requestContext(t)))
	require.True(t, leader.leader)
	others := slices.DeleteFunc(slices.Clone(leader.members), func(id string) bool { return id == leader.id })
	require.Len(t, others, 1)
	plan := map[string][]kafka.TopicPartition{leader.id: {at(topic, 1)}, others[0]: {at(topic, 0)}}
	require.NoError(t, leader.sync(requestContext(t), plan))
	one.joined(t)
	before := ownership(one)
	require.Equal(t, tps(topic, 0), one.owned())
	in := func(state rebalance.State) func() bool {
		return func() bool { return one.Stats().State == state.String() }
	}
	// The leader joins again, which is a rebalance, and lets the others wait for its plan, until somebody else joins.
	require.NoError(t, leader.join(requestContext(t)))
	eventually(t, patience, "one waits for its SyncGroup", in(rebalance.StateSyncing))
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	two := newBare(t, b, group, longest, topic)
	joined := two.joining(ctx)
	eventually(t, patience, "one joins again", in(rebalance.StateJoining))
	pause(c.SessionTimeout + 2*time.Second)
	// More than a session later: what one keeps is handled on.
	b.Produce(t, topic, kafka.Record{Partition: 0, Value: []byte("v")})
	eventually(t, patience, "a record is handled in the rebalance", func() bool { return l.distinct() == 1 })
	require.True(t, in(rebalance.StateJoining)())
	require.NoError(t, leader.join(requestContext(t)))
	require.NoError(t, <-joined)
	require.ElementsMatch(t, []string{leader.id, others[0], two.id}, leader.members)
	require.NoError(t, leader.sync(requestContext(t), plan))
	require.NoError(t, two.sync(ctx, nil))
	eventually(t, patience, "the rebalance ends", in(rebalance.StateAssigned))
	require.Equal(t, before, ownership(one), "by the same epoch")
	require.Empty(t, told[event.PartitionsLost](one))
	require.NoError(t, two.leave(requestContext(t)))
	require.NoError(t, leader.leave(requestContext(t)))
	one.mustClose(t)
	require.EqualValues(t, 1, b.Committed(t, group)[at(topic, 0)])
}
