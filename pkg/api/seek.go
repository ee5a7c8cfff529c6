package api

import (
	"context"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// Seek has partitions go on at another position, all owned ones when none is named: at an offset (rebalance.StartAtOffset), at
// the beginning, the end or a time (rebalance.StartBy). It returns when the position is set: for an offset at once, for
// anything else when the partition's leader has said which offset it is, which is asked for again over failures and changes of
// leader until ctx ends. The seek holds all the same then, and the error says that ctx has ended. (Java: KafkaConsumer.seek,
// seekToBeginning, seekToEnd, and offsetsForTimes with seek.)
//
// The old position is given up at once. None of its records begins any more; those that handlers have come to nothing: the
// context of the handler ends with actors.ErrSought, and acknowledgments are actors.ErrStale and counted as such. No commit of
// it is sent after Seek has returned; one that is on its way to the coordinator may still be answered, and the new position
// is committed after it, also where it is lower. Seek does not wait for handlers: the first record of the new position begins
// when the call that runs has returned, whatever the order of the registration. Records that an asynchronous handler or an actor
// still has then are not waited for, by a later drain neither: they should heed their context. What a handler failed at is forgotten with
// its retries, a partition that was paused for it goes on, and so does one that had no position (event.PartitionFailed).
//
// A partition that has not started yet starts there, whatever is committed, or returned by [WithPositions]. A paused one
// stays paused. A seek does not outlive the ownership before it is committed: the next owner, here or elsewhere, starts at
// the committed offset. An offset that the log does not have is answered by the registration's reset policy when it is read.
// Of several seeks the last one holds; one that still waits for its offset then ends with actors.ErrSought. Each partition's
// new position is an event.PositionReset with the reason "seek".
//
// Inside of a handler, with its context, Seek does not wait for the leader's answer. That context ends with it when the
// handler's own partition is sought.
//
// The zero StartPosition is the beginning. What is no position, a negative offset, or rebalance.ResetNone is a *rebalance.StartPositionError; a partition that is not
// owned, or was given up while Seek waited, an *actors.UnassignedError; one that is being given up an *actors.StateError;
// a topic without a handler here an error wrapping actors.ErrNotSubscribed. With bad input nothing is sought.
func (c *Consumer) Seek(ctx context.Context, to rebalance.StartPosition, partitions ...kafka.TopicPartition) error {
	return c.tree.Seek(ctx, to, partitions)
}

// Skip finishes one record without its handler: one that was delivered and is not acknowledged. It is for a record that holds
// up those behind it: one that fails and waits for its next try, one for which its partition or key is paused since the restart
// budget is spent (those go on at once, with a full budget, and [Consumer.Healthy] with them), or one that a handler is at
// work on. Then the context of the handler, which a batch or a delivery shares, ends with actors.ErrSkipped; whatever it says
// of the record changes nothing, others come again if it fails, and the next record begins when the call has returned. A record
// that an asynchronous handler or an actor has is not waited for any more, by a drain neither: it should heed its context.
//
// The commit passes the record as if it was acknowledged: it is not delivered again. So that nothing is lost in silence, each
// is counted (actors.PartitionStats.Skipped), logged, and told as event.RecordSkipped with the reason, which must not be
// blank and has at most actors.MaxSkipReason bytes.
//
// Skip returns when it is done. It may be called inside of a handler, also for its own record. A record that was not delivered
// yet, or is finished already, or does not exist is an *actors.SkipError that says which, as is other bad input; a partition that
// is not owned an *actors.UnassignedError, one that is being given up an *actors.StateError, a topic without a handler here
// an error wrapping actors.ErrNotSubscribed; with actors.ErrInterrupted the record may be skipped or not. (Without a
// counterpart in the Java client, where one seeks over the record, and commits.)
func (c *Consumer) Skip(ctx context.Context, partition kafka.TopicPartition, offset int64, reason string) error {
	return c.tree.Skip(ctx, partition, offset, reason)
}
