package wire

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

const (
	// protocolType is what every consumer group has.
	protocolType = "consumer"
	// rebalanceGrace is how much longer than the rebalance timeout an answer may take.
	rebalanceGrace = 5 * time.Second
	// heartbeatMost and heartbeatLeast bound the wait for a heartbeat's answer.
	heartbeatMost  = 10 * time.Second
	heartbeatLeast = time.Second
	// reasonMost is the longest reason sent (KIP-800), in bytes.
	reasonMost = 255
)

// membershipClient carries JoinGroup and SyncGroup, whose answers may take a whole rebalance.
type membershipClient struct{ *client }

// Join sends a JoinGroup. The member id of the answer is returned with every error code, too.
func (c *membershipClient) Join(ctx context.Context, coordinator kafka.Broker, in rebalance.JoinRequest) (rebalance.JoinResponse, error) {
	limit := c.network.cfg.RebalanceTimeout
	if in.RebalanceTimeout > 0 {
		limit = in.RebalanceTimeout
	}
	a, err := c.call(ctx, coordinator, question{
		api:   apiJoinGroup,
		limit: limit + rebalanceGrace,
		build: func(int16) kmsg.Request { return joinRequest(in) },
	})
	if err != nil {
		return rebalance.JoinResponse{}, err
	}
	resp := a.resp.(*kmsg.JoinGroupResponse)
	if err := a.failed(apiJoinGroup, resp.ErrorCode); err != nil {
		if errors.Is(err, kafka.InconsistentGroupProtocol) {
			err = c.mismatch(ctx, coordinator, in, err)
		}
		return rebalance.JoinResponse{Generation: kafka.NoGeneration, MemberID: resp.MemberID}, err
	}
	out := rebalance.JoinResponse{
		Generation:     kafka.Generation(resp.Generation),
		MemberID:       resp.MemberID,
		LeaderID:       resp.LeaderID,
		Protocol:       text(resp.Protocol),
		SkipAssignment: resp.SkipAssignment,
		Members:        make([]rebalance.JoinMember, len(resp.Members)),
	}
	for i := range resp.Members {
		m := &resp.Members[i]
		out.Members[i] = rebalance.JoinMember{MemberID: m.MemberID, GroupInstanceID: text(m.InstanceID), Metadata: m.ProtocolMetadata}
	}
	return out, nil
}

// mismatch finds out what the group uses that refused our protocols. The refusal itself does not say.
func (c *membershipClient) mismatch(ctx context.Context, coordinator kafka.Broker, in rebalance.JoinRequest, refused error) error {
	out := &rebalance.ProtocolMismatchError{GroupID: in.GroupID, Err: refused}
	for _, p := range in.Protocols {
		out.Offered = append(out.Offered, p.Name)
	}
	a, err := c.call(ctx, coordinator, question{
		api:   apiDescribeGroups,
		limit: c.network.cfg.RequestTimeout,
		build: func(int16) kmsg.Request {
			req := kmsg.NewPtrDescribeGroupsRequest()
			req.Groups = []string{in.GroupID}
			return req
		},
	})
	if err != nil {
		return out // it may be forbidden, and is no reason to hide the refusal
	}
	for _, g := range a.resp.(*kmsg.DescribeGroupsResponse).Groups {
		if g.Group == in.GroupID && g.ErrorCode == 0 {
			out.Type, out.InUse = g.ProtocolType, g.Protocol
		}
	}
	return out
}

func joinRequest(in rebalance.JoinRequest) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group = in.GroupID
	req.SessionTimeoutMillis = millis(in.SessionTimeout)
	req.RebalanceTimeoutMillis = millis(in.RebalanceTimeout)
	req.MemberID = in.MemberID
	req.InstanceID = optional(in.GroupInstanceID)
	req.ProtocolType = protocolType
	req.Protocols = make([]kmsg.JoinGroupRequestProtocol, len(in.Protocols))
	for i, p := range in.Protocols {
		req.Protocols[i] = kmsg.NewJoinGroupRequestProtocol()
		req.Protocols[i].Name, req.Protocols[i].Metadata = p.Name, p.Metadata
	}
	req.Reason = reasonOf(in.Reason)
	return req
}

// Sync sends a SyncGroup. It names type and protocol, without which Kafka refuses it from v5 on.
func (c *membershipClient) Sync(ctx context.Context, coordinator kafka.Broker, in rebalance.SyncRequest) (rebalance.SyncResponse, error) {
	a, err := c.call(ctx, coordinator, question{
		api:   apiSyncGroup,
		limit: c.network.cfg.RebalanceTimeout + rebalanceGrace,
		build: func(int16) kmsg.Request {
			req := kmsg.NewPtrSyncGroupRequest()
			req.Group, req.Generation, req.MemberID = in.GroupID, int32(in.Generation), in.MemberID
			req.InstanceID = optional(in.GroupInstanceID)
			req.ProtocolType, req.Protocol = kmsg.StringPtr(protocolType), kmsg.StringPtr(in.Protocol)
			req.GroupAssignment = make([]kmsg.SyncGroupRequestGroupAssignment, len(in.Assignments))
			for i, m := range in.Assignments {
				req.GroupAssignment[i] = kmsg.NewSyncGroupRequestGroupAssignment()
				req.GroupAssignment[i].MemberID, req.GroupAssignment[i].MemberAssignment = m.MemberID, m.Assignment
			}
			return req
		},
	})
	if err != nil {
		return rebalance.SyncResponse{}, err
	}
	resp := a.resp.(*kmsg.SyncGroupResponse)
	if err := a.failed(apiSyncGroup, resp.ErrorCode); err != nil {
		return rebalance.SyncResponse{}, err
	}
	out := rebalance.SyncResponse{Protocol: in.Protocol, Assignment: resp.MemberAssignment}
	if resp.Protocol != nil {
		out.Protocol = *resp.Protocol
	}
	return out, nil
}

// heartbeatClient keeps the session alive and ends it.
type heartbeatClient struct{ *client }

func (c *heartbeatClient) limit() time.Duration {
	return max(min(c.network.cfg.SessionTimeout/3, heartbeatMost), heartbeatLeast)
}

// Heartbeat sends a Heartbeat.
func (c *heartbeatClient) Heartbeat(ctx context.Context, coordinator kafka.Broker, in rebalance.HeartbeatRequest) error {
	a, err := c.call(ctx, coordinator, question{
		api:   apiHeartbeat,
		limit: c.limit(),
		build: func(int16) kmsg.Request {
			req := kmsg.NewPtrHeartbeatRequest()
			req.Group, req.Generation, req.MemberID = in.GroupID, int32(in.Generation), in.MemberID
			req.InstanceID = optional(in.GroupInstanceID)
			return req
		},
	})
	if err != nil {
		return err
	}
	return a.failed(apiHeartbeat, a.resp.(*kmsg.HeartbeatResponse).ErrorCode)
}

// Leave sends a LeaveGroup for one member.
func (c *heartbeatClient) Leave(ctx context.Context, coordinator kafka.Broker, in rebalance.LeaveRequest) error {
	want := apiLeaveGroup
	if in.GroupInstanceID != "" {
		want = want.atLeast(leaveGroupMembers) // below it the instance id has no place
	}
	a, err := c.call(ctx, coordinator, question{
		api:   want,
		limit: c.limit(),
		build: func(version int16) kmsg.Request {
			req := kmsg.NewPtrLeaveGroupRequest()
			req.Group = in.GroupID
			if version < leaveGroupMembers {
				req.MemberID = in.MemberID
				return req
			}
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID, member.InstanceID = in.MemberID, optional(in.GroupInstanceID)
			member.Reason = reasonOf(in.Reason)
			req.Members = append(req.Members, member)
			return req
		},
	})
	if err != nil {
		return err
	}
	resp := a.resp.(*kmsg.LeaveGroupResponse)
	if err := a.failed(apiLeaveGroup, resp.ErrorCode); err != nil {
		return err
	}
	for i := range resp.Members {
		// One member was named, so any error in the list is its own.
		if err := a.failed(apiLeaveGroup, resp.Members[i].ErrorCode); err != nil {
			return err
		}
	}
	return nil
}

// optional returns nil for an empty string.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// text returns the empty string for nil.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// reasonOf cuts a reason to what the protocol's users expect, at a character's border.
func reasonOf(reason string) *string {
	if len(reason) > reasonMost {
		cut := 0
		for i := range reason {
			if i > reasonMost {
				break
			}
			cut = i
		}
		reason = reason[:cut]
	}
	return optional(reason)
}

// millis returns a duration in the protocol's milliseconds.
func millis(d time.Duration) int32 {
	return int32(max(0, min(d.Milliseconds(), math.MaxInt32)))
}
