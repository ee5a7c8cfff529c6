package kafka

import "time"

// CommittedOffset is what a group's coordinator keeps for one partition (OffsetAndMetadata in the Java client).
type CommittedOffset struct {
	// Offset is the next offset to read, [NoOffset] when nothing is committed.
	Offset int64
	// LeaderEpoch is that of the record before it, [NoLeaderEpoch] when it was not said (KIP-320).
	LeaderEpoch int32
	// Metadata is what was given along with the offset, by whatever client; empty for nothing.
	Metadata string
	// Text is the metadata as the coordinator keeps it. In Troupe's own commits it also says which incarnation of the topic the
	// offset belongs to and what is finished beyond it; commit.ParseMetadata reads that. In those of others it is Metadata.
	Text string
}

// Found reports whether there is a committed offset.
func (o CommittedOffset) Found() bool { return o.Offset >= 0 }

// OffsetAndTimestamp is the first record at or after a time (the Java client's class of this name).
type OffsetAndTimestamp struct {
	// Offset is the record's, [NoOffset] when no record is that young.
	Offset int64
	// Timestamp is the record's own in UTC, to the millisecond, as its producer or the broker set it; zero when there is none.
	Timestamp time.Time
	// LeaderEpoch is the record's, [NoLeaderEpoch] when the broker did not say (KIP-320).
	LeaderEpoch int32
}

// Found reports whether there is such a record.
func (o OffsetAndTimestamp) Found() bool { return o.Offset >= 0 }
