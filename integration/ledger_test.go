package integration

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// ledger has every delivery of every member of a test.
type ledger struct {
	calls   atomic.Uint64
	mu      sync.Mutex
	entries []*entry
	handled map[spot]int
}

// spot is one record's place.
type spot struct {
	tp     kafka.TopicPartition
	offset int64
}

// entry is one record inside one handler call.
type entry struct {
	spot
	member     string
	key        string
	attempt    int
	call       uint64    // what came in one call, or one delivery, has the same number
	start, end time.Time // end is zero while the handler runs
	err        error
}

func newLedger() *ledger { return &ledger{handled: make(map[spot]int)} }

// open notes a record that comes in a call of its own.
func (l *ledger) open(ctx context.Context, member string, r *kafka.Record) *entry {
	return l.openIn(ctx, member, l.newCall(), r)
}

// openIn notes a record that comes together with others, which have the same call.
func (l *ledger) openIn(ctx context.Context, member string, call uint64, r *kafka.Record) *entry {
	e := &entry{spot: spotOf(r), member: member, key: string(r.Key), attempt: 1, call: call, start: time.Now()}
	if d := actors.DeliveryFrom(ctx); d != nil {
		e.attempt = d.Attempt()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
	return e
}

func spotOf(r *kafka.Record) spot { return spot{r.TopicPartition(), r.Offset} }

func (l *ledger) newCall() uint64 { return l.calls.Add(1) }

func (l *ledger) close(e *entry, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.end, e.err = time.Now(), err
	if err == nil {
		l.handled[e.spot]++
	}
}

// watch wraps a handler so that what it does is written down.
func (l *ledger) watch(member string, handle api.Handler) api.Handler {
	return func(ctx context.Context, r *kafka.Record) (err error) {
		e := l.open(ctx, member, r)
		returned := false
		defer func() {
			if !returned {
				err = fmt.Errorf("panic or Goexit")
			}
			l.close(e, err)
		}()
		err = handle(ctx, r)
		returned = true
		return err
	}
}

// note is a handler that only writes down.
func (l *ledger) note(member string) api.Handler {
	return l.watch(member, func(context.Context, *kafka.Record) error { return nil })
}

// distinct is how many records were handled.
func (l *ledger) distinct() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.handled)
}

// of returns the entries of a partition, in the order they were begun.
func (l *ledger) of(tp kafka.TopicPartition) []entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []entry
	for _, e := range l.entries {
		if e.tp == tp {
			out = append(out, *e)
		}
	}
	return out
}

func (l *ledger) offsets(tp kafka.TopicPartition) []int64 {
	var out []int64
	for _, e := range l.of(tp) {
		out = append(out, e.offset)
	}
	return out
}

// repeated returns the records that were handled more than once.
func (l *ledger) repeated() []spot {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []spot
	for s, n := range l.handled {
		if n > 1 {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b spot) int {
		return cmp.Or(a.tp.Compare(b.tp), cmp.Compare(a.offset, b.offset))
	})
	return out
}

// allHandled demands every record below the ends.
func (l *ledger) allHandled(t *testing.T, ends map[kafka.TopicPartition]int64) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for tp, end := range ends {
		for offset := range end {
			if !assert.Positive(t, l.handled[spot{tp, offset}], "%s@%d was lost", tp, offset) {
				break
			}
		}
	}
}

// noOverlap demands that at no time two handlers were inside one partition.
func (l *ledger) noOverlap(t *testing.T) {
	t.Helper()
	l.noOverlapIn(t, func(e *entry) any { return e.tp })
}

// noOverlapIn demands that at no time two calls were inside one lane. Inside of a call the records are the user's.
func (l *ledger) noOverlapIn(t *testing.T, lane func(*entry) any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	type running struct {
		call  uint64
		until time.Time // the end that is latest of the call's records in the lane
		open  bool
		entry *entry
	}
	last := make(map[any]*running)
	sorted := slices.Clone(l.entries)
	slices.SortStableFunc(sorted, func(a, b *entry) int { return a.start.Compare(b.start) })
	for _, e := range sorted {
		before := last[lane(e)]
		if before == nil || before.call != e.call {
			if before != nil && (before.open || before.until.After(e.start)) {
				assert.Fail(t, "two handlers in one lane", "%s, %v: %s at %d from %v to %v, %s at %d from %v", e.tp, lane(e),
					before.entry.member, before.entry.offset, before.entry.start, before.entry.end, e.member, e.offset, e.start)
				return
			}
			before = &running{call: e.call}
			last[lane(e)] = before
		}
		before.entry, before.open = e, before.open || e.end.IsZero()
		if e.end.After(before.until) {
			before.until = e.end
		}
	}
}

// afterItsPredecessors demands that no record was begun before all those of its lane with lower offsets were finished, other
// than those that came in the same call.
func (l *ledger) afterItsPredecessors(t *testing.T, lane func(*entry) any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	type visit struct {
		spot
		call uint64
	}
	first, finished, visits := make(map[any]map[int64]*entry), make(map[spot]time.Time), make(map[visit]bool)
	for _, e := range l.entries {
		visits[visit{e.spot, e.call}] = true
		if first[lane(e)] == nil {
			first[lane(e)] = make(map[int64]*entry)
		}
		if first[lane(e)][e.offset] == nil {
			first[lane(e)][e.offset] = e
		}
		if _, known := finished[e.spot]; !known && e.err == nil && !e.end.IsZero() {
			finished[e.spot] = e.end
		}
	}
	for _, records := range first {
		for offset, e := range records {
			for lower, before := range records {
				if lower >= offset || visits[visit{before.spot, e.call}] {
					continue
				}
				end, done := finished[before.spot]
				if !done || end.After(e.start) {
					assert.Fail(t, "a record was begun before its predecessor was finished", "%s: %d at %v by %s, %d finished at %v",
						e.tp, offset, e.start, e.member, lower, end)
					return
				}
			}
		}
	}
}

// inOrder demands that the offsets of each partition only grow, and come once.
func (l *ledger) inOrder(t *testing.T, partitions ...kafka.TopicPartition) {
	t.Helper()
	for _, tp := range partitions {
		offsets := l.offsets(tp)
		assert.True(t, slices.IsSortedFunc(offsets, func(a, b int64) int {
			if a == b {
				return 1 // twice is wrong as well
			}
			return cmp.Compare(a, b)
		}), "%s came in the order %v", tp, offsets)
	}
}
