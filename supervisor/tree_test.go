package supervisor

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// tree is a parent with a Supervisor inside a synctest bubble, and what the two and their children did.
type tree struct {
	t      *testing.T
	system *actor.ActorSystem
	start  time.Time
	parent *actor.PID

	mu      sync.Mutex
	journal []string
	alive   map[string]int // living incarnations by key
	spawned map[string]int // all incarnations by key
}

// parent is an actor that embeds a Supervisor as those of Troupe do. It runs functions sent to it in its turn.
type parent struct {
	*Supervisor
	tree *tree
}

type inTurn func(ctx actor.Context, p *parent)

func (p *parent) Receive(ctx actor.Context) {
	outcomes, handled := p.Supervisor.Receive(ctx)
	for _, o := range outcomes {
		switch o := o.(type) {
		case ChildFailed:
			p.tree.note("%s failed (%v on %T): %v after %v", o.Key, o.Reason, o.Message, o.Decision.Action, o.Decision.After)
		case BudgetSpent:
			p.tree.note("%s budget spent (%v): %v", o.Key, o.Reason, o.Decision.Action)
		case ChildRespawned:
			p.tree.note("%s respawned (%d)", o.Key, o.Decision.Restarts)
		case ChildStopped:
			p.tree.note("%s was stopped (%v)", o.Key, o.Reason)
		}
	}
	if handled {
		return
	}
	switch m := ctx.Message().(type) {
	case inTurn:
		m(ctx, p)
	case *actor.Stopping:
		p.tree.note("parent stopping")
	case *actor.Stopped:
		p.tree.note("parent stopped")
	}
}

// bubble runs f with a running parent, whose start is the fake time's zero.
func bubble(t *testing.T, f func(w *tree)) {
	synctest.Test(t, func(t *testing.T) {
		const throttle = 10 * time.Millisecond
		defer time.Sleep(2 * throttle) // the dead-letter throttle's goroutine ends in it
		w := &tree{t: t, start: time.Now(), alive: map[string]int{}, spawned: map[string]int{}}
		w.system = actor.NewActorSystem(
			actor.WithDeadLetterThrottleInterval(throttle),
			actor.WithDeadLetterRequestLogging(false),
			actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }))
		defer w.system.Shutdown()
		w.parent = w.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &parent{Supervisor: New(1), tree: w} }))
		synctest.Wait()
		f(w)
		w.stopParent()
	})
}

// stopParent stops the parent and waits, at most a fake minute, for it to be gone.
func (w *tree) stopParent() {
	w.system.Root.Stop(w.parent)
	time.Sleep(time.Minute)
	synctest.Wait()
	if _, alive := w.system.ProcessRegistry.GetLocal(w.parent.Id); alive {
		w.t.Errorf("parent never stopped; journal %q", w.lines())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, n := range w.alive {
		if n != 0 {
			w.t.Errorf("%d incarnations of %s outlived their parent", n, key)
		}
	}
}

// do runs f in the parent's turn and waits until everything is idle.
func (w *tree) do(f inTurn) {
	w.system.Root.Send(w.parent, f)
	synctest.Wait()
}

// send sends a message to the child of that key and waits until everything is idle.
func (w *tree) send(key string, message any) {
	w.do(func(ctx actor.Context, p *parent) {
		if pid := p.Lookup(key); pid != nil {
			ctx.Send(pid, message)
		} else {
			w.note("no %s", key)
		}
	})
}

// sleep lets fake time pass, and then whatever falls due at its end happen.
func (w *tree) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *tree) note(format string, a ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal = append(w.journal, fmt.Sprintf("%v ", time.Since(w.start))+fmt.Sprintf(format, a...))
}

func (w *tree) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.journal...)
}

// What a test child understands.
type (
	boom     struct{}                  // panic
	goodbye  struct{}                  // stop itself
	byeBoom  struct{}                  // stop itself and panic in the same turn
	slowStop struct{}                  // be slow in Stopped from now on
	napIn    struct{ d time.Duration } // sleep in the handler
)

// kid is a child that numbers its incarnations and checks that they never overlap.
type kid struct {
	tree *tree
	key  string
	n    int
	slow bool
}

func (k *kid) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		k.tree.mu.Lock()
		k.tree.spawned[k.key]++
		k.tree.alive[k.key]++
		k.n = k.tree.spawned[k.key]
		overlap := k.tree.alive[k.key] > 1
		k.tree.mu.Unlock()
		if overlap {
			k.tree.t.Errorf("%s has two incarnations at once", k.key)
		}
	case *actor.Stopped:
		if k.slow {
			time.Sleep(time.Second)
		}
		k.tree.note("%s/%d stopped", k.key, k.n)
		k.tree.mu.Lock()
		k.tree.alive[k.key]--
		k.tree.mu.Unlock()
	case boom:
		panic("boom")
	case goodbye:
		ctx.Stop(ctx.Self())
	case byeBoom:
		ctx.Stop(ctx.Self())
		panic("bye")
	case slowStop:
		k.slow = true
	case napIn:
		time.Sleep(m.d)
	}
}

// spec is a child spec for a kid. A fixed name would be a trap (T13), and is taken here on purpose: the supervisor must hold
// without the help of unique names.
func (w *tree) spec(key string, policy Policy) ChildSpec {
	return ChildSpec{Key: key, Role: "kid", Policy: policy, Spawn: func(ctx actor.Context) *actor.PID {
		pid, err := ctx.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return &kid{tree: w, key: key} }), key)
		if err != nil {
			w.t.Errorf("spawn %s: %v", key, err)
		}
		return pid
	}}
}

// startKid starts a kid under the parent.
func (w *tree) startKid(key string, policy Policy) {
	w.do(func(ctx actor.Context, p *parent) {
		if _, err := p.Start(ctx, w.spec(key, policy)); err != nil {
			w.t.Errorf("start %s: %v", key, err)
		}
	})
}
