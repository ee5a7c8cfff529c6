package kafkatest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// The package comment shows this test as it is.

func TestAnOrderThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := kafkatest.NewBroker(t, kafkatest.InMemory(), kafkatest.Topic("orders", 1))
		err := broker.Produce(t.Context(), "orders", kafka.Record{Value: []byte("book")})
		if err != nil {
			t.Fatal(err)
		}
		tries := 0
		consumer, err := api.Spawn(t.Context(), api.Config{Brokers: broker.Addrs(), GroupID: "billing"},
			api.Handle("orders", func(context.Context, *kafka.Record) error {
				if tries++; tries < 10 {
					return errors.New("the bank is closed")
				}
				return nil
			}),
			api.WithDialer(broker.Dial)) // what is in memory is reached in no other way
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute) // takes no time: the bubble's clock jumps when all are waiting
		if err := consumer.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // lets the actor system's last timers end, as a bubble wants
		committed, err := broker.Committed("billing")
		if offset := committed[kafka.TopicPartition{Topic: "orders"}]; err != nil || offset != 1 || tries != 10 {
			t.Errorf("offset %d is committed after %d tries (%v), want 1 after 10", offset, tries, err)
		}
	})
}
