package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// committedPause is the time between two looks at the committed offset, once every record is handled.
const committedPause = 5 * time.Millisecond

// consumeSpans measures handlers that sleep: when each began and ended, and when the end was committed.
func consumeSpans(ctx context.Context, t task) (*result, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(t.Brokers...))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := committedOffset(ctx, admin, t); err != nil { // so that it is connected
		return nil, err
	}
	m, err := startMeter(t.Profile)
	if err != nil {
		return nil, err
	}
	times := newSpans(t.Topic.Records)
	var handled, repeated atomic.Int64
	done := make(chan struct{})
	consumer, err := startTroupe(ctx, t, api.Handle(t.Topic.Name, func(_ context.Context, r *kafka.Record) error {
		start := time.Since(m.began)
		if times.Ends[r.Offset] != 0 {
			repeated.Add(1)
			return nil
		}
		key, err := strconv.Atoi(string(r.Key))
		if err != nil {
			return err
		}
		time.Sleep(delay(r.Offset))
		times.Keys[r.Offset], times.Starts[r.Offset], times.Ends[r.Offset] = key, int64(start), int64(time.Since(m.began))
		if handled.Add(1) == t.Topic.Records {
			close(done)
		}
		return nil
	}, recordOptions(t)...))
	if err != nil {
		return nil, err
	}
	if err := consumer.wait(done); err != nil {
		return nil, err
	}
	first := times.first()
	for offset := int64(-1); offset < t.Topic.Records; time.Sleep(committedPause) {
		if offset, err = committedOffset(ctx, admin, t); err != nil {
			return nil, err
		}
	}
	committed := int64(time.Since(m.began)) - first
	if err := consumer.stop(); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	r := &result{}
	if err := times.summarize(t.Order, t.Workers, committed, r); err != nil {
		return nil, err
	}
	if n := repeated.Load(); n > 0 {
		return nil, fmt.Errorf("%d records were handled twice", n)
	}
	return r, m.stop(r)
}

// committedOffset asks for the committed offset of the topic's only partition, -1 for none.
func committedOffset(ctx context.Context, admin *kadm.Client, t task) (int64, error) {
	offsets, err := admin.FetchOffsets(ctx, t.Group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return -1, nil
	}
	if err != nil {
		return 0, err
	}
	if offset, ok := offsets.Lookup(t.Topic.Name, 0); ok {
		return offset.At, nil
	}
	return -1, nil
}

// consumeCounted measures a handler that only counts, any number of calls at once, from before the start until after the
// end as in the throughput mode.
func consumeCounted(ctx context.Context, t task) (*result, error) {
	m, err := startMeter(t.Profile)
	if err != nil {
		return nil, err
	}
	r := &result{}
	var handled, size atomic.Int64
	done := make(chan struct{})
	consumer, err := start(ctx, t, func(_ int32, value []byte) {
		size.Add(int64(len(value)))
		switch handled.Add(1) {
		case 1:
			m.first(r)
		case t.Topic.Records:
			close(done)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := consumer.wait(done); err != nil {
		return nil, err
	}
	r.Seconds = time.Since(m.began).Seconds()
	if err := consumer.stop(); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	if err := m.stop(r); err != nil {
		return nil, err
	}
	if r.Records, r.Bytes = handled.Load(), size.Load(); r.Records != t.Topic.Records {
		return nil, fmt.Errorf("%d records handled, the topic has %d", r.Records, t.Topic.Records)
	}
	return r, nil
}
