package main

import (
	"context"
	"fmt"
)

// control asks how long control calls take on a consumer that has nothing else to do.
func (s *session) control(ctx context.Context) error {
	o := s.options
	t := topic{Name: "bench-control", Partitions: partitions, Records: partitions, Size: 100, Codec: "none"}
	ends, err := s.fill(ctx, t)
	if err != nil {
		return err
	}
	return s.each(modeControl, func(consumer string, run int) error {
		work := s.task(modeControl, consumer, t, ends, run)
		work.Count, work.Rest = o.calls, min(longestRest, o.duration)
		found, err := s.measure(ctx, work)
		if err != nil {
			return err
		}
		for _, times := range found.Calls {
			s.report.add(sample{
				Broker: s.broker.name, Mode: modeControl, Subject: times.Call, Consumer: consumer, Result: result{Calls: []callTimes{times}},
			})
		}
		if len(found.Calls) == 0 {
			return fmt.Errorf("%s has no control calls", consumer)
		}
		return nil
	})
}
