package actors

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// How a token ends before it is returned, and what it allows meanwhile: semantics 5 to 7.

func TestToken_5_ACallbackThatReturnsWhileAnotherIsInsideIsToldAndNothingIsHarmed(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		gate := make(chan struct{})
		results := make(chan error, 2)
		w.settings.Callbacks = Callbacks{Timeout: 10 * time.Second, Assigned: func(ctx context.Context, token *Token, _ []kafka.TopicPartition) error {
			entered := make(chan struct{})
			err := token.Hand(ctx, "helper", func(ctx context.Context, mine *Token) {
				results <- mine.Within(ctx, "work", func(_ context.Context, inner *Token) error {
					close(entered)
					<-gate
					return inner.Pause(context.Background())
				})
				results <- mine.Pause(context.Background())
			})
			<-entered
			return err
		}}
		w.join()
		failed, revoked := eventsOf[event.CallbackFailed](w), eventsOf[event.TokenRevoked](w)
		assert.Len(t, failed, 1)
		var held *HeldError
		assert.ErrorAs(t, failed[0].Err, &held)
		assert.ErrorIs(t, held, ErrTokenInside)
		assert.Equal(t, "work", held.HolderOperation)
		assert.Len(t, revoked, 1)
		assert.Equal(t, []string{"work"}, revoked[0].Calls)
		assert.ErrorIs(t, revoked[0].Err, ErrTokenInside)
		close(gate)
		for range 2 {
			refused(t, ErrTokenDead, func() error { return <-results })
		}
		w.sleep(time.Second)
		assert.Equal(t, int64(5), w.c.committedAt(at(0)), "and it was not paused")
		assert.Empty(t, w.tree.Stats().Tokens)
		assert.Len(t, eventsOf[event.TokenRevoked](w), 1)
	})
}

func TestToken_6_AHolderThatDiesPanicsOrIsLateLosesItForEver(t *testing.T) {
	ctx := context.Background()
	hand := func(w *treeWorld, does func(*Token)) *Token {
		token, received := w.mustToken("rebuild"), make(chan *Token, 1)
		assert.NoError(w.t, token.Hand(ctx, "helper", func(_ context.Context, mine *Token) {
			received <- mine
			does(mine)
		}))
		return <-received
	}
	with := func(w *treeWorld, f func()) (token *Token) {
		assert.Panics(w.t, func() {
			_ = w.tree.WithToken(ctx, "rebuild", func(_ context.Context, mine *Token) error {
				token = mine
				f()
				return nil
			}, nil)
		})
		return token
	}
	for name, test := range map[string]struct {
		hold  func(w *treeWorld) *Token
		cause error
	}{
		"panic in WithToken":        {func(w *treeWorld) *Token { return with(w, func() { panic("no") }) }, ErrHolderDied},
		"panic in a goroutine":      {func(w *treeWorld) *Token { return hand(w, func(*Token) { panic("no") }) }, ErrHolderDied},
		"panic with an error":       {func(w *treeWorld) *Token { return hand(w, func(*Token) { panic(errHandler) }) }, errHandler},
		"end of a goroutine":        {func(w *treeWorld) *Token { return hand(w, func(*Token) { goexit() }) }, ErrHolderDied},
		"inside a call":             {func(w *treeWorld) *Token { return hand(w, func(mine *Token) { enterAndLeave(ctx, mine) }) }, ErrTokenInside},
		"panic of an inner holder":  {func(w *treeWorld) *Token { return w.inner(func(*Token) { panic("no") }) }, ErrHolderDied},
		"inner holder, inside call": {func(w *treeWorld) *Token { return w.inner(func(mine *Token) { enterAndLeave(ctx, mine) }) }, ErrTokenInside},
		"late": {func(w *treeWorld) *Token {
			token := w.mustToken("rebuild")
			w.sleep(time.Minute - time.Second)
			assert.True(w.t, token.Live())
			w.sleep(time.Second)
			return token
		}, ErrTokenOverdue},
		"context": {func(w *treeWorld) *Token {
			bounded, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			token, err := w.tree.Token(bounded, "rebuild", false, nil)
			assert.NoError(w.t, err)
			w.sleep(time.Second)
			return token
		}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 5)
				w.join()
				token := test.hold(w)
				w.sleep(0)
				revoked := eventsOf[event.TokenRevoked](w)
				if assert.Len(t, revoked, 1) {
					assert.ErrorIs(t, revoked[0].Err, test.cause)
					assert.Equal(t, []kafka.TopicPartition{at(0)}, revoked[0].Partitions)
					assert.NotEmpty(t, revoked[0].Holder)
				}
				dead(t, token)
				next, err := w.tree.Token(ctx, "next", true, nil)
				assert.NoError(t, err)
				assert.NoError(t, next.Pause(ctx))
				dead(t, token)
				assert.NoError(t, next.Return())
				dead(t, token)
				w.oneHolder()
			})
		})
	}
}

// enterAndLeave lets another goroutine into a call with the token, and returns while that is inside.
func enterAndLeave(ctx context.Context, token *Token) {
	entered, gate := make(chan struct{}), make(chan struct{})
	time.AfterFunc(2*time.Minute, func() { close(gate) })
	go func() {
		_ = token.Within(ctx, "work", func(context.Context, *Token) error {
			close(entered)
			<-gate
			return nil
		})
	}()
	<-entered
}

// inner hands the token of a call to a goroutine, and returns the goroutine's when that has ended. The call goes on until then.
func (w *treeWorld) inner(does func(*Token)) (received *Token) {
	ctx := context.Background()
	err := w.tree.WithToken(ctx, "rebuild", func(ctx context.Context, token *Token) error {
		return token.Within(ctx, "outer", func(ctx context.Context, inner *Token) error {
			err := inner.Hand(ctx, "helper", func(_ context.Context, mine *Token) {
				received = mine
				does(mine)
			})
			synctest.Wait()
			assert.False(w.t, received.Live(), "already while the call goes on")
			refused(w.t, ErrTokenDead, func() error { return inner.Resume(ctx) })
			return err
		})
	}, nil)
	assert.NoError(w.t, err)
	return received
}

func TestToken_6_ACallbackThatIsLateLosesItsToken(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		gate := make(chan struct{})
		defer close(gate)
		var late *Token
		w.settings.Callbacks = Callbacks{Timeout: 5 * time.Second, Assigned: func(_ context.Context, token *Token, _ []kafka.TopicPartition) error {
			late = token
			<-gate
			return nil
		}}
		w.start()
		w.sleep(5 * time.Second)
		assert.True(t, late.Live())
		assert.Equal(t, "OnAssigned", w.tree.Stats().Tokens[0].Holder)
		w.sleep(time.Second)
		dead(t, late)
		revoked := eventsOf[event.TokenRevoked](w)
		assert.Len(t, revoked, 1)
		assert.ErrorIs(t, revoked[0].Err, ErrCallbackOverdue)
		assert.Equal(t, int64(5), w.c.committedAt(at(0)))
	})
}

func TestToken_7_WhatItAllowsFollowsTheStateOfThePartitions(t *testing.T) {
	ctx := context.Background()
	for name, lost := range map[string]bool{"revoked": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 2, 5)
				var mu sync.Mutex
				seen := make(map[string]map[string]error)
				probe := func(name string) PartitionsFunc {
					return func(_ context.Context, token *Token, partitions []kafka.TopicPartition) error {
						time.Sleep(time.Second) // idle partitions have drained by then
						assert.Equal(t, partitions, token.Partitions(), name)
						results := map[string]error{
							"pause": token.Pause(ctx), "resume": token.Resume(ctx), "commit": token.Commit(ctx), "commit one": token.Commit(ctx, at(0)),
						}
						mu.Lock()
						defer mu.Unlock()
						positions, err := token.Position(ctx)
						if name == "OnAssigning" {
							assert.ErrorIs(t, err, ErrSelfWait, "it decides where they begin")
						} else if assert.NoError(t, err, name) {
							want := map[kafka.TopicPartition]int64{at(0): 5, at(1): 5}
							if _, again := seen[name]; name == "OnAssigned" && !again {
								want = map[kafka.TopicPartition]int64{at(0): 0, at(1): 0}
							}
							assert.Equal(t, want, positions, name)
						}
						_, err = token.Position(ctx, at(7))
						assert.ErrorIs(t, err, ErrNotCovered, name)
						seen[name] = results
						return nil
					}
				}
				w.settings.Callbacks = Callbacks{
					Assigning: probe("OnAssigning"), Assigned: probe("OnAssigned"), Revoking: probe("OnRevoking"), Revoked: probe("OnRevoked"),
					Lost: probe("OnLost"), Timeout: 10 * time.Second,
				}
				w.start()
				w.sleep(5 * time.Second)
				if lost {
					w.c.with(func() { w.c.frozen = true })
					w.sleep(15 * time.Second)
					w.c.with(func() { w.c.frozen = false })
				} else {
					w.c.with(func() { w.c.rebalancing = true })
				}
				w.sleep(30 * time.Second)
				allowed := map[string]string{"OnAssigning": "pause resume", "OnAssigned": "pause resume commit", "OnRevoking": "commit"}
				names := []string{"OnAssigning", "OnAssigned", "OnRevoking", "OnRevoked"}
				if lost {
					names = []string{"OnAssigning", "OnAssigned", "OnLost"}
				}
				assert.Len(t, seen, len(names))
				for _, name := range names {
					for op, err := range seen[name] {
						word, _, _ := strings.Cut(op, " ")
						if strings.Contains(allowed[name], word) {
							assert.NoError(t, err, "%s in %s", op, name)
						} else {
							assert.ErrorIs(t, err, ErrNotAllowed, "%s in %s", op, name)
						}
					}
				}
				assert.Empty(t, eventsOf[event.CallbackFailed](w))
				assert.Equal(t, "ASSIGNED", w.state())
			})
		})
	}
}

func TestToken_7_PartitionsThatAreGivenUpOrLostGoOutOfEveryTokenAlsoWhileSomebodyIsInside(t *testing.T) {
	ctx := context.Background()
	for name, begin := range map[string]func(w *treeWorld){
		"revoked": func(w *treeWorld) { w.c.rival(true) },
		"lost":    func(w *treeWorld) { w.c.expel() },
	} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 2, 5)
				w.join()
				token := w.mustToken("rebuild")
				err := token.Within(ctx, "work", func(ctx context.Context, inner *Token) error {
					begin(w)
					w.sleep(5 * time.Second)
					assert.Equal(t, "ASSIGNED", w.state(), "the rebalance does not wait for it")
					assert.Empty(t, inner.Partitions())
					refused(t, ErrNotCovered, func() error { return inner.Pause(ctx) })
					refused(t, ErrNotCovered, func() error { return inner.Pause(ctx, at(1)) })
					return nil
				})
				assert.NoError(t, err)
				other := w.mustToken("other")
				assert.NotEmpty(t, other.Partitions(), "they are free for others")
				assert.NoError(t, token.Return())
				assert.NoError(t, other.Return())
				assert.Empty(t, eventsOf[event.TokenRevoked](w))
			})
		})
	}
}
