package main

import (
	"fmt"
	"sync"
	"time"
)

// track is what the handlers of all members saw of one partition, in the order of their calls.
type track struct {
	// At is nanoseconds since the run began, Member who was called, Number the record's stamp.
	At     []int64 `json:"at"`
	Member []int   `json:"member"`
	Number []int64 `json:"number"`
}

// deliveries is what the members of a group saw while some came and went.
type deliveries struct {
	Tracks []track `json:"tracks"`
	// Marks are when each step began, in nanoseconds since the run began.
	Marks []int64 `json:"marks"`
}

// recorder writes deliveries down.
type recorder struct {
	began time.Time
	mu    sync.Mutex
	deliveries
	// open is how many partitions had no record yet; all is closed with the last one's first.
	open int
	all  chan struct{}
}

func newRecorder(partitions int32) *recorder {
	r := &recorder{began: time.Now(), open: int(partitions), all: make(chan struct{})}
	r.Tracks = make([]track, partitions)
	return r
}

// handler is one member's.
func (r *recorder) handler(member int) handleFunc {
	return func(partition int32, value []byte) {
		number, _ := readStamp(value)
		r.mu.Lock()
		defer r.mu.Unlock()
		t := &r.Tracks[partition]
		if len(t.At) == 0 {
			if r.open--; r.open == 0 {
				close(r.all)
			}
		}
		t.At = append(t.At, int64(time.Since(r.began)))
		t.Member = append(t.Member, member)
		t.Number = append(t.Number, int64(number))
	}
}

// mark says that a step begins.
func (r *recorder) mark() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Marks = append(r.Marks, int64(time.Since(r.began)))
}

// taken is what was seen so far. No handler may change it any more.
func (r *recorder) taken() *deliveries {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &deliveries{Marks: r.Marks, Tracks: make([]track, len(r.Tracks))}
	copy(out.Tracks, r.Tracks)
	return out
}

// gaps is what one step of the rebalance mode found. Times are milliseconds.
type gaps struct {
	Step string `json:"step"`
	// Kept is how many partitions stayed with their member, Moved how many did not.
	Kept  int `json:"kept"`
	Moved int `json:"moved"`
	// Quiet is the longest time between two deliveries of a partition that stays, in the span before the step, KeptGap that
	// in the span after it.
	Quiet   float64 `json:"quiet"`
	KeptGap float64 `json:"keptGap"`
	// MovedGap is the longest time from a partition's last delivery at one member to the first at the next.
	MovedGap float64 `json:"movedGap"`
	// Repeated is how many records came again after the step.
	Repeated int `json:"repeated"`
	// Restless is how many partitions changed their member in the span before the step, when nothing should have moved.
	Restless int `json:"restless"`
}

// measure answers the question of the rebalance mode for each step.
func (d *deliveries) measure(t task) (*result, error) {
	if len(d.Marks) != len(t.Steps) || len(d.Tracks) != int(t.Topic.Partitions) {
		return nil, fmt.Errorf("%d steps of %d and %d partitions of %d were seen", len(d.Marks), len(t.Steps), len(d.Tracks), t.Topic.Partitions)
	}
	r := &result{}
	for p := range d.Tracks {
		if err := d.Tracks[p].check(int64(p), int64(len(d.Tracks))); err != nil {
			return nil, err
		}
		r.Records += int64(len(d.Tracks[p].At))
	}
	for i, step := range t.Steps {
		r.Gaps = append(r.Gaps, d.step(step.String(), d.Marks[i], int64(t.Window)))
	}
	return r, nil
}

// check reports a record that nobody was given although a later one of its partition was. The records go to the
// partitions in turn, so that those of a partition are apart by the number of partitions.
func (t *track) check(partition, partitions int64) error {
	if len(t.At) != len(t.Member) || len(t.At) != len(t.Number) || len(t.At) == 0 {
		return fmt.Errorf("partition %d: %d deliveries, %d members, %d numbers", partition, len(t.At), len(t.Member), len(t.Number))
	}
	next := partition
	for i, number := range t.Number {
		switch {
		case number%partitions != partition:
			return fmt.Errorf("partition %d has record %d of another", partition, number)
		case number > next:
			return fmt.Errorf("partition %d: record %d came when %d had not: lost by member %d", partition, number, next, t.Member[i])
		case number == next:
			next += partitions
		}
	}
	return nil
}

// step looks at the span before a mark and the one after it.
func (d *deliveries) step(name string, mark, span int64) gaps {
	out := gaps{Step: name}
	const millisecond = float64(time.Millisecond)
	for i := range d.Tracks {
		t := &d.Tracks[i]
		quiet, after := t.within(mark-span, mark), t.within(mark, mark+span)
		if quiet.moved {
			out.Restless++
		}
		out.Repeated += after.repeated
		if after.moved {
			out.Moved++
			out.MovedGap = max(out.MovedGap, float64(after.handover)/millisecond)
			continue
		}
		out.Kept++
		out.Quiet = max(out.Quiet, float64(quiet.gap)/millisecond)
		out.KeptGap = max(out.KeptGap, float64(after.gap)/millisecond)
	}
	return out
}

// stretch is what a span of a track shows.
type stretch struct {
	moved         bool
	gap, handover int64
	repeated      int
}

// within looks at the time between from and to. A gap belongs to the span in which it ends; one that is open at the end
// of the span counts as far as it has come.
func (t *track) within(from, to int64) stretch {
	var s stretch
	highest, last := int64(-1), from
	for i, at := range t.At {
		if at > to {
			break
		}
		if at > from {
			s.gap = max(s.gap, at-last)
			if i > 0 && t.Member[i] != t.Member[i-1] {
				s.moved = true
				s.handover = max(s.handover, at-last)
			}
			if t.Number[i] <= highest {
				s.repeated++
			}
		}
		highest, last = max(highest, t.Number[i]), at
	}
	s.gap = max(s.gap, to-last)
	return s
}
