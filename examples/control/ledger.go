package main

import (
	"context"
	"errors"
	"sync"

	"github.com/troupego/troupe/pkg/kafka"
)

// errPoison is what the handler says of a record that it will never be able to handle.
var errPoison = errors.New("this event cannot be handled")

// ledger counts what was handled, by partition and offset.
type ledger struct {
	poison func(*kafka.Record) bool

	mu      sync.Mutex
	handled map[int32]map[int64]int
	failing map[int32]int64
}

func newLedger(poison func(*kafka.Record) bool) *ledger {
	return &ledger{poison: poison, handled: make(map[int32]map[int64]int), failing: make(map[int32]int64)}
}

// handle is the consumer's handler.
func (l *ledger) handle(_ context.Context, r *kafka.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.poison(r) {
		l.failing[r.Partition] = r.Offset
		return errPoison
	}
	if l.handled[r.Partition] == nil {
		l.handled[r.Partition] = make(map[int64]int)
	}
	l.handled[r.Partition][r.Offset]++
	return nil
}

// times returns how often the records of a partition from first up to end were handled: the least and the most of them.
func (l *ledger) times(partition int32, first, end int64) (least, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for offset := first; offset < end; offset++ {
		n := l.handled[partition][offset]
		if offset == first || n < least {
			least = n
		}
		most = max(most, n)
	}
	return least, most
}

// stuckAt returns the record of a partition at which the handler failed last, and whether there is one.
func (l *ledger) stuckAt(partition int32) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	offset, failing := l.failing[partition]
	return offset, failing
}
