package api_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

func done(context.Context, *kafka.Record) error { return nil }

// fieldsOf returns the fields that a configuration error names, in order.
func fieldsOf(t *testing.T, err error) []string {
	t.Helper()
	var wrong *api.ConfigError
	require.ErrorAs(t, err, &wrong)
	fields := make([]string, len(wrong.Problems))
	for i, p := range wrong.Problems {
		fields[i] = p.Field
		require.NotEmpty(t, p.Want, "%v", p)
	}
	return fields
}

func TestSubscribeNamesEverythingThatIsWrongAtOnceAndChangesNothing(t *testing.T) {
	withBroker(t, func(t *testing.T, _ *kafkatest.Broker, config api.Config, dial api.Option) {
		calls := 0
		counted := func(next api.Handler) api.Handler { calls++; return next }
		consumer, err := api.Spawn(t.Context(), config, dial,
			api.Handle([]string{"orders", "refunds"}, done), api.Handle(api.Matching("p.*").Except("px"), done))
		require.NoError(t, err)
		err = consumer.Subscribe(t.Context(),
			api.Handle("orders", done), api.Handle("..", nil), api.Handle(api.Matching("p.*").Except("px"), done),
			api.Handle("new", done, api.MaxRecords(0), api.KeyOrder(0), api.Use(nil, counted)), api.Registration{}, nil,
			api.WithLogger(nil), api.WithCallbacks(api.Callbacks{}), api.Assign(), api.AssignTopic("a", rebalance.StartBy(rebalance.ResetEarliest)),
			api.WithObserver(nil))
		require.Equal(t, []string{
			`Handle("orders").topics`, `Handle("..").handler`, `Handle("..").topics`, `Handle(Matching("p.*").Except("px")).topics`,
			`Handle("new").MaxRecords`, `Handle("new").KeyOrder`, `Handle("new").Use[0]`, `Registration{}`,
			"parts[5]", "WithLogger", "WithCallbacks", "Assign", "AssignTopic", "WithObserver",
		}, fieldsOf(t, err))
		require.ErrorContains(t, err, `each topic once, Handle("orders", "refunds") has it already`)
		require.Equal(t, 1, calls, "middleware is called once")
		require.Equal(t, []string{"registrations"}, fieldsOf(t, consumer.Subscribe(t.Context())))

		err = consumer.Unsubscribe(t.Context(), "orders", "pa", "p.*", "never")
		require.Equal(t, []string{"Unsubscribe", "Unsubscribe", "Unsubscribe"}, fieldsOf(t, err))
		require.ErrorContains(t, err, `"Matching(\"p.*\").Except(\"px\")", "orders", "refunds"`)
		require.Equal(t, []string{"Concurrency"}, fieldsOf(t, consumer.SetConcurrency(t.Context(), -1)))
		require.NoError(t, consumer.WaitJoined(t.Context()))
		require.Equal(t, []string{"orders", "refunds"}, consumer.Stats().Subscription)
		require.NoError(t, consumer.Unsubscribe(t.Context(), "refunds", api.Matching("p.*").Except("px").String()))
		require.NoError(t, consumer.Subscribe(t.Context(), api.Handle("refunds", done), api.Handle(api.Matching("p.*").Except("px"), done)))
		require.Equal(t, []string{"orders", "refunds"}, consumer.Stats().Subscription)
		require.NoError(t, consumer.Unsubscribe(t.Context()))
		require.Empty(t, consumer.Stats().Subscription)
		require.NoError(t, consumer.Unsubscribe(t.Context()), "nothing is left to let go")
		require.ErrorContains(t, consumer.Unsubscribe(t.Context(), "orders"), "there is no handler")
		require.NoError(t, consumer.Close(t.Context()))
		require.ErrorIs(t, consumer.Subscribe(t.Context(), api.Handle("x", done)), actors.ErrClosing)
		require.ErrorIs(t, consumer.Unsubscribe(t.Context()), actors.ErrClosing)
		require.ErrorIs(t, consumer.SetConcurrency(t.Context(), 1), actors.ErrClosing)
	})
}

func TestWithoutAGroupNothingIsSubscribedTo(t *testing.T) {
	withBroker(t, func(t *testing.T, _ *kafkatest.Broker, config api.Config, dial api.Option) {
		config.GroupID = ""
		consumer, err := api.Spawn(t.Context(), config, dial, api.Handle("orders", done),
			api.AssignTopic("orders", rebalance.StartBy(rebalance.ResetEarliest)))
		require.NoError(t, err)
		require.ErrorIs(t, consumer.Subscribe(t.Context(), api.Handle("x", done)), actors.ErrNoGroup)
		require.ErrorIs(t, consumer.Unsubscribe(t.Context(), "orders"), actors.ErrNoGroup)
		require.NoError(t, consumer.SetConcurrency(t.Context(), 1))
		require.Equal(t, 1, consumer.Stats().Concurrency)
		require.NoError(t, consumer.Abandon(t.Context()))
	})
}

func TestAHandlerMayChangeTheSubscriptionItselfAndOneGoroutineIsNeverLate(t *testing.T) {
	withBroker(t, func(t *testing.T, broker *kafkatest.Broker, config api.Config, dial api.Option) {
		require.NoError(t, broker.CreateTopic("more", 1))
		require.NoError(t, broker.Produce(t.Context(), "more", make([]kafka.Record, 10)...))
		spawned := make(chan struct{})
		var consumer *api.Consumer
		var once sync.Once
		results := make(chan error, 8)
		more := make(chan int64, 10)
		consumer, err := api.Spawn(t.Context(), config, dial, api.Handle("orders", func(ctx context.Context, _ *kafka.Record) error {
			<-spawned
			once.Do(func() {
				results <- consumer.Subscribe(ctx, api.Handle("more", func(_ context.Context, r *kafka.Record) error {
					more <- r.Offset
					return nil
				}))
				results <- consumer.Unsubscribe(ctx, "orders")
			})
			return nil
		}))
		require.NoError(t, err)
		close(spawned)
		require.NoError(t, <-results)
		require.NoError(t, <-results)
		for i := range int64(10) {
			require.Equal(t, i, <-more)
		}
		// Of many at once, one has the topic and all others are told so.
		answers := make(chan error)
		for range 8 {
			go func() { answers <- consumer.Subscribe(t.Context(), api.Handle("orders", done)) }()
		}
		succeeded := 0
		for range 8 {
			if err := <-answers; err == nil {
				succeeded++
			} else {
				require.Equal(t, []string{`Handle("orders").topics`}, fieldsOf(t, err))
			}
		}
		require.Equal(t, 1, succeeded)
		require.NoError(t, consumer.Close(t.Context()))
	})
}

func TestCloseAndAbandonAreSafeInsideOfEveryKindOfUserCodeWithAnyContext(t *testing.T) {
	for _, end := range map[string]func(*api.Consumer, context.Context) error{"Close": (*api.Consumer).Close, "Abandon": (*api.Consumer).Abandon} {
		for name, parts := range map[string]func(call func()) []api.Part{
			"handler in key order": func(call func()) []api.Part {
				return []api.Part{api.Handle("orders", func(context.Context, *kafka.Record) error { call(); return nil }, api.KeyOrder(2))}
			},
			"asynchronous handler": func(call func()) []api.Part {
				return []api.Part{api.HandleAsync("orders", func(_ context.Context, d *actors.RecordDelivery) { call(); _ = d.Ack() })}
			},
			"callback": func(call func()) []api.Part {
				return []api.Part{api.Handle("orders", done), api.WithCallbacks(api.Callbacks{
					OnAssigned: func(context.Context, *api.Token, []kafka.TopicPartition) error { call(); return nil },
				})}
			},
		} {
			t.Run(name, func(t *testing.T) {
				withBroker(t, func(t *testing.T, _ *kafkatest.Broker, config api.Config, dial api.Option) {
					var consumer *api.Consumer
					spawned, results := make(chan struct{}), make(chan error, 200)
					consumer, err := api.Spawn(t.Context(), config, append(parts(func() {
						<-spawned
						results <- end(consumer, context.Background())
					}), dial)...)
					require.NoError(t, err)
					started := time.Now()
					close(spawned)
					<-consumer.Done()
					require.Less(t, time.Since(started), 5*time.Second, "it waited for itself")
					require.ErrorIs(t, <-results, actors.ErrClosing)
				})
			})
		}
	}
}
