package kafka

import (
	"slices"
	"time"
)

// TimestampType says who set a record's timestamp (message.timestamp.type).
type TimestampType int8

const (
	// CreateTime is the time the producer gave the record.
	CreateTime TimestampType = 0
	// LogAppendTime is the time the broker appended the record's batch.
	LogAppendTime TimestampType = 1
)

// Record is one Kafka record. See the package comment for how long it may be kept.
type Record struct {
	// Topic is the topic the record was read from. The string is shared by all records of the topic.
	Topic string
	// Key is the record's key; nil when it has none, which Kafka tells apart from an empty key.
	Key []byte
	// Value is the record's value; nil for a tombstone.
	Value []byte
	// Headers are the record's headers, parsed only when asked for.
	Headers Headers
	// Offset is the record's position in its partition.
	Offset int64
	// TimestampMillis is the timestamp in milliseconds since the Unix epoch; -1 when the record has none.
	TimestampMillis int64
	// Partition is the number of the record's partition.
	Partition int32
	// LeaderEpoch is the leader epoch of the batch the record came in (KIP-320); NoLeaderEpoch when unknown.
	LeaderEpoch int32
	// TimestampType says whether producer or broker set the timestamp.
	TimestampType TimestampType
}

// TopicPartition returns the partition the record was read from.
func (r *Record) TopicPartition() TopicPartition {
	return TopicPartition{Topic: r.Topic, Partition: r.Partition}
}

// Timestamp returns the record's timestamp in UTC, the zero time when the record has none.
func (r *Record) Timestamp() time.Time {
	if r.TimestampMillis < 0 {
		return time.Time{}
	}
	return time.UnixMilli(r.TimestampMillis).UTC()
}

// Clone returns a copy that shares no memory with r: keeping it keeps neither the slab nor the fetch buffer alive.
func (r *Record) Clone() Record {
	c := *r
	c.Key = slices.Clone(r.Key)
	c.Value = slices.Clone(r.Value)
	c.Headers.raw = slices.Clone(r.Headers.raw)
	return c
}
