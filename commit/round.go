package commit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Defaults of [RoundsConfig].
const (
	DefaultSpacing        = 200 * time.Millisecond
	DefaultBackoffInitial = 100 * time.Millisecond
	DefaultBackoffMax     = time.Second
)

// RoundsConfig configures [Rounds].
type RoundsConfig struct {
	// GroupID goes into every round (group.id).
	GroupID string
	// GroupInstanceID is a static member's name (group.instance.id), empty for a dynamic member.
	GroupInstanceID string
	// Spacing is the least time between the sending of two rounds, flushes excepted. Zero is DefaultSpacing, negative is
	// none.
	Spacing time.Duration
	// BackoffInitial is the wait after the first failure of a partition; it doubles with each further one, ± 20 %. Zero
	// is DefaultBackoffInitial (retry.backoff.ms).
	BackoffInitial time.Duration
	// BackoffMax is the longest wait, ± 20 %, and the wait after an error that a quick retry cannot mend. Zero is
	// DefaultBackoffMax (retry.backoff.max.ms). It is raised to BackoffInitial.
	BackoffMax time.Duration
	// Seed feeds the jitter.
	Seed uint64
}

// phase says whether rounds may be sent.
type phase uint8

const (
	// phaseOutside: no membership, so nothing is sent. It is the first phase; Departed enters it, Held and Entered leave it.
	phaseOutside phase = iota
	// phaseOpen: rounds are sent with the generation entered. Entered enters it; Held, Departed and a refusal that doubts
	// the membership leave it.
	phaseOpen
	// phaseHeld: a JoinGroup is under way, nothing is sent. Held enters it; Entered and Departed leave it.
	phaseHeld
	// phaseDoubted: the coordinator refused this generation, so nothing is sent with it again. Entered, Held and Departed
	// leave it.
	phaseDoubted
)

// String returns the phase's name.
func (p phase) String() string {
	switch p {
	case phaseOutside:
		return "OUTSIDE"
	case phaseOpen:
		return "OPEN"
	case phaseHeld:
		return "HELD"
	case phaseDoubted:
		return "DOUBTED"
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// lane is the one open epoch of one partition.
type lane struct {
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch
	// run is the position epoch; committed is the last offset confirmed in it, kafka.NoOffset for none, and never falls in it.
	run       uint32
	committed int64
	// offered is the highest offset offered; its Offset is kafka.NoOffset before the first. Its Metadata is empty once
	// the broker refused it.
	offered Offset
	// place is the index in Rounds.pending, -1 when nothing is to be confirmed.
	place int
	// attempts counts failures in a row, notBefore is the end of the wait after the last one, cause its error.
	attempts  int
	notBefore time.Time
	cause     error
	// urgent lets the next round with this partition go without spacing.
	urgent bool
	// flushes counts the open flushes of this partition.
	flushes int
}

// openFlush is a flush that was not answered.
type openFlush struct {
	id       uint64
	lane     *lane
	target   int64
	deadline time.Time
}

// Rounds decides what each OffsetCommit of a member holds and when it goes out. One round is in flight at a time; what
// is offered meanwhile coalesces into the next one. See the package comment for its place.
//
// Invariants (checked by Valid): a lane is in pending exactly when its offered offset is above its committed one; every
// open flush belongs to an open lane and asks for more than is committed; a partition is open or closed, never both; due,
// unless dirty, is when the first pending lane may be sent, and unset while a round is in flight.
type Rounds struct {
	config RoundsConfig
	random *rand.Rand

	phase      phase
	generation kafka.Generation
	memberID   string
	// departure is the cause of the last Departed, nil from Held or Entered on.
	departure error

	lanes map[kafka.TopicPartition]*lane
	// closed has the last closed epoch of each partition that is not open, so that nothing late opens it again.
	closed  map[kafka.TopicPartition]kafka.AssignmentEpoch
	pending []*lane
	flushes []openFlush

	// flight is the round in flight when inFlight.
	flight   Round
	inFlight bool
	lastID   uint64
	// lastSend is when the last round was sent.
	lastSend time.Time
	// requestAttempts counts whole requests that failed in a row; nothing is sent before requestNotBefore.
	requestAttempts  int
	requestNotBefore time.Time

	// due is when the next round may go out, valid when hasDue; it is recomputed when dirty.
	due    time.Time
	hasDue bool
	dirty  bool

	stale   uint64
	effects []Effect
}

// NewRounds returns a machine outside of any membership and without partitions.
func NewRounds(config RoundsConfig) *Rounds {
	if config.Spacing == 0 {
		config.Spacing = DefaultSpacing
	}
	config.Spacing = max(config.Spacing, 0)
	if config.BackoffInitial <= 0 {
		config.BackoffInitial = DefaultBackoffInitial
	}
	if config.BackoffMax <= 0 {
		config.BackoffMax = DefaultBackoffMax
	}
	config.BackoffMax = max(config.BackoffMax, config.BackoffInitial)
	return &Rounds{
		config:     config,
		random:     rand.New(rand.NewPCG(config.Seed, 0x7c0ffe)),
		generation: kafka.NoGeneration,
		lanes:      map[kafka.TopicPartition]*lane{},
		closed:     map[kafka.TopicPartition]kafka.AssignmentEpoch{},
	}
}

// Step takes one input at the time now and returns what to do, in order. An error means misuse (ErrInvalidInput, ErrDuplicateFlush) and that nothing changed.
// An input of an old epoch or of another round is no error: it is ignored and counted by Stale.
func (r *Rounds) Step(now time.Time, in Input) ([]Effect, error) {
	if err := r.check(in); err != nil {
		return nil, err
	}
	switch in := in.(type) {
	case Assigned:
		r.assigned(in)
	case Offered:
		r.offer(in.Offset)
	case Entered:
		r.entered(in)
	case Held:
		r.phase, r.departure, r.dirty = phaseHeld, nil, true
	case Departed:
		r.departed(in.Cause)
	case Flush:
		r.flush(now, in)
	case Fenced:
		r.fenced(in)
	case Answered:
		r.answered(now, in)
	case Tick:
	}
	r.expire(now)
	r.send(now)
	effects := r.effects
	r.effects = nil
	return effects, nil
}

// check refuses inputs that no history can contain.
func (r *Rounds) check(in Input) error {
	switch in := in.(type) {
	case Assigned:
		if in.Committed < kafka.NoOffset {
			return fmt.Errorf("%w: %s assigned with committed offset %d", ErrInvalidInput, in.TopicPartition, in.Committed)
		}
	case Offered:
		if in.Offset.Offset < 0 {
			return fmt.Errorf("%w: offset %d offered for %s", ErrInvalidInput, in.Offset.Offset, in.Offset.TopicPartition)
		}
	case Entered:
		if in.Generation < 0 {
			return fmt.Errorf("%w: generation %d entered", ErrInvalidInput, in.Generation)
		}
	case Flush:
		for _, open := range r.flushes {
			if open.id == in.ID {
				return fmt.Errorf("%w: %d", ErrDuplicateFlush, in.ID)
			}
		}
	case Held, Departed, Fenced, Answered, Tick:
	case nil:
		return fmt.Errorf("%w: nil", ErrInvalidInput)
	default:
		return fmt.Errorf("%w: %T", ErrInvalidInput, in)
	}
	return nil
}

func (r *Rounds) emit(effect Effect) { r.effects = append(r.effects, effect) }

func (r *Rounds) assigned(in Assigned) {
	if old := r.lanes[in.TopicPartition]; old != nil {
		if in.Epoch <= old.epoch {
			r.stale++
			return
		}
		r.shut(old)
	}
	if closed, ok := r.closed[in.TopicPartition]; ok && in.Epoch <= closed {
		r.stale++
		return
	}
	delete(r.closed, in.TopicPartition)
	r.lanes[in.TopicPartition] = &lane{
		tp: in.TopicPartition, epoch: in.Epoch, committed: in.Committed, place: -1,
		offered: Offset{TopicPartition: in.TopicPartition, Epoch: in.Epoch, Offset: kafka.NoOffset},
	}
}

func (r *Rounds) offer(offset Offset) {
	l := r.lanes[offset.TopicPartition]
	if l == nil || l.epoch != offset.Epoch || offset.PositionEpoch < l.run {
		r.stale++
		return
	}
	if offset.PositionEpoch > l.run {
		r.rewind(l, offset)
	}
	if offset.Offset <= l.offered.Offset {
		return
	}
	l.offered = offset
	r.settle(l)
}

// rewind begins a new position epoch: what was confirmed before says nothing about it, and a round in flight confirms
// nothing of it. Open flushes ask for where the position was set back to.
func (r *Rounds) rewind(l *lane, offset Offset) {
	l.run, l.committed, l.offered.Offset = offset.PositionEpoch, kafka.NoOffset, kafka.NoOffset
	l.attempts, l.notBefore, l.cause = 0, time.Time{}, nil
	for i := range r.flushes {
		if r.flushes[i].lane == l {
			r.flushes[i].target = min(r.flushes[i].target, offset.Offset)
		}
	}
}

// settle puts a lane into pending or takes it out, as its offsets say.
func (r *Rounds) settle(l *lane) {
	wanted := l.offered.Offset > l.committed
	switch {
	case wanted && l.place < 0:
		l.place = len(r.pending)
		r.pending = append(r.pending, l)
		// One more lane can only bring the next round nearer; no need to look at all the others.
		if !r.dirty && !r.inFlight && r.phase == phaseOpen {
			if at := r.sendable(l); !r.hasDue || at.Before(r.due) {
				r.due, r.hasDue = at, true
			}
		}
	case !wanted && l.place >= 0:
		last := len(r.pending) - 1
		moved := r.pending[last]
		r.pending[l.place], moved.place = moved, l.place
		r.pending[last] = nil
		r.pending, l.place = r.pending[:last], -1
		l.urgent = false
		r.dirty = true
	}
}

func (r *Rounds) entered(in Entered) {
	r.phase, r.generation, r.memberID, r.departure = phaseOpen, in.Generation, in.MemberID, nil
	r.retryRefused()
}

func (r *Rounds) departed(cause error) {
	if cause == nil {
		cause = ErrDeparted
	}
	r.phase, r.departure, r.dirty = phaseOutside, cause, true
	for _, open := range r.flushes {
		r.emit(r.flushed(open.id, open.lane, r.flushError(open.lane, open.target, ErrDeparted, cause)))
		open.lane.flushes--
	}
	r.dropFlushes()
}

func (r *Rounds) fenced(in Fenced) {
	l := r.lanes[in.TopicPartition]
	switch {
	case l != nil && in.Epoch >= l.epoch:
		r.shut(l)
		r.closed[in.TopicPartition] = in.Epoch
	case l != nil:
		r.stale++
	default:
		r.closed[in.TopicPartition] = max(in.Epoch, r.closed[in.TopicPartition])
	}
}

// shut closes a lane's epoch: it is forgotten, and its flushes fail.
func (r *Rounds) shut(l *lane) {
	kept := r.flushes[:0]
	for _, open := range r.flushes {
		if open.lane != l {
			kept = append(kept, open)
			continue
		}
		r.emit(r.flushed(open.id, l, r.flushError(l, open.target, ErrEpochClosed, l.cause)))
	}
	clear(r.flushes[len(kept):])
	r.flushes = kept
	l.flushes = 0
	delete(r.lanes, l.tp)
	r.closed[l.tp] = l.epoch
	l.offered.Offset = l.committed
	r.settle(l)
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
	switch {
	case l.place < 0:
		r.emit(r.flushed(in.ID, l, nil))
	case r.departure != nil:
		r.emit(r.flushed(in.ID, l, r.flushError(l, l.offered.Offset, ErrDeparted, r.departure)))
	case !now.Before(in.Deadline):
		r.emit(r.flushed(in.ID, l, r.flushError(l, l.offered.Offset, ErrFlushDeadline, l.cause)))
	default:
		r.flushes = append(r.flushes, openFlush{id: in.ID, lane: l, target: l.offered.Offset, deadline: in.Deadline})
		l.flushes++
		// Whatever wait is left from earlier failures, one try is made now.
		l.notBefore, r.requestNotBefore = time.Time{}, time.Time{}
		r.dirty = true
	}
}

func (r *Rounds) flushed(id uint64, l *lane, err error) Flushed {
	pending := kafka.NoOffset
	if l.place >= 0 {
		pending = l.offered.Offset
	}
	return Flushed{ID: id, TopicPartition: l.tp, Epoch: l.epoch, Committed: l.committed, Pending: pending, Err: err}
}

func (r *Rounds) flushError(l *lane, target int64, reason, cause error) error {
	if errors.Is(cause, reason) {
		cause = nil
	}
	return &FlushError{TopicPartition: l.tp, Epoch: l.epoch, Offset: target, Reason: reason, Cause: cause}
}

// expire answers the flushes whose deadline has come.
func (r *Rounds) expire(now time.Time) {
	if len(r.flushes) == 0 {
		return
	}
	kept := r.flushes[:0]
	for _, open := range r.flushes {
		if now.Before(open.deadline) {
			kept = append(kept, open)
			continue
		}
		open.lane.flushes--
		r.dirty = true
		r.emit(r.flushed(open.id, open.lane, r.flushError(open.lane, open.target, ErrFlushDeadline, open.lane.cause)))
	}
	clear(r.flushes[len(kept):])
	r.flushes = kept
}

func (r *Rounds) dropFlushes() {
	clear(r.flushes)
	r.flushes = r.flushes[:0]
}

// Pending returns the number of partitions with an offset that is not confirmed.
func (r *Rounds) Pending() int { return len(r.pending) }

// InFlight reports whether a round is waiting for its answer.
func (r *Rounds) InFlight() bool { return r.inFlight }

// Stale returns how many inputs and parts of answers were ignored because they belong to a closed epoch or to another
// round.
func (r *Rounds) Stale() uint64 { return r.stale }

// Valid checks the invariants named at the type.
func (r *Rounds) Valid() error {
	for i, l := range r.pending {
		if l.place != i || r.lanes[l.tp] != l {
			return fmt.Errorf("commit: %s is at place %d of pending, says %d", l.tp, i, l.place)
		}
	}
	flushes := map[*lane]int{}
	for _, open := range r.flushes {
		flushes[open.lane]++
		if r.lanes[open.lane.tp] != open.lane || open.target <= open.lane.committed {
			return fmt.Errorf("commit: flush %d of %s is open without need", open.id, open.lane.tp)
		}
	}
	for tp, l := range r.lanes {
		if pending := l.offered.Offset > l.committed; pending != (l.place >= 0) {
			return fmt.Errorf("commit: %s offered %d, committed %d, place %d", tp, l.offered.Offset, l.committed, l.place)
		}
		if l.flushes != flushes[l] {
			return fmt.Errorf("commit: %s counts %d flushes, has %d", tp, l.flushes, flushes[l])
		}
		if closed, ok := r.closed[tp]; ok {
			return fmt.Errorf("commit: %s is open under epoch %d and closed under %d", tp, l.epoch, closed)
		}
	}
	if r.inFlight && r.flight.ID != r.lastID {
		return fmt.Errorf("commit: round %d in flight, last was %d", r.flight.ID, r.lastID)
	}
	due, has, dirty := r.due, r.hasDue, r.dirty
	r.plan()
	if !dirty && (has != r.hasDue || !due.Equal(r.due)) {
		return fmt.Errorf("commit: due %v (%t), should be %v (%t)", due, has, r.due, r.hasDue)
	}
	return nil
}
