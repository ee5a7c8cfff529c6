package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// outlived: semantic 5.
func outlived(ctx context.Context, c *live) (string, error) {
	release, used := make(chan struct{}), make(chan error, 1)
	_, err := c.in(ctx, "OnRevoking", c.rejoin, func(ctx context.Context, token *api.Token, _ []kafka.TopicPartition) (string, error) {
		began := make(chan struct{})
		go func() {
			_ = token.Within(ctx, "something long", func(ctx context.Context, inner *api.Token) error {
				close(began)
				<-release
				used <- inner.Commit(ctx)
				return nil
			})
		}()
		<-began
		return "", nil // without waiting for it
	})
	if err != nil {
		return "", err
	}
	failed, err := told(ctx, c, func(e event.CallbackFailed) bool {
		return e.Callback == "OnRevoking" && errors.Is(e.Err, actors.ErrTokenInside)
	})
	close(release)
	if err != nil {
		return "", err
	}
	select {
	case err = <-used:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if _, err := refusal(err, actors.ErrTokenDead); err != nil {
		return "", fmt.Errorf("who was still inside: %w", err)
	}
	return fmt.Sprintf("told: %q; the rebalance went on, and who was inside has nothing", failed.Err), nil
}

// revoked: semantic 6.
func revoked(ctx context.Context, c *live) (string, error) {
	late, err := c.lateHolder(ctx)
	if err != nil {
		return "", fmt.Errorf("a late holder: %w", err)
	}
	if err := c.panickingHolder(ctx); err != nil {
		return "", fmt.Errorf("a holder that panics: %w", err)
	}
	if err := c.panickingReceiver(ctx); err != nil {
		return "", fmt.Errorf("a goroutine that panics: %w", err)
	}
	// The dead one stays dead while another lives.
	fresh, err := c.Token(ctx, "the next", c.partition(0))
	if err != nil {
		return "", err
	}
	dead := late.Pause(ctx)
	if _, err := refusal(dead, actors.ErrTokenDead); err != nil {
		return "", err
	}
	if _, err := refusal(new(api.Token).Pause(ctx), actors.ErrTokenDead); err != nil {
		return "", fmt.Errorf("a token that nobody gave out: %w", err)
	}
	if err := errors.Join(fresh.Pause(ctx), fresh.Resume(ctx), fresh.Return()); err != nil {
		return "", err
	}
	return fmt.Sprintf("late, panic in a function, panic in a goroutine: revoked and told; the late one, while the next lives: %q", dead), nil
}

// lateHolder returns a token that was out for longer than it was asked for.
func (c *live) lateHolder(ctx context.Context) (*api.Token, error) {
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	token, err := c.Token(brief, "dawdle", c.partition(0))
	if err != nil {
		return nil, err
	}
	_, err = told(ctx, c, func(e event.TokenRevoked) bool {
		return e.Operation == "dawdle" && errors.Is(e.Err, actors.ErrTokenOverdue)
	})
	return token, err
}

func (c *live) panickingHolder(ctx context.Context) (err error) {
	err = errNotRefused
	func() {
		defer func() {
			if recover() != nil { // it comes to the caller, as any panic
				err = nil
			}
		}()
		_ = c.WithToken(ctx, "stumble", func(context.Context, *api.Token) error { panic("to show what becomes of the token") }, c.partition(0))
	}()
	if err != nil {
		return errors.New("the panic was swallowed")
	}
	_, err = told(ctx, c, func(e event.TokenRevoked) bool {
		return e.Operation == "stumble" && errors.Is(e.Err, actors.ErrHolderDied)
	})
	return err
}

func (c *live) panickingReceiver(ctx context.Context) error {
	token, err := c.Token(ctx, "delegate", c.partition(0))
	if err != nil {
		return err
	}
	err = token.Hand(ctx, "clumsy worker", func(context.Context, *api.Token) { panic("to show what becomes of the token") })
	if err != nil {
		return err
	}
	_, err = told(ctx, c, func(e event.TokenRevoked) bool {
		return e.Operation == "delegate" && errors.Is(e.Err, actors.ErrHolderDied)
	})
	return err
}

// allowed: semantic 7.
func allowed(ctx context.Context, c *live) (string, error) {
	first := c.first.Load()
	_, err := c.in(ctx, "OnAssigning", c.rejoin, func(ctx context.Context, token *api.Token, _ []kafka.TopicPartition) (string, error) {
		if _, err := refusal(token.Commit(ctx), actors.ErrNotAllowed); err != nil {
			return "", fmt.Errorf("a commit before the start: %w", err)
		}
		return "", token.Seek(ctx, rebalance.StartAtOffset(c.tickets.Before()[0]), c.partition(0))
	})
	if err == nil {
		err = c.until(ctx, "the partition starts where OnAssigning sought", func() bool { return c.first.Load() > first })
	}
	if err != nil {
		return "", fmt.Errorf("ASSIGNING: %w", err)
	}
	if err := c.flows(ctx); err != nil {
		return "", err
	}
	_, err = c.in(ctx, "OnRevoking", c.rejoin, func(ctx context.Context, token *api.Token, _ []kafka.TopicPartition) (string, error) {
		if _, err := refusal(token.Seek(ctx, rebalance.StartAtOffset(0)), actors.ErrNotAllowed); err != nil {
			return "", fmt.Errorf("a seek in what is given up: %w", err)
		}
		return "", token.Commit(ctx)
	})
	if err != nil {
		return "", fmt.Errorf("REVOKING: %w", err)
	}
	if err := c.flows(ctx); err != nil {
		return "", err
	}
	proof, err := c.in(ctx, "OnLost", c.evict, func(ctx context.Context, token *api.Token, _ []kafka.TopicPartition) (string, error) {
		lost := token.Commit(ctx)
		_, err := refusal(lost, actors.ErrNotAllowed)
		return fmt.Sprintf("OnAssigning sought and could not commit, OnRevoking committed and could not seek; OnLost: %q", lost), err
	})
	if err != nil {
		return "", fmt.Errorf("lost: %w", err)
	}
	return proof, nil
}
