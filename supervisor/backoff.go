package supervisor

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// NoDelay, as Backoff.Initial, means to try again at once, however often. NoJitter, as Backoff.Jitter, means exact delays.
// Zero cannot mean either: a zero field means its default.
const (
	NoDelay  time.Duration = -1
	NoJitter float64       = -1
)

// Backoff is an exponential delay between attempts. A zero field means its default (see DefaultBackoff).
type Backoff struct {
	// Initial is the delay before the first attempt after a success. Default 100 ms; NoDelay: all delays are zero.
	Initial time.Duration
	// Max caps the delay, jitter included. Default 10 s; at least Initial.
	Max time.Duration
	// Factor is by how much each delay exceeds the one before. Default 2; at least 1.
	Factor float64
	// Jitter is the largest part of the delay that is taken off at random, so that children which failed together do not
	// return together. It is taken off, not added, so that Max holds. Default 0.2; below 1; NoJitter: none.
	Jitter float64
}

// DefaultBackoff returns 100 ms doubling up to 10 s, with a fifth of it random.
func DefaultBackoff() Backoff {
	return Backoff{Initial: 100 * time.Millisecond, Max: 10 * time.Second, Factor: 2, Jitter: 0.2}
}

// WithDefaults returns b with every zero field replaced by its default. Where only Initial is set, and above the default Max, Max
// follows it.
func (b Backoff) WithDefaults() Backoff {
	d := DefaultBackoff()
	if b.Initial == 0 {
		b.Initial = d.Initial
		if b.Max > 0 {
			b.Initial = min(b.Initial, b.Max)
		}
	}
	if b.Max == 0 {
		b.Max = max(d.Max, b.Initial)
	}
	if b.Factor == 0 {
		b.Factor = d.Factor
	}
	if b.Jitter == 0 {
		b.Jitter = d.Jitter
	}
	return b
}

// Validate returns nil, or every field of b that is out of bounds, each with its value and bound. It takes b as it is: call
// WithDefaults first where zero means default.
func (b Backoff) Validate() error {
	var errs []error
	if b.Initial <= 0 && b.Initial != NoDelay {
		errs = append(errs, fmt.Errorf("Backoff.Initial is %v: must be above 0, or NoDelay", b.Initial))
	}
	switch {
	case b.Max <= 0 && b.Initial <= 0: // wrong or NoDelay, no bound
		errs = append(errs, fmt.Errorf("Backoff.Max is %v: must be above 0", b.Max))
	case b.Max < b.Initial || b.Max <= 0:
		errs = append(errs, fmt.Errorf("Backoff.Max is %v: must be above 0 and at least Backoff.Initial (%v)", b.Max, b.Initial))
	}
	if math.IsNaN(b.Factor) || math.IsInf(b.Factor, 0) || b.Factor < 1 {
		errs = append(errs, fmt.Errorf("Backoff.Factor is %v: must be finite and at least 1", b.Factor))
	}
	if math.IsNaN(b.Jitter) || b.Jitter >= 1 || (b.Jitter < 0 && b.Jitter != NoJitter) {
		errs = append(errs, fmt.Errorf("Backoff.Jitter is %v: must be from 0 to below 1, or NoJitter", b.Jitter))
	}
	return errors.Join(errs...)
}

// Delay returns how long to wait before the given attempt, counted from 1 after the last success. Jitter comes from r; nil
// means no jitter. The result is never negative and never above Max.
func (b Backoff) Delay(attempt int, r *rand.Rand) time.Duration {
	if b.Initial <= 0 {
		return 0
	}
	// In floating point, and compared there: the product passes the largest Duration after a few dozen attempts.
	delay := min(float64(b.Initial)*math.Pow(max(b.Factor, 1), float64(max(attempt, 1)-1)), float64(b.Max))
	if r != nil && b.Jitter > 0 {
		delay -= delay * min(b.Jitter, 1) * r.Float64()
	}
	return max(0, min(time.Duration(delay), b.Max))
}
