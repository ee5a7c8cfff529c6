package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// consume is a consumer's process: it answers the task's question about the task's consumer.
func consume(ctx context.Context, t task) (*result, error) {
	fillHeap(t.Heap)
	switch t.Mode {
	case modeThroughput:
		return consumeAll(ctx, t)
	case modeLatency:
		return consumeStamped(ctx, t)
	case modeSlow:
		return consumeBesideSlow(ctx, t)
	case modeIdle:
		return consumeIdle(ctx, t)
	case modeKeyOrder:
		return consumeSpans(ctx, t)
	case modeNoop:
		return consumeCounted(ctx, t)
	case modeMemory:
		return consumeBlocked(ctx, t)
	case modeRebalance:
		return consumeRebalance(ctx, t)
	case modePartitions:
		return consumePartitions(ctx, t)
	case modeControl:
		return consumeControl(ctx, t)
	}
	return nil, fmt.Errorf("unknown mode %q", t.Mode)
}

// counter counts one partition; it fills a cache line, and is written by one goroutine at a time.
type counter struct {
	records, bytes, want int64
	_                    [40]byte
}

// tally knows when every partition is read to its end.
type tally struct {
	counters []counter
	open     atomic.Int32
	done     chan struct{}
	// first is called with the first record.
	first func()
	once  sync.Once
}

func newTally(ends []int64, first func()) *tally {
	c := &tally{counters: make([]counter, len(ends)), done: make(chan struct{}), first: first}
	for p, end := range ends {
		if c.counters[p].want = end; end > 0 {
			c.open.Add(1)
		}
	}
	return c
}

func (c *tally) add(partition int32, value []byte) {
	p := &c.counters[partition]
	if p.records++; p.records == 1 {
		c.once.Do(c.first)
	}
	p.bytes += int64(len(value))
	if p.records == p.want && c.open.Add(-1) == 0 {
		close(c.done)
	}
}

// sum adds the partitions up, when no handler runs any more, and checks that none was read twice.
func (c *tally) sum(r *result) error {
	for p := range c.counters {
		n := &c.counters[p]
		if n.records != n.want {
			return fmt.Errorf("%d records of partition %d handled, it has %d", n.records, p, n.want)
		}
		r.Records += n.records
		r.Bytes += n.bytes
	}
	return nil
}

// wait waits until done is closed, or returns why the consumer failed.
func (r *running) wait(done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case err := <-r.failed:
		return err
	}
}

// consumeAll reads the whole topic, commits and leaves.
func consumeAll(ctx context.Context, t task) (*result, error) {
	m, err := startMeter(t.Profile)
	if err != nil {
		return nil, err
	}
	r := &result{}
	counted := newTally(t.Ends, func() { m.first(r) })
	consumer, err := start(ctx, t, counted.add)
	if err != nil {
		return nil, err
	}
	if err := consumer.wait(counted.done); err != nil {
		return nil, err
	}
	r.Seconds = time.Since(m.began).Seconds()
	if err := consumer.stop(); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	if err := m.stop(r); err != nil {
		return nil, err
	}
	return r, counted.sum(r)
}

// consumeStamped measures from a record's stamp to its handler.
func consumeStamped(ctx context.Context, t task) (*result, error) {
	var mu sync.Mutex
	var took []int64 // microseconds
	done := make(chan struct{})
	consumer, err := start(ctx, t, func(_ int32, value []byte) {
		now := time.Now().UnixMicro()
		number, at := readStamp(value)
		mu.Lock()
		defer mu.Unlock()
		if number < t.Warmup {
			return
		}
		if took = append(took, now-at); len(took) == t.Count {
			close(done)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := consumer.wait(done); err != nil {
		return nil, err
	}
	if err := consumer.stop(); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	slices.Sort(took)
	at := func(percent int) float64 { return float64(took[(len(took)-1)*percent/100]) / 1000 }
	return &result{Records: int64(len(took)), P50: at(50), P90: at(90), P99: at(99), Max: at(100)}, nil
}

// consumeBesideSlow measures the rate of all partitions but the first, whose handler sleeps. It ends with the others'
// last record or with the window; what is left then is given up with the process.
func consumeBesideSlow(ctx context.Context, t task) (*result, error) {
	type padded struct {
		records atomic.Int64
		_       [56]byte
	}
	counts := make([]padded, len(t.Ends))
	first := make(chan struct{})
	var once sync.Once
	consumer, err := start(ctx, t, func(partition int32, _ []byte) {
		if counts[partition].records.Load() == 0 {
			once.Do(func() { close(first) })
		}
		if partition == 0 && t.Sleep > 0 {
			time.Sleep(t.Sleep)
		}
		counts[partition].records.Add(1)
	})
	if err != nil {
		return nil, err
	}
	if err := consumer.wait(first); err != nil {
		return nil, err
	}
	look := func() (others, slow int64, at time.Time) {
		for p := range counts[1:] {
			others += counts[p+1].records.Load()
		}
		return others, counts[0].records.Load(), time.Now()
	}
	all := int64(0)
	for _, end := range t.Ends[1:] {
		all += end
	}
	time.Sleep(t.Rest)
	others, slow, began := look()
	if others == all {
		return nil, fmt.Errorf("%d records are too few: all were handled in %v", all, t.Rest)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-consumer.failed:
			return nil, err
		case <-tick.C:
		}
		o, s, now := look()
		if seconds := now.Sub(began).Seconds(); o == all || seconds >= t.Window.Seconds() {
			return &result{Seconds: seconds, Others: float64(o-others) / seconds, Slow: float64(s-slow) / seconds}, nil
		}
	}
}

// consumeIdle measures a consumer that has read everything. It begins when a record of every partition was handled, so
// that all are known to be assigned and fetched.
func consumeIdle(ctx context.Context, t task) (*result, error) {
	counted := newTally(t.Ends, func() {})
	began := time.Now()
	consumer, err := start(ctx, t, counted.add)
	if err != nil {
		return nil, err
	}
	if err := consumer.wait(counted.done); err != nil {
		return nil, err
	}
	progress("%s had a record of each of %d partitions after %.1f s", t.Consumer, len(t.Ends), time.Since(began).Seconds())
	time.Sleep(t.Rest)
	m, err := startMeter(t.Profile)
	if err != nil {
		return nil, err
	}
	select {
	case err := <-consumer.failed:
		return nil, err
	case <-time.After(t.Window):
	}
	r := &result{Goroutines: runtime.NumGoroutine()}
	if err := m.stop(r); err != nil {
		return nil, err
	}
	if err := consumer.stop(); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	return r, counted.sum(r)
}
