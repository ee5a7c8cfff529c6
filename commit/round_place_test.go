package commit

import (
	"errors"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// placed is a Place of the first partition in that position epoch, under the id of that epoch.
func (s *script) placed(run uint32, offset int64, metadata string) Place {
	return Place{
		ID: uint64(run), Deadline: s.now.Add(10 * time.Second),
		Offset: Offset{TopicPartition: p0, Epoch: 1, PositionEpoch: run, Offset: offset, Metadata: metadata},
	}
}

// offeredIn is an offer of the first partition in a position epoch.
func offeredIn(run uint32, offset int64) Offered {
	in := offered0(offset)
	in.Offset.PositionEpoch = run
	return in
}

func TestAPlacedOffsetGoesOutAtOnceAndAsItIsWhateverTheStrategySays(t *testing.T) {
	for _, strategy := range []Strategy{Opportunistic(), OnDemand(), EveryRecords(1000), Every(time.Hour)} {
		s := newScriptWith(t, strategy)
		s.step(offered0(20))
		if s.rounds.InFlight() {
			s.step(answer(1, nil))
		}
		id := s.rounds.lastID + 1
		s.expect(s.placed(1, 5, " text"), send(id, " t-0@5 text"))
		s.expect(offeredIn(1, 21)) // finished meanwhile
		effects := s.step(answer(id, nil))
		if effects[0] != "committed t-0@5" || effects[1] != "flushed 1 committed 5 pending 21 ok true" {
			t.Errorf("%s: %q", strategy.Name(), effects)
		}
		if _, ok := s.rounds.Deadline(); ok != (strategy == Opportunistic() || strategy == Every(time.Hour)) {
			t.Errorf("%s: what was finished meanwhile is not left to the strategy", strategy.Name())
		}
		s.expect(offered0(30)) // of the position epoch before
	}
}

func send(id uint64, what string) string { return "send " + string(rune('0'+id)) + " gen 1" + what }

func TestAPlacedOffsetWaitsForTheRoundInFlightAndIsNotConfirmedByIt(t *testing.T) {
	s := newScript(t)
	s.expect(offered0(20), "send 1 gen 1 t-0@20")
	s.expect(s.placed(1, 5, ""))
	s.expect(answer(1, nil), "send 2 gen 1 t-0@5")
	s.expect(answer(2, map[kafka.TopicPartition]error{p0: kafka.NotCoordinator}), "failed 1 attempt 1", "coordinator")
	s.wait(time.Second)
	s.expect(Tick{}, "send 3 gen 1 t-0@5")
	s.expect(answer(3, nil), "committed t-0@5", "flushed 1 committed 5 pending -1 ok true")
}

func TestAPlacedOffsetIsHeldDuringAJoinAndEndsWithItsOwnership(t *testing.T) {
	s := newScript(t)
	s.step(Held{})
	s.expect(s.placed(1, 5, ""))
	s.expect(offeredIn(1, 6))
	s.expect(Entered{Generation: 2, MemberID: "m"}, "send 1 gen 2 t-0@5")
	s.expect(s.placed(2, 3, "")) // while the other is on its way
	s.expect(answer(1, nil), "send 2 gen 2 t-0@3")
	s.expect(Fenced{TopicPartition: p0, Epoch: 1}, "flushed 1 committed -1 pending 3 ok false", "flushed 2 committed -1 pending 3 ok false")
	s.expect(answer(2, nil))
	s.expect(s.placed(3, 3, ""), "flushed 3 committed -1 pending -1 ok false")
}

func TestAPlacedOffsetWhoseTimeIsOverStaysDue(t *testing.T) {
	s := newScript(t)
	s.step(Held{})
	s.expect(s.placed(1, 5, ""))
	s.wait(10 * time.Second)
	s.expect(Tick{}, "flushed 1 committed -1 pending 5 ok false")
	s.expect(Entered{Generation: 2, MemberID: "m"}, "send 1 gen 2 t-0@5")
}

func TestOfTwoPlacedOffsetsTheLaterIsSentAndAnswersBoth(t *testing.T) {
	s := newScript(t)
	s.step(Held{})
	s.expect(s.placed(1, 5, " one"))
	s.expect(s.placed(2, 7, " two"))
	s.expect(Entered{Generation: 1, MemberID: "m"}, "send 1 gen 1 t-0@7 two")
	s.expect(answer(1, nil), "committed t-0@7", "flushed 1 committed 7 pending -1 ok true", "flushed 2 committed 7 pending -1 ok true")
}

func TestOffsetsOfOneCallGoOutTogetherAndNoneWaitsLongForTheOthers(t *testing.T) {
	s := newScript(t)
	first := s.placed(1, 5, "")
	first.Call = 7
	s.expect(first)
	second := s.placed(2, 15, "")
	second.Offset.TopicPartition, second.Offset.Epoch, second.Call, second.Last = p1, 2, 7, true
	s.expect(second, "send 1 gen 1 t-0@5 t-1@15")
	s.step(answer(1, nil))

	s.wait(time.Second)
	third := s.placed(3, 4, "")
	third.Call = 8
	s.expect(third)
	s.expectDeadlineWithin(GatherWait, GatherWait)
	other := offered1(16)
	other.Offset.PositionEpoch = 2
	s.expect(other, "send 2 gen 1 t-1@16") // a round of others does not take it along
	s.expect(answer(2, nil), "committed t-1@16")
	s.wait(GatherWait)
	s.expect(Tick{}, "send 3 gen 1 t-0@4")
}

func TestAUsersTextThatIsTooLargeIsATypedErrorAndTheMapGivesWayFirst(t *testing.T) {
	s := newScript(t)
	tooLarge := map[kafka.TopicPartition]error{p0: kafka.OffsetMetadataTooLarge}
	s.expect(s.placed(1, 5, simMark+" map AAAA user x"), "send 1 gen 1 t-0@5"+simMark+" map AAAA user x")
	s.expect(answer(1, tooLarge), "failed 1 attempt 1", "send 2 gen 1 t-0@5"+simMark+" user x")
	s.expect(answer(2, tooLarge), "flushed 1 committed -1 pending -1 ok false", "failed 1 attempt 2")
	s.wait(time.Minute)
	s.expect(Tick{})
	s.expect(offeredIn(1, 20), "send 3 gen 1 t-0@20")
	s.step(answer(3, nil))

	s.expect(s.placed(2, 5, simMark), "send 4 gen 1 t-0@5"+simMark)
	s.expect(answer(4, tooLarge), "failed 1 attempt 1", "send 5 gen 1 t-0@5") // nothing of the user's is lost
}

func TestAUsersTextThatIsTooLargeWhenItsUserHasGoneIsLeftOutThoughWhoPlacedAnOffsetBeforeStillWaits(t *testing.T) {
	s := newScript(t)
	tooLarge := map[kafka.TopicPartition]error{p0: kafka.OffsetMetadataTooLarge}
	s.expect(s.placed(1, 9, simMark), "send 1 gen 1 t-0@9"+simMark)
	second := s.placed(2, 5, simMark+" user x")
	second.Deadline = s.now
	s.expect(second, "flushed 2 committed -1 pending 5 ok false")
	s.expect(answer(1, tooLarge), "send 2 gen 1 t-0@5"+simMark+" user x")
	s.expect(answer(2, tooLarge), "failed 1 attempt 1", "send 3 gen 1 t-0@5")
	s.expect(answer(3, nil), "committed t-0@5", "flushed 1 committed 5 pending -1 ok true")
}

func TestAPlacedOffsetIsRefusedWithATypedErrorUnderManualAndOfAnOldPositionEpoch(t *testing.T) {
	reason := func(s *script, in Place) error {
		effects, err := s.rounds.Step(s.now, in)
		if err != nil || len(effects) != 1 {
			t.Fatalf("%v, %v", effects, err)
		}
		return effects[0].(Flushed).Err
	}
	if err := reason(newScriptWith(t, Manual()), newScript(t).placed(1, 5, "")); !errors.Is(err, ErrManual) {
		t.Error(err)
	}
	if err := reason(newScript(t), newScript(t).placed(0, 5, "")); !errors.Is(err, ErrEpochClosed) {
		t.Error(err)
	}
	s := newScript(t)
	if _, err := s.rounds.Step(s.now, s.placed(1, -1, "")); !errors.Is(err, ErrInvalidInput) {
		t.Error(err)
	}
	s.step(s.placed(1, 5, ""))
	if _, err := s.rounds.Step(s.now, s.placed(1, 5, "")); !errors.Is(err, ErrDuplicateFlush) {
		t.Error(err)
	}
}

func TestAFlushAfterAPlacedOffsetWaitsForItAndForWhatWasOfferedSince(t *testing.T) {
	s := newScriptWith(t, OnDemand())
	s.expect(s.placed(1, 5, " text"), "send 1 gen 1 t-0@5 text")
	s.step(offeredIn(1, 9))
	s.expect(Flush{ID: 9, TopicPartition: p0, Epoch: 1, Deadline: s.now.Add(time.Minute)})
	s.expect(answer(1, nil), "committed t-0@5", "flushed 1 committed 5 pending 9 ok true", "send 2 gen 1 t-0@9")
	s.expect(answer(2, nil), "committed t-0@9", "flushed 9 committed 9 pending -1 ok true")
}

func TestATruncationReplacesAPlacedOffset(t *testing.T) {
	s := newScript(t)
	s.step(Held{})
	s.step(s.placed(1, 5, " text"))
	s.expect(offeredIn(2, 3))
	s.expect(Entered{Generation: 1, MemberID: "m"}, "send 1 gen 1 t-0@3")
	s.expect(answer(1, nil), "committed t-0@3", "flushed 1 committed 3 pending -1 ok true")
}
