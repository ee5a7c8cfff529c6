package kafkatest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
)

// numbered returns n records of one partition, with the values 0, 1, 2 and so on.
func numbered(partition int32, n int) []kafka.Record {
	out := make([]kafka.Record, n)
	for i := range out {
		out[i] = kafka.Record{Partition: partition, Value: fmt.Append(nil, i)}
	}
	return out
}

func outcomes(run *kafkatest.HandlerRun) []kafkatest.Outcome {
	var out []kafkatest.Outcome
	for _, r := range run.Records {
		out = append(out, r.Outcome)
	}
	return out
}

func orders(partition int32) kafka.TopicPartition {
	return kafka.TopicPartition{Topic: "orders", Partition: partition}
}

func TestRunHandlerGivesEveryRecordInOrderAndReportsItAcked(t *testing.T) {
	var seen []string
	var wrapped int
	counting := func(next api.Handler) api.Handler {
		return func(ctx context.Context, record *kafka.Record) error {
			wrapped++
			return next(ctx, record)
		}
	}
	run, err := kafkatest.RunHandler(t.Context(), api.Handle("orders", func(ctx context.Context, record *kafka.Record) error {
		require.NotNil(t, actors.DeliveryFrom(ctx))
		seen = append(seen, string(record.Value))
		return nil
	}, api.Use(counting)), numbered(3, 450))
	require.NoError(t, err)
	require.NoError(t, run.Err())
	require.NoError(t, run.Close)
	require.Len(t, seen, 450)
	require.True(t, slices.IsSortedFunc(seen, func(a, b string) int { return len(a) - len(b) }))
	require.Equal(t, "449", seen[449])
	require.Equal(t, 450, wrapped)
	require.Equal(t, map[kafka.TopicPartition]int64{orders(3): 450}, run.Committed)
	require.Equal(t, kafkatest.RecordRun{TopicPartition: orders(3), Offset: 7, Outcome: kafkatest.Acked, Deliveries: 1}, run.Records[7])
}

func TestRunHandlerDeliversAtMostMaxRecordsOfOnePartition(t *testing.T) {
	sizes := make(chan int, 100)
	run, err := kafkatest.RunHandler(t.Context(), api.HandleBatch("orders", func(_ context.Context, records []kafka.Record) error {
		for _, r := range records {
			if r.Partition != records[0].Partition {
				return errors.New("a batch of two partitions")
			}
		}
		sizes <- len(records)
		return nil
	}, api.MaxRecords(4)), append(numbered(0, 10), numbered(1, 3)...))
	require.NoError(t, err)
	require.NoError(t, run.Err())
	close(sizes)
	total := 0
	for n := range sizes {
		require.LessOrEqual(t, n, 4)
		total += n
	}
	require.Equal(t, 13, total)
}

func TestRunHandlerStopsAPartitionAtItsFirstFailureAndNoOther(t *testing.T) {
	cause := errors.New("no")
	for name, fail := range map[string]func() error{
		"error":  func() error { return cause },
		"panic":  func() error { panic(cause) },
		"Goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			run, err := kafkatest.RunHandler(t.Context(), api.Handle("orders", func(_ context.Context, record *kafka.Record) error {
				if record.Partition == 0 && record.Offset == 1 {
					return fail()
				}
				return nil
			}), append(numbered(0, 3), numbered(1, 2)...))
			require.NoError(t, err)
			require.Equal(t, []kafkatest.Outcome{kafkatest.Acked, kafkatest.Failed, kafkatest.NotDelivered, kafkatest.Acked, kafkatest.Acked}, outcomes(run))
			require.Equal(t, 1, run.Failures)
			require.Equal(t, map[kafka.TopicPartition]int64{orders(0): 1, orders(1): 2}, run.Committed)
			require.ErrorContains(t, run.Err(), "2 of 5 records are not acknowledged; the first is offset 1 of orders-0, failed")
			if name != "Goexit" {
				require.ErrorIs(t, run.Err(), cause)
			}
		})
	}
}

func TestRunHandlerRestartsAsOftenAsAsked(t *testing.T) {
	var attempts []int
	run, err := kafkatest.RunHandler(t.Context(), api.Handle("orders", func(ctx context.Context, record *kafka.Record) error {
		attempts = append(attempts, actors.DeliveryFrom(ctx).Attempt())
		if record.Offset == 1 && len(attempts) < 4 {
			return errors.New("not yet")
		}
		return nil
	}), numbered(0, 3), kafkatest.Restarts(2))
	require.NoError(t, err)
	require.NoError(t, run.Err())
	require.Equal(t, []int{1, 1, 2, 3, 1}, attempts)
	require.Equal(t, 2, run.Failures)
	require.Equal(t, 3, run.Records[1].Deliveries)
	require.NoError(t, run.Records[1].Err)
}

func TestRunHandlerEndsWithItsContextAndNamesTheHandlerThatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		run, err := kafkatest.RunHandler(t.Context(), api.Handle("orders", func(context.Context, *kafka.Record) error {
			<-release
			return nil
		}), numbered(0, 2))
		require.NoError(t, err)
		require.Equal(t, []kafkatest.Outcome{kafkatest.Unsettled, kafkatest.NotDelivered}, outcomes(run))
		var unfinished *actors.CloseError
		require.ErrorAs(t, run.Close, &unfinished)
		require.Len(t, unfinished.Running, 1)
		require.Equal(t, orders(0), unfinished.Running[0].TopicPartition)
		close(release)
		time.Sleep(time.Minute) // lets what was left end inside the bubble
	})
}

func TestRunHandlerKeepsHolesAndRefusesWhatCannotBe(t *testing.T) {
	handle := api.Handle("orders", func(context.Context, *kafka.Record) error { return nil })
	holes := []kafka.Record{{Offset: 5}, {Offset: 9}, {Offset: 1000}}
	run, err := kafkatest.RunHandler(t.Context(), handle, holes)
	require.NoError(t, err)
	require.NoError(t, run.Err())
	require.Equal(t, map[kafka.TopicPartition]int64{orders(0): 1001}, run.Committed)

	for name, records := range map[string][]kafka.Record{
		"another topic":      {{Topic: "clicks"}},
		"no partition":       {{Partition: kafkatest.AnyPartition}},
		"offset twice":       {{Offset: 1}, {Offset: 1}},
		"offset goes back":   {{Offset: 2}, {Offset: 1}},
		"offset is negative": {{Offset: -2}},
	} {
		_, err := kafkatest.RunHandler(t.Context(), handle, records)
		require.Error(t, err, name)
	}
	_, err = kafkatest.RunHandler(t.Context(), api.Handle("orders", nil), holes)
	require.ErrorAs(t, err, new(*api.ConfigError))
	_, err = kafkatest.RunHandler(t.Context(), handle, holes, kafkatest.Restarts(-1))
	require.Error(t, err)
	run, err = kafkatest.RunHandler(t.Context(), handle, nil)
	require.NoError(t, err)
	require.NoError(t, run.Err())
}

// lastFirst acknowledges each delivery from its last record to its first, in another goroutine, and treats records with
// the value "bad" as said.
type lastFirst struct {
	bad func(d *actors.Deliver, record *kafka.Record)
}

func (a *lastFirst) Receive(ctx actor.Context) {
	d, ok := ctx.Message().(*actors.Deliver)
	if !ok {
		return
	}
	if a.bad != nil {
		for i := range d.Records() {
			if r := &d.Records()[i]; string(r.Value) == "bad" {
				a.bad(d, r)
			}
		}
	}
	go func() {
		for _, r := range slices.Backward(d.Records()) {
			if string(r.Value) != "bad" {
				_ = d.Ack(r.Offset)
			}
		}
	}()
}

func TestRunHandlerRunsActorsThatAcknowledgeInAnyOrder(t *testing.T) {
	run, err := kafkatest.RunHandler(t.Context(), api.HandleActor("orders", func(kafka.TopicPartition) actor.Actor {
		return &lastFirst{}
	}, api.MaxRecords(7)), append(numbered(0, 20), numbered(2, 5)...))
	require.NoError(t, err)
	require.NoError(t, run.Err())
	require.NoError(t, run.Close)
	require.Equal(t, map[kafka.TopicPartition]int64{orders(0): 20, orders(2): 5}, run.Committed)
}

func TestRunHandlerTellsWhatAnActorRefusedPanickedAtOrLeft(t *testing.T) {
	cause := errors.New("no")
	records := []kafka.Record{{Value: []byte("a")}, {Value: []byte("bad")}, {Value: []byte("c")}}
	for _, tt := range []struct {
		name string
		bad  func(*actors.Deliver, *kafka.Record)
		want []kafkatest.Outcome
	}{
		{"refused", func(d *actors.Deliver, r *kafka.Record) { _ = d.Nack(r.Offset, cause) },
			[]kafkatest.Outcome{kafkatest.Acked, kafkatest.Failed, kafkatest.Acked}},
		{"panicked", func(d *actors.Deliver, r *kafka.Record) {
			_ = d.AckUpTo(r.Offset - 1)
			panic(cause)
		}, []kafkatest.Outcome{kafkatest.Acked, kafkatest.Failed, kafkatest.Unsettled}},
		{"left", func(*actors.Deliver, *kafka.Record) {}, []kafkatest.Outcome{kafkatest.Acked, kafkatest.Unsettled, kafkatest.Acked}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run, err := kafkatest.RunHandler(t.Context(), api.HandleActor("orders", func(kafka.TopicPartition) actor.Actor {
					return &lastFirst{bad: tt.bad}
				}), records)
				require.NoError(t, err)
				require.Equal(t, tt.want, outcomes(run))
				require.Equal(t, map[kafka.TopicPartition]int64{orders(0): 1}, run.Committed)
				if tt.want[1] == kafkatest.Failed {
					require.ErrorIs(t, run.Err(), cause)
				}
				time.Sleep(time.Minute) // lets what was left end inside the bubble
			})
		})
	}
}

// The last acknowledgment of a delivery used to return ErrStale now and then, although it counted: the partition had
// ended the finished delivery before Ack looked whether it was still open.
func TestRunHandlerNeverCallsAnAckStaleThatCounted(t *testing.T) {
	stale := make(chan error, 2000)
	run, err := kafkatest.RunHandler(t.Context(), api.HandleActor("orders", func(kafka.TopicPartition) actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			if d, ok := ctx.Message().(*actors.Deliver); ok {
				if err := d.Ack(d.Records()[0].Offset); err != nil {
					stale <- err
				}
			}
		})
	}, api.MaxRecords(1)), append(numbered(0, 1000), numbered(1, 1000)...))
	require.NoError(t, err)
	require.NoError(t, run.Err())
	require.Empty(t, stale)
}

func TestRunHandlerTakesTheTopicsOfAPatternFromTheRecords(t *testing.T) {
	var mu sync.Mutex // partitions are handled at the same time
	seen := make(map[string]int)
	registration := api.Handle(api.Matching("orders-.*").Except(".*-test"), func(_ context.Context, r *kafka.Record) error {
		mu.Lock()
		defer mu.Unlock()
		seen[r.Topic]++
		return nil
	})
	run, err := kafkatest.RunHandler(t.Context(), registration, []kafka.Record{{Topic: "orders-eu"}, {Topic: "orders-us"}, {Topic: "orders-eu"}})
	require.NoError(t, err)
	require.NoError(t, run.Err())
	require.Equal(t, map[string]int{"orders-eu": 2, "orders-us": 1}, seen)
	for _, foreign := range []string{"refunds", "orders-a-test", ""} {
		_, err := kafkatest.RunHandler(t.Context(), registration, []kafka.Record{{Topic: "orders-eu"}, {Topic: foreign}})
		require.ErrorContains(t, err, "record 1")
	}
}
