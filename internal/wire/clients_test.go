package wire

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func joinOf(memberID string) rebalance.JoinRequest {
	return rebalance.JoinRequest{
		GroupID: group, MemberID: memberID, SessionTimeout: 10 * time.Second, RebalanceTimeout: 10 * time.Second,
		Protocols: []rebalance.Protocol{{Name: "range", Metadata: []byte("subscription")}}, Reason: "test",
	}
}

// joined is one member of a stable group.
type joined struct {
	coordinator kafka.Broker
	memberID    string
	generation  kafka.Generation
}

// join brings one member into the group, MEMBER_ID_REQUIRED included, and syncs it.
func join(t *testing.T, n *Network) joined {
	t.Helper()
	coordinator := coordinatorOf(t, n)
	c := n.Membership()
	defer c.Close()
	first, err := c.Join(t.Context(), coordinator, joinOf(""))
	require.ErrorIs(t, err, kafka.MemberIDRequired)
	require.NotEmpty(t, first.MemberID)
	got, err := c.Join(t.Context(), coordinator, joinOf(first.MemberID))
	require.NoError(t, err)
	require.Equal(t, first.MemberID, got.MemberID)
	require.Equal(t, got.MemberID, got.LeaderID)
	require.Equal(t, "range", got.Protocol)
	require.Equal(t, []rebalance.JoinMember{{MemberID: got.MemberID, Metadata: []byte("subscription")}}, got.Members)
	synced, err := c.Sync(t.Context(), coordinator, rebalance.SyncRequest{
		GroupID: group, MemberID: got.MemberID, Generation: got.Generation, Protocol: "range",
		Assignments: []rebalance.MemberAssignment{{MemberID: got.MemberID, Assignment: []byte("plan")}},
	})
	require.NoError(t, err)
	require.Equal(t, rebalance.SyncResponse{Protocol: "range", Assignment: []byte("plan")}, synced)
	return joined{coordinator: coordinator, memberID: got.MemberID, generation: got.Generation}
}

// brokerVersions are the brokers the whole-client tests run against.
var brokerVersions = map[string][]kfake.Opt{
	"newest":    nil,
	"Kafka 2.4": {kfake.MaxVersions(kversion.V2_4_0())},
	"Kafka 2.8": {kfake.MaxVersions(kversion.V2_8_0())},
}

func TestMetadataHasOneEntryForEachTopicAskedFor(t *testing.T) {
	for name, opts := range brokerVersions {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t, append(opts, kfake.NumBrokers(3))...)
			c := newNetwork(t, cluster.ListenAddrs()[:1], nil).Metadata()
			defer c.Close()
			meta, err := c.Metadata(t.Context(), []string{"orders", "missing"})
			require.NoError(t, err)
			require.Len(t, meta.Brokers, 3)
			require.Len(t, meta.Topics, 2)
			require.ErrorIs(t, meta.Topics["missing"].Err, kafka.UnknownTopicOrPartition)
			orders := meta.Topics["orders"]
			require.NoError(t, orders.Err)
			require.Len(t, orders.Partitions, 3)
			require.Equal(t, name == "newest" || name == "Kafka 2.8", !orders.ID.IsZero())
			for i, p := range orders.Partitions {
				require.NoError(t, p.Err)
				require.Equal(t, cluster.LeaderFor("orders", int32(i)), p.Leader)
				require.GreaterOrEqual(t, p.LeaderEpoch, int32(0))
			}
			none, err := c.Metadata(t.Context(), []string{})
			require.NoError(t, err)
			require.Empty(t, none.Topics, "no topics asked for is not every topic")
			all, err := c.Metadata(t.Context(), nil)
			require.NoError(t, err)
			require.Equal(t, orders, all.Topics["orders"], "no list is every topic")
		})
	}
}

func TestMetadataFillsHolesAndRefusesWildNumbers(t *testing.T) {
	topic := func(numbers ...int32) *kmsg.MetadataResponseTopic {
		out := kmsg.NewMetadataResponseTopic()
		for _, n := range numbers {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader = n, 1
			out.Partitions = append(out.Partitions, p)
		}
		return &out
	}
	got := readTopic(topic(2, 0))
	require.Len(t, got.Partitions, 3)
	require.Equal(t, int32(-1), got.Partitions[1].Leader)
	require.ErrorIs(t, got.Partitions[1].Err, kafka.LeaderNotAvailable)
	require.ErrorIs(t, readTopic(topic(1<<30)).Err, errTooManyPartitions)
	require.ErrorIs(t, readTopic(topic(-1)).Err, errTooManyPartitions)
}

func TestOneMembersLife(t *testing.T) {
	for name, opts := range brokerVersions {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, newCluster(t, opts...).ListenAddrs(), nil)
			m := join(t, n)
			offsets := n.Offsets().(*offsetsClient)
			defer offsets.Close()
			round := commit.Round{GroupID: group, MemberID: m.memberID, Generation: m.generation, Offsets: []commit.Offset{
				{TopicPartition: kafka.TopicPartition{Topic: "orders"}, Offset: 42, LeaderEpoch: 3, Metadata: "map"},
				{TopicPartition: kafka.TopicPartition{Topic: "orders", Partition: 2}, Offset: 7, LeaderEpoch: kafka.NoLeaderEpoch},
			}}
			results, err := offsets.commit(t.Context(), m.coordinator, round)
			require.NoError(t, err)
			require.Equal(t, map[kafka.TopicPartition]error{round.Offsets[0].TopicPartition: nil, round.Offsets[1].TopicPartition: nil}, results)

			want := map[kafka.TopicPartition]actors.CommittedOffset{
				round.Offsets[0].TopicPartition: {Offset: 42, LeaderEpoch: 3, Metadata: "map"},
				round.Offsets[1].TopicPartition: {Offset: 7, LeaderEpoch: kafka.NoLeaderEpoch},
			}
			all, err := offsets.FetchOffsets(t.Context(), m.coordinator, actors.OffsetFetchRequest{GroupID: group})
			require.NoError(t, err)
			require.Equal(t, want, all)
			nothing := kafka.TopicPartition{Topic: "orders", Partition: 1}
			want[nothing] = actors.CommittedOffset{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}
			some, err := offsets.FetchOffsets(t.Context(), m.coordinator, actors.OffsetFetchRequest{GroupID: group,
				Partitions: []kafka.TopicPartition{nothing, round.Offsets[0].TopicPartition, round.Offsets[1].TopicPartition}})
			require.NoError(t, err)
			require.Equal(t, want, some)

			round.Generation--
			results, err = offsets.commit(t.Context(), m.coordinator, round)
			require.NoError(t, err)
			require.ErrorIs(t, results[round.Offsets[0].TopicPartition], kafka.IllegalGeneration)

			heart := n.Heartbeat()
			defer heart.Close()
			beat := rebalance.HeartbeatRequest{GroupID: group, MemberID: m.memberID, Generation: m.generation}
			require.NoError(t, heart.Heartbeat(t.Context(), m.coordinator, beat))
			leave := rebalance.LeaveRequest{GroupID: group, MemberID: m.memberID, Reason: "closed"}
			require.NoError(t, heart.Leave(t.Context(), m.coordinator, leave))
			require.ErrorIs(t, heart.Leave(t.Context(), m.coordinator, leave), kafka.UnknownMemberID)
			err = heart.Heartbeat(t.Context(), m.coordinator, beat)
			require.ErrorIs(t, err, kafka.UnknownMemberID)
			var failed *kafka.RequestError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, "Heartbeat", failed.API)
			require.Equal(t, m.coordinator, failed.Broker)
			require.False(t, failed.Unanswered)
		})
	}
}

func TestStaticMemberRejoinsWithoutAnotherMemberID(t *testing.T) {
	n := newNetwork(t, newCluster(t).ListenAddrs(), nil)
	coordinator := coordinatorOf(t, n)
	c := n.Membership()
	defer c.Close()
	in := joinOf("")
	in.GroupInstanceID = "till-1"
	got, err := c.Join(t.Context(), coordinator, in)
	require.NoError(t, err)
	require.Equal(t, "till-1", got.Members[0].GroupInstanceID)
	heart := n.Heartbeat()
	defer heart.Close()
	require.NoError(t, heart.Leave(t.Context(), coordinator, rebalance.LeaveRequest{GroupID: group, GroupInstanceID: "till-1", MemberID: got.MemberID}))
}

func TestListOffsetsAndEpochEnds(t *testing.T) {
	for name, opts := range brokerVersions {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t, opts...)
			addrs := cluster.ListenAddrs()
			produce(t, addrs, "orders", 0, "a", "b", "c")
			n := newNetwork(t, addrs, nil)
			meta, err := n.Metadata().Metadata(t.Context(), []string{"orders"})
			require.NoError(t, err)
			leader := meta.Brokers[meta.Topics["orders"].Partitions[0].Leader]
			epoch := meta.Topics["orders"].Partitions[0].LeaderEpoch
			c := n.Lookup(leader)
			defer c.Close()
			zero, one := kafka.TopicPartition{Topic: "orders"}, kafka.TopicPartition{Topic: "orders", Partition: 1}
			missing := kafka.TopicPartition{Topic: "missing"}
			got, err := c.ListOffsets(t.Context(), kafka.ReadCommitted, []actors.OffsetQuery{
				{TopicPartition: zero, LeaderEpoch: epoch, Timestamp: rebalance.TimestampLatest},
				{TopicPartition: missing, LeaderEpoch: kafka.NoLeaderEpoch, Timestamp: rebalance.TimestampEarliest},
				{TopicPartition: one, LeaderEpoch: kafka.NoLeaderEpoch, Timestamp: rebalance.TimestampEarliest},
			})
			require.NoError(t, err)
			require.Equal(t, int64(3), got[zero].Offset)
			require.NoError(t, got[zero].Err)
			require.Equal(t, int64(0), got[one].Offset)
			require.ErrorIs(t, got[missing].Err, kafka.UnknownTopicOrPartition)
			got, err = c.ListOffsets(t.Context(), kafka.ReadUncommitted, []actors.OffsetQuery{
				{TopicPartition: zero, LeaderEpoch: epoch, Timestamp: time.Now().Add(time.Hour).UnixMilli()},
			})
			require.NoError(t, err)
			require.Equal(t, kafka.NoOffset, got[zero].Offset)

			ends, err := c.EpochEnds(t.Context(), []actors.EpochQuery{
				{TopicPartition: zero, CurrentEpoch: epoch, Epoch: epoch},
				{TopicPartition: one, CurrentEpoch: epoch + 9, Epoch: epoch},
			})
			require.NoError(t, err)
			require.Equal(t, actors.EpochAnswer{End: actors.EpochEnd{Epoch: epoch, EndOffset: 3}}, ends[zero])
			require.ErrorIs(t, ends[one].Err, kafka.UnknownLeaderEpoch)
		})
	}
}

func TestBrokerOlderThan24IsAVersionError(t *testing.T) {
	n := newNetwork(t, newCluster(t, kfake.MaxVersions(kversion.V2_3_0())).ListenAddrs(), nil)
	c := n.Metadata()
	defer c.Close()
	_, err := c.Metadata(t.Context(), []string{"orders"})
	var failed *kafka.VersionError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "Metadata", failed.API)
	require.Equal(t, int16(9), failed.WantMin)
	require.Equal(t, int16(8), failed.HaveMax)
}

// closeOnce makes the broker close the connection instead of answering the next request of that kind.
func closeOnce(cluster *kfake.Cluster, key int16) {
	cluster.ControlKey(key, func(kmsg.Request) (kmsg.Response, error, bool) { return nil, io.EOF, true })
}

func TestIdleConnectionThatWasClosedIsRedialedOnce(t *testing.T) {
	cluster := newCluster(t)
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	m := join(t, n)
	c := n.Heartbeat()
	defer c.Close()
	beat := func() error {
		return c.Heartbeat(t.Context(), m.coordinator, rebalance.HeartbeatRequest{GroupID: group, MemberID: m.memberID, Generation: m.generation})
	}
	// On a new connection nothing is repeated.
	closeOnce(cluster, 12)
	var failed *kafka.RequestError
	err := beat()
	require.ErrorAs(t, err, &failed)
	require.True(t, failed.Unanswered)
	require.NoError(t, beat())
	closeOnce(cluster, 12)
	require.NoError(t, beat(), "an idle connection that is gone is made anew in silence")
	closeOnce(cluster, 12)
	closeOnce(cluster, 12)
	require.ErrorAs(t, beat(), &failed, "but only once")
	require.True(t, failed.Unanswered)
}

func TestCommitWithoutAnAnswerIsUnanswered(t *testing.T) {
	cluster := newCluster(t)
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	m := join(t, n)
	c := n.Offsets().(*offsetsClient)
	defer c.Close()
	closeOnce(cluster, 8)
	_, err := c.commit(t.Context(), m.coordinator, commit.Round{GroupID: group, MemberID: m.memberID, Generation: m.generation,
		Offsets: []commit.Offset{{TopicPartition: kafka.TopicPartition{Topic: "orders"}, Offset: 1}}})
	var failed *kafka.RequestError
	require.ErrorAs(t, err, &failed)
	require.True(t, failed.Unanswered)
	require.Equal(t, "OffsetCommit", failed.API)
}

func TestCloseEndsTheCallUnderWayAndStaysClosed(t *testing.T) {
	cluster := newCluster(t)
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	m := join(t, n)
	asked := make(chan struct{})
	cluster.ControlKey(12, func(kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		return nil, nil, true // never answered
	})
	c := n.Heartbeat()
	done := make(chan error)
	beat := rebalance.HeartbeatRequest{GroupID: group, MemberID: m.memberID, Generation: m.generation}
	go func() { done <- c.Heartbeat(context.Background(), m.coordinator, beat) }()
	<-asked
	c.Close()
	require.ErrorIs(t, <-done, net.ErrClosed)
	c.Close()
	require.ErrorIs(t, c.Heartbeat(t.Context(), m.coordinator, beat), net.ErrClosed)
}
