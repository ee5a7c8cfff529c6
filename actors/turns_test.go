package actors

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTurns_EveryTurnRunsAlsoAfterTheEnd(t *testing.T) {
	turns := newTurns()
	var all sync.WaitGroup
	var mu sync.Mutex
	ran := 0
	schedule := func(n int) {
		for range n {
			all.Add(1)
			turns.Schedule(func() {
				defer all.Done()
				mu.Lock()
				ran++
				mu.Unlock()
			})
		}
	}
	schedule(3 * maxParked)
	all.Wait()
	turns.close()
	turns.close()
	schedule(10)
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, 3*maxParked+10, ran)
}

// One turn that waits must not hold up another: a parked goroutine takes one turn, and a new one the next.
func TestTurns_ABlockedTurnHoldsNobodyUp(t *testing.T) {
	turns := newTurns()
	defer turns.close()
	release, done := make(chan struct{}), make(chan struct{})
	turns.Schedule(func() { <-release })
	turns.Schedule(func() { close(done) })
	<-done
	close(release)
}
