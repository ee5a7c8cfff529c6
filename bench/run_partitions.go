package main

import (
	"context"
	"fmt"
)

// The partitions mode's cluster, and how many records each of its partitions has.
const (
	manyNodes         = 3
	recordsPartitions = 10
)

// manyPartitions asks how soon a lone member has a record of each of many partitions of several brokers.
func (s *session) manyPartitions(ctx context.Context) error {
	o := s.options
	t := topic{
		Name: "bench-partitions", Partitions: int32(o.manyPartitions), Records: int64(o.manyPartitions) * recordsPartitions, Size: 100, Codec: "none",
	}
	ends, err := s.fill(ctx, t)
	if err != nil {
		return err
	}
	return s.each(modePartitions, func(consumer string, run int) error {
		return s.consume(ctx, s.task(modePartitions, consumer, t, ends, run), fmt.Sprintf("%d partitions", o.manyPartitions))
	})
}
