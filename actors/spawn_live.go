package actors

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// LiveActor describes an actor that has not stopped.
type LiveActor struct {
	// Name is its id in the actor system, which begins with its parent's.
	Name string
	Role string
	// Stopping tells that it was told to stop, and waits for its children or for its handler.
	Stopping bool
	// Message is the type of the message in its handler, "" when it is idle.
	Message string
	// Age is how long that handler has been running; zero when it is idle.
	Age time.Duration
	// Queued is how many messages wait in its mailbox.
	Queued int
}

// String returns one line for an error or a log.
func (a LiveActor) String() string {
	state := "running"
	if a.Stopping {
		state = "stopping"
	}
	if a.Message == "" {
		return fmt.Sprintf("%s (%s, idle, %d queued)", a.Name, state, a.Queued)
	}
	return fmt.Sprintf("%s (%s, in %s for %v, %d queued)", a.Name, state, a.Message, a.Age.Round(time.Millisecond), a.Queued)
}

// liveRegistry knows the actors of one system that have not stopped.
type liveRegistry struct {
	// start is what the times in liveActor count from; it keeps them monotonic.
	start  time.Time
	mu     sync.Mutex
	actors map[*liveActor]struct{}
}

// liveActor is an entry, written by its actor and read by anyone.
type liveActor struct {
	registry *liveRegistry
	name     string
	role     string
	mailbox  actor.Mailbox
	stopping atomic.Bool
	// current is the reflect.Type of the latest message. since is when its handler began, in nanoseconds after the registry's
	// start plus one; 0 = idle.
	current atomic.Value
	since   atomic.Int64
}

func newLiveRegistry() *liveRegistry {
	return &liveRegistry{start: time.Now(), actors: map[*liveActor]struct{}{}}
}

func (r *liveRegistry) add(a *liveActor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.actors[a] = struct{}{}
}

func (r *liveRegistry) remove(a *liveActor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.actors, a)
}

func (r *liveRegistry) list() []LiveActor {
	r.mu.Lock()
	list := make([]LiveActor, 0, len(r.actors))
	for a := range r.actors {
		list = append(list, a.describe())
	}
	r.mu.Unlock()
	slices.SortFunc(list, func(a, b LiveActor) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// enter notes that the handler of a message begins, leave that it has returned.
func (a *liveActor) enter(message any) {
	if message != nil {
		a.current.Store(reflect.TypeOf(message))
	}
	a.since.Store(int64(time.Since(a.registry.start)) + 1)
}

func (a *liveActor) leave() { a.since.Store(0) }

func (a *liveActor) describe() LiveActor {
	d := LiveActor{Name: a.name, Role: a.role, Stopping: a.stopping.Load(), Queued: a.mailbox.UserMessageCount()}
	if since := a.since.Load(); since != 0 {
		if current, ok := a.current.Load().(reflect.Type); ok {
			d.Message = current.String()
		}
		d.Age = max(0, time.Since(a.registry.start)-time.Duration(since-1))
	}
	return d
}
