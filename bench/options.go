package main

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options is the command line.
type options struct {
	brokers   []string
	modes     []string
	consumers []string
	topics    []topic
	runs      int
	heap      int64
	json      bool
	profile   string
	// limit bounds one run of one consumer.
	limit time.Duration
	// rate and duration are those of the latency mode, slowRecords, sleep and window those of the slow neighbor mode,
	// and idlePartitions is the topic of the idle mode.
	rate           int
	duration       time.Duration
	slowRecords    int64
	sleep          time.Duration
	window         time.Duration
	idlePartitions int
	// cells are the key order mode's questions. workers is how many the no-op and the slow neighbor mode have in key order,
	// noopRecords is the no-op mode's topic.
	cells       []cell
	workers     int
	noopRecords int64
	// memoryRecords and memoryBatch are the memory mode's topic, and budget is what may be held of it.
	memoryPartitions int
	memoryRecords    int64
	memoryBatch      int64
	budget           int64
	// heartbeat, span and every are the rebalance mode's: the members' interval, how long is measured before and after each
	// step, and the time between two records of a partition. manyPartitions is the partitions mode's topic.
	heartbeat      time.Duration
	span           time.Duration
	every          time.Duration
	manyPartitions int
	// calls is how often the control mode makes each call.
	calls int
}

// of returns who is measured in a mode.
func (o *options) of(mode string) []string {
	var who []string
	for _, consumer := range takePart[mode] {
		if slices.Contains(o.consumers, consumer) {
			who = append(who, consumer)
		}
	}
	return who
}

// allConsumers stands for all that take part in a mode.
const allConsumers = "all"

// lists are flags before they are read.
type lists struct {
	brokers, modes, consumers, topics, cells string
	heap, memoryBatch, budget                string
	records                                  int64
}

func parseOptions(args []string) (*options, error) {
	o := &options{}
	l := &lists{}
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	flags.StringVar(&l.brokers, "broker", brokerEmbedded, "where: "+strings.Join(brokerKinds, ","))
	flags.StringVar(&l.modes, "mode", modeThroughput, "what: "+strings.Join(modes, ","))
	flags.StringVar(&l.consumers, "consumers", allConsumers, "who: all that take part in the mode, or some of "+strings.Join(consumerNames, ","))
	flags.StringVar(&l.topics, "topics", "100:none", "throughput: list of SIZE:CODEC, or all")
	flags.Int64Var(&l.records, "records", 0, "throughput: records of a topic (default 1.2 million, 300,000 from 1 KB on)")
	flags.StringVar(&l.heap, "heap", "64MiB", "other live heap of every consumer process")
	flags.IntVar(&o.runs, "runs", 3, "runs of each consumer, taking turns")
	flags.BoolVar(&o.json, "json", false, "print JSON instead of tables")
	flags.StringVar(&o.profile, "profile", "", "directory for profiles of every consumer run, of CPU time and of allocations")
	flags.DurationVar(&o.limit, "limit", 2*time.Minute, "bound of one run of one consumer")
	flags.IntVar(&o.rate, "rate", 200, "latency: records per second")
	flags.DurationVar(&o.duration, "duration", 10*time.Second, "latency, idle: time measured; control: time of rest before, at most 3 s")
	flags.Int64Var(&o.slowRecords, "slow-records", 6_000_000, "slow: records of the topic")
	flags.DurationVar(&o.sleep, "sleep", time.Millisecond, "slow: time per record of the slow partition")
	flags.DurationVar(&o.window, "window", 30*time.Second, "slow: longest time measured")
	flags.IntVar(&o.idlePartitions, "idle-partitions", 1000, "idle: partitions of the topic")
	flags.StringVar(&l.cells, "cells", "all", "keyorder: list of ORDER:KEYS:WORKERS[:RECORDS], or all")
	flags.IntVar(&o.workers, "workers", 16, "noop-keyorder, slow: workers in key order")
	flags.Int64Var(&o.noopRecords, "noop-records", recordsSmall, "noop-keyorder: records of each topic")
	flags.IntVar(&o.memoryPartitions, "memory-partitions", 60, "memory: partitions of the topic")
	flags.Int64Var(&o.memoryRecords, "memory-records", 960_000, "memory: records of the topic, of 1 KB")
	flags.StringVar(&l.memoryBatch, "memory-batch", "1000KiB", "memory: size of a batch before compression")
	flags.StringVar(&l.budget, "budget", "32MiB", "memory: MemoryBudget")
	flags.DurationVar(&o.heartbeat, "heartbeat", 3*time.Second, "rebalance: heartbeat interval of all members")
	flags.DurationVar(&o.span, "span", 10*time.Second, "rebalance: time measured before and after each step")
	flags.DurationVar(&o.every, "every", 10*time.Millisecond, "rebalance: time between two records of a partition")
	flags.IntVar(&o.manyPartitions, "partitions", 3000, "partitions: partitions of the topic, on 3 nodes")
	flags.IntVar(&o.calls, "calls", 10_000, "control: how often each call is made")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if err := o.read(l); err != nil {
		return nil, err
	}
	least := min(int64(o.runs), int64(o.rate), int64(o.idlePartitions), int64(o.workers), o.noopRecords, int64(o.memoryPartitions),
		o.memoryRecords, int64(o.manyPartitions), int64(o.calls))
	if min(o.heartbeat, o.span, o.every) < time.Millisecond {
		return nil, fmt.Errorf("heartbeat, span and every are at least 1 ms: %q", args)
	}
	if least < 1 || flags.NArg() > 0 {
		return nil, fmt.Errorf("runs, rate, partitions, workers, records and calls are at least 1, and nothing follows the flags: %q", args)
	}
	return o, nil
}

// read reads the flags that are more than a number.
func (o *options) read(l *lists) error {
	if l.consumers == allConsumers {
		l.consumers = strings.Join(consumerNames, ",")
	}
	for _, list := range []struct {
		name, value string
		known       []string
		into        *[]string
	}{
		{"broker", l.brokers, brokerKinds, &o.brokers},
		{"mode", l.modes, modes, &o.modes},
		{"consumers", l.consumers, consumerNames, &o.consumers},
	} {
		*list.into = strings.Split(list.value, ",")
		for _, word := range *list.into {
			if !slices.Contains(list.known, word) {
				return fmt.Errorf("-%s %q: want some of %q", list.name, word, list.known)
			}
		}
	}
	for _, mode := range o.modes {
		if len(o.of(mode)) == 0 {
			return fmt.Errorf("-consumers %q: in mode %s want some of %q", l.consumers, mode, takePart[mode])
		}
	}
	for _, size := range []struct {
		name, value string
		into        *int64
	}{{"heap", l.heap, &o.heap}, {"memory-batch", l.memoryBatch, &o.memoryBatch}, {"budget", l.budget, &o.budget}} {
		var err error
		if *size.into, err = parseBytes(size.value); err != nil {
			return fmt.Errorf("-%s: %w", size.name, err)
		}
	}
	if o.memoryBatch > maxBatchBytes {
		return fmt.Errorf("-memory-batch %q: at most %d bytes", l.memoryBatch, maxBatchBytes)
	}
	var err error
	if o.topics, err = parseTopics(l.topics, l.records); err != nil {
		return err
	}
	o.cells, err = parseCells(l.cells)
	return err
}

// parseBytes reads a size such as 64MiB, 512KiB or 0.
func parseBytes(s string) (int64, error) {
	unit := int64(1)
	for suffix, size := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = rest, size
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a size such as 64MiB", s)
	}
	return n * unit, nil
}
