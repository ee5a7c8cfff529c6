package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// ownership is one partition in one assignment epoch. What a new epoch delivers again is no fault.
type ownership struct {
	partition int32
	epoch     kafka.AssignmentEpoch
}

// shelf is what is known of one ownership.
type shelf struct {
	// open are the offsets that the store has, highest the last one that came for the first time.
	open    map[int64]bool
	highest int64
	// given are the offsets that came, from the first one not acknowledged on; done are the acknowledged ones among them.
	given []int64
	done  map[int64]bool
}

// counts is what the books have seen of this run.
type counts struct {
	// processed counts clicks that were written, repeated ones included, distinct those written at least once.
	processed, distinct int
	// violations counts clicks given to the handler while it had them, or out of order; retries those that came again because
	// they were refused; early those acknowledged before an earlier one of their partition; groups what the store wrote.
	violations, retries, early, groups int
}

// books is what is written down about clicks, by the goroutines of the store.
type books struct {
	settings

	mu      sync.Mutex
	shelves map[ownership]*shelf
	wrote   []bool
	refused map[int]bool
	counts  counts
	// changed is closed and replaced when a click was written.
	changed chan struct{}
}

func newBooks(s settings) *books {
	return &books{
		settings: s, shelves: make(map[ownership]*shelf), wrote: make([]bool, s.records), refused: make(map[int]bool),
		changed: make(chan struct{}),
	}
}

func (b *books) shelf(d *actors.RecordDelivery) *shelf {
	of := ownership{d.TopicPartition().Partition, d.Epoch()}
	s := b.shelves[of]
	if s == nil {
		s = &shelf{open: make(map[int64]bool), highest: kafka.NoOffset, done: make(map[int64]bool)}
		b.shelves[of] = s
	}
	return s
}

// given notes that the handler was given a click. In both orders new clicks of a partition come by their offsets, since
// one goroutine at a time calls the handler; which of them are acknowledged by then is what differs.
func (b *books) given(d *actors.RecordDelivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, offset := b.shelf(d), d.Offset()
	if s.open[offset] {
		b.counts.violations++ // the handler has it already
	}
	s.open[offset] = true
	switch {
	case d.Attempt() > 1:
	case offset > s.highest:
		s.highest, s.given = offset, append(s.given, offset)
	default:
		b.counts.violations++
	}
}

// written counts a group.
func (b *books) written() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.groups++
}

// answers notes what the store is about to say of a click; number is -1 for one of another run.
func (b *books) answers(d *actors.RecordDelivery, number int, refuses bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, offset := b.shelf(d), d.Offset()
	delete(s.open, offset)
	if refuses {
		b.refused[number] = true
		return
	}
	s.done[offset] = true
	if len(s.given) > 0 && s.given[0] != offset && number >= 0 {
		b.counts.early++
	}
	for len(s.given) > 0 && s.done[s.given[0]] {
		delete(s.done, s.given[0])
		s.given = s.given[1:]
	}
	if number < 0 {
		return
	}
	b.counts.processed++
	if b.wrote[number] {
		return
	}
	if b.refused[number] {
		b.counts.retries++
	}
	b.wrote[number] = true
	b.counts.distinct++
	close(b.changed)
	b.changed = make(chan struct{})
}

// seen returns the counters.
func (b *books) seen() counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counts
}

// wait returns when all clicks are written. It gives up when ctx or the consumer ends, or nothing was written for stall.
func (b *books) wait(ctx context.Context, clicks int, ended <-chan struct{}, stall time.Duration) error {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	for {
		b.mu.Lock()
		distinct, changed := b.counts.distinct, b.changed
		b.mu.Unlock()
		if distinct >= clicks {
			return nil
		}
		select {
		case <-changed:
			timer.Reset(stall)
		case <-ended:
			return errors.New("the consumer ended before the clicks did")
		case <-timer.C:
			return fmt.Errorf("%d of %d clicks are written, and none more for %v", distinct, clicks, stall)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
