package actors

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
)

// wordsWorld is a user's actor that is kept busy for a second while it is sent two last words and, behind them, stopped.
func wordsWorld(w *spawnWorld, script spawnScript) *lastWords {
	words := &lastWords{}
	var user *actor.PID
	w.do(w.parent, func(ctx actor.Context) {
		user = w.sys.spawnUser(ctx, "user", words, func() actor.Actor { return w.actor("user", script) })
	})
	w.lines()
	w.busyThen(user, func(ctx actor.Context) {
		for _, word := range []any{&Revoking{}, &Lost{}} {
			words.add(word)
			ctx.Send(user, word)
		}
		ctx.Send(user, "one more")
		ctx.Stop(user)
	})
	return words
}

func TestLastWords_AreHeardInOrderBeforeTheStopThatOvertookThem(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		var forwarded []any
		to := w.spawnKid(w.safe, func(ctx actor.Context) { forwarded = append(forwarded, ctx.Message()) })
		wordsWorld(w, func(ctx actor.Context) {
			switch ctx.Message().(type) {
			case *actor.Started: // a child that holds the stop up, so that the mailbox is read on
				w.raw(ctx, "child", spawnScriptOn[*actor.Stopping](func(actor.Context) { time.Sleep(time.Second) }))
			case *Lost:
				ctx.Forward(to)
			}
		})
		lines := w.lines()
		assert.Equal(t, []string{"user *actors.Revoking", "user *actors.Lost"}, lines[:2])
		assert.Subset(t, lines, []string{"user *actor.Stopping", "user *actor.Stopped", "kid *actors.Lost"})
		assert.NotContains(t, lines, "user string")
		assert.Equal(t, []any{&Lost{}}, forwarded[len(forwarded)-1:])
		assert.Equal(t, int64(1), w.sys.droppedMessages(), "the one that was not heard")
	})
}

func TestLastWords_ThatCameInTheirTurnAreHeardOnce(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		words, heard := &lastWords{}, 0
		var user *actor.PID
		w.do(w.parent, func(ctx actor.Context) {
			user = w.sys.spawnUser(ctx, "user", words, func() actor.Actor {
				return w.actor("user", spawnScriptOn[*Revoking](func(actor.Context) { heard++ }))
			})
			word := &Revoking{}
			words.add(word)
			ctx.Send(user, word)
		})
		w.sys.stop(user)
		synctest.Wait()
		assert.Equal(t, 1, heard)
		assert.Zero(t, w.sys.droppedMessages())
	})
}

func TestLastWords_APanicOverOneKeepsNobodyFromTheOthersNorFromStopping(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		wordsWorld(w, spawnScriptOn[*Revoking](func(actor.Context) { panic("boom") }))
		assert.Equal(t, []string{
			"user *actors.Revoking", "user *actors.Lost", "user *actor.Stopping", "user *actor.Stopped", "parent *actor.Terminated",
		}, w.lines())
		assert.Equal(t, 1, w.logs.FilterMessage("actor panicked").Len())
	})
}

func TestLastWords_AnActorThatHasFailedHearsNone(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		words := &lastWords{}
		var user *actor.PID
		w.do(w.parent, func(ctx actor.Context) {
			user = w.sys.spawnUser(ctx, "user", words, func() actor.Actor { return w.actor("user", nil) })
		})
		w.lines()
		w.sys.root.Send(user, spawnTurn(func(actor.Context) { time.Sleep(time.Second); panic("boom") }))
		time.Sleep(time.Millisecond)
		w.do(w.parent, func(ctx actor.Context) {
			word := &Revoking{}
			words.add(word)
			ctx.Send(user, word)
		})
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"user *actor.Stopping", "user *actor.Stopped", "parent *actor.Terminated"}, w.lines())
	})
}
