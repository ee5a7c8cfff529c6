package commit

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// script drives a Rounds by hand.
type script struct {
	t      *testing.T
	rounds *Rounds
	now    time.Time
}

func newScript(t *testing.T) *script {
	t.Helper()
	return newScriptWith(t, nil)
}

func newScriptWith(t *testing.T, strategy Strategy) *script {
	t.Helper()
	rounds := NewRounds(RoundsConfig{GroupID: "g", GroupInstanceID: "i", Strategy: strategy})
	s := &script{t: t, rounds: rounds, now: simStart}
	s.step(Entered{Generation: 1, MemberID: "m"})
	s.step(Assigned{TopicPartition: p0, Epoch: 1, Committed: kafka.NoOffset})
	s.step(Assigned{TopicPartition: p1, Epoch: 2, Committed: 10})
	return s
}

// step returns the effects as short words.
func (s *script) step(in Input) []string {
	s.t.Helper()
	effects, err := s.rounds.Step(s.now, in)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.rounds.Valid(); err != nil {
		s.t.Fatal(err)
	}
	var words []string
	for _, effect := range effects {
		switch effect := effect.(type) {
		case SendRound:
			word := fmt.Sprintf("send %d gen %d", effect.Round.ID, effect.Round.Generation)
			for _, offset := range effect.Round.Offsets {
				word += fmt.Sprintf(" %s@%d%s", offset.TopicPartition, offset.Offset, offset.Metadata)
			}
			words = append(words, word)
		case Committed:
			words = append(words, fmt.Sprintf("committed %s@%d", effect.Offset.TopicPartition, effect.Offset.Offset))
		case Flushed:
			words = append(words, fmt.Sprintf("flushed %d committed %d pending %d ok %t",
				effect.ID, effect.Committed, effect.Pending, effect.Err == nil))
		case RoundFailed:
			words = append(words, fmt.Sprintf("failed %d attempt %d", len(effect.Partitions), effect.Attempt))
		case MembershipDoubted:
			words = append(words, fmt.Sprintf("membership %d", effect.Generation))
		case CoordinatorDoubted:
			words = append(words, "coordinator")
		case StrategyFailed:
			words = append(words, fmt.Sprintf("strategy %s failed: %v", effect.Name, effect.Err))
		}
	}
	return words
}

func (s *script) expect(in Input, want ...string) {
	s.t.Helper()
	if got := s.step(in); !reflect.DeepEqual(got, want) {
		s.t.Fatalf("%T at +%v: %q, want %q", in, s.now.Sub(simStart), got, want)
	}
}

func (s *script) wait(d time.Duration) { s.now = s.now.Add(d) }

func (s *script) expectDeadlineWithin(low, high time.Duration) {
	s.t.Helper()
	deadline, ok := s.rounds.Deadline()
	if in := deadline.Sub(s.now); !ok || in < low || in > high {
		s.t.Fatalf("deadline in %v (%t), want %v to %v", in, ok, low, high)
	}
}

func offered0(offset int64) Offered {
	return Offered{Offset{TopicPartition: p0, Epoch: 1, Offset: offset}}
}

func offered1(offset int64) Offered {
	return Offered{Offset{TopicPartition: p1, Epoch: 2, Offset: offset}}
}

// answer answers a round; partitions not named in codes were committed.
func answer(id uint64, codes map[kafka.TopicPartition]error) Answered {
	results := map[kafka.TopicPartition]error{p0: nil, p1: nil}
	for tp, code := range codes {
		results[tp] = code
	}
	return Answered{ID: id, Results: results}
}
