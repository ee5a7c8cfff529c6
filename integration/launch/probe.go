package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	// answerTimeout bounds one request of a probe.
	answerTimeout = 5 * time.Second
	// maxAnswer bounds what a probe reads; anything larger does not come from a Kafka with so little in it.
	maxAnswer = 16 << 20
	// retryInterval is the pause between two looks at a node that is not ready.
	retryInterval = 20 * time.Millisecond
)

// Versions every supported broker speaks, so that the probe needs no negotiation.
const (
	versionMetadata        = 8
	versionFindCoordinator = 2
	versionJoinGroup       = 5
	versionLeaveGroup      = 3
	versionDeleteGroups    = 1
)

// probe is one connection that asks one thing at a time.
type probe struct {
	conn        net.Conn
	formatter   *kmsg.RequestFormatter
	correlation int32
}

func newProbe(ctx context.Context, address string) (*probe, error) {
	conn, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	return &probe{conn: conn, formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID("troupe-launch"))}, nil
}

func (p *probe) close() { _ = p.conn.Close() }

// ask sends a request at its set version and reads the answer into it.
func (p *probe) ask(ctx context.Context, request kmsg.Request) (kmsg.Response, error) {
	response, err := p.exchange(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("%s at %s: %w", kmsg.NameForKey(request.Key()), p.conn.RemoteAddr(), err)
	}
	return response, nil
}

func (p *probe) exchange(ctx context.Context, request kmsg.Request) (kmsg.Response, error) {
	deadline := time.Now().Add(answerTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := p.conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	p.correlation++
	if _, err := p.conn.Write(p.formatter.AppendRequest(nil, request, p.correlation)); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(p.conn, head[:]); err != nil {
		return nil, err
	}
	size, correlation := int32(binary.BigEndian.Uint32(head[:4])), int32(binary.BigEndian.Uint32(head[4:]))
	if correlation != p.correlation || size < 4 || size > maxAnswer {
		return nil, fmt.Errorf("not a Kafka answer: %d bytes, correlation %d, want %d", size, correlation, p.correlation)
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(p.conn, body); err != nil {
		return nil, err
	}
	response := request.ResponseKind()
	response.SetVersion(request.GetVersion())
	return response, response.ReadFrom(body)
}

// AwaitReady returns when every node lists all nodes, knows a coordinator, and that coordinator lets a member in.
// Nothing less proves it: accepting connections and listing brokers come before the group coordinator works, and a
// known coordinator may still be loading. Start has waited for it; call it again after Node.Restart. An outside cluster
// is taken as ready.
func (c *Cluster) AwaitReady(ctx context.Context) error {
	ticker := time.NewTicker(retryInterval)
	defer ticker.Stop()
	for _, node := range c.nodes {
		for {
			err := node.ready(ctx, len(c.nodes))
			if err == nil {
				break
			}
			for _, other := range c.nodes {
				if crash := other.crashed(); crash != nil {
					return crash
				}
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return fmt.Errorf("node %d: %w; last seen: %w", node.ID(), context.Cause(ctx), err)
			}
		}
	}
	return nil
}

// ready looks once.
func (n *Node) ready(ctx context.Context, nodes int) error {
	own, err := newProbe(ctx, n.Addr())
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
	if brokers := answer.(*kmsg.MetadataResponse).Brokers; len(brokers) != nodes {
		return fmt.Errorf("%d brokers of %d in Metadata at %s", len(brokers), nodes, n.Addr())
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
		return fmt.Errorf("FindCoordinator at %s: %w", n.Addr(), err)
	}
	address := net.JoinHostPort(found.Host, strconv.Itoa(int(found.Port)))
	coordinator, err := newProbe(ctx, address)
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

// guessVersion asks an outside broker for its API versions and names the release they fit best.
func guessVersion(ctx context.Context, address string) (string, error) {
	p, err := newProbe(ctx, address)
	if err != nil {
		return "", err
	}
	defer p.close()
	request := kmsg.NewPtrApiVersionsRequest()
	request.Version = 0 // the one version every broker answers in full
	answer, err := p.ask(ctx, request)
	if err != nil {
		return "", err
	}
	versions := answer.(*kmsg.ApiVersionsResponse)
	if err := kerr.ErrorForCode(versions.ErrorCode); err != nil {
		return "", fmt.Errorf("ApiVersions at %s: %w", address, err)
	}
	if len(versions.ApiKeys) == 0 {
		return "", fmt.Errorf("ApiVersions at %s: %w", address, errors.New("no API keys"))
	}
	return kversion.FromApiVersionsResponse(versions).VersionGuess(), nil
}
