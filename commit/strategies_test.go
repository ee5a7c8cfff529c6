package commit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestStrategiesSayWhenAnOffsetIsDue(t *testing.T) {
	at := func(seconds int) time.Time { return simStart.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		strategy Strategy
		state    State
		at       time.Time
		ok       bool
	}{
		{Opportunistic(), State{}, time.Time{}, true},
		{EveryRecords(10), State{Records: 9}, time.Time{}, false},
		{EveryRecords(10), State{Records: 10}, time.Time{}, true},
		{EveryRecords(0), State{Records: 0}, time.Time{}, false},
		{EveryRecords(-5), State{Records: 1}, time.Time{}, true},
		{Every(3 * time.Second), State{Since: at(1)}, at(4), true},
		{Every(3 * time.Second), State{Since: at(9), LastCommit: at(7)}, at(10), true},
		{OnDemand(), State{Records: 1 << 40, Since: at(0)}, time.Time{}, false},
		{Manual(), State{Records: 1 << 40, Since: at(0)}, time.Time{}, false},
	} {
		if due, ok := c.strategy.Due(c.state); ok != c.ok || ok && !due.Equal(c.at) {
			t.Errorf("%s with %+v: %v, %t", c.strategy.Name(), c.state, due, ok)
		}
	}
	for want, strategy := range map[string]Strategy{
		"opportunistic": Opportunistic(), "every_records(5)": EveryRecords(5), "every(2s)": Every(2 * time.Second),
		"on_demand": OnDemand(), "manual": Manual(),
	} {
		if strategy.Name() != want || IsManual(strategy) != (want == "manual") {
			t.Errorf("%s is called %s", want, strategy.Name())
		}
	}
	if IsManual(nil) {
		t.Error("nil is manual")
	}
}

func TestValidateNamesTheArgumentThatIsWrong(t *testing.T) {
	for _, right := range []Strategy{
		nil, Opportunistic(), EveryRecords(1), Every(1), OnDemand(), Manual(), scattered{},
	} {
		if err := Validate(right); err != nil {
			t.Errorf("%T: %v", right, err)
		}
	}
	for want, wrong := range map[string]Strategy{
		"commit: EveryRecords: n is 0, want at least 1":  EveryRecords(0),
		"commit: EveryRecords: n is -3, want at least 1": EveryRecords(-3),
		"commit: Every: d is 0s, want more than 0s":      Every(0),
		"commit: Every: d is -1m0s, want more than 0s":   Every(-time.Minute),
	} {
		var typed *StrategyError
		if err := Validate(wrong); !errors.As(err, &typed) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// finished0 offers an offset below which that many records were finished.
func finished0(offset int64, records uint64) Offered {
	return Offered{Offset{TopicPartition: p0, Epoch: 1, Offset: offset, Finished: records}}
}

func finished1(offset int64, records uint64) Offered {
	return Offered{Offset{TopicPartition: p1, Epoch: 2, Offset: offset, Finished: records}}
}

func flush0(s *script, id uint64) Flush {
	return Flush{ID: id, TopicPartition: p0, Epoch: 1, Deadline: s.now.Add(time.Minute)}
}

func TestEveryRecordsCountsFromTheLastConfirmedOffset(t *testing.T) {
	s := newScriptWith(t, EveryRecords(10))
	s.expect(finished0(5, 5))
	s.expect(finished1(19, 9))
	s.expect(finished0(50, 9)) // holes are no records
	s.expect(finished0(51, 10), "send 1 gen 1 t-0@51")
	s.expect(finished0(60, 19))
	s.wait(time.Minute)
	s.expect(answer(1, nil), "committed t-0@51")
	s.expect(finished0(61, 20), "send 2 gen 1 t-0@61") // the other one still has 9, and is not taken along
	s.expect(answer(2, nil), "committed t-0@61")
	s.expect(flush0(s, 1), "flushed 1 committed 61 pending -1 ok true")
	s.expect(finished0(62, 21))
	s.expect(flush0(s, 2), "send 3 gen 1 t-0@62")
	s.expect(answer(3, nil), "committed t-0@62", "flushed 2 committed 62 pending -1 ok true")
	s.wait(time.Minute)
	s.expect(finished0(70, 3)) // the count began anew
	s.expect(finished0(80, 10), "send 4 gen 1 t-0@80")
}

func TestEveryCommitsPartitionsTogether(t *testing.T) {
	s := newScriptWith(t, Every(10*time.Second))
	s.expect(offered0(5))
	s.wait(3 * time.Second)
	s.expect(offered1(15))
	s.expect(offered0(6))
	s.expectDeadlineWithin(7*time.Second, 7*time.Second)
	s.wait(7 * time.Second)
	s.expect(Tick{}, "send 1 gen 1 t-0@6 t-1@15")
	s.expect(offered0(7))
	s.wait(time.Second)
	s.expect(answer(1, nil), "committed t-0@6", "committed t-1@15")
	s.expectDeadlineWithin(10*time.Second, 10*time.Second)
	s.wait(time.Hour)
	s.expect(answer(1, nil), "send 2 gen 1 t-0@7")
}

func TestOnDemandCommitsOnlyByFlush(t *testing.T) {
	s := newScriptWith(t, OnDemand())
	s.expect(offered0(5))
	s.expect(offered1(15))
	if _, ok := s.rounds.Deadline(); ok {
		t.Fatal("a deadline without a flush")
	}
	s.wait(time.Hour)
	s.expect(Tick{})
	s.expect(flush0(s, 1), "send 1 gen 1 t-0@5")
	s.expect(answer(1, map[kafka.TopicPartition]error{p0: kafka.RequestTimedOut}), "failed 1 attempt 1")
	s.wait(time.Second)
	s.expect(Tick{}, "send 2 gen 1 t-0@5")
	s.expect(answer(2, nil), "committed t-0@5", "flushed 1 committed 5 pending -1 ok true")
	s.wait(time.Hour)
	s.expect(Tick{})
}

func TestManualSendsNothingNotEvenByFlush(t *testing.T) {
	s := newScriptWith(t, Manual())
	s.expect(offered0(5))
	s.expect(flush0(s, 1), "flushed 1 committed -1 pending -1 ok true")
	s.wait(time.Hour)
	s.expect(Tick{})
	s.expect(Departed{})
	s.expect(flush0(s, 2), "flushed 2 committed -1 pending -1 ok true")
	if s.rounds.Pending() != 0 {
		t.Fatal("something is pending")
	}
}

// broken panics once it was asked that often.
type broken struct {
	left  int
	value any
}

func (b *broken) Name() string {
	if b.left < 0 {
		panic("no name")
	}
	return "broken"
}

func (b *broken) Due(State) (time.Time, bool) {
	if b.left == 0 {
		panic(b.value)
	}
	b.left--
	return time.Time{}, false
}

func TestAPanickingStrategyIsReplacedForGoodAndReportedOnce(t *testing.T) {
	s := newScriptWith(t, &broken{left: 1, value: "oops"})
	s.expect(offered0(5))
	s.expect(offered1(15), "strategy broken failed: commit: the strategy panicked: oops", "send 1 gen 1 t-0@5 t-1@15")
	s.expect(answer(1, nil), "committed t-0@5", "committed t-1@15")
	s.wait(time.Second)
	s.expect(offered0(6), "send 2 gen 1 t-0@6")

	// It panics over a partition that waits, and the other one must not wait with it.
	s = newScriptWith(t, &broken{left: 2, value: kafka.TopicPartition{}})
	s.expect(offered1(15))
	s.expect(Flush{ID: 1, TopicPartition: p1, Epoch: 2, Deadline: s.now.Add(time.Millisecond)}, "send 1 gen 1 t-1@15")
	s.wait(time.Millisecond)
	s.expect(Tick{}, "flushed 1 committed 10 pending 15 ok false")
	s.expect(answer(1, map[kafka.TopicPartition]error{p1: kafka.TopicAuthorizationFailed}), "failed 1 attempt 1")
	s.wait(500 * time.Millisecond)
	s.expect(offered0(5))
	s.expect(offered1(16), "strategy broken failed: commit: the strategy panicked: -0", "send 2 gen 1 t-0@5")

	cause := errors.New("cause")
	rounds := NewRounds(RoundsConfig{Strategy: &broken{left: 0, value: cause}})
	for _, in := range []Input{
		Entered{Generation: 1}, Assigned{TopicPartition: p0, Epoch: 1, Committed: kafka.NoOffset},
	} {
		if _, err := rounds.Step(simStart, in); err != nil {
			t.Fatal(err)
		}
	}
	effects, _ := rounds.Step(simStart, offered0(1))
	failed, ok := effects[0].(StrategyFailed)
	if !ok || !errors.Is(failed.Err, ErrStrategyPanicked) || !errors.Is(failed.Err, cause) {
		t.Fatalf("%+v", effects)
	}
	effects, _ = NewRounds(RoundsConfig{Strategy: &broken{left: -1}}).Step(simStart, Tick{})
	if failed, ok := effects[0].(StrategyFailed); !ok || failed.Name != "*commit.broken" || len(effects) != 1 {
		t.Fatalf("%+v", effects)
	}
}

// counted counts how often it is asked.
type counted struct {
	Strategy
	calls int
}

func (c *counted) Due(state State) (time.Time, bool) {
	c.calls++
	return c.Strategy.Due(state)
}

func TestAStrategyIsAskedOncePerChange(t *testing.T) {
	const partitions = 1000
	strategy := &counted{Strategy: EveryRecords(10)}
	rounds := NewRounds(RoundsConfig{Strategy: strategy})
	now := simStart
	step := func(in Input) []Effect {
		t.Helper()
		effects, err := rounds.Step(now, in)
		if err != nil {
			t.Fatal(err)
		}
		rounds.Deadline()
		return effects
	}
	step(Entered{Generation: 1, MemberID: "m"})
	for i := range int32(partitions) {
		tp := kafka.TopicPartition{Topic: "t", Partition: i}
		step(Assigned{TopicPartition: tp, Epoch: 1, Committed: kafka.NoOffset})
		step(Offered{Offset{TopicPartition: tp, Epoch: 1, Offset: 5, Finished: 5}})
	}
	for range 100 {
		now = now.Add(time.Second)
		step(Tick{})
	}
	if strategy.calls != partitions {
		t.Fatalf("asked %d times for %d offers", strategy.calls, partitions)
	}
	effects := step(Offered{Offset{TopicPartition: kafka.TopicPartition{Topic: "t"}, Epoch: 1, Offset: 10, Finished: 10}})
	if round, ok := effects[0].(SendRound); !ok || len(round.Round.Offsets) != 1 {
		t.Fatalf("%+v", effects)
	}
	step(Answered{ID: 1, Results: map[kafka.TopicPartition]error{{Topic: "t"}: nil}})
	if strategy.calls != partitions+1 {
		t.Fatalf("asked %d times for %d offers", strategy.calls, partitions+1)
	}
}

func map0(offset int64, text string) Offered {
	return Offered{Offset{TopicPartition: p0, Epoch: 1, Offset: offset, Metadata: simMark + mapSeparator + text}}
}

func TestAChangedMapIsCommittedASecondAfterTheLastConfirmation(t *testing.T) {
	s := newScript(t)
	sent := func(id int, offset int64, text string) string {
		return fmt.Sprintf("send %d gen 1 t-0@%d%s map %s", id, offset, simMark, text)
	}
	s.expect(map0(4, "a"), sent(1, 4, "a"))
	s.expect(map0(4, "b"))
	s.wait(100 * time.Millisecond)
	s.expect(answer(1, nil), "committed t-0@4")
	s.expect(map0(4, "c")) // a newer one replaces the older
	s.expectDeadlineWithin(time.Second, time.Second)
	s.wait(time.Second)
	s.expect(Tick{}, sent(2, 4, "c"))
	s.expect(answer(2, nil), "committed t-0@4")
	s.wait(300 * time.Millisecond)
	s.expect(map0(4, "d"))
	s.expect(offered1(15), sent(3, 4, "d")+" t-1@15") // it goes along
	s.expect(answer(3, nil), "committed t-0@4", "committed t-1@15")
	s.wait(time.Hour)
	s.expect(map0(4, "d"))
	s.expect(Offered{Offset{TopicPartition: p0, Epoch: 1, Offset: 4, Metadata: simMark}}) // a map is not taken away
	s.expect(map0(4, "e"), sent(4, 4, "e"))
	s.expect(map0(5, "f"))
	s.wait(300 * time.Millisecond)
	s.expect(answer(4, nil), "committed t-0@4", sent(5, 5, "f")) // an offset does not wait for a second
}

func TestAMapThatTheBrokerHasIsNotSentAgain(t *testing.T) {
	s := newScript(t)
	text := simMark + mapSeparator + "a"
	s.step(Assigned{TopicPartition: p0, Epoch: 5, Committed: 7, Metadata: text})
	s.wait(time.Hour)
	s.expect(Offered{Offset{TopicPartition: p0, Epoch: 5, Offset: 7, Metadata: simMark}})
	s.expect(Offered{Offset{TopicPartition: p0, Epoch: 5, Offset: 7, Metadata: text}})
	s.expect(Offered{Offset{TopicPartition: p0, Epoch: 5, Offset: 7, Metadata: text + "b"}}, "send 1 gen 1 t-0@7"+text+"b")
}

func TestAMapHoldsUpNoFlush(t *testing.T) {
	confirmed := func(s *script) {
		s.step(map0(4, "a"))
		s.step(answer(1, nil))
		s.step(map0(4, "b"))
	}
	ok := func(id int) string { return fmt.Sprintf("flushed %d committed 4 pending -1 ok true", id) }
	send := "t-0@4" + simMark + " map b"

	s := newScript(t) // one round is sent with it, and its failure is none of the flush
	confirmed(s)
	s.expect(flush0(s, 1), "send 2 gen 1 "+send)
	s.expect(answer(2, map[kafka.TopicPartition]error{p0: kafka.RequestTimedOut}), "failed 1 attempt 1", ok(1))
	s.wait(time.Second)
	s.expect(Tick{}, "send 3 gen 1 "+send) // it is not forgotten

	s = newScript(t) // the round with it was not sent, as another partition's release took the key: that was no try
	confirmed(s)
	s.expect(flush0(s, 1), "send 2 gen 1 "+send)
	s.expect(Answered{ID: 2, Err: ErrUnanswered, NotSent: true}, "failed 1 attempt 1")
	s.wait(time.Second)
	s.expect(Tick{}, "send 3 gen 1 "+send)
	s.expect(answer(3, nil), "committed t-0@4", ok(1))

	s = newScript(t) // a round with the older map is in flight
	confirmed(s)
	s.wait(time.Second)
	s.expect(Tick{}, "send 2 gen 1 "+send)
	s.expect(map0(4, "c"))
	s.expect(flush0(s, 1))
	s.expect(answer(2, nil), "committed t-0@4", "send 3 gen 1 t-0@4"+simMark+" map c")
	s.expect(answer(3, nil), "committed t-0@4", ok(1))

	s = newScript(t) // the map is too large
	confirmed(s)
	s.expect(flush0(s, 1), "send 2 gen 1 "+send)
	s.expect(answer(2, map[kafka.TopicPartition]error{p0: kafka.OffsetMetadataTooLarge}), "failed 1 attempt 1", ok(1))

	for _, in := range []Input{Held{}, Departed{}} { // nothing can be sent
		s = newScript(t)
		confirmed(s)
		s.expect(in)
		s.expect(flush0(s, 1), ok(1))

		s = newScript(t)
		confirmed(s)
		s.step(flush0(s, 1))
		s.expect(in, ok(1))
	}

	s = newScript(t) // the deadline comes first
	confirmed(s)
	s.step(flush0(s, 1))
	s.wait(time.Minute)
	s.expect(Tick{}, ok(1))
	s.expect(flush0(s, 2))
	s.expect(Fenced{TopicPartition: p0, Epoch: 1}, ok(2))
}
