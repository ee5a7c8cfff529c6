package commit

import (
	"errors"
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
