package commit

import (
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
	DefaultMapSpacing     = time.Second
)

// RoundsConfig configures [Rounds].
type RoundsConfig struct {
	// GroupID goes into every round (group.id).
	GroupID string
	// GroupInstanceID is a static member's name (group.instance.id), empty for a dynamic member.
	GroupInstanceID string
	// Strategy says when a finished offset is due, see there. Nil is Opportunistic.
	Strategy Strategy
	// MapSpacing is how long after its last confirmation a partition's offset map is committed anew when only the map has
	// changed. It goes along with any round before that; under [OnDemand] only so. Zero is DefaultMapSpacing, negative is
	// none.
	MapSpacing time.Duration
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

// want is what of a lane is not confirmed.
type want uint8

const (
	wantNothing want = iota
	// wantMap: the offset is confirmed, but beside it another offset map than the one offered.
	wantMap
	// wantOffset: the offset offered is above the confirmed one.
	wantOffset
	// wantPlaced: the user placed an offset that is not confirmed.
	wantPlaced
)

// lane is the one open epoch of one partition.
type lane struct {
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch
	// opened is when the epoch was opened.
	opened time.Time
	// run is the position epoch; committed is the last offset confirmed in it, kafka.NoOffset for none, and never falls in it.
	run       uint32
	committed int64
	// metadata is what was confirmed beside it.
	metadata string
	// offered is the highest offset offered; its Offset is kafka.NoOffset before the first. Its Metadata is empty once
	// the broker refused it.
	offered Offset
	// placed is the offset that the user placed and that is not confirmed, nil for none; it goes out before anything offered.
	// call is the one it waits for others of, 0 for none, until gathered.
	placed   *Offset
	call     uint64
	gathered time.Time
	// noMaps: the broker refused metadata of this epoch as too large, so that no map is sent any more.
	noMaps bool
	// want is what is not confirmed, place the index in Rounds.pending, -1 when that is nothing.
	want  want
	place int

	// counted is Finished of the last confirmed offset, lastCommit when that was.
	counted    uint64
	lastCommit time.Time
	// since is when the first offset above committed was offered, and sinceNext the same above the one in flight or placed: it
	// is the since to come. sent is the round that last had this lane.
	since, sinceNext time.Time
	sent             uint64
	// dueAt and isDue are the strategy's answer, valid when decided.
	dueAt          time.Time
	isDue, decided bool
	// at is when the lane makes a round go out, as of the last look at it, valid when ready.
	at    time.Time
	ready bool

	// attempts counts failures in a row, notBefore is the end of the wait after the last one, cause its error.
	attempts  int
	notBefore time.Time
	cause     error
	// urgent lets the next round with this partition go without spacing.
	urgent bool
	// flushes counts the open flushes of this partition.
	flushes int
}

// Rounds decides what each OffsetCommit of a member holds and when it goes out. One round is in flight at a time; what
// is offered meanwhile coalesces into the next one. See the package comment for its place.
//
// Invariants (checked by Valid): a lane is in pending exactly when it has a placed offset, or its offered offset is above its
// committed one, or equal to it with another offset map; every open flush belongs to an open lane and has something to wait for; a partition is
// open or closed, never both; due, unless dirty, is when the first pending lane may be sent, and unset while a round is in
// flight.
type Rounds struct {
	config RoundsConfig
	random *rand.Rand
	// strategy is asked through decide; name is its name.
	strategy Strategy
	name     string
	// opportunistic, onDemand and manual tell the given strategies that are not asked.
	opportunistic, onDemand, manual bool

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
	if config.MapSpacing == 0 {
		config.MapSpacing = DefaultMapSpacing
	}
	config.MapSpacing = max(config.MapSpacing, 0)
	if config.BackoffInitial <= 0 {
		config.BackoffInitial = DefaultBackoffInitial
	}
	if config.BackoffMax <= 0 {
		config.BackoffMax = DefaultBackoffMax
	}
	config.BackoffMax = max(config.BackoffMax, config.BackoffInitial)
	r := &Rounds{
		config:     config,
		random:     rand.New(rand.NewPCG(config.Seed, 0x7c0ffe)),
		generation: kafka.NoGeneration,
		lanes:      map[kafka.TopicPartition]*lane{},
		closed:     map[kafka.TopicPartition]kafka.AssignmentEpoch{},
	}
	r.use(config.Strategy)
	return r
}

// Step takes one input at the time now and returns what to do, in order. An error means misuse (ErrInvalidInput, ErrDuplicateFlush) and that nothing changed.
// An input of an old epoch or of another round is no error: it is ignored and counted by Stale.
func (r *Rounds) Step(now time.Time, in Input) ([]Effect, error) {
	if err := r.check(in); err != nil {
		return nil, err
	}
	switch in := in.(type) {
	case Assigned:
		r.assigned(now, in)
	case Offered:
		r.offer(now, in.Offset)
	case Rewound:
		r.rewound(now, in)
	case Entered:
		r.entered(in)
	case Held:
		r.phase, r.departure, r.dirty = phaseHeld, nil, true
	case Departed:
		r.departed(in.Cause)
	case Flush:
		r.flush(now, in)
	case Place:
		r.place(now, in)
	case Fenced:
		r.fenced(now, in)
	case Answered:
		r.answered(now, in)
	case Tick:
	}
	r.answerFlushes()
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
		return r.fresh(in.ID)
	case Place:
		if in.Offset.Offset < 0 {
			return fmt.Errorf("%w: offset %d placed for %s", ErrInvalidInput, in.Offset.Offset, in.Offset.TopicPartition)
		}
		return r.fresh(in.ID)
	case Rewound, Held, Departed, Fenced, Answered, Tick:
	case nil:
		return fmt.Errorf("%w: nil", ErrInvalidInput)
	default:
		return fmt.Errorf("%w: %T", ErrInvalidInput, in)
	}
	return nil
}

// fresh refuses the id of an open flush.
func (r *Rounds) fresh(id uint64) error {
	for _, open := range r.flushes {
		if open.id == id {
			return fmt.Errorf("%w: %d", ErrDuplicateFlush, id)
		}
	}
	return nil
}

func (r *Rounds) emit(effect Effect) { r.effects = append(r.effects, effect) }

func (r *Rounds) assigned(now time.Time, in Assigned) {
	if old := r.lanes[in.TopicPartition]; old != nil {
		if in.Epoch <= old.epoch {
			r.stale++
			return
		}
		r.shut(now, old)
	}
	if closed, ok := r.closed[in.TopicPartition]; ok && in.Epoch <= closed {
		r.stale++
		return
	}
	delete(r.closed, in.TopicPartition)
	r.lanes[in.TopicPartition] = &lane{
		tp: in.TopicPartition, epoch: in.Epoch, opened: now, committed: in.Committed, metadata: in.Metadata, place: -1,
		offered: Offset{TopicPartition: in.TopicPartition, Epoch: in.Epoch, Offset: kafka.NoOffset},
	}
}

func (r *Rounds) offer(now time.Time, offset Offset) {
	l := r.lanes[offset.TopicPartition]
	if l == nil || l.epoch != offset.Epoch || offset.PositionEpoch < l.run {
		r.stale++
		return
	}
	if l.noMaps {
		offset.Metadata = WithoutMap(offset.Metadata)
	}
	if offset.PositionEpoch > l.run {
		r.rewind(now, l, offset.PositionEpoch, offset.Offset)
	}
	if offset.Offset < l.offered.Offset || offset.Offset == l.offered.Offset && offset.Metadata == l.offered.Metadata {
		return
	}
	if offset.Finished < l.offered.Finished {
		l.counted = 0
	}
	above, sent := l.offered.Offset, r.inFlight && l.sent == r.flight.ID
	if l.placed != nil {
		above, sent = max(above, l.placed.Offset), true
	}
	if offset.Offset > above && l.sinceNext.IsZero() && sent {
		l.sinceNext = now
	}
	l.offered = offset
	r.settle(now, l)
	if offset.Start && l.committed == kafka.NoOffset && l.want == wantOffset {
		l.urgent, r.dirty = true, true
	}
}

func (r *Rounds) rewound(now time.Time, in Rewound) {
	l := r.lanes[in.TopicPartition]
	if l == nil || l.epoch != in.Epoch || in.PositionEpoch <= l.run {
		r.stale++
		return
	}
	r.rewind(now, l, in.PositionEpoch, kafka.NoOffset)
	r.settle(now, l)
}

// rewind begins a new position epoch: what was confirmed before says nothing about it, and a round in flight confirms
// nothing of it. Open flushes ask for where the position was set back to.
func (r *Rounds) rewind(now time.Time, l *lane, run uint32, target int64) {
	l.run, l.committed, l.offered.Offset, l.offered.Metadata = run, kafka.NoOffset, kafka.NoOffset, ""
	l.placed, l.call, l.gathered = nil, 0, time.Time{}
	l.attempts, l.notBefore, l.cause = 0, time.Time{}, nil
	l.since, l.sinceNext, l.sent = now, time.Time{}, 0
	r.dirty = true
	for i := range r.flushes {
		if r.flushes[i].lane == l {
			r.flushes[i].target = min(r.flushes[i].target, target)
		}
	}
}

// wanted says what of a lane is not confirmed. A text without a map is no reason to send a confirmed offset again: it says
// less than the one that is there.
func (r *Rounds) wanted(l *lane) want {
	switch {
	case r.manual:
		return wantNothing
	case l.placed != nil:
		return wantPlaced
	case l.offered.Offset > l.committed:
		return wantOffset
	case l.offered.Offset == l.committed && l.offered.Metadata != l.metadata && hasMap(l.offered.Metadata):
		return wantMap
	}
	return wantNothing
}

// settle puts a lane into pending or takes it out, after what is offered or confirmed has changed.
func (r *Rounds) settle(now time.Time, l *lane) {
	before := l.want
	l.want, l.decided = r.wanted(l), false
	if l.want == wantOffset && before != wantOffset && before != wantPlaced {
		l.since = now
	}
	switch {
	case l.want != wantNothing:
		if r.opportunistic && before == wantOffset && l.want == wantOffset {
			return // it is due as it was
		}
		if l.place < 0 {
			l.place, l.ready = len(r.pending), false
			r.pending = append(r.pending, l)
		}
		r.replan(l)
	case l.place >= 0:
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

func (r *Rounds) fenced(now time.Time, in Fenced) {
	l := r.lanes[in.TopicPartition]
	switch {
	case l != nil && in.Epoch >= l.epoch:
		r.shut(now, l)
		r.closed[in.TopicPartition] = in.Epoch
	case l != nil:
		r.stale++
	default:
		r.closed[in.TopicPartition] = max(in.Epoch, r.closed[in.TopicPartition])
	}
}

// shut closes a lane's epoch: it is forgotten, and its flushes end.
func (r *Rounds) shut(now time.Time, l *lane) {
	r.endFlushes(func(open *openFlush) bool { return open.lane == l }, ErrEpochClosed, l.cause)
	delete(r.lanes, l.tp)
	r.closed[l.tp] = l.epoch
	l.offered, l.placed = Offset{Offset: l.committed}, nil
	r.settle(now, l)
}

// Pending returns the number of partitions with an offset, or an offset map, that is not confirmed.
func (r *Rounds) Pending() int { return len(r.pending) }

// Open reports whether rounds may be sent: the member is in a generation, no JoinGroup is under way, and the coordinator has
// not refused that generation. A round that was emitted and has to wait before it goes out must wait for this, too.
func (r *Rounds) Open() bool { return r.phase == phaseOpen }

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
		if r.lanes[open.lane.tp] != open.lane || r.done(&open) {
			return fmt.Errorf("commit: flush %d of %s is open without need", open.id, open.lane.tp)
		}
	}
	for tp, l := range r.lanes {
		if want := r.wanted(l); want != l.want || (want != wantNothing) != (l.place >= 0) {
			return fmt.Errorf("commit: %s offered %d, committed %d, wants %d, not %d, place %d",
				tp, l.offered.Offset, l.committed, l.want, want, l.place)
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
