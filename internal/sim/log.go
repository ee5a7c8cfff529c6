package sim

import (
	"slices"
	"sort"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// partitionLog is the model of one partition's log. Offsets have holes, as compaction and transaction markers leave them. A log
// that loses its end is followed by another one, and so is one of a topic that is made anew.
type partitionLog struct {
	tp kafka.TopicPartition
	// topicID is the incarnation of the topic that it belongs to.
	topicID kafka.TopicID
	records []kafka.Record
	// start and end are the log's bounds; end is above the last record when markers follow it.
	start, end int64
	// epoch is the leader epoch of what is appended, epochs is where each one begins.
	epoch  int32
	epochs []leaderEpoch
	// waiting are fetches that wait at the end.
	waiting []*call

	// handled says for each record whether any handler ever acknowledged it; floor is the first that none did. They are the
	// checker's.
	// passed are those that nobody has to handle any more: a commit was stored above them after a seek forward, or a Skip.
	handled, passed []bool
	floor           int
	// successor is the log that a new leader goes on with: it has the first kept records and ends at cut. Nil for the present
	// one, and for one of a topic that is gone.
	successor *partitionLog
	kept      int
	cut       int64
}

// leaderEpoch says that what lies from an offset on was appended under a leader epoch.
type leaderEpoch struct {
	epoch int32
	from  int64
}

func newLog(part int, id kafka.TopicID) *partitionLog {
	return &partitionLog{tp: tpOf(part), topicID: id, epochs: []leaderEpoch{{}}}
}

// grow appends a record, after a hole.
func (l *partitionLog) grow(hole, tail int64, key []byte) {
	offset := l.end + hole
	l.records = append(l.records, kafka.Record{
		Topic: l.tp.Topic, Partition: l.tp.Partition, Offset: offset, LeaderEpoch: l.epoch, Key: key,
	})
	l.handled, l.passed = append(l.handled, false), append(l.passed, false)
	l.end = offset + 1 + tail
}

// index returns the place of the first record at or above offset.
func (l *partitionLog) index(offset int64) int {
	return sort.Search(len(l.records), func(i int) bool { return l.records[i].Offset >= offset })
}

// limit is the highest offset that may be committed when the record at index is not finished.
func (l *partitionLog) limit(index int) int64 {
	if index < len(l.records) {
		return l.records[index].Offset
	}
	return l.end
}

// raise moves the floor of what was handled.
func (l *partitionLog) raise() {
	for l.floor < len(l.records) && (l.done(l.floor) || l.records[l.floor].Offset < l.start) {
		l.floor++
	}
}

// done reports whether a record was acknowledged, or passed over with a right to.
func (l *partitionLog) done(index int) bool { return l.handled[index] || l.passed[index] }

// handle notes that some handler has acknowledged a record, also in the logs that it was taken over into.
func (l *partitionLog) handle(index int) {
	l.note(index, func(l *partitionLog) []bool { return l.handled })
}

// pass notes that nobody has to handle a record any more.
func (l *partitionLog) pass(index int) {
	l.note(index, func(l *partitionLog) []bool { return l.passed })
}

func (l *partitionLog) note(index int, where func(*partitionLog) []bool) {
	for ; l != nil; l = l.successor {
		where(l)[index] = true
		l.raise()
		if index >= l.kept {
			return
		}
	}
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

// epochAt is the leader epoch of what lies at an offset.
func (l *partitionLog) epochAt(offset int64) int32 {
	epoch := l.epochs[0].epoch
	for _, e := range l.epochs {
		if e.from <= offset {
			epoch = e.epoch
		}
	}
	return epoch
}

// epochEnd is the end of the highest leader epoch at or below one (KIP-320).
type epochEnd struct {
	epoch int32
	end   int64
}

func (l *partitionLog) endOf(epoch int32) epochEnd {
	found := epochEnd{epoch: kafka.NoLeaderEpoch, end: kafka.NoOffset}
	for i, e := range l.epochs {
		if e.epoch > epoch {
			break
		}
		found = epochEnd{epoch: e.epoch, end: l.end}
		if i+1 < len(l.epochs) {
			found.end = l.epochs[i+1].from
		}
	}
	return found
}

// diverges reports whether a fetch comes from another line of the log, and where they part.
func (l *partitionLog) diverges(c *call) bool {
	if c.lastEpoch == kafka.NoLeaderEpoch {
		return false
	}
	end := l.endOf(c.lastEpoch)
	if end.epoch >= c.lastEpoch && end.end >= c.offset {
		return false
	}
	c.diverging = &end
	return true
}

// fetch answers a fetch, or keeps it when there is nothing to read.
func (w *World) fetch(c *call) {
	l := w.logs[c.part]
	c.line = l
	switch {
	case c.part >= w.topic.count:
		c.err = kafka.UnknownTopicOrPartition
	case c.topicID != l.topicID:
		c.err = kafka.UnknownTopicID
	case l.diverges(c):
	case c.offset < l.start || c.offset > l.end:
		c.err = kafka.OffsetOutOfRange
	case c.offset == l.end && c.proves:
		c.next = c.offset
	case c.offset == l.end:
		l.waiting = append(l.waiting, c)
		return
	default:
		c.records, c.next = l.read(c.offset, 1+w.rng.IntN(w.script.FetchRecords))
		c.lastEpoch = l.epochAt(c.next - 1)
	}
	w.reply(c)
}

// produce appends a few records and answers the fetches that waited for them.
func (w *World) produce(part int) {
	l := w.logs[part]
	if len(l.records) >= w.script.Records || part >= w.topic.count {
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
	}
	w.answerWaiting(l)
	if len(l.records) < w.script.Records {
		gap := int64(w.script.Horizon) * 8 / int64(w.script.Records+1)
		if !w.faulty {
			gap = min(gap, int64(time.Second)) // so that the group can settle in time
		}
		w.timeline.push(w.at+w.rng.Int64N(gap+1), eventProduce, int64(part), nil)
	}
}

// answerWaiting has the fetches that wait at the end of a log look again.
func (w *World) answerWaiting(l *partitionLog) {
	waiting := l.waiting
	l.waiting = nil
	for _, c := range waiting {
		if !c.done {
			w.fetch(c)
		}
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
	l.raise()
}

// cut has a new leader go on, whose log has lost the records from a place on.
func (w *World) cut(part, first int) {
	old := w.logs[part]
	end := old.limit(first)
	l := &partitionLog{
		// Whoever still reads what was there keeps it.
		tp: old.tp, topicID: old.topicID, records: slices.Clone(old.records[:first]), start: min(old.start, end), end: end, epoch: old.epoch + 1,
		handled: slices.Clone(old.handled[:first]), passed: slices.Clone(old.passed[:first]), floor: min(old.floor, first),
	}
	for _, e := range old.epochs {
		if e.from < end || e.from == 0 {
			l.epochs = append(l.epochs, e)
		}
	}
	l.epochs = append(l.epochs, leaderEpoch{epoch: l.epoch, from: end})
	old.successor, old.kept, old.cut = l, first, end
	w.logs[part] = l
	for _, c := range old.waiting {
		if !c.done && !c.process.dead {
			w.failLater(c) // the old leader is gone
		}
	}
	old.waiting = nil
	w.timeline.push(w.at+w.extra.Int64N(int64(w.script.Horizon)/4), eventProduce, int64(part), nil)
}

// follow moves what an epoch has seen on to a later log of the partition, which is right only as long as it has seen nothing
// above where they part.
func (t *truth) follow(line *partitionLog) bool {
	for t.log != line {
		if t.log.successor == nil || t.next > t.log.kept {
			return false
		}
		t.log = t.log.successor
	}
	return true
}

// committedOf is what is committed of a partition, as far as it is of the present log.
func (w *World) committedOf(part int) int64 {
	offset, line := w.coordinator.committed[part], w.coordinator.marks[part].line
	if offset < 0 {
		return kafka.NoOffset
	}
	for ; line != w.logs[part]; line = line.successor {
		if line.successor == nil || offset > line.cut {
			return kafka.NoOffset
		}
	}
	return offset
}
