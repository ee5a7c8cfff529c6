package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFreshSeedsHoldEveryGuarantee runs histories that nobody has seen before. It is bounded by their number, not by the
// clock. The seed is printed; make sim N=1 SEED=... plays one again.
func TestFreshSeedsHoldEveryGuarantee(t *testing.T) {
	t.Parallel()
	histories := uint64(1800)
	if testing.Short() {
		histories = 200
	}
	first := uint64(time.Now().UnixNano())
	t.Logf("seeds %d to %d", first, first+histories-1)
	var total Stats
	for seed := first; seed < first+histories; seed++ {
		result := Run(Generate(seed))
		total.Add(result.Stats)
		if result.Violation != nil {
			t.Fatalf("seed %d: %v", seed, result.Violation)
		}
	}
	t.Logf("%d steps, %d records, %d commits, %d losses, %d overlaps", total.Steps, total.Records, total.Commits, total.Losses, total.Overlaps)
	if total.Maps == 0 || total.Skipped == 0 || total.TooLarge == 0 || total.Pauses == 0 || total.Parallel == 0 || total.Parked == 0 ||
		total.Closed == 0 || total.Demands == 0 || total.Placed == 0 {
		t.Errorf("the flow is too tame: %+v", total)
	}
	if total.Kept == 0 || total.Inconsistent == 0 || total.Returned == 0 || total.Truncated == 0 || total.Recreated == 0 || total.Stray == 0 ||
		total.Suspended == 0 {
		t.Errorf("too little changes: %+v", total)
	}
	if total.Tokens == 0 || total.TokensRefused == 0 || total.TokensRevoked == 0 || total.Handed == 0 || total.Operations == 0 ||
		total.OperationsRefused == 0 || total.Seeks == 0 || total.Callbacks == 0 {
		t.Errorf("nobody cares for tokens: %+v", total)
	}
	if total.SeeksForward == 0 || total.Passed == 0 || total.Skips == 0 || total.SkipsRefused == 0 || total.PlacedTogether == 0 {
		t.Errorf("nobody seeks forward, skips, or commits together: %+v", total)
	}
	if total.Losses == 0 || total.Overlaps == 0 || total.Stale == 0 || total.Redelivered == 0 {
		t.Errorf("the histories are too tame: %+v", total)
	}
}

// TestGoldenScripts plays every script in testdata: each says itself what it must end with.
func TestGoldenScripts(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			script, err := Parse(string(text))
			if err != nil {
				t.Fatal(err)
			}
			play(t, script)
		})
	}
}

// play runs a script, and then the same with other seeds: a change of a machine lets a history run another way, and what the
// script is about must hold, or be found, all the same.
func play(t *testing.T, script Script) {
	t.Helper()
	var last error
	wanted, tries := script.Want != "ok", 60
	if !wanted { // it is played that often
		tries = 20
	}
	for range tries {
		last = Run(script).Expect(script.Want)
		if wanted == (last == nil) {
			break
		}
		script.Seed++
	}
	if last != nil {
		t.Errorf("seed %d: %v", script.Seed, last)
	}
}

// TestEveryMutantIsCaught proves that the checks see what they are for.
func TestEveryMutantIsCaught(t *testing.T) {
	t.Parallel()
	for _, mutant := range Mutants() {
		t.Run(mutant.String(), func(t *testing.T) {
			t.Parallel()
			for done := 0; ; {
				caught, _, histories := Hunt(mutant, 1+uint64(done), 400-done)
				if done += histories; caught == nil {
					t.Fatalf("not caught in %d histories", done)
				}
				if mutant.Breaks(caught.Guarantee) {
					return
				}
				t.Logf("seen after %d histories as %v", done, caught)
			}
		})
	}
}

// TestSeedReplaysExactly: a history depends on its script and on nothing else.
func TestSeedReplaysExactly(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 60; seed++ {
		script := Generate(seed)
		script.Strict = seed%2 == 0
		first, second := Run(script), Run(script)
		if first.Stats != second.Stats || (first.Violation == nil) != (second.Violation == nil) {
			t.Fatalf("seed %d: %+v and then %+v", seed, first, second)
		}
	}
}

// TestScriptsSurviveWritingAndReading: what is kept in testdata is what was run.
func TestScriptsSurviveWritingAndReading(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 300; seed++ {
		script := Generate(seed)
		script.Mutant, script.Note, script.Want = Mutants()[seed%uint64(len(Mutants()))], "one\ntwo", "G3"
		again, err := Parse(script.String())
		if err != nil {
			t.Fatal(err)
		}
		if again.String() != script.String() {
			t.Fatalf("wrote\n%s\nread\n%s", script.String(), again.String())
		}
	}
}

func TestParseRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"member 3", "members x", "members", "mutant other", "fault 1s crash", "fault 1s crash x 1s 1", "session 5"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// TestShrinkKeepsTheViolation: the small script breaks what the large one broke, and is no larger.
func TestShrinkKeepsTheViolation(t *testing.T) {
	t.Parallel()
	caught, script, _ := Hunt(MutantStaleEpoch, 1, 400)
	if caught == nil {
		t.Fatal("nothing to shrink")
	}
	small := Shrink(script, caught.Guarantee)
	if err := Run(small).Expect(caught.Guarantee); err != nil {
		t.Error(err)
	}
	if len(small.Faults) > len(script.Faults) || small.Records > script.Records || small.Members > script.Members {
		t.Errorf("grew from\n%s\nto\n%s", script.String(), small.String())
	}
}

// BenchmarkHistories measures checked steps per second on one core.
func BenchmarkHistories(b *testing.B) {
	steps, seed := 0, uint64(1)
	for b.Loop() {
		steps += Run(Generate(seed)).Stats.Steps
		seed++
	}
	b.ReportMetric(float64(steps)/b.Elapsed().Seconds(), "steps/s")
}
