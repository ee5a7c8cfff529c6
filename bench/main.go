package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if isChild() {
		os.Exit(childMain())
	}
	o, err := parseOptions(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err = run(ctx, o)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

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
}

func parseOptions(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	brokers := flags.String("broker", brokerEmbedded, "where: "+strings.Join(brokerKinds, ","))
	mode := flags.String("mode", modeThroughput, "what: "+strings.Join(modes, ","))
	consumers := flags.String("consumers", strings.Join(consumerNames, ","), "who")
	topics := flags.String("topics", "100:none", "throughput: list of SIZE:CODEC, or all")
	records := flags.Int64("records", 0, "throughput: records of a topic (default 1.2 million, 300,000 from 1 KB on)")
	heap := flags.String("heap", "64MiB", "other live heap of every consumer process")
	flags.IntVar(&o.runs, "runs", 3, "runs of each consumer, taking turns")
	flags.BoolVar(&o.json, "json", false, "print JSON instead of tables")
	flags.StringVar(&o.profile, "profile", "", "directory for profiles of every consumer run, of CPU time and of allocations")
	flags.DurationVar(&o.limit, "limit", 2*time.Minute, "bound of one run of one consumer")
	flags.IntVar(&o.rate, "rate", 200, "latency: records per second")
	flags.DurationVar(&o.duration, "duration", 10*time.Second, "latency, idle: time measured")
	flags.Int64Var(&o.slowRecords, "slow-records", 6_000_000, "slow: records of the topic")
	flags.DurationVar(&o.sleep, "sleep", time.Millisecond, "slow: time per record of the slow partition")
	flags.DurationVar(&o.window, "window", 30*time.Second, "slow: longest time measured")
	flags.IntVar(&o.idlePartitions, "idle-partitions", 1000, "idle: partitions of the topic")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	var err error
	for _, list := range []struct {
		name, value string
		known       []string
		into        *[]string
	}{
		{"broker", *brokers, brokerKinds, &o.brokers},
		{"mode", *mode, modes, &o.modes},
		{"consumers", *consumers, consumerNames, &o.consumers},
	} {
		*list.into = strings.Split(list.value, ",")
		for _, word := range *list.into {
			if !slices.Contains(list.known, word) {
				return nil, fmt.Errorf("-%s %q: want some of %q", list.name, word, list.known)
			}
		}
	}
	if o.topics, err = parseTopics(*topics, *records); err != nil {
		return nil, err
	}
	if o.heap, err = parseBytes(*heap); err != nil {
		return nil, fmt.Errorf("-heap: %w", err)
	}
	if o.runs < 1 || o.rate < 1 || o.idlePartitions < 1 || flags.NArg() > 0 {
		return nil, fmt.Errorf("runs, rate and partitions are at least 1, and nothing follows the flags: %q", args)
	}
	return o, nil
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
