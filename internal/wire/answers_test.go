package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// answerWith makes the broker answer every request of that kind with what fill puts into the response.
func answerWith[T kmsg.Response](cluster *kfake.Cluster, key int16, fill func(req kmsg.Request, resp T)) {
	cluster.ControlKey(key, func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		resp := req.ResponseKind().(T)
		fill(req, resp)
		return resp, nil, true
	})
}

var (
	orders0 = kafka.TopicPartition{Topic: "orders"}
	orders1 = kafka.TopicPartition{Topic: "orders", Partition: 1}
)

func TestB10_RetentionIsLeftToTheBroker(t *testing.T) {
	round := commit.Round{GroupID: group, Generation: -1, Offsets: []commit.Offset{{TopicPartition: orders0, Offset: 42}}}
	encode := func(version int16, retention int64) []byte {
		req := commitRequest(round)
		req.Version = version
		if retention != 0 {
			req.RetentionTimeMillis = retention
		}
		return req.AppendTo(nil)
	}
	marker := int64(0x1122334455667788)
	field := binary.BigEndian.AppendUint64(nil, uint64(marker))
	for version := int16(2); version <= 9; version++ {
		at := bytes.Index(encode(version, marker), field)
		if version > 4 {
			require.Equal(t, -1, at, "v%d has no such field", version)
			continue
		}
		require.Positive(t, at, "v%d has the field", version)
		got := int64(binary.BigEndian.Uint64(encode(version, 0)[at:]))
		require.Equal(t, int64(-1), got, "v%d", version)
	}

	// And the commit is still there after a restart of the broker, whatever version it came by.
	dir := t.TempDir()
	for version := int16(2); version <= 9; version++ {
		round.Offsets[0].Offset = int64(100 + version)
		cluster := newCluster(t, kfake.DataDir(dir), kfake.SyncWrites())
		n := newNetwork(t, cluster.ListenAddrs(), nil)
		c := n.Offsets().(*offsetsClient)
		_, err := c.call(t.Context(), coordinatorOf(t, n), question{api: apiOffsetCommit.atMost(version),
			limit: defaultRequestTimeout, build: func(int16) kmsg.Request { return commitRequest(round) }})
		require.NoError(t, err)
		c.Close()
		cluster.Close()

		again := newCluster(t, kfake.DataDir(dir), kfake.SyncWrites())
		n = newNetwork(t, again.ListenAddrs(), nil)
		c = n.Offsets().(*offsetsClient)
		got, err := c.FetchOffsets(t.Context(), coordinatorOf(t, n), actors.OffsetFetchRequest{GroupID: group, Partitions: []kafka.TopicPartition{orders0}})
		require.NoError(t, err)
		require.Equal(t, round.Offsets[0].Offset, got[orders0].Offset, "v%d", version)
		c.Close()
		again.Close()
	}
}

func TestCommitRequestFieldsByVersion(t *testing.T) {
	req := commitRequest(commit.Round{GroupID: group, GroupInstanceID: "till-1", Generation: 3, Offsets: []commit.Offset{
		{TopicPartition: orders0, Offset: 1, LeaderEpoch: 9}, {TopicPartition: orders1, Offset: 2, LeaderEpoch: -1, Metadata: "m"},
	}})
	require.Len(t, req.Topics, 1)
	require.Equal(t, "till-1", *req.InstanceID)
	require.Equal(t, int32(9), req.Topics[0].Partitions[0].LeaderEpoch)
	require.Equal(t, "", *req.Topics[0].Partitions[0].Metadata, "empty, not null")
	require.Equal(t, "m", *req.Topics[0].Partitions[1].Metadata)
}

func TestOffsetFetchErrorsAreNeverNoCommit(t *testing.T) {
	cluster := newCluster(t)
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	coordinator := coordinatorOf(t, n)
	c := n.Offsets()
	defer c.Close()
	var groupCode int16
	answerWith(cluster, 9, func(req kmsg.Request, resp *kmsg.OffsetFetchResponse) {
		require.True(t, req.(*kmsg.OffsetFetchRequest).RequireStable)
		g := kmsg.NewOffsetFetchResponseGroup()
		g.Group, g.ErrorCode = group, groupCode
		topic := kmsg.NewOffsetFetchResponseGroupTopic()
		topic.Topic = "orders"
		p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
		p.Offset, p.ErrorCode = -1, int16(kafka.UnstableOffsetCommit)
		topic.Partitions = append(topic.Partitions, p)
		g.Topics = append(g.Topics, topic)
		resp.Groups = append(resp.Groups, g)
	})
	in := actors.OffsetFetchRequest{GroupID: group, Partitions: []kafka.TopicPartition{orders0, orders1}}
	got, err := c.FetchOffsets(t.Context(), coordinator, in)
	require.NoError(t, err)
	require.ErrorIs(t, got[orders0].Err, kafka.UnstableOffsetCommit)
	require.ErrorIs(t, got[orders1].Err, errNotMentioned)

	groupCode = int16(kafka.NotCoordinator)
	_, err = c.FetchOffsets(t.Context(), coordinator, in)
	require.ErrorIs(t, err, kafka.NotCoordinator)

	in.GroupID = "another"
	_, err = c.FetchOffsets(t.Context(), coordinator, in)
	require.ErrorIs(t, err, errNotMentioned)
}

func TestLeaveChecksTheMembersError(t *testing.T) {
	cluster := newCluster(t)
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	c := n.Heartbeat()
	defer c.Close()
	answerWith(cluster, 13, func(_ kmsg.Request, resp *kmsg.LeaveGroupResponse) {
		m := kmsg.NewLeaveGroupResponseMember()
		m.ErrorCode = int16(kafka.FencedInstanceID)
		resp.Members = append(resp.Members, m)
	})
	err := c.Leave(t.Context(), coordinatorOf(t, n), rebalance.LeaveRequest{GroupID: group, MemberID: "m", GroupInstanceID: "till-1"})
	require.ErrorIs(t, err, kafka.FencedInstanceID)
}

func TestJoinPassesSkipAssignmentOn(t *testing.T) {
	cluster := newCluster(t)
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	c := n.Membership()
	defer c.Close()
	answerWith(cluster, 11, func(req kmsg.Request, resp *kmsg.JoinGroupResponse) {
		require.Equal(t, int16(9), req.GetVersion())
		require.Equal(t, "test", *req.(*kmsg.JoinGroupRequest).Reason)
		resp.SkipAssignment, resp.MemberID, resp.LeaderID, resp.Generation = true, "m", "m", 4
	})
	got, err := c.Join(t.Context(), coordinatorOf(t, n), joinOf("m"))
	require.NoError(t, err)
	require.True(t, got.SkipAssignment)
	require.Equal(t, kafka.Generation(4), got.Generation)
}

func TestSyncNamesTypeAndProtocol(t *testing.T) {
	cluster := newCluster(t)
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	c := n.Membership()
	defer c.Close()
	answerWith(cluster, 14, func(req kmsg.Request, _ *kmsg.SyncGroupResponse) {
		r := req.(*kmsg.SyncGroupRequest)
		require.Equal(t, "consumer", *r.ProtocolType)
		require.Equal(t, "range", *r.Protocol)
	})
	got, err := c.Sync(t.Context(), coordinatorOf(t, n), rebalance.SyncRequest{GroupID: group, MemberID: "m", Protocol: "range"})
	require.NoError(t, err)
	require.Equal(t, "range", got.Protocol)
	require.Empty(t, got.Assignment)
}

func TestReasonIsCutAtACharacter(t *testing.T) {
	long := string(bytes.Repeat([]byte("é"), 200))
	require.Len(t, *reasonOf(long), 254)
	require.Nil(t, reasonOf(""))
	require.Equal(t, "short", *reasonOf("short"))
	require.Len(t, *reasonOf(string(bytes.Repeat([]byte("a"), 300))), 255)
}

func TestCoordinatorErrorNamesCodeAndAPI(t *testing.T) {
	cluster := newCluster(t)
	c := newNetwork(t, cluster.ListenAddrs(), nil).Metadata()
	defer c.Close()
	answerWith(cluster, 10, func(req kmsg.Request, resp *kmsg.FindCoordinatorResponse) {
		found := kmsg.NewFindCoordinatorResponseCoordinator()
		found.Key, found.ErrorCode = group, int16(kafka.CoordinatorNotAvailable)
		resp.Coordinators = append(resp.Coordinators, found)
	})
	_, err := c.FindCoordinator(t.Context(), group)
	require.ErrorIs(t, err, kafka.CoordinatorNotAvailable)
	var failed *kafka.RequestError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "FindCoordinator", failed.API)
	require.Equal(t, cluster.ListenAddrs()[0], failed.Broker.Addr)
}
