package integration

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// ledger has every delivery of every member of a test.
type ledger struct {
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
	attempt    int
	start, end time.Time // end is zero while the handler runs
	err        error
}

func newLedger() *ledger { return &ledger{handled: make(map[spot]int)} }

func (l *ledger) open(ctx context.Context, member string, r *kafka.Record) *entry {
	e := &entry{spot: spot{r.TopicPartition(), r.Offset}, member: member, attempt: 1, start: time.Now()}
	if d := actors.DeliveryFrom(ctx); d != nil {
		e.attempt = d.Attempt()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
	return e
}

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
	l.mu.Lock()
	defer l.mu.Unlock()
	last := make(map[kafka.TopicPartition]*entry)
	sorted := slices.Clone(l.entries)
	slices.SortStableFunc(sorted, func(a, b *entry) int { return a.start.Compare(b.start) })
	for _, e := range sorted {
		if before := last[e.tp]; before != nil && (before.end.IsZero() || before.end.After(e.start)) {
			assert.Fail(t, "two handlers in one partition", "%s: %s at %d from %v to %v, %s at %d from %v", e.tp,
				before.member, before.offset, before.start, before.end, e.member, e.offset, e.start)
			return
		}
		last[e.tp] = e
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
