package main

import (
	"errors"
	"os"
	"runtime"
	"runtime/pprof"
	"time"
)

// otherHeap is the live heap that a process of a real service has beside its consumer.
var otherHeap []byte

// fillHeap makes the other live heap.
func fillHeap(bytes int64) {
	otherHeap = make([]byte, bytes)
	for i := 0; i < len(otherHeap); i += os.Getpagesize() {
		otherHeap[i] = 1
	}
}

// meter measures this process between two moments.
type meter struct {
	began   time.Time
	cpu     float64
	memory  runtime.MemStats
	profile *os.File
}

// startMeter begins to measure, with a CPU profile when the file is named.
func startMeter(profile string) (*meter, error) {
	m := &meter{}
	runtime.GC()
	runtime.ReadMemStats(&m.memory)
	if profile != "" {
		var err error
		if m.profile, err = os.Create(profile); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(m.profile); err != nil {
			return nil, err
		}
	}
	var err error
	m.cpu, _, err = usage()
	m.began = time.Now()
	return m, err
}

// first marks the moment of the first record.
func (m *meter) first(r *result) {
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	r.StartMallocs = now.Mallocs - m.memory.Mallocs
}

// stop ends the measurement and adds it to r. r.Seconds stays when it is set.
func (m *meter) stop(r *result) error {
	if r.Seconds == 0 {
		r.Seconds = time.Since(m.began).Seconds()
	}
	cpu, peak, err := usage()
	if err != nil {
		return err
	}
	r.CPUSeconds, r.PeakRSS, r.Goroutines = cpu-m.cpu, peak, runtime.NumGoroutine()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	r.Mallocs, r.AllocatedBytes = now.Mallocs-m.memory.Mallocs, now.TotalAlloc-m.memory.TotalAlloc
	r.Collections = now.NumGC - m.memory.NumGC
	runtime.KeepAlive(otherHeap)
	return m.stopProfile()
}

// stopProfile writes the CPU profile, and beside it, ending in .allocs, one of all that was allocated.
func (m *meter) stopProfile() error {
	if m.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	allocs, err := os.Create(m.profile.Name() + ".allocs")
	if err == nil {
		err = errors.Join(pprof.Lookup("allocs").WriteTo(allocs, 0), allocs.Close())
	}
	return errors.Join(err, m.profile.Close())
}
