package commit

import (
	"errors"
	"math/rand/v2"
	"testing"
)

func TestWindowRefusesThresholdsThatDoNotFit(t *testing.T) {
	for _, c := range []struct {
		maxInTransit, resumeBelow int
		ok                        bool
	}{{1, 0, true}, {10, 9, true}, {10, 10, false}, {10, 11, false}, {0, 0, false}, {-1, -2, false}, {5, -1, false}} {
		_, err := NewWindow(c.maxInTransit, c.resumeBelow)
		var windowError *WindowError
		if (err == nil) != c.ok || err != nil && !errors.As(err, &windowError) {
			t.Errorf("NewWindow(%d, %d): %v", c.maxInTransit, c.resumeBelow, err)
		}
	}
}

func TestWindowPausesAtTheCapAndResumesBelowTheLowerMark(t *testing.T) {
	window, err := NewWindow(10, 5)
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		inTransit       int
		paused, changed bool
		room            int
	}{
		{0, false, false, 10}, {9, false, false, 1}, {10, true, true, 0}, {9, true, false, 0}, {5, true, false, 0},
		{4, false, true, 6}, {9, false, false, 1}, {12, true, true, 0}, {0, false, true, 10},
	} {
		paused, changed := window.Update(step.inTransit)
		if paused != step.paused || changed != step.changed || window.Room(step.inTransit) != step.room {
			t.Fatalf("step %d: paused %t changed %t room %d", i, paused, changed, window.Room(step.inTransit))
		}
	}
}

func TestWindowTogglesOnlyAtItsThresholds(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		maxInTransit := 1 + random.IntN(50)
		resumeBelow := random.IntN(maxInTransit)
		window, err := NewWindow(maxInTransit, resumeBelow)
		if err != nil {
			t.Fatal(err)
		}
		inTransit, paused, toggles, records := 0, false, 0, 0
		for range 1000 {
			if random.IntN(2) == 0 {
				if n := min(window.Room(inTransit), 1+random.IntN(5)); n > 0 {
					inTransit += n
					records += n
				}
			} else if inTransit > 0 {
				inTransit--
			}
			now, changed := window.Update(inTransit)
			if changed != (now != paused) {
				t.Fatal("changed does not tell a change")
			}
			if changed {
				toggles++
				if now && inTransit < maxInTransit || !now && inTransit >= resumeBelow && inTransit > 0 {
					t.Fatalf("toggled to %t with %d in transit of (%d, %d)", now, inTransit, maxInTransit, resumeBelow)
				}
			}
			paused = now
			if inTransit > maxInTransit {
				t.Fatalf("%d in transit of %d", inTransit, maxInTransit)
			}
		}
		// Between two pauses the window must empty from the cap to below the lower mark, so at least that many records pass.
		if pass := maxInTransit - max(resumeBelow-1, 0); toggles > 2+2*records/max(pass, 1) {
			t.Fatalf("(%d, %d): %d toggles for %d records", maxInTransit, resumeBelow, toggles, records)
		}
	}
}
