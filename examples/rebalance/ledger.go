package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// place is one record.
type place struct {
	partition int32
	offset    int64
}

// ledger knows who has handled what.
type ledger struct {
	mu       sync.Mutex
	handled  map[place]int
	open     map[place]string
	last     map[int32]handling
	repeated int
	overlaps int
	kept     time.Duration
}

// handling is the last record of a partition: by whom, and when.
type handling struct {
	member string
	at     time.Time
}

func newLedger() *ledger {
	return &ledger{handled: make(map[place]int), open: make(map[place]string), last: make(map[int32]handling)}
}

// handler is one member's: it takes a moment for each record.
func (l *ledger) handler(member string) func(context.Context, *kafka.Record) error {
	return func(_ context.Context, r *kafka.Record) error {
		l.begin(member, r)
		defer l.end(r)
		time.Sleep(100 * time.Microsecond)
		return nil
	}
}

func (l *ledger) begin(member string, r *kafka.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := place{r.Partition, r.Offset}
	if other, busy := l.open[at]; busy && other != member {
		l.overlaps++
	}
	l.open[at] = member
	now := time.Now()
	if last, known := l.last[r.Partition]; known && last.member == member {
		l.kept = max(l.kept, now.Sub(last.at))
	}
	l.last[r.Partition] = handling{member, now}
}

func (l *ledger) end(r *kafka.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := place{r.Partition, r.Offset}
	delete(l.open, at)
	if l.handled[at]++; l.handled[at] > 1 {
		l.repeated++
	}
}

// wait waits until so many different records are handled.
func (l *ledger) wait(ctx context.Context, records int, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		l.mu.Lock()
		distinct := len(l.handled)
		l.mu.Unlock()
		if distinct >= records {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d records were handled: %w", distinct, records, context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (l *ledger) fill(r *result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Distinct, r.Repeated, r.Overlaps = len(l.handled), l.repeated, l.overlaps
	r.Lost = max(r.Produced-r.Distinct, 0)
	r.MaxKeptGap = l.kept.Milliseconds()
}
