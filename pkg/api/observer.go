package api

import (
	"fmt"
	"runtime/debug"
	"sync"

	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
)

// observer is the ring between the actors, which must never wait, and the user's function, which may take for ever.
//
// Invariants: at most len(ring) events wait; what is offered when the ring is full pushes the oldest out. One goroutine
// calls the function and ends after it was told event.Closed; what is offered after that is dropped.
type observer struct {
	tell   func(event.Event)
	logger *zap.Logger
	// ready has a value when there may be something to do.
	ready chan struct{}
	// ended is closed when the goroutine is gone.
	ended chan struct{}

	mu       sync.Mutex
	ring     []event.Event
	first    int
	waiting  int
	dropped  uint64
	finished bool
}

// newObserver starts the goroutine.
func newObserver(tell func(event.Event), size int, logger *zap.Logger) *observer {
	o := &observer{tell: tell, logger: logger, ready: make(chan struct{}, 1), ended: make(chan struct{}), ring: make([]event.Event, size)}
	go o.run()
	return o
}

// offer takes an event. It never waits for the function.
func (o *observer) offer(e event.Event) {
	o.mu.Lock()
	if o.finished {
		o.dropped++
		o.mu.Unlock()
		return
	}
	if o.waiting == len(o.ring) {
		o.pop()
		o.dropped++
	}
	o.ring[(o.first+o.waiting)%len(o.ring)] = e
	o.waiting++
	_, last := e.(event.Closed)
	o.finished = last
	o.mu.Unlock()
	o.wake()
}

// drops is how many events the function was not told.
func (o *observer) drops() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropped
}

func (o *observer) wake() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// pop takes the oldest event out. The caller holds the lock, and there is one.
func (o *observer) pop() event.Event {
	e := o.ring[o.first]
	o.ring[o.first] = nil
	o.first = (o.first + 1) % len(o.ring)
	o.waiting--
	return e
}

// next returns the oldest event, and whether there will never be one again.
func (o *observer) next() (e event.Event, over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting > 0 {
		return o.pop(), false
	}
	return nil, o.finished
}

func (o *observer) run() {
	over := false
	defer func() {
		if over {
			close(o.ended)
			return
		}
		// The function ended this goroutine with runtime.Goexit, as a test's FailNow does.
		o.logger.Error("observer ended its goroutine")
		go o.run()
	}()
	for !over {
		var e event.Event
		if e, over = o.next(); e != nil {
			o.call(e)
		} else if !over {
			<-o.ready
		}
	}
}

func (o *observer) call(e event.Event) {
	defer func() {
		if v := recover(); v != nil {
			o.logger.Error("observer panicked", zap.String("event", e.Name()), zap.String("panic", fmt.Sprint(v)),
				zap.ByteString("stack", debug.Stack()))
		}
	}()
	o.tell(e)
}
