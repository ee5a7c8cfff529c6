package supervisor

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// exact is a policy without jitter: 2 restarts in 10 s after 1 s and 2 s, then probes after 4, 8, 10, 10 s.
func exact() Policy {
	return Policy{
		MaxRestarts:  2,
		Window:       10 * time.Second,
		Backoff:      Backoff{Initial: time.Second, Max: 3 * time.Second, Factor: 2, Jitter: NoJitter},
		ProbeInitial: 4 * time.Second,
		ProbeMax:     10 * time.Second,
	}
}

func TestBudget_Story(t *testing.T) {
	const s = time.Second
	type step struct {
		at      time.Duration
		succeed bool
		want    Decision
		ended   bool // what Succeed is to return
	}
	stopAll, none := exact(), exact()
	stopAll.OnSpent = StopAll
	none.MaxRestarts = NoRestarts
	for _, c := range []struct {
		name   string
		policy Policy
		steps  []step
	}{
		{"restarts back off, then probes grow to their cap", exact(), []step{
			{at: 0, want: Decision{Restart, 1 * s, 1, 1, false}},
			{at: 1 * s, want: Decision{Restart, 2 * s, 2, 2, false}},
			{at: 3 * s, want: Decision{Probe, 4 * s, 3, 3, true}},
			{at: 7 * s, want: Decision{Probe, 8 * s, 4, 4, false}},
			{at: 100 * s, want: Decision{Probe, 10 * s, 5, 5, false}}, // an empty window alone ends no probing
			{at: 200 * s, want: Decision{Probe, 10 * s, 6, 6, false}},
		}},
		{"a success starts the backoff over and gives no restart back", exact(), []step{
			{at: 0, want: Decision{Restart, 1 * s, 1, 1, false}},
			{at: 1 * s, succeed: true},
			{at: 2 * s, want: Decision{Restart, 1 * s, 2, 1, false}},
			{at: 3 * s, succeed: true},
			{at: 4 * s, want: Decision{Probe, 4 * s, 3, 1, true}},
		}},
		{"a success ends probing; the window is as full as time left it", exact(), []step{
			{at: 0, want: Decision{Restart, 1 * s, 1, 1, false}},
			{at: 5 * s, want: Decision{Restart, 2 * s, 2, 2, false}},
			{at: 6 * s, want: Decision{Probe, 4 * s, 3, 3, true}},
			{at: 10 * s, succeed: true, ended: true},
			{at: 10 * s, succeed: true},
			{at: 11 * s, want: Decision{Restart, 1 * s, 4, 1, false}}, // that of 0 s has left the window
			{at: 12 * s, want: Decision{Probe, 4 * s, 5, 2, true}},
		}},
		{"a restart leaves the window exactly when the window has passed", exact(), []step{
			{at: 0, want: Decision{Restart, 1 * s, 1, 1, false}},
			{at: 0, want: Decision{Restart, 2 * s, 2, 2, false}},
			{at: 10 * s, want: Decision{Restart, 3 * s, 3, 3, false}},
		}},
		{"StopAll stops for good", stopAll, []step{
			{at: 0, want: Decision{Restart, 1 * s, 1, 1, false}},
			{at: 0, want: Decision{Restart, 2 * s, 2, 2, false}},
			{at: 1 * s, want: Decision{Stop, 0, 2, 3, true}},
			{at: 90 * s, succeed: true},
			{at: 99 * s, want: Decision{Stop, 0, 2, 1, false}},
		}},
		{"NoRestarts probes at the first failure", none, []step{
			{at: 0, want: Decision{Probe, 4 * s, 1, 1, true}},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, c.policy.Validate())
			b := NewBudget(c.policy, 1)
			for i, step := range c.steps {
				if step.succeed {
					assert.Equal(t, step.ended, b.Succeed(epoch.Add(step.at)), "step %d", i)
				} else {
					assert.Equal(t, step.want, b.Fail(epoch.Add(step.at)), "step %d", i)
				}
				require.NoError(t, b.Valid(), "step %d", i)
			}
		})
	}
}

func TestBudget_RandomHistoriesAgreeWithANaiveTwin(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		policy := Policy{
			MaxRestarts:  1 + r.IntN(5),
			Window:       time.Duration(1+r.IntN(60)) * time.Second,
			OnSpent:      SpentAction(r.IntN(2)),
			ProbeInitial: time.Duration(1+r.IntN(20)) * time.Second,
		}.WithDefaults()
		require.NoError(t, policy.Validate())
		b := NewBudget(policy, seed)
		// The twin keeps every restart for ever and counts by looking at all of them.
		var restarts []time.Time
		probing, stopped := false, false
		now := epoch
		for range 400 {
			now = now.Add(time.Duration(r.IntN(15_000)) * time.Millisecond)
			if r.IntN(4) == 0 {
				assert.Equal(t, probing, b.Succeed(now))
				probing = false
				continue
			}
			inWindow := 0
			for _, at := range restarts {
				if now.Sub(at) < policy.Window {
					inWindow++
				}
			}
			want := Probe
			switch {
			case stopped || (inWindow >= policy.MaxRestarts && policy.OnSpent == StopAll):
				want, stopped = Stop, true
			case !probing && inWindow < policy.MaxRestarts:
				want = Restart
				restarts = append(restarts, now)
			default:
				probing = true
			}
			got := b.Fail(now)
			require.Equal(t, want, got.Action, "seed %d", seed)
			require.NoError(t, b.Valid(), "seed %d", seed)
			require.Equal(t, probing, b.Probing())
			switch got.Action {
			case Restart:
				require.LessOrEqual(t, got.After, policy.Backoff.Max)
				require.Positive(t, got.After)
			case Probe:
				require.LessOrEqual(t, got.After, policy.ProbeMax)
				require.GreaterOrEqual(t, float64(got.After), float64(policy.ProbeInitial)*(1-policy.Backoff.Jitter))
			case Stop:
				require.Zero(t, got.After)
			}
		}
	}
}

func TestBudget_MemoryIsBoundedByMaxRestarts(t *testing.T) {
	b := NewBudget(Policy{MaxRestarts: 3, Window: time.Second}, 1)
	for i := range 100_000 {
		b.Fail(epoch.Add(time.Duration(i) * 400 * time.Millisecond))
		b.Succeed(epoch.Add(time.Duration(i) * 400 * time.Millisecond))
	}
	assert.LessOrEqual(t, cap(b.restarts), 8)
	require.NoError(t, b.Valid())
}

func TestBudget_SucceedWithoutFailureAllocatesNothing(t *testing.T) {
	b := NewBudget(DefaultPolicy(), 1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { b.Succeed(epoch) }))
}

func TestPolicy_DefaultsAreValidAlsoWhenOneFieldIsSet(t *testing.T) {
	assert.Equal(t, DefaultPolicy(), Policy{}.WithDefaults())
	for _, p := range []Policy{{}, {MaxRestarts: NoRestarts}, {ProbeInitial: time.Hour}, {ProbeMax: time.Second}, {OnSpent: StopAll}, {Backoff: Backoff{Initial: NoDelay}}} {
		assert.NoError(t, p.WithDefaults().Validate(), "%+v", p)
	}
}

func TestPolicy_ValidateNamesEveryFieldWithValueAndBound(t *testing.T) {
	for _, c := range []struct {
		change func(*Policy)
		want   string
	}{
		{func(p *Policy) { p.MaxRestarts = -2 }, "Policy.MaxRestarts is -2: must be from 1 to 10000, or NoRestarts"},
		{func(p *Policy) { p.MaxRestarts = 10_001 }, "Policy.MaxRestarts is 10001"},
		{func(p *Policy) { p.Window = -time.Second }, "Policy.Window is -1s: must be above 0"},
		{func(p *Policy) { p.Backoff.Factor = 0.5 }, "Policy.Backoff: Backoff.Factor is 0.5"},
		{func(p *Policy) { p.OnSpent = 7 }, "Policy.OnSpent is SpentAction(7): must be PauseAndProbe or StopAll"},
		{func(p *Policy) { p.ProbeInitial = -1 }, "Policy.ProbeInitial is -1ns: must be above 0"},
		{func(p *Policy) { p.ProbeMax = time.Second }, "Policy.ProbeMax is 1s: must be at least Policy.ProbeInitial (5s)"},
	} {
		p := DefaultPolicy()
		c.change(&p)
		assert.ErrorContains(t, p.Validate(), c.want)
	}
}

func TestNames(t *testing.T) {
	assert.Equal(t, "PauseAndProbe StopAll", PauseAndProbe.String()+" "+StopAll.String())
	assert.Equal(t, "Restart Probe Stop Action(0)", Restart.String()+" "+Probe.String()+" "+Stop.String()+" "+Action(0).String())
}
