package actors

import (
	"sync"
	"sync/atomic"
)

// turnThroughput is protoactor's default number of messages between two yields.
const turnThroughput = 300

// maxParked is how many goroutines wait for a turn instead of ending.
const maxParked = 64

// turns is the dispatcher of our actors: it runs their turns on goroutines that stay. A new goroutine for every turn, as
// protoactor makes it, grows its stack anew each time, down to the decoder.
type turns struct {
	work   chan func()
	closed chan struct{}
	once   sync.Once
	parked atomic.Int32
}

func newTurns() *turns { return &turns{work: make(chan func()), closed: make(chan struct{})} }

// Throughput implements actor.Dispatcher.
func (t *turns) Throughput() int { return turnThroughput }

// Schedule implements actor.Dispatcher.
func (t *turns) Schedule(turn func()) {
	select {
	case t.work <- turn:
	default:
		go t.run(turn)
	}
}

func (t *turns) run(turn func()) {
	for {
		turn()
		if t.parked.Add(1) > maxParked {
			t.parked.Add(-1)
			return
		}
		select {
		case turn = <-t.work:
			t.parked.Add(-1)
		case <-t.closed:
			return
		}
	}
}

// close ends the goroutines that wait. Turns that come later get a goroutine each.
func (t *turns) close() { t.once.Do(func() { close(t.closed) }) }
