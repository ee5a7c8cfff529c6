package api

import (
	"context"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// CurrentAssignment returns the partitions owned now, in order: those too that are on their way in or out in a rebalance. It waits
// for nothing. (Java: KafkaConsumer.assignment.)
func (c *Consumer) CurrentAssignment() []kafka.TopicPartition { return c.tree.CurrentAssignment() }

// Position returns the next offset that will be delivered to the handler of each partition named, of every partition owned when
// none is named, and of those owned of a topic for kafka.WholeTopic. Records from there on may have been fetched; none of them was
// delivered, except again after a failure. (Java: KafkaConsumer.position, whose position is moved on by poll.)
//
// It waits, as long as ctx allows, for a partition that was assigned just now to know where it begins. No broker is asked for
// anything else. An error is joined of an *actors.ArgumentError for each name that cannot be a partition; or it is an
// *actors.UnassignedError that lists every partition that is not owned, or none if nothing is owned at all; an *actors.HeldError
// inside of OnAssigning, which itself holds the start up; actors.ErrClosing or Err when the consumer has ended; or one that wraps
// ctx's. It may be called inside of a handler or callback, and needs no token.
func (c *Consumer) Position(ctx context.Context, partitions ...kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	return c.tree.Position(ctx, partitions)
}

// Lag returns how far the partitions named are behind the ends of their logs, with the selection, the waiting and the errors of
// [Consumer.Position]. The ends are asked of the brokers now, as [Consumer.EndOffsets] does, with its errors as well; for an estimate
// that asks nobody see Stats().Partitions[i].Lag. (Java: KafkaConsumer.currentLag, KIP-695, which is such an estimate.)
func (c *Consumer) Lag(ctx context.Context, partitions ...kafka.TopicPartition) (map[kafka.TopicPartition]actors.PartitionLag, error) {
	return c.tree.Lag(ctx, partitions)
}

// Committed returns what the group's coordinator has for the partitions named, whether they are owned here or not, or for every
// partition owned when none is named. kafka.WholeTopic is all partitions that the topic has. Each partition asked for is in the
// answer; of one without a committed offset Found returns false. Offsets committed in a transaction that is open are waited for
// (KIP-447). Waiting and errors are those of [Consumer.EndOffsets]. Beside [Assign] it is actors.ErrNoGroup. (Java:
// KafkaConsumer.committed, KIP-520.)
func (c *Consumer) Committed(ctx context.Context, partitions ...kafka.TopicPartition) (map[kafka.TopicPartition]kafka.CommittedOffset, error) {
	return c.tree.Committed(ctx, partitions)
}

// BeginningOffsets returns the offset of the first record that the log of each partition named still has, with the selection,
// waiting and errors of [Consumer.EndOffsets]. (Java: KafkaConsumer.beginningOffsets, KIP-79.)
func (c *Consumer) BeginningOffsets(ctx context.Context, partitions ...kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	return c.tree.BeginningOffsets(ctx, partitions)
}

// EndOffsets returns the offset after the last record of each partition named: under [ReadCommitted] the last stable offset,
// which is that of the first record of an open transaction where there is one, else the high watermark. They may be of any topic
// that the brokers show to this user; kafka.WholeTopic is all partitions that a topic has, none named is every partition owned.
// (Java: KafkaConsumer.endOffsets, KIP-79.)
//
// It works in every state of the member, also while it joins, rebalances or drains at the close, and disturbs nothing: its
// connections are made on demand and closed half a minute after the last question. A broker that is away, a leader or coordinator
// that moves are waited for until ctx ends, with Config.Backoff; Config.RequestTimeout bounds each request. A context without an
// end waits for as long as the consumer lives.
//
// There is an answer for every partition, or an error and none: joined, an *actors.ArgumentError for each name that cannot
// be a partition; an *actors.UnknownPartitionError that lists what does not exist, which three answers in a row must say; an
// *actors.QuestionError for each partition that a broker refuses to tell of, such as for lack of a right; an
// *actors.UnassignedError when none is named and none owned; actors.ErrClosing or Err when the consumer has ended;
// actors.ErrInterrupted or actors.ErrInquirerFailed when actors of the consumer failed several times meanwhile; or an error that
// wraps ctx's, and the *actors.QuestionError that stood in the way last. It may be called inside of a handler or callback, and
// needs no token.
func (c *Consumer) EndOffsets(ctx context.Context, partitions ...kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	return c.tree.EndOffsets(ctx, partitions)
}

// OffsetsForTimes returns for each partition the first record whose timestamp is at or after the time given, to the millisecond;
// of one that has no such record Found returns false. Timestamps need not rise with the offset: what follows may be older. A time for
// kafka.WholeTopic is for all partitions of the topic that have none of their own; an empty map has an empty answer. Under
// [ReadCommitted] records from the last stable offset on are not looked at. A time before 1970 is an *actors.ArgumentError;
// else waiting and errors are those of [Consumer.EndOffsets]. (Java: KafkaConsumer.offsetsForTimes, KIP-79.)
func (c *Consumer) OffsetsForTimes(ctx context.Context, times map[kafka.TopicPartition]time.Time) (map[kafka.TopicPartition]kafka.OffsetAndTimestamp, error) {
	return c.tree.OffsetsForTimes(ctx, times)
}
