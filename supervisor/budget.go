package supervisor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// NoRestarts, as Policy.MaxRestarts, means that the first failure already spends the budget.
const NoRestarts = -1

// maxRestartsBound bounds what a budget remembers: one time per restart inside the window.
const maxRestartsBound = 10_000

// SpentAction is what to do when a restart budget is spent.
type SpentAction int

const (
	// PauseAndProbe keeps what the child serves paused and tries it again at growing intervals, for ever. The first success
	// ends it. The zero value, and the default.
	PauseAndProbe SpentAction = iota
	// StopAll gives up: the child is not spawned again, and its parent is told to stop.
	StopAll
)

// String returns the name of the constant.
func (a SpentAction) String() string {
	switch a {
	case PauseAndProbe:
		return "PauseAndProbe"
	case StopAll:
		return "StopAll"
	}
	return fmt.Sprintf("SpentAction(%d)", int(a))
}

// Policy is how failures of one child are answered. A zero field means its default (see DefaultPolicy).
type Policy struct {
	// MaxRestarts is how many restarts any Window may hold. The next failure spends the budget. Default 10; at most 10,000;
	// NoRestarts: none.
	MaxRestarts int
	// Window is the span over which restarts are counted. Default 1 min.
	Window time.Duration
	// Backoff is the wait before each restart. It starts over after a success.
	Backoff Backoff
	// OnSpent is what happens when the budget is spent. Default PauseAndProbe.
	OnSpent SpentAction
	// ProbeInitial is the wait before the first probe, which doubles with each probe that fails. Default 5 s.
	ProbeInitial time.Duration
	// ProbeMax caps the wait between probes. Default 5 min; at least ProbeInitial.
	ProbeMax time.Duration
}

// DefaultPolicy returns ten restarts a minute with DefaultBackoff, then probes after 5 s, 10 s and so on up to 5 min.
func DefaultPolicy() Policy {
	return Policy{
		MaxRestarts:  10,
		Window:       time.Minute,
		Backoff:      DefaultBackoff(),
		OnSpent:      PauseAndProbe,
		ProbeInitial: 5 * time.Second,
		ProbeMax:     5 * time.Minute,
	}
}

// WithDefaults returns p with every zero field replaced by its default.
func (p Policy) WithDefaults() Policy {
	d := DefaultPolicy()
	if p.MaxRestarts == 0 {
		p.MaxRestarts = d.MaxRestarts
	}
	if p.Window == 0 {
		p.Window = d.Window
	}
	p.Backoff = p.Backoff.WithDefaults()
	if p.ProbeInitial == 0 {
		p.ProbeInitial = d.ProbeInitial
		if p.ProbeMax > 0 {
			p.ProbeInitial = min(p.ProbeInitial, p.ProbeMax)
		}
	}
	if p.ProbeMax == 0 {
		p.ProbeMax = max(d.ProbeMax, p.ProbeInitial)
	}
	return p
}

// Validate returns nil, or every field of p that is out of bounds, each with its value and bound. It takes p as it is: call
// WithDefaults first where zero means default.
func (p Policy) Validate() error {
	var errs []error
	if (p.MaxRestarts < 1 && p.MaxRestarts != NoRestarts) || p.MaxRestarts > maxRestartsBound {
		errs = append(errs, fmt.Errorf("Policy.MaxRestarts is %d: must be from 1 to %d, or NoRestarts", p.MaxRestarts, maxRestartsBound))
	}
	if p.Window <= 0 {
		errs = append(errs, fmt.Errorf("Policy.Window is %v: must be above 0", p.Window))
	}
	if err := p.Backoff.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("Policy.Backoff: %w", err))
	}
	if p.OnSpent != PauseAndProbe && p.OnSpent != StopAll {
		errs = append(errs, fmt.Errorf("Policy.OnSpent is %v: must be PauseAndProbe or StopAll", p.OnSpent))
	}
	if p.ProbeInitial <= 0 {
		errs = append(errs, fmt.Errorf("Policy.ProbeInitial is %v: must be above 0", p.ProbeInitial))
	}
	switch {
	case p.ProbeMax <= 0 && p.ProbeInitial <= 0: // wrong itself, no bound
		errs = append(errs, fmt.Errorf("Policy.ProbeMax is %v: must be above 0", p.ProbeMax))
	case p.ProbeMax < p.ProbeInitial:
		errs = append(errs, fmt.Errorf("Policy.ProbeMax is %v: must be at least Policy.ProbeInitial (%v)", p.ProbeMax, p.ProbeInitial))
	}
	return errors.Join(errs...)
}

// Action is what a budget decides about a failed child.
type Action int

const (
	// Restart spawns a successor after the backoff.
	Restart Action = iota + 1
	// Probe spawns a successor to see whether the cause is gone; what it serves stays paused until the first success.
	Probe
	// Stop spawns no successor.
	Stop
)

// String returns the name of the constant.
func (a Action) String() string {
	switch a {
	case Restart:
		return "Restart"
	case Probe:
		return "Probe"
	case Stop:
		return "Stop"
	}
	return fmt.Sprintf("Action(%d)", int(a))
}

// Decision is a budget's answer to one failure.
type Decision struct {
	Action Action
	// After is the wait before the successor is spawned; zero for Stop.
	After time.Duration
	// Restarts counts the successors granted so far, probes and this one included.
	Restarts int
	// Failures counts the failures since the last success, this one included.
	Failures int
	// Spent is true when this very failure spent the budget; false on the failures that follow it.
	Spent bool
}

// Budget counts the failures of one child, over all its incarnations, and decides. It reads no clock and starts nothing.
//
// Invariants: any Window holds at most MaxRestarts Restart decisions. Probes are counted apart, and only one that failed
// makes the next one wait longer. Memory is bounded by MaxRestarts.
type Budget struct {
	policy Policy
	random *rand.Rand
	// restarts has the times of the Restart decisions inside the window, oldest first.
	restarts []time.Time
	// granted counts all successors, failures those since the last success.
	granted  int
	failures int
	// probes counts the probes since the budget was spent, 0 while it is not.
	probes int
	// stopped is set once the decision was Stop.
	stopped bool
}

// NewBudget returns a full budget under policy, whose zero fields mean their defaults. Seed is the source of all jitter.
func NewBudget(policy Policy, seed uint64) *Budget {
	return &Budget{policy: policy.WithDefaults(), random: rand.New(rand.NewPCG(seed, 0))}
}

// Fail records a failure and decides what to do.
func (b *Budget) Fail(now time.Time) Decision {
	b.failures++
	b.prune(now)
	switch {
	case b.stopped:
		return b.decision(Stop, 0, false)
	case b.probes > 0:
		return b.probe(false)
	case len(b.restarts) < b.policy.MaxRestarts:
		b.restarts = append(b.restarts, now)
		b.granted++
		return b.decision(Restart, b.policy.Backoff.Delay(b.failures, b.random), false)
	case b.policy.OnSpent == StopAll:
		b.stopped = true
		return b.decision(Stop, 0, true)
	default:
		return b.probe(true)
	}
}

// Succeed records that the child did its work. It ends a probing phase, which it reports, and lets the backoff start over. It
// gives back no restarts: those come back with time alone, so that a child which works and fails in turn is limited too.
// It costs nothing when nothing failed before.
func (b *Budget) Succeed(now time.Time) (endedProbing bool) {
	if b.failures == 0 {
		return false
	}
	endedProbing = b.probes > 0
	b.failures, b.probes = 0, 0
	b.prune(now)
	return endedProbing
}

// Probing tells whether the budget is spent and successors are probes.
func (b *Budget) Probing() bool { return b.probes > 0 }

// Valid returns nil, or which invariant is broken.
func (b *Budget) Valid() error {
	switch {
	case len(b.restarts) > max(b.policy.MaxRestarts, 0):
		return fmt.Errorf("budget remembers %d restarts, more than its %d", len(b.restarts), b.policy.MaxRestarts)
	case b.granted < len(b.restarts)+b.probes:
		return fmt.Errorf("budget granted %d successors, fewer than its %d restarts and %d probes", b.granted, len(b.restarts), b.probes)
	case b.failures < b.probes:
		return fmt.Errorf("budget has %d probes for %d failures", b.probes, b.failures)
	case b.stopped && (b.probes > 0 || b.policy.OnSpent != StopAll):
		return errors.New("budget is stopped and probing")
	}
	for i := 1; i < len(b.restarts); i++ {
		if b.restarts[i].Before(b.restarts[i-1]) {
			return fmt.Errorf("restart %d at %v is before the one at %v", i, b.restarts[i], b.restarts[i-1])
		}
	}
	return nil
}

func (b *Budget) probe(spent bool) Decision {
	b.probes++
	b.granted++
	wait := Backoff{Initial: b.policy.ProbeInitial, Max: b.policy.ProbeMax, Factor: 2, Jitter: b.policy.Backoff.Jitter}
	return b.decision(Probe, wait.Delay(b.probes, b.random), spent)
}

func (b *Budget) decision(action Action, after time.Duration, spent bool) Decision {
	return Decision{Action: action, After: after, Restarts: b.granted, Failures: b.failures, Spent: spent}
}

// prune forgets the restarts that the window has left behind.
func (b *Budget) prune(now time.Time) {
	from := now.Add(-b.policy.Window)
	gone := 0
	for gone < len(b.restarts) && !b.restarts[gone].After(from) {
		gone++
	}
	if gone > 0 {
		b.restarts = append(b.restarts[:0], b.restarts[gone:]...)
	}
}
