package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// nested: semantic 1.
func nested(ctx context.Context, c *live) (string, error) {
	return c.in(ctx, "OnRevoking", c.rejoin, func(ctx context.Context, token *api.Token, _ []kafka.TopicPartition) (string, error) {
		var outside error
		var kept *api.Token
		err := token.Within(ctx, "audit", func(ctx context.Context, inner *api.Token) error {
			kept = inner
			if _, outside = refusal(token.Commit(ctx), actors.ErrTokenHeld); outside != nil {
				return fmt.Errorf("the token below, while a callback runs inside of it: %w", outside)
			}
			outside = token.Commit(ctx) // for its text
			return inner.Within(ctx, "audit of the audit", func(ctx context.Context, innermost *api.Token) error {
				return errors.Join(innermost.Commit(ctx), returnedBeforeInner(inner))
			})
		})
		if err != nil {
			return "", err
		}
		if _, err := refusal(kept.Commit(ctx), actors.ErrTokenDead); err != nil {
			return "", fmt.Errorf("the inner token, after its callback: %w", err)
		}
		if err := token.Commit(ctx); err != nil {
			return "", fmt.Errorf("the token below, after the callback inside of it: %w", err)
		}
		return fmt.Sprintf("OnRevoking committed three levels deep, then below; meanwhile below: %q", outside), nil
	})
}

// returnedBeforeInner tries to return a token that has another on top.
func returnedBeforeInner(token *api.Token) error {
	if _, err := refusal(token.Return(), actors.ErrTokenInside); err != nil {
		return fmt.Errorf("a return before that of the token on top: %w", err)
	}
	return nil
}

// refused: semantic 2.
func refused(ctx context.Context, c *live) (string, error) {
	token, err := c.Token(ctx, "repair", c.partition(0))
	if err != nil {
		return "", err
	}
	asked := c.Pause(ctx, c.partition(0)) // if this waited for the token it would end with ctx, and so with another error
	held, err := refusal(asked, actors.ErrTokenHeld)
	if err != nil {
		return "", err
	}
	if held.Holder != token.Holder() || held.Operation != "pause" || held.Asker == "" || held.Since.IsZero() || held.TopicPartition != c.partition(0) {
		return "", fmt.Errorf("the refusal does not say who has what since when: %+v", held)
	}
	if _, err := c.TryToken(ctx, "audit"); !errors.Is(err, actors.ErrTokenHeld) {
		return "", fmt.Errorf("a token over everything, while a part is out: %w", errors.Join(err, errNotRefused))
	}
	// What nobody holds can be changed, and commits are never held up, of the partition either.
	if err := errors.Join(c.Pause(ctx, c.partition(1)), c.Resume(ctx, c.partition(1))); err != nil {
		return "", err
	}
	before := c.committed()[c.partition(0)]
	if err := c.until(ctx, "the held partition commits", func() bool { return c.committed()[c.partition(0)] > before }); err != nil {
		return "", err
	}
	if err := token.Return(); err != nil {
		return "", err
	}
	if err := errors.Join(c.Pause(ctx, c.partition(0)), c.Resume(ctx, c.partition(0))); err != nil {
		return "", fmt.Errorf("after the return: %w", err)
	}
	return fmt.Sprintf("%q; commits of %s went on", asked, c.partition(0)), nil
}

var errNotRefused = errors.New("it has to be refused")

// handed: semantic 3.
func handed(ctx context.Context, c *live) (string, error) {
	token, err := c.Token(ctx, "repair", c.partition(0))
	if err != nil {
		return "", err
	}
	worked := make(chan error)
	err = token.Hand(ctx, "worker", func(ctx context.Context, token *api.Token) {
		worked <- errors.Join(token.Pause(ctx), token.Resume(ctx))
	})
	if err != nil {
		return "", err
	}
	giver := token.Pause(ctx) // the worker waits until this has returned
	if _, err := refusal(giver, actors.ErrTokenHanded); err != nil {
		return "", fmt.Errorf("the giver: %w", err)
	}
	if err := <-worked; err != nil {
		return "", fmt.Errorf("the worker: %w", err)
	}
	if err := c.handToActor(ctx, true); err != nil {
		return "", fmt.Errorf("to an actor: %w", err)
	}
	if err := c.handToActor(ctx, false); err != nil {
		return "", fmt.Errorf("to an actor that ends before it accepts: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.events {
		if e, ok := e.(event.TokenRevoked); ok {
			return "", fmt.Errorf("a token was revoked that was returned: %+v", e)
		}
	}
	return fmt.Sprintf("a goroutine and an actor used it, an actor that ended gave it back; the giver: %q", giver), nil
}

// handToActor hands the token to an actor, which uses and returns it, or ends at once. Then somebody else gets it.
func (c *live) handToActor(ctx context.Context, accepts bool) error {
	token, err := c.Token(ctx, "repair", c.partition(0))
	if err != nil {
		return err
	}
	used := make(chan error, 1)
	receiver := c.system.Root.Spawn(actor.PropsFromFunc(func(a actor.Context) { //nolint:forbidigo // an actor of the user's own
		switch m := a.Message().(type) {
		case *actors.TokenHanded:
			if !accepts {
				used <- nil
				a.Stop(a.Self())
				return
			}
			used <- errors.Join(m.Token.Accept(), m.Token.Return())
		default:
		}
	}))
	defer c.system.Root.Stop(receiver)
	if err := token.HandTo(receiver); err != nil {
		return err
	}
	if err := token.Pause(ctx); !errors.Is(err, actors.ErrTokenHanded) && !errors.Is(err, actors.ErrTokenDead) { // dead: returned already
		return fmt.Errorf("the giver: got %v, want a refusal", err)
	}
	select {
	case err = <-used:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	next, err := c.Token(ctx, "after the actor", c.partition(0))
	if err != nil {
		return err
	}
	return next.Return()
}

// users is how many want to use one token at the same time.
const users = 64

// oneInside: semantic 4.
func oneInside(ctx context.Context, c *live) (string, error) {
	token, err := c.Token(ctx, "shared by mistake", c.partition(0))
	if err != nil {
		return "", err
	}
	var inside, most, entered, turnedAway, wrong atomic.Int64
	var all sync.WaitGroup
	for range users {
		all.Go(func() {
			for range 100 {
				err := token.Within(ctx, "use", func(context.Context, *api.Token) error {
					if now := inside.Add(1); now > most.Load() {
						most.Store(now)
					}
					entered.Add(1)
					inside.Add(-1)
					return nil
				})
				switch {
				case err == nil:
				case errors.Is(err, actors.ErrTokenHeld):
					turnedAway.Add(1)
				default:
					wrong.Add(1)
				}
			}
		})
	}
	all.Wait()
	if most.Load() != 1 || wrong.Load() > 0 || entered.Load()+turnedAway.Load() != users*100 {
		return "", fmt.Errorf("up to %d were inside together, %d entered, %d were refused, %d failed otherwise", most.Load(), entered.Load(), turnedAway.Load(), wrong.Load())
	}
	second := errNotRefused
	err = token.Within(ctx, "use", func(ctx context.Context, _ *api.Token) error {
		second = token.Pause(ctx)
		_, err := refusal(second, actors.ErrTokenHeld)
		return err
	})
	if err = errors.Join(err, token.Return()); err != nil {
		return "", err
	}
	return fmt.Sprintf("of %d goroutines at most 1 was inside, %d times; the second: %q", users, entered.Load(), second), nil
}
