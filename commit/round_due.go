package commit

import (
	"fmt"
	"time"
)

// use makes the strategy the one in force; nil is opportunistic.
func (r *Rounds) use(strategy Strategy) {
	if strategy == nil {
		strategy = Opportunistic()
	}
	r.strategy = strategy
	_, r.opportunistic = strategy.(opportunistic)
	_, r.onDemand = strategy.(onDemand)
	r.manual = IsManual(strategy)
	if name, err := nameOf(strategy); err == nil {
		r.name = name
	} else {
		r.name = fmt.Sprintf("%T", strategy)
		r.replaceStrategy(err)
	}
}

// nameOf asks a strategy for its name.
func nameOf(strategy Strategy) (name string, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = panicked(thrown)
		}
	}()
	return strategy.Name(), nil
}

// ask asks a strategy when a state is due.
func ask(strategy Strategy, state State) (at time.Time, ok bool, err error) {
	defer func() {
		if thrown := recover(); thrown != nil {
			err = panicked(thrown)
		}
	}()
	at, ok = strategy.Due(state)
	return at, ok, nil
}

func panicked(thrown any) error {
	if err, is := thrown.(error); is {
		return fmt.Errorf("%w: %w", ErrStrategyPanicked, err)
	}
	return fmt.Errorf("%w: %v", ErrStrategyPanicked, thrown)
}

// replaceStrategy puts the default in the place of a strategy that panicked, for good. What the other one decided is void.
func (r *Rounds) replaceStrategy(err error) {
	r.emit(StrategyFailed{Name: r.name, Err: err})
	r.use(Opportunistic())
	r.dirty = true
}

// decide returns when the strategy wants a lane's offset committed. It is asked once for each state of the lane.
func (r *Rounds) decide(l *lane) (at time.Time, ok bool) {
	if r.opportunistic {
		return time.Time{}, true
	}
	if l.decided {
		return l.dueAt, l.isDue
	}
	state := State{
		TopicPartition: l.tp, Committed: l.committed, Finished: l.offered.Offset, Since: l.since, LastCommit: l.lastCommit,
	}
	if l.offered.Finished > l.counted {
		state.Records = l.offered.Finished - l.counted
	}
	at, ok, err := ask(r.strategy, state)
	if err != nil {
		r.replaceStrategy(err)
		return time.Time{}, true
	}
	l.dueAt, l.isDue, l.decided = at, ok, true
	return at, ok
}

// sendable returns the earliest time at which a pending lane makes a round go out, and false when it does not by itself.
func (r *Rounds) sendable(l *lane) (at time.Time, ok bool) {
	at = later(l.notBefore, r.requestNotBefore)
	if l.want == wantPlaced {
		return later(at, l.gathered), true
	}
	if l.flushes > 0 || l.urgent {
		return at, true
	}
	if r.lastID > 0 {
		at = later(at, r.lastSend.Add(r.config.Spacing))
	}
	if l.want == wantMap {
		return later(at, later(l.opened, l.lastCommit).Add(r.config.MapSpacing)), !r.onDemand
	}
	due, ok := r.decide(l)
	return later(at, due), ok
}

// mayGoAlong reports whether a pending lane belongs into a round that goes out.
func (r *Rounds) mayGoAlong(l *lane) bool {
	if l.flushes > 0 || l.urgent || l.want == wantMap || l.want == wantPlaced {
		return true
	}
	_, ok := r.decide(l)
	return ok
}

// replan looks anew at one pending lane, so that not all others need to be looked at.
func (r *Rounds) replan(l *lane) {
	if r.dirty || r.inFlight || r.phase != phaseOpen {
		return
	}
	before, was := l.at, l.ready
	l.at, l.ready = r.sendable(l)
	switch {
	case l.ready && (!r.hasDue || l.at.Before(r.due)):
		r.due, r.hasDue = l.at, true
	case was && before.Equal(r.due) && !(l.ready && l.at.Equal(r.due)):
		r.dirty = true // it may have been the first
	}
}

// plan recomputes when the next round may go out. It starts over when the strategy is replaced in between.
func (r *Rounds) plan() {
	for again := true; again; again = r.dirty {
		r.dirty, r.hasDue, r.due = false, false, time.Time{}
		if r.inFlight || r.phase != phaseOpen {
			return
		}
		for _, l := range r.pending {
			l.at, l.ready = r.sendable(l)
			if l.ready && (!r.hasDue || l.at.Before(r.due)) {
				r.due, r.hasDue = l.at, true
			}
		}
	}
}

// Deadline returns when the next [Tick] is wanted: when a round may go out or the first open flush ends. A time in the
// past means at once.
func (r *Rounds) Deadline() (time.Time, bool) {
	if r.dirty {
		r.plan()
	}
	deadline, ok := r.due, r.hasDue
	for _, open := range r.flushes {
		if !ok || open.deadline.Before(deadline) {
			deadline, ok = open.deadline, true
		}
	}
	return deadline, ok
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
