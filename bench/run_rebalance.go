package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"time"
)

// rebalance asks how long a partition has no record while members come and go: one is alone, a second joins, a third joins,
// and the first leaves. Every run has an empty topic of its own and a producer that writes to every partition steadily.
func (s *session) rebalance(ctx context.Context) error {
	o := s.options
	return s.each(modeRebalance, func(consumer string, run int) error {
		s.serial++
		t := topic{Name: fmt.Sprintf("bench-rebalance-%d-%d", os.Getpid(), s.serial), Partitions: partitions, Size: stampedSize, Codec: "none"}
		ends, err := s.fill(ctx, t)
		if err != nil {
			return err
		}
		work := s.task(modeRebalance, consumer, t, ends, run)
		work.Heartbeat, work.Window, work.Rest = o.heartbeat, o.span, min(longestRest, o.span)
		work.Steps = steps(run, o.heartbeat)
		producer := work
		producer.Role, producer.Burst, producer.Count = roleProduce, partitions, math.MaxInt32
		producer.Rate = max(1, int(partitions*time.Second/o.every))
		producing, err := startChild(ctx, producer)
		if err != nil {
			return err
		}
		found, err := s.measure(ctx, work)
		if err := errors.Join(err, producing.stop()); err != nil {
			return err
		}
		for _, g := range found.Gaps {
			s.report.add(sample{
				Broker: s.broker.name, Mode: modeRebalance, Subject: g.Step, Consumer: consumer, Result: result{Records: found.Records, Gaps: []gaps{g}},
			})
		}
		return nil
	})
}

// steps are those of a run, with the same pauses for every consumer.
func steps(run int, heartbeat time.Duration) []step {
	random := rand.New(rand.NewPCG(7, uint64(run)))
	list := []step{{Member: 2}, {Member: 3}, {Member: 1, Leaves: true}}
	for i := range list {
		list[i].Pause = time.Duration(random.Int64N(int64(heartbeat)))
	}
	return list
}
