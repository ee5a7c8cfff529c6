package supervisor

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

var (
	// ErrStoppedUnexpectedly is the reason of a child that stopped although nobody asked its supervisor to stop it.
	ErrStoppedUnexpectedly = errors.New("supervisor: child stopped unexpectedly")
	// ErrStopping is returned by Start once the parent is stopping: a child spawned then would never be stopped.
	ErrStopping = errors.New("supervisor: parent is stopping")
	// ErrDuplicateKey is returned by Start when a child of that key is there, also between two incarnations.
	ErrDuplicateKey = errors.New("supervisor: duplicate child key")
)

// Supervisor supervises the children of one actor, which embeds it. The parent calls Receive first for every message and
// acts on the outcomes; HandleFailure is promoted, which makes the parent a protoactor SupervisorStrategy.
//
// All methods belong to the parent's turn: none may be called from another goroutine. A Supervisor serves one incarnation of
// its parent.
//
// Invariants: at most one incarnation of a key is alive; a successor is spawned only after the predecessor's Terminated; after
// Stopping nothing is spawned and no timer runs.
type Supervisor struct {
	seed     uint64
	children map[string]*child
	// byID finds the child of a living incarnation by the id of its PID.
	byID     map[string]*child
	stopping bool
	// timers numbers the timers, so that a respawn whose timer was stopped too late is told from the one awaited.
	timers uint64
}

// child is one key over all its incarnations.
type child struct {
	spec   ChildSpec
	budget *Budget
	// pid is the incarnation that has not terminated; nil between two incarnations.
	pid *actor.PID
	// failed, reason and message are the living incarnation's failure, until its Terminated.
	failed  bool
	reason  any
	message any
	// planned is set when the child is to stop for good.
	planned bool
	// timer and awaited are the respawn's while pid is nil; decision is the one that it carries out.
	timer    *time.Timer
	awaited  uint64
	decision Decision
}

// respawn is sent by a timer to the parent itself.
type respawn struct {
	owner   *Supervisor
	key     string
	awaited uint64
}

// IgnoreDeadLetterLogging keeps a respawn that finds no parent out of the log.
func (*respawn) IgnoreDeadLetterLogging() {}

// New returns a supervisor without children. Seed is the source of all jitter.
func New(seed uint64) *Supervisor {
	return &Supervisor{seed: seed, children: map[string]*child{}, byID: map[string]*child{}}
}

// Start spawns a child and supervises it from now on.
func (s *Supervisor) Start(ctx actor.Context, spec ChildSpec) (*actor.PID, error) {
	if s.stopping {
		return nil, fmt.Errorf("start %q: %w", spec.Key, ErrStopping)
	}
	if s.children[spec.Key] != nil {
		return nil, fmt.Errorf("start %q: %w", spec.Key, ErrDuplicateKey)
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(spec.Key)) // never fails
	c := &child{spec: spec, budget: NewBudget(spec.Policy, s.seed^hash.Sum64())}
	s.spawn(ctx, c)
	s.children[spec.Key] = c
	return c.pid, nil
}

// Stop stops a child for good. It returns true when ChildStopped will follow, and false when there is nothing to wait for: no
// such child, or one between two incarnations, which is forgotten.
func (s *Supervisor) Stop(ctx actor.Context, key string) (pending bool) {
	c := s.children[key]
	switch {
	case c == nil:
		return false
	case c.pid == nil:
		s.forget(c)
		return false
	case !c.planned:
		c.planned = true
		ctx.Stop(c.pid)
	}
	return true
}

// Stopping ends all respawning, for good. Receive calls it when the parent is stopped; a parent that stops its children one by
// one before it stops itself calls it first. From now on every child that goes is a ChildStopped. Those between two
// incarnations are forgotten.
func (s *Supervisor) Stopping() {
	s.stopping = true
	for _, c := range s.children {
		if c.pid == nil {
			s.forget(c)
		}
	}
}

// HandleFailure implements actor.SupervisorStrategy: it remembers why the child failed and stops it. What comes next is decided
// when it is gone. It always stops, whatever the reason, also children it does not know.
func (s *Supervisor) HandleFailure(_ *actor.ActorSystem, parent actor.Supervisor, pid *actor.PID, _ *actor.RestartStatistics, reason, message any) {
	// The first failure is the cause; one more can only come from the handlers that run while the child stops.
	if c := s.byID[pid.Id]; c != nil && !c.failed {
		c.failed, c.reason, c.message = true, reason, actor.UnwrapEnvelopeMessage(message)
	}
	parent.StopChildren(pid)
}

// Receive handles what concerns the children. Handled is false for messages that are not the supervisor's, or that the parent
// has to see as well (its own Stopping and Restarting). Outcomes are in the order in which things happened.
func (s *Supervisor) Receive(ctx actor.Context) (outcomes []Outcome, handled bool) {
	switch m := ctx.Message().(type) {
	case *actor.Stopping, *actor.Restarting:
		s.Stopping()
	case *actor.Terminated:
		if c := s.byID[m.Who.GetId()]; c != nil {
			return s.terminated(ctx, c), true
		}
	case *respawn:
		return s.respawn(ctx, m), true
	}
	return nil, false
}

// Succeed tells that the child of that key did its work. It returns true when that ended a probing phase: what the child
// serves may be resumed. Cheap enough for every batch.
func (s *Supervisor) Succeed(key string, now time.Time) (endedProbing bool) {
	c := s.children[key]
	return c != nil && c.budget.Succeed(now)
}

// Renew gives the child of that key a full budget, and has a successor that waits for its time spawned now: what the failures
// were about is not its work any more.
func (s *Supervisor) Renew(ctx actor.Context, key string) {
	c := s.children[key]
	if c == nil {
		return
	}
	c.budget.Succeed(time.Now())
	c.budget.restarts = nil
	if c.timer != nil {
		c.timer.Stop()
		c.timer, c.decision.After = nil, 0
		s.schedule(ctx, c)
	}
}

// Lookup returns the incarnation of a child that takes messages: nil when there is none, when it has failed, and when it was
// told to stop.
func (s *Supervisor) Lookup(key string) *actor.PID {
	if c := s.children[key]; c != nil && !c.failed && !c.planned {
		return c.pid
	}
	return nil
}

// Keys returns the keys of all children, sorted, also of those between two incarnations and those about to stop.
func (s *Supervisor) Keys() []string {
	keys := make([]string, 0, len(s.children))
	for key := range s.children {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (s *Supervisor) spawn(ctx actor.Context, c *child) {
	c.pid = c.spec.Spawn(ctx)
	s.byID[c.pid.Id] = c
}

// terminated moves on from an incarnation that is gone.
func (s *Supervisor) terminated(ctx actor.Context, c *child) []Outcome {
	pid, reason, message := c.pid, c.reason, c.message
	if !c.failed && !c.planned && !s.stopping {
		reason = ErrStoppedUnexpectedly
	}
	// Drop the PID: it keeps the whole actor alive.
	delete(s.byID, pid.Id)
	c.pid, c.failed, c.reason, c.message = nil, false, nil, nil
	if c.planned || s.stopping {
		s.forget(c)
		return []Outcome{ChildStopped{Key: c.spec.Key, Role: c.spec.Role, PID: pid, Reason: reason}}
	}

	c.decision = c.budget.Fail(time.Now())
	outcomes := []Outcome{ChildFailed{Key: c.spec.Key, Role: c.spec.Role, PID: pid, Reason: reason, Message: message, Decision: c.decision}}
	if c.decision.Spent {
		outcomes = append(outcomes, BudgetSpent{Key: c.spec.Key, Role: c.spec.Role, Reason: reason, Decision: c.decision})
	}
	if c.decision.Action == Stop {
		s.forget(c)
		return outcomes
	}
	s.schedule(ctx, c)
	return outcomes
}

// schedule sends the parent a respawn after the wait. Also a wait of zero goes through the mailbox, so that the parent has
// handled ChildFailed before the successor is there.
func (s *Supervisor) schedule(ctx actor.Context, c *child) {
	s.timers++
	c.awaited = s.timers
	root, self := ctx.ActorSystem().Root, ctx.Self()
	m := &respawn{owner: s, key: c.spec.Key, awaited: c.awaited}
	if c.decision.After <= 0 {
		root.Send(self, m)
		return
	}
	c.timer = time.AfterFunc(c.decision.After, func() { root.Send(self, m) })
}

// respawn spawns the successor, unless the message is from a former incarnation of the parent or from a timer that was
// stopped too late.
func (s *Supervisor) respawn(ctx actor.Context, m *respawn) []Outcome {
	if m.owner != s || s.stopping {
		return nil
	}
	c := s.children[m.key]
	if c == nil || c.awaited != m.awaited {
		return nil
	}
	c.timer, c.awaited = nil, 0
	s.spawn(ctx, c)
	return []Outcome{ChildRespawned{Key: c.spec.Key, Role: c.spec.Role, PID: c.pid, Decision: c.decision}}
}

// forget drops a child that has no living incarnation.
func (s *Supervisor) forget(c *child) {
	if c.timer != nil {
		c.timer.Stop()
	}
	delete(s.children, c.spec.Key)
}
