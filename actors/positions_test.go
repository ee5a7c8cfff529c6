package actors

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// outside is a start hook that notes what it was asked for.
type outside struct {
	mu     sync.Mutex
	asked  [][]kafka.TopicPartition
	answer func(ctx context.Context, call int) (map[kafka.TopicPartition]int64, error)
}

func (o *outside) positions(ctx context.Context, partitions []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	o.mu.Lock()
	o.asked = append(o.asked, partitions)
	call := len(o.asked)
	o.mu.Unlock()
	return o.answer(ctx, call)
}

func (o *outside) calls() [][]kafka.TopicPartition {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([][]kafka.TopicPartition(nil), o.asked...)
}

func TestTree_PartitionsStartWhereTheHookSays(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 3, 10)
		w.c.with(func() {
			w.c.committed[at(0)] = CommittedOffset{Offset: 9}
			w.c.committed[at(1)] = CommittedOffset{Offset: 9}
		})
		hook := &outside{answer: func(context.Context, int) (map[kafka.TopicPartition]int64, error) {
			return map[kafka.TopicPartition]int64{at(0): 4, at(1): -7, at(99): 1}, nil
		}}
		w.settings.Positions = hook.positions
		w.settings.Registrations[0].Reset = rebalance.ResetLatest
		w.start()
		w.sleep(time.Second)
		w.c.produce(at(1), 2)
		w.c.produce(at(2), 2)
		w.sleep(time.Second)
		assert.Equal(t, [][]kafka.TopicPartition{{at(0), at(1), at(2)}}, hook.calls())
		assert.Equal(t, upTo(4, 10), w.offsets(at(0)), "not at the commit")
		assert.Equal(t, upTo(10, 12), w.offsets(at(1)), "by the reset policy")
		assert.Equal(t, upTo(10, 12), w.offsets(at(2)), "by the reset policy, whatever is known of others")
		assert.Zero(t, w.c.count("OffsetFetch"))
		refused := eventsOf[event.Refused](w)
		if assert.Len(t, refused, 1) {
			assert.ErrorContains(t, refused[0].Err, "offset -7 for orders-1")
		}
		assert.Equal(t, "ASSIGNED", w.state())
	})
}

func TestTree_AHookThatFailsIsAskedAgainAndItsPanicIsContained(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		hook := &outside{answer: func(_ context.Context, call int) (map[kafka.TopicPartition]int64, error) {
			switch call {
			case 1:
				return nil, errTest
			case 2:
				panic("no database")
			case 3:
				return nil, context.Canceled // not ours: it is told of all the same
			}
			return map[kafka.TopicPartition]int64{at(0): 7}, nil
		}}
		w.settings.Positions = hook.positions
		w.start()
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(7, 10), w.offsets(at(0)))
		assert.Len(t, hook.calls(), 4)
		var delays []time.Duration
		var causes []error
		for _, e := range eventsOf[event.ConnectFailed](w) {
			assert.Equal(t, "start positions", e.Purpose)
			delays, causes = append(delays, e.RetryIn), append(causes, e.Err)
		}
		assert.Equal(t, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond}, delays)
		assert.ErrorIs(t, causes[0], errTest)
		assert.ErrorContains(t, causes[1], "panicked: no database")
		assert.Empty(t, eventsOf[event.ActorRestarted](w))
		assert.NoError(t, w.tree.Healthy())
	})
}

func TestTree_AHookThatBlocksHoldsUpNeitherMembershipNorClose(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		ended := make(chan error, 10)
		hook := &outside{answer: func(ctx context.Context, _ int) (map[kafka.TopicPartition]int64, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}}
		w.settings.Positions = hook.positions
		w.start()
		w.sleep(35 * time.Second) // one call has had its time, the next one runs
		assert.ErrorIs(t, <-ended, context.DeadlineExceeded)
		assert.Len(t, hook.calls(), 2)
		assert.Equal(t, "ASSIGNING", w.state())
		assert.Greater(t, w.c.count("Heartbeat"), 20)
		assert.ErrorIs(t, w.tree.WaitJoined(context.Background()), context.DeadlineExceeded, "it tells why it takes so long")
		started := time.Now()
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Less(t, time.Since(started), time.Second)
		assert.ErrorIs(t, <-ended, context.Canceled)
	})
}

func TestTree_AHookThatNeverReturnsIsToldOfAndCloseEnds(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		release := make(chan struct{})
		defer close(release)
		hook := &outside{answer: func(context.Context, int) (map[kafka.TopicPartition]int64, error) {
			<-release
			return nil, nil
		}}
		w.settings.Positions = hook.positions
		w.start()
		w.sleep(65 * time.Second)
		assert.Len(t, hook.calls(), 1, "one at a time")
		overdue := eventsOf[event.ConnectFailed](w)
		if assert.Len(t, overdue, 2) {
			assert.ErrorIs(t, overdue[0].Err, errPositionsOverdue)
		}
		started := time.Now()
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Less(t, time.Since(started), time.Second)
	})
}

func TestTree_AnAnswerForARevokedPartitionIsDropped(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 8)
		release := make(chan struct{})
		hook := &outside{answer: func(_ context.Context, call int) (map[kafka.TopicPartition]int64, error) {
			if call == 1 {
				<-release
				return map[kafka.TopicPartition]int64{at(0): 2, at(1): 2}, nil
			}
			return map[kafka.TopicPartition]int64{at(0): 5, at(1): 5}, nil
		}}
		w.settings.Positions = hook.positions
		w.start()
		w.sleep(time.Second)
		w.c.rival(true)
		w.sleep(8 * time.Second)
		close(release)
		w.sleep(2 * time.Second)
		assert.Equal(t, [][]kafka.TopicPartition{{at(0), at(1)}, {at(1)}}, hook.calls(), "the ghost has the first one")
		assert.Empty(t, w.offsets(at(0)))
		assert.Equal(t, upTo(5, 8), w.offsets(at(1)), "the first answer was for the epoch before")
	})
}

func TestTree_APartitionThatDiesAsksTheHookAgain(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 8)
		w.settings.Positions = (&outside{answer: func(_ context.Context, call int) (map[kafka.TopicPartition]int64, error) {
			return map[kafka.TopicPartition]int64{at(0): int64(call), at(1): int64(call)}, nil
		}}).positions
		var once sync.Once
		w.c.onDecode = func(tp kafka.TopicPartition, from int64) error {
			if tp == at(0) && from >= 5 {
				once.Do(func() { panic("test") })
			}
			return nil
		}
		w.start()
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(2, 8), distinct(w.offsets(at(0)))[1:])
		assert.Equal(t, upTo(1, 8), w.offsets(at(1)), "the other one is not asked about again")
	})
}

func TestACallOfTheHookGetsAndGivesCopies(t *testing.T) {
	asked, answer := []kafka.TopicPartition{at(0)}, map[kafka.TopicPartition]int64{at(0): 3, at(1): 4}
	offsets, err := callPositions(t.Context(), func(_ context.Context, given []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
		given[0] = at(7)
		return answer, nil
	}, asked)
	answer[at(0)] = 9
	assert.NoError(t, err)
	assert.Equal(t, map[kafka.TopicPartition]int64{at(0): 3}, offsets)
	assert.Equal(t, at(0), asked[0])
}

func TestTheTopicInACommitsMetadataIsTheFirstWord(t *testing.T) {
	id, other := kafka.TopicID{1, 2}, kafka.TopicID{1, 3}
	mark := func(id kafka.TopicID) string { return "troupe topic " + id.String() }
	for metadata, want := range map[string]bool{
		"":                        false,
		"xyz\x01\xff":             false,
		mark(id):                  false,
		mark(id) + " map AbC=":    false,
		mark(other):               true,
		mark(other) + " map A=":   true,
		mark(other) + " and more": true,
		"troupe topic ":           false,
		"troupe topic soon":       false,
		mark(other)[:20]:          false,
		mark(kafka.TopicID{}):     false,
	} {
		assert.Equal(t, want, ofAnotherTopic(metadata, id), "%q", metadata)
	}
	assert.False(t, ofAnotherTopic(mark(other), kafka.TopicID{}), "an id that is not known says nothing")
}
