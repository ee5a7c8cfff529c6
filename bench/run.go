package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// longestRest bounds how long a consumer may join and come to rest before latency or idling is measured; it is no longer
// than what is measured.
const longestRest = 3 * time.Second

// longestSettle is the same for the slow neighbor mode, from the first record on.
const longestSettle = 500 * time.Millisecond

// session is the command at work on one broker.
type session struct {
	options *options
	broker  *broker
	report  *report
	// peers are the Java programs that can run, by consumer.
	peers map[string]*peer
	// filled are the end offsets of the topics that are there.
	filled map[string][]int64
	// serial numbers groups and topics.
	serial int
}

// run does everything the options ask for and prints what was found, also when it could not finish.
func run(ctx context.Context, o *options) error {
	if o.profile != "" {
		if err := os.MkdirAll(o.profile, 0o750); err != nil {
			return err
		}
	}
	r := newReport(o)
	var failed error
	for _, kind := range o.brokers {
		if failed = runOn(ctx, o, kind, r); failed != nil {
			break
		}
	}
	return errors.Join(r.print(os.Stdout, o.json), failed)
}

// runOn runs the modes on one kind of broker: most on a single one, some on a cluster.
func runOn(ctx context.Context, o *options, kind string, r *report) (err error) {
	modes := make(map[int][]string)
	for _, mode := range o.modes {
		nodes := 1
		if mode == modePartitions {
			nodes = manyNodes
		}
		modes[nodes] = append(modes[nodes], mode)
	}
	for _, nodes := range slices.Sorted(maps.Keys(modes)) {
		if ctx.Err() == nil {
			err = errors.Join(err, runModes(ctx, o, kind, nodes, modes[nodes], r))
		}
	}
	return err
}

func runModes(ctx context.Context, o *options, kind string, nodes int, modes []string, r *report) (err error) {
	b, err := startBroker(ctx, kind, nodes)
	if err != nil || b == nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	progress("%s at %s", b.name, strings.Join(b.addrs, ","))
	s := &session{options: o, broker: b, report: r, filled: make(map[string][]int64)}
	s.peers = findPeers(ctx, kind, func(consumer string) bool {
		return slices.ContainsFunc(modes, func(mode string) bool { return slices.Contains(o.of(mode), consumer) })
	})
	for _, mode := range modes {
		if failed := s.ask(ctx, mode); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s on %s: %w", mode, b.name, failed))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return err
}

// ask runs one mode to its end.
func (s *session) ask(ctx context.Context, mode string) (err error) {
	switch mode {
	case modeThroughput:
		for _, t := range s.options.topics {
			err = errors.Join(err, s.throughput(ctx, t))
		}
	case modeLatency:
		err = s.latency(ctx)
	case modeSlow:
		err = s.slow(ctx)
	case modeIdle:
		err = s.idle(ctx)
	case modeKeyOrder:
		err = s.keyOrder(ctx)
	case modeNoop:
		err = s.noop(ctx)
	case modeMemory:
		err = s.memory(ctx)
	case modeRebalance:
		err = s.rebalance(ctx)
	case modePartitions:
		err = s.manyPartitions(ctx)
	case modeControl:
		err = s.control(ctx)
	}
	return err
}

// each calls f for every consumer of a mode and run, the consumers taking turns. One that fails has no further turn, the
// others go on.
func (s *session) each(mode string, f func(consumer string, run int) error) error {
	failed := make(map[string]error)
	for run := range s.options.runs {
		for _, consumer := range s.options.of(mode) {
			if _, isJava := javaPrograms[consumer]; isJava && s.peers[consumer] == nil || failed[consumer] != nil {
				continue
			}
			if err := f(consumer, run); err != nil {
				progress("FAILED: %v", err)
				failed[consumer] = err
			}
		}
	}
	return errors.Join(slices.Collect(maps.Values(failed))...)
}

// fill creates and fills a topic, unless it is there, and returns its end offsets.
func (s *session) fill(ctx context.Context, t topic) ([]int64, error) {
	if ends, ok := s.filled[t.Name]; ok {
		return ends, nil
	}
	began := time.Now()
	var done loaded
	if err := runChild(ctx, task{Role: roleLoad, Brokers: s.broker.addrs, Topic: t}, &done); err != nil {
		return nil, err
	}
	progress("%s: %d records in %d partitions, %.1f s", t.Name, t.Records, t.Partitions, time.Since(began).Seconds())
	s.filled[t.Name] = done.Ends
	return done.Ends, nil
}

// task makes a consumer's task, with a group that nobody used.
func (s *session) task(mode, consumer string, t topic, ends []int64, run int) task {
	s.serial++
	out := task{
		Role: roleConsume, Brokers: s.broker.addrs, Topic: t, Ends: ends, Mode: mode, Consumer: consumer,
		Group: fmt.Sprintf("bench-%s-%d-%d", consumer, os.Getpid(), s.serial), Heap: s.options.heap,
	}
	if s.options.profile != "" {
		name := fmt.Sprintf("%s-%s-%s-%s-%d.pprof", s.broker.kind, mode, t.Name, consumer, run+1)
		out.Profile = filepath.Join(s.options.profile, name)
	}
	return out
}

// committing are the modes whose consumers must have committed the end of every partition.
var committing = []string{modeThroughput, modeKeyOrder, modeNoop, modePartitions}

// measure runs a consumer in a process of its own and returns what it found.
func (s *session) measure(ctx context.Context, t task) (*result, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.limit)
	defer cancel()
	if _, isJava := javaPrograms[t.Consumer]; isJava {
		return s.peers[t.Consumer].consume(ctx, t)
	}
	r := &result{}
	return r, runChild(ctx, t, r)
}

// consume measures a consumer and keeps what was found.
func (s *session) consume(ctx context.Context, t task, subject string) error {
	r, err := s.measure(ctx, t)
	if err != nil {
		return err
	}
	s.report.add(sample{Broker: s.broker.name, Mode: t.Mode, Subject: subject, Consumer: t.Consumer, Sleep: t.Sleep, Result: *r})
	if !slices.Contains(committing, t.Mode) {
		return nil
	}
	return checkCommitted(ctx, s.broker.addrs, t.Group, t.Topic, t.Ends)
}

func (s *session) throughput(ctx context.Context, t topic) error {
	ends, err := s.fill(ctx, t)
	if err != nil {
		return err
	}
	return s.each(modeThroughput, func(consumer string, run int) error {
		return s.consume(ctx, s.task(modeThroughput, consumer, t, ends, run), t.String())
	})
}

// latency gives every run an empty topic of its own, so that all consumers start alike.
func (s *session) latency(ctx context.Context) error {
	o := s.options
	subject := fmt.Sprintf("%d/s", o.rate)
	return s.each(modeLatency, func(consumer string, run int) error {
		s.serial++
		t := topic{Name: fmt.Sprintf("bench-latency-%d-%d", os.Getpid(), s.serial), Partitions: partitions, Size: stampedSize, Codec: "none"}
		ends, err := s.fill(ctx, t)
		if err != nil {
			return err
		}
		work := s.task(modeLatency, consumer, t, ends, run)
		rest := min(longestRest, o.duration)
		work.Rate, work.Warmup, work.Count = o.rate, int(rest.Seconds()*float64(o.rate)), int(o.duration.Seconds()*float64(o.rate))
		producer := work
		producer.Role = roleProduce
		produced := make(chan error, 1)
		go func() { produced <- runChild(ctx, producer, new(any)) }()
		return errors.Join(s.consume(ctx, work, subject), <-produced)
	})
}

func (s *session) slow(ctx context.Context) error {
	o := s.options
	t := topic{Name: "bench-slow", Partitions: partitions, Records: o.slowRecords, Size: 100, Codec: "none"}
	ends, err := s.fill(ctx, t)
	if err != nil {
		return err
	}
	return s.each(modeSlow, func(consumer string, run int) error {
		for _, sleep := range []time.Duration{0, o.sleep} {
			work := s.task(modeSlow, consumer, t, ends, run)
			if consumer == troupeKeyOrder {
				work.Order, work.Workers = orderKey, o.workers
			}
			work.Sleep, work.Window, work.Rest = sleep, o.window, min(longestSettle, o.window)
			if err := s.consume(ctx, work, o.sleep.String()+" on 1 of 12"); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *session) idle(ctx context.Context) error {
	o := s.options
	t := topic{Name: "bench-idle", Partitions: int32(o.idlePartitions), Records: int64(o.idlePartitions), Size: 100, Codec: "none"}
	ends, err := s.fill(ctx, t)
	if err != nil {
		return err
	}
	return s.each(modeIdle, func(consumer string, run int) error {
		work := s.task(modeIdle, consumer, t, ends, run)
		work.Window, work.Rest = o.duration, min(longestRest, o.duration)
		return s.consume(ctx, work, fmt.Sprintf("%d partitions", o.idlePartitions))
	})
}
