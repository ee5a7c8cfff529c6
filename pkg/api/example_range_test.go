package api_test

import (
	"context"
	"fmt"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func ExampleReadRange() {
	broker := startBroker()
	defer broker.Close()

	handler := func(_ context.Context, record *kafka.Record) error {
		fmt.Println(record.Offset, string(record.Value))
		return nil
	}
	err := api.Run(context.Background(), api.Config{Brokers: broker.Addrs()}, // no group
		api.Handle("orders", handler),
		api.ReadRange(kafka.TopicPartition{Topic: "orders"}, rebalance.StartPosition{}, rebalance.EndAtOffset(2)))
	fmt.Println(err)
	// Output:
	// 0 book
	// 1 lamp
	// <nil>
}
