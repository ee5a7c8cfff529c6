package rebalance

import (
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// JoinRequest is what a JoinGroup says, apart from the group's name.
type JoinRequest struct {
	GroupID          string
	MemberID         string
	GroupInstanceID  string
	SessionTimeout   time.Duration
	RebalanceTimeout time.Duration
	// Protocols are the assignors offered, preferred first, each with its encoded subscription.
	Protocols []Protocol
	// Reason tells the coordinator why (KIP-800).
	Reason string
}

// Protocol is one assignor's name with the encoded subscription.
type Protocol struct {
	Name     string
	Metadata []byte
}

// JoinResponse is the answer to a JoinGroup.
type JoinResponse struct {
	Generation kafka.Generation
	MemberID   string
	// LeaderID is the group leader's member id.
	LeaderID string
	// Protocol is the assignor the coordinator chose.
	Protocol string
	// SkipAssignment (KIP-814): this member leads but must not assign anew.
	SkipAssignment bool
	// Members are all members with their subscriptions, given to the group leader only.
	Members []JoinMember
}

// JoinMember is one member as the group leader sees it.
type JoinMember struct {
	MemberID        string
	GroupInstanceID string
	Metadata        []byte
}

// SyncRequest is what a SyncGroup says.
type SyncRequest struct {
	GroupID         string
	MemberID        string
	GroupInstanceID string
	Generation      kafka.Generation
	Protocol        string
	// Assignments are given by the group leader only, one for every member, an empty assignment included.
	Assignments []MemberAssignment
}

// MemberAssignment is one member's encoded assignment.
type MemberAssignment struct {
	MemberID   string
	Assignment []byte
}

// SyncResponse is the answer to a SyncGroup.
type SyncResponse struct {
	Protocol string
	// Assignment is encoded; no bytes mean no partitions.
	Assignment []byte
}

// HeartbeatRequest is what a Heartbeat says.
type HeartbeatRequest struct {
	GroupID         string
	MemberID        string
	GroupInstanceID string
	Generation      kafka.Generation
}

// LeaveRequest is what a LeaveGroup says.
type LeaveRequest struct {
	GroupID         string
	MemberID        string
	GroupInstanceID string
	Reason          string
}
