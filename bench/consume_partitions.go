package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// consumePartitions is a lone member of a topic with many partitions: how soon it has a record of one and of all of them,
// what it asks the brokers for that, and how long it takes to give all of them back.
func consumePartitions(ctx context.Context, t task) (*result, error) {
	r := &result{}
	t.requests = newRequests()
	seen := make([]atomic.Bool, len(t.Ends))
	var open atomic.Int64
	open.Store(int64(len(t.Ends)))
	var every atomic.Int64
	m, err := startMeter(t.Profile)
	if err != nil {
		return nil, err
	}
	counted := newTally(t.Ends, func() { r.First = time.Since(m.began).Seconds() })
	consumer, err := start(ctx, t, func(partition int32, value []byte) {
		if !seen[partition].Swap(true) && open.Add(-1) == 0 {
			every.Store(int64(time.Since(m.began)))
		}
		counted.add(partition, value)
	})
	if err != nil {
		return nil, err
	}
	if err := consumer.wait(counted.done); err != nil {
		return nil, err
	}
	r.Seconds = time.Since(m.began).Seconds()
	r.Every = time.Duration(every.Load()).Seconds()
	r.OffsetFetches, r.ListOffsets = t.requests.most(apiOffsetFetch), t.requests.most(apiListOffsets)
	stopping := time.Now()
	if err := consumer.stop(); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	r.Stop = time.Since(stopping).Seconds()
	if err := m.stop(r); err != nil {
		return nil, err
	}
	return r, counted.sum(r)
}
