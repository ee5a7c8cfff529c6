package commit

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// twin is the tracker done naively: a map and a sorted slice, nothing forgotten.
type twin struct {
	start, position int64
	offsets         []int64
	acked           map[int64]bool
	epochs          map[int64]int32
	finished        int // offsets[:finished] are finished
}

func (w *twin) committable() int64 {
	for w.finished < len(w.offsets) && w.acked[w.offsets[w.finished]] {
		w.finished++
	}
	if w.finished == len(w.offsets) {
		return w.position
	}
	return w.offsets[w.finished]
}

func (w *twin) ack(offset int64) Verdict {
	if offset < w.committable() && offset >= w.start {
		return AlreadyAcked
	}
	acked, delivered := w.acked[offset]
	switch {
	case !delivered:
		return NotDelivered
	case acked:
		return AlreadyAcked
	}
	w.acked[offset] = true
	return Acked
}

func (w *twin) look(offset int64) Standing {
	acked, delivered := w.acked[offset]
	switch {
	case offset < w.start:
		return StandsBefore
	case offset >= w.position:
		return StandsAhead
	case acked || offset < w.committable():
		return StandsFinished
	case delivered:
		return StandsOpen
	}
	return StandsNowhere
}

// choices is where a history's decisions come from: a random source or a fuzzer's bytes.
type choices interface{ pick(n int) int }

type randomChoices struct{ *rand.Rand }

func (r randomChoices) pick(n int) int { return r.IntN(n) }

type byteChoices struct{ rest []byte }

func (b *byteChoices) pick(n int) int {
	if len(b.rest) == 0 {
		return 0
	}
	v := int(b.rest[0])
	b.rest = b.rest[1:]
	if n > 256 && len(b.rest) > 0 {
		v = v<<8 | int(b.rest[0])
		b.rest = b.rest[1:]
	}
	return v % n
}

// trackerHistory runs one random history on tracker and twin and returns the number of operations done.
func trackerHistory(c choices, steps int) (operations int, err error) {
	start := int64(c.pick(200))
	tracker := NewTracker(start)
	naive := &twin{start: start, position: start, acked: map[int64]bool{}, epochs: map[int64]int32{}}
	epoch := int32(0)
	sparse := c.pick(4)
	records := make([]kafka.Record, 0, 100)
	for range steps {
		before := tracker.Committable()
		switch c.pick(8) {
		case 0:
			if tracker.InTransit() > 400 {
				continue
			}
			records = records[:0]
			next := naive.position
			for range c.pick(100) {
				switch sparse {
				case 1:
					next += int64(c.pick(3))
				case 2:
					next += int64(c.pick(300))
				case 3:
					next++
				}
				if c.pick(50) == 0 {
					epoch++
				}
				records = append(records, kafka.Record{Offset: next, LeaderEpoch: epoch})
				naive.offsets = append(naive.offsets, next)
				naive.acked[next], naive.epochs[next] = false, epoch
				next++
			}
			naive.position = next
			if err := tracker.Deliver(records); err != nil {
				return operations, err
			}
			operations += len(records)
		case 1:
			step := int64(c.pick(5))
			if c.pick(2) == 0 {
				tracker.Advance(naive.position + step)
			} else if got := tracker.DropBelow(naive.position + step); got != step {
				return operations, fmt.Errorf("skipped %d, want %d", got, step)
			}
			naive.position += step
		case 2:
			upTo := naive.committable() + int64(c.pick(60)) - 5
			want := 0
			for _, offset := range naive.offsets[naive.finished:] {
				if offset <= upTo && !naive.acked[offset] {
					naive.acked[offset] = true
					want++
				}
			}
			if got := tracker.AckUpTo(upTo); got != want {
				return operations, fmt.Errorf("ack up to %d: %d, want %d", upTo, got, want)
			}
			operations += want
		default:
			for range c.pick(40) {
				var offset int64
				if open := naive.offsets[naive.finished:]; len(open) > 0 && c.pick(10) > 0 {
					offset = open[c.pick(len(open))]
				} else {
					offset = naive.committable() + int64(c.pick(200)) - 100
				}
				if got, want := tracker.Look(offset), naive.look(offset); got != want {
					return operations, fmt.Errorf("%d stands %d, want %d", offset, got, want)
				}
				if got, want := tracker.Ack(offset), naive.ack(offset); got != want {
					return operations, fmt.Errorf("ack %d: %s, want %s", offset, got, want)
				}
				naive.committable()
				operations++
			}
		}
		operations++
		if err := compare(tracker, naive); err != nil {
			return operations, err
		}
		if tracker.Committable() < before {
			return operations, fmt.Errorf("committable fell from %d to %d", before, tracker.Committable())
		}
	}
	return operations, nil
}

func compare(tracker *Tracker, naive *twin) error {
	if err := tracker.Valid(); err != nil {
		return err
	}
	committable := naive.committable()
	open := naive.offsets[naive.finished:]
	var unacked []int64
	for _, offset := range open {
		if !naive.acked[offset] {
			unacked = append(unacked, offset)
		}
	}
	epoch := kafka.NoLeaderEpoch
	if naive.finished > 0 {
		epoch = naive.epochs[naive.offsets[naive.finished-1]]
	}
	if tracker.Committable() != committable || tracker.CommittableEpoch() != epoch ||
		tracker.FinishedBeyond() != len(open)-len(unacked) || tracker.Finished() != uint64(naive.finished) ||
		tracker.InTransit() != len(open) || tracker.Unacked() != len(unacked) || tracker.Position() != naive.position {
		return fmt.Errorf("tracker %d@%d transit %d unacked %d position %d; twin %d@%d %d %d %d",
			tracker.Committable(), tracker.CommittableEpoch(), tracker.InTransit(), tracker.Unacked(), tracker.Position(),
			committable, epoch, len(open), len(unacked), naive.position)
	}
	if err := compareMap(tracker, naive, open); err != nil {
		return err
	}
	visited := 0
	for offset, ok := tracker.NextUnacked(naive.start); ok; offset, ok = tracker.NextUnacked(offset + 1) {
		if visited >= len(unacked) || unacked[visited] != offset {
			return fmt.Errorf("visited %d, the twin has %v", offset, unacked)
		}
		visited++
	}
	if visited != len(unacked) {
		return fmt.Errorf("visited %d of %d un-acked records", visited, len(unacked))
	}
	return nil
}

// compareMap checks that the map has each acknowledged record in transit, no other one, and runs that are as long as can be.
func compareMap(tracker *Tracker, naive *twin, open []int64) error {
	m := tracker.Map()
	epoch, runs := kafka.NoLeaderEpoch, 0
	for _, offset := range open {
		if !naive.acked[offset] {
			continue
		}
		epoch = naive.epochs[offset]
		if !naive.acked[offset-1] || offset-1 < open[0] {
			runs++ // a hole ends a run as well
		}
	}
	if m.LeaderEpoch() != epoch || m.Runs() != runs || m.Empty() != (runs == 0) {
		return fmt.Errorf("map of %d runs and epoch %d, want %d and %d", m.Runs(), m.LeaderEpoch(), runs, epoch)
	}
	for offset := tracker.Committable(); offset < naive.position; offset++ {
		if got := m.Finished(offset, epoch); got != naive.acked[offset] {
			return fmt.Errorf("map: %d finished is %t", offset, got)
		}
	}
	return nil
}

func TestTrackerAgreesWithItsNaiveTwin(t *testing.T) {
	operations, seed := 0, uint64(0)
	for ; operations < 1_000_000; seed++ {
		n, err := trackerHistory(randomChoices{rand.New(rand.NewPCG(seed, 1))}, 200)
		if err != nil {
			t.Fatalf("seed %d after %d operations: %v", seed, n, err)
		}
		operations += n
	}
	t.Logf("%d operations in %d histories", operations, seed)
}

func FuzzTracker(f *testing.F) {
	f.Add([]byte{0, 1, 0, 50, 3, 20, 2, 30, 1, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := trackerHistory(&byteChoices{data}, min(len(data), 300)); err != nil {
			t.Fatal(err)
		}
	})
}
