package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
)

// shared is what every actor of a tree knows: the settings, the ports, and the few registers that outlive single actors.
type shared struct {
	settings Settings
	network  Network
	logger   *zap.Logger
	observe  func(event.Event)
	sys      *system
	gates    *gates
	slots    *slots
	memory   *memory
	board    *board
	session  *session
	pauses   pauses
	// orphans is passed from a group actor that died to the next one.
	orphans orphans
	// tree is what tokens act on; tokens numbers them.
	tree   *Tree
	tokens atomic.Uint64
	// handlers says who handles which topics. The group actor alone changes it; it outlives that one.
	handlers atomic.Pointer[handlers]
	// workers counts the goroutines that talk to brokers.
	workers workerCount
	// standalone is nil in a group.
	standalone *standalone
}

// Tree is one consumer-group member: a tree of actors and the handles to it. Its methods are safe from any goroutine.
type Tree struct {
	shared  *shared
	rootPID *actor.PID

	closing    sync.Once
	abandoning sync.Once
	closed     chan struct{}
	done       chan struct{}
	mu         sync.Mutex
	err        error
	report     closeReport
	// abandoned is true when the deadline ended it, hurried when handlers were not to be waited for.
	abandoned, hurried bool
	// leaveBy is when leaving had to be done, late whether it was not done by then.
	leaveBy time.Time
	late    bool
	// result is what every caller of Close gets, once it is settled; deadline is when it is at the latest.
	result   error
	settled  bool
	deadline time.Time
}

// closeReport is what the group could not finish while it left.
type closeReport struct {
	uncommitted []UncommittedPartition
}

// SpawnTree starts a tree. The settings must be valid.
func SpawnTree(settings Settings, deps Deps) *Tree {
	if settings.Standalone == nil {
		deps.Logger = deps.Logger.With(zap.String("group", settings.GroupID))
	}
	sys := newSystem(deps.Logger, deps.System)
	s := &shared{
		settings: settings, network: deps.Network, logger: deps.Logger, observe: deps.Observe, sys: sys,
		gates: newGates(sys), slots: newSlots(sys, settings.Concurrency),
		memory: newMemory(sys, settings.MemoryBudget), board: newBoard(settings.GroupID),
		session:    newSession(sys, settings.SessionTimeout),
		standalone: newStandalone(settings.Standalone),
	}
	s.handlers.Store(newHandlers(s, settings.Registrations))
	if s.standalone != nil {
		s.session.trust()
		s.board.standalone = true
	}
	t := &Tree{shared: s, closed: make(chan struct{}), done: make(chan struct{})}
	s.tree = t
	t.mu.Lock() // the tree may end before the spawn returns
	defer t.mu.Unlock()
	t.rootPID = sys.spawnRoot("root", func() actor.Actor { return newRoot(s, t.ended) })
	return t
}

// top is the root actor. A callback may ask for it before SpawnTree has returned.
func (t *Tree) top() *actor.PID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rootPID
}

// ended is called once, by the root actor when it has stopped.
func (t *Tree) ended(err error, report closeReport) {
	t.mu.Lock()
	t.err, t.report = err, report
	t.late = !t.leaveBy.IsZero() && !time.Now().Before(t.leaveBy)
	t.mu.Unlock()
	t.shared.observe(event.Closed{Member: t.shared.member(), Err: err})
	close(t.done)
	// A tree that ended by itself still has a system and workers to end.
	go t.StartClose(time.Now().Add(t.shared.settings.CloseTimeout))
}

// Done is closed when the tree has ended, by Close or because it failed for good.
func (t *Tree) Done() <-chan struct{} { return t.done }

// Err returns why the tree ended: nil while it runs and after a clean Close.
func (t *Tree) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Stats returns a snapshot.
func (t *Tree) Stats() Stats {
	stats := t.shared.board.stats()
	stats.GaveUp = t.shared.gates.givenUp(time.Now())
	stats.Concurrency = int(t.shared.slots.limit.Load())
	stats.MemoryHeld = t.shared.memory.held()
	stats.StaleMessages += uint64(t.shared.sys.droppedMessages())
	return stats
}

// Healthy returns nil when the member is joined, its heartbeats are answered and no partition is stuck; else an error that
// wraps ErrNotHealthy and says what is wrong.
func (t *Tree) Healthy() error {
	select {
	case <-t.done:
		if err := t.Err(); err != nil {
			return fmt.Errorf("%w: the consumer has ended: %w", ErrNotHealthy, err)
		}
		return fmt.Errorf("%w: the consumer is closed", ErrNotHealthy)
	default:
		now := time.Now()
		err := t.shared.board.healthy(now, t.shared.settings.SessionTimeout)
		if err == nil {
			return nil
		}
		for _, r := range t.shared.gates.givenUp(now) {
			err = fmt.Errorf("%w: %w", err, &OverdueError{
				TopicPartition: r.TopicPartition, Offset: r.Offset, Age: r.Age, Limit: t.shared.settings.MaxProcessingTime,
			})
		}
		return err
	}
}

// WaitJoined waits until the member is ASSIGNED for the first time. It returns early with the typed error when no broker
// can be reached, or the group refuses us; the tree goes on trying meanwhile, and WaitJoined may be called again.
func (t *Tree) WaitJoined(ctx context.Context) error {
	if t.InCallback(ctx) && !t.shared.board.hasJoined() {
		return &HeldError{Operation: "wait for joining", Asker: "a callback", Reason: ErrSelfWait}
	}
	return t.shared.board.waitJoined(ctx, t.done, t.Err)
}

// InHandler reports whether ctx is the context of one of this tree's handlers, or derived from it.
func (t *Tree) InHandler(ctx context.Context) bool {
	d := DeliveryFrom(ctx)
	return d != nil && d.counts == &t.shared.board.acks
}

// StartClose begins to close the tree and returns at once: drain, final commit, leave, all before deadline. Only the first
// call has an effect.
func (t *Tree) StartClose(deadline time.Time) {
	t.closing.Do(func() {
		now := time.Now()
		total := max(deadline.Sub(now), 0)
		// Handlers get the larger part; the rest is for the final commit and LeaveGroup, with a little to spare.
		rest := min(total*2/5, 5*time.Second)
		drainUntil, leave := deadline.Add(-rest), leaveBy(now, deadline)
		t.mu.Lock()
		t.deadline, t.leaveBy = deadline, leave
		if t.hurried {
			drainUntil = now
		}
		t.mu.Unlock()
		t.shared.sys.root.Send(t.rootPID, &shutdown{drainUntil: drainUntil, deadline: leave})
		go t.enforce(deadline)
	})
}

// enforce ends the tree at the deadline, whatever hangs.
func (t *Tree) enforce(deadline time.Time) {
	defer close(t.closed)
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
		t.abandon()
	}
	_ = t.settle(nil)       // the same for every caller, from here on
	t.shared.workers.wait() // every connection is closed by now, which ends its worker
	t.shared.sys.shutdown()
}

// abandon stops everything without waiting for anybody.
func (t *Tree) abandon() {
	t.mu.Lock()
	t.abandoned = true
	t.report.uncommitted = t.shared.uncommitted()
	t.mu.Unlock()
	t.shared.sys.stop(t.rootPID)
}

// Close closes the tree and waits for it, no longer than ctx and CloseTimeout allow. It may be called any number of times
// from anywhere; every caller gets the same result. Called from a handler or a callback, with its context, it starts the close
// and returns ErrClosing.
func (t *Tree) Close(ctx context.Context) error {
	deadline := t.closeBy(ctx)
	t.StartClose(deadline)
	return t.awaitClose(ctx, deadline)
}

// closeBy is until when a close of ctx may take.
func (t *Tree) closeBy(ctx context.Context) time.Time {
	deadline := time.Now().Add(t.shared.settings.CloseTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		return d
	}
	return deadline
}

// awaitClose waits for the close that has begun, unless it would wait for its own caller.
func (t *Tree) awaitClose(ctx context.Context, deadline time.Time) error {
	if t.InHandler(ctx) || t.InCallback(ctx) {
		return ErrClosing
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-t.closed:
		return t.settle(nil)
	default:
	}
	select {
	case <-t.closed:
		return t.settle(nil)
	case <-timer.C:
		return t.settle(context.DeadlineExceeded)
	case <-ctx.Done():
		return t.settle(endOf(ctx))
	}
}

// settle returns the result of the close. It is settled for all callers when the close has ended or its time is over; one
// whose own context ends before gets a result of its own.
func (t *Tree) settle(cause error) error {
	t.mu.Lock()
	settled, result := t.settled, t.result
	final := cause == nil || !time.Now().Before(t.deadline)
	t.mu.Unlock()
	if settled {
		return result
	}
	result = t.closeResult(cause)
	if !final {
		return result
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.settled {
		t.settled, t.result = true, result
	}
	return t.result
}

// closeResult says what was not finished.
func (t *Tree) closeResult(cause error) error {
	t.mu.Lock()
	report, err, abandoned, late, hurried := t.report, t.err, t.abandoned, t.late, t.hurried
	t.mu.Unlock()
	if cause == nil && abandoned {
		cause = context.DeadlineExceeded
	}
	if err != nil && late {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	if cause != nil && report.uncommitted == nil {
		report.uncommitted = t.shared.uncommitted()
	}
	result := &CloseError{Cause: cause, Uncommitted: slices.Clone(report.uncommitted), Running: t.shared.gates.running()}
	slices.SortFunc(result.Uncommitted, func(a, b UncommittedPartition) int { return a.TopicPartition.Compare(b.TopicPartition) })
	if cause != nil {
		result.Actors = t.shared.sys.aliveRoles()
	}
	if result.Cause == nil && len(result.Uncommitted) == 0 && len(result.Running) == 0 {
		return err
	}
	if result.Cause == nil {
		result.Cause = err
	}
	switch {
	case result.Cause != nil:
	case hurried: // what was acknowledged after the last commit is left, too
		result.Cause = ErrAbandoned
	case len(result.Running) > 0:
		result.Cause = context.DeadlineExceeded // of the drain
	}
	return result
}

// member is the identity that events carry.
func (s *shared) member() event.Member {
	s.board.mu.Lock()
	defer s.board.mu.Unlock()
	return event.Member{GroupID: s.board.groupID, MemberID: s.board.memberID, Generation: s.board.generation}
}

// uncommitted lists what is finished and not committed, when it is to be committed at all.
func (s *shared) uncommitted() []UncommittedPartition {
	if commit.IsManual(s.settings.Strategy) {
		return nil
	}
	return s.board.uncommitted()
}

// trouble tells of a failure to reach or convince a broker.
func (s *shared) trouble(purpose string, err error, retryIn time.Duration) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	s.observe(event.ConnectFailed{Member: s.member(), Purpose: purpose, Err: err, RetryIn: retryIn})
	s.logger.Warn("broker trouble", zap.String("purpose", purpose), zap.Error(err), zap.Duration("retry_in", retryIn))
}

// stale counts a message whose epoch has ended.
func (s *shared) staleMessage() { s.board.staleMessages.Add(1) }
