package actors

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

func TestWithToken_APanicRevokesTheTokenIsToldAndGoesOnToTheCaller(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(time.Second)
		var held *Token
		assert.PanicsWithValue(t, "stumbled", func() {
			_ = w.tree.WithToken(context.Background(), "repair", func(_ context.Context, token *Token) error {
				held = token
				panic("stumbled")
			}, nil)
		})
		w.sleep(time.Second)
		revoked := eventsOf[event.TokenRevoked](w)
		require.Len(t, revoked, 1)
		assert.Equal(t, "repair", revoked[0].Operation)
		assert.ErrorIs(t, revoked[0].Err, ErrHolderDied)
		assert.ErrorIs(t, held.Pause(context.Background()), ErrTokenDead)
		assert.NoError(t, w.tree.Pause(context.Background(), nil), "somebody else")
	})
}

func TestWithin_WhoIsStillInsideIsNamedWithTheTimeSinceTheTokenIsOut(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(time.Second)
		token, err := w.tree.Token(context.Background(), "repair", true, nil)
		require.NoError(t, err)
		since := time.Now()
		w.sleep(time.Second)
		release := make(chan struct{})
		err = token.Within(context.Background(), "audit", func(_ context.Context, inner *Token) error {
			began := make(chan struct{})
			go func() {
				_ = inner.Within(context.Background(), "count", func(context.Context, *Token) error {
					close(began)
					<-release
					return nil
				})
			}()
			<-began
			return nil
		})
		close(release)
		var held *HeldError
		require.ErrorAs(t, err, &held)
		assert.ErrorIs(t, held, ErrTokenInside)
		assert.Equal(t, "count", held.HolderOperation)
		assert.Equal(t, since, held.Since)
		assert.NoError(t, token.Return())
	})
}

func TestCallbacks_OnRevokingMayCommitUntilItReturnsAlsoWhereNoHandlerRunsAnyMore(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		var finished, placed, other, gone error
		w.settings.Callbacks = Callbacks{
			Revoking: func(ctx context.Context, token *Token, _ []kafka.TopicPartition) error {
				time.Sleep(2 * time.Second)
				finished, other = token.Commit(ctx), token.Commit(ctx, at(7))
				placed = token.CommitOffsets(ctx, offsetOf(0, 3, "by OnRevoking"))
				return nil
			},
			Revoked: func(ctx context.Context, token *Token, _ []kafka.TopicPartition) error {
				gone = token.Commit(ctx)
				return nil
			},
			Timeout: 10 * time.Second,
		}
		w.start()
		w.sleep(2 * time.Second)
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(30 * time.Second)
		assert.NoError(t, finished)
		assert.NoError(t, placed)
		assert.Contains(t, w.c.lines(), "commit orders-0 3")
		var unassigned *UnassignedError
		assert.ErrorAs(t, other, &unassigned, "that was never the callback's")
		assert.ErrorIs(t, gone, ErrNotAllowed, "OnRevoked may not commit")
		assert.Equal(t, "ASSIGNED", w.state())
	})
}

func TestHeldError_SaysOnlyWhatIsKnownOfTheHolder(t *testing.T) {
	since := time.Date(2026, 12, 1, 2, 0, 0, 0, time.UTC)
	for want, e := range map[string]HeldError{
		"": {},
		" (held by repair for seek since 2026-12-01T02:00:00Z)": {Holder: "repair", HolderOperation: "seek", Since: since},
		" (held by repair since 2026-12-01T02:00:00Z)":          {Holder: "repair", Since: since},
		" (held by repair for seek)":                            {Holder: "repair", HolderOperation: "seek"},
	} {
		e.Operation, e.Asker, e.Reason = "pause", "the consumer", ErrTokenHeld
		assert.EqualError(t, &e, "troupe: pause by the consumer refused: the token is with another"+want)
	}
}

func TestCallbacks_ACommitInOnRevokingIsAnsweredAndHoldsNothingUpAtEveryMomentOfTheDrain(t *testing.T) {
	for moment := range 40 {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 2, 100)
			w.c.hook("OffsetCommit", func(context.Context) error { time.Sleep(400 * time.Millisecond); return nil })
			w.setHandle(func(context.Context, *kafka.Record) error { time.Sleep(90 * time.Millisecond); return nil })
			answered := make(chan error, 1)
			var began time.Time
			w.settings.Callbacks = Callbacks{
				Revoking: func(ctx context.Context, token *Token, _ []kafka.TopicPartition) error {
					began = time.Now()
					time.Sleep(time.Duration(moment) * 25 * time.Millisecond)
					answered <- token.Commit(ctx)
					return nil
				},
				Revoked: func(context.Context, *Token, []kafka.TopicPartition) error {
					assert.Less(t, time.Since(began), 3*time.Second, "moment %d: the drain waits for nothing", moment)
					return nil
				},
				Timeout: 10 * time.Second,
			}
			w.start()
			w.sleep(2 * time.Second)
			w.c.with(func() { w.c.rebalancing = true })
			assert.NoError(t, <-answered, "moment %d", moment)
			w.sleep(time.Minute)
		})
	}
}
