package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// keyOrder asks every cell of every consumer. The records are in the log before one starts.
func (s *session) keyOrder(ctx context.Context) error {
	var failed error
	for _, c := range s.options.cells {
		t := c.topic()
		ends, err := s.fill(ctx, t)
		if err != nil {
			return err
		}
		err = s.each(modeKeyOrder, func(consumer string, run int) error {
			work := s.task(modeKeyOrder, consumer, t, ends, run)
			work.Order, work.Workers = c.Order, c.Workers
			return s.consume(ctx, work, c.String())
		})
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", c, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return failed
}

// noop asks what key order costs when the handler does nothing, with many partitions and with one.
func (s *session) noop(ctx context.Context) error {
	var failed error
	for _, count := range []int32{partitions, 1} {
		t := topic{
			Name: fmt.Sprintf("bench-noop-%d", count), Partitions: count, Records: s.options.noopRecords, Size: 100, Codec: "none", Keys: manyKeys,
		}
		ends, err := s.fill(ctx, t)
		if err != nil {
			return err
		}
		err = s.each(modeNoop, func(consumer string, run int) error {
			work := s.task(modeNoop, consumer, t, ends, run)
			work.Order, work.Workers = orderKey, s.options.workers
			return s.consume(ctx, work, fmt.Sprintf("partitions: %d", count))
		})
		failed = errors.Join(failed, err)
	}
	return failed
}

// memoryRest is how long a consumer of the memory mode has to fetch all that it will.
const memoryRest = 10 * time.Second

// memory asks what a consumer holds when no handler returns.
func (s *session) memory(ctx context.Context) error {
	o := s.options
	t := topic{
		Name: "bench-memory", Partitions: int32(o.memoryPartitions), Records: o.memoryRecords, Size: 1024, Codec: "zstd",
		Batch: int32(o.memoryBatch), Uniform: true,
	}
	ends, err := s.fill(ctx, t)
	if err != nil {
		return err
	}
	return s.each(modeMemory, func(consumer string, run int) error {
		work := s.task(modeMemory, consumer, t, ends, run)
		work.Budget, work.Rest = o.budget, min(memoryRest, o.duration)
		return s.consume(ctx, work, fmt.Sprintf("budget %d MiB", o.budget>>20))
	})
}
