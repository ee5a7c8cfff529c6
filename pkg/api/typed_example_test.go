package api_test

import (
	"context"
	"fmt"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

func ExampleHandleTyped() {
	type order struct {
		Item  string
		Price int
	}
	charge := func(_ context.Context, o order, record *kafka.Record) error {
		fmt.Printf("%s pays %d for a %s\n", record.Key, o.Price, o.Item)
		return nil
	}
	run, err := kafkatest.RunHandler(context.Background(), api.HandleTyped("orders", api.JSON[order](), charge), []kafka.Record{
		{Key: []byte("ann"), Value: []byte(`{"item": "book", "price": 12}`)},
		{Key: []byte("bob"), Value: []byte(`{"item": "lamp", "price": "a lot"}`)},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(run.Records[1].Err)
	// Output:
	// ann pays 12 for a book
	// troupe: decode orders-0@1: json: string at byte 33 does not fit field Price of type int
}
