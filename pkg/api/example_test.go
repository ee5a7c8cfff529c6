package api_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// startBroker gives the examples something to read: an embedded broker with three orders.
func startBroker() *kafkatest.Broker {
	broker, err := kafkatest.StartBroker(kafkatest.Topic("orders", 1))
	if err != nil {
		panic(err)
	}
	err = broker.Produce(context.Background(), "orders",
		kafka.Record{Key: []byte("ann"), Value: []byte("book")},
		kafka.Record{Key: []byte("bob"), Value: []byte("lamp")},
		kafka.Record{Key: []byte("ann"), Value: []byte("pen")})
	if err != nil {
		panic(err)
	}
	return broker
}

func ExampleSpawn() {
	broker := startBroker()
	defer broker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	handled := make(chan struct{}, 3)
	consumer, err := api.Spawn(ctx, api.Config{
		Brokers: broker.Addrs(),
		GroupID: "billing",
	},
		api.Handle("orders", func(_ context.Context, record *kafka.Record) error {
			fmt.Printf("%s bought a %s\n", record.Key, record.Value)
			handled <- struct{}{}
			return nil
		}),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		<-handled
	}
	if err := consumer.Close(ctx); err != nil {
		fmt.Println(err)
	}
	committed, _ := broker.Committed("billing")
	fmt.Println(committed)
	// Output:
	// ann bought a book
	// bob bought a lamp
	// ann bought a pen
	// map[orders-0:3]
}

func ExampleRun() {
	broker := startBroker()
	defer broker.Close()
	// A program would end it by a signal: signal.NotifyContext(context.Background(), os.Interrupt).
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()

	seen := 0
	err := api.Run(ctx, api.Config{Brokers: broker.Addrs(), GroupID: "counting"},
		api.HandleBatch("orders", func(_ context.Context, records []kafka.Record) error {
			if seen += len(records); seen == 3 {
				stop()
			}
			return nil
		}, api.MaxRecords(100)))
	fmt.Println(seen, err)
	// Output: 3 <nil>
}

// printer is an actor that handles the records of one partition.
type printer struct{ done chan<- struct{} }

func (p printer) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actors.Assigned:
		fmt.Println("assigned:", m.TopicPartition)
	case *actors.Deliver:
		for _, record := range m.Records() {
			fmt.Printf("%d: %s\n", record.Offset, record.Value)
			_ = m.Ack(record.Offset) // in any order, from any goroutine
			p.done <- struct{}{}
		}
	case *actors.Revoking:
		fmt.Println("revoking:", m.TopicPartition)
	}
}

func ExampleHandleActor() {
	broker := startBroker()
	defer broker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	done := make(chan struct{}, 3)
	consumer, err := api.Spawn(ctx, api.Config{Brokers: broker.Addrs(), GroupID: "printing"},
		api.HandleActor("orders", func(kafka.TopicPartition) actor.Actor { return printer{done} }))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		<-done
	}
	if err := consumer.Close(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// assigned: orders-0
	// 0: book
	// 1: lamp
	// 2: pen
	// revoking: orders-0
}

func ExampleUse() {
	broker := startBroker()
	defer broker.Close()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()

	numbering := func(next api.Handler) api.Handler {
		n := 0 // there is one partition, so one call at a time
		return func(ctx context.Context, record *kafka.Record) error {
			n++
			fmt.Print(n, " ")
			return next(ctx, record)
		}
	}
	handler := func(_ context.Context, record *kafka.Record) error {
		fmt.Printf("%s\n", record.Value)
		if record.Offset == 2 {
			stop()
		}
		return nil
	}
	err := api.Run(ctx, api.Config{Brokers: broker.Addrs(), GroupID: "numbering"}, api.Handle("orders", handler, api.Use(numbering)))
	fmt.Println(err)
	// Output:
	// 1 book
	// 2 lamp
	// 3 pen
	// <nil>
}

func ExampleWithObserver() {
	broker := startBroker()
	defer broker.Close()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()

	observe := func(e event.Event) {
		switch e := e.(type) {
		case event.TopicMissing:
			fmt.Println("no such topic:", e.Topic)
		case event.HandlerFailed:
			fmt.Println("attempt", e.Attempt, "failed:", e.Err)
		case event.PartitionPaused:
			fmt.Println("paused:", e.TopicPartition, "at offset", e.Offset)
		case event.Closed:
			fmt.Println("closed:", e.Err)
		default: // the set of events grows
		}
	}
	err := api.Run(ctx, api.Config{Brokers: broker.Addrs(), GroupID: "watched"},
		api.Handle("orders", func(ctx context.Context, record *kafka.Record) error {
			if record.Offset == 1 && actors.DeliveryFrom(ctx).Attempt() == 1 {
				return errors.New("out of lamps")
			}
			if record.Offset == 2 {
				stop()
			}
			return nil
		}),
		api.WithObserver(observe))
	fmt.Println(err)
	// Output:
	// attempt 1 failed: troupe: handler of orders-0 failed at offset 1: out of lamps
	// closed: <nil>
	// <nil>
}

func ExampleConfigError() {
	_, err := api.Spawn(context.Background(), api.Config{
		Brokers:      []string{"localhost"},
		GroupID:      "billing",
		DrainTimeout: 2 * time.Minute,
	}, api.Handle("orders", nil))
	fmt.Println(err)

	var wrong *api.ConfigError
	if errors.As(err, &wrong) {
		fmt.Println("first field:", wrong.Problems[0].Field)
	}
	// Output:
	// troupe: 3 configuration errors:
	// 	Brokers[0] is "localhost": want host:port, the port from 1 to 65535
	// 	DrainTimeout is 2m0s: want at most 52s (RebalanceTimeout - HeartbeatInterval - 5s)
	// 	Handle("orders").handler is nil: want a function
	// first field: Brokers[0]
}

func ExampleMatching() {
	broker := startBroker()
	defer broker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, topic := range []string{"orders-eu", "orders-us", "orders-test"} {
		if err := broker.CreateTopic(topic, 1); err != nil {
			fmt.Println(err)
			return
		}
	}
	changes := make(chan event.SubscriptionChanged, 1)
	consumer, err := api.Spawn(ctx, api.Config{Brokers: broker.Addrs(), GroupID: "billing"},
		api.Handle(api.Matching("orders-.*").Except(".*-test"), func(context.Context, *kafka.Record) error { return nil }),
		api.WithObserver(func(e event.Event) {
			if e, ok := e.(event.SubscriptionChanged); ok {
				changes <- e
			}
		}),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println((<-changes).Topics)
	if err := consumer.Close(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// [orders-eu orders-us]
}
