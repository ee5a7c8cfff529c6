package actors

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
)

// deadLetterThrottle is how long protoactor's dead-letter throttle keeps a goroutine. Nothing can stop it earlier, so it is
// short: whoever waits for the last goroutine of a tree waits at most this long.
const deadLetterThrottle = 10 * time.Millisecond

// deadLetterLines lets one line through per interval: protoactor counts the line that closes the throttle as throttled.
const deadLetterLines = 2

// system is the actor system of one consumer, and the only way to spawn in it: every actor gets the safe wrapper, an
// unbounded mailbox, a name of its own, and an entry in the registry of living actors.
type system struct {
	actorSystem *actor.ActorSystem
	// root sends from outside of actors. It is not the actor system's own, which the user may have given middleware: that would
	// slow every send down, and with spawn middleware protoactor forgets a root actor's guardian.
	root   *actor.RootContext
	logger *zap.Logger
	// owned is false when the user brought the actor system: then it is not ours to shut down.
	owned bool
	once  sync.Once
	live  *liveRegistry
	// turns runs the actors' turns.
	turns *turns
	// dropped counts the user messages that came to an actor after its Stopping.
	dropped atomic.Int64
}

// newSystem returns a system on the user's actor system, or on a new one when existing is nil. A nil logger logs nothing.
func newSystem(logger *zap.Logger, existing *actor.ActorSystem) *system {
	if logger == nil {
		logger = zap.NewNop()
	}
	s := &system{actorSystem: existing, logger: logger, live: newLiveRegistry(), turns: newTurns()}
	if existing == nil {
		s.owned = true
		s.actorSystem = actor.NewActorSystem(
			actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return newLogBridge(logger) }),
			actor.WithDeadLetterThrottleInterval(deadLetterThrottle),
			actor.WithDeadLetterThrottleCount(deadLetterLines),
			actor.WithDeadLetterRequestLogging(false),
		)
	}
	s.root = actor.NewRootContext(s.actorSystem, actor.EmptyMessageHeader)
	return s
}

// shutdown ends the actor system if it is ours. It may be called again.
func (s *system) shutdown() {
	s.turns.close()
	if s.owned {
		s.once.Do(s.actorSystem.Shutdown)
	}
}

// stop tells an actor to stop, from outside of actors, and does not wait for it.
func (s *system) stop(pid *actor.PID) { s.root.Stop(pid) }

// alive returns the actors that have not stopped, ordered by name.
func (s *system) alive() []LiveActor { return s.live.list() }

// aliveRoles returns the same for an error message: one line for each.
func (s *system) aliveRoles() []string {
	var lines []string
	for _, a := range s.alive() {
		lines = append(lines, a.String())
	}
	return lines
}

// droppedMessages returns how many user messages came to actors that were stopping.
func (s *system) droppedMessages() int64 { return s.dropped.Load() }

// spawnRoot spawns an actor without a parent. A failure stops it; an inner actor that implements panicObserver learns why
// before its Stopping.
func (s *system) spawnRoot(role string, producer func() actor.Actor) *actor.PID {
	name := s.uniqueName(role)
	return s.mustSpawn(s.root, name, s.newSafeShared(role, name, actorOfOurs, producer), actor.WithGuardian(stopOnlyGuardian{}))
}

// spawnChild spawns a child of the actor whose context it gets. The producer runs here, in the parent's turn, and so may read
// the parent's state.
func (s *system) spawnChild(ctx actor.Context, role string, producer func() actor.Actor) *actor.PID {
	name := s.uniqueName(role)
	return s.mustSpawn(ctx, name, s.newSafeShared(role, ctx.Self().GetId()+"/"+name, actorOfOurs, producer))
}

// spawnUser spawns an actor that the user wrote. The producer runs in the child, so that a panic there, or a nil actor, is the
// child's failure and not its parent's. The user's actor supervises its own children as protoactor does by default, unless it
// implements actor.SupervisorStrategy. It hears the words before it stops; they are this one actor's.
func (s *system) spawnUser(ctx actor.Context, role string, words *lastWords, producer func() actor.Actor) *actor.PID {
	name := s.uniqueName(role)
	shared := s.newSafeShared(role, ctx.Self().GetId()+"/"+name, actorOfUser, producer)
	shared.words = words
	return s.mustSpawn(ctx, name, shared)
}

// uniqueName returns a name that no other actor of the actor system has or had, also not another consumer's. A name is never
// used twice: it becomes free before the actor's last handler has run.
func (s *system) uniqueName(role string) string { return role + s.actorSystem.ProcessRegistry.NextId() }

// mustSpawn spawns the safe wrapper around shared. It registers the actor first: it may have stopped before the spawn returns.
func (s *system) mustSpawn(parent actor.SpawnerContext, name string, shared *safeShared, options ...actor.PropsOption) *actor.PID {
	options = append(options, actor.WithMailbox(func() actor.Mailbox { return shared.live.mailbox }))
	if shared.origin == actorOfOurs { // what a user's actor does to its goroutine must not outlive its turn
		options = append(options, actor.WithDispatcher(s.turns))
	}
	s.live.add(shared.live)
	pid, err := parent.SpawnNamed(actor.PropsFromProducer(shared.incarnate, options...), name)
	if err != nil {
		// Only a taken name fails, and names are unique.
		s.live.remove(shared.live)
		panic(err)
	}
	return pid
}

// stopOnlyGuardian supervises the root actors. It must do nothing but stop: a guardian that escalates, or acts on all
// children, panics inside protoactor's recovery and ends the process. Its type has no fields, so that there is one guardian
// per actor system however many roots are spawned.
type stopOnlyGuardian struct{}

// HandleFailure implements actor.SupervisorStrategy.
func (stopOnlyGuardian) HandleFailure(_ *actor.ActorSystem, guardian actor.Supervisor, root *actor.PID, _ *actor.RestartStatistics, _, _ any) {
	guardian.StopChildren(root)
}
