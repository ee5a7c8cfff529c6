package api_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// startIdle gives the examples of the token a consumer that has its one partition.
func startIdle(ctx context.Context, broker *kafkatest.Broker, parts ...api.Part) *api.Consumer {
	parts = append(parts, api.Handle("orders", func(context.Context, *kafka.Record) error { return nil }))
	consumer, err := api.Spawn(ctx, api.Config{Brokers: broker.Addrs(), GroupID: "billing"}, parts...)
	if err != nil {
		panic(err)
	}
	if err := consumer.WaitJoined(ctx); err != nil {
		panic(err)
	}
	return consumer
}

// While a token is out, everybody else who wants to change something about its partitions is refused at once.
func ExampleConsumer_Token() {
	broker := startBroker()
	defer broker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	consumer := startIdle(ctx, broker)

	orders := kafka.TopicPartition{Topic: "orders", Partition: 0}
	token, err := consumer.Token(ctx, "repair", orders)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = consumer.Pause(ctx, orders) // without the token
	if held, ok := errors.AsType[*actors.HeldError](err); ok {
		fmt.Println(held.Operation, "of", held.TopicPartition, "refused:", held.Reason)
	}
	fmt.Println("with the token:", token.Pause(ctx), token.Resume(ctx))
	fmt.Println("given back:", token.Return())
	fmt.Println("afterwards:", errors.Is(token.Pause(ctx), actors.ErrTokenDead), consumer.Resume(ctx, orders))
	_ = consumer.Close(ctx)
	// Output:
	// pause of orders-0 refused: the token is with another
	// with the token: <nil> <nil>
	// given back: <nil>
	// afterwards: true <nil>
}

// The token is taken back however the function ends.
func ExampleConsumer_WithToken() {
	broker := startBroker()
	defer broker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	consumer := startIdle(ctx, broker)

	err := consumer.WithToken(ctx, "maintenance", func(ctx context.Context, token *api.Token) error {
		if err := token.Pause(ctx); err != nil {
			return err
		}
		_, err := consumer.Token(ctx, "again") // could only wait for itself
		fmt.Println(errors.Is(err, actors.ErrSelfWait))
		return token.Resume(ctx)
	})
	fmt.Println(err)
	_ = consumer.Close(ctx)
	// Output:
	// true
	// <nil>
}

// A callback has the consumer called from another goroutine, which is what KIP-944 asks for: it hands its token over, and waits.
func ExampleToken_Hand() {
	broker := startBroker()
	defer broker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	flush := func(context.Context) error { fmt.Println("flushed"); return nil }

	consumer := startIdle(ctx, broker, api.WithCallbacks(api.Callbacks{
		OnRevoking: func(ctx context.Context, token *api.Token, _ []kafka.TopicPartition) error {
			done := make(chan error, 1)
			err := token.Hand(ctx, "flush", func(ctx context.Context, token *api.Token) {
				done <- errors.Join(flush(ctx), token.Commit(ctx))
			})
			if err != nil {
				return err
			}
			return <-done // the token ends with the callback, and with it what the goroutine does
		},
	}))
	fmt.Println(consumer.Close(ctx))
	// Output:
	// flushed
	// <nil>
}

// A call inside of a call: the inner token lies on top, and the one below cannot be used meanwhile.
func ExampleToken_Within() {
	broker := startBroker()
	defer broker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	consumer := startIdle(ctx, broker)

	token, err := consumer.Token(ctx, "repair")
	if err != nil {
		fmt.Println(err)
		return
	}
	err = token.Within(ctx, "audit", func(ctx context.Context, inner *api.Token) error {
		fmt.Println("below:", errors.Is(token.Pause(ctx), actors.ErrTokenHeld))
		return inner.Commit(ctx)
	})
	fmt.Println("inside:", err)
	fmt.Println("below again:", token.Commit(ctx), token.Return())
	_ = consumer.Close(ctx)
	// Output:
	// below: true
	// inside: <nil>
	// below again: <nil> <nil>
}
