package sim

import (
	"sort"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// partitionLog is the model of one partition's log. Offsets have holes, as compaction and transaction markers leave them.
type partitionLog struct {
	tp      kafka.TopicPartition
	records []kafka.Record
	// start and end are the log's bounds; end is above the last record when markers follow it.
	start, end int64
	// epoch is the leader epoch of what is appended.
	epoch int32
	// waiting are fetches that wait at the end.
	waiting []*call
}

// grow appends a record, after a hole.
func (l *partitionLog) grow(hole, tail int64, key []byte) {
	offset := l.end + hole
	l.records = append(l.records, kafka.Record{
		Topic: l.tp.Topic, Partition: l.tp.Partition, Offset: offset, LeaderEpoch: l.epoch, Key: key,
	})
	l.end = offset + 1 + tail
}

// index returns the place of the first record at or above offset.
func (l *partitionLog) index(offset int64) int {
	return sort.Search(len(l.records), func(i int) bool { return l.records[i].Offset >= offset })
}

// read returns up to limit records from offset on, and the offset after what was read.
func (l *partitionLog) read(offset int64, limit int) (records []kafka.Record, next int64) {
	first := l.index(offset)
	last := min(first+limit, len(l.records))
	if last == len(l.records) {
		return l.records[first:last:last], l.end
	}
	return l.records[first:last:last], l.records[last-1].Offset + 1
}

// fetch answers a fetch, or keeps it when there is nothing to read.
func (w *World) fetch(c *call) {
	l := w.logs[c.part]
	switch {
	case c.offset < l.start || c.offset > l.end:
		c.err = kafka.OffsetOutOfRange
	case c.offset == l.end:
		l.waiting = append(l.waiting, c)
		return
	default:
		c.records, c.next = l.read(c.offset, 1+w.rng.IntN(w.script.FetchRecords))
	}
	w.reply(c)
}

// produce appends a few records and answers the fetches that waited for them.
func (w *World) produce(part int) {
	l := w.logs[part]
	if len(l.records) >= w.script.Records {
		return
	}
	for n := 1 + w.rng.IntN(8); n > 0 && len(l.records) < w.script.Records; n-- {
		hole, tail := int64(0), int64(0)
		if w.rng.IntN(4) == 0 {
			hole = int64(w.rng.IntN(80))
		}
		if w.rng.IntN(8) == 0 {
			tail = int64(1 + w.rng.IntN(3))
		}
		l.grow(hole, tail, w.key())
		w.check.produced(part)
	}
	waiting := l.waiting
	l.waiting = nil
	for _, c := range waiting {
		if !c.done {
			w.fetch(c)
		}
	}
	if len(l.records) < w.script.Records {
		gap := int64(w.script.Horizon) * 8 / int64(w.script.Records+1)
		if !w.faulty {
			gap = min(gap, int64(time.Second)) // so that the group can settle in time
		}
		w.timeline.push(w.at+w.rng.Int64N(gap+1), eventProduce, int64(part), nil)
	}
}

// recordKeys are the keys of records; the first is none.
var recordKeys = func() (out [32][]byte) {
	for i := 1; i < len(out); i++ {
		out[i] = []byte{byte(i)}
	}
	return out
}()

// key draws a record's key.
func (w *World) key() []byte {
	if w.script.Keys == 0 {
		return nil
	}
	return recordKeys[w.extra.IntN(w.script.Keys)]
}

// retain drops records from the start of a log, as retention or DeleteRecords do.
func (w *World) retain(part, count int) {
	l := w.logs[part]
	first := min(l.index(l.start)+count, len(l.records))
	start := l.end
	if first < len(l.records) {
		start = l.records[first].Offset
	}
	l.start = start
	w.check.retained(part)
}
