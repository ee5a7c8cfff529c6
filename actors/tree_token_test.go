package actors

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// The seven semantics of the token, over the whole tree.

// join starts the tree and waits until it has its partitions and nothing goes on any more.
func (w *treeWorld) join() {
	w.start()
	w.sleep(time.Second)
	assert.Equal(w.t, "ASSIGNED", w.state())
}

// refused demands a *HeldError for a reason, at once.
func refused(t *testing.T, reason error, call func() error) HeldError {
	t.Helper()
	start := time.Now()
	err := call()
	assert.Zero(t, time.Since(start), "at once")
	var held *HeldError
	if !assert.ErrorAs(t, err, &held) {
		return HeldError{}
	}
	assert.ErrorIs(t, held, reason)
	return *held
}

// mustToken returns the token over partitions.
func (w *treeWorld) mustToken(operation string, named ...kafka.TopicPartition) *Token {
	w.t.Helper()
	token, err := w.tree.Token(context.Background(), operation, false, named)
	if !assert.NoError(w.t, err) {
		w.t.FailNow()
	}
	return token
}

// dead demands that a token can do nothing any more.
func dead(t *testing.T, token *Token) {
	t.Helper()
	ctx := context.Background()
	assert.False(t, token.Live())
	assert.Empty(t, token.Holder())
	assert.Empty(t, token.Partitions())
	for _, call := range []func() error{
		func() error { return token.Pause(ctx) },
		func() error { return token.Commit(ctx) },
		func() error { return token.Accept() },
		func() error { return token.Return() },
		func() error {
			return token.Hand(ctx, "nobody", func(context.Context, *Token) { t.Error("it is dead") })
		},
		func() error { return token.HandTo(&actor.PID{Id: "nobody"}) },
		func() error {
			return token.Within(ctx, "nothing", func(context.Context, *Token) error { t.Error("it is dead"); return nil })
		},
	} {
		refused(t, ErrTokenDead, call)
	}
}

// oneHolder demands that no partition is under two tokens.
func (w *treeWorld) oneHolder() {
	w.t.Helper()
	holders := make(map[kafka.TopicPartition]string)
	for _, token := range w.tree.Stats().Tokens {
		for _, tp := range token.Partitions {
			assert.Empty(w.t, holders[tp], "%s is under two tokens, the other is %s's", tp, token.Holder)
			holders[tp] = token.Holder
		}
	}
}

func TestToken_1_ACallbackMayCallTheConsumerAgainAlsoFromACallbackInsideThatCall(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		var kept []*Token
		w.settings.Callbacks = Callbacks{Timeout: 10 * time.Second, Assigned: func(ctx context.Context, token *Token, partitions []kafka.TopicPartition) error {
			assert.Equal(t, partitions, token.Partitions())
			assert.Equal(t, "OnAssigned", token.Holder())
			held := refused(t, ErrTokenHeld, func() error { return token.tree.Pause(ctx, []kafka.TopicPartition{at(0)}) })
			assert.Equal(t, "OnAssigned", held.Holder)
			assert.NoError(t, token.Pause(ctx))
			err := token.Within(ctx, "outer", func(ctx context.Context, outer *Token) error {
				refused(t, ErrTokenHeld, func() error { return token.Resume(ctx) })
				refused(t, ErrTokenInside, token.Return)
				assert.NoError(t, outer.Resume(ctx, at(0)))
				err := outer.Within(ctx, "inner", func(ctx context.Context, inner *Token) error {
					assert.Equal(t, partitions, inner.Partitions())
					held := refused(t, ErrTokenHeld, func() error { return outer.Resume(ctx) })
					assert.Equal(t, "inner", held.HolderOperation)
					refused(t, ErrTokenHeld, func() error { return token.Resume(ctx) })
					kept = append(kept, token, outer, inner)
					return inner.Resume(ctx, at(1))
				})
				assert.NoError(t, outer.Commit(ctx), "last in, first out: it can be used again")
				return err
			})
			assert.NoError(t, err)
			assert.False(t, kept[1].Live())
			return token.Commit(ctx)
		}}
		w.join()
		assert.Len(t, kept, 3)
		for _, token := range kept {
			dead(t, token)
		}
		assert.Empty(t, eventsOf[event.CallbackFailed](w))
		assert.Empty(t, eventsOf[event.TokenRevoked](w))
		assert.Equal(t, upTo(0, 5), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 5), w.offsets(at(1)))
	})
}

func TestToken_2_WhoHasNoLiveTokenIsRefusedAtOnceAndWhoNeverUsesOneIsNotAffected(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		w.join()
		since := time.Now()
		token := w.mustToken("rebuild", at(0))
		time.Sleep(time.Second)
		ctx := context.Background()
		held := refused(t, ErrTokenHeld, func() error { return w.tree.Pause(ctx, []kafka.TopicPartition{at(0)}) })
		assert.Equal(t, HeldError{
			Operation: "pause", Asker: "the consumer", Holder: token.Holder(), HolderOperation: "rebuild", Since: since, TopicPartition: at(0),
			Reason: ErrTokenHeld,
		}, held)
		assert.Contains(t, token.Holder(), "rebuild (token ")
		for _, call := range []func() error{
			func() error { return w.tree.Pause(ctx, nil) },
			func() error { return w.tree.Resume(ctx, []kafka.TopicPartition{kafka.WholeTopic("orders")}) },
			func() error { return w.tree.Commit(ctx, nil) },
			func() error { _, err := w.tree.Token(ctx, "other", false, nil); return err },
		} {
			refused(t, ErrTokenHeld, call)
		}
		assert.NoError(t, w.tree.Pause(ctx, []kafka.TopicPartition{at(1)}), "it is over the other partition alone")
		assert.NoError(t, w.tree.Resume(ctx, []kafka.TopicPartition{at(1)}))
		w.c.produce(at(0), 5)
		w.sleep(time.Second)
		assert.Equal(t, int64(10), w.c.committedAt(at(0)), "records and commits go on")

		copied := new(Token)
		reflect.ValueOf(copied).Elem().Set(reflect.ValueOf(token).Elem())
		dead(t, copied)
		dead(t, new(Token))
		dead(t, nil)
		assert.True(t, token.Live(), "nobody has used it")
		var unassigned *UnassignedError
		assert.ErrorAs(t, token.Pause(ctx, at(7)), &unassigned)
		refused(t, ErrNotCovered, func() error { return token.Pause(ctx, at(1)) })
		assert.NoError(t, token.Return())
		dead(t, token)
		assert.NoError(t, w.tree.Pause(ctx, nil))
		assert.NoError(t, w.tree.Resume(ctx, nil))
		assert.Empty(t, eventsOf[event.TokenRevoked](w))
	})
}

func TestToken_3_HandedToAGoroutineItIsTheGoroutinesAndTheGiversIsDead(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		w.join()
		ctx := context.Background()
		token := w.mustToken("rebuild")
		gate := make(chan struct{})
		var received *Token
		assert.NoError(t, token.Hand(ctx, "helper", func(ctx context.Context, mine *Token) {
			received = mine
			assert.NoError(t, mine.Pause(ctx))
			<-gate
		}))
		refused(t, ErrTokenHanded, func() error { return token.Resume(ctx) })
		refused(t, ErrTokenHanded, token.Return)
		refused(t, ErrTokenHanded, func() error { return token.Hand(ctx, "another", nil) })
		w.sleep(0)
		assert.Equal(t, "helper", received.Holder())
		assert.Equal(t, "helper", w.tree.Stats().Tokens[0].Holder, "the ledger knows who has it")
		held := refused(t, ErrTokenHeld, func() error { return w.tree.Resume(ctx, nil) })
		assert.Equal(t, "helper", held.Holder)
		close(gate)
		w.sleep(0)
		dead(t, received)
		dead(t, token)
		assert.NoError(t, w.tree.Resume(ctx, nil))
		assert.Empty(t, w.tree.Stats().Tokens)
		assert.Empty(t, eventsOf[event.TokenRevoked](w))
	})
}

// receiverActor notes the tokens that it gets; does is what it does with each.
type receiverActor struct {
	pid  *actor.PID
	mu   sync.Mutex
	got  []*Token
	does func(ctx actor.Context, token *Token)
}

func (w *treeWorld) receiver(does func(ctx actor.Context, token *Token)) *receiverActor {
	r := &receiverActor{does: does}
	r.pid = w.tree.shared.sys.spawnRoot("receiver", func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			if m, ok := ctx.Message().(*TokenHanded); ok {
				r.mu.Lock()
				r.got = append(r.got, m.Token)
				r.mu.Unlock()
				if r.does != nil {
					r.does(ctx, m.Token)
				}
			}
		})
	})
	return r
}

// stop ends the actor and waits until the group has heard of it.
func (w *treeWorld) stopReceiver(r *receiverActor) {
	w.tree.shared.sys.stop(r.pid)
	w.sleep(0)
}

func TestToken_3_HandedToAnActorItIsTheActorsUntilItReturnsItOrEnds(t *testing.T) {
	ctx := context.Background()
	for name, test := range map[string]struct {
		does func(ctx actor.Context, token *Token)
		// ended is true when the actor ends before it gets the token, then when it ends after.
		ended, then bool
		revoked     bool
	}{
		"returns it":              {does: func(_ actor.Context, token *Token) { _, _ = token.Pause(ctx), token.Resume(ctx); _ = token.Return() }},
		"is dead already":         {ended: true},
		"ends before it accepted": {then: true},
		"ends after it accepted":  {does: func(_ actor.Context, token *Token) { _ = token.Accept() }, then: true, revoked: true},
		"ends after it used it":   {does: func(_ actor.Context, token *Token) { _ = token.Resume(ctx) }, then: true, revoked: true},
		"hands it on": {does: func(_ actor.Context, token *Token) {
			_ = token.Hand(ctx, "helper", func(ctx context.Context, token *Token) { _ = token.Resume(ctx) })
		}, then: true},
	} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 5)
				w.join()
				r := w.receiver(test.does)
				if test.ended {
					w.stopReceiver(r)
				}
				token := w.mustToken("rebuild")
				assert.NoError(t, token.HandTo(r.pid))
				refused(t, ErrTokenHanded, func() error { return token.Pause(ctx) })
				w.sleep(0)
				if test.then {
					w.stopReceiver(r)
				}
				dead(t, token)
				for _, got := range r.got {
					dead(t, got)
				}
				revoked := eventsOf[event.TokenRevoked](w)
				if test.revoked {
					assert.Len(t, revoked, 1)
					assert.ErrorIs(t, revoked[0].Err, ErrHolderDied)
					assert.Equal(t, []kafka.TopicPartition{at(0)}, revoked[0].Partitions)
				} else {
					assert.Empty(t, revoked)
				}
				assert.Empty(t, w.tree.Stats().Tokens)
				assert.NoError(t, w.mustToken("next").Return())
				w.stopReceiver(r)
			})
		})
	}
}

func TestToken_3_AHandlersActorUsesTheTokenThatItWasHanded(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		pids, tokens := make(chan *actor.PID, 1), make(chan *Token, 1)
		w.settings.Registrations[0].Record = nil
		w.settings.Registrations[0].Actor = func(kafka.TopicPartition) actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				switch m := ctx.Message().(type) {
				case *Assigned:
					pids <- ctx.Self()
				case *Deliver:
					w.ackLater(m, time.Millisecond)
				case *TokenHanded:
					assert.NoError(t, m.Token.Resume(context.Background(), at(0)))
					tokens <- m.Token
				}
			})
		}
		w.join()
		ctx := context.Background()
		assert.NoError(t, w.tree.Pause(ctx, nil))
		token := w.mustToken("rebuild")
		assert.NoError(t, token.HandTo(<-pids))
		received := <-tokens
		w.c.produce(at(0), 5)
		w.sleep(time.Second)
		assert.Equal(t, int64(10), w.c.committedAt(at(0)), "it was resumed")
		assert.True(t, received.Live())
		assert.NoError(t, w.tree.Close(ctx), "and the actor that has it holds nothing up")
		dead(t, received)
		refused(t, errNoReceiver, func() error { return token.HandTo(nil) })
	})
}

func TestToken_4_OfManyUsersOfOneTokenOnlyOneIsInside(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		w.join()
		ctx := context.Background()
		token := w.mustToken("rebuild")
		var inside, done, refusals atomic.Int64
		var wg sync.WaitGroup
		for n := range 64 {
			wg.Go(func() {
				for i := range 50 {
					var err error
					if (n+i)%2 == 0 {
						err = token.Within(ctx, "work", func(ctx context.Context, inner *Token) error {
							if inside.Add(1) != 1 {
								t.Error("two are inside")
							}
							defer inside.Add(-1)
							return inner.Resume(ctx)
						})
					} else {
						err = token.Resume(ctx)
					}
					switch {
					case err == nil:
						done.Add(1)
					case errors.Is(err, ErrTokenHeld):
						refusals.Add(1)
					default:
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		assert.Positive(t, done.Load())
		assert.EqualValues(t, 64*50, done.Load()+refusals.Load())
		assert.NoError(t, token.Return())
		assert.Empty(t, eventsOf[event.TokenRevoked](w))
	})
}
