//go:build unix

package integration

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The ledger of a stage is what all its workers, also the dead ones, have written down.

// place is one record of the stage's topic.
type place struct {
	partition int32
	offset    int64
}

// String names partition and offset.
func (p place) String() string { return fmt.Sprintf("%d@%d", p.partition, p.offset) }

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
}

// counts returns how often each record was finished.
func (s *stage) counts(t *testing.T) map[place]int {
	t.Helper()
	counts := make(map[place]int)
	for _, w := range s.workers {
		for _, p := range w.handled(t) {
			counts[p]++
		}
	}
	return counts
}

// finished returns how many records were finished.
func (s *stage) finished(t *testing.T) int {
	t.Helper()
	return len(s.counts(t))
}

// repeated returns the records that were finished more than once, in order.
func (s *stage) repeated(t *testing.T) []place {
	t.Helper()
	var out []place
	for p, n := range s.counts(t) {
		if n > 1 {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, comparePlaces)
	return out
}

// ends returns the end of each partition's log.
func (s *stage) ends(t *testing.T) []int64 {
	t.Helper()
	ends := make([]int64, s.partitions)
	for tp, end := range s.admin.EndOffsets(t, s.topic) {
		ends[tp.Partition] = end
	}
	return ends
}

// committed returns the offset stored for each partition, 0 for none.
func (s *stage) committed(t *testing.T) []int64 {
	t.Helper()
	committed := make([]int64, s.partitions)
	for tp, offset := range s.admin.Committed(t, s.group) {
		committed[tp.Partition] = offset
	}
	return committed
}

// contiguous returns the first offset of each partition that nobody has finished.
func (s *stage) contiguous(t *testing.T) []int64 {
	t.Helper()
	counts, first := s.counts(t), make([]int64, s.partitions)
	for p := range first {
		for counts[place{int32(p), first[p]}] > 0 {
			first[p]++
		}
	}
	return first
}

// nothingLost waits until every record on the topic was finished.
func (s *stage) nothingLost(t *testing.T) {
	t.Helper()
	ends := s.ends(t)
	missing := func() (out []place) {
		for p, from := range s.contiguous(t) {
			if from < ends[p] {
				out = append(out, place{int32(p), from})
			}
		}
		return out
	}
	if !waitFor(2*patience, func() bool { return len(missing()) == 0 }) {
		t.Errorf("lost, the first of each partition: %v", missing())
	}
}

// neverPast demands that no commit is past the first record that nobody has finished.
func (s *stage) neverPast(t *testing.T, committed []int64) {
	t.Helper()
	for p, first := range s.contiguous(t) {
		assert.LessOrEqual(t, committed[p], first, "the commit of partition %d is past an unfinished record", p)
	}
}

// inOrder demands that every worker began the records of each ownership of a partition in the order of their offsets,
// each once, and never went back to an earlier ownership.
func (s *stage) inOrder(t *testing.T) {
	t.Helper()
	for _, w := range s.workers {
		last := make(map[int32]traced)
		for _, line := range w.trace(t) {
			if line.what != "begin" {
				continue
			}
			if before, ok := last[line.partition]; ok {
				assert.GreaterOrEqual(t, line.epoch, before.epoch, "%s begins %s under an old epoch", w.name, line.place)
				if line.epoch == before.epoch {
					assert.Greater(t, line.offset, before.offset, "%s begins %s after %s", w.name, line.place, before.place)
				}
			}
			last[line.partition] = line
		}
	}
}

// span is the time a record was being worked on.
type span struct {
	place
	worker     *worker
	epoch      uint64
	start, end time.Time
	// open is true when it was never finished: the process ended, or is still at it.
	open bool
}

// String says who did what when.
func (s span) String() string {
	return fmt.Sprintf("%s by %s in epoch %d from %s to %s", s.place, s.worker.name, s.epoch,
		s.start.Format("15:04:05.000000"), s.end.Format("15:04:05.000000"))
}

// spans returns what a worker worked on.
func (w *worker) spans(t *testing.T) []span {
	t.Helper()
	until := time.Now()
	select {
	case <-w.done:
		until = w.ended
	default:
	}
	var spans []span
	current := make(map[place]int)
	for _, line := range w.trace(t) {
		if line.what == "begin" {
			current[line.place] = len(spans)
			spans = append(spans, span{line.place, w, line.epoch, line.at, until, true})
			continue
		}
		if i, ok := current[line.place]; assert.True(t, ok, "%s ends %s, which it did not begin", w.name, line.place) {
			spans[i].end, spans[i].open = line.at, false
		}
	}
	return spans
}

// overlaps returns the pairs of records of one partition that were being worked on at the same time.
func (s *stage) overlaps(t *testing.T) (pairs [][2]span) {
	t.Helper()
	var all []span
	for _, w := range s.workers {
		all = append(all, w.spans(t)...)
	}
	slices.SortFunc(all, func(a, b span) int { return a.start.Compare(b.start) })
	latest := make(map[int32]span) // the one that ends last
	for _, next := range all {
		before, ok := latest[next.partition]
		if ok && before.end.After(next.start) {
			pairs = append(pairs, [2]span{before, next})
		}
		if !ok || next.end.After(before.end) {
			latest[next.partition] = next
		}
	}
	return pairs
}

// noOverlap demands that no two records of a partition were being worked on at the same time.
func (s *stage) noOverlap(t *testing.T) {
	t.Helper()
	pairs := s.overlaps(t)
	assert.Empty(t, pairs[:min(3, len(pairs))], "%d overlaps", len(pairs))
}

// drained stops workers by SIGTERM and demands that each ends well and that everything is committed.
func (s *stage) drained(t *testing.T, workers ...*worker) {
	t.Helper()
	for _, w := range workers {
		w.terminate(t)
	}
	assert.Equal(t, s.ends(t), s.committed(t), "committed")
}
