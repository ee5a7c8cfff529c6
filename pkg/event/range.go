package event

import "github.com/troupego/troupe/pkg/kafka"

// RangeEndSet: it is known where the reading of a partition ends (api.ReadRange). It is told again, with a lower End, when the log
// turns out to be shorter, or to have nothing left before the end.
type RangeEndSet struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	// Wanted is the end as it was given, such as "end", "offset:500" or "timestamp:1700000000000".
	Wanted string
	// Before is the End that held until now, kafka.NoOffset for none.
	Before int64
	// End is the first offset that is not read any more.
	End int64
}

// RangeRead: all of a partition's range is read and finished. When this holds for all of them, the consumer ends.
type RangeRead struct {
	Member         Member
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	End            int64
}

// Name returns "range_end_set".
func (RangeEndSet) Name() string { return "range_end_set" }

// Name returns "range_read".
func (RangeRead) Name() string { return "range_read" }

func (RangeEndSet) event() {}
func (RangeRead) event()   {}
