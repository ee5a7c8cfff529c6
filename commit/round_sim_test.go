package commit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// coordinator is a model of the group coordinator, of the network before it and of what the shell around Rounds knows. It
// checks each effect against what is true.
type coordinator struct {
	c      choices
	rounds *Rounds
	now    time.Time
	faulty bool
	// naive is the strategy in force, asked again at each round; limit is how long metadata the broker takes.
	naive Strategy
	limit int

	// What the broker has.
	stored map[kafka.TopicPartition]int64
	texts  map[kafka.TopicPartition]string
	// generation and member are those the broker accepts; rebalancing makes it refuse.
	generation  kafka.Generation
	member      string
	rebalancing bool

	// What the shell told the machine.
	entered  bool
	entries  uint64
	told     kafka.Generation
	toldID   string
	epochs   map[kafka.TopicPartition]kafka.AssignmentEpoch
	lanes    map[kafka.TopicPartition]*naiveLane
	offered  map[kafka.TopicPartition]int64
	floor    map[kafka.TopicPartition]int64  // stored when the epoch began, or the highest stored under it and its last position epoch
	runs     map[kafka.TopicPartition]uint32 // the position epoch of floor
	withdrew []kafka.TopicPartition
	epoch    kafka.AssignmentEpoch
	flushID  uint64
	flushes  map[uint64]time.Time
	targets  map[uint64]int64
	flushed  map[uint64]kafka.TopicPartition
	doubts   map[uint64]int // per entry
	flight   *Round
	answer   *Answered
	late     []Answered
	lastSend time.Time
	spaced   bool // no flush and no metadata in this history, so the spacing is exact
	steps    int
}

// simMark is the metadata without a map.
var simMark = metadataPrefix + kafka.TopicID{1}.String()

var simStart = time.Unix(1_000_000, 0)

func newCoordinator(c choices, seed uint64) *coordinator {
	given, naive := chooseStrategy(c)
	return &coordinator{
		naive: naive, limit: []int{20, len(simMark), len(simMark) + 12, 4096}[c.pick(4)],
		texts: map[kafka.TopicPartition]string{}, lanes: map[kafka.TopicPartition]*naiveLane{},
		flushed: map[uint64]kafka.TopicPartition{}, runs: map[kafka.TopicPartition]uint32{},
		c: c, now: simStart, faulty: true, spaced: c.pick(2) == 0,
		rounds: NewRounds(RoundsConfig{GroupID: "g", Seed: seed, Strategy: given}),
		stored: map[kafka.TopicPartition]int64{}, epochs: map[kafka.TopicPartition]kafka.AssignmentEpoch{},
		offered: map[kafka.TopicPartition]int64{}, floor: map[kafka.TopicPartition]int64{},
		flushes: map[uint64]time.Time{}, targets: map[uint64]int64{}, doubts: map[uint64]int{}, member: "m1", generation: 1,
	}
}

func (m *coordinator) has(tp kafka.TopicPartition) int64 {
	if offset, ok := m.stored[tp]; ok {
		return offset
	}
	return kafka.NoOffset
}

func (m *coordinator) step(in Input) error {
	m.steps++
	effects, err := m.rounds.Step(m.now, in)
	if err != nil {
		return fmt.Errorf("%T: %w", in, err)
	}
	for _, effect := range effects {
		if err := m.apply(effect); err != nil {
			return fmt.Errorf("after %T: %T: %w", in, effect, err)
		}
	}
	for len(m.withdrew) > 0 { // who owns the partition offers again what it had offered before
		tp := m.withdrew[0]
		m.withdrew = m.withdrew[1:]
		n := m.lanes[tp]
		m.offered[tp] = n.high
		given := Offset{TopicPartition: tp, Epoch: m.epochs[tp], PositionEpoch: n.run, Offset: n.high, Finished: n.finished}
		n.offers = append(n.offers, naiveOffer{m.now, given})
		if err := m.step(Offered{given}); err != nil {
			return err
		}
	}
	return m.rounds.Valid()
}

func (m *coordinator) apply(effect Effect) error {
	switch effect := effect.(type) {
	case SendRound:
		return m.receive(effect.Round)
	case Committed:
		if tp := effect.Offset.TopicPartition; m.floor[tp] < effect.Offset.Offset {
			return fmt.Errorf("%s: %d confirmed, the broker has %d", tp, effect.Offset.Offset, m.floor[tp])
		}
		if m.epochs[effect.Offset.TopicPartition] != effect.Offset.Epoch {
			return errors.New("of a closed epoch")
		}
		n := m.lanes[effect.Offset.TopicPartition]
		if effect.Offset.PositionEpoch != n.run {
			return errors.New("of a position epoch that is over")
		}
		n.placed = nil
		n.confirmed, n.text, n.counted, n.at = effect.Offset.Offset, effect.Offset.Metadata, effect.Offset.Finished, m.now
	case Flushed:
		deadline, open := m.flushes[effect.ID]
		if !open {
			return fmt.Errorf("flush %d answered twice", effect.ID)
		}
		if deadline.Before(m.now) {
			return fmt.Errorf("flush %d answered %v late", effect.ID, m.now.Sub(deadline))
		}
		if IsManual(m.naive) && effect.Pending != kafka.NoOffset {
			return fmt.Errorf("pending %d", effect.Pending)
		}
		if effect.Err == nil && m.floor[effect.TopicPartition] < m.targets[effect.ID] && !IsManual(m.naive) {
			return fmt.Errorf("flush %d of %d: the broker has %d", effect.ID, m.targets[effect.ID], m.floor[effect.TopicPartition])
		}
		var flushError *FlushError
		if effect.Err != nil && !errors.As(effect.Err, &flushError) {
			return fmt.Errorf("untyped: %w", effect.Err)
		}
		if errors.Is(effect.Err, ErrMetadataTooLarge) {
			m.lanes[effect.TopicPartition].withdrawn = true
		}
		delete(m.flushes, effect.ID)
	case RoundFailed:
		if len(effect.Partitions) == 0 || effect.Attempt < 1 || !effect.RetryAt.IsZero() && effect.RetryAt.Before(m.now) {
			return fmt.Errorf("%+v", effect)
		}
		for _, sent := range effect.Round.Offsets {
			if effect.Partitions[sent.TopicPartition] == kafka.OffsetMetadataTooLarge && sent.Metadata != "" {
				n := m.lanes[sent.TopicPartition]
				if n.withdrawn { // who placed it was told so; where nobody waits any more it goes without the text
					if n.placed == nil || !hasUser(sent.Metadata) || hasMap(sent.Metadata) {
						return fmt.Errorf("%s: withdrawn with %q", sent.TopicPartition, sent.Metadata)
					}
					n.withdrawn, n.placed, m.withdrew = false, nil, append(m.withdrew, sent.TopicPartition)
					for i := range n.offers { // they have waited for it, not for the strategy
						n.offers[i].at = m.now
					}
					continue
				}
				n.again, n.refused = true, true
			}
		}
	case StrategyFailed:
		if _, failed := m.naive.(opportunistic); failed || !errors.Is(effect.Err, ErrStrategyPanicked) {
			return fmt.Errorf("%+v", effect)
		}
		m.naive = Opportunistic()
	case MembershipDoubted:
		if m.doubts[m.entries]++; m.doubts[m.entries] > 1 {
			return errors.New("doubted twice")
		}
	case CoordinatorDoubted:
		if effect.Err == nil {
			return errors.New("without cause")
		}
	}
	return nil
}

// receive checks a round on its way out and decides what becomes of it.
func (m *coordinator) receive(round Round) error {
	switch {
	case m.flight != nil:
		return errors.New("a second round in flight")
	case !m.entered || round.Generation != m.told || round.MemberID != m.toldID:
		return errors.New("sent while nothing may be sent")
	case m.doubts[m.entries] > 0:
		return errors.New("sent with a generation that is doubted")
	case len(round.Offsets) == 0:
		return errors.New("empty round")
	case m.spaced && m.now.Sub(m.lastSend) < DefaultSpacing:
		return fmt.Errorf("only %v after the last", m.now.Sub(m.lastSend))
	}
	if err := m.asked(round); err != nil {
		return err
	}
	m.flight, m.lastSend = &round, m.now
	answer := Answered{ID: round.ID, Results: map[kafka.TopicPartition]error{}}
	fate := 0
	if m.faulty {
		fate = m.c.pick(8)
	}
	lost := fate == 1
	for i, offset := range round.Offsets {
		tp := offset.TopicPartition
		if m.epochs[tp] != offset.Epoch {
			return fmt.Errorf("%s: epoch %d sent, %d is open", tp, offset.Epoch, m.epochs[tp])
		}
		if i > 0 && round.Offsets[i-1].TopicPartition.Compare(tp) >= 0 {
			return errors.New("not in order")
		}
		if offset.Offset < m.floor[tp] && offset.PositionEpoch <= m.runs[tp] || offset.PositionEpoch != m.lanes[tp].run {
			return fmt.Errorf("%s: %d moves back from %d", tp, offset.Offset, m.floor[tp])
		}
		if lost {
			continue
		}
		if fate == 6 && m.c.pick(2) == 0 {
			continue // neither applied nor named in the answer
		}
		if code := m.refusal(round, offset, fate); code != nil {
			answer.Results[tp] = code
			continue
		}
		m.stored[tp], m.floor[tp], m.texts[tp], m.runs[tp] = offset.Offset, offset.Offset, offset.Metadata, offset.PositionEpoch
		if fate != 7 || m.c.pick(2) == 0 {
			answer.Results[tp] = nil
		}
	}
	switch {
	case lost:
		answer = Answered{ID: round.ID, Err: &kafka.RequestError{API: "OffsetCommit", Unanswered: true, Err: errors.New("reset")}}
	case fate == 2: // applied, and the answer is late: the shell gives up first
		m.late = append(m.late, answer)
		answer = Answered{ID: round.ID, Err: &kafka.RequestError{API: "OffsetCommit", Unanswered: true, Err: errors.New("timeout")}}
	}
	m.answer = &answer
	return nil
}

func (m *coordinator) refusal(round Round, offset Offset, fate int) error {
	switch {
	case round.MemberID != m.member:
		return kafka.UnknownMemberID
	case round.Generation != m.generation:
		return kafka.IllegalGeneration
	case m.rebalancing:
		return kafka.RebalanceInProgress
	case len(offset.Metadata) > m.limit:
		return kafka.OffsetMetadataTooLarge
	case fate == 3:
		return []error{kafka.NotCoordinator, kafka.CoordinatorNotAvailable, kafka.CoordinatorLoadInProgress}[m.c.pick(3)]
	case fate == 4 && m.c.pick(2) == 0:
		return []error{kafka.TopicAuthorizationFailed, kafka.RequestTimedOut, kafka.UnknownTopicOrPartition}[m.c.pick(3)]
	}
	return nil
}

// settle stops all faults and sees that everything the strategy asks for is confirmed, and then by a flush all that was
// offered, with the last map.
func (m *coordinator) settle() error {
	m.faulty, m.rebalancing, m.spaced = false, false, false
	if err := m.quiet(); err != nil {
		return err
	}
	_, lazy := m.naive.(onDemand)
	for tp, n := range m.lanes {
		if len(n.offers) == 0 || IsManual(m.naive) {
			continue
		}
		last := &n.offers[len(n.offers)-1]
		if at, ok := m.naive.Due(n.state(&last.Offset)); ok && n.confirmed < last.Offset.Offset {
			return fmt.Errorf("%s: %d was due at %v and is not confirmed", tp, last.Offset.Offset, at)
		}
		if m.unconfirmedMap(n) && n.confirmed == last.Offset.Offset && !lazy {
			return fmt.Errorf("%s: the map %q is not confirmed", tp, last.Metadata)
		}
	}
	for tp, epoch := range m.epochs {
		if err := m.flush(tp, epoch, time.Minute); err != nil {
			return err
		}
	}
	if err := m.quiet(); err != nil {
		return err
	}
	for tp, n := range m.lanes {
		if !IsManual(m.naive) && (m.offered[tp] > m.floor[tp] || m.unconfirmedMap(n)) {
			return fmt.Errorf("%s: %d offered, the broker has %d with %q", tp, m.offered[tp], m.floor[tp], m.texts[tp])
		}
	}
	if m.rounds.Pending() != 0 || len(m.flushes) != 0 {
		return fmt.Errorf("%d pending, %d flushes never answered", m.rounds.Pending(), len(m.flushes))
	}
	return nil
}

// unconfirmedMap reports whether the last map offered, that no refusal forbids, is not beside the confirmed offset.
func (m *coordinator) unconfirmedMap(n *naiveLane) bool {
	if len(n.offers) == 0 || n.refused {
		return false
	}
	last := n.offers[len(n.offers)-1]
	return last.Offset.Offset >= n.confirmed && hasMap(last.Metadata) && n.text != last.Metadata
}

// quiet lets a well-behaved world go on until nothing more comes.
func (m *coordinator) quiet() error {
	for range 100 {
		if m.answer != nil {
			if err := m.deliver(); err != nil {
				return err
			}
		}
		if !m.entered || m.told != m.generation || m.toldID != m.member || m.doubts[m.entries] > 0 {
			if err := m.enter(); err != nil {
				return err
			}
		}
		if err := m.wait(200 * time.Millisecond); err != nil {
			return err
		}
		if m.rounds.Pending() == 0 && !m.rounds.InFlight() && len(m.flushes) == 0 {
			break
		}
	}
	return nil
}

func roundsHistory(c choices, seed uint64, steps int) (operations int, err error) {
	m := newCoordinator(c, seed)
	if err := m.enter(); err != nil {
		return 0, err
	}
	for range steps {
		if err := m.random(); err != nil {
			return m.steps, err
		}
	}
	return m.steps, m.settle()
}

func TestRoundsAgreeWithAModelCoordinator(t *testing.T) {
	operations, seed := 0, uint64(0)
	for ; operations < 250_000; seed++ {
		n, err := roundsHistory(randomChoices{rand.New(rand.NewPCG(seed, 2))}, seed, 250)
		if err != nil {
			t.Fatalf("seed %d after %d operations: %v", seed, n, err)
		}
		operations += n
	}
	t.Logf("%d operations in %d histories", operations, seed)
}

func FuzzRounds(f *testing.F) {
	f.Add([]byte{0, 1, 0, 19, 2, 8, 12, 200})
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := roundsHistory(&byteChoices{data}, 1, min(len(data), 400)); err != nil {
			t.Fatal(err)
		}
	})
}
