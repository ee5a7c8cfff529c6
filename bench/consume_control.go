package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// control is a control call that is made again and again. It is told how often it was made before, so that what one call does
// the next can undo.
type control struct {
	name string
	call func(ctx context.Context, number int) error
}

// callTimes is how long a control call takes: microseconds from the call to its return.
type callTimes struct {
	Call string  `json:"call"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// warmUp is the part of the calls that is made before any is timed.
const warmUp = 10

// consumeControl times the control calls of a consumer that has read everything.
func consumeControl(ctx context.Context, t task) (*result, error) {
	counted := newTally(t.Ends, func() {})
	consumer, err := start(ctx, t, counted.add)
	if err != nil {
		return nil, err
	}
	if err := consumer.wait(counted.done); err != nil {
		return nil, err
	}
	if err := consumer.rest(t.Rest); err != nil {
		return nil, err
	}
	m, err := startMeter(t.Profile)
	if err != nil {
		return nil, err
	}
	r := &result{}
	for _, c := range consumer.controls {
		times, err := c.times(ctx, t.Count)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		r.Calls = append(r.Calls, times)
	}
	if err := m.stop(r); err != nil {
		return nil, err
	}
	if err := consumer.stop(); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	return r, counted.sum(r)
}

// times makes a call so often and says how long it took.
func (c control) times(ctx context.Context, calls int) (callTimes, error) {
	took := make([]time.Duration, 0, calls)
	for number := range calls + calls/warmUp {
		began := time.Now()
		err := c.call(ctx, number)
		lasted := time.Since(began)
		if err != nil {
			return callTimes{}, err
		}
		if number >= calls/warmUp {
			took = append(took, lasted)
		}
	}
	slices.Sort(took)
	at := func(percent int) float64 { return float64(took[(len(took)-1)*percent/100].Nanoseconds()) / 1000 }
	return callTimes{Call: c.name, P50: at(50), P99: at(99), Max: at(100)}, nil
}
