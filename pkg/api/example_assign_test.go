package api_test

import (
	"context"
	"fmt"
	"time"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func ExampleAssign() {
	broker := startBroker()
	defer broker.Close()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()

	handler := func(_ context.Context, record *kafka.Record) error {
		fmt.Println(record.Offset, string(record.Value))
		if record.Offset == 2 {
			stop()
		}
		return nil
	}
	err := api.Run(ctx, api.Config{Brokers: broker.Addrs()}, // no group
		api.Handle("orders", handler),
		api.Assign(api.Assignment{Partition: kafka.TopicPartition{Topic: "orders"}, Start: rebalance.StartAtOffset(1)}))
	fmt.Println(err)
	// Output:
	// 1 lamp
	// 2 pen
	// <nil>
}
