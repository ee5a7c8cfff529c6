package rebalance

import (
	"errors"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func randomPartition(t *testing.T, choose chooser, steps int) {
	t.Helper()
	p := NewPartition(Grant{TopicPartition: tp("t", 0), Epoch: 1})
	now := epoch0
	state := PartitionAssigning
	counts := make(map[string]int)
	for range steps {
		now = now.Add(time.Duration(choose(30)) * 100 * time.Millisecond)
		if at, ok := p.Deadline(); ok && choose(4) == 0 {
			now = later(now, at)
		}
		inputs := []PartitionInput{
			PositionKnown{}, DeliveryStarted{}, DeliveryEnded{}, FinalCommitAnswered{}, PartitionTick{}, PartitionTick{}, PartitionTick{},
			DrainRequested{DrainUntil: now.Add(time.Duration(choose(20)-5) * time.Second), Deadline: now.Add(time.Duration(choose(20)-5) * time.Second)},
			OwnershipLost{Cause: errNetwork},
		}
		limit := len(inputs)
		if choose(6) != 0 {
			limit -= 2
		}
		in := inputs[choose(limit)]
		effects, err := p.Step(now, in)
		if err != nil && (!errors.Is(err, ErrUnexpectedInput) || len(effects) > 0) {
			t.Fatalf("%T: %v", in, err)
		}
		if at, ok := p.Deadline(); ok && !at.After(now) {
			more, err := p.Step(now, PartitionTick{})
			if err != nil {
				t.Fatal(err)
			}
			effects = append(effects, more...)
		}
		if err := p.Valid(); err != nil {
			t.Fatalf("after %+v: %v", in, err)
		}
		for _, e := range effects {
			counts[typeName(e)]++
			switch e := e.(type) {
			case PartitionMoved:
				if e.From != state || partitionMoves.check(e.From, e.To) != nil {
					t.Fatalf("moved from %s to %s", e.From, e.To)
				}
				state = e.To
			case RequestFinalCommit:
				if state != PartitionRevoking || counts["Release"] > 0 {
					t.Fatalf("commit asked for in %s", state)
				}
			case StartFlow, StopFlow, CancelHandler, AbandonHandler, Release:
			}
		}
		if counts["StopFlow"] > counts["StartFlow"] || p.State() != state || (counts["Release"] == 1) != (state == PartitionRevoked) {
			t.Fatalf("%v in %s", counts, state)
		}
		for name, n := range counts {
			if n > 1 && name != "PartitionMoved" {
				t.Fatalf("%s came %d times", name, n)
			}
		}
		if at, ok := p.Deadline(); ok && !at.After(now) {
			t.Fatalf("deadline %v is not after %v", at.Sub(epoch0), now.Sub(epoch0))
		}
	}
}

func randomLink(t *testing.T, choose chooser, steps int) {
	t.Helper()
	l, err := NewLink(LinkConfig{BackoffMax: time.Second, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	now, state, seq, id := epoch0, LinkDown, uint64(0), uint64(0)
	open := make(map[uint64]bool)
	for range steps {
		now = now.Add(time.Duration(choose(5)) * 100 * time.Millisecond)
		in := randomLinkInput(choose, now, seq, &id)
		switch in := in.(type) {
		case Need:
			open[in.ID] = true
		case Cancel:
			delete(open, in.ID)
		case LinkStart, Found, NotFound, Doubted, LinkTick, LinkStop:
		}
		effects, err := l.Step(now, in)
		if _, start := in.(LinkStart); err != nil && !start {
			t.Fatalf("%+v: %v", in, err)
		}
		if at, ok := l.Deadline(); ok && !at.After(now) {
			more, err := l.Step(now, LinkTick{})
			if err != nil {
				t.Fatal(err)
			}
			effects = append(effects, more...)
		}
		if err := l.Valid(); err != nil {
			t.Fatalf("after %+v: %v", in, err)
		}
		end := func(id uint64) {
			if !open[id] {
				t.Fatalf("need %d ended twice", id)
			}
			delete(open, id)
		}
		for _, e := range effects {
			switch e := e.(type) {
			case LinkMoved:
				if e.From != state || linkMoves.check(e.From, e.To) != nil {
					t.Fatalf("moved from %s to %s", e.From, e.To)
				}
				state = e.To
			case Find:
				if e.Seq <= seq {
					t.Fatalf("Seq %d after %d", e.Seq, seq)
				}
				seq = e.Seq
			case Ready:
				end(e.ID)
			case Expired:
				if e.Err == nil {
					t.Fatal("expired without a cause")
				}
				end(e.ID)
			}
		}
		if len(open) > 0 && l.State() != LinkDiscovering || len(open) != len(l.waiting) {
			t.Fatalf("%d needs open in %s, %d wait", len(open), l.State(), len(l.waiting))
		}
	}
}

// randomLinkInput returns any input; id is the last need's number.
func randomLinkInput(choose chooser, now time.Time, seq uint64, id *uint64) LinkInput {
	if choose(5) == 0 {
		seq = uint64(choose(int(seq) + 2))
	}
	broker := kafka.Broker{ID: int32(choose(2)), Addr: "a"}
	switch choose(12) {
	case 0:
		return LinkStart{}
	case 1, 2, 3:
		return Found{Seq: seq, Broker: broker}
	case 4, 5:
		return NotFound{Seq: seq, Err: errNetwork}
	case 6, 7:
		return Doubted{Coordinator: broker, Err: errNetwork}
	case 8, 9:
		*id++
		return Need{ID: *id, Deadline: now.Add(time.Duration(choose(20)) * 100 * time.Millisecond)}
	case 10:
		return Cancel{ID: uint64(choose(int(*id) + 1))}
	}
	if choose(10) == 0 {
		return LinkStop{}
	}
	return LinkTick{}
}

func randomPulse(t *testing.T, choose chooser, steps int) {
	t.Helper()
	p := testPulse(t)
	now, underWay := epoch0, 0
	var sentAt, alive time.Time
	lapsed := make(map[kafka.Generation]bool)
	generation := kafka.Generation(0)
	for range steps {
		now = now.Add(time.Duration(choose(40)) * 50 * time.Millisecond)
		if choose(40) == 0 {
			now = now.Add(time.Minute)
		}
		if at, ok := p.Deadline(); ok && choose(3) == 0 {
			now = later(now, at)
		}
		var in PulseInput
		switch choose(10) {
		case 0:
			generation++
			in, alive = PulseEnter{Generation: generation, Early: choose(2) == 0}, now
		case 1:
			in = PulseLeave{}
		case 2, 3, 4:
			if underWay == 0 {
				in = PulseAnswered{SentAt: now}
				break
			}
			answer := PulseAnswered{SentAt: sentAt, Err: randomErrors[choose(len(randomErrors))]}
			if answer.Err == nil || errors.Is(answer.Err, kafka.RebalanceInProgress) {
				alive = later(alive, sentAt)
			}
			in, underWay = answer, 0
		case 5:
			in = PulseNudge{}
		default:
			in = PulseTick{}
		}
		effects, err := p.Step(now, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Valid(); err != nil {
			t.Fatalf("after %+v: %v", in, err)
		}
		for _, e := range effects {
			switch e := e.(type) {
			case SendHeartbeat:
				if underWay++; underWay > 1 || e.Generation != generation || !now.Before(alive.Add(10*time.Second)) || !now.After(sentAt) {
					t.Fatalf("%d under way, %+v, alive %v ago", underWay, e, now.Sub(alive))
				}
				sentAt = now
			case SessionLapsed:
				if lapsed[e.Generation] || now.Before(alive.Add(10*time.Second)) {
					t.Fatalf("%+v, alive %v ago", e, now.Sub(alive))
				}
				lapsed[e.Generation] = true
			}
		}
	}
}

func TestAnySequenceOfInputsKeepsTheMachinesPromises(t *testing.T) {
	for name, run := range map[string]func(*testing.T, chooser, int){"partition": randomPartition, "link": randomLink, "pulse": randomPulse} {
		t.Run(name, func(t *testing.T) {
			for seed := range 4000 {
				run(t, seeded(uint64(seed)), 60)
			}
		})
	}
}

func FuzzMachines(f *testing.F) {
	f.Add(byte(0), []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add(byte(1), []byte{0, 0, 8, 0, 1, 0, 6, 0, 11, 0, 1})
	f.Add(byte(2), []byte{0, 0, 0, 9, 9, 9, 1, 1, 1})
	f.Fuzz(func(t *testing.T, machine byte, data []byte) {
		run := []func(*testing.T, chooser, int){randomPartition, randomLink, randomPulse}[machine%3]
		run(t, fromBytes(data), min(len(data), 400))
	})
}
