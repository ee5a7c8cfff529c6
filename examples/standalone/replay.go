package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// stallLimit is how long a consumer may take before the run gives up.
const stallLimit = time.Minute

// replay is what was replayed of a partition, and how far it is. A service would keep both in one database and change them in one
// transaction; then not even a crash repeats anything.
type replay struct {
	partition  kafka.TopicPartition
	since      time.Time
	first, end int64

	mu sync.Mutex
	// next is the offset to go on at, kafka.NoOffset before anything was replayed.
	next  int64
	seen  map[int64]int
	early int
	// changed is closed and replaced when something was replayed.
	changed chan struct{}
}

func newReplay(partition kafka.TopicPartition, since time.Time, first, end int64) *replay {
	return &replay{
		partition: partition, since: since, first: first, end: end, next: kafka.NoOffset, seen: make(map[int64]int), changed: make(chan struct{}),
	}
}

// consume replays on until an offset at least, with a consumer of its own.
func (r *replay) consume(ctx context.Context, brokers []string, until int64) error {
	consumer, err := api.Spawn(ctx, api.Config{Brokers: brokers, ClientID: "standalone"}, // no group
		api.Handle(r.partition.Topic, r.handle),
		api.Assign(api.Assignment{Partition: r.partition, Start: rebalance.StartBy(rebalance.ResetAt(r.since.UnixMilli()))}),
		// What is stored wins over the start that is assigned.
		api.WithPositions(r.stored),
	)
	if err != nil {
		return err
	}
	err = r.wait(ctx, until, consumer.Done())
	return errors.Join(err, consumer.Close(context.WithoutCancel(ctx)), consumer.Err())
}

// handle replays one event.
func (r *replay) handle(_ context.Context, record *kafka.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if record.TimestampMillis < r.since.UnixMilli() {
		r.early++
	}
	r.seen[record.Offset]++
	r.next = record.Offset + 1
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// stored says where to go on.
func (r *replay) stored(context.Context, []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	if next := r.position(); next != kafka.NoOffset {
		return map[kafka.TopicPartition]int64{r.partition: next}, nil
	}
	return nil, nil
}

func (r *replay) position() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// wait waits until the replay has reached an offset.
func (r *replay) wait(ctx context.Context, until int64, ended <-chan struct{}) error {
	timer := time.NewTimer(stallLimit)
	defer timer.Stop()
	for {
		r.mu.Lock()
		reached, changed := max(r.next, r.first) >= until, r.changed
		r.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-changed:
		case <-ended:
			return errors.New("the consumer has ended by itself")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return fmt.Errorf("offset %d was not reached within %v", until, stallLimit)
		}
	}
}

// result counts.
func (r *replay) result() *result {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &result{Wanted: r.end - r.first, Early: r.early}
	for offset := r.first; offset < r.end; offset++ {
		switch n := r.seen[offset]; {
		case n == 0:
			out.Lost++
		case n > 1:
			out.Repeated++
			fallthrough
		default:
			out.Replayed++
		}
	}
	return out
}
