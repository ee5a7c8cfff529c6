package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

// joinLimit is how long the members may take to join.
const joinLimit = 30 * time.Second

// member is one consumer of the group and what it has done.
type member struct {
	*api.Consumer
	handled  atomic.Int64
	restarts atomic.Int64
	// partitions and generations are from before the close.
	partitions  int
	generations uint64
}

// group is the consumers of this process.
type group struct{ members []*member }

// spawnGroup starts the consumers. Each would do the same alone in a process of its own.
func spawnGroup(ctx context.Context, s settings, ledger *ledger) (*group, error) {
	g := new(group)
	for i := range s.members {
		m := new(member)
		var err error
		m.Consumer, err = api.Spawn(ctx, api.Config{
			Brokers:           s.brokers,
			GroupID:           s.group,
			ClientID:          fmt.Sprintf("quickstart-%d", i+1),
			HeartbeatInterval: time.Second, // members that join are noticed soon
			Restart: supervisor.Policy{
				// The failures here are made to pass at once. A service keeps the default, which waits longer each time.
				MaxRestarts: 10_000,
				Backoff:     supervisor.Backoff{Initial: 10 * time.Millisecond},
			},
		},
			api.Handle(s.topic, ledger.book, api.Use(m.count)),
			api.WithObserver(func(e event.Event) { m.observe(e, ledger) }),
		)
		if err != nil {
			return nil, errors.Join(err, g.close())
		}
		g.members = append(g.members, m)
	}
	return g, nil
}

// count is middleware: it counts what the handler has done without an error.
func (m *member) count(next api.Handler) api.Handler {
	return func(ctx context.Context, record *kafka.Record) error {
		err := next(ctx, record)
		if err == nil {
			m.handled.Add(1)
		}
		return err
	}
}

// observe counts restarts and shows what an operator would want to see.
func (m *member) observe(e event.Event, ledger *ledger) {
	switch e := e.(type) {
	case event.HandlerRestarted:
		m.restarts.Add(1)
		ledger.restarted()
	case event.ConnectFailed:
		fmt.Fprintf(os.Stderr, "%s: %v (again in %v)\n", e.Purpose, e.Err, e.RetryIn)
	case event.PartitionPaused:
		fmt.Fprintf(os.Stderr, "%s is paused at offset %d: %v\n", e.TopicPartition, e.Offset, e.Err)
	default:
	}
}

// waitJoined waits until every member has its part of the topic.
func (g *group) waitJoined(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	for _, m := range g.members {
		for {
			err := m.WaitJoined(ctx)
			if err == nil {
				break
			}
			// Brokers that cannot be reached now may be in a moment; the consumer goes on trying.
			select {
			case <-ctx.Done():
				return err
			case <-m.Done():
				return errors.Join(err, m.Err())
			case <-time.After(500 * time.Millisecond):
			}
		}
	}
	return nil
}

// ended gets an error when a member has ended by itself.
func (g *group) ended() <-chan error {
	ended := make(chan error, len(g.members))
	for _, m := range g.members {
		go func() {
			<-m.Done()
			ended <- errors.Join(errors.New("it was not asked to"), m.Err())
		}()
	}
	return ended
}

// rebalances is how many generations the group has gone through, as its oldest member has seen it.
func (g *group) rebalances() (generations uint64) {
	for _, m := range g.members {
		stats := m.Stats()
		m.partitions, m.generations = len(stats.Partitions), stats.Rebalances
		generations = max(generations, m.generations)
	}
	return generations
}

// close drains, commits and leaves, one member after the other. Of a member that could not finish, the error says what.
func (g *group) close() error {
	var errs []error
	for _, m := range g.members {
		errs = append(errs, m.Close(context.Background()))
	}
	return errors.Join(errs...)
}
