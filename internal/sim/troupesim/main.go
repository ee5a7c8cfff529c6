// Command troupesim runs the simulation of internal/sim: many histories, one script, or the mutants. It ends with status 1,
// and prints the seed, when a guarantee did not hold.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"github.com/troupego/troupe/internal/sim"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	count := flag.Int("n", 10000, "histories to run")
	seed := flag.Uint64("seed", 0, "seed of the first history; 0 takes one from the clock")
	script := flag.String("script", "", "run this script instead")
	mutants := flag.Bool("mutants", false, "run every mutant until it is caught, at most n histories each")
	only := flag.String("mutant", "", "with -mutants: only this one")
	keep := flag.String("keep", "", "write a failing seed's shrunk script into this directory")
	going := flag.Bool("k", false, "go on after a violation")
	strict := flag.Bool("strict", false, "also fail on what is only counted otherwise")
	profile := flag.String("cpuprofile", "", "write a CPU profile")
	flag.Parse()
	if *profile != "" {
		file, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	switch {
	case *script != "":
		return runScript(*script)
	case *mutants:
		return runMutants(*seed, *count, *keep, *only)
	}
	return runSeeds(*seed, *count, *keep, *going, *strict)
}

func runScript(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	script, err := sim.Parse(string(text))
	if err != nil {
		return err
	}
	result := sim.Run(script)
	fmt.Printf("%s: %d steps, %v of virtual time\n", path, result.Stats.Steps, result.Stats.Virtual)
	return result.Expect(script.Want)
}

// runSeeds runs count histories from seed on and prints the figures.
func runSeeds(seed uint64, count int, keep string, going, strict bool) error {
	began := time.Now()
	fmt.Printf("seeds %d to %d\n", seed, seed+uint64(count)-1)
	var total sim.Stats
	var first error
	failures := 0
	for i := range uint64(count) {
		script := sim.Generate(seed + i)
		script.Strict = strict
		result := sim.Run(script)
		total.Add(result.Stats)
		if result.Violation == nil {
			continue
		}
		failures++
		err := fmt.Errorf("seed %d: %v", seed+i, result.Violation)
		if first == nil {
			first = err
		}
		fmt.Println(err)
		if keep != "" {
			if err := write(keep, script, result.Violation, fmt.Sprintf("seed-%d", seed+i)); err != nil {
				return err
			}
		}
		if !going {
			break
		}
	}
	report(&total, time.Since(began))
	if first != nil {
		return fmt.Errorf("%d of %d histories failed, the first: %w", failures, total.Histories, first)
	}
	return nil
}

func write(dir string, script sim.Script, violation *sim.Violation, name string) error {
	small := sim.Shrink(script, violation.Guarantee)
	// A script wants what is right, so that it fails until it is.
	small.Want = "ok"
	if script.Mutant != sim.MutantNone {
		small.Want = violation.Guarantee
	}
	small.Note = sim.Run(small).Violation.String()
	path := filepath.Join(dir, name+".txt")
	fmt.Println("shrunk:", path)
	return os.WriteFile(path, []byte(small.String()), 0o644)
}

// runMutants wants every mutant caught within count histories.
func runMutants(seed uint64, count int, keep, only string) error {
	missed := 0
	for _, mutant := range sim.Mutants() {
		if only != "" && mutant.String() != only {
			continue
		}
		caught, script, histories := hunt(mutant, seed, count)
		if caught == nil {
			missed++
			fmt.Printf("%-28s NOT CAUGHT in %d histories\n", mutant, histories)
			continue
		}
		fmt.Printf("%-28s caught after %d histories: %v\n", mutant, histories, caught)
		if keep != "" {
			if err := write(keep, script, caught, "mutant-"+mutant.String()); err != nil {
				return err
			}
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d mutants were not caught (seed %d)", missed, seed)
	}
	return nil
}

// hunt looks until a mutant is caught at the guarantee it breaks. That it does harm elsewhere first, such as standing still,
// is told and not enough.
func hunt(mutant sim.Mutant, seed uint64, count int) (*sim.Violation, sim.Script, int) {
	done := 0
	for done < count {
		caught, script, histories := sim.Hunt(mutant, seed+uint64(done), count-done)
		done += histories
		if caught == nil {
			break
		}
		if mutant.Breaks(caught.Guarantee) {
			return caught, script, done
		}
		fmt.Printf("%-28s seen after %d histories as %v\n", mutant, done, caught)
	}
	return nil, sim.Script{}, done
}

func report(s *sim.Stats, took time.Duration) {
	fmt.Printf("histories %d, steps %d, %.0f steps/s, virtual %v, real %v\n",
		s.Histories, s.Steps, float64(s.Steps)/took.Seconds(), s.Virtual.Round(time.Hour), took.Round(time.Millisecond))
	fmt.Printf("processes %d, records delivered %d, redelivered %d, commits stored %d, rounds failed %d\n",
		s.Processes, s.Records, s.Redelivered, s.Commits, s.RoundsFailed)
	fmt.Printf("member moves %d, losses %d, handlers abandoned %d, stale reports %d, overlaps %d\n"+
		"on waking, before it could be known that the session is over: records begun %d, rounds sent %d\n"+
		"offset maps stored %d, refused as too large %d, not believed %d; records skipped by a map %d\n"+
		"records begun beside another one of their partition %d, lanes parked %d, windows closed %d, pauses %d, commits on demand %d, offsets of users %d\n"+
		"records begun during a JoinGroup or SyncGroup %d, inconsistent protocols %d, static members back without a rebalance %d\n"+
		"logs found truncated %d, topics made anew %d, offsets stored for what was gone %d, done after a suspension unknown %d\n"+
		"tokens granted %d, refused %d, revoked %d, handed on %d; control calls carried out %d, refused %d; seeks %d, callbacks %d\n"+
		"seeks beyond what was delivered %d, records passed over by seeks %d, skips %d, refused %d, commits over several partitions %d\n",
		s.Moves, s.Losses, s.Abandoned, s.Stale, s.Overlaps, s.Woken, s.LateCommits, s.Maps, s.TooLarge, s.Ignored, s.Skipped,
		s.Parallel, s.Parked, s.Closed, s.Pauses, s.Demands, s.Placed, s.Kept, s.Inconsistent, s.Returned, s.Truncated, s.Recreated, s.Stray, s.Suspended,
		s.Tokens, s.TokensRefused, s.TokensRevoked, s.Handed, s.Operations, s.OperationsRefused, s.Seeks, s.Callbacks,
		s.SeeksForward, s.Passed, s.Skips, s.SkipsRefused, s.PlacedTogether)
}
