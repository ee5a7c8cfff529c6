package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// retryInterval is the pause between two looks at something that is not there yet.
const retryInterval = 20 * time.Millisecond

// finalError ends a poll: looking again would not help.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// poll looks until it sees no error, a final one, or the end of the context, which is then told with what was last seen.
func poll(ctx context.Context, look func() error) error {
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	for {
		err := look()
		var final finalError
		if err == nil {
			return nil
		}
		if errors.As(err, &final) {
			return final.error
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%w; last seen: %w", context.Cause(ctx), err)
		}
	}
}

// AwaitReady returns when every node is as Node.AwaitReady says and lists all nodes. Start has waited for it; call it
// again after the last node is back. An outside cluster is taken as ready.
func (c *Cluster) AwaitReady(ctx context.Context) error {
	for _, node := range c.nodes {
		if err := node.awaitReady(ctx, func() []*Node { return c.nodes }); err != nil {
			return err
		}
	}
	return nil
}

// AwaitReady returns when the node lists every node that runs and is not frozen, knows a coordinator that lets a member
// in, and lets clients in by every listener and mechanism. Nothing less proves it: accepting connections and listing
// brokers come before the group coordinator works, and a known coordinator may still be loading.
func (n *Node) AwaitReady(ctx context.Context) error { return n.awaitReady(ctx, n.cluster.serving) }

func (n *Node) awaitReady(ctx context.Context, expected func() []*Node) error {
	secured := false
	err := poll(ctx, func() error {
		if err := n.answersGroups(ctx, expected()); err != nil {
			return n.cluster.unlessCrashed(err)
		}
		if secured {
			return nil
		}
		err := n.letsClientsIn(ctx)
		secured = err == nil
		return n.cluster.unlessCrashed(err)
	})
	if err != nil {
		return fmt.Errorf("node %d is not ready: %w", n.ID(), err)
	}
	return nil
}

// unlessCrashed makes an error final if a node has crashed, which then is the reason.
func (c *Cluster) unlessCrashed(err error) error {
	if err == nil {
		return nil
	}
	for _, node := range c.nodes {
		if crash := node.crashed(); crash != nil {
			return finalError{crash}
		}
	}
	return err
}

// serving are the nodes that run and are not frozen.
func (c *Cluster) serving() []*Node {
	return slices.DeleteFunc(c.Nodes(), func(n *Node) bool { return !n.serving() })
}

// answersGroups looks once whether the node lists the others and groups work.
func (n *Node) answersGroups(ctx context.Context, expected []*Node) error {
	own, err := newProbe(ctx, n.plan.own().address())
	if err != nil {
		return err
	}
	defer own.close()

	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version, metadata.Topics = versionMetadata, []kmsg.MetadataRequestTopic{}
	answer, err := own.ask(ctx, metadata)
	if err != nil {
		return err
	}
	listed := map[int]bool{}
	for _, broker := range answer.(*kmsg.MetadataResponse).Brokers {
		listed[int(broker.NodeID)] = true
	}
	for _, other := range expected {
		if !listed[other.ID()] {
			return fmt.Errorf("broker %d is not in Metadata at node %d", other.ID(), n.ID())
		}
	}

	group := "troupe-launch-" + strconv.Itoa(n.ID())
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.Version, find.CoordinatorKey = versionFindCoordinator, group
	answer, err = own.ask(ctx, find)
	if err != nil {
		return err
	}
	found := answer.(*kmsg.FindCoordinatorResponse)
	if err := kerr.ErrorForCode(found.ErrorCode); err != nil {
		return fmt.Errorf("FindCoordinator at node %d: %w", n.ID(), err)
	}
	coordinator, err := newProbe(ctx, hostPort(found.Host, found.Port))
	if err != nil {
		return err
	}
	defer coordinator.close()
	return coordinator.joinAndLeave(ctx, group)
}

// joinAndLeave proves that the coordinator serves groups: a static member, which is let in at its first try, joins and
// leaves, and the group is removed again so that no test finds it.
func (p *probe) joinAndLeave(ctx context.Context, group string) error {
	instance := "probe"
	subscription := kmsg.NewConsumerMemberMetadata()
	protocol := kmsg.NewJoinGroupRequestProtocol()
	protocol.Name, protocol.Metadata = "range", subscription.AppendTo(nil)
	join := kmsg.NewPtrJoinGroupRequest()
	join.Version, join.Group, join.InstanceID, join.ProtocolType = versionJoinGroup, group, &instance, "consumer"
	join.SessionTimeoutMillis, join.RebalanceTimeoutMillis = 10_000, 1_000
	join.Protocols = []kmsg.JoinGroupRequestProtocol{protocol}
	answer, err := p.ask(ctx, join)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(answer.(*kmsg.JoinGroupResponse).ErrorCode); err != nil {
		return fmt.Errorf("JoinGroup at %s: %w", p.conn.RemoteAddr(), err)
	}

	member := kmsg.NewLeaveGroupRequestMember()
	member.MemberID, member.InstanceID = answer.(*kmsg.JoinGroupResponse).MemberID, &instance
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Version, leave.Group, leave.Members = versionLeaveGroup, group, []kmsg.LeaveGroupRequestMember{member}
	answer, err = p.ask(ctx, leave)
	if err != nil {
		return err
	}
	if err := kerr.ErrorForCode(answer.(*kmsg.LeaveGroupResponse).ErrorCode); err != nil {
		return fmt.Errorf("LeaveGroup at %s: %w", p.conn.RemoteAddr(), err)
	}

	remove := kmsg.NewPtrDeleteGroupsRequest()
	remove.Version, remove.Groups = versionDeleteGroups, []string{group}
	answer, err = p.ask(ctx, remove)
	if err != nil {
		return err
	}
	for _, removed := range answer.(*kmsg.DeleteGroupsResponse).Groups {
		if err := kerr.ErrorForCode(removed.ErrorCode); err != nil {
			return fmt.Errorf("DeleteGroups at %s: %w", p.conn.RemoteAddr(), err)
		}
	}
	return nil
}
