// Minimal is the smallest useful consumer; README shows it as it is.
package main

import (
	"context"
	"log"
	"os/signal"
	"syscall"

	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

func main() {
	logger, err := zap.NewProduction()
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err = api.Run(ctx, api.Config{Brokers: []string{"localhost:9092"}, GroupID: "billing"},
		api.Handle("orders", func(_ context.Context, r *kafka.Record) error {
			log.Printf("%s offset %d: %d bytes", r.TopicPartition(), r.Offset, len(r.Value))
			return nil // acknowledged; an error or a panic brings the record back
		}),
		api.WithLogger(logger))
	if err != nil {
		log.Fatal(err)
	}
}
