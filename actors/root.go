package actors

import (
	"errors"
	"fmt"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/supervisor"
)

// ErrTreeFailed is wrapped by the tree's error when its restart budget is spent.
var ErrTreeFailed = errors.New("troupe: the consumer's actors failed too often")

const groupKey = "group"

// root is the thin top of a tree: it keeps one group actor alive within a restart budget, and knows how the tree ended.
type root struct {
	*supervisor.Supervisor
	shared *shared
	ended  func(error, closeReport)

	err      error
	report   closeReport
	shutdown *shutdown
	// requests are those that the group has not answered yet.
	requests []*request
}

func newRoot(s *shared, ended func(error, closeReport)) *root {
	return &root{Supervisor: supervisor.New(s.settings.Seed), shared: s, ended: ended}
}

// Receive implements actor.Actor.
func (r *root) Receive(ctx actor.Context) {
	outcomes, handled := r.Supervisor.Receive(ctx)
	for _, o := range outcomes {
		r.outcome(ctx, o)
	}
	if handled {
		return
	}
	switch m := ctx.Message().(type) {
	case *actor.Started:
		_, err := r.Start(ctx, supervisor.ChildSpec{
			Key: groupKey, Role: "group", Policy: r.shared.settings.TreeRestart,
			Spawn: func(ctx actor.Context) *actor.PID {
				return r.shared.sys.spawnChild(ctx, "group", func() actor.Actor { return newGroup(r.shared) })
			},
		})
		if err != nil {
			panic(err)
		}
	case *shutdown:
		r.shutdown = m
		if pid := r.Lookup(groupKey); pid != nil {
			ctx.Send(pid, m)
			return
		}
		// The group is between two incarnations: nothing is owned, so there is nothing to drain.
		ctx.Stop(ctx.Self())
	case *request:
		r.called(ctx, m)
	case *tokenLeft, *tokenHanded:
		if pid := r.Lookup(groupKey); pid != nil { // else every token has ended
			ctx.Send(pid, m)
		}
	case *groupEnded:
		r.err, r.report = m.err, m.report
		ctx.Stop(ctx.Self())
	case *actor.Stopped:
		r.ended(r.err, r.report)
	}
}

func (r *root) outcome(ctx actor.Context, o supervisor.Outcome) {
	switch o := o.(type) {
	case supervisor.ChildFailed:
		r.shared.observe(event.ActorRestarted{Member: r.shared.member(), Actor: o.Role, Restarts: o.Decision.Restarts, Err: reasonError(o.Reason)})
		r.shared.logger.Error("group actor failed", zap.Error(reasonError(o.Reason)), zap.Int("restarts", o.Decision.Restarts))
		r.shared.standalone.remember(r.shared.board.owned())
		r.shared.board.ownNothing()
		r.interrupted()
		if r.shutdown != nil {
			r.err = fmt.Errorf("%w: %w", ErrTreeFailed, reasonError(o.Reason))
			ctx.Stop(ctx.Self())
		}
	case supervisor.BudgetSpent:
		r.err = fmt.Errorf("%w: %w", ErrTreeFailed, reasonError(o.Reason))
		ctx.Stop(ctx.Self())
	case supervisor.ChildRespawned:
		r.resume(ctx, o.PID)
	case supervisor.ChildStopped:
	}
}

// reasonError turns what a child failed with into an error.
func reasonError(reason any) error {
	if err, ok := reason.(error); ok {
		return err
	}
	return fmt.Errorf("%v", reason)
}

// panicked implements panicObserver: nobody supervises root, so it keeps its own failure for Err.
func (r *root) panicked(failure *PanicError) {
	r.err = fmt.Errorf("%w: %w", ErrTreeFailed, failure)
}
