package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// bareSession is longer than any test of a bareMember takes: they need not beat to stay.
const bareSession = 2 * time.Minute

// bareMember is a member of a group that sends what a test tells it to, and nothing by itself.
type bareMember struct {
	client    *kgo.Client
	group     string
	topics    []string
	rebalance time.Duration

	id         string
	generation int32
	leader     bool
	// members are the members' ids, where this one leads.
	members []string
}

func newBare(t *testing.T, b broker, group string, rebalanceTimeout time.Duration, topics ...string) *bareMember {
	t.Helper()
	m := &bareMember{group: group, topics: topics, rebalance: rebalanceTimeout, generation: -1}
	m.connect(t, b)
	return m
}

// connect gives the member connections of its own, in place of those that it had.
func (m *bareMember) connect(t *testing.T, b broker) {
	t.Helper()
	if m.client != nil {
		m.client.Close()
	}
	opts := []kgo.Opt{kgo.SeedBrokers(b.Addrs()...)}
	if embedded, ok := b.(*embeddedBroker); ok {
		opts = append(opts, kgo.Dialer(embedded.Dial))
	}
	client, err := kgo.NewClient(opts...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	m.client = client
}

// join sends JoinGroup and waits for its answer, with the id that the coordinator asks for (KIP-394).
func (m *bareMember) join(ctx context.Context) error {
	metadata, err := rebalance.EncodeSubscription(rebalance.Subscription{Topics: m.topics, Generation: kafka.NoGeneration})
	if err != nil {
		return err
	}
	for {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Group, req.MemberID, req.ProtocolType = m.group, m.id, "consumer"
		req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(bareSession.Milliseconds()), int32(m.rebalance.Milliseconds())
		protocol := kmsg.NewJoinGroupRequestProtocol()
		protocol.Name, protocol.Metadata = rebalance.CooperativeSticky().Name(), metadata
		req.Protocols = append(req.Protocols, protocol)
		resp, err := req.RequestWith(ctx, m.client)
		if err != nil {
			return err
		}
		if resp.ErrorCode == kerr.MemberIDRequired.Code {
			m.id = resp.MemberID
			continue
		}
		m.id, m.generation, m.leader, m.members = resp.MemberID, resp.Generation, resp.LeaderID == resp.MemberID, nil
		for _, member := range resp.Members {
			m.members = append(m.members, member.MemberID)
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	}
}

// joining is join in a goroutine of its own; the channel has its error.
func (m *bareMember) joining(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- m.join(ctx) }()
	return done
}

// sync sends SyncGroup, with a plan where this member leads, and waits for its answer.
func (m *bareMember) sync(ctx context.Context, plan map[string][]kafka.TopicPartition) error {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Group, req.MemberID, req.Generation = m.group, m.id, m.generation
	kind, protocol := "consumer", rebalance.CooperativeSticky().Name()
	req.ProtocolType, req.Protocol = &kind, &protocol
	for id, partitions := range plan {
		encoded, err := rebalance.EncodeAssignment(rebalance.Assignment{Partitions: partitions})
		if err != nil {
			return err
		}
		assigned := kmsg.NewSyncGroupRequestGroupAssignment()
		assigned.MemberID, assigned.MemberAssignment = id, encoded
		req.GroupAssignment = append(req.GroupAssignment, assigned)
	}
	resp, err := req.RequestWith(ctx, m.client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

func (m *bareMember) heartbeat(ctx context.Context) error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.MemberID, req.Generation = m.group, m.id, m.generation
	resp, err := req.RequestWith(ctx, m.client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

func (m *bareMember) leave(ctx context.Context) error {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = m.group, m.id
	leaves := kmsg.NewLeaveGroupRequestMember()
	leaves.MemberID = m.id
	req.Members = append(req.Members, leaves)
	resp, err := req.RequestWith(ctx, m.client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

// awaitRebalance has a member beat until the group rebalances.
func (m *bareMember) awaitRebalance(t *testing.T) {
	t.Helper()
	eventually(t, patience, "the group rebalances", func() bool {
		return errors.Is(m.heartbeat(requestContext(t)), kerr.RebalanceInProgress)
	})
}
