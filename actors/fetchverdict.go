package actors

import (
	"errors"

	"github.com/troupego/troupe/pkg/kafka"
)

// fetchVerdict is what a partition's error in a fetch answer asks for.
type fetchVerdict uint8

const (
	// fetchLater: try again after a backoff.
	fetchLater fetchVerdict = iota
	// fetchElsewhere: the leader or its epoch is another one; ask for fresh metadata.
	fetchElsewhere
	// fetchOutOfRange: the position is not in the log.
	fetchOutOfRange
)

// judgeFetch maps a partition's error. Whatever is not known is tried again later, visibly.
func judgeFetch(err error) fetchVerdict {
	code, ok := errors.AsType[kafka.ErrorCode](err)
	if !ok {
		return fetchLater
	}
	switch code {
	case kafka.OffsetOutOfRange:
		return fetchOutOfRange
	case kafka.NotLeaderForPartition, kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch, kafka.UnknownTopicOrPartition,
		kafka.UnknownTopicID, kafka.InconsistentTopicID, kafka.LeaderNotAvailable, kafka.ReplicaNotAvailable,
		kafka.KafkaStorageError, kafka.OffsetNotAvailable:
		return fetchElsewhere
	default:
		return fetchLater
	}
}
