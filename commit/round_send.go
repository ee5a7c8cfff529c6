package commit

import (
	"errors"
	"slices"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// send emits a round when one is due. It takes every pending lane along whose own wait is over, also those that alone
// would wait for the spacing or for the time their strategy named: the request goes out anyway. Only what the strategy does
// not ask for at any time stays. Of a lane with a placed offset that goes, whatever was offered since.
func (r *Rounds) send(now time.Time) {
	if r.dirty {
		r.plan()
	}
	if !r.hasDue || now.Before(r.due) {
		return
	}
	offsets := make([]Offset, 0, len(r.pending))
	for _, l := range r.pending {
		if now.Before(later(l.notBefore, l.gathered)) || !r.mayGoAlong(l) {
			continue
		}
		l.urgent, l.sent = false, r.lastID+1
		if l.placed != nil {
			offsets = append(offsets, *l.placed)
			continue
		}
		offsets = append(offsets, l.offered)
		l.sinceNext = time.Time{}
	}
	slices.SortFunc(offsets, func(a, b Offset) int { return a.TopicPartition.Compare(b.TopicPartition) })
	r.lastID++
	r.flight = Round{
		ID: r.lastID, GroupID: r.config.GroupID, MemberID: r.memberID, GroupInstanceID: r.config.GroupInstanceID,
		Generation: r.generation, Offsets: offsets,
	}
	r.inFlight, r.lastSend, r.dirty = true, now, true
	for i := range r.flushes {
		if open := &r.flushes[i]; open.round == 0 && open.lane.sent == r.lastID && open.lane.placed == nil {
			open.round = r.lastID
		}
	}
	r.emit(SendRound{Round: r.flight})
}

// failure collects what one answer failed to confirm.
type failure struct {
	partitions map[kafka.TopicPartition]error
	// membership and coordinator are the first errors that put either in doubt.
	membership, coordinator error
}

func (r *Rounds) answered(now time.Time, in Answered) {
	if !r.inFlight || in.ID != r.flight.ID {
		r.stale++
		return
	}
	round := r.flight
	r.flight, r.inFlight, r.dirty = Round{}, false, true
	for i := range r.flushes {
		if open := &r.flushes[i]; in.NotSent && open.round == round.ID {
			open.round = 0
		}
	}
	var failed failure
	for i := range round.Offsets {
		sent := &round.Offsets[i]
		err := in.Err
		if err == nil {
			var named bool
			if err, named = in.Results[sent.TopicPartition]; !named {
				err = ErrUnanswered
			}
		}
		l := r.lanes[sent.TopicPartition]
		if l == nil || l.epoch != sent.Epoch || l.run != sent.PositionEpoch {
			r.stale++
			l = nil
		}
		switch {
		case err != nil:
			r.refused(now, l, sent, err, in.Err != nil, &failed)
		case l != nil:
			r.confirm(now, l, sent)
		}
	}
	if in.Err == nil {
		r.requestAttempts, r.requestNotBefore = 0, time.Time{}
	} else {
		r.requestFailed(now, in.Err)
	}
	r.report(now, round, in.Err, &failed)
}

// confirm notes that the coordinator has an offset.
func (r *Rounds) confirm(now time.Time, l *lane, sent *Offset) {
	if l.placed != nil { // since it was placed, nothing else of this position epoch went out
		l.placed = nil
		if l.offered.Offset < sent.Offset {
			l.offered = *sent
		}
	}
	l.committed, l.metadata, l.lastCommit = max(l.committed, sent.Offset), sent.Metadata, now
	if sent.Finished <= l.offered.Finished { // else the count has begun anew meanwhile
		l.counted = sent.Finished
	}
	l.since, l.sinceNext = l.sinceNext, time.Time{}
	l.attempts, l.notBefore, l.cause = 0, time.Time{}, nil
	r.settle(now, l)
	r.emit(Committed{Offset: *sent})
}

// refused notes one partition's failure; l is nil when its epoch is closed, whole says that the request failed as one.
func (r *Rounds) refused(now time.Time, l *lane, sent *Offset, err error, whole bool, failed *failure) {
	kind := classify(err)
	if kind == classMembership && failed.membership == nil {
		failed.membership = err
	}
	if kind == classCoordinator && failed.coordinator == nil {
		failed.coordinator = err
	}
	if l == nil {
		return
	}
	if failed.partitions == nil {
		failed.partitions = map[kafka.TopicPartition]error{}
	}
	failed.partitions[l.tp] = err
	l.cause = err
	l.attempts++
	switch {
	case kind == classMetadata && l.placed != nil && !hasMap(sent.Metadata) && hasUser(sent.Metadata) && r.awaited(l):
		r.withdraw(now, l, err)
	case kind == classMetadata && sent.Metadata != "":
		r.shorten(now, l, sent)
	case whole:
		// The request's own wait holds for all of them.
	case kind == classSlow || kind == classMetadata:
		l.notBefore = now.Add(r.jittered(r.config.BackoffMax))
	case l.flushes > 0:
		l.notBefore = now.Add(r.jittered(r.config.BackoffInitial))
	default:
		l.notBefore = now.Add(r.backoff(l.attempts))
	}
}

// awaited reports whether who placed the offset still waits for it. That who placed one before it waits does not count.
func (r *Rounds) awaited(l *lane) bool {
	return slices.ContainsFunc(r.flushes, func(open openFlush) bool { return open.lane == l && open.placed && open.run == l.run })
}

// withdraw gives up a placed offset, whose caller waits, because of what the user gave along with it, and answers who placed it. What the
// coordinator has stays as it is, and what is offered from now on is committed as ever.
func (r *Rounds) withdraw(now time.Time, l *lane, cause error) {
	l.placed, l.since, l.sinceNext = nil, now, time.Time{}
	r.settle(now, l)
	r.endFlushes(func(open *openFlush) bool { return open.lane == l && open.placed }, ErrMetadataTooLarge, cause)
}

// shorten takes from what is to be sent the part of the metadata that was too large, to be sent again at once: the map, and if
// that was left out already, all of it. What is sent without metadata and refused again waits like any other failure.
func (r *Rounds) shorten(now time.Time, l *lane, sent *Offset) {
	l.noMaps = true
	l.offered.Metadata = WithoutMap(l.offered.Metadata)
	next := &l.offered
	if l.placed != nil {
		next = l.placed
	}
	if hasMap(sent.Metadata) {
		next.Metadata = WithoutMap(next.Metadata)
	} else {
		next.Metadata = ""
	}
	l.notBefore = time.Time{}
	r.settle(now, l)
	l.urgent = l.want != wantNothing
}

// requestFailed makes everything wait: the next request would fail like this one.
func (r *Rounds) requestFailed(now time.Time, err error) {
	r.requestAttempts++
	wait := r.backoff(r.requestAttempts)
	switch {
	case classify(err) == classSlow:
		wait = r.jittered(r.config.BackoffMax)
	case len(r.flushes) > 0:
		wait = r.jittered(r.config.BackoffInitial)
	}
	r.requestNotBefore = now.Add(wait)
}

// report acts on doubts about the membership and emits what is to be known of a round that was not confirmed in full.
func (r *Rounds) report(now time.Time, round Round, requestErr error, failed *failure) {
	doubted := false
	switch {
	case failed.membership == nil:
	case round.Generation != r.generation || round.MemberID != r.memberID:
		// The membership before this one was refused, which proves nothing about the present one.
		r.retryRefused()
	case r.phase == phaseOpen:
		doubted, r.phase = true, phaseDoubted
	case r.phase == phaseHeld:
		// A JoinGroup is under way, so an old generation is expected; a member id that is gone is not.
		doubted = !errors.Is(failed.membership, kafka.IllegalGeneration)
	}
	if len(failed.partitions) > 0 {
		attempt, retryAt := r.retry(now, failed.partitions)
		r.emit(RoundFailed{
			Round: round, Partitions: failed.partitions, Err: requestErr, Attempt: attempt, RetryAt: retryAt,
		})
	}
	if doubted {
		r.emit(MembershipDoubted{Generation: round.Generation, Err: failed.membership})
	}
	if failed.coordinator != nil {
		r.emit(CoordinatorDoubted{Err: failed.coordinator})
	}
}

// retryRefused ends the waits of what was refused for an old membership or for a rebalance: the present one may send it.
func (r *Rounds) retryRefused() {
	for _, l := range r.pending {
		if l.cause == nil {
			continue
		}
		if kind := classify(l.cause); kind == classLater || kind == classMembership {
			l.notBefore, r.requestNotBefore = time.Time{}, time.Time{}
		}
	}
	r.dirty = true
}

// retry returns how often the partitions failed in a row, the highest of them, and when the first of them is sent again:
// the zero time while nothing is sent or asked for.
func (r *Rounds) retry(now time.Time, partitions map[kafka.TopicPartition]error) (attempt int, at time.Time) {
	for tp := range partitions {
		l := r.lanes[tp]
		attempt = max(attempt, l.attempts)
		if next, ok := r.sendable(l); ok && (at.IsZero() || later(now, next).Before(at)) {
			at = later(now, next)
		}
	}
	if r.phase != phaseOpen {
		at = time.Time{}
	}
	return attempt, at
}

// backoff returns the wait after that many failures in a row.
func (r *Rounds) backoff(attempts int) time.Duration {
	wait := r.config.BackoffInitial
	for i := 1; i < attempts && wait < r.config.BackoffMax; i++ {
		wait *= 2
	}
	return r.jittered(min(wait, r.config.BackoffMax))
}

// jittered returns wait ± 20 %, so that members do not come back in step.
func (r *Rounds) jittered(wait time.Duration) time.Duration {
	return time.Duration(float64(wait) * (0.8 + 0.4*r.random.Float64()))
}
