package actors

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// Who waits for a token, for what, and for how long.

func TestToken_WhoWaitsGetsItInTheOrderOfAsking(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 3, 5)
		w.join()
		ctx := context.Background()
		first := w.mustToken("first")
		l := &callbackLog{}
		ask := func(name string, named ...kafka.TopicPartition) {
			go func() {
				err := w.tree.WithToken(ctx, name, func(_ context.Context, token *Token) error {
					l.add(fmt.Sprint(name, " ", len(token.Partitions())))
					time.Sleep(time.Second)
					return token.Resume(ctx)
				}, named)
				assert.NoError(t, err)
			}()
			w.sleep(0)
		}
		ask("a", at(0), at(1))
		ask("b", at(1), at(2))
		ask("c", at(0))
		ask("d")
		refused(t, ErrTokenHeld, func() error { _, err := w.tree.Token(ctx, "try", false, nil); return err })
		w.oneHolder()
		assert.NoError(t, first.Return())
		refused(t, ErrTokenHeld, func() error { _, err := w.tree.Token(ctx, "try", false, nil); return err })
		w.sleep(500 * time.Millisecond)
		w.oneHolder()
		assert.Equal(t, []string{"a 2"}, l.all(), "nobody overtakes who asked before for one of the same partitions")
		w.sleep(time.Second)
		w.oneHolder()
		assert.ElementsMatch(t, []string{"b 2", "c 1"}, l.all()[1:], "they have nothing in common")
		w.sleep(time.Second)
		assert.Equal(t, "d 3", l.all()[3])
		w.sleep(time.Second)
		assert.Empty(t, w.tree.Stats().Tokens)
		assert.Empty(t, eventsOf[event.TokenRevoked](w))
	})
}

func TestToken_WhoWaitedForLongHasItForItsWholeTime(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		w.join()
		ctx := context.Background()
		forgotten := w.mustToken("forgotten")
		start := time.Now()
		second, err := w.tree.Token(ctx, "second", true, nil)
		assert.NoError(t, err)
		assert.Equal(t, time.Minute, time.Since(start), "when the first one's time was over")
		dead(t, forgotten)
		w.sleep(50 * time.Second)
		assert.True(t, second.Live())
		assert.NoError(t, second.Return())
		assert.Len(t, eventsOf[event.TokenRevoked](w), 1)
	})
}

func TestToken_AContextThatEndsEndsTheWaitAndNobodyElsesTurn(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		w.join()
		first := w.mustToken("first")
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, errHandler)
		defer cancel()
		third := make(chan error, 1)
		go func() {
			time.Sleep(500 * time.Millisecond)
			token, err := w.tree.Token(context.Background(), "third", true, nil)
			if err == nil {
				err = token.Return()
			}
			third <- err
		}()
		start := time.Now()
		_, err := w.tree.Token(ctx, "second", true, nil)
		assert.ErrorIs(t, err, errHandler)
		assert.Equal(t, time.Second, time.Since(start))
		assert.NoError(t, first.Return())
		assert.NoError(t, <-third)
		w.sleep(0)
		assert.Empty(t, w.tree.Stats().Tokens)

		// One that is granted at the very moment its asker gives up is returned.
		ended, end := context.WithCancel(context.Background())
		end()
		for range 50 {
			token, err := w.tree.Token(ended, "late", true, nil)
			if err == nil {
				w.sleep(0)
				dead(t, token)
			}
		}
		w.sleep(0)
		assert.Empty(t, w.tree.Stats().Tokens)
		assert.NoError(t, w.mustToken("next").Return())
	})
}

func TestToken_WhatCouldOnlyWaitForItselfFailsAtOnce(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		calls, closing := 0, false
		w.settings.Callbacks = Callbacks{Timeout: 10 * time.Second}
		inside := func(ctx context.Context, token *Token, partitions []kafka.TopicPartition) error {
			tree := token.tree // the callback may be called before the spawn has returned
			calls++
			refused(t, ErrSelfWait, func() error { _, err := tree.Token(ctx, "again", true, nil); return err })
			refused(t, ErrSelfWait, func() error { _, err := tree.Token(ctx, "again", true, partitions[:1]); return err })
			refused(t, ErrSelfWait, func() error {
				_, err := tree.Token(ctx, "again", true, []kafka.TopicPartition{kafka.WholeTopic("orders")})
				return err
			})
			refused(t, ErrSelfWait, func() error { return tree.WithToken(ctx, "again", nil, nil) })
			if !tree.shared.board.hasJoined() {
				refused(t, ErrSelfWait, func() error { return tree.WaitJoined(ctx) })
			}
			if token.Holder() != "OnRevoking" { // what was never started may be let go by then, and then these are about nothing
				refused(t, ErrTokenHeld, func() error { return tree.Commit(ctx, nil) })
				refused(t, ErrTokenHeld, func() error { return tree.Pause(ctx, nil) })
			}
			// Also for who was handed it, and in a call inside of it.
			var stale context.Context
			err := token.Within(ctx, "work", func(ctx context.Context, inner *Token) error {
				stale = ctx
				refused(t, ErrSelfWait, func() error { _, err := tree.Token(ctx, "again", true, nil); return err })
				done := make(chan struct{})
				defer func() { <-done }()
				return inner.Hand(ctx, "helper", func(ctx context.Context, _ *Token) {
					defer close(done)
					refused(t, ErrSelfWait, func() error { _, err := tree.Token(ctx, "again", true, nil); return err })
					if closing {
						assert.ErrorIs(t, tree.Close(ctx), ErrClosing, "it has begun and will not wait for the callback")
					}
				})
			})
			if !closing { // else its context may have ended by now, which is an answer, too
				refused(t, ErrSelfWait, func() error { _, err := tree.Token(stale, "again", true, nil); return err })
			}
			if calls == 2 { // which has the partitions given up again, and with them the context ends
				if err := tree.Rejoin(ctx, "because"); err != nil {
					assert.ErrorIs(t, err, context.Canceled)
				}
			}
			return err
		}
		w.settings.Callbacks.Assigning, w.settings.Callbacks.Assigned = inside, inside
		w.settings.Callbacks.Revoking = inside
		w.start()
		start := time.Now()
		assert.ErrorIs(t, w.tree.WaitJoined(context.Background()), nil)
		assert.Less(t, time.Since(start), 10*time.Second)
		w.sleep(time.Minute)
		assert.GreaterOrEqual(t, calls, 5, "it was joined again")
		closing = true
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(time.Minute)
		<-w.tree.Done()
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Empty(t, eventsOf[event.CallbackFailed](w))
	})
}

func TestToken_ACallAboutEverythingWaitsForACallbackAndForNobodyElse(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		gate := make(chan struct{})
		w.settings.Callbacks = Callbacks{Timeout: 10 * time.Second, Assigned: func(context.Context, *Token, []kafka.TopicPartition) error {
			<-gate
			return nil
		}}
		w.start()
		w.sleep(time.Second)
		ctx := context.Background()
		l := &callbackLog{}
		for name, call := range map[string]func() error{
			"pause": func() error { return w.tree.Pause(ctx, nil) }, "commit": func() error { return w.tree.Commit(ctx, nil) },
		} {
			go func() { l.add(fmt.Sprint(name, " ", call())) }()
		}
		held := refused(t, ErrTokenHeld, func() error { return w.tree.Pause(ctx, []kafka.TopicPartition{at(0)}) })
		assert.Equal(t, "OnAssigned", held.Holder)
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		assert.ErrorIs(t, w.tree.Resume(bounded, nil), context.DeadlineExceeded, "bounded by its context")
		assert.Empty(t, l.all())
		close(gate)
		w.sleep(100 * time.Millisecond)
		assert.ElementsMatch(t, []string{"pause <nil>", "commit <nil>"}, l.all())
		assert.Empty(t, w.offsets(at(0)), "paused before the first record")
		assert.NoError(t, w.tree.Resume(ctx, nil))
		token := w.mustToken("rebuild", at(0))
		refused(t, ErrTokenHeld, func() error { return w.tree.Pause(ctx, nil) })
		assert.NoError(t, token.Return())
	})
}

func TestToken_NobodyGetsOneOverPartitionsThatAreBeingGivenUp(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		w.setHandle(func(context.Context, *kafka.Record) error { time.Sleep(4 * time.Second); return nil })
		w.start()
		w.sleep(time.Second)
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(1500 * time.Millisecond)
		assert.Equal(t, "REVOKING", w.state())
		for _, named := range [][]kafka.TopicPartition{nil, {at(0)}, {kafka.WholeTopic("orders")}} {
			for _, wait := range []bool{false, true} {
				_, err := w.tree.Token(context.Background(), "rebuild", wait, named)
				var unassigned *UnassignedError
				assert.ErrorAs(t, err, &unassigned, "%v", named)
			}
		}
		assert.Empty(t, w.tree.Stats().Tokens)
	})
}

func TestToken_ThoseOutAndThoseWaitedForEndWithTheGroupActorAndTheNextWorks(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		w.join()
		ctx := context.Background()
		token, other := w.mustToken("first", at(0)), w.mustToken("second", at(1))
		waiting := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := w.tree.Token(ctx, "third", true, nil)
				waiting <- err
			}()
		}
		r := w.receiver(nil)
		assert.NoError(t, other.HandTo(r.pid))
		w.sleep(time.Second)
		w.kill("group")
		w.sleep(0)
		for range 2 {
			assert.ErrorIs(t, <-waiting, ErrInterrupted)
		}
		dead(t, token)
		dead(t, other)
		dead(t, r.got[0])
		assert.Empty(t, w.tree.Stats().Tokens)
		w.sleep(5 * time.Second)
		assert.Equal(t, "ASSIGNED", w.state())
		next := w.mustToken("next")
		assert.Len(t, next.Partitions(), 2)
		assert.NoError(t, next.Pause(ctx))
		assert.NoError(t, next.Return())
		w.stopReceiver(r)
	})
}

func TestToken_OneThatNobodyReturnsHoldsUpNeitherARebalanceNorClose(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		w.join()
		ctx := context.Background()
		token := w.mustToken("forgotten")
		gate, entered := make(chan struct{}), make(chan struct{})
		go func() {
			_ = token.Within(ctx, "work", func(context.Context, *Token) error { close(entered); <-gate; return nil })
		}()
		<-entered
		waiting := make(chan error, 1)
		go func() {
			_, err := w.tree.Token(ctx, "waiting", true, nil)
			waiting <- err
		}()
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(3 * time.Second)
		assert.Equal(t, "ASSIGNED", w.state())
		assert.Error(t, <-waiting, "what it waited for is gone")
		forgotten := w.mustToken("forgotten")
		go func() {
			_, err := w.tree.Token(ctx, "waiting", true, nil)
			waiting <- err
		}()
		synctest.Wait()
		start := time.Now()
		assert.NoError(t, w.tree.Close(ctx))
		assert.Less(t, time.Since(start), time.Second)
		assert.Error(t, <-waiting)
		dead(t, token)
		dead(t, forgotten)
		close(gate)
		_, err := w.tree.Token(ctx, "late", true, nil)
		assert.ErrorIs(t, err, ErrClosing)
	})
}

func TestToken_AResumeSaysNothingAboutWhatTheTokenDoesNotCover(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		w.join()
		ctx := context.Background()
		assert.NoError(t, w.tree.Pause(ctx, []kafka.TopicPartition{at(0)}))
		w.c.rival(true) // takes the first one
		w.sleep(3 * time.Second)
		token := w.mustToken("rebuild")
		assert.Equal(t, []kafka.TopicPartition{at(1)}, token.Partitions())
		var unassigned *UnassignedError
		assert.ErrorAs(t, token.Resume(ctx, at(0)), &unassigned)
		assert.NoError(t, token.Return())
		w.c.rival(false)
		w.c.produce(at(0), 5)
		w.sleep(3 * time.Second)
		assert.Equal(t, upTo(0, 5), w.offsets(at(0)), "still paused")
	})
}

func TestToken_RandomUsersNeverHaveOnePartitionTogether(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 4, 5)
		w.settings.TokenTimeout = 50 * time.Millisecond
		w.join()
		ctx := context.Background()
		var mu sync.Mutex
		holders := make(map[kafka.TopicPartition]int)
		var wg sync.WaitGroup
		for n := range 64 {
			wg.Go(func() {
				for i := range 20 {
					named := []kafka.TopicPartition{at(int32(n % 4)), at(int32((n + i) % 4))}
					token, err := w.tree.Token(ctx, fmt.Sprint("user ", n), i%3 > 0, named)
					if err != nil {
						assert.True(t, errors.Is(err, ErrTokenHeld), "%v", err)
						continue
					}
					covered := token.Partitions()
					mu.Lock()
					for _, tp := range covered {
						if holders[tp]++; holders[tp] > 1 {
							t.Errorf("%s has two holders", tp)
						}
					}
					mu.Unlock()
					w.oneHolder()
					err = token.Resume(ctx)
					mu.Lock()
					for _, tp := range covered {
						holders[tp]--
					}
					mu.Unlock()
					assert.NoError(t, err)
					assert.NoError(t, token.Return())
				}
			})
		}
		wg.Wait()
		w.sleep(0)
		assert.Empty(t, w.tree.Stats().Tokens)
	})
}
