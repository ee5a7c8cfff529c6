package api_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/supervisor"
)

// withBroker runs a test in a bubble with an embedded broker that has 100 orders in two partitions.
func withBroker(t *testing.T, test func(t *testing.T, broker *kafkatest.Broker, config api.Config, dial api.Option)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		broker := kafkatest.NewBroker(t, kafkatest.InMemory(), kafkatest.Topic("orders", 2))
		records := make([]kafka.Record, 100)
		for i := range records {
			records[i].Partition = int32(i % 2)
		}
		require.NoError(t, broker.Produce(t.Context(), "orders", records...))
		test(t, broker, api.Config{Brokers: broker.Addrs(), GroupID: "billing"}, api.WithDialer(broker.Dial))
		time.Sleep(time.Minute) // bubble time: lets protoactor's last timers end
	})
}

func committed(t *testing.T, broker *kafkatest.Broker) (sum int64) {
	t.Helper()
	offsets, err := broker.Committed("billing")
	require.NoError(t, err)
	for _, offset := range offsets {
		sum += offset
	}
	return sum
}

func TestRunHandlesCommitsAndEndsWithItsContext(t *testing.T) {
	withBroker(t, func(t *testing.T, broker *kafkatest.Broker, config api.Config, dial api.Option) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		seen := 0
		err := api.Run(ctx, config, dial, api.Handle("orders", func(context.Context, *kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if seen++; seen == 100 {
				cancel()
			}
			return nil
		}))
		require.NoError(t, err)
		require.EqualValues(t, 100, committed(t, broker))
	})
}

func TestTheEndOfSpawnsContextDrainsHandlersWithoutEndingTheirs(t *testing.T) {
	withBroker(t, func(t *testing.T, broker *kafkatest.Broker, config api.Config, dial api.Option) {
		ctx, cancel := context.WithCancel(t.Context())
		consumer, err := api.Spawn(ctx, config, dial, api.HandleBatch("orders", func(handler context.Context, _ []kafka.Record) error {
			cancel()
			select {
			case <-handler.Done():
				return context.Cause(handler)
			case <-time.After(time.Second):
				return nil
			}
		}))
		require.NoError(t, err)
		<-consumer.Done()
		require.NoError(t, consumer.Err())
		require.NoError(t, consumer.Close(t.Context()))
		require.Positive(t, committed(t, broker), "what was being handled was finished and committed")
	})
}

// closer is an actor that closes the consumer when it gets its first delivery.
type closer struct{ close func() }

func (c closer) Receive(ctx actor.Context) {
	if d, ok := ctx.Message().(*actors.Deliver); ok {
		c.close()
		_ = d.AckAll()
	}
}

func TestB19_CloseInsideAHandlerStartsTheCloseAndReturnsErrClosing(t *testing.T) {
	for name, registration := range map[string]func(closeWith func(context.Context)) api.Registration{
		"with the handler's context": func(closeWith func(context.Context)) api.Registration {
			return api.Handle("orders", func(ctx context.Context, _ *kafka.Record) error { closeWith(ctx); return nil })
		},
		"with another context": func(closeWith func(context.Context)) api.Registration {
			return api.Handle("orders", func(context.Context, *kafka.Record) error { closeWith(context.Background()); return nil })
		},
		"in a batch handler's middleware": func(closeWith func(context.Context)) api.Registration {
			return api.HandleBatch("orders", func(context.Context, []kafka.Record) error { return nil },
				api.UseBatch(func(next api.BatchHandler) api.BatchHandler {
					return func(ctx context.Context, records []kafka.Record) error {
						defer closeWith(context.Background())
						return next(ctx, records)
					}
				}))
		},
		"in an actor": func(closeWith func(context.Context)) api.Registration {
			return api.HandleActor("orders", func(kafka.TopicPartition) actor.Actor {
				return closer{close: func() { closeWith(context.Background()) }}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			withBroker(t, func(t *testing.T, broker *kafkatest.Broker, config api.Config, dial api.Option) {
				var consumer *api.Consumer
				spawned := make(chan struct{})
				results := make(chan error, 100)
				consumer, err := api.Spawn(t.Context(), config, dial, registration(func(ctx context.Context) {
					<-spawned
					results <- consumer.Close(ctx)
				}))
				require.NoError(t, err)
				started := time.Now()
				close(spawned)
				<-consumer.Done()
				require.Less(t, time.Since(started), 10*time.Second, "the close waited for the handler that called it")
				require.NoError(t, consumer.Close(t.Context()))
				require.ErrorIs(t, <-results, actors.ErrClosing)
				require.Positive(t, committed(t, broker))
			})
		})
	}
}

func TestB19_AllCallersOfCloseGetTheSameResultAlsoAfterAFailure(t *testing.T) {
	withBroker(t, func(t *testing.T, _ *kafkatest.Broker, config api.Config, dial api.Option) {
		config.Restart = supervisor.Policy{MaxRestarts: supervisor.NoRestarts, OnSpent: supervisor.StopAll}
		cause := errors.New("no")
		consumer, err := api.Spawn(t.Context(), config, dial, api.Handle("orders", func(context.Context, *kafka.Record) error { return cause }))
		require.NoError(t, err)
		<-consumer.Done()
		require.ErrorIs(t, consumer.Err(), cause)
		require.ErrorAs(t, consumer.Err(), new(*actors.HandlerError))
		results := make(chan error)
		for range 10 {
			go func() { results <- consumer.Close(t.Context()) }()
		}
		for range 10 {
			require.ErrorIs(t, <-results, cause)
		}
		require.ErrorIs(t, consumer.Healthy(), actors.ErrNotHealthy)
	})
}

func TestTheObserverIsToldClosedLastAndAStuckOneDelaysNobody(t *testing.T) {
	withBroker(t, func(t *testing.T, _ *kafkatest.Broker, config api.Config, dial api.Option) {
		handle := api.Handle("orders", func(context.Context, *kafka.Record) error { return nil })
		var names []string
		consumer, err := api.Spawn(t.Context(), config, dial, handle, api.WithObserver(func(e event.Event) { names = append(names, e.Name()) }))
		require.NoError(t, err)
		require.NoError(t, consumer.WaitJoined(t.Context()))
		require.NoError(t, consumer.Healthy())
		require.NoError(t, consumer.Close(t.Context()))
		require.Equal(t, "closed", names[len(names)-1])
		require.True(t, slices.Contains(names, "partitions_assigned"))
		require.Zero(t, consumer.Stats().EventsDropped)

		stuck := make(chan struct{})
		consumer, err = api.Spawn(t.Context(), config, dial, handle, api.WithObserver(func(event.Event) { <-stuck }), api.WithObserverBuffer(1))
		require.NoError(t, err)
		require.NoError(t, consumer.WaitJoined(t.Context()))
		started := time.Now()
		require.NoError(t, consumer.Close(t.Context()))
		require.Less(t, time.Since(started), 5*time.Second)
		require.Positive(t, consumer.Stats().EventsDropped)
		close(stuck)
	})
}
