package commit

import (
	"errors"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// openFlush is a flush that was not answered.
type openFlush struct {
	id       uint64
	lane     *lane
	target   int64
	deadline time.Time
	// round is the first round with the lane that was sent since, 0 for none: it has whatever was offered before the flush.
	round uint64
	// placed: it waits for an offset that was placed, not for one that was offered.
	placed bool
	// run is the position epoch that it was asked in.
	run uint32
}

func (r *Rounds) flush(now time.Time, in Flush) {
	l := r.lanes[in.TopicPartition]
	if l == nil || l.epoch != in.Epoch {
		r.stale++
		r.emit(Flushed{
			ID: in.ID, TopicPartition: in.TopicPartition, Epoch: in.Epoch, Committed: kafka.NoOffset, Pending: kafka.NoOffset,
			Err: &FlushError{TopicPartition: in.TopicPartition, Epoch: in.Epoch, Offset: kafka.NoOffset, Reason: ErrEpochClosed},
		})
		return
	}
	if l.want == wantNothing {
		r.emit(r.flushed(in.ID, l, nil))
		return
	}
	r.await(now, openFlush{id: in.ID, lane: l, target: r.highest(l), deadline: in.Deadline})
}

// await begins to wait for a flush, if that makes sense.
func (r *Rounds) await(now time.Time, open openFlush) {
	l := open.lane
	switch {
	case r.departure != nil:
		r.end(&open, ErrDeparted, r.departure)
	case !now.Before(open.deadline):
		r.end(&open, ErrFlushDeadline, l.cause)
	default:
		r.flushes = append(r.flushes, open)
		l.flushes++
		// Whatever wait is left from earlier failures, one try is made now.
		l.notBefore, r.requestNotBefore = time.Time{}, time.Time{}
		r.dirty = true
	}
}

// highest returns the highest offset that a lane was given.
func (r *Rounds) highest(l *lane) int64 {
	if l.placed != nil {
		return max(l.placed.Offset, l.offered.Offset)
	}
	return l.offered.Offset
}

// place takes over an offset of the user's, which begins a new position epoch.
func (r *Rounds) place(now time.Time, in Place) {
	offset := in.Offset
	l := r.lanes[offset.TopicPartition]
	refuse := func(committed int64, reason error) {
		r.emit(Flushed{
			ID: in.ID, TopicPartition: offset.TopicPartition, Epoch: offset.Epoch, Committed: committed, Pending: kafka.NoOffset,
			Err: &FlushError{TopicPartition: offset.TopicPartition, Epoch: offset.Epoch, Offset: offset.Offset, Reason: reason},
		})
	}
	switch {
	case l == nil || l.epoch != offset.Epoch || offset.PositionEpoch <= l.run:
		r.stale++
		refuse(kafka.NoOffset, ErrEpochClosed)
	case r.manual:
		refuse(l.committed, ErrManual)
	default:
		if l.noMaps {
			offset.Metadata = WithoutMap(offset.Metadata)
		}
		r.rewind(now, l, offset.PositionEpoch, offset.Offset)
		l.placed = &offset
		if in.Call != 0 && !in.Last {
			l.call, l.gathered = in.Call, now.Add(GatherWait)
		}
		r.settle(now, l)
		r.await(now, openFlush{id: in.ID, lane: l, target: offset.Offset, deadline: in.Deadline, placed: true, run: l.run})
	}
	if in.Last {
		r.gather(in.Call)
	}
}

// gather lets what was placed by one call go.
func (r *Rounds) gather(call uint64) {
	for _, l := range r.pending {
		if l.call == call && call != 0 {
			l.call, l.gathered, r.dirty = 0, time.Time{}, true
		}
	}
}

// end answers a flush that is given up. Where only an offset map was left to wait for, that is no error.
func (r *Rounds) end(open *openFlush, reason, cause error) {
	l := open.lane
	if l.committed >= open.target {
		r.emit(r.flushed(open.id, l, nil))
		return
	}
	if errors.Is(cause, reason) {
		cause = nil
	}
	r.emit(r.flushed(open.id, l, &FlushError{
		TopicPartition: l.tp, Epoch: l.epoch, Offset: open.target, Reason: reason, Cause: cause,
	}))
}

func (r *Rounds) flushed(id uint64, l *lane, err error) Flushed {
	pending := kafka.NoOffset
	if l.want == wantOffset || l.want == wantPlaced {
		pending = r.highest(l)
	}
	return Flushed{ID: id, TopicPartition: l.tp, Epoch: l.epoch, Committed: l.committed, Pending: pending, Err: err}
}

// done reports whether a flush has nothing to wait for: its offset is confirmed, and there is no map to be sent, or it
// cannot be sent now, or the round with it was answered.
func (r *Rounds) done(open *openFlush) bool {
	if open.lane.committed < open.target {
		return false
	}
	tried := open.round != 0 && (!r.inFlight || r.flight.ID != open.round)
	return open.lane.want != wantMap || r.phase != phaseOpen || tried
}

// answerFlushes ends the flushes that are done.
func (r *Rounds) answerFlushes() {
	r.takeFlushes(r.done, func(open *openFlush) { r.emit(r.flushed(open.id, open.lane, nil)) })
}

// expire answers the flushes whose deadline has come.
func (r *Rounds) expire(now time.Time) {
	r.takeFlushes(
		func(open *openFlush) bool { return !now.Before(open.deadline) },
		func(open *openFlush) { r.end(open, ErrFlushDeadline, open.lane.cause) },
	)
}

// endFlushes gives up the flushes chosen.
func (r *Rounds) endFlushes(chosen func(*openFlush) bool, reason, cause error) {
	r.takeFlushes(chosen, func(open *openFlush) { r.end(open, reason, cause) })
}

// takeFlushes takes the flushes chosen out and answers them.
func (r *Rounds) takeFlushes(chosen func(*openFlush) bool, answer func(*openFlush)) {
	if len(r.flushes) == 0 {
		return
	}
	kept := r.flushes[:0]
	for i := range r.flushes {
		open := &r.flushes[i]
		if !chosen(open) {
			kept = append(kept, *open)
			continue
		}
		open.lane.flushes--
		r.dirty = true
		answer(open)
	}
	clear(r.flushes[len(kept):])
	r.flushes = kept
}

func (r *Rounds) departed(cause error) {
	if cause == nil {
		cause = ErrDeparted
	}
	r.phase, r.departure, r.dirty = phaseOutside, cause, true
	r.endFlushes(func(*openFlush) bool { return true }, ErrDeparted, cause)
}
