package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// holder is a handler that keeps the record at an offset, past the return of its call, until it has looked at it once more.
type holder struct {
	offset int64
	look   chan struct{}
	seen   chan string
}

func (h *holder) has(r *kafka.Record, done func() error) {
	if r.Offset != h.offset {
		_ = done()
		return
	}
	go func() {
		<-h.look
		h.seen <- string(r.Value)
		_ = done()
	}()
}

func (h *holder) async(_ context.Context, d *actors.RecordDelivery) { h.has(d.Record(), d.Ack) }

func (h *holder) Receive(ctx actor.Context) {
	if d, ok := ctx.Message().(*actors.Deliver); ok {
		for i := range d.Records() {
			r := &d.Records()[i]
			h.has(r, func() error { return d.Ack(r.Offset) })
		}
	}
}

// Memory that is recycled is the handler's until the handler has acknowledged its record. That somebody else has the record
// skipped meanwhile does not write into what the handler is reading.
func TestARecordThatIsSkippedInAHandlersHandsKeepsItsBytes(t *testing.T) {
	for name, order := range map[string]func() api.HandlerOption{
		"PartitionOrder": api.PartitionOrder, "KeyOrder": func() api.HandlerOption { return api.KeyOrder(2) },
		"Unordered": func() api.HandlerOption { return api.Unordered(2) },
	} {
		for kind, register := range map[string]func(h *holder, order api.HandlerOption) api.Registration{
			"HandleAsync": func(h *holder, order api.HandlerOption) api.Registration {
				return api.HandleAsync("orders", h.async, order, api.RecycleRecords())
			},
			"HandleActor": func(h *holder, order api.HandlerOption) api.Registration {
				return api.HandleActor("orders", func(kafka.TopicPartition) actor.Actor { return h }, order, api.RecycleRecords())
			},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				story(t, func(t *testing.T, b *embeddedBroker) {
					const offset = 4
					h := &holder{offset: offset, look: make(chan struct{}), seen: make(chan string, 10)}
					b.CreateTopic(t, "orders", 1)
					var records []kafka.Record
					for range 10 {
						records = append(records, kafka.Record{Value: []byte(strings.Repeat("v", 100))})
					}
					b.Produce(t, "orders", records...)
					m := spawn(t, config(b, "billing"), api.WithDialer(b.Dial), api.WithPoison(), register(h, order()))
					m.joined(t)
					pause(3 * time.Second)
					require.NoError(t, m.Skip(t.Context(), at("orders", 0), offset, "a test"))
					eventually(t, time.Minute, "the others are done", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == 10 })
					b.Produce(t, "orders", records...)
					eventually(t, time.Minute, "more are done", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == 20 })
					close(h.look)
					require.Equal(t, strings.Repeat("v", 100), <-h.seen)
					m.mustClose(t)
				})
			})
		}
	}
}
