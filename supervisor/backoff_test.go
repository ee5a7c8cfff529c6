package supervisor

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBackoff_DelayGrowsByFactorUpToMax(t *testing.T) {
	b := Backoff{Initial: 100 * time.Millisecond, Max: time.Second, Factor: 3, Jitter: NoJitter}
	for attempt, want := range map[int]time.Duration{
		-1: 100 * time.Millisecond, 0: 100 * time.Millisecond, 1: 100 * time.Millisecond, 2: 300 * time.Millisecond,
		3: 900 * time.Millisecond, 4: time.Second, 1000: time.Second, math.MaxInt: time.Second,
	} {
		assert.Equal(t, want, b.Delay(attempt, rand.New(rand.NewPCG(1, 1))), "attempt %d", attempt)
	}
}

func TestBackoff_NoDelayIsZeroForEver(t *testing.T) {
	b := Backoff{Initial: NoDelay}.WithDefaults()
	require.NoError(t, b.Validate())
	for attempt := range 100 {
		assert.Zero(t, b.Delay(attempt, nil))
	}
}

func TestBackoff_DelayStaysInBoundsWhateverTheFields(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -3, 0, 0.5, 1, 1.0001, 2, 1e300}
	durations := []time.Duration{math.MinInt64, -1, 0, 1, time.Millisecond, time.Hour, math.MaxInt64}
	pick := func() float64 { return odd[r.IntN(len(odd))] }
	for range 100_000 {
		b := Backoff{Initial: durations[r.IntN(len(durations))], Max: durations[r.IntN(len(durations))], Factor: pick(), Jitter: pick()}
		delay := b.Delay(r.IntN(1000)-10, r)
		if delay < 0 || delay > max(b.Max, 0) {
			t.Fatalf("%+v: delay %v", b, delay)
		}
	}
}

func TestBackoff_JitterTakesOffAtMostItsShare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := Backoff{Initial: time.Second, Max: time.Minute, Factor: 2, Jitter: 0.25}
	lowest, highest := time.Duration(math.MaxInt64), time.Duration(0)
	for range 10_000 {
		delay := b.Delay(3, r)
		lowest, highest = min(lowest, delay), max(highest, delay)
	}
	assert.GreaterOrEqual(t, lowest, 3*time.Second)
	assert.Less(t, lowest, 3100*time.Millisecond, "the whole share is used")
	assert.LessOrEqual(t, highest, 4*time.Second)
	assert.Greater(t, highest, 3900*time.Millisecond)
}

func TestBackoff_SameSeedSameDelays(t *testing.T) {
	one, two := rand.New(rand.NewPCG(5, 5)), rand.New(rand.NewPCG(5, 5))
	for attempt := range 20 {
		assert.Equal(t, DefaultBackoff().Delay(attempt, one), DefaultBackoff().Delay(attempt, two))
	}
}

func TestBackoff_DefaultsAreValidAlsoWhenOneFieldIsSet(t *testing.T) {
	assert.Equal(t, DefaultBackoff(), Backoff{}.WithDefaults())
	for _, b := range []Backoff{{}, {Initial: time.Hour}, {Initial: time.Nanosecond}, {Max: time.Millisecond}, {Max: time.Hour}, {Factor: 1}, {Jitter: NoJitter}, {Initial: NoDelay}} {
		assert.NoError(t, b.WithDefaults().Validate(), "%+v", b)
	}
}

func TestBackoff_ValidateNamesEveryFieldWithValueAndBound(t *testing.T) {
	for _, c := range []struct {
		change func(*Backoff)
		want   string
	}{
		{func(b *Backoff) { b.Initial = 0 }, "Backoff.Initial is 0s: must be above 0, or NoDelay"},
		{func(b *Backoff) { b.Initial = -2 }, "Backoff.Initial is -2ns"},
		{func(b *Backoff) { b.Max = time.Millisecond }, "Backoff.Max is 1ms: must be above 0 and at least Backoff.Initial (100ms)"},
		{func(b *Backoff) { b.Factor = 0.5 }, "Backoff.Factor is 0.5: must be finite and at least 1"},
		{func(b *Backoff) { b.Factor = math.NaN() }, "Backoff.Factor is NaN"},
		{func(b *Backoff) { b.Factor = math.Inf(1) }, "Backoff.Factor is +Inf"},
		{func(b *Backoff) { b.Jitter = 1 }, "Backoff.Jitter is 1: must be from 0 to below 1, or NoJitter"},
		{func(b *Backoff) { b.Jitter = -0.5 }, "Backoff.Jitter is -0.5"},
		{func(b *Backoff) { b.Jitter = math.NaN() }, "Backoff.Jitter is NaN"},
	} {
		b := DefaultBackoff()
		c.change(&b)
		assert.ErrorContains(t, b.Validate(), c.want)
	}
	err := Backoff{Max: -1, Jitter: 2}.Validate()
	for _, field := range []string{"Initial", "Max", "Factor", "Jitter"} {
		assert.ErrorContains(t, err, "Backoff."+field, "all at once")
	}
}
