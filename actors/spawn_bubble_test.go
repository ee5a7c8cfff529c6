package actors

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// spawnWorld is a system in a synctest bubble with one root actor that runs functions sent to it.
type spawnWorld struct {
	t      *testing.T
	sys    *system
	logs   *observer.ObservedLogs
	parent *actor.PID

	mu      sync.Mutex
	journal []string
}

type spawnTurn func(ctx actor.Context)

// spawnBubble runs f in a bubble. At its end the root must be able to stop, and nothing may be alive.
func spawnBubble(t *testing.T, f func(w *spawnWorld)) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * deadLetterThrottle)
		core, logs := observer.New(zapcore.DebugLevel)
		w := &spawnWorld{t: t, sys: newSystem(zap.New(core), nil), logs: logs}
		defer w.sys.shutdown()
		w.parent = w.sys.spawnRoot("parent", func() actor.Actor { return w.actor("parent", nil) })
		synctest.Wait()
		w.lines()
		f(w)
		w.sys.stop(w.parent)
		time.Sleep(time.Minute)
		synctest.Wait()
		if left := w.sys.alive(); len(left) > 0 {
			t.Errorf("still alive: %v; journal %q", left, w.lines())
		}
	})
}

// spawnScript is what a test actor does on a message beyond noting its type.
type spawnScript func(ctx actor.Context)

// actor makes an actor that notes every message it gets by type, and then does what script says.
func (w *spawnWorld) actor(name string, script spawnScript) actor.Actor {
	return actor.ReceiveFunc(func(ctx actor.Context) {
		if f, ok := ctx.Message().(spawnTurn); ok {
			f(ctx)
			return
		}
		w.note("%s %T", name, ctx.Message())
		if script != nil {
			script(ctx)
		}
	})
}

// raw is the same without the safe wrapper, to see that a trap still exists.
func (w *spawnWorld) raw(ctx actor.Context, name string, script spawnScript) *actor.PID {
	return ctx.Spawn(actor.PropsFromProducer(func() actor.Actor { return w.actor(name, script) }))
}

func (w *spawnWorld) safe(ctx actor.Context, name string, script spawnScript) *actor.PID {
	return w.sys.spawnChild(ctx, name, func() actor.Actor { return w.actor(name, script) })
}

func (w *spawnWorld) note(format string, a ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal = append(w.journal, fmt.Sprintf(format, a...))
}

// lines returns what was noted and starts the journal anew.
func (w *spawnWorld) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.journal
	w.journal = nil
	return lines
}

// do runs f in the turn of an actor made by w and waits until everything is idle.
func (w *spawnWorld) do(pid *actor.PID, f spawnTurn) {
	w.sys.root.Send(pid, f)
	synctest.Wait()
}

// spawnKid spawns a child of the parent.
func (w *spawnWorld) spawnKid(spawn func(actor.Context, string, spawnScript) *actor.PID, script spawnScript) *actor.PID {
	var kid *actor.PID
	w.do(w.parent, func(ctx actor.Context) { kid = spawn(ctx, "kid", script) })
	w.lines()
	return kid
}

// busyThen keeps kid busy for a second, in which the parent does f: kid then finds everything f sent at once.
func (w *spawnWorld) busyThen(kid *actor.PID, f spawnTurn) {
	w.sys.root.Send(kid, spawnTurn(func(actor.Context) { time.Sleep(time.Second) }))
	time.Sleep(time.Millisecond)
	w.sys.root.Send(w.parent, f)
	time.Sleep(time.Minute)
	synctest.Wait()
}

// spawnScriptOn runs f on messages of type M only.
func spawnScriptOn[M any](f spawnScript) spawnScript {
	return func(ctx actor.Context) {
		if _, ok := ctx.Message().(M); ok {
			f(ctx)
		}
	}
}
