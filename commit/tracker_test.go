package commit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// run makes records of those offsets.
func run(epoch int32, offsets ...int64) []kafka.Record {
	records := make([]kafka.Record, len(offsets))
	for i, offset := range offsets {
		records[i] = kafka.Record{Offset: offset, LeaderEpoch: epoch}
	}
	return records
}

func deliver(t *testing.T, tracker *Tracker, epoch int32, offsets ...int64) {
	t.Helper()
	if err := tracker.Deliver(run(epoch, offsets...)); err != nil {
		t.Fatal(err)
	}
}

func expectCommittable(t *testing.T, tracker *Tracker, offset int64, epoch int32) {
	t.Helper()
	if got := tracker.Committable(); got != offset {
		t.Fatalf("committable %d, want %d", got, offset)
	}
	if got := tracker.CommittableEpoch(); got != epoch {
		t.Fatalf("committable epoch %d, want %d", got, epoch)
	}
	if err := tracker.Valid(); err != nil {
		t.Fatal(err)
	}
}

func TestTrackerNeverPassesAnUnackedRecord(t *testing.T) {
	tracker := NewTracker(1)
	deliver(t, tracker, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	for _, offset := range []int64{10, 9, 8, 7, 6, 5, 3, 2, 1} {
		if got := tracker.Ack(offset); got != Acked {
			t.Fatalf("ack %d: %s", offset, got)
		}
	}
	expectCommittable(t, tracker, 4, 3)
	if tracker.InTransit() != 7 || tracker.Unacked() != 1 {
		t.Fatalf("in transit %d, un-acked %d", tracker.InTransit(), tracker.Unacked())
	}
	tracker.Ack(4)
	expectCommittable(t, tracker, 11, 3)
}

func TestTrackerContiguityIsOverDeliveredOffsets(t *testing.T) {
	tracker := NewTracker(0)
	deliver(t, tracker, 1, 5, 9, 1000, 100000)
	expectCommittable(t, tracker, 5, kafka.NoLeaderEpoch)
	tracker.Ack(5)
	expectCommittable(t, tracker, 9, 1)
	tracker.Ack(1000)
	expectCommittable(t, tracker, 9, 1)
	tracker.Ack(9)
	expectCommittable(t, tracker, 100000, 1)
	for _, hole := range []int64{100001, 100063, 1 << 40} {
		if got := tracker.Ack(hole); got != NotDelivered {
			t.Fatalf("ack of %d: %s", hole, got)
		}
	}
}

func TestTrackerAckVerdicts(t *testing.T) {
	tracker := NewTracker(10)
	deliver(t, tracker, 1, 10, 11, 12)
	steps := []struct {
		offset int64
		want   Verdict
	}{
		{9, NotDelivered}, {13, NotDelivered}, {-1, NotDelivered},
		{11, Acked}, {11, AlreadyAcked}, {10, Acked}, {10, AlreadyAcked}, {11, AlreadyAcked}, {12, Acked}, {12, AlreadyAcked},
	}
	for _, step := range steps {
		if got := tracker.Ack(step.offset); got != step.want {
			t.Fatalf("ack %d: %s, want %s", step.offset, got, step.want)
		}
	}
}

func TestTrackerAckUpToIsInclusiveAndCountsNewOnes(t *testing.T) {
	tracker := NewTracker(0)
	deliver(t, tracker, 1, 60, 62, 63, 64, 65, 200)
	tracker.Ack(63)
	if got := tracker.AckUpTo(59); got != 0 {
		t.Fatalf("below the first: %d", got)
	}
	if got := tracker.AckUpTo(64); got != 3 {
		t.Fatalf("newly acked %d, want 3", got)
	}
	expectCommittable(t, tracker, 65, 1)
	if got := tracker.AckUpTo(1 << 50); got != 2 {
		t.Fatalf("newly acked %d, want 2", got)
	}
	expectCommittable(t, tracker, 201, 1)
}

func TestTrackerCommitsTheEpochOfTheLastFinishedRecord(t *testing.T) {
	tracker := NewTracker(0)
	deliver(t, tracker, 4, 0, 1)
	deliver(t, tracker, 6, 2, 3)
	deliver(t, tracker, 9, 70)
	expectCommittable(t, tracker, 0, kafka.NoLeaderEpoch)
	tracker.Ack(0)
	expectCommittable(t, tracker, 1, 4)
	tracker.Ack(2)
	expectCommittable(t, tracker, 1, 4)
	tracker.Ack(1)
	expectCommittable(t, tracker, 3, 6)
	tracker.Ack(3)
	expectCommittable(t, tracker, 70, 6)
	tracker.Ack(70)
	tracker.Advance(75)
	expectCommittable(t, tracker, 75, 9)
}

func TestB03TrailingMarkersAreCommittedOnceNothingIsInTransit(t *testing.T) {
	// Three one-record transactions: records 0, 2, 4 and markers 1, 3, 5.
	tracker := NewTracker(0)
	deliver(t, tracker, 0, 0, 2, 4)
	tracker.Advance(6)
	tracker.Ack(0)
	tracker.Ack(4)
	expectCommittable(t, tracker, 2, 0)
	tracker.Ack(2)
	expectCommittable(t, tracker, 6, 0)
	tracker.Advance(3)
	expectCommittable(t, tracker, 6, 0)
}

func TestB04DropBelowPassesOverWhatWasNeverDelivered(t *testing.T) {
	tracker := NewTracker(10)
	if got := tracker.DropBelow(60); got != 50 {
		t.Fatalf("skipped %d, want 50", got)
	}
	expectCommittable(t, tracker, 60, kafka.NoLeaderEpoch)
	deliver(t, tracker, 0, 60, 61)
	if got := tracker.DropBelow(100); got != 38 {
		t.Fatalf("skipped %d, want 38", got)
	}
	expectCommittable(t, tracker, 60, kafka.NoLeaderEpoch)
	tracker.AckUpTo(61)
	expectCommittable(t, tracker, 100, 0)
	if got := tracker.DropBelow(100); got != 0 {
		t.Fatalf("skipped %d, want 0", got)
	}
}

func TestTrackerRefusesRecordsThatDoNotAscend(t *testing.T) {
	tracker := NewTracker(5)
	for _, offsets := range [][]int64{{4}, {5, 5}, {7, 6}, {5, 1<<63 - 1}} {
		if err := tracker.Deliver(run(0, offsets...)); !errors.Is(err, ErrBadDelivery) {
			t.Fatalf("%v: %v", offsets, err)
		}
	}
	if tracker.InTransit() != 0 || tracker.Position() != 5 {
		t.Fatal("a refused delivery left something behind")
	}
}

func TestTrackerVisitsUnackedRecordsInOrder(t *testing.T) {
	tracker := NewTracker(0)
	deliver(t, tracker, 0, 1, 2, 63, 64, 500, 501)
	tracker.Ack(2)
	tracker.Ack(500)
	var got []int64
	for offset, ok := tracker.NextUnacked(0); ok; offset, ok = tracker.NextUnacked(offset + 1) {
		got = append(got, offset)
	}
	if want := []int64{1, 63, 64, 501}; !slices.Equal(got, want) {
		t.Fatalf("visited %v, want %v", got, want)
	}
}

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

func TestTrackerDoesNotAllocateInSteadyState(t *testing.T) {
	tracker := NewTracker(0)
	records := make([]kafka.Record, 500)
	cycle := func() {
		position := tracker.Position()
		for i := range records {
			records[i].Offset = position + int64(i)
			records[i].LeaderEpoch = int32(position / 5000)
		}
		if err := tracker.Deliver(records); err != nil {
			t.Fatal(err)
		}
		for i := len(records) - 1; i >= 0; i-- {
			tracker.Ack(position + int64(i))
		}
	}
	cycle()
	if got := testing.AllocsPerRun(100, cycle); got != 0 {
		t.Fatalf("%v allocations per cycle", got)
	}
}

func BenchmarkTrackerAck(b *testing.B) {
	const window = 10_000
	records := make([]kafka.Record, window)
	shapes := []struct {
		name    string
		stride  int64
		shuffle bool
	}{
		{name: "InOrder", stride: 1},
		{name: "RandomInWindow", stride: 1, shuffle: true},
		{name: "InOrderEverySecondOffset", stride: 2},
		{name: "RandomOneRecordPerWord", stride: 100, shuffle: true},
	}
	for _, shape := range shapes {
		b.Run(shape.name, func(b *testing.B) {
			b.ReportAllocs()
			tracker := NewTracker(0)
			order := make([]int64, window)
			for i := range order {
				order[i] = int64(i) * shape.stride
			}
			if shape.shuffle {
				random := rand.New(rand.NewPCG(1, 2))
				random.Shuffle(window, func(i, j int) { order[i], order[j] = order[j], order[i] })
			}
			done := window
			var base int64
			for b.Loop() {
				if done == window {
					b.StopTimer()
					base = tracker.Position()
					for i := range records {
						records[i].Offset = base + int64(i)*shape.stride
					}
					if err := tracker.Deliver(records); err != nil {
						b.Fatal(err)
					}
					done = 0
					b.StartTimer()
				}
				if tracker.Ack(base+order[done]) != Acked {
					b.Fatal("not acked")
				}
				done++
			}
		})
	}
}

func BenchmarkTrackerDeliver(b *testing.B) {
	b.ReportAllocs()
	tracker := NewTracker(0)
	records := make([]kafka.Record, 500)
	for b.Loop() {
		position := tracker.Position()
		for i := range records {
			records[i].Offset = position + int64(i)
		}
		if err := tracker.Deliver(records); err != nil {
			b.Fatal(err)
		}
		tracker.AckUpTo(position + 499)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/500, "ns/record")
}

func TestEpochOfWhatLiesBelowIsCommittedAlong(t *testing.T) {
	tracker := NewTracker(10)
	if got := tracker.CommittableEpoch(); got != kafka.NoLeaderEpoch {
		t.Errorf("%d before anything is known", got)
	}
	tracker.StartEpoch(3)
	if got := tracker.CommittableEpoch(); got != 3 {
		t.Errorf("%d at the start, 3 was given", got)
	}
	tracker.AdvanceIn(12, 4) // a marker of the next leader
	if got := tracker.CommittableEpoch(); got != 4 || tracker.Committable() != 12 {
		t.Errorf("%d at %d", got, tracker.Committable())
	}
	if err := tracker.Deliver([]kafka.Record{{Offset: 12, LeaderEpoch: 4}, {Offset: 13, LeaderEpoch: 5}}); err != nil {
		t.Fatal(err)
	}
	tracker.AdvanceIn(16, 6)
	if got := tracker.CommittableEpoch(); got != 4 {
		t.Errorf("%d below the record at 12", got)
	}
	tracker.Ack(12)
	if got := tracker.CommittableEpoch(); got != 4 {
		t.Errorf("%d below the record at 13", got)
	}
	tracker.Ack(13)
	if got := tracker.CommittableEpoch(); got != 6 || tracker.Committable() != 16 {
		t.Errorf("%d at %d", got, tracker.Committable())
	}
	tracker.AdvanceIn(15, 7) // below the position: nothing
	if got := tracker.CommittableEpoch(); got != 6 {
		t.Errorf("%d after nothing", got)
	}
	if err := tracker.Valid(); err != nil {
		t.Error(err)
	}
}
