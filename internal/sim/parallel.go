package sim

import (
	"time"

	"github.com/troupego/troupe/rebalance"
)

// laneRetry is a lane whose lowest record failed and waits for its next try.
type laneRetry struct {
	seq      uint64
	failures int
	due      int64
	waiting  bool
}

// startEngine makes the engine for the positions that begin now.
func (s *partitionShell) startEngine() {
	if s.w.script.Order == OrderPartition {
		return
	}
	s.engine = newEngine(s)
	s.retries = nil
	if s.paused {
		s.engine.pause()
	}
	if s.lost {
		s.engine.stop()
	}
}

// endEngine makes everything of the engine stale. The gate is given back when its last call has returned.
func (s *partitionShell) endEngine() {
	if s.engine == nil {
		return
	}
	gated := s.gated && s.w.script.Handler != HandleActor
	s.gated = s.gated && !gated
	s.engine.end(gated)
	s.endOpen()
}

// fillEngine gives the engine what it has room for.
func (s *partitionShell) fillEngine() {
	e := s.engine
	if s.rewind != nil || !s.process.session.enter(s.box) {
		return
	}
	if !s.gated {
		if s.gated = s.process.enterGate(s.part, s.epoch, s); !s.gated {
			return
		}
	}
	for {
		s.window.Update(s.tracker.InTransit())
		room := min(s.window.Room(s.tracker.InTransit()), e.lanes.Room())
		if s.w.mutant == MutantWindowNeverCloses {
			room = e.lanes.Room()
		}
		s.w.check.windowAsked(s)
		records := s.takeFresh(room)
		if len(records) == 0 {
			break
		}
		s.w.check.inTransit(s)
		if !s.busy {
			s.busy = true
			s.feed(rebalance.DeliveryStarted{})
		}
		e.push(records)
	}
	if s.w.script.Handler == HandleActor {
		s.handOut()
	}
}

// engineSignaled takes over what the engine has, and gives it more.
func (s *partitionShell) engineSignaled(e *engine) {
	if e != s.engine {
		s.w.stats.Stale++
		return
	}
	fresh := e.collect()
	failures := e.failures
	e.failures, e.signaled, e.fresh, e.armed = nil, false, 0, false
	busy := e.working()
	if fresh > 0 {
		s.offer()
	}
	for _, seq := range failures {
		s.laneFailed(seq)
	}
	s.notBusy()
	if busy {
		s.w.timeline.push(s.w.at+int64(signalSpacing), eventPost, 0, e)
	} else {
		e.rearm()
		s.rewindNow()
	}
	s.pump()
	s.pausedNow()
}

// laneFailed sets the next try of a lane's lowest record. Only its lane waits.
func (s *partitionShell) laneFailed(seq uint64) {
	if !s.machine.CanDeliver() || s.w.mutant == MutantRetryForgotten {
		return
	}
	var r *laneRetry
	for _, known := range s.retries {
		if known.seq == seq {
			r = known
		}
	}
	if r == nil {
		r = &laneRetry{seq: seq}
		s.retries = append(s.retries, r)
	}
	r.due, r.waiting = s.w.at+int64(min(backoffInitial<<min(r.failures, 16), backoffMax)), true
	r.failures++
	s.w.stats.Parked++
	s.retryAlarm()
}

func (s *partitionShell) retryAlarm() {
	s.backoff.set = false
	next := int64(0)
	for _, r := range s.retries {
		if r.waiting && (next == 0 || r.due < next) {
			next = r.due
		}
	}
	if next > 0 {
		s.w.setAlarmIn(&s.backoff, time.Duration(next-s.w.at))
	}
}

// retryDue lets the lanes go on whose wait is over.
func (s *partitionShell) retryDue() {
	var due []uint64
	for _, r := range s.retries {
		if r.waiting && r.due <= s.w.at {
			r.waiting = false
			due = append(due, r.seq)
		}
	}
	s.retryAlarm()
	if len(due) == 0 || !s.machine.CanDeliver() || s.paused && s.w.mutant == MutantResumeForgets {
		return
	}
	if !s.busy {
		s.busy = true
		s.feed(rebalance.DeliveryStarted{})
	}
	for _, seq := range due {
		s.engine.lanes.Unpark(seq)
	}
	s.engine.active = true
	s.engine.offer()
	s.pump()
}
