package buffer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBudgetGrantsFirstInFirstOut(t *testing.T) {
	b := NewBudget[string](100)
	if !b.Ask("a", 100) || b.Ask("b", 150) || b.Ask("c", 1) || b.Try("d", 1) {
		t.Fatal("somebody passed a budget that was used up")
	}
	if b.Free() != 0 || b.Waiting() != 2 {
		t.Fatalf("%d free, %d waiting", b.Free(), b.Waiting())
	}
	if got := b.Release("a", 10); !slices.Equal(got, []Grant[string]{{"b", 150}}) {
		t.Fatalf("%v", got)
	}
	if got := b.Release("a", 1000); got != nil {
		t.Fatalf("%v beyond the limit", got)
	}
	if got := b.Release("b", 100); !slices.Equal(got, []Grant[string]{{"c", 1}}) {
		t.Fatalf("%v", got)
	}
	if b.Held() != 51 || b.HeldBy("a") != 0 || b.Free() != 49 {
		t.Fatalf("%d held, %d by a, %d free", b.Held(), b.HeldBy("a"), b.Free())
	}
}

func TestALargeRequestIsNotHeldUpByAHolderOfLittleThatNeverLetsGo(t *testing.T) {
	b := NewBudget[string](100)
	if !b.Ask("blocked", 1) || !b.Ask("large", 500) {
		t.Fatal("the large one waits for what is never given back")
	}
	if b.Ask("next", 1) {
		t.Fatal("one passed beside a grant above the limit")
	}
	if got := b.Release("large", 500); !slices.Equal(got, []Grant[string]{{"next", 1}}) {
		t.Fatalf("%v", got)
	}
}

func TestABudgetOfNothingLetsOnePassAtATime(t *testing.T) {
	b := NewBudget[string](0)
	if !b.Ask("a", 5) || b.Ask("b", 5) {
		t.Fatal("not one at a time")
	}
	if got := b.Release("a", 5); !slices.Equal(got, []Grant[string]{{"b", 5}}) {
		t.Fatalf("%v", got)
	}
}

func TestAdjustMayOvershootAndThenNothingIsGranted(t *testing.T) {
	b := NewBudget[string](100)
	b.Ask("a", 40)
	b.Adjust("a", 200)
	if b.Held() != 240 || b.Free() != 0 || b.Ask("b", 1) {
		t.Fatalf("%d held", b.Held())
	}
	if got := b.Adjust("a", -141); !slices.Equal(got, []Grant[string]{{"b", 1}}) {
		t.Fatalf("%v", got)
	}
}

func TestDropFreesAndForgetsAHolder(t *testing.T) {
	b := NewBudget[string](100)
	b.Ask("a", 100)
	b.Ask("b", 70)
	b.Ask("a", 10)
	b.Ask("c", 30)
	if got := b.Drop("b"); got != nil {
		t.Fatalf("%v", got)
	}
	if got := b.Drop("a"); !slices.Equal(got, []Grant[string]{{"c", 30}}) {
		t.Fatalf("%v", got)
	}
	if b.Held() != 30 || b.Waiting() != 0 {
		t.Fatalf("%d held, %d waiting", b.Held(), b.Waiting())
	}
}

func TestWithdrawForgetsARequestAndKeepsWhatIsHeld(t *testing.T) {
	b := NewBudget[string](100)
	b.Ask("a", 100)
	b.Ask("a", 10)
	b.Ask("b", 10)
	if got := b.Withdraw("a"); got != nil || b.HeldBy("a") != 100 || b.Waiting() != 1 {
		t.Fatalf("granted %v, a has %d, %d wait", got, b.HeldBy("a"), b.Waiting())
	}
	if got := b.Release("a", 1); !slices.Equal(got, []Grant[string]{{"b", 10}}) {
		t.Fatalf("%v", got)
	}
}

func TestBudgetDoesWhatItsTwinDoes(t *testing.T) {
	for seed := range uint64(300) {
		if err := budgetHistory(rand.New(rand.NewPCG(seed, 5))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// naiveBudget is the twin: it keeps a list of who holds what, and goes through all of it each time.
type naiveBudget struct {
	limit int
	has   []Grant[int]
	line  []Grant[int]
}

func (n *naiveBudget) held(of func(holder int) bool) (sum int) {
	for _, g := range n.has {
		if of(g.Holder) {
			sum += g.Bytes
		}
	}
	return sum
}

func (n *naiveBudget) heldBy(holder int) int {
	return n.held(func(other int) bool { return other == holder })
}

func (n *naiveBudget) heldByAll() int { return n.held(func(int) bool { return true }) }

// pump grants in turn while anything is free.
func (n *naiveBudget) pump() (granted []Grant[int]) {
	for len(n.line) > 0 && (n.heldByAll() == 0 || n.heldByAll() < n.limit) {
		granted = append(granted, n.line[0])
		n.has, n.line = append(n.has, n.line[0]), n.line[1:]
	}
	return granted
}

// budgetHistory plays a random history to a budget and its twin.
func budgetHistory(r *rand.Rand) error {
	limit := r.IntN(200)
	b, twin := NewBudget[int](limit), &naiveBudget{limit: limit}
	for range 500 {
		holder, bytes := r.IntN(6), r.IntN(80)
		if r.IntN(20) == 0 {
			bytes = 300
		}
		var granted, want []Grant[int]
		switch op := r.IntN(8); op {
		case 0, 1, 2:
			passes := b.Ask(holder, bytes)
			twin.line = append(twin.line, Grant[int]{holder, bytes})
			if want = twin.pump(); passes {
				granted = []Grant[int]{{holder, bytes}}
			}
		case 3:
			passes := b.Try(holder, bytes)
			twin.line = append(twin.line, Grant[int]{holder, bytes})
			if want = twin.pump(); want == nil {
				twin.line = twin.line[:len(twin.line)-1]
			}
			if passes {
				granted = []Grant[int]{{holder, bytes}}
			}
		case 4, 5:
			delta := r.IntN(60) - 30
			if op == 4 {
				delta = -bytes
				granted = b.Release(holder, bytes)
			} else {
				granted = b.Adjust(holder, delta)
			}
			twin.has = append(twin.has, Grant[int]{holder, max(delta, -twin.heldBy(holder))})
			want = twin.pump()
		case 6:
			granted = b.Withdraw(holder)
			twin.forget(holder)
			want = twin.pump()
		case 7:
			if r.IntN(5) == 0 {
				granted = b.Drop(holder)
				twin.forget(holder)
				twin.has = append(twin.has, Grant[int]{holder, -twin.heldBy(holder)})
				want = twin.pump()
			}
		}
		if !slices.Equal(granted, want) {
			return fmt.Errorf("granted %v, the twin %v", granted, want)
		}
		if err := b.Valid(); err != nil {
			return err
		}
		if b.Held() != twin.heldByAll() || b.HeldBy(holder) != twin.heldBy(holder) || b.Waiting() != len(twin.line) {
			return fmt.Errorf("%d held, %d by %d, %d wait; the twin %d, %d and %d", b.Held(), b.HeldBy(holder), holder, b.Waiting(),
				twin.heldByAll(), twin.heldBy(holder), len(twin.line))
		}
	}
	for b.Held() > 0 || b.Waiting() > 0 {
		for holder := range 6 {
			b.Release(holder, 1<<30)
		}
	}
	return nil
}

func (n *naiveBudget) forget(holder int) {
	n.line = slices.DeleteFunc(n.line, func(g Grant[int]) bool { return g.Holder == holder })
}
