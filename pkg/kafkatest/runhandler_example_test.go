package kafkatest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

func ExampleRunHandler() {
	handler := func(_ context.Context, record *kafka.Record) error {
		if len(record.Value) == 0 {
			return errors.New("an order without content")
		}
		return nil
	}
	run, err := kafkatest.RunHandler(context.Background(), api.Handle("orders", handler), []kafka.Record{
		{Value: []byte("book")},
		{Value: nil},
		{Value: []byte("pen")},
		{Partition: 1, Value: []byte("lamp")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range run.Records {
		fmt.Println(r.TopicPartition, r.Offset, r.Outcome)
	}
	fmt.Println(run.Err())
	// Output:
	// orders-0 0 acked
	// orders-0 1 failed
	// orders-0 2 not delivered
	// orders-1 0 acked
	// kafkatest: 2 of 4 records are not acknowledged; the first is offset 1 of orders-0, failed: an order without content
}
