package api

import (
	"context"

	"github.com/troupego/troupe/pkg/kafka"
)

// Pause stops the delivery of partitions, of all when none is named, and returns when no record of them can begin and no
// call of a handler runs on them any more, or when ctx ends: then the pause holds all the same, and the error says so. What
// was handed to an actor or an asynchronous handler before may still be acknowledged. Inside of a handler it does not wait,
// nor for a call that its partition's drain has not waited for either (event.HandlerAbandoned).
//
// Nothing is lost by it: records that were fetched are kept and delivered in order after [Consumer.Resume], none twice.
// Heartbeats, fetching up to what may be kept, and commits go on. A pause holds for as long as the consumer lives: a partition
// that stays in a rebalance stays paused, and so does one that goes away and comes back, which then goes on at the group's
// committed offset. kafka.WholeTopic, or none named, is a rule for partitions to come as well. A partition that is named and
// not owned is an *actors.UnassignedError and is not paused; a topic without a handler here is an error wrapping
// actors.ErrNotSubscribed. (Java: KafkaConsumer.pause.)
func (c *Consumer) Pause(ctx context.Context, partitions ...kafka.TopicPartition) error {
	return c.tree.Pause(ctx, partitions)
}

// Resume ends the pause of partitions, of all when none is named. Other reasons for not delivering (see
// actors.PartitionStats.PauseReasons) are not touched. A partition that is not owned is an *actors.UnassignedError as well, but
// its pause is over: it will not come back paused.
func (c *Consumer) Resume(ctx context.Context, partitions ...kafka.TopicPartition) error {
	return c.tree.Resume(ctx, partitions)
}

// Commit commits what is finished now, of the partitions named or of every partition owned, without waiting for the commit
// strategy, and returns when the coordinator has confirmed it, or ctx or Config.CloseTimeout has ended. With nothing to commit,
// or under commit.Manual(), or beside [Assign], it returns nil at once. The error is a *commit.FlushError of one of the
// partitions that failed, or an *actors.UnassignedError. What it could not commit stays due.
func (c *Consumer) Commit(ctx context.Context, partitions ...kafka.TopicPartition) error {
	return c.tree.Commit(ctx, partitions)
}

// Rejoin asks the group for a rebalance, with a reason that appears in the brokers' logs (at most 255 bytes of it, from
// Kafka 3.2 on), and returns when it has begun or will begin after the one that is under way; it does not wait for its end.
// Where the member is about to join anyway, it returns nil at once; so it does while the member is out of the group because of
// Config.MaxProcessingTime, which it does not cut short. It returns actors.ErrClosing when the consumer closes, Err
// when it has ended, and an error wrapping that of ctx when ctx ends first. Partitions that stay are handled on under
// rebalance.CooperativeSticky. It may be called inside of a handler. Beside [Assign] it is actors.ErrNoGroup. (Java:
// KafkaConsumer.enforceRebalance, KIP-568, KIP-800.)
func (c *Consumer) Rejoin(ctx context.Context, reason string) error {
	return c.tree.Rejoin(ctx, reason)
}
