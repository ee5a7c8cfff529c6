package rebalance

import (
	"encoding/binary"
	"fmt"

	"github.com/troupego/troupe/pkg/kafka"
)

const (
	// assignmentVersion is the version we write. The layout is the same in all versions; Java reads each of them.
	assignmentVersion       = 1
	newestAssignmentVersion = 3
)

// Assignment is what the group leader gives a member with SyncGroup (ConsumerProtocolAssignment).
type Assignment struct {
	// Version is as decoded; [EncodeAssignment] writes version 1 whatever it is.
	Version int16
	// Partitions are the member's.
	Partitions []kafka.TopicPartition
	// UserData is the assignor's own, nil for none.
	UserData []byte
}

// EncodeAssignment writes version 1, partitions sorted. It fails when a topic's name does not fit the format.
func EncodeAssignment(a Assignment) ([]byte, error) {
	return EncodeAssignmentVersion(a, assignmentVersion)
}

// EncodeAssignmentVersion writes a version from 0 to 3, as other leaders do. It fails on other versions and when a topic's
// name does not fit the format.
func EncodeAssignmentVersion(a Assignment, version int16) ([]byte, error) {
	if version < 0 || version > newestAssignmentVersion {
		return nil, fmt.Errorf("rebalance: no version %d of an assignment", version)
	}
	out, err := appendPartitions(binary.BigEndian.AppendUint16(nil, uint16(version)), a.Partitions)
	if err != nil {
		return nil, err
	}
	return appendBytes(out, a.UserData), nil
}

// DecodeAssignment reads any version by length alone; bytes after the last known field are ignored. No bytes at all are an
// empty assignment: that is what a member gets whom the leader left out.
func DecodeAssignment(data []byte) (Assignment, error) {
	if len(data) == 0 {
		return Assignment{}, nil
	}
	d := decoder{rest: data}
	a := Assignment{Version: d.int16("version")}
	if len(d.rest) > 0 {
		a.Partitions = d.partitions("partitions")
	}
	if len(d.rest) > 0 {
		a.UserData = d.bytes("user data")
	}
	if d.err != nil {
		return Assignment{}, fmt.Errorf("rebalance: assignment: %w", d.err)
	}
	return a, nil
}
