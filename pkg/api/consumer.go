package api

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/troupego/troupe/actors"
)

// observerGrace is how long Close waits for an observer to take the last events.
const observerGrace = 250 * time.Millisecond

// Consumer is a running member of a consumer group, or one that reads what it is assigned ([Assign]). All methods are safe from
// any goroutine, at any time.
type Consumer struct {
	tree     *actors.Tree
	observer *observer // nil without one
	// closeTimeout is Config.CloseTimeout.
	closeTimeout time.Duration
	// config is the user's, for the defaults of registrations to come.
	config Config
}

// Close drains the handlers, commits what is finished, leaves the group and ends every goroutine. It returns at the
// latest when ctx ends or Config.CloseTimeout has passed, whatever brokers and handlers do. Nil means that every handler has
// returned and that everything finished is committed; a *actors.CloseError names what was not. Nothing of that is lost, nor
// of what handlers left unfinished: it is delivered again, here or elsewhere. When the consumer had failed before, the error is that of Err.
//
// It may be called any number of times; every caller gets the same result. The first call sets the time for draining.
//
// Inside a handler or a callback it cannot wait, since that itself is waited for: it starts the close and returns
// actors.ErrClosing. A call with the handler's context, or made by the handler's own goroutine, is recognized. A handler
// that calls Close in a goroutine of its own, with another context, and waits for that goroutine, waits until the context
// or CloseTimeout ends; the error then names the handler as still running.
func (c *Consumer) Close(ctx context.Context) error {
	if c.calledByItself(ctx) {
		c.tree.StartClose(c.closeDeadline(ctx))
		return actors.ErrClosing
	}
	err := c.tree.Close(ctx)
	c.waitObserver(ctx)
	return err
}

// Abandon is Close without the drain: the contexts of handlers end at once (actors.ErrClosing) and nobody waits for them. What
// is finished is committed, the group is left, and the callbacks are called, all before ctx ends or Config.CloseTimeout has
// passed; OnRevoking's context has ended then. Handlers that have not returned when it does are Running in the
// *actors.CloseError, whose cause is actors.ErrAbandoned; what they worked on is delivered again, here or elsewhere, and
// they hold their goroutines until they return. In the middle of a JoinGroup, which it does not wait for either, the coordinator
// may take no commit of the generation before any more: then what was finished since the last commit comes again, too.
//
// While a Close is draining, Abandon ends the drain, and both return the result. For the rest see [Consumer.Close]: it may be
// called any number of times, and inside a handler or a callback it starts what it does and returns actors.ErrClosing. (Java:
// KafkaConsumer.close with a Duration of zero, but with the final commit.)
func (c *Consumer) Abandon(ctx context.Context) error {
	if c.calledByItself(ctx) {
		c.tree.StartAbandon(c.closeDeadline(ctx))
		return actors.ErrClosing
	}
	err := c.tree.Abandon(ctx)
	c.waitObserver(ctx)
	return err
}

// calledByItself reports whether the caller runs inside a handler or a callback without its context.
func (c *Consumer) calledByItself(ctx context.Context) bool {
	return !c.tree.InHandler(ctx) && !c.tree.InCallback(ctx) && onHandlerStack()
}

func (c *Consumer) closeDeadline(ctx context.Context) time.Time {
	deadline := time.Now().Add(c.closeTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		return d
	}
	return deadline
}

// waitObserver lets the observer take the last events when the tree has ended, but waits only a moment for one that is
// slow or stuck.
func (c *Consumer) waitObserver(ctx context.Context) {
	select {
	case <-c.tree.Done():
	default:
		return
	}
	if c.observer == nil {
		return
	}
	timer := time.NewTimer(observerGrace)
	defer timer.Stop()
	select {
	case <-c.observer.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// handlerFrames are the functions below which user code runs: functions are called by a runner or a pool's worker, callbacks
// by a goroutine of the group's, and of the actors in a tree only a user's own calls this package.
var handlerFrames = []string{
	"/troupe/actors.(*runner).", "/troupe/actors.(*pool).", "/troupe/actors.(*safeActor).", "/troupe/actors.(*group).nextCallback.",
}

// onHandlerStack reports whether the caller runs below a handler, in the handler's own goroutine. Of which consumer the
// handler is cannot be seen; one that closes another consumer is told ErrClosing as well.
func onHandlerStack() bool {
	counters := make([]uintptr, 128)
	for skip := 2; ; skip += len(counters) {
		n := runtime.Callers(skip, counters)
		if n == 0 {
			return false
		}
		frames := runtime.CallersFrames(counters[:n])
		for more := true; more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			for _, name := range handlerFrames {
				if strings.Contains(frame.Function, name) {
					return true
				}
			}
		}
	}
}

// Done is closed when the consumer has ended: by Close, by Spawn's context, because it failed for good, or because all of its
// ranges are read ([ReadRange]).
func (c *Consumer) Done() <-chan struct{} { return c.tree.Done() }

// Err returns why the consumer ended: nil while it runs and after a clean close. A handler that spent its restart budget
// under supervisor.StopAll is a *actors.HandlerError.
func (c *Consumer) Err() error { return c.tree.Err() }

// WaitJoined waits until the member has its first assignment, which may be empty, and returns nil from then on. Beside
// [Assign] that is when the partitions that exist know where they begin.
//
// It returns early, with the typed error, when no broker can be reached or the group refuses the member. Each such reason
// is returned once: a further call waits until the member has joined or there is a newer reason, so that a loop around
// WaitJoined does not spin. Meanwhile the consumer goes on trying: with Config.Backoff, or slowly where somebody has to
// change something first, such as a right or a password.
//
// A refusal that no further try can mend (a session timeout out of the brokers' bounds, an instance id that another
// process uses, an illegal group id, a broker too old) ends the consumer. After
// the end, whatever it was, WaitJoined returns Err, or actors.ErrClosing where that is nil.
//
// A topic that does not exist is no reason: the member joins without it. It is event.TopicMissing, a warning in the log,
// and in Stats().MissingTopics.
func (c *Consumer) WaitJoined(ctx context.Context) error { return c.tree.WaitJoined(ctx) }

// Healthy returns nil while the member is in the group, its heartbeats are answered and no partition is stuck, also through a
// rebalance that does not take longer than Config.SessionTimeout; else an
// error that wraps actors.ErrNotHealthy and says what is wrong. It waits for nothing and suits a liveness probe; for a
// readiness probe see WaitJoined. A stuck partition is one that is paused (its restart budget is spent) or cannot be read.
// Beside [Assign], where there are no heartbeats, it is the brokers' answers about the topics that must come.
//
// A handler that does not return is not seen without Config.MaxProcessingTime, since nobody but you knows how long one may
// take: watch Stats().Partitions[i].HandlerSince, which is when the running delivery began. Nor is a missing topic.
func (c *Consumer) Healthy() error { return c.tree.Healthy() }

// Stats returns a snapshot. It waits for no actor and costs a walk over the partitions.
func (c *Consumer) Stats() actors.Stats {
	stats := c.tree.Stats()
	if c.observer != nil {
		stats.EventsDropped = c.observer.drops()
	}
	return stats
}
