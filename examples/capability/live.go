package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/examples/internal/cluster"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// live is a consumer with records that flow, whose callbacks do what a check has put in their place.
type live struct {
	*api.Consumer
	settings
	tickets *cluster.Cluster
	// system is where actors live that tokens are handed to.
	system  *actor.ActorSystem
	handled atomic.Int64
	// first counts how often the first record of partition 0 was handled.
	first atomic.Int64
	// stop ends the producer, which closes produced.
	stop     context.CancelFunc
	produced chan struct{}

	mu sync.Mutex
	// scripts has what the callbacks do, by their name.
	scripts map[string]api.PartitionsFunc
	events  []event.Event
}

func newLive(ctx context.Context, s settings, tickets *cluster.Cluster) (*live, error) {
	c := &live{
		settings: s, tickets: tickets, system: quietSystem(), produced: make(chan struct{}), scripts: make(map[string]api.PartitionsFunc),
	}
	producing, stop := context.WithCancel(ctx)
	c.stop = stop
	go c.produce(producing)
	var err error
	c.Consumer, err = api.Spawn(ctx, api.Config{
		Brokers: tickets.Brokers(), GroupID: s.group, ClientID: "capability",
		// An eager assignor: each rebalance takes everything away and gives it back, with all callbacks.
		Assignors:         []rebalance.Assignor{rebalance.Range()},
		HeartbeatInterval: 200 * time.Millisecond,
	},
		api.Handle(s.topic, c.handle),
		api.WithActorSystem(c.system),
		api.WithObserver(c.observe),
		api.WithCallbacks(api.Callbacks{
			OnAssigning: c.callback("OnAssigning"), OnAssigned: c.callback("OnAssigned"),
			OnRevoking: c.callback("OnRevoking"), OnRevoked: c.callback("OnRevoked"), OnLost: c.callback("OnLost"),
		}),
	)
	if err != nil {
		stop()
		<-c.produced
		return nil, err
	}
	return c, nil
}

// quietSystem says nothing of messages that come to an actor after its end: that is a part of what is shown.
func quietSystem() *actor.ActorSystem {
	return actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }))
}

func (c *live) handle(_ context.Context, r *kafka.Record) error {
	c.handled.Add(1)
	if r.Partition == 0 && r.Offset == c.tickets.Before()[0] {
		c.first.Add(1)
	}
	return nil
}

// produce writes a little all the time.
func (c *live) produce(ctx context.Context) {
	defer close(c.produced)
	for ctx.Err() == nil {
		_, err := c.tickets.Produce(ctx, 4*c.partitions, func(number int) (string, []byte) { return fmt.Sprint("ticket-", number), []byte("open") })
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "capability: produce:", err)
			return
		}
		pass(ctx)
	}
}

func (c *live) close() error {
	c.stop()
	<-c.produced
	err := c.Close(context.Background())
	c.system.Shutdown()
	return err
}

func (c *live) observe(e event.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
}

// callback is one of the consumer's: it does once what a check has put in its place.
func (c *live) callback(name string) api.PartitionsFunc {
	return func(ctx context.Context, token *api.Token, partitions []kafka.TopicPartition) error {
		c.mu.Lock()
		script := c.scripts[name]
		delete(c.scripts, name)
		c.mu.Unlock()
		if script == nil {
			return nil
		}
		return script(ctx, token, partitions)
	}
}

// in has a callback run f, and returns its proof when f has ended. trigger is what makes the consumer call it.
func (c *live) in(
	ctx context.Context, name string, trigger func(ctx context.Context) error,
	f func(ctx context.Context, token *api.Token, partitions []kafka.TopicPartition) (string, error),
) (proof string, err error) {
	done := make(chan struct{})
	c.mu.Lock()
	c.scripts[name] = func(ctx context.Context, token *api.Token, partitions []kafka.TopicPartition) error {
		defer close(done)
		proof, err = f(ctx, token, partitions)
		return nil // what a check found out is no failure of the callback
	}
	c.mu.Unlock()
	if err := trigger(ctx); err != nil {
		return "", err
	}
	select {
	case <-done:
		return proof, err
	case <-ctx.Done():
		return "", fmt.Errorf("%s was not called: %w", name, context.Cause(ctx))
	}
}

// rejoin makes the group rebalance.
func (c *live) rejoin(ctx context.Context) error {
	return c.Rejoin(ctx, "to show what callbacks may do")
}

// evict throws the consumer out of the group, as its coordinator does with a member that it has not heard of for too long.
func (c *live) evict(context.Context) error {
	return c.tickets.RemoveMember(c.group, c.Stats().MemberID)
}

// partition names one of the consumer's.
func (c *live) partition(number int32) kafka.TopicPartition {
	return kafka.TopicPartition{Topic: c.topic, Partition: number}
}

// try runs a check within its limit, before and after which the consumer has all its partitions and handles records.
func (c *live) try(ctx context.Context, check check) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	if err := c.flows(ctx); err != nil {
		return "", fmt.Errorf("before it: %w", err)
	}
	c.mu.Lock()
	c.events = nil
	c.mu.Unlock()
	proof, err := check.run(ctx, c)
	if err != nil {
		return "", err
	}
	if err := c.flows(ctx); err != nil {
		return "", fmt.Errorf("after it: %w", err)
	}
	return proof, nil
}

// flows waits until every partition is owned, nobody has a token, and commits have gone on in each of them.
func (c *live) flows(ctx context.Context) error {
	rested := func() bool {
		s := c.Stats()
		return len(s.Partitions) == c.partitions && s.State == "ASSIGNED" && len(s.Tokens) == 0
	}
	if err := c.until(ctx, "every partition is owned and no token is out", rested); err != nil {
		return err
	}
	before := c.committed()
	return c.until(ctx, "commits go on in every partition", func() bool {
		now := c.committed()
		for tp, offset := range before {
			if now[tp] <= offset {
				return false
			}
		}
		return true
	})
}

// committed has the offsets that the coordinator has confirmed.
func (c *live) committed() map[kafka.TopicPartition]int64 {
	offsets := make(map[kafka.TopicPartition]int64)
	for _, p := range c.Stats().Partitions {
		offsets[p.TopicPartition] = p.Committed
	}
	return offsets
}

// until waits for something to become true.
func (c *live) until(ctx context.Context, what string, holds func() bool) error {
	for !holds() {
		if ctx.Err() != nil {
			return fmt.Errorf("it never came that %s: %w ", what, context.Cause(ctx))
		}
		pass(ctx)
	}
	return nil
}

// pass lets a moment pass.
func pass(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Millisecond):
	}
}

// told waits for an event of type E that fits.
func told[E event.Event](ctx context.Context, c *live, fits func(E) bool) (found E, err error) {
	err = c.until(ctx, fmt.Sprintf("%T was told", found), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, e := range c.events {
			if e, ok := e.(E); ok && fits(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found, err
}

// refusal checks that err is a *actors.HeldError for that reason, and returns it.
func refusal(err, reason error) (*actors.HeldError, error) {
	held, ok := errors.AsType[*actors.HeldError](err)
	if !ok || !errors.Is(held.Reason, reason) {
		return nil, fmt.Errorf("got %v, want a refusal: %w", err, reason)
	}
	return held, nil
}
