package stacksim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rcrowley/go-metrics"
)

var (
	histories = flag.Int("histories", defaultHistories, "how many histories to run")
	firstSeed = flag.Uint64("seed", 1, "seed of the first history; 0 for one from the clock")
	workers   = flag.Int("workers", runtime.GOMAXPROCS(0), "how many histories to run at once")
	traces    = flag.String("traces", "", "folder to write the traces of violations to, in place of the test's output")
	onlyCalm  = flag.String("calm", "", "make every history a calm one of a sort: handlers, blocks or moves")
	stuck     = flag.Duration("stuck", time.Minute, "after how long of real time a history counts as stuck")
)

func TestMain(m *testing.M) {
	metrics.NewMeter().Stop() // starts the goroutine of sarama's meters outside of any bubble
	os.Exit(m.Run())
}

// Every history keeps the guarantees and becomes stable again.
func TestHistoriesKeepTheGuarantees(t *testing.T) {
	seed := *firstSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) / 1e6
	}
	t.Logf("%d histories from seed %d", *histories, seed)
	s := &summary{begun: time.Now(), kinds: make(map[string]int)}
	var next atomic.Int64
	var all sync.WaitGroup
	for range *workers {
		all.Go(func() {
			for {
				n := next.Add(1) - 1
				if n >= int64(*histories) {
					return
				}
				s.add(t, history(t, seed+uint64(n)))
			}
		})
	}
	all.Wait()
	t.Log(s)
}

// history runs one seed.
func history(t *testing.T, seed uint64) *result {
	return play(t, newPlan(seed))
}

// play runs a plan in a bubble of its own.
func play(t *testing.T, p *plan) (r *result) {
	watchdog := time.AfterFunc(*stuck, func() {
		stack := make([]byte, 1<<22)
		panic(fmt.Sprintf("history of seed %d does not end\n%s\n%s", p.seed, p, stack[:runtime.Stack(stack, true)]))
	})
	defer watchdog.Stop()
	defer func() {
		if v := recover(); v != nil { // what synctest says of goroutines that are left
			if r == nil {
				r = &result{seed: p.seed, plan: p.String()}
			}
			stack := make([]byte, 1<<20)
			r.violations = append(r.violations, fmt.Sprintf("LEAK: %v", v))
			r.trace += string(stack[:runtime.Stack(stack, true)])
		}
	}()
	synctest.Test(t, func(*testing.T) { r = run(p) })
	return r
}

// summary is what many histories came to.
type summary struct {
	mu        sync.Mutex
	begun     time.Time
	histories int
	failed    int
	counts    counts
	// kinds counts the histories that violated each guarantee.
	kinds    map[string]int
	virtual  time.Duration
	slowest  time.Duration
	slowSeed uint64
}

func (s *summary) add(t *testing.T, r *result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.histories++
	s.virtual += r.virtual
	if r.settled > s.slowest {
		s.slowest, s.slowSeed = r.settled, r.seed
	}
	s.counts.add(r.counts)
	if len(r.violations) == 0 {
		return
	}
	s.failed++
	kinds := make(map[string]bool)
	for _, v := range r.violations {
		kind, _, _ := strings.Cut(v, ":")
		kinds[kind] = true
	}
	for kind := range kinds {
		s.kinds[kind]++
	}
	trace := r.plan + r.trace
	if *traces != "" {
		file := filepath.Join(*traces, fmt.Sprintf("seed-%d.txt", r.seed))
		if err := os.WriteFile(file, []byte(trace), 0o600); err != nil {
			t.Error(err)
		}
		trace = "trace in " + file
	}
	t.Errorf("seed %d:\n", r.seed)
	for _, v := range r.violations {
		t.Log(v)
	}
	t.Log(trace)
}

func (c *counts) add(o counts) {
	c.processes += o.processes
	c.records += o.records
	c.deliveries += o.deliveries
	c.repeated += o.repeated
	c.commits += o.commits
	c.failures += o.failures
	c.rebalances += o.rebalances
	c.lost += o.lost
	c.overlaps += o.overlaps
	c.late += o.late
	c.beside += o.beside
	c.overdue += o.overdue
	c.abandoned += o.abandoned
	c.ghosts += o.ghosts
	c.gaveUp += o.gaveUp
	c.tokens += o.tokens
	c.moves += o.moves
}

func (s *summary) String() string {
	c := s.counts
	return fmt.Sprintf("%d histories in %v (%v virtual), %d with violations %v; %d processes, %d records, %d deliveries, %d records handled again, "+
		"%d partitions of commits, %d handler failures, %d assignments, %d losses, %d overlaps of members, %d late commits, %d records beside a block, "+
		"%d open at a revoke, %d abandoned, %d over MaxProcessingTime, %d members evicted, %d tokens, %d calls that seek, skip or set a commit back; slowest to settle %v (seed %d)",
		s.histories, time.Since(s.begun).Round(time.Millisecond), s.virtual.Round(time.Second), s.failed, s.kinds, c.processes, c.records, c.deliveries, c.repeated,
		c.commits, c.failures, c.rebalances, c.lost, c.overlaps, c.late, c.beside, c.overdue, c.abandoned, c.gaveUp, c.ghosts, c.tokens, c.moves, s.slowest, s.slowSeed)
}

// Faults put between members and brokers, which break what both promise, are seen. (Faults in the actors themselves are for
// the mutants of internal/sim.)
func TestTheChecksSeeWhatIsBroken(t *testing.T) {
	for mutant, seen := range map[string][]string{
		mutantCommitAhead: {"G3"}, mutantCommitLost: {"STABLE"}, mutantAssignedTwice: {"STABLE", "G5"}, mutantDeafGroup: {"STABLE", "G5", "G6"},
		mutantCommitLess: {"G5"},
	} {
		t.Run(mutant, func(t *testing.T) {
			const enough = 20
			for seed := range uint64(enough) {
				p := newPlan(seed)
				p.mutant, p.length = mutant, 20*time.Second
				p.actions = nil
				p.calm = calmMoves
				for len(p.members) < 2 {
					p.members = append(p.members, p.members[0])
				}
				for _, v := range play(t, p).violations {
					if kind, _, _ := strings.Cut(v, ":"); slices.Contains(seen, kind) {
						t.Logf("seed %d: %s", seed, v)
						return
					}
				}
			}
			t.Errorf("not seen in %d histories", enough)
		})
	}
}
