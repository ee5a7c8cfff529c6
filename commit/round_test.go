package commit

import (
	"errors"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

var (
	p0 = kafka.TopicPartition{Topic: "t", Partition: 0}
	p1 = kafka.TopicPartition{Topic: "t", Partition: 1}
)

func TestRoundsSendAtOnceThenSpacedAndCoalesced(t *testing.T) {
	s := newScript(t)
	s.expect(offered1(10)) // the broker has it
	s.expect(offered0(0), "send 1 gen 1 t-0@0")
	s.expect(offered0(3))
	s.expect(offered1(12))
	s.expect(offered0(5))
	s.wait(50 * time.Millisecond)
	s.expect(answer(1, nil), "committed t-0@0")
	s.expectDeadlineWithin(150*time.Millisecond, 150*time.Millisecond)
	s.expect(Tick{})
	s.wait(150 * time.Millisecond)
	s.expect(Tick{}, "send 2 gen 1 t-0@5 t-1@12")
	if _, ok := s.rounds.Deadline(); ok {
		t.Fatal("a deadline while a round is in flight and no flush is open")
	}
	s.wait(time.Second)
	s.expect(answer(2, nil), "committed t-0@5", "committed t-1@12")
	s.expect(offered0(5))
	s.expect(offered0(4))
	s.expect(offered1(13), "send 3 gen 1 t-1@13")
}

func TestRoundsRepeatAnUnknownResultUntilConfirmed(t *testing.T) {
	s := newScript(t)
	unanswered := &kafka.RequestError{API: "OffsetCommit", Unanswered: true, Err: errors.New("connection reset")}
	s.expect(offered0(7), "send 1 gen 1 t-0@7")
	s.expect(Answered{ID: 1, Err: unanswered}, "failed 1 attempt 1", "coordinator")
	s.expectDeadlineWithin(200*time.Millisecond, 200*time.Millisecond) // the spacing is longer than the backoff
	s.wait(200 * time.Millisecond)
	s.expect(Tick{}, "send 2 gen 1 t-0@7")
	s.expect(Answered{ID: 2}, "failed 1 attempt 2") // answered, but not for this partition
	s.wait(300 * time.Millisecond)
	s.expect(Tick{}, "send 3 gen 1 t-0@7")
	s.expect(answer(1, nil)) // the late answer of round 1
	s.expect(answer(3, nil), "committed t-0@7")
	if s.rounds.Stale() != 1 || s.rounds.Pending() != 0 {
		t.Fatalf("stale %d, pending %d", s.rounds.Stale(), s.rounds.Pending())
	}
}

func TestB12NothingOfAFencedEpochIsSentByAnyTimer(t *testing.T) {
	s := newScript(t)
	s.expect(offered0(5), "send 1 gen 1 t-0@5")
	s.expect(offered0(6))
	s.expect(offered1(20))
	s.expect(Fenced{TopicPartition: p0, Epoch: 1})
	s.expect(answer(1, map[kafka.TopicPartition]error{p0: kafka.RequestTimedOut}))
	s.expect(offered0(9))
	s.wait(time.Hour)
	s.expect(Tick{}, "send 2 gen 1 t-1@20")
	s.expect(answer(2, nil), "committed t-1@20")
	s.expect(Assigned{TopicPartition: p0, Epoch: 1, Committed: 5}) // late: its epoch is closed
	s.expect(offered0(10))
	s.wait(time.Hour)
	s.expect(Tick{})
	s.expect(Assigned{TopicPartition: p0, Epoch: 3, Committed: 100})
	s.expect(offered0(11))
	if s.rounds.Pending() != 0 {
		t.Fatal("something of a closed epoch is pending")
	}
}

func TestRoundsCloseAnOlderEpochWhenANewerIsAssigned(t *testing.T) {
	s := newScript(t)
	s.expect(offered0(5), "send 1 gen 1 t-0@5")
	s.step(Flush{ID: 1, TopicPartition: p0, Epoch: 1, Deadline: s.now.Add(time.Minute)})
	s.expect(Assigned{TopicPartition: p0, Epoch: 9, Committed: 4}, "flushed 1 committed -1 pending 5 ok false")
	s.expect(answer(1, nil))
	s.expect(offered0(6))
	s.wait(time.Second)
	s.expect(Offered{Offset{TopicPartition: p0, Epoch: 9, Offset: 5}}, "send 2 gen 1 t-0@5")
}

func TestB15FlushRetriesUntilConfirmed(t *testing.T) {
	s := newScript(t)
	s.expect(offered0(1), "send 1 gen 1 t-0@1")
	s.expect(answer(1, nil), "committed t-0@1")
	s.expect(offered0(100))
	flush := Flush{ID: 8, TopicPartition: p0, Epoch: 1, Deadline: s.now.Add(5 * time.Second)}
	s.expect(flush, "send 2 gen 1 t-0@100")
	s.expect(answer(2, map[kafka.TopicPartition]error{p0: kafka.RequestTimedOut}), "failed 1 attempt 1")
	s.expectDeadlineWithin(80*time.Millisecond, 120*time.Millisecond)
	s.wait(120 * time.Millisecond)
	s.expect(Tick{}, "send 3 gen 1 t-0@100")
	s.expect(Answered{ID: 3, Err: errors.New("cut")}, "failed 1 attempt 2", "coordinator")
	s.expectDeadlineWithin(80*time.Millisecond, 120*time.Millisecond)
	s.wait(120 * time.Millisecond)
	s.expect(Tick{}, "send 4 gen 1 t-0@100")
	s.expect(offered0(101))
	s.expect(answer(4, nil), "committed t-0@100", "flushed 8 committed 100 pending 101 ok true")
}

func TestFlushIsAnsweredExactlyOnceAtItsDeadline(t *testing.T) {
	s := newScript(t)
	s.expect(Flush{ID: 1, TopicPartition: p0, Epoch: 1, Deadline: s.now}, "flushed 1 committed -1 pending -1 ok true")
	s.expect(Flush{ID: 2, TopicPartition: p0, Epoch: 7, Deadline: s.now}, "flushed 2 committed -1 pending -1 ok false")
	s.expect(offered0(4), "send 1 gen 1 t-0@4")
	s.expect(Flush{ID: 3, TopicPartition: p0, Epoch: 1, Deadline: s.now}, "flushed 3 committed -1 pending 4 ok false")
	s.expect(Flush{ID: 4, TopicPartition: p0, Epoch: 1, Deadline: s.now.Add(time.Second)})
	if _, err := s.rounds.Step(s.now, Flush{ID: 4, TopicPartition: p0, Epoch: 1}); !errors.Is(err, ErrDuplicateFlush) {
		t.Fatal(err)
	}
	s.expectDeadlineWithin(time.Second, time.Second)
	s.wait(time.Second)
	s.expect(Tick{}, "flushed 4 committed -1 pending 4 ok false")
	s.expect(answer(1, nil), "committed t-0@4")
}

func TestFlushErrorWrapsReasonAndLastCause(t *testing.T) {
	s := newScript(t)
	s.step(offered0(4))
	s.step(Flush{ID: 4, TopicPartition: p0, Epoch: 1, Deadline: s.now.Add(time.Second)})
	s.step(answer(1, map[kafka.TopicPartition]error{p0: kafka.TopicAuthorizationFailed}))
	s.wait(time.Second)
	effects, _ := s.rounds.Step(s.now, Tick{})
	flushed, ok := effects[0].(Flushed)
	if !ok || !errors.Is(flushed.Err, ErrFlushDeadline) || !errors.Is(flushed.Err, kafka.TopicAuthorizationFailed) {
		t.Fatalf("%+v", effects)
	}
	var flushError *FlushError
	if !errors.As(flushed.Err, &flushError) || flushError.TopicPartition != p0 || flushError.Offset != 4 || flushError.Epoch != 1 {
		t.Fatalf("%+v", flushed.Err)
	}
}

func TestDepartedFailsFlushesWithItsCause(t *testing.T) {
	s := newScript(t)
	s.step(offered0(4))
	s.expect(Flush{ID: 1, TopicPartition: p0, Epoch: 1, Deadline: s.now.Add(time.Second)})
	effects, _ := s.rounds.Step(s.now, Departed{Cause: kafka.FencedInstanceID})
	flushed, ok := effects[0].(Flushed)
	if !ok || !errors.Is(flushed.Err, ErrDeparted) || !errors.Is(flushed.Err, kafka.FencedInstanceID) {
		t.Fatalf("%+v", effects)
	}
	s.expect(Flush{ID: 2, TopicPartition: p0, Epoch: 1, Deadline: s.now.Add(time.Second)},
		"flushed 2 committed -1 pending 4 ok false")
	s.expect(answer(1, map[kafka.TopicPartition]error{p0: kafka.UnknownMemberID}), "failed 1 attempt 1")
	s.wait(time.Hour)
	s.expect(Tick{})
	s.expect(Entered{Generation: 2, MemberID: "n"}, "send 2 gen 2 t-0@4")
}

func TestB24RebalanceInProgressIsNoMembershipFailure(t *testing.T) {
	for _, err := range []error{kafka.RebalanceInProgress, &kafka.RequestError{API: "OffsetCommit", Err: kafka.RebalanceInProgress}} {
		s := newScript(t)
		s.expect(offered0(4), "send 1 gen 1 t-0@4")
		refused := answer(1, map[kafka.TopicPartition]error{p0: err})
		if _, whole := err.(*kafka.RequestError); whole {
			refused = Answered{ID: 1, Err: err}
		}
		s.expect(refused, "failed 1 attempt 1")
		s.expectDeadlineWithin(80*time.Millisecond, 200*time.Millisecond)
		s.expect(Held{})
		s.wait(time.Hour)
		s.expect(Tick{})
		s.expect(Entered{Generation: 2, MemberID: "m"}, "send 2 gen 2 t-0@4")
	}
}

func TestWhileHeldARefusedGenerationMeansLater(t *testing.T) {
	for _, code := range []kafka.ErrorCode{kafka.IllegalGeneration, kafka.RebalanceInProgress} {
		s := newScript(t)
		s.expect(offered0(4), "send 1 gen 1 t-0@4")
		s.expect(Held{})
		s.expect(answer(1, map[kafka.TopicPartition]error{p0: code}), "failed 1 attempt 1")
		s.wait(time.Hour)
		s.expect(Entered{Generation: 2, MemberID: "m"}, "send 2 gen 2 t-0@4")
	}
	s := newScript(t)
	s.step(offered0(4))
	s.step(Held{})
	s.expect(answer(1, map[kafka.TopicPartition]error{p0: kafka.UnknownMemberID}), "failed 1 attempt 1", "membership 1")
}

func TestARefusalOfAnOlderMembershipIsRetriedWithThePresentOne(t *testing.T) {
	s := newScript(t)
	s.expect(offered0(4), "send 1 gen 1 t-0@4")
	s.expect(Held{})
	s.expect(Entered{Generation: 2, MemberID: "m"})
	s.wait(time.Second)
	s.expect(answer(1, map[kafka.TopicPartition]error{p0: kafka.IllegalGeneration}), "failed 1 attempt 1", "send 2 gen 2 t-0@4")
}

func TestADoubtedGenerationIsNotUsedAgain(t *testing.T) {
	for _, code := range []kafka.ErrorCode{kafka.IllegalGeneration, kafka.UnknownMemberID, kafka.FencedInstanceID} {
		s := newScript(t)
		s.step(offered0(4))
		s.step(offered1(14))
		s.wait(time.Second)
		s.expect(answer(1, nil), "committed t-0@4", "send 2 gen 1 t-1@14")
		s.step(offered0(5))
		s.expect(answer(2, map[kafka.TopicPartition]error{p1: code}), "failed 1 attempt 1", "membership 1")
		s.expect(offered0(6))
		s.wait(time.Hour)
		s.expect(Tick{})
		s.expect(Entered{Generation: 3, MemberID: "m"}, "send 3 gen 3 t-0@6 t-1@14")
	}
}

func TestCoordinatorErrorsAreRetried(t *testing.T) {
	for code, doubted := range map[kafka.ErrorCode]bool{
		kafka.NotCoordinator: true, kafka.CoordinatorNotAvailable: true, kafka.CoordinatorLoadInProgress: false,
	} {
		s := newScript(t)
		s.step(offered0(4))
		want := []string{"failed 1 attempt 1"}
		if doubted {
			want = append(want, "coordinator")
		}
		s.expect(answer(1, map[kafka.TopicPartition]error{p0: code}), want...)
		s.wait(200 * time.Millisecond)
		s.expect(Tick{}, "send 2 gen 1 t-0@4")
	}
}

func TestB57MetadataTooLargeIsResentWithoutTheMapAndThenWithoutAny(t *testing.T) {
	s := newScript(t)
	tooLarge := map[kafka.TopicPartition]error{p0: kafka.OffsetMetadataTooLarge}
	offer := func(offset int64) Offered {
		return Offered{Offset{TopicPartition: p0, Epoch: 1, Offset: offset, Metadata: simMark + " map AAAA"}}
	}
	s.step(Held{})
	s.step(offer(4))
	s.step(offered1(14))
	s.expect(Entered{Generation: 1, MemberID: "m"}, "send 1 gen 1 t-0@4"+simMark+" map AAAA t-1@14")
	s.expect(answer(1, tooLarge), "committed t-1@14", "failed 1 attempt 1", "send 2 gen 1 t-0@4"+simMark)
	s.expect(answer(2, tooLarge), "failed 1 attempt 2", "send 3 gen 1 t-0@4")
	s.expect(answer(3, tooLarge), "failed 1 attempt 3") // the broker is odd: no further try at once
	s.expectDeadlineWithin(800*time.Millisecond, 1200*time.Millisecond)
	s.wait(1200 * time.Millisecond)
	s.expect(offer(5), "send 4 gen 1 t-0@5"+simMark) // no other map of this epoch
	s.expect(answer(4, nil), "committed t-0@5")
	s.step(Fenced{TopicPartition: p0, Epoch: 1})
	s.step(Assigned{TopicPartition: p0, Epoch: 9, Committed: 5})
	s.wait(time.Second)
	next := offer(6)
	next.Offset.Epoch = 9
	s.expect(next, "send 5 gen 1 t-0@6"+simMark+" map AAAA")
}

func TestUnauthorizedPartitionsRetrySlowlyAndHoldUpNoOther(t *testing.T) {
	for _, code := range []kafka.ErrorCode{
		kafka.GroupAuthorizationFailed, kafka.TopicAuthorizationFailed, kafka.UnknownTopicOrPartition,
	} {
		s := newScript(t)
		s.expect(offered0(4), "send 1 gen 1 t-0@4")
		s.expect(answer(1, map[kafka.TopicPartition]error{p0: code}), "failed 1 attempt 1")
		s.expectDeadlineWithin(800*time.Millisecond, 1200*time.Millisecond)
		s.wait(200 * time.Millisecond)
		s.expect(offered1(14), "send 2 gen 1 t-1@14")
		s.expect(answer(2, nil), "committed t-1@14")
		s.wait(time.Second)
		s.expect(Tick{}, "send 3 gen 1 t-0@4")
	}
}

func TestStepRefusesInvalidInputAndChangesNothing(t *testing.T) {
	s := newScript(t)
	for _, in := range []Input{
		nil, Offered{Offset{TopicPartition: p0, Epoch: 1, Offset: -1}}, Entered{Generation: kafka.NoGeneration},
		Assigned{TopicPartition: p0, Epoch: 5, Committed: -2},
	} {
		if effects, err := s.rounds.Step(s.now, in); !errors.Is(err, ErrInvalidInput) || effects != nil {
			t.Fatalf("%T: %v, %v", in, effects, err)
		}
	}
	s.expect(offered0(1), "send 1 gen 1 t-0@1")
}

// Every phase takes every input: what is legal in it, what is sent in it, and which phase follows.
func TestPhasesByInput(t *testing.T) {
	build := map[phase]func(s *script){
		phaseOutside: func(s *script) { s.step(Departed{}) },
		phaseOpen:    func(*script) {},
		phaseHeld:    func(s *script) { s.step(Held{}) },
		phaseDoubted: func(s *script) {
			s.step(offered1(50))
			s.step(answer(1, map[kafka.TopicPartition]error{p1: kafka.IllegalGeneration}))
		},
	}
	inputs := []struct {
		in   Input
		next map[phase]phase // missing: unchanged
	}{
		{Assigned{TopicPartition: p0, Epoch: 8, Committed: 1}, nil},
		{offered0(3), nil},
		{Entered{Generation: 4, MemberID: "x"}, map[phase]phase{phaseOutside: phaseOpen, phaseHeld: phaseOpen, phaseDoubted: phaseOpen}},
		{Held{}, map[phase]phase{phaseOutside: phaseHeld, phaseOpen: phaseHeld, phaseDoubted: phaseHeld}},
		{Departed{}, map[phase]phase{phaseOpen: phaseOutside, phaseHeld: phaseOutside, phaseDoubted: phaseOutside}},
		{Flush{ID: 3, TopicPartition: p0, Epoch: 1, Deadline: simStart.Add(time.Hour)}, nil},
		{Fenced{TopicPartition: p0, Epoch: 1}, nil},
		{Answered{ID: 77}, nil},
		{Tick{}, nil},
	}
	for from, prepare := range build {
		for _, c := range inputs {
			s := newScript(t)
			prepare(s)
			if s.rounds.phase != from {
				t.Fatalf("%s not reached", from)
			}
			s.wait(time.Minute)
			want, moves := c.next[from]
			if !moves {
				want = from
			}
			s.step(c.in)
			if s.rounds.phase != want {
				t.Fatalf("%T in %s leads to %s, want %s", c.in, from, s.rounds.phase, want)
			}
			if s.rounds.InFlight() && want != phaseOpen {
				t.Fatalf("%T in %s sent a round in %s", c.in, from, want)
			}
		}
	}
}

func TestClosedEpochsLeaveNothingBehindButTheirNumber(t *testing.T) {
	for _, strategy := range []Strategy{Opportunistic(), EveryRecords(100), Every(time.Hour), OnDemand(), Manual()} {
		s := newScriptWith(t, strategy)
		for epoch := kafka.AssignmentEpoch(10); epoch < 200; epoch++ {
			s.step(Assigned{TopicPartition: p0, Epoch: epoch, Committed: 0})
			for offset := range int64(3) {
				s.step(Offered{Offset{
					TopicPartition: p0, Epoch: epoch, Offset: 5 + offset, Metadata: simMark + mapSeparator + "a", Finished: 5,
				}})
			}
			s.step(Flush{ID: uint64(epoch), TopicPartition: p0, Epoch: epoch, Deadline: s.now.Add(time.Hour)})
			s.step(Fenced{TopicPartition: p0, Epoch: epoch})
		}
		r := s.rounds
		if len(r.lanes) != 1 || len(r.pending) != 0 || len(r.flushes) != 0 || len(r.closed) != 1 {
			t.Fatalf("%d lanes, %d pending, %d flushes, %d closed", len(r.lanes), len(r.pending), len(r.flushes), len(r.closed))
		}
		for _, l := range r.pending[:cap(r.pending)] {
			if l != nil {
				t.Fatal("a closed lane is held by a free place of pending")
			}
		}
		for _, open := range r.flushes[:cap(r.flushes)] {
			if open.lane != nil {
				t.Fatal("a closed lane is held by a flush that was answered")
			}
		}
	}
}

func TestAPositionSetBackCommitsALowerOffset(t *testing.T) {
	now := time.Unix(0, 0)
	tp := kafka.TopicPartition{Topic: "t"}
	r := NewRounds(RoundsConfig{GroupID: "g"})
	step := func(in Input) []Effect {
		t.Helper()
		effects, err := r.Step(now, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Valid(); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
		return effects
	}
	sent := func(effects []Effect) int64 {
		t.Helper()
		for _, e := range effects {
			if round, ok := e.(SendRound); ok {
				return round.Round.Offsets[0].Offset
			}
		}
		return -1
	}
	step(Entered{Generation: 1, MemberID: "m"})
	step(Assigned{TopicPartition: tp, Epoch: 1, Committed: kafka.NoOffset})
	if got := sent(step(Offered{Offset: Offset{TopicPartition: tp, Epoch: 1, Offset: 100}})); got != 100 {
		t.Fatalf("sent %d", got)
	}
	// The log was truncated to 80 while 100 was on its way: its confirmation is of the old run.
	if got := sent(step(Offered{Offset: Offset{TopicPartition: tp, Epoch: 1, PositionEpoch: 1, Offset: 80}})); got != -1 {
		t.Fatalf("sent %d beside the round in flight", got)
	}
	if got := sent(step(Answered{ID: 1, Results: map[kafka.TopicPartition]error{tp: nil}})); got != 80 {
		t.Fatalf("sent %d, want 80", got)
	}
	step(Answered{ID: 2, Results: map[kafka.TopicPartition]error{tp: nil}})
	if got := sent(step(Offered{Offset: Offset{TopicPartition: tp, Epoch: 1, Offset: 101}})); got != -1 {
		t.Fatalf("an offset of the old run was sent: %d", got)
	}
	if r.Stale() != 2 {
		t.Errorf("stale %d, want 2", r.Stale())
	}
}

func TestRoundsSendNothingOfAPositionThatWasLeftAndWaitForTheNext(t *testing.T) {
	tp := kafka.TopicPartition{Topic: "orders"}
	r := NewRounds(RoundsConfig{GroupID: "billing", Spacing: -1})
	now := time.Unix(0, 0)
	step := func(in Input) []Effect {
		t.Helper()
		effects, err := r.Step(now, in)
		if err == nil {
			err = r.Valid()
		}
		if err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
		return effects
	}
	step(Assigned{TopicPartition: tp, Epoch: 1, Committed: 10})
	step(Held{})
	step(Offered{Offset: Offset{TopicPartition: tp, Epoch: 1, Offset: 100}})
	step(Flush{ID: 7, TopicPartition: tp, Epoch: 1, Deadline: now.Add(time.Hour)})
	effects := step(Rewound{TopicPartition: tp, Epoch: 1, PositionEpoch: 3})
	if len(effects) != 1 || effects[0] != (Flushed{ID: 7, TopicPartition: tp, Epoch: 1, Committed: -1, Pending: -1}) {
		t.Fatalf("the flush had nothing to wait for: %v", effects)
	}
	if effects = step(Entered{Generation: 1, MemberID: "m"}); len(effects) != 0 || r.Pending() != 0 {
		t.Fatalf("the old position is sent: %v", effects)
	}
	for _, late := range []Input{
		Offered{Offset: Offset{TopicPartition: tp, Epoch: 1, PositionEpoch: 2, Offset: 101}},
		Rewound{TopicPartition: tp, Epoch: 1, PositionEpoch: 3},
		Rewound{TopicPartition: tp, Epoch: 2, PositionEpoch: 4},
	} {
		if effects = step(late); len(effects) != 0 {
			t.Fatalf("%v has an effect: %v", late, effects)
		}
	}
	if r.Stale() != 3 {
		t.Errorf("stale %d, want 3", r.Stale())
	}
	effects = step(Offered{Offset: Offset{TopicPartition: tp, Epoch: 1, PositionEpoch: 3, Offset: 5}})
	if len(effects) != 1 || effects[0].(SendRound).Round.Offsets[0].Offset != 5 {
		t.Fatalf("the new position is not sent: %v", effects)
	}
}
