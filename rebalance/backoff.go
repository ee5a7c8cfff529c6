package rebalance

import (
	"math/rand/v2"
	"time"
)

// Backoff limits that hold when a configuration leaves them zero.
const (
	defaultBackoffInitial = 100 * time.Millisecond
	defaultBackoffMax     = 10 * time.Second
)

// backoff is the waiting time between tries: initial, doubled with each failure, at most max, with 20 % of jitter so that
// the members of a group do not come back all at once.
type backoff struct {
	initial, max time.Duration
	source       *rand.Rand
	// failures counts since the last reset.
	failures int
}

func newBackoff(initial, limit time.Duration, seed uint64) backoff {
	if initial == 0 {
		initial = defaultBackoffInitial
	}
	if limit == 0 {
		limit = max(defaultBackoffMax, initial)
	}
	return backoff{initial: initial, max: limit, source: rand.New(rand.NewPCG(seed, 0x7472_6f75_7065))}
}

// next counts a failure and returns how long to wait after it.
func (b *backoff) next() time.Duration {
	wait := b.initial
	for i := 0; i < b.failures && wait < b.max; i++ {
		wait *= 2
	}
	b.failures++
	return b.jitter(min(wait, b.max))
}

// soon counts a failure and returns zero for the first one, so that a single mishap costs no time and a series of them is
// no hot loop.
func (b *backoff) soon() time.Duration {
	if b.failures == 0 {
		b.failures++
		return 0
	}
	return b.next()
}

// slow counts a failure and returns the longest wait: nothing but a change outside helps.
func (b *backoff) slow() time.Duration {
	b.failures++
	return b.jitter(b.max)
}

func (b *backoff) reset() { b.failures = 0 }

// jitter takes up to 20 % off, so that the limit stays a limit.
func (b *backoff) jitter(wait time.Duration) time.Duration {
	return wait - time.Duration(b.source.Float64()*0.2*float64(wait))
}
