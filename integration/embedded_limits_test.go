package integration

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// limitsRebalanceTimeout is that of the members of the tests below.
const limitsRebalanceTimeout = 5 * time.Second

// A LeaveGroup while the member waits for its SyncGroup holds up nobody else, in Kafka. kfake counts the parked SyncGroup as
// a JoinGroup that is taken back (group.removeMember), and so the next rebalance misses one JoinGroup for ever: it ends by its
// timeout alone. docs/simulation.md has what follows from that.
func TestALeaveWhileItsSyncGroupWaitsHoldsUpTheEmbeddedBrokersGroupOnly(t *testing.T) {
	t.Run("Embedded", func(t *testing.T) {
		story(t, func(t *testing.T, b *embeddedBroker) {
			require.GreaterOrEqual(t, joinAfterLeaveInSync(t, b), limitsRebalanceTimeout, "kfake has it mended: take the limit out of docs/simulation.md and pkg/kafkatest")
		})
	})
	t.Run("Kafka", func(t *testing.T) {
		t.Parallel()
		require.Less(t, joinAfterLeaveInSync(t, realKafka.broker(t)), limitsRebalanceTimeout*4/5)
	})
}

// joinAfterLeaveInSync is how long the only member left waits for its JoinGroup.
func joinAfterLeaveInSync(t *testing.T, b broker) time.Duration {
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 1)
	stays, leaves := pairOfBare(t, b, group, topic)
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { waits <- leaves.sync(ctx, nil) }()
	defer func() {
		cancel()
		require.Error(t, <-waits) // nobody answers a SyncGroup of one that has left; kfake never does
	}()
	pause(time.Second)
	require.NoError(t, leaves.leave(requestContext(t)))
	began := time.Now()
	require.NoError(t, stays.join(requestContext(t)))
	require.Equal(t, []string{stays.id}, stays.members)
	return time.Since(began)
}

// pairOfBare are two members of a generation whose leader, the first, has made no plan.
func pairOfBare(t *testing.T, b broker, group, topic string) (leader, other *bareMember) {
	t.Helper()
	leader, other = newBare(t, b, group, limitsRebalanceTimeout, topic), newBare(t, b, group, limitsRebalanceTimeout, topic)
	require.NoError(t, leader.join(requestContext(t)))
	require.NoError(t, leader.sync(requestContext(t), nil))
	joined := other.joining(requestContext(t))
	leader.awaitRebalance(t)
	require.NoError(t, leader.join(requestContext(t)))
	require.NoError(t, <-joined)
	require.True(t, leader.leader)
	require.Len(t, leader.members, 2)
	return leader, other
}

// A rebalance waits no longer than its timeout for a member that does not join, in Kafka. kfake waits for that long from the
// last JoinGroup of whomever (group.rebalance): one that is repeated, or several in turns, keep it waiting for ever.
func TestARepeatedJoinGroupHoldsUpTheEmbeddedBrokersGroupOnly(t *testing.T) {
	t.Run("Embedded", func(t *testing.T) {
		story(t, func(t *testing.T, b *embeddedBroker) {
			require.GreaterOrEqual(t, joinWithoutAnother(t, b), 10*limitsRebalanceTimeout, "kfake has it mended: take the limit out of docs/simulation.md and pkg/kafkatest")
		})
	})
	t.Run("Kafka", func(t *testing.T) {
		t.Parallel()
		require.Less(t, joinWithoutAnother(t, realKafka.broker(t)), 3*limitsRebalanceTimeout)
	})
}

// joinWithoutAnother is how long a member repeats its JoinGroup while another one does not send any, but for ten rebalance
// timeouts at most.
func joinWithoutAnother(t *testing.T, b broker) time.Duration {
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 1)
	repeats, silent := pairOfBare(t, b, group, topic)
	require.NoError(t, repeats.sync(requestContext(t), map[string][]kafka.TopicPartition{silent.id: tps(topic, 0)}))
	require.NoError(t, silent.sync(requestContext(t), nil))
	began := time.Now()
	for time.Since(began) < 10*limitsRebalanceTimeout {
		ctx, cancel := context.WithTimeout(t.Context(), limitsRebalanceTimeout*4/5)
		err := repeats.join(ctx)
		cancel()
		if err == nil {
			require.Equal(t, []string{repeats.id}, repeats.members)
			break
		}
		require.False(t, slices.Contains([]error{kerr.UnknownMemberID, kerr.IllegalGeneration}, err), err)
		repeats.connect(t, b) // as a client does that has given an answer up
	}
	return time.Since(began)
}

// A group that does not come to an end is told, whoever's fault it is: from the first moment by Healthy, with what failed and
// for how long already, and by an event whenever a JoinGroup has had its time.
func TestAGroupThatNeverSettlesIsTold(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 1)
		repeats, silent := pairOfBare(t, b, "billing", "orders")
		require.NoError(t, repeats.sync(requestContext(t), map[string][]kafka.TopicPartition{silent.id: tps("orders", 0)}))
		require.NoError(t, silent.sync(requestContext(t), nil))
		c := config(b, "billing")
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", newLedger().note("a")))
		pause(time.Second)
		require.ErrorContains(t, m.Healthy(), "member is JOINING for 1s")
		began := time.Now()
		for time.Since(began) < 4*time.Minute {
			ctx, cancel := context.WithTimeout(t.Context(), c.RebalanceTimeout*4/5)
			require.Error(t, repeats.join(ctx))
			cancel()
			repeats.connect(t, b)
			for _, bare := range []*bareMember{repeats, silent} { // kfake counts the session of a member that waits
				require.ErrorIs(t, bare.heartbeat(requestContext(t)), kerr.RebalanceInProgress)
			}
		}
		require.ErrorContains(t, m.Healthy(), "member is JOINING for 4m")
		require.ErrorContains(t, m.Healthy(), "JoinGroup failed")
		require.ErrorContains(t, m.Healthy(), "no answer within 30s")
		told := slices.DeleteFunc(told[event.ConnectFailed](m), func(e event.ConnectFailed) bool { return e.Purpose != "JoinGroup" })
		require.GreaterOrEqual(t, len(told), 7)
		eventually(t, 2*time.Minute, "the group settles when nobody starts anew", func() bool { return m.Healthy() == nil })
		m.mustClose(t)
	})
}
