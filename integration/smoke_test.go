package integration

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

func TestSmoke(t *testing.T) {
	b := kafkatest.NewBroker(t, kafkatest.Topic("orders", 3))
	var recs []kafka.Record
	for i := range 300 {
		recs = append(recs, kafka.Record{Partition: int32(i % 3), Value: fmt.Appendf(nil, "v%d", i)})
	}
	if err := b.Produce(t.Context(), "orders", recs...); err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	c, err := api.Spawn(context.Background(), api.Config{Brokers: b.Addrs(), GroupID: "g"},
		api.Handle("orders", func(ctx context.Context, r *kafka.Record) error { n.Add(1); return nil }),
		api.WithLogger(zaptest.NewLogger(t, zaptest.Level(zap.DebugLevel))),
		api.WithObserver(func(e event.Event) { t.Logf("%T %+v", e, e) }))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for n.Load() < 300 && time.Since(start) < 10*time.Second {
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("got %d in %v; stats %+v", n.Load(), time.Since(start), c.Stats())
	if err := c.Close(context.Background()); err != nil {
		t.Error(err)
	}
	t.Log(b.Committed("g"))
}
