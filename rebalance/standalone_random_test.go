package rebalance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// aloneTwin is a consumer without a group, as naively as it can be told: after each input, what should be its own is what is
// assigned and was ever seen since its topic was last made anew.
type aloneTwin struct {
	t   *testing.T
	s   *Standalone
	now time.Time

	wanted func(tp kafka.TopicPartition) bool
	most   map[string]int32
	// own is what the effects gave and did not take again, by partition; open is every grant whose release is awaited or may
	// still come, true when it was revoked or lost.
	own     map[kafka.TopicPartition]kafka.AssignmentEpoch
	open    map[Grant]bool
	started map[Grant]bool
	epoch   kafka.AssignmentEpoch
	state   State
	leaveBy time.Time
	left    int
}

func (w *aloneTwin) apply(e Effect) error {
	switch e := e.(type) {
	case Moved:
		if e.From != w.state || standaloneMoves.check(e.From, e.To) != nil {
			return fmt.Errorf("moved from %s to %s, was in %s", e.From, e.To, w.state)
		}
		w.state = e.To
	case AssignPartitions:
		for _, g := range e.Grants {
			if _, has := w.own[g.TopicPartition]; has || g.Epoch <= w.epoch || !w.wanted(g.TopicPartition) {
				return fmt.Errorf("%v granted, own %v, last epoch %d", g, w.own, w.epoch)
			}
			w.epoch, w.own[g.TopicPartition], w.open[g] = g.Epoch, g.Epoch, false
		}
	case RevokePartitions:
		if !e.Closing || e.DrainUntil.After(e.Deadline) || e.Deadline.After(w.leaveBy) {
			return fmt.Errorf("%+v, leaving by %v", e, w.leaveBy)
		}
		for _, g := range e.Grants {
			w.open[g] = true
		}
	case LosePartitions:
		for _, g := range e.Grants {
			if w.own[g.TopicPartition] != g.Epoch {
				return fmt.Errorf("lost %v, own %v", g, w.own)
			}
			w.open[g] = true
			delete(w.own, g.TopicPartition)
		}
	case Left:
		w.left++
		clear(w.open)
		clear(w.own)
	case MissPartitions, Refused:
	default:
		return fmt.Errorf("%T without a group", e)
	}
	return nil
}

func (w *aloneTwin) step(in Input) {
	w.t.Helper()
	switch in := in.(type) {
	case TopicsChanged:
		if w.state == StateJoining || w.state == StateAssigning || w.state == StateAssigned {
			for topic, info := range in.Partitions {
				w.most[topic] = max(w.most[topic], info.Partitions)
			}
		}
	case TopicRecreated:
		if w.state == StateAssigning || w.state == StateAssigned {
			delete(w.most, in.Topic)
		}
	case PartitionStarted:
		if w.own[in.TopicPartition] == in.Epoch { // there is no epoch 0
			w.started[Grant(in)] = true
		}
	case PartitionReleased:
		if w.open[Grant(in)] {
			delete(w.open, Grant(in))
			if w.own[in.TopicPartition] == in.Epoch {
				delete(w.own, in.TopicPartition)
			}
		}
	case Leave:
		by := later(in.Deadline, w.now)
		if w.leaveBy.IsZero() || by.Before(w.leaveBy) {
			w.leaveBy = by
		}
	}
	effects, err := w.s.Step(w.now, in)
	if err != nil && !errors.Is(err, ErrUnexpectedInput) {
		w.t.Fatalf("%T: %v", in, err)
	}
	for _, e := range effects {
		if wrong := w.apply(e); wrong != nil {
			w.t.Fatalf("%+v [%s]: %v", in, summary(effects), wrong)
		}
	}
	w.check(in)
}

func (w *aloneTwin) check(in Input) {
	w.t.Helper()
	if err := w.s.Valid(); err != nil {
		w.t.Fatalf("after %+v: %v", in, err)
	}
	if w.state != w.s.State() {
		w.t.Fatalf("after %+v: %s, by the effects %s", in, w.s.State(), w.state)
	}
	var granted []Grant
	for tp, epoch := range w.own {
		granted = append(granted, Grant{tp, epoch})
	}
	slices.SortFunc(granted, compareGrants)
	if !slices.Equal(granted, w.s.Granted()) {
		w.t.Fatalf("after %+v: granted %v, by the effects %v", in, w.s.Granted(), granted)
	}
	if w.state != StateAssigning && w.state != StateAssigned {
		return
	}
	allStarted := true
	for topic, n := range w.most {
		for p := range n {
			tp := kafka.TopicPartition{Topic: topic, Partition: p}
			epoch, has := w.own[tp]
			// What was lost with its topic comes back with the next look at it.
			if _, again := in.(TopicsChanged); w.wanted(tp) && !has && again {
				w.t.Fatalf("after %+v: %s was seen and is not granted", in, tp)
			}
			allStarted = allStarted && (!has || w.started[Grant{tp, epoch}])
		}
	}
	if allStarted != (w.state == StateAssigned) {
		w.t.Fatalf("after %+v: %s, all started %t", in, w.state, allStarted)
	}
}

func (w *aloneTwin) random(choose chooser) Input {
	grant := Grant{TopicPartition: tp([]string{"t", "u", "v"}[choose(3)], int32(choose(5))), Epoch: kafka.AssignmentEpoch(choose(int(w.epoch) + 2))}
	if open := slices.SortedFunc(maps.Keys(w.open), compareGrants); len(open) > 0 && choose(4) > 0 {
		grant = open[choose(len(open))]
	}
	switch choose(12) {
	case 0, 1, 2:
		counts := make(map[string]int32)
		for _, topic := range []string{"t", "u", "v"} {
			if n := int32(choose(6)); n > 0 {
				counts[topic] = n
			}
		}
		return seen(counts)
	case 3:
		return TopicRecreated{Topic: []string{"t", "u", "v"}[choose(3)]}
	case 4, 5, 6:
		return PartitionStarted(grant)
	case 7, 8:
		return PartitionReleased(grant)
	case 9:
		w.now = w.now.Add(time.Duration(choose(3000)) * time.Millisecond)
		return Tick{}
	case 10:
		if choose(40) == 0 {
			return Leave{DrainUntil: w.now.Add(time.Duration(choose(3)) * time.Second), Deadline: w.now.Add(time.Duration(choose(5)) * time.Second)}
		}
		return Tick{}
	default:
		return []Input{HeartbeatAnswered{}, SessionExpired{}, Rejoin{}, TopicsKnown{}, Start{}, GiveUp{}}[choose(6)]
	}
}

func randomStandalone(t *testing.T, choose chooser, steps int) {
	t.Helper()
	config := StandaloneConfig{
		Partitions: map[kafka.TopicPartition]StartPosition{tp("t", int32(choose(4))): {}, tp("t", 3): StartAtOffset(1)},
		Topics:     map[string]StartPosition{"u": StartBy(ResetLatest)},
	}
	s, err := NewStandalone(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &aloneTwin{
		t: t, s: s, now: epoch0, most: make(map[string]int32), own: make(map[kafka.TopicPartition]kafka.AssignmentEpoch),
		open: make(map[Grant]bool), started: make(map[Grant]bool),
		wanted: func(tp kafka.TopicPartition) bool {
			_, named := config.Partitions[tp]
			return named || tp.Topic == "u"
		},
	}
	w.step(Start{})
	for i := 0; i < steps && w.left == 0; i++ {
		w.step(w.random(choose))
	}
	// However it stands, leaving ends, and on time.
	for i := 0; w.left == 0; i++ {
		if i > 4 {
			t.Fatalf("did not leave: %s, %v", s.State(), s.Granted())
		}
		if i == 0 {
			w.step(Leave{DrainUntil: w.now.Add(time.Second), Deadline: w.now.Add(2 * time.Second)})
		}
		if at, ok := s.Deadline(); ok && w.left == 0 {
			w.now = later(w.now, at)
			w.step(Tick{})
		}
	}
	if w.left != 1 {
		t.Fatalf("left %d times", w.left)
	}
}

func TestStandalone_RandomHistoriesAgreeWithTheTwin(t *testing.T) {
	for seed := range uint64(2000) {
		randomStandalone(t, seeded(seed), 120)
	}
}

func FuzzStandalone(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) { randomStandalone(t, fromBytes(data), 200) })
}
