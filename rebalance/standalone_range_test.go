package rebalance

import (
	"errors"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// newRangeRig has t-0 and t-1 read to an end by themselves and u whole.
func newRangeRig(t *testing.T) *aloneRig {
	t.Helper()
	s, err := NewStandalone(StandaloneConfig{
		Partitions: map[kafka.TopicPartition]StartPosition{tp("t", 0): StartBy(ResetLatest), tp("t", 1): StartAtOffset(7)},
		Topics:     map[string]StartPosition{"u": {}},
		Ends: map[kafka.TopicPartition]EndPosition{
			tp("t", 0): EndOfLog(), tp("t", 1): EndAtOffset(9), kafka.WholeTopic("u"): EndAt(1000),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &aloneRig{t: t, s: s, now: epoch0}
}

func (r *aloneRig) read(topic string, partition int32, epoch kafka.AssignmentEpoch, want string) *aloneRig {
	r.t.Helper()
	return r.step(RangeRead{TopicPartition: tp(topic, partition), Epoch: epoch}, want)
}

func absent(counts map[string]int32, topics ...string) TopicsChanged {
	out := seen(counts)
	out.Absent = make(map[string]error)
	for _, topic := range topics {
		out.Absent[topic] = kafka.UnknownTopicOrPartition
	}
	return out
}

// gone returns the error that the last step ended the consumer with.
func (r *aloneRig) gone() *RangeError {
	r.t.Helper()
	for _, e := range r.effects {
		if gone, ok := e.(RangeGone); ok {
			err, _ := errors.AsType[*RangeError](gone.Err)
			return err
		}
	}
	return nil
}

func TestRanges_TheConsumerEndsWhenTheLastOneIsRead(t *testing.T) {
	r := newRangeRig(t).to(StateAssigned)
	r.read("u", 0, 3, "").read("t", 1, 2, "").read("t", 1, 2, "")
	r.read("t", 0, 99, "") // of an ownership that has ended
	r.step(seen(map[string]int32{"t": 2, "u": 1}), "")
	r.read("t", 0, 1, "RangesRead").read("t", 0, 1, "")
	r.step(seen(map[string]int32{"t": 2, "u": 1}), "")
	r.step(r.leave(), ">LEAVING RevokePartitions(3)")
}

func TestRanges_OneThatIsSetBackIsReadAgain(t *testing.T) {
	r := newRangeRig(t).to(StateAssigned)
	r.read("u", 0, 3, "").read("t", 1, 2, "")
	r.step(RangeRead{TopicPartition: tp("u", 0), Epoch: 3, Undone: true}, "")
	r.read("t", 0, 1, "").read("u", 0, 3, "RangesRead")
}

func TestRanges_OneThatIsReadAtOnceDoesNotWaitForTheOthersToStart(t *testing.T) {
	r := newRangeRig(t).to(StateAssigning)
	r.read("u", 0, 3, "").read("t", 1, 2, "").read("t", 0, 1, "RangesRead")
}

func TestRanges_ATopicHasThePartitionsOfTheStart(t *testing.T) {
	r := newRangeRig(t).to(StateAssigned)
	r.step(seen(map[string]int32{"t": 5, "u": 4}), "")
	r.read("u", 0, 3, "").read("t", 1, 2, "").read("t", 0, 1, "RangesRead")
}

func TestRanges_ASuccessorReadsOnlyWhatIsLeft(t *testing.T) {
	r := newRangeRig(t).to(StateAssigned)
	r.read("u", 0, 3, "").read("t", 1, 2, "")
	r.s = r.s.Successor()
	r.step(Start{}, ">JOINING").step(seen(map[string]int32{"t": 2, "u": 3}), ">ASSIGNING AssignPartitions(1)")
	r.read("t", 0, 4, "RangesRead")
	r.s = r.s.Successor() // it died before it could close
	r.step(Start{}, ">JOINING").step(seen(map[string]int32{"t": 2, "u": 1}), ">ASSIGNING >ASSIGNED RangesRead")
}

func TestRanges_WhatDoesNotExistEndsTheConsumer(t *testing.T) {
	for name, c := range map[string]struct {
		looks []TopicsChanged
		want  kafka.TopicPartition // zero: nothing ends
	}{
		"a topic": {
			[]TopicsChanged{absent(map[string]int32{"t": 2}, "u"), absent(map[string]int32{"t": 2}, "u"), absent(map[string]int32{"t": 2}, "u")},
			kafka.WholeTopic("u"),
		},
		"a partition": {
			[]TopicsChanged{seen(map[string]int32{"t": 1, "u": 1}), seen(map[string]int32{"t": 1, "u": 1}), seen(map[string]int32{"t": 1, "u": 1})},
			tp("t", 1),
		},
		"a topic that was made meanwhile": {
			[]TopicsChanged{absent(map[string]int32{"t": 2}, "u"), absent(map[string]int32{"t": 2}, "u"), seen(map[string]int32{"t": 2, "u": 1}), absent(nil, "u"), absent(nil, "u")},
			kafka.TopicPartition{},
		},
		"a partition that was added meanwhile": {
			[]TopicsChanged{seen(map[string]int32{"t": 1, "u": 1}), seen(map[string]int32{"t": 1, "u": 1}), seen(map[string]int32{"t": 2, "u": 1}), seen(map[string]int32{"t": 2, "u": 1})},
			kafka.TopicPartition{},
		},
		"brokers that cannot say": {
			[]TopicsChanged{seen(nil), seen(nil), seen(nil), seen(nil), seen(map[string]int32{"t": 2}), seen(map[string]int32{"t": 2})},
			kafka.TopicPartition{},
		},
		"a topic that was deleted": {
			[]TopicsChanged{seen(map[string]int32{"t": 2, "u": 1}), absent(nil, "t"), absent(nil, "t"), absent(nil, "t")},
			kafka.WholeTopic("t"),
		},
	} {
		r := newRangeRig(t).to(StateJoining)
		var got *RangeError
		for i, look := range c.looks {
			if err := r.try(look); err != nil {
				t.Fatal(err)
			}
			if got = r.gone(); got != nil && i < len(c.looks)-1 {
				t.Errorf("%s: after %d looks: %v", name, i+1, got)
			}
		}
		switch {
		case c.want == kafka.TopicPartition{}:
			if got != nil {
				t.Errorf("%s: %v", name, got)
			}
		case got == nil || got.TopicPartition != c.want || !errors.Is(got, ErrNoPartition):
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
		if got != nil && r.s.ranges.over {
			if err := r.try(c.looks[len(c.looks)-1]); err != nil || r.gone() != nil {
				t.Errorf("%s: told twice: %v, %v", name, r.gone(), err)
			}
		}
	}
}

func TestRanges_ATopicThatIsGoneAfterItWasReadIsNotMissed(t *testing.T) {
	r := newRangeRig(t).to(StateAssigned)
	r.read("u", 0, 3, "")
	for range 2 * goneAfter {
		r.step(absent(map[string]int32{"t": 2}, "u"), "")
	}
	r.step(TopicRecreated{Topic: "u"}, "")
	r.read("t", 1, 2, "").read("t", 0, 1, "RangesRead")
}

func TestRanges_ATopicMadeAnewIsNotWhatWasToBeRead(t *testing.T) {
	r := newRangeRig(t).to(StateAssigned)
	r.step(TopicRecreated{Topic: "t"}, "RangeGone")
	if err := r.gone(); !errors.Is(err, ErrTopicRecreated) || err.TopicPartition != kafka.WholeTopic("t") {
		t.Error(err)
	}
	r.step(TopicRecreated{Topic: "t"}, "")
	// Found out by the successor of a group actor that died.
	failed, ok := r.s.Begin(0, tp("u", 0), Reached{Stored: kafka.NoOffset, Finished: 12, Anew: true}).(StartFails)
	if wrong, typed := errors.AsType[*RangeError](failed.Err); !ok || !typed || !errors.Is(wrong, ErrTopicRecreated) {
		t.Errorf("%+v", failed)
	}
}

func TestRanges_ABadConfigurationIsRefused(t *testing.T) {
	ends := func(tp kafka.TopicPartition, end EndPosition) map[kafka.TopicPartition]EndPosition {
		return map[kafka.TopicPartition]EndPosition{tp: end}
	}
	one := map[kafka.TopicPartition]StartPosition{tp("t", 0): StartAtOffset(5)}
	whole := map[string]StartPosition{"t": {}}
	for name, config := range map[string]StandaloneConfig{
		"no end":               {Partitions: one, Ends: ends(tp("t", 1), EndOfLog())},
		"no end of a topic":    {Topics: whole, Ends: ends(tp("t", 0), EndOfLog())},
		"before the start":     {Partitions: one, Ends: ends(tp("t", 0), EndAtOffset(4))},
		"a negative time":      {Topics: whole, Ends: ends(kafka.WholeTopic("t"), EndAt(-1))},
		"none at all":          {Topics: whole, Ends: map[kafka.TopicPartition]EndPosition{}},
		"of what is not there": {Topics: whole, Ends: map[kafka.TopicPartition]EndPosition{kafka.WholeTopic("t"): {}, tp("u", 0): {}}},
	} {
		if _, err := NewStandalone(config); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var inAGroup *StandaloneConfig
	if _, ends := inAGroup.End(tp("t", 0)); ends {
		t.Error("a member reads on for ever")
	}
}
