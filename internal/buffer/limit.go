package buffer

import (
	"sort"

	"github.com/troupego/troupe/pkg/kafka"
)

// Limit is where the reading of a partition ends: the first offset that is not read any more. The zero value is none.
type Limit struct {
	end int64
	set bool
}

// LimitAt returns a limit.
func LimitAt(end int64) Limit { return Limit{end: end, set: true} }

// End returns the offset, [kafka.NoOffset] for none.
func (l Limit) End() int64 {
	if !l.set {
		return kafka.NoOffset
	}
	return l.end
}

// Reached reports whether nothing is left to read from offset on. With the first offset that is not finished it says that all
// is finished; holes do not matter to it, since what is passed over counts as read.
func (l Limit) Reached(offset int64) bool { return l.set && offset >= l.end }

// Next returns where to go on behind a batch that ends before next: not beyond the limit.
func (l Limit) Next(next int64) int64 {
	if l.set {
		return min(next, l.end)
	}
	return next
}

// Cut returns the records below the limit; they are in the order of their offsets. Appending to them never reaches the others.
func (l Limit) Cut(records []kafka.Record) []kafka.Record {
	if !l.set || len(records) == 0 || records[len(records)-1].Offset < l.end {
		return records
	}
	n := sort.Search(len(records), func(i int) bool { return records[i].Offset >= l.end })
	return records[:n:n]
}
