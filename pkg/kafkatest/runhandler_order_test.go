package kafkatest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

// handlerKinds register one and the same treatment of a record as each kind of handler. A batch fails by the first record
// that does; what acknowledges later does so in a goroutine of its own, the last record first.
var handlerKinds = map[string]func(treat func(*kafka.Record) error, options ...api.HandlerOption) api.Registration{
	"Handle": func(treat func(*kafka.Record) error, options ...api.HandlerOption) api.Registration {
		handler := func(_ context.Context, record *kafka.Record) error { return treat(record) }
		return api.Handle("orders", handler, as[api.RecordOption](options)...)
	},
	"HandleBatch": func(treat func(*kafka.Record) error, options ...api.HandlerOption) api.Registration {
		handler := func(_ context.Context, records []kafka.Record) error {
			for i := range records {
				if err := treat(&records[i]); err != nil {
					return err
				}
			}
			return nil
		}
		return api.HandleBatch("orders", handler, append(as[api.BatchOption](options), api.MaxWait(time.Millisecond))...)
	},
	"HandleAsync": func(treat func(*kafka.Record) error, options ...api.HandlerOption) api.Registration {
		handler := func(_ context.Context, d *actors.RecordDelivery) {
			err := treat(d.Record())
			go func() {
				if err != nil {
					_ = d.Nack(err)
				} else {
					_ = d.Ack()
				}
			}()
		}
		return api.HandleAsync("orders", handler, as[api.AsyncOption](options)...)
	},
	"HandleActor": func(treat func(*kafka.Record) error, options ...api.HandlerOption) api.Registration {
		receive := func(ctx actor.Context) {
			d, ok := ctx.Message().(*actors.Deliver)
			if !ok {
				return
			}
			verdicts := make(map[int64]error)
			for i := range d.Records() {
				verdicts[d.Records()[i].Offset] = treat(&d.Records()[i])
			}
			go func() {
				for offset, err := range verdicts {
					if err != nil {
						_ = d.Nack(offset, err)
					} else {
						_ = d.Ack(offset)
					}
				}
			}()
		}
		produce := func(kafka.TopicPartition) actor.Actor { return actor.ReceiveFunc(receive) }
		return api.HandleActor("orders", produce, as[api.ActorOption](options)...)
	},
}

// as has options of every kind of handler as those of one kind.
func as[To any](options []api.HandlerOption) (out []To) {
	for _, option := range options {
		out = append(out, option.(To))
	}
	return out
}

// byValue orders records by the first byte of their values; none is the class of records without a key.
func byValue(record *kafka.Record) []byte {
	if len(record.Value) == 0 {
		return nil
	}
	return record.Value[:1]
}

// handlerOrders are the orders, with what tells the order classes of a partition apart.
var handlerOrders = []struct {
	name    string
	options []api.HandlerOption
	class   func(*kafka.Record) string
}{
	{"PartitionOrder", []api.HandlerOption{api.PartitionOrder()}, func(*kafka.Record) string { return "" }},
	{"KeyOrder", []api.HandlerOption{api.KeyOrder(3)}, func(r *kafka.Record) string { return fmt.Sprintf("%t %s", r.Key == nil, r.Key) }},
	{"OrderBy", []api.HandlerOption{api.KeyOrder(3), api.OrderBy(byValue)}, func(r *kafka.Record) string { return string(byValue(r)) }},
	{"Unordered", []api.HandlerOption{api.Unordered(3)}, func(r *kafka.Record) string { return fmt.Sprint(r.Offset) }},
}

func TestRunHandlerRunsEveryKindInEveryOrder(t *testing.T) {
	var records []kafka.Record
	for i := range 600 {
		r := kafka.Record{Partition: int32(i % 2), Value: fmt.Appendf(nil, "%c %d", 'a'+i%5, i)}
		if i%7 > 0 {
			r.Key = fmt.Append(nil, i%7)
		}
		records = append(records, r)
	}
	for kind, register := range handlerKinds {
		for _, order := range handlerOrders {
			for name, more := range map[string][]api.HandlerOption{
				"": nil, " recycled": {api.RecycleRecords(), api.MaxRecords(9), api.ResetTo(rebalance.ResetLatest)},
			} {
				t.Run(kind+" "+order.name+name, func(t *testing.T) {
					var mu sync.Mutex
					var wrong []string
					seen, last := 0, make(map[string]int64)
					run, err := kafkatest.RunHandler(t.Context(), register(func(r *kafka.Record) error {
						mu.Lock()
						defer mu.Unlock()
						class := fmt.Sprint(r.Partition, order.class(r))
						if before, ok := last[class]; ok && before >= r.Offset {
							wrong = append(wrong, fmt.Sprintf("offset %d of %s after %d", r.Offset, class, before))
						}
						last[class] = r.Offset
						if want := records[2*int(r.Offset)+int(r.Partition)]; !bytes.Equal(r.Key, want.Key) || !bytes.Equal(r.Value, want.Value) {
							wrong = append(wrong, fmt.Sprintf("offset %d is %q %q", r.Offset, r.Key, r.Value))
						}
						seen++
						return nil
					}, append(slices.Clone(order.options), more...)...), records)
					require.NoError(t, err)
					require.NoError(t, run.Err())
					require.NoError(t, run.Close)
					require.Empty(t, wrong)
					require.Equal(t, len(records), seen)
					require.Equal(t, map[kafka.TopicPartition]int64{orders(0): 300, orders(1): 300}, run.Committed)
					require.Zero(t, run.Failures)
					require.Equal(t, "b 1", string(records[1].Value), "the caller's record")
				})
			}
		}
	}
}

func TestRunHandlerStopsOnlyTheKeyOfARecordThatFails(t *testing.T) {
	const acked, failed, not = kafkatest.Acked, kafkatest.Failed, kafkatest.NotDelivered
	cause := errors.New("no")
	var records []kafka.Record
	for _, key := range []string{"a", "b", "a", "b", "a", "b"} {
		records = append(records, kafka.Record{Key: []byte(key), Value: []byte(key)})
	}
	records = append(records, kafka.Record{Partition: 1, Key: []byte("a"), Value: []byte("a")})
	want := map[string][]kafkatest.Outcome{
		"PartitionOrder": {acked, acked, failed, not, not, not, acked},
		"KeyOrder":       {acked, acked, failed, acked, not, acked, acked},
		"OrderBy":        {acked, acked, failed, acked, not, acked, acked},
		"Unordered":      {acked, acked, failed, acked, acked, acked, acked},
	}
	for kind, register := range handlerKinds {
		for _, order := range handlerOrders {
			for _, restarts := range []int{0, 2} {
				t.Run(fmt.Sprintf("%s %s %d", kind, order.name, restarts), func(t *testing.T) {
					run, err := kafkatest.RunHandler(t.Context(), register(func(r *kafka.Record) error {
						if r.Offset == 2 {
							return cause
						}
						return nil
					}, append(slices.Clone(order.options), api.MaxRecords(1))...), records, kafkatest.Restarts(restarts))
					require.NoError(t, err)
					require.Equal(t, want[order.name], outcomes(run))
					require.Equal(t, restarts+1, run.Failures)
					require.Equal(t, restarts+1, run.Records[2].Deliveries)
					require.ErrorIs(t, run.Err(), cause)
					require.NoError(t, run.Close)
					require.Equal(t, map[kafka.TopicPartition]int64{orders(0): 2, orders(1): 1}, run.Committed)
				})
			}
		}
	}
}

func TestRunHandlerDeliversARecordThatFailedUntilItSucceeds(t *testing.T) {
	for kind, register := range handlerKinds {
		for _, order := range handlerOrders {
			t.Run(kind+" "+order.name, func(t *testing.T) {
				var mu sync.Mutex
				tries := 0
				run, err := kafkatest.RunHandler(t.Context(), register(func(r *kafka.Record) error {
					mu.Lock()
					defer mu.Unlock()
					if r.Offset != 5 {
						return nil
					}
					if tries++; tries < 4 {
						return errors.New("not yet")
					}
					return nil
				}, append(slices.Clone(order.options), api.MaxRecords(4))...), numbered(0, 20), kafkatest.Restarts(3))
				require.NoError(t, err)
				require.NoError(t, run.Err())
				require.NoError(t, run.Close)
				require.Equal(t, 4, run.Records[5].Deliveries)
				require.Equal(t, map[kafka.TopicPartition]int64{orders(0): 20}, run.Committed)
			})
		}
	}
}

func TestRunHandlerTellsABatchOfSeveralKeysApart(t *testing.T) {
	var records []kafka.Record
	for _, key := range []string{"a", "b", "c", "a", "b", "c"} {
		records = append(records, kafka.Record{Key: []byte(key)})
	}
	run, err := kafkatest.RunHandler(t.Context(), api.HandleBatch("orders", func(_ context.Context, batch []kafka.Record) error {
		for _, r := range batch {
			if string(r.Key) == "b" {
				return errors.New("no b")
			}
		}
		return nil
	}, api.KeyOrder(1)), records)
	require.NoError(t, err)
	require.NoError(t, run.Close)
	for i, r := range run.Records {
		require.NotEqual(t, kafkatest.Acked, r.Outcome, "record %d was in the batch that failed, or behind it", i)
	}
	require.Equal(t, 1, run.Failures)
}

func TestRunHandlerTellsWhatAnAsynchronousHandlerPanickedAtOrLeft(t *testing.T) {
	cause := errors.New("no")
	for _, order := range handlerOrders {
		for name, bad := range map[string]func(){"panicked": func() { panic(cause) }, "left": func() {}} {
			t.Run(order.name+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					run, err := kafkatest.RunHandler(t.Context(), api.HandleAsync("orders", func(_ context.Context, d *actors.RecordDelivery) {
						if d.Offset() == 1 {
							bad()
							return
						}
						_ = d.Ack()
					}, as[api.AsyncOption](order.options)...), []kafka.Record{{Value: []byte("a")}, {Value: []byte("b")}, {Value: []byte("c")}})
					require.NoError(t, err)
					want, key := kafkatest.Unsettled, run.Records[2].Outcome
					if name == "panicked" {
						want = kafkatest.Failed
						require.ErrorIs(t, run.Err(), cause)
					}
					require.Equal(t, want, run.Records[1].Outcome)
					require.Equal(t, kafkatest.Acked, run.Records[0].Outcome)
					if order.name == "Unordered" || order.name == "OrderBy" {
						require.Equal(t, kafkatest.Acked, key)
					}
					require.Equal(t, map[kafka.TopicPartition]int64{orders(0): 1}, run.Committed)
					time.Sleep(time.Minute) // lets what was left end inside the bubble
				})
			})
		}
	}
}

func TestRunHandlerStopsAPartitionWhoseOrderingKeyPanics(t *testing.T) {
	run, err := kafkatest.RunHandler(t.Context(), api.Handle("orders", func(context.Context, *kafka.Record) error { return nil },
		api.KeyOrder(2), api.OrderBy(func(record *kafka.Record) []byte {
			if record.Partition == 0 {
				panic("no key")
			}
			return record.Value
		})), append(numbered(0, 3), numbered(1, 3)...))
	require.NoError(t, err)
	require.Equal(t, kafkatest.NotDelivered, run.Records[0].Outcome)
	require.Equal(t, kafkatest.Acked, run.Records[5].Outcome)
	require.Equal(t, int64(3), run.Committed[orders(1)])
}

// The handler that is tried here keeps the first record, which its order says is acknowledged when the last one comes.
func TestRunHandlerOverwritesRecordsThatAreKeptBeyondTheirAck(t *testing.T) {
	records := numbered(0, 900)
	for i := range records {
		records[i].Key, records[i].Headers = []byte("key"), kafka.NewHeaders(kafka.Header{Key: "trace", Value: []byte("header")})
	}
	for _, tt := range []struct {
		name    string
		options []api.RecordOption
		want    [3]string
	}{
		{"kept", nil, [3]string{"key", "0", "header"}},
		{"recycled", []api.RecordOption{api.RecycleRecords()}, [3]string{"\xdb\xdb\xdb", "\xdb", "\xdb\xdb\xdb\xdb\xdb\xdb"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var key, value, header, own []byte
			var got [3]string
			run, err := kafkatest.RunHandler(t.Context(), api.Handle("orders", func(_ context.Context, record *kafka.Record) error {
				switch record.Offset {
				case 0:
					key, value = record.Key, record.Value
					header, _ = record.Headers.Last("trace")
				case 1:
					own = []byte("mine")
					record.Value = own
				case 899:
					got = [3]string{string(key), string(value), string(header)}
				}
				return nil
			}, append(tt.options, api.MaxRecords(100))...), records)
			require.NoError(t, err)
			require.NoError(t, run.Err())
			require.Equal(t, tt.want, got)
			require.Equal(t, "mine", string(own), "what the handler put into its record")
			require.Equal(t, "0", string(records[0].Value), "the caller's record")
		})
	}
}

func TestAConsumerWithPoisonOverwritesRecordsOfABroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := kafkatest.NewBroker(t, kafkatest.InMemory(), kafkatest.Topic("orders", 1))
		require.NoError(t, broker.Produce(t.Context(), "orders", kafka.Record{Value: []byte("book")}))
		var kept []byte
		var got string
		consumer, err := api.Spawn(t.Context(), api.Config{Brokers: broker.Addrs(), GroupID: "billing"},
			api.Handle("orders", func(_ context.Context, record *kafka.Record) error {
				if record.Offset == 0 {
					kept = record.Value
				} else {
					got = string(kept)
				}
				return nil
			}, api.RecycleRecords()),
			api.WithDialer(broker.Dial), api.WithPoison())
		require.NoError(t, err)
		time.Sleep(time.Minute)
		large := make([]byte, 10_000) // does not fit into the memory that is free now
		require.NoError(t, broker.Produce(t.Context(), "orders", kafka.Record{Value: large}))
		time.Sleep(time.Minute)
		require.NoError(t, consumer.Close(t.Context()))
		time.Sleep(time.Second) // lets the actor system's last timers end, as a bubble wants
		require.Equal(t, "\xdb\xdb\xdb\xdb", got)
	})
}
