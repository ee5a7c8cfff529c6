package api

import (
	"context"

	"github.com/troupego/troupe/actors"
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
// or under commit.Manual(), or beside [Assign], it returns nil at once. The error is a *commit.FlushError, of several
// partitions that failed all of them joined, or an *actors.UnassignedError, or why the consumer has ended. What it could not
// commit stays due. It may be called inside of a handler, whose own record is not finished yet. (Java:
// KafkaConsumer.commitSync.)
func (c *Consumer) Commit(ctx context.Context, partitions ...kafka.TopicPartition) error {
	return c.tree.Commit(ctx, partitions)
}

// CommitAsync is [Consumer.Commit] without waiting for it: what is finished when the consumer gets to it is committed. Commits of
// one goroutine are carried out in the order they were begun in. ctx and Config.CloseTimeout, from the call on, bound it. (Java:
// KafkaConsumer.commitAsync.)
func (c *Consumer) CommitAsync(ctx context.Context, partitions ...kafka.TopicPartition) *CommitFuture {
	return &CommitFuture{c.tree.CommitAsync(ctx, partitions)}
}

// CommitOffsets commits these very offsets, each the next one to read of its partition, with their metadata, and returns when the
// coordinator has confirmed them, or ctx or Config.CloseTimeout has ended. They go out at once and together, whatever the commit
// strategy says; during a rebalance, for partitions that stay, when it is over. Without any offset it returns nil.
//
// An offset may be anything from 0 up to what is finished without a gap: a commit never passes a record that was delivered and
// is not acknowledged. A lower one than the last committed is event.CommitSetBack. It holds until more is finished: the group
// resumes there after a restart or rebalance, also when this consumer closes. It does not move what is being delivered here.
// Once another record beyond the finished ones is finished, or a gap closes, the strategy decides as ever: under
// commit.Opportunistic the commit moves on at once, under commit.OnDemand with the next Commit, revocation or close. A call of
// [Consumer.Commit] commits what is finished at once.
//
// Metadata may hold any bytes, at most commit.MaxUserBytes as commit.UserBytes counts them. It is kept beside Troupe's own mark
// (commit.ParseMetadata gives it back as Metadata.User) for as long as the partition's committed offset is this one, also when
// its offset map changes or another member takes over; a commit of another offset goes without it, as in Java.
//
// Nothing is committed when an offset is refused for itself (an *actors.OffsetError each, joined), when a partition is not owned
// (*actors.UnassignedError), a topic has no handler (actors.ErrNotSubscribed), or beside [Assign] (actors.ErrNoGroup) and
// under commit.Manual() (commit.ErrManual). After that each partition stands for itself; the error has, joined, what failed, and the
// others are committed: an *actors.OffsetError for an offset above what is finished, with the highest one allowed; an
// *actors.StateError for a partition that has no start yet, whose position is being sought, or that was given up meanwhile; a *commit.FlushError where the coordinator
// did not confirm, which then stays due, or takes no metadata of that length (commit.ErrMetadataTooLarge), which then is given
// up. It may be called inside of a handler. (Java: KafkaConsumer.commitSync with offsets.)
func (c *Consumer) CommitOffsets(ctx context.Context, offsets ...kafka.OffsetAndMetadata) error {
	return c.tree.CommitOffsets(ctx, offsets)
}

// CommitOffsetsAsync is [Consumer.CommitOffsets] without waiting for it. Of two commits of one goroutine for the same partition the
// later one wins. (Java: KafkaConsumer.commitAsync with offsets.)
func (c *Consumer) CommitOffsetsAsync(ctx context.Context, offsets ...kafka.OffsetAndMetadata) *CommitFuture {
	return &CommitFuture{c.tree.CommitOffsetsAsync(ctx, offsets)}
}

// CommitFuture is a commit that was begun. It ends by itself, with the consumer at the latest; nobody has to wait for it.
type CommitFuture struct{ future *actors.Future }

// Done is closed when the commit has ended.
func (f *CommitFuture) Done() <-chan struct{} { return f.future.Done() }

// Err returns how the commit ended, with the errors of [Consumer.Commit] or [Consumer.CommitOffsets], and nil before Done is closed.
func (f *CommitFuture) Err() error { return f.future.Err() }

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
