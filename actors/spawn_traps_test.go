package actors

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
)

// Each trap is shown twice: as protoactor has it, so that we learn when an upgrade changes it, and behind our wrapper.

func TestT1_RestartCrossingAStopBringsNothingBack(t *testing.T) {
	cross := func(kid *actor.PID) spawnTurn {
		return func(ctx actor.Context) {
			ctx.(actor.Supervisor).StopChildren(kid)
			ctx.(actor.Supervisor).RestartChildren(kid)
		}
	}
	t.Run("trap", func(t *testing.T) {
		spawnBubble(t, func(w *spawnWorld) {
			kid := w.spawnKid(w.raw, nil)
			w.busyThen(kid, cross(kid))
			assert.Contains(t, w.lines(), "kid *actor.Restarting", "a stopped actor is restarted")
		})
	})
	t.Run("guarded", func(t *testing.T) {
		spawnBubble(t, func(w *spawnWorld) {
			kid := w.spawnKid(w.safe, nil)
			w.busyThen(kid, cross(kid))
			assert.Equal(t, []string{"kid *actor.Stopping", "kid *actor.Stopped", "parent *actor.Terminated"}, w.lines())
			assert.Len(t, w.sys.alive(), 1)
		})
	})
}

func TestT2_RestartWhileStoppingDoesNotCallTheStopOff(t *testing.T) {
	slow := spawnScriptOn[*actor.Stopping](func(actor.Context) { time.Sleep(time.Second) })
	story := func(w *spawnWorld, spawn func(actor.Context, string, spawnScript) *actor.PID) []string {
		kid := w.spawnKid(spawn, nil)
		w.do(kid, func(ctx actor.Context) { spawn(ctx, "grandkid", slow) })
		w.lines()
		w.do(w.parent, func(ctx actor.Context) { ctx.(actor.Supervisor).StopChildren(kid) })
		// The kid waits for the grandkid.
		w.do(w.parent, func(ctx actor.Context) { ctx.(actor.Supervisor).RestartChildren(kid) })
		time.Sleep(time.Minute)
		synctest.Wait()
		return w.lines()
	}
	t.Run("trap", func(t *testing.T) {
		spawnBubble(t, func(w *spawnWorld) {
			lines := story(w, w.raw)
			assert.NotContains(t, lines, "kid *actor.Stopped")
			assert.Contains(t, lines, "kid *actor.Started")
		})
	})
	t.Run("guarded", func(t *testing.T) {
		spawnBubble(t, func(w *spawnWorld) {
			assert.Equal(t, []string{
				"kid *actor.Stopping", "grandkid *actor.Stopping", "grandkid *actor.Stopped",
				"kid *actor.Terminated", "kid *actor.Stopped", "parent *actor.Terminated",
			}, story(w, w.safe))
		})
	})
}

func TestT3_PanicInStoppingDoesNotKeepTheActor(t *testing.T) {
	boom := spawnScriptOn[*actor.Stopping](func(actor.Context) { panic("in Stopping") })
	stop := func(w *spawnWorld, kid *actor.PID) []string {
		w.do(w.parent, func(ctx actor.Context) { ctx.Stop(kid) })
		time.Sleep(time.Minute)
		synctest.Wait()
		return w.lines()
	}
	t.Run("trap", func(t *testing.T) {
		// The parent could never stop: a tree without the wrapper's help, so outside of spawnBubble's check.
		synctest.Test(t, func(t *testing.T) {
			defer time.Sleep(2 * deadLetterThrottle)
			w := &spawnWorld{t: t, sys: newSystem(nil, nil)}
			defer w.sys.shutdown()
			kid := w.sys.root.Spawn(actor.PropsFromProducer(func() actor.Actor { return w.actor("kid", boom) }, actor.WithGuardian(stopOnlyGuardian{})))
			w.sys.stop(kid)
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.Equal(t, []string{"kid *actor.Started", "kid *actor.Stopping"}, w.lines(), "it hangs in stopping")
		})
	})
	t.Run("guarded", func(t *testing.T) {
		spawnBubble(t, func(w *spawnWorld) {
			kid := w.spawnKid(w.safe, boom)
			assert.Equal(t, []string{"kid *actor.Stopping", "kid *actor.Stopped", "parent *actor.Terminated"}, stop(w, kid))
			assert.Equal(t, 1, w.logs.FilterMessage("actor panicked").Len(), "and is not silent")
		})
	})
	t.Run("guarded, in a child's Terminated meanwhile", func(t *testing.T) {
		spawnBubble(t, func(w *spawnWorld) {
			kid := w.spawnKid(w.safe, spawnScriptOn[*actor.Terminated](func(actor.Context) { panic("in Terminated") }))
			w.do(kid, func(ctx actor.Context) { w.safe(ctx, "grandkid", nil) })
			w.lines()
			assert.Equal(t, []string{
				"kid *actor.Stopping", "grandkid *actor.Stopping", "grandkid *actor.Stopped",
				"kid *actor.Terminated", "kid *actor.Stopped", "parent *actor.Terminated",
			}, stop(w, kid))
		})
	})
	t.Run("guarded, in Restarting", func(t *testing.T) {
		spawnBubble(t, func(w *spawnWorld) {
			kid := w.spawnKid(w.safe, spawnScriptOn[*actor.Restarting](func(actor.Context) { panic("in Restarting") }))
			w.do(w.parent, func(ctx actor.Context) { ctx.(actor.Supervisor).RestartChildren(kid) })
			assert.Equal(t, []string{"kid *actor.Restarting", "kid *actor.Started"}, w.lines())
		})
	})
}

func TestT4_PanicInStoppedDoesNotHideTheEndFromTheParent(t *testing.T) {
	boom := spawnScriptOn[*actor.Stopped](func(actor.Context) { panic("in Stopped") })
	spawnBubble(t, func(w *spawnWorld) {
		kid := w.spawnKid(w.safe, boom)
		w.do(w.parent, func(ctx actor.Context) { ctx.Stop(kid) })
		assert.Equal(t, []string{"kid *actor.Stopping", "kid *actor.Stopped", "parent *actor.Terminated"}, w.lines())
		assert.Equal(t, 1, w.logs.FilterMessage("actor panicked").Len())
	})
}

func TestT5_NoUserMessageIsHandledAfterStopping(t *testing.T) {
	slow := spawnScriptOn[*actor.Stopping](func(actor.Context) { time.Sleep(time.Second) })
	story := func(w *spawnWorld, spawn func(actor.Context, string, spawnScript) *actor.PID) []string {
		kid := w.spawnKid(spawn, nil)
		w.do(kid, func(ctx actor.Context) { spawn(ctx, "grandkid", slow) })
		w.lines()
		w.do(w.parent, func(ctx actor.Context) { ctx.Stop(kid) })
		w.sys.root.Send(kid, "late")
		w.sys.root.Send(kid, "later")
		time.Sleep(time.Minute)
		synctest.Wait()
		return w.lines()
	}
	t.Run("trap", func(t *testing.T) {
		spawnBubble(t, func(w *spawnWorld) { assert.Contains(t, story(w, w.raw), "kid string") })
	})
	t.Run("guarded", func(t *testing.T) {
		spawnBubble(t, func(w *spawnWorld) {
			assert.NotContains(t, story(w, w.safe), "kid string")
			assert.EqualValues(t, 2, w.sys.droppedMessages(), "they are counted")
		})
	})
}
