package main

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// consumeBlocked measures the memory of a consumer whose handlers never return, when it has fetched all that it will. It
// is given up with the process.
func consumeBlocked(ctx context.Context, t task) (*result, error) {
	live := liveHeap()
	_, peak, err := usage()
	if err != nil {
		return nil, err
	}
	var blocked atomic.Int64
	forever := make(chan struct{})
	consumer, err := start(ctx, t, func(int32, []byte) {
		blocked.Add(1)
		<-forever
	})
	if err != nil {
		return nil, err
	}
	select {
	case err := <-consumer.failed:
		return nil, err
	case <-time.After(t.Rest):
	}
	r := &result{Handlers: blocked.Load(), Goroutines: runtime.NumGoroutine()}
	_, after, err := usage()
	if err != nil {
		return nil, err
	}
	grown := liveHeap()
	runtime.KeepAlive(consumer)
	runtime.KeepAlive(otherHeap)
	r.LiveGrowth, r.PeakGrowth, r.PeakRSS = grown-live, after-peak, after
	return r, nil
}

// liveHeap is the bytes of reachable objects.
func liveHeap() int64 {
	// The second collection frees what finalizers and pools held on to in the first.
	runtime.GC()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int64(memory.HeapAlloc)
}
