package commit

import (
	"math"
	"testing"
	"time"
)

func TestWatchReportsABlockOnceAndAgainWhenItsAgeHasDoubled(t *testing.T) {
	w := NewWatch(10 * time.Second)
	for _, step := range []struct {
		at          int // seconds
		committable int64
		beyond      int
		rounds      uint64
		age         int // seconds, -1 for no report
		deadline    int // seconds, -1 for none
		count       uint64
	}{
		{0, 5, 0, 1, -1, -1, 0},
		{50, 5, 0, 2, -1, -1, 0}, // nothing beyond is finished: idle, or one slow handler
		{60, 5, 3, 4, -1, 70, 0},
		{69, 5, 9, 8, -1, 70, 0},
		{70, 5, 9, 9, 10, 80, 5},
		{75, 5, 9, 9, -1, 80, 0},
		{80, 5, 9, 10, 20, 100, 6},
		{175, 5, 9, 14, 115, 220, 10}, // late: one report, not three
		{219, 5, 9, 14, -1, 220, 0},
		{220, 5, 9, 14, 160, 380, 10},
		{221, 6, 9, 14, -1, 231, 0}, // it moved
		{231, 6, 9, 15, 10, 241, 1},
		{232, 6, 0, 15, -1, -1, 0},
		{300, 6, 1, 15, -1, 310, 0},
		{305, 2, 1, 15, -1, 315, 0}, // set back
	} {
		now := simStart.Add(time.Duration(step.at) * time.Second)
		blocked, ok := w.Observe(now, step.committable, step.beyond, step.rounds)
		want := Blocked{}
		if step.age >= 0 {
			age := time.Duration(step.age) * time.Second
			want = Blocked{Offset: step.committable, Since: now.Add(-age), Age: age, Rounds: step.count}
		}
		if ok != (step.age >= 0) || blocked != want {
			t.Fatalf("at %d: %+v, %t, want %+v", step.at, blocked, ok, want)
		}
		deadline, ok := w.Deadline()
		if ok != (step.deadline >= 0) || ok && !deadline.Equal(simStart.Add(time.Duration(step.deadline)*time.Second)) {
			t.Fatalf("at %d: deadline %v, %t", step.at, deadline.Sub(simStart), ok)
		}
	}
}

func TestWatchTellsOfABlockFromItsFirstReportOn(t *testing.T) {
	w := NewWatch(time.Second)
	expect := func(after time.Duration, beyond int, want bool) {
		t.Helper()
		w.Observe(simStart.Add(after), 3, beyond, 0)
		if blocked, ok := w.Blocked(); ok != want || ok && (blocked.Offset != 3 || blocked.Age != after) {
			t.Fatalf("after %v: %+v, %t", after, blocked, ok)
		}
	}
	expect(0, 1, false)
	expect(999*time.Millisecond, 1, false)
	expect(time.Second, 1, true)
	expect(1500*time.Millisecond, 1, true)
	expect(1501*time.Millisecond, 0, false)
}

func TestWatchIsOffWithoutATimeAndDoesNotOverflow(t *testing.T) {
	w := NewWatch(0)
	if _, ok := w.Observe(simStart, 1, 1, 0); ok {
		t.Fatal("reported")
	}
	if _, ok := w.Deadline(); ok {
		t.Fatal("has a deadline")
	}
	w = NewWatch(math.MaxInt64 / 3 * 2)
	w.Observe(simStart, 1, 1, 0)
	if _, ok := w.Observe(simStart.Add(math.MaxInt64), 1, 1, 0); !ok {
		t.Fatal("not reported")
	}
}
