package integration

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// everyCallWhileRebalancing makes every control call all the time while members come and go: each is carried out, or says by a
// type why not, and each is carried out at some time. Nothing is lost, and a close in the middle of a rebalance commits it all.
func everyCallWhileRebalancing(t *testing.T, b broker) {
	const partitions = 4
	topic, more, group, l := unique(t, "topic"), unique(t, "more"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	b.CreateTopic(t, more, 1)
	fill(t, b, topic, partitions, 20)
	healed := new(atomic.Bool)
	one := spawn(t, config(b, group), api.Handle(topic, l.watch("one", func(_ context.Context, r *kafka.Record) error {
		if r.Offset%10 == 7 && !healed.Load() {
			return errors.New("poison")
		}
		return nil
	}), api.Restart(quick())))
	settled(t, partitions, one)
	stop, done := make(chan struct{}), sync.WaitGroup{}
	counts := make(map[string]*atomic.Int64)
	for what, call := range one.everyCall(topic, more, l) {
		worked := new(atomic.Int64)
		counts[what] = worked
		done.Go(func() {
			for round := int64(0); !within(10*time.Millisecond, stop); round++ {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				err := call(ctx, round)
				cancel()
				switch {
				case err == nil:
					worked.Add(1)
				case errors.Is(err, context.DeadlineExceeded) || !typedRefusal(err):
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	halt := sync.OnceFunc(func() { close(stop); done.Wait() })
	defer halt()
	for range 2 {
		two := spawn(t, config(b, group), api.Handle(topic, l.note("two")))
		eventually(t, patience, "the other member has a part", func() bool { return len(two.owned()) > 0 && two.Stats().State == "ASSIGNED" })
		inTheMiddleOfARebalance(t, one, two)
		fill(t, b, topic, partitions, 10)
		pause(500 * time.Millisecond)
		two.mustClose(t)
	}
	eventually(t, patience, "each call was carried out", func() bool {
		for _, n := range counts {
			if n.Load() == 0 {
				return false
			}
		}
		return true
	})
	halt()
	for what, n := range counts {
		t.Logf("%s: %d times", what, n.Load())
	}
	healed.Store(true)
	ctx := requestContext(t)
	require.NoError(t, one.Resume(ctx))
	require.Empty(t, one.Stats().Tokens)
	_ = one.Unsubscribe(ctx, more) // it may be away already
	finished := func() bool {      // also what is delivered again after the last seek or failure
		return one.Commit(ctx) == nil && assert.ObjectsAreEqual(b.EndOffsets(t, topic), only(topic, b.Committed(t, group)))
	}
	eventually(t, patience, "all that is not skipped is handled and committed", finished)
	again := one.onceMore(t, b, l, topic)
	eventually(t, patience, "what comes again is handled and committed", func() bool { return len(again()) == 0 && finished() })
	handled := l.distinct()
	fill(t, b, topic, partitions, 10)
	eventually(t, patience, "and what comes after it", func() bool { return l.distinct() == handled+partitions*10 })
	inTheMiddleOfARebalance(t, one)
	one.mustClose(t)
	require.Equal(t, b.EndOffsets(t, topic), only(topic, b.Committed(t, group)))
	require.Empty(t, again(), "these were not handled")
	l.noOverlap(t)
}

// onceMore goes back to the beginning of a topic, for seeks forward may have left anything out that lay below them. It returns what
// tells the records that are in the topic and were not handled since.
func (m *member) onceMore(t *testing.T, b broker, l *ledger, topic string) (unhandled func() []spot) {
	t.Helper()
	before := make(map[kafka.TopicPartition]int)
	eventually(t, patience, "the position is set back", func() bool {
		owned := slices.DeleteFunc(m.owned(), func(tp kafka.TopicPartition) bool { return tp.Topic != topic })
		for _, tp := range owned {
			before[tp] = len(l.of(tp))
		}
		return len(owned) == len(b.EndOffsets(t, topic)) && m.Seek(t.Context(), rebalance.StartBy(rebalance.ResetEarliest), kafka.WholeTopic(topic)) == nil
	})
	return func() (unhandled []spot) {
		for tp, end := range b.EndOffsets(t, topic) {
			handled := make(map[int64]bool)
			for _, e := range l.of(tp)[before[tp]:] {
				handled[e.offset] = handled[e.offset] || e.err == nil && !e.end.IsZero()
			}
			for offset := range end {
				if !handled[offset] {
					unhandled = append(unhandled, spot{tp, offset})
				}
			}
		}
		return unhandled
	}
}

// only returns what is of one topic.
func only(topic string, of map[kafka.TopicPartition]int64) map[kafka.TopicPartition]int64 {
	maps.DeleteFunc(of, func(tp kafka.TopicPartition, _ int64) bool { return tp.Topic != topic })
	return of
}

// everyCall has all that may be called on a running consumer, with what it must answer. round varies the partition.
func (m *member) everyCall(topic, more string, l *ledger) map[string]func(ctx context.Context, round int64) error {
	of := func(round int64) kafka.TopicPartition { return at(topic, int32(round%4)) }
	user := func(ctx context.Context, token *api.Token) error {
		return errors.Join(token.Pause(ctx), token.Resume(ctx))
	}
	wrong := func(is bool) error {
		if is {
			return errors.New("the answer is wrong")
		}
		return nil
	}
	calls := map[string]func(ctx context.Context, round int64) error{
		"pause":      func(ctx context.Context, round int64) error { return m.Pause(ctx, of(round)) },
		"pause all":  func(ctx context.Context, _ int64) error { return m.Pause(ctx) },
		"resume":     func(ctx context.Context, round int64) error { return m.Resume(ctx, of(round)) },
		"resume all": func(ctx context.Context, _ int64) error { return m.Resume(ctx) },
		"seek": func(ctx context.Context, round int64) error {
			return m.Seek(ctx, rebalance.StartAtOffset(round%10), of(round))
		},
		"seek to a time": func(ctx context.Context, round int64) error {
			return m.Seek(ctx, rebalance.StartBy(rebalance.ResetAt(0)), of(round))
		},
		"skip":   func(ctx context.Context, round int64) error { return m.Skip(ctx, of(round), round%2*10+7, "a test") },
		"commit": func(ctx context.Context, _ int64) error { return m.Commit(ctx) },
		"commit async": func(ctx context.Context, round int64) error {
			future := m.CommitAsync(ctx, of(round))
			<-future.Done()
			return future.Err()
		},
		"commit offsets": func(ctx context.Context, round int64) error {
			return m.CommitOffsets(ctx, kafka.OffsetAndMetadata{TopicPartition: of(round), Offset: 0, Metadata: "a test"})
		},
		"token": func(ctx context.Context, round int64) error {
			token, err := m.Token(ctx, "wait", of(round))
			if err != nil {
				return err
			}
			return errors.Join(user(ctx, token), token.Return())
		},
		"try token": func(ctx context.Context, round int64) error {
			token, err := m.TryToken(ctx, "try", of(round))
			if err != nil {
				return err
			}
			return errors.Join(user(ctx, token), token.Return())
		},
		"with token": func(ctx context.Context, round int64) error {
			return m.WithToken(ctx, "with", user, of(round))
		},
		"hand": func(ctx context.Context, round int64) error {
			return m.WithToken(ctx, "hand", func(ctx context.Context, token *api.Token) error {
				did := make(chan error, 1)
				if err := token.Hand(ctx, "helper", func(ctx context.Context, mine *api.Token) { did <- user(ctx, mine) }); err != nil {
					return err
				}
				return <-did
			}, of(round))
		},
		"set concurrency": func(ctx context.Context, round int64) error { return m.SetConcurrency(ctx, int(round%5)) },
		"current assignment": func(context.Context, int64) error {
			owned := m.CurrentAssignment()
			return wrong(len(owned) > 5 || !slices.IsSortedFunc(owned, kafka.TopicPartition.Compare))
		},
		"rejoin": func(ctx context.Context, _ int64) error {
			pause(200 * time.Millisecond)
			return m.Rejoin(ctx, "a test")
		},
		"subscribe": func(ctx context.Context, _ int64) error {
			pause(200 * time.Millisecond)
			return errors.Join(m.Subscribe(ctx, api.Handle(more, l.note("one"))), m.Unsubscribe(ctx, more))
		},
	}
	for what, question := range m.questions(topic) {
		calls[what] = func(ctx context.Context, _ int64) error {
			right, err := question(ctx)
			return errors.Join(err, wrong(err == nil && !right))
		}
	}
	return calls
}

// questions are the calls that only ask, and whether the answer is right for a topic that only grows.
func (m *member) questions(topic string) map[string]func(ctx context.Context) (bool, error) {
	return map[string]func(ctx context.Context) (bool, error){
		"position": func(ctx context.Context) (bool, error) {
			found, err := m.Position(ctx, kafka.WholeTopic(topic))
			return len(found) > 0, err
		},
		"lag": func(ctx context.Context) (bool, error) {
			found, err := m.Lag(ctx, kafka.WholeTopic(topic))
			for _, lag := range found {
				if lag.End < 20 || lag.Lag != lag.End-lag.Position {
					return false, err
				}
			}
			return len(found) > 0, err
		},
		"committed": func(ctx context.Context) (bool, error) {
			found, err := m.Committed(ctx, kafka.WholeTopic(topic))
			return len(found) == 4, err
		},
		"beginning offsets": func(ctx context.Context) (bool, error) {
			found, err := m.BeginningOffsets(ctx, kafka.WholeTopic(topic))
			return len(found) == 4 && found[at(topic, 1)] == 0, err
		},
		"end offsets": func(ctx context.Context) (bool, error) {
			found, err := m.EndOffsets(ctx, kafka.WholeTopic(topic))
			return len(found) == 4 && found[at(topic, 1)] >= 20, err
		},
		"offsets for times": func(ctx context.Context) (bool, error) {
			found, err := m.OffsetsForTimes(ctx, map[kafka.TopicPartition]time.Time{kafka.WholeTopic(topic): time.Unix(0, 0)})
			return len(found) == 4 && found[at(topic, 1)].Offset == 0, err
		},
	}
}
