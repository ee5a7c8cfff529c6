package api

import (
	"errors"
	"fmt"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// rangePart is what [ReadRange] returns.
type rangePart struct {
	partition kafka.TopicPartition
	from      rebalance.StartPosition
	to        rebalance.EndPosition
}

// ReadRange has the consumer read a range of one partition, or of every partition of a topic (kafka.WholeTopic), without a
// group, and end by itself: when every record of the range is acknowledged it closes as by [Consumer.Close], Done is closed,
// Err returns nil, and so does [Run]. Several of it add up; each partition is in one. Beside [Assign], which never ends, it is an
// error.
//
//	err := api.Run(ctx, api.Config{Brokers: brokers}, // no group
//		api.Handle("orders", replay),
//		api.ReadRange(kafka.WholeTopic("orders"),
//			rebalance.StartBy(rebalance.ResetAt(monday.UnixMilli())), rebalance.EndAt(tuesday.UnixMilli())),
//	)
//
// from is as in [Assign]; of a whole topic it is a policy. to is the first offset that is not read any more:
// rebalance.EndAtOffset of one partition, or rebalance.EndAt a time, or rebalance.EndOfLog. It is found once, when the partition
// starts (event.RangeEndSet, PartitionStats.End), and lies at the log's end of that moment at the latest, under read_committed at
// the last stable offset: a producer that goes on does not keep the consumer alive, and an offset that is not there yet is not
// waited for. A topic has the partitions of that moment. A time means the first record with that timestamp or a later one.
//
// What holds of [Assign] holds here, but for this:
//
//   - No record at or beyond the end is ever delivered. Whatever the log lacks before it (compaction, retention, aborted
//     transactions) is passed over; a range that has nothing, or nothing any more, is read at once.
//   - Handlers that fail are tried again as ever, and what may pass is waited for: brokers that are away, a partition without a
//     leader, a batch that cannot be read, a pause. What nothing but a person can mend ends the consumer with a
//     *rebalance.RangeError, after a drain: a topic or partition that does not exist (three looks in a row) or may not be seen, a
//     topic that was deleted or made anew, a position that the log does not have under ResetNone.
//   - When the log loses its end (an unclean election) the range ends where the log ends then.
//   - A seek moves the position, not the end: back, what lies before the end is read again; at or beyond it nothing is left.
//   - An offset of [WithPositions] wins over from, also one below it. At or beyond the end there is nothing left to read.
//
// Run also returns nil when ctx ended before everything was read; ctx.Err tells. [Consumer.WaitJoined] returns
// actors.ErrClosing when the consumer has already ended.
func ReadRange(partition kafka.TopicPartition, from rebalance.StartPosition, to rebalance.EndPosition) Part {
	return rangePart{partition: partition, from: from, to: to}
}

func (r rangePart) addTo(p *parts) {
	if p.assigned == nil {
		p.assigned = new(assigned)
	}
	a := p.assigned
	a.ranges++
	if r.partition.Partition == kafka.AnyPartition {
		a.topics = append(a.topics, topicAssignment{topic: r.partition.Topic, start: r.from, end: &r.to})
		return
	}
	a.partitions = append(a.partitions, partitionAssignment{Assignment: Assignment{Partition: r.partition, Start: r.from}, end: &r.to})
}

// endRules are those of an end position; nil is none.
func endRules(field string, start rebalance.StartPosition, end *rebalance.EndPosition) []rule {
	if end == nil {
		return nil
	}
	if wrong, ok := errors.AsType[*rebalance.EndPositionError](end.Validate(start)); ok {
		return []rule{{field: field + ".To", value: *end, want: wrong.Want}}
	}
	return nil
}

// rangeField names a part in a problem.
func rangeField(tp kafka.TopicPartition) string {
	if tp.Partition == kafka.AnyPartition {
		return fmt.Sprintf("ReadRange(%s)", shortQuote(tp.Topic))
	}
	return fmt.Sprintf("ReadRange(%s, %d)", shortQuote(tp.Topic), tp.Partition)
}

func isOffset(end rebalance.EndPosition) bool {
	_, ok := end.Offset()
	return ok
}
