package actors

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// session says until when the membership can be trusted. The heartbeat moves that on; whoever commits or delivers looks at
// it first. The group is told as well when a session is over (sessionLapsed), but a message takes time: in a process that
// was frozen (SIGSTOP, a paused machine) commits and handlers would go on at once, with what has long been another
// member's (G4).
//
// A session that is over either begins to count again, by an answer that was only late to be looked at, or it lapses.
type session struct {
	sys     *system
	timeout time.Duration
	// base is what until counts from, in nanoseconds of the monotonic clock. Zero, which is
	// over: no generation was entered yet.
	base  time.Time
	until atomic.Int64

	mu sync.Mutex
	// changed is closed, and made anew, when the session goes on or lapses.
	changed chan struct{}
	// lapsed is true from when a session was given up until the next one begins.
	lapsed  bool
	waiting []*actor.PID
}

func newSession(sys *system, timeout time.Duration) *session {
	return &session{sys: sys, timeout: timeout, base: time.Now(), changed: make(chan struct{})}
}

// begin starts the session of a generation that was entered now.
func (s *session) begin(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lapsed = false
	s.until.Store(int64(now.Add(s.timeout).Sub(s.base)))
	s.tell()
}

// alive moves the session on: a heartbeat that was sent at a time has been answered.
func (s *session) alive(sentAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := int64(sentAt.Add(s.timeout).Sub(s.base)); !s.lapsed && until > s.until.Load() {
		s.until.Store(until)
		s.tell()
	}
}

// lapse gives the session up: what was delivered under it is lost.
func (s *session) lapse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lapsed = true
	s.tell()
}

// tell wakes everybody who waits. The caller holds mu.
func (s *session) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
	for _, pid := range s.waiting {
		s.sys.root.Send(pid, &placeFree{})
	}
	s.waiting = nil
}

// over reports whether the session cannot be trusted now.
func (s *session) over() bool {
	return int64(time.Since(s.base)) >= s.until.Load()
}

// enter lets its caller begin something. If the session is over, waiter gets a placeFree when there is a new reason to ask
// again.
func (s *session) enter(waiter *actor.PID) bool {
	if !s.over() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over() {
		return true
	}
	if !slices.ContainsFunc(s.waiting, waiter.Equal) {
		s.waiting = append(s.waiting, waiter)
	}
	return false
}

// hold is enter for a goroutine: it waits until the session goes on, the next one begins, or ctx, a delivery's, ends. Who goes on
// must ask whether the delivery was halted: what was lost with a session is, before the next one begins. That it lapsed says
// nothing by itself: a heartbeat that was held up may find the session of a generation over that the group has long left.
func (s *session) hold(ctx context.Context) {
	for s.over() {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if !s.over() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// pacer says before which records of a delivery the clock is worth a look: before each where they take their time, before
// every sixteenth at least where they do not.
type pacer struct {
	next, step int
	last       time.Time
}

const (
	pacerMax  = 16
	pacerFast = 500 * time.Microsecond
)

// restart begins another run of records, with what is known of their pace.
func (p *pacer) restart() { p.next = 0 }

// due reports whether to look before record i. They are asked for in order.
func (p *pacer) due(i int) bool {
	if i < p.next {
		return false
	}
	now := time.Now()
	if p.step == 0 || now.Sub(p.last) > pacerFast {
		p.step = 1
	} else {
		p.step = min(2*p.step, pacerMax)
	}
	p.next, p.last = i+p.step, now
	return true
}
