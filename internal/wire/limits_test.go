package wire

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// everyCall is each request of each client, with the client it is made on and its own limit.
func everyCall(n *Network, broker kafka.Broker) map[string]struct {
	key   int16
	limit time.Duration
	close func()
	call  func(ctx context.Context) error
} {
	type entry = struct {
		key   int16
		limit time.Duration
		close func()
		call  func(ctx context.Context) error
	}
	meta, members, heart := n.Metadata(), n.Membership(), n.Heartbeat()
	offsets, fetch, lookup := n.Offsets().(*offsetsClient), n.Fetch(broker), n.Lookup(broker)
	tp := kafka.TopicPartition{Topic: "orders"}
	return map[string]entry{
		"Metadata": {3, 10 * time.Second, meta.Close, func(ctx context.Context) error {
			_, err := meta.Metadata(ctx, []string{"orders"})
			return err
		}},
		"FindCoordinator": {10, 10 * time.Second, meta.Close, func(ctx context.Context) error {
			_, err := meta.FindCoordinator(ctx, group)
			return err
		}},
		"JoinGroup": {11, 15 * time.Second, members.Close, func(ctx context.Context) error {
			_, err := members.Join(ctx, broker, joinOf("m"))
			return err
		}},
		"SyncGroup": {14, 65 * time.Second, members.Close, func(ctx context.Context) error {
			_, err := members.Sync(ctx, broker, rebalance.SyncRequest{GroupID: group, MemberID: "m"})
			return err
		}},
		"Heartbeat": {12, 10 * time.Second, heart.Close, func(ctx context.Context) error {
			return heart.Heartbeat(ctx, broker, rebalance.HeartbeatRequest{GroupID: group, MemberID: "m"})
		}},
		"LeaveGroup": {13, 10 * time.Second, heart.Close, func(ctx context.Context) error {
			return heart.Leave(ctx, broker, rebalance.LeaveRequest{GroupID: group, MemberID: "m"})
		}},
		"OffsetCommit": {8, 10 * time.Second, offsets.Close, func(ctx context.Context) error {
			_, err := offsets.commit(ctx, broker, commit.Round{GroupID: group, Offsets: []commit.Offset{{TopicPartition: tp}}})
			return err
		}},
		"OffsetFetch": {9, 10 * time.Second, offsets.Close, func(ctx context.Context) error {
			_, err := offsets.FetchOffsets(ctx, broker, actors.OffsetFetchRequest{GroupID: group})
			return err
		}},
		"Fetch": {1, 10500 * time.Millisecond, fetch.Close, func(ctx context.Context) error {
			_, err := fetch.Fetch(ctx, &actors.FetchRequest{MaxWaitMillis: 500, Partitions: []actors.FetchPartition{{TopicPartition: tp}}})
			return err
		}},
		"ListOffsets": {2, 10 * time.Second, lookup.Close, func(ctx context.Context) error {
			_, err := lookup.ListOffsets(ctx, kafka.ReadCommitted, []actors.OffsetQuery{{TopicPartition: tp}})
			return err
		}},
		"OffsetForLeaderEpoch": {23, 10 * time.Second, lookup.Close, func(ctx context.Context) error {
			_, err := lookup.EpochEnds(ctx, []actors.EpochQuery{{TopicPartition: tp}})
			return err
		}},
	}
}

// apiNames are the keys of everyCall.
func apiNames(t *testing.T) []string {
	var names []string
	for name := range everyCall(newNetwork(t, []string{"localhost:1"}, nil), kafka.Broker{}) {
		names = append(names, name)
	}
	return names
}

// A bubble ends only when every goroutine in it has: that no call leaves one behind is a part of each test below.

func TestSilentListenerEndsEveryCallAtTheConnectTimeout(t *testing.T) {
	for _, name := range apiNames(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, []string{"localhost:9093"}, func(c *Config) { c.Dial = silent(t) })
				tc := everyCall(n, kafka.Broker{ID: 1, Addr: "localhost:9093"})[name]
				begin := time.Now()
				err := tc.call(t.Context())
				var failed *kafka.ConnectError
				require.ErrorAs(t, err, &failed)
				require.Equal(t, phaseVersions, failed.Phase)
				require.InDelta(t, 4*time.Second, time.Since(begin), float64(time.Millisecond))
				tc.close()
			})
		})
	}
}

// bubbleNetwork starts an embedded broker on an in-memory network.
func bubbleNetwork(t *testing.T, opts ...kfake.Opt) (*kfake.Cluster, *Network) {
	t.Helper()
	var memory kfake.VirtualNetwork
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.Ports(9093), kfake.SeedTopics(3, "orders"), kfake.ListenFn(memory.Listen)}, opts...)...)
	require.NoError(t, err)
	n := newNetwork(t, cluster.ListenAddrs(), func(c *Config) { c.Dial = memory.DialContext })
	return cluster, n
}

func TestBrokerThatFallsSilentEndsEveryCallAtItsLimit(t *testing.T) {
	for _, name := range apiNames(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, n := bubbleNetwork(t)
				defer cluster.Close()
				tc := everyCall(n, kafka.Broker{ID: 0, Addr: cluster.ListenAddrs()[0]})[name]
				defer tc.close()
				cluster.ControlKey(tc.key, func(kmsg.Request) (kmsg.Response, error, bool) {
					cluster.KeepControl()
					return nil, nil, true
				})
				begin := time.Now()
				err := tc.call(t.Context())
				require.InDelta(t, tc.limit, time.Since(begin), float64(time.Millisecond))
				var failed *kafka.RequestError
				require.ErrorAs(t, err, &failed)
				require.Equal(t, name, failed.API)
				require.True(t, failed.Unanswered)
				require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller's context did not end")

				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errEnough)
				defer cancel()
				begin = time.Now()
				err = tc.call(ctx)
				require.InDelta(t, time.Second, time.Since(begin), float64(time.Millisecond))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorIs(t, err, errEnough)
			})
		})
	}
}

var errEnough = errors.New("enough")

func TestSearchGoesPastBrokersThatHangOrRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, live := bubbleNetwork(t)
		defer cluster.Close()
		addr := cluster.ListenAddrs()[0]
		mute := silent(t)
		dial := func(ctx context.Context, network, to string) (net.Conn, error) {
			switch to {
			case addr:
				return live.cfg.Dial(ctx, network, to)
			case "mute:1":
				return mute(ctx, network, to)
			}
			return nil, errEnough
		}
		n := newNetwork(t, []string{"refused:1", "mute:1", addr}, func(c *Config) { c.Dial = dial })
		c := n.Metadata()
		defer c.Close()
		begin := time.Now()
		_, err := c.Metadata(t.Context(), []string{"orders"})
		require.NoError(t, err)
		require.InDelta(t, 2*time.Second, time.Since(begin), float64(time.Millisecond), "the mute one had half of the time")

		none := newNetwork(t, []string{"mute:1", "refused:1", "refused:2"}, func(c *Config) { c.Dial = dial }).Metadata()
		defer none.Close()
		begin = time.Now()
		_, err = none.FindCoordinator(t.Context(), group)
		require.ErrorIs(t, err, kafka.ErrNoBroker)
		require.ErrorContains(t, err, "refused:2: dial: enough")
		require.LessOrEqual(t, time.Since(begin), 4*time.Second)
	})
}

func TestMetadataMovesToABrokerItLearned(t *testing.T) {
	cluster := newCluster(t, kfake.NumBrokers(3))
	addrs := cluster.ListenAddrs()
	n := newNetwork(t, addrs[:1], nil)
	c := n.Metadata()
	defer c.Close()
	_, err := c.Metadata(t.Context(), []string{"orders"})
	require.NoError(t, err)
	require.NoError(t, cluster.RemoveNode(0))
	meta, err := c.Metadata(t.Context(), []string{"orders"})
	require.NoError(t, err)
	require.Len(t, meta.Brokers, 2)
}
