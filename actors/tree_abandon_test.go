package actors

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// abandon abandons the tree and returns the result and how long it took.
func (w *treeWorld) abandon(ctx context.Context) (*CloseError, time.Duration, error) {
	begun := time.Now()
	err := w.tree.Abandon(ctx)
	took := time.Since(begun)
	closing, _ := errors.AsType[*CloseError](err)
	return closing, took, err
}

// stuckAt is a handler that does not return from one record before release, and notes why its context ended.
func (w *treeWorld) stuckAt(tp kafka.TopicPartition, offset int64) (release chan struct{}, cause func() error) {
	release = make(chan struct{})
	var mu sync.Mutex
	var why error
	w.setHandle(func(ctx context.Context, r *kafka.Record) error {
		if r.TopicPartition() == tp && r.Offset == offset {
			context.AfterFunc(ctx, func() {
				mu.Lock()
				defer mu.Unlock()
				why = context.Cause(ctx)
			})
			<-release
		}
		return nil
	})
	return release, func() error {
		mu.Lock()
		defer mu.Unlock()
		return why
	}
}

func TestAbandon_WaitsForNoHandlerCommitsWhatIsFinishedAndLeaves(t *testing.T) {
	for _, order := range []Order{OrderPartition, OrderKey} {
		t.Run(order.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 2, 8)
				w.settings.Registrations[0].Order, w.settings.Registrations[0].Workers = order, 2
				w.settings.Registrations[0].KeyFunc = func(*kafka.Record) []byte { return nil }
				release, cause := w.stuckAt(at(1), 6)
				w.start()
				w.sleep(time.Second)
				closing, took, err := w.abandon(context.Background())
				assert.Less(t, took, 500*time.Millisecond)
				assert.ErrorIs(t, err, ErrAbandoned)
				if assert.NotNil(t, closing, "%v", err) {
					assert.Len(t, closing.Running, 1)
					assert.Equal(t, at(1), closing.Running[0].TopicPartition)
					assert.Equal(t, int64(6), closing.Running[0].Offset)
					assert.Empty(t, closing.Uncommitted)
				}
				assert.ErrorIs(t, cause(), ErrClosing)
				assert.ErrorIs(t, cause(), rebalance.ErrRevoked)
				assert.Equal(t, []int64{8, 6}, []int64{w.c.committedAt(at(0)), w.c.committedAt(at(1))})
				assert.Equal(t, 1, linesWith(w.c.lines(), "leave"))
				w.idle()
				again, took, _ := w.abandon(context.Background())
				assert.Same(t, closing, again, "every caller gets the result")
				assert.Zero(t, took)
				close(release)
			})
		})
	}
}

func TestAbandon_OfHandlersThatHeedTheirContextIsClean(t *testing.T) {
	inBoth(t, func(w *treeWorld, _ bool) {
		w.c.topic("orders", 2, 8)
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Offset == 6 {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		})
		w.start()
		w.sleep(time.Second)
		_, took, err := w.abandon(context.Background())
		assert.NoError(w.t, err)
		assert.Less(w.t, took, 500*time.Millisecond)
		assert.Equal(w.t, int64(6), w.c.committedAt(at(0)))
	})
}

func TestAbandon_EndsTheDrainOfACloseThatIsUnderWay(t *testing.T) {
	inBoth(t, func(w *treeWorld, _ bool) {
		w.c.topic("orders", 2, 8)
		release, cause := w.stuckAt(at(1), 6)
		revoking := make(chan error, 1)
		w.settings.Callbacks = Callbacks{Timeout: time.Second, Revoking: func(ctx context.Context, _ *Token, _ []kafka.TopicPartition) error {
			<-ctx.Done()
			revoking <- context.Cause(ctx)
			return nil
		}}
		w.start()
		w.sleep(time.Second)
		closed := make(chan error, 1)
		go func() { closed <- w.tree.Close(context.Background()) }()
		w.sleep(2 * time.Second)
		assert.NoError(w.t, cause(), "it drains")
		_, took, err := w.abandon(context.Background())
		assert.Less(w.t, took, 500*time.Millisecond)
		assert.ErrorIs(w.t, err, ErrAbandoned)
		assert.Same(w.t, err, <-closed, "both have the result")
		assert.Error(w.t, <-revoking, "a callback that runs is hurried")
		assert.ErrorIs(w.t, cause(), ErrClosing)
		assert.Equal(w.t, int64(6), w.c.committedAt(at(1)))
		close(release)
	})
}

func TestAbandon_InsideAHandlerOrACallbackStartsIt(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 0)
		w.start()
		w.sleep(time.Second)
		errs := make(chan error, 2)
		w.setHandle(func(ctx context.Context, _ *kafka.Record) error {
			errs <- w.tree.Abandon(ctx)
			<-ctx.Done()
			errs <- context.Cause(ctx)
			return nil
		})
		w.c.produce(at(0), 1)
		w.sleep(2 * time.Second)
		assert.ErrorIs(t, <-errs, ErrClosing)
		assert.ErrorIs(t, <-errs, ErrClosing)
		<-w.tree.Done()
	})
	for _, end := range []func(*Tree, context.Context) error{(*Tree).Close, (*Tree).Abandon} {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 1, 5)
			errs, spawned := make(chan error, 1), make(chan struct{})
			w.settings.Callbacks = Callbacks{Timeout: time.Minute, Assigned: func(ctx context.Context, _ *Token, _ []kafka.TopicPartition) error {
				<-spawned
				errs <- end(w.tree, ctx)
				return nil
			}}
			w.start()
			close(spawned)
			w.sleep(5 * time.Second)
			assert.ErrorIs(t, <-errs, ErrClosing)
			<-w.tree.Done()
		})
	}
}

func TestAbandon_CallsTheCallbacksAndWaitsForNoneForEver(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 2, 8)
			var mu sync.Mutex
			var calls []string
			release := make(chan struct{})
			note := func(name string) PartitionsFunc {
				return func(ctx context.Context, token *Token, partitions []kafka.TopicPartition) error {
					mu.Lock()
					calls = append(calls, name)
					mu.Unlock()
					if hangs {
						<-release
					}
					return nil
				}
			}
			w.settings.Callbacks = Callbacks{Timeout: time.Second, Revoking: note("revoking"), Revoked: note("revoked"), Lost: note("lost")}
			w.start()
			w.sleep(time.Second)
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_, took, err := w.abandon(ctx)
			assert.LessOrEqual(t, took, 5*time.Second)
			mu.Lock()
			if !hangs {
				assert.NoError(t, err)
				assert.Equal(t, []string{"revoking", "revoked"}, calls)
			} else {
				assert.Contains(t, calls, "revoking")
			}
			mu.Unlock()
			assert.Equal(t, int64(8), w.c.committedAt(at(0)))
			close(release)
		})
	}
}

func TestAbandon_IsBoundedByItsOwnContextAlsoWhereItHurriesAClose(t *testing.T) {
	for _, closeFirst := range []bool{false, true} {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 2, 8)
			w.c.onCommit = func(ctx context.Context, _ *CommitRound) (map[kafka.TopicPartition]error, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			w.start()
			w.sleep(time.Second)
			w.c.with(func() { w.c.frozen = true })
			if closeFirst {
				go func() { _ = w.tree.Close(context.Background()) }()
				w.sleep(time.Second)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			closing, took, err := w.abandon(ctx)
			assert.LessOrEqual(t, took, 2*time.Second)
			if assert.NotNil(t, closing, "%v", err) {
				assert.Len(t, closing.Uncommitted, 2)
			}
			w.sleep(time.Second)
			select {
			case <-w.tree.Done():
			default:
				t.Error("the tree lives on")
			}
			w.idle()
		})
	}
}

func TestAbandon_InEveryState(t *testing.T) {
	started := func(d time.Duration, then func(w *treeWorld)) func(w *treeWorld) {
		return func(w *treeWorld) { w.start(); w.sleep(d); then(w) }
	}
	for name, reach := range map[string]func(w *treeWorld){
		"at once": (*treeWorld).start,
		"without a coordinator": func(w *treeWorld) {
			w.c.with(func() { w.c.coordinator = 0 }) // before it starts: one that has joined tries to leave for a while
			w.start()
			w.sleep(3 * time.Second)
		},
		"joined":         started(2*time.Second, func(*treeWorld) {}),
		"in a rebalance": started(2*time.Second, func(w *treeWorld) { _ = w.tree.Rejoin(context.Background(), "a test") }),
		"group dead":     started(2*time.Second, func(w *treeWorld) { w.kill("group") }),
		"closed":         started(2*time.Second, func(w *treeWorld) { _ = w.tree.Close(context.Background()) }),
		"many at once":   started(time.Second, func(w *treeWorld) { go func() { _ = w.tree.Abandon(context.Background()) }() }),
	} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 2, 8)
				reach(w)
				_, took, _ := w.abandon(context.Background())
				assert.Less(t, took, time.Second)
				w.sleep(time.Second)
				<-w.tree.Done()
				assert.Len(t, eventsOf[event.Closed](w), 1)
			})
		})
	}
}

// keeper is a user's actor that keeps what it is given, and what it is told.
type keeper struct{ got chan any }

func (h *keeper) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *Deliver, *Revoking:
		h.got <- m
	}
}

func TestAbandon_TellsAUsersActorAndDoesNotWaitForItsRecords(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 3)
		h := &keeper{got: make(chan any, 10)}
		w.settings.Registrations[0].Record = nil
		w.settings.Registrations[0].Actor = func(kafka.TopicPartition) actor.Actor { return h }
		w.start()
		w.sleep(time.Second)
		deliver, ok := (<-h.got).(*Deliver)
		assert.True(t, ok)
		assert.NoError(t, deliver.Delivery.Ack(0))
		_, took, _ := w.abandon(context.Background())
		assert.Less(t, took, 500*time.Millisecond)
		revoking, ok := (<-h.got).(*Revoking)
		assert.True(t, ok && revoking.Closing)
		assert.ErrorIs(t, context.Cause(deliver.Delivery.Context()), ErrClosing)
		assert.Equal(t, int64(1), w.c.committedAt(at(0)))
		assert.ErrorIs(t, deliver.Delivery.Ack(2), ErrStale)
	})
}
