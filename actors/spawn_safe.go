package actors

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
)

// errNilActor is what a user's producer that returned no actor fails with.
var errNilActor = errors.New("actors: the producer returned a nil actor")

// PanicError is the reason an actor failed with: what it panicked with, and where. It is logged once, where it is made.
type PanicError struct {
	// Role is the kind of the actor that panicked.
	Role string
	// Value is what it panicked with.
	Value any
	// Stack is that of the panicking goroutine.
	Stack []byte
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("%s panicked: %v", e.Role, e.Value) }

// Unwrap returns the value if it is an error, so that errors.Is and errors.As see through the panic.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// panicObserver is an actor that wants to know its own failure, because no parent will tell anyone. It is called in the
// actor's turn, before its Stopping.
type panicObserver interface{ panicked(*PanicError) }

// actorOrigin tells who wrote an actor.
type actorOrigin int

const (
	// actorOfOurs is made in the turn of whoever spawns it, and its children stop when they fail.
	actorOfOurs actorOrigin = iota
	// actorOfUser is made in its own turn, so that a panic there is its own failure, and its children are supervised as protoactor does.
	actorOfUser
)

// maxPanicText bounds, in bytes, how much of a panic's value is logged.
const maxPanicText = 4096

// safeShared is what all incarnations of one spawned actor share. There is one incarnation unless somebody uses protoactor's
// Restart on it, which we never do.
type safeShared struct {
	system   *system
	live     *liveActor
	role     string
	origin   actorOrigin
	producer func() actor.Actor
	// inner is the actor itself. Nil: it is made when it gets its first message, in its own turn.
	inner actor.Actor
	// words is nil for an actor that needs to hear nothing before it stops. One that has failed hears nothing more.
	words  *lastWords
	failed bool
	// stopping is set by the first Stopping, stopped by the first Stopped. They hold for all later incarnations.
	stopping bool
	stopped  bool
}

func (s *system) newSafeShared(role, name string, origin actorOrigin, producer func() actor.Actor) *safeShared {
	live := &liveActor{registry: s.live, name: name, role: role, mailbox: actor.Unbounded()()}
	h := &safeShared{system: s, live: live, role: role, origin: origin, producer: producer}
	if origin == actorOfOurs {
		h.inner = producer()
	}
	return h
}

// incarnate is the producer that protoactor gets.
func (h *safeShared) incarnate() actor.Actor { return &safeActor{safeShared: h} }

// safeActor is the wrapper around every actor. It makes harmless what protoactor does to an actor that panics or is restarted
// while it stops (T1 to T5 in the tests): a panic in Stopping, Stopped or Restarting is logged and swallowed, since there it would
// leave an actor that never stops; after Stopping the actor sees no more user messages, which are counted; a Restart that
// crosses with a stop brings nothing back. Any other panic is logged with its stack and passed on as *PanicError.
type safeActor struct{ *safeShared }

// Receive implements actor.Actor.
func (a *safeActor) Receive(ctx actor.Context) {
	message := ctx.Message()
	a.live.enter(message)
	defer a.live.leave()
	switch message.(type) {
	case *actor.Started:
		if a.stopped {
			return
		}
		if a.stopping {
			// A Restart came between Stopping and Stopped and called the stop off (T2). Ask for it again.
			ctx.Stop(ctx.Self())
			return
		}
		a.run(ctx, false)
	case *actor.Stopping:
		if a.stopping {
			return
		}
		a.stopping = true
		a.live.stopping.Store(true)
		a.sayLastWords(ctx)
		a.run(ctx, true)
	case *actor.Stopped:
		if a.stopped {
			return
		}
		a.stopped = true
		a.run(ctx, true)
		a.inner = nil // whoever still holds the PID holds this wrapper, but no longer the actor's state
		a.system.live.remove(a.live)
	case *actor.Restarting:
		if a.stopping {
			return
		}
		a.run(ctx, true)
		a.inner = nil // the next incarnation starts anew
	case *actor.Terminated:
		if !a.stopped {
			a.run(ctx, a.stopping)
		}
	default:
		last := a.words.take(message)
		if a.stopping {
			if !last {
				a.system.dropped.Add(1)
			}
			return
		}
		a.run(ctx, false)
	}
}

// HandleFailure implements actor.SupervisorStrategy for the actor's children. protoactor looks for it on the wrapper, so it is passed on.
func (a *safeActor) HandleFailure(system *actor.ActorSystem, parent actor.Supervisor, child *actor.PID, stats *actor.RestartStatistics, reason, message any) {
	defer func() {
		if v := recover(); v != nil {
			// The decision is missing; the child must not stay suspended for ever.
			a.log("actor panicked deciding on a failed child", v, debug.Stack(), "")
			parent.StopChildren(child)
		}
	}()
	strategy, ok := a.inner.(actor.SupervisorStrategy)
	switch {
	case ok:
		strategy.HandleFailure(system, parent, child, stats, reason, message)
	case a.origin == actorOfUser && !a.stopping:
		actor.DefaultSupervisorStrategy().HandleFailure(system, parent, child, stats, reason, message)
	default:
		parent.StopChildren(child)
	}
}

// run calls the inner actor. When swallow is set its panic ends here, else it goes on as *PanicError.
func (a *safeActor) run(ctx actor.Context, swallow bool) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value, stack, during := recover(), debug.Stack(), fmt.Sprintf("%T", ctx.Message())
		if value == nil {
			// Only runtime.Goexit, as testing's FailNow calls it, gets here without a value. The goroutine ends, protoactor
			// believes it is still running, and the actor will never handle anything again, not even Stop.
			a.log("actor called runtime.Goexit and is wedged for ever", nil, stack, during)
			return
		}
		if _, reported := value.(*HandlerError); !reported {
			a.log("actor panicked", value, stack, during) // a handler's own failure is reported by its partition
		}
		if swallow {
			return
		}
		a.failed = true
		failure := &PanicError{Role: a.role, Value: value, Stack: stack}
		if observer, ok := a.inner.(panicObserver); ok {
			observer.panicked(failure)
		}
		panic(failure)
	}()
	if a.inner == nil && !a.stopping {
		if a.inner = a.producer(); a.inner == nil {
			panic(errNilActor)
		}
	}
	// An actor that could not be made has nothing to stop.
	if a.inner != nil {
		a.inner.Receive(ctx)
	}
	returned = true
}

func (a *safeActor) log(what string, value any, stack []byte, during string) {
	text := fmt.Sprint(value) // survives a value whose String panics
	if len(text) > maxPanicText {
		text = text[:maxPanicText] + "..."
	}
	a.system.logger.Error(what,
		zap.String("role", a.role),
		zap.String("actor", a.live.name),
		zap.String("message_type", during),
		zap.String("panic", text),
		zap.ByteString("stack", stack))
}
