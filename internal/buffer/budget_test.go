package buffer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBudgetGrantsFirstInFirstOut(t *testing.T) {
	b := NewBudget[string](100)
	if !b.Ask("a", 60) || b.Ask("b", 50) || b.Ask("c", 1) {
		t.Fatal("c overtook b, which asked first")
	}
	if b.Free() != 0 || b.Waiting() != 2 {
		t.Fatalf("%d free, %d waiting", b.Free(), b.Waiting())
	}
	if got := b.Release("a", 10); !slices.Equal(got, []Grant[string]{{"b", 50}}) {
		t.Fatalf("%v", got)
	}
	if got := b.Release("a", 1000); !slices.Equal(got, []Grant[string]{{"c", 1}}) {
		t.Fatalf("%v", got)
	}
	if b.Held() != 51 || b.HeldBy("a") != 0 || b.Free() != 49 {
		t.Fatalf("%d held, %d by a, %d free", b.Held(), b.HeldBy("a"), b.Free())
	}
}

func TestALargerRequestThanTheBudgetPassesWhenNothingElseIsHeld(t *testing.T) {
	b := NewBudget[string](100)
	if !b.Ask("a", 1) || b.Ask("b", 500) || b.Ask("c", 1) {
		t.Fatal("a request beyond the limit passed beside another")
	}
	if got := b.Release("a", 1); !slices.Equal(got, []Grant[string]{{"b", 500}}) {
		t.Fatalf("%v", got)
	}
	if got := b.Release("b", 500); !slices.Equal(got, []Grant[string]{{"c", 1}}) {
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

func TestBudgetKeepsItsLimitAndItsOrder(t *testing.T) {
	for seed := range uint64(300) {
		if err := budgetHistory(rand.New(rand.NewPCG(seed, 5))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func budgetHistory(r *rand.Rand) error {
	limit := 1 + r.IntN(200)
	b := NewBudget[int](limit)
	var line []Grant[int]
	over := false // the bytes held are above the limit by a lone large grant or by Adjust
	for range 500 {
		holder, bytes := r.IntN(6), r.IntN(80)
		if r.IntN(20) == 0 {
			bytes = 300
		}
		before := b.Held()
		var granted []Grant[int]
		switch r.IntN(6) {
		case 0, 1, 2:
			if b.Ask(holder, bytes) {
				if len(line) > 0 {
					return fmt.Errorf("%d overtook %v", holder, line)
				}
				granted = append(granted, Grant[int]{holder, bytes})
				line = append(line, granted...)
			} else {
				line = append(line, Grant[int]{holder, bytes})
			}
		case 3:
			granted = b.Release(holder, bytes)
		case 4:
			delta := r.IntN(60) - 30
			over = over || delta > 0
			granted = b.Adjust(holder, delta)
		case 5:
			if r.IntN(5) == 0 {
				line = slices.DeleteFunc(line, func(g Grant[int]) bool { return g.Holder == holder })
				granted = b.Drop(holder)
			}
		}
		for i, g := range granted {
			if i >= len(line) || line[i] != g {
				return fmt.Errorf("granted %v, in line %v", granted, line)
			}
			over = over || g.Bytes > limit
		}
		line = line[len(granted):]
		if err := b.Valid(); err != nil {
			return err
		}
		if b.Held() <= limit {
			over = false
		} else if !over {
			return fmt.Errorf("%d held of %d, %d before", b.Held(), limit, before)
		}
	}
	for b.Held() > 0 || b.Waiting() > 0 {
		for holder := range 6 {
			line = line[len(b.Release(holder, 1<<30)):]
		}
	}
	if len(line) != 0 || b.Held() != 0 {
		return fmt.Errorf("%v never granted, %d held", line, b.Held())
	}
	return nil
}
