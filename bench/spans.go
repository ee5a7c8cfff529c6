package main

import (
	"container/heap"
	"fmt"
	"slices"
)

// spans are when the records of one partition were handled, by offset. Times are nanoseconds since one moment.
type spans struct {
	Starts []int64 `json:"starts"`
	Ends   []int64 `json:"ends"`
	Keys   []int   `json:"keys"`
}

func newSpans(records int64) *spans {
	return &spans{Starts: make([]int64, records), Ends: make([]int64, records), Keys: make([]int, records)}
}

// first is when the first handler began.
func (s *spans) first() int64 { return slices.Min(s.Starts) }

// elapsed is the time from the first handler's start to the last one's end, in nanoseconds.
func (s *spans) elapsed() int64 { return slices.Max(s.Ends) - s.first() }

// class is what orders a record: records of one class must not overlap.
func (s *spans) class(order string, offset int) int {
	switch order {
	case orderPartition:
		return 0
	case orderNone:
		return offset
	}
	return s.Keys[offset]
}

// ideal is the least time, in nanoseconds, that these handler calls need whoever plans them: the busiest class one call
// after the other, or all calls spread evenly over the workers, whichever is longer.
func (s *spans) ideal(order string, workers int) int64 {
	busy := make(map[int]int64)
	total, busiest := int64(0), int64(0)
	for i := range s.Starts {
		took := s.Ends[i] - s.Starts[i]
		total += took
		class := s.class(order, i)
		busy[class] += took
		busiest = max(busiest, busy[class])
	}
	return max(busiest, total/int64(workers))
}

// check reports the first pair of records of one class that were handled in the wrong order or at the same time.
func (s *spans) check(order string) error {
	last := make(map[int]int)
	for i := range s.Starts {
		class := s.class(order, i)
		if before, ok := last[class]; ok && s.Starts[i] < s.Ends[before] {
			return fmt.Errorf("offset %d began %d ns before offset %d of the same order ended", i, s.Ends[before]-s.Starts[i], before)
		}
		last[class] = i
	}
	return nil
}

// inOrder is the time, in nanoseconds, that these handler calls take when planning costs nothing and a free worker always
// takes the lowest offset whose class is free. It is what can be had without looking ahead; the ideal may be out of reach.
func (s *spans) inOrder(order string, workers int) int64 {
	waiting := make(map[int][]int) // by class, offsets behind the head
	var ready, running events
	for i := range s.Starts {
		class := s.class(order, i)
		queue, known := waiting[class]
		if !known {
			heap.Push(&ready, event{int64(i), i})
			queue = []int{}
		} else {
			queue = append(queue, i)
		}
		waiting[class] = queue
	}
	now := int64(0)
	for len(ready)+len(running) > 0 {
		for len(ready) > 0 && len(running) < workers {
			next := heap.Pop(&ready).(event).offset
			heap.Push(&running, event{now + s.Ends[next] - s.Starts[next], next})
		}
		done := heap.Pop(&running).(event)
		now = done.at
		class := s.class(order, done.offset)
		if queue := waiting[class]; len(queue) > 0 {
			heap.Push(&ready, event{int64(queue[0]), queue[0]})
			waiting[class] = queue[1:]
		}
	}
	return now
}

// event is a record and what sorts it.
type event struct {
	at     int64
	offset int
}

// events is a heap, the lowest first.
type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }

// Push is heap.Interface's.
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop is heap.Interface's.
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// summarize fills in what the key order mode asks for.
func (s *spans) summarize(order string, workers int, committed int64, r *result) error {
	if slices.Min(s.Ends) == 0 {
		return fmt.Errorf("a record was not handled")
	}
	if err := s.check(order); err != nil {
		return err
	}
	seconds := func(nanoseconds int64) float64 { return float64(nanoseconds) / 1e9 }
	r.Records = int64(len(s.Starts))
	r.Seconds, r.Ideal = seconds(s.elapsed()), seconds(s.ideal(order, workers))
	r.InOrder, r.Committed = seconds(s.inOrder(order, workers)), seconds(committed)
	return nil
}
