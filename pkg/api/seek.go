package api

import (
	"context"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// Seek has partitions, all that are owned when none is named, go on at another place: rebalance.StartAtOffset, or
// rebalance.StartBy ResetEarliest, ResetLatest, ResetAt a time or ResetByDuration back from now. It returns when their positions
// are set, which for a place that has to be looked up takes an answer of the partition's leader, or when ctx ends: then the
// position stays where it was, unless the answer comes at that moment.
//
// What was delivered of the old position is fenced: nothing more of it begins, the contexts of its handlers end with
// actors.ErrSought, acknowledgments that come later are stale and counted, and nothing of it is committed any more. The first
// delivery at the new position comes when the call that runs has returned; Seek does not wait for that and may be called inside
// of a handler. The new position is committed as the commit strategy says; it may be lower than what is committed. A paused
// partition stays paused. A partition that failed for good because it had nowhere to start goes on.
//
// An offset that the log does not have is treated as any other such position: Config.Reset says where to go on. Before it is
// decided where a partition starts, Seek decides it. Errors: *rebalance.StartPositionError for a place that is none,
// *actors.UnassignedError, *actors.StateError for a partition that is being given up, *actors.HeldError while another has the
// token, actors.ErrSuperseded. (Java: KafkaConsumer.seek, seekToBeginning, seekToEnd.)
func (c *Consumer) Seek(ctx context.Context, to rebalance.StartPosition, partitions ...kafka.TopicPartition) error {
	return c.tree.Seek(ctx, to, partitions)
}
