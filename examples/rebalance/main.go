// Rebalance: members of a group come and go while records flow; the partitions that stay are handled on.
//
//	go run ./examples/rebalance                             # needs nothing but Go: an embedded broker
//	go run ./examples/rebalance -brokers localhost:9092     # the same on a cluster of yours
//
// A table on stderr shows who owns what, in which state. At the end stdout gets, as its last line, the result as JSON: what
// was lost, how many records two members had at once, and the longest time that a partition which stayed with its member
// went without a record. The exit status is 1 when anything was lost or two members had the same record at once.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/troupego/troupe/examples/internal/cluster"
)

// settings are the flags.
type settings struct {
	brokers    []string
	topic      string
	group      string
	partitions int
	members    int
	every      time.Duration
	rate       int
	table      bool
}

func main() {
	s, err := parse(os.Args[1:])
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r, err := run(ctx, s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "rebalance:", err)
		os.Exit(1)
	}
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
	if r.Lost > 0 || r.Overlaps > 0 {
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("rebalance", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between; empty starts an embedded broker")
	run := fmt.Sprintf("%x", time.Now().UnixNano())
	flags.StringVar(&s.topic, "topic", "troupe-meters-"+run, "topic, created when it is not there")
	flags.StringVar(&s.group, "group", "rebalance-"+run, "consumer group")
	flags.IntVar(&s.partitions, "partitions", 12, "partitions of the topic when it is created")
	flags.IntVar(&s.members, "members", 4, "members that come, one after the other, and then go in turn")
	flags.DurationVar(&s.every, "every", 2*time.Second, "how often a member comes or goes")
	flags.IntVar(&s.rate, "rate", 5000, "records a second")
	flags.BoolVar(&s.table, "table", true, "show who owns what on stderr")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if *brokers != "" {
		s.brokers = strings.Split(*brokers, ",")
	}
	if min(s.partitions, s.members, s.rate) < 1 || s.every < 100*time.Millisecond || flags.NArg() > 0 {
		err := errors.New("-partitions, -members and -rate are at least 1, -every at least 100ms, and there are no arguments")
		fmt.Fprintln(os.Stderr, "rebalance:", err)
		return s, err
	}
	return s, nil
}

// result is the last line.
type result struct {
	Produced   int     `json:"produced"`
	Distinct   int     `json:"distinct"`
	Lost       int     `json:"lost"`
	Repeated   int     `json:"repeated"`
	Overlaps   int     `json:"overlaps"`
	Rebalances int     `json:"rebalances"`
	MaxKeptGap int64   `json:"max_kept_gap_ms"`
	Committed  int64   `json:"committed"`
	Lag        int64   `json:"lag"`
	Seconds    float64 `json:"seconds"`
}

func run(ctx context.Context, s settings) (*result, error) {
	started := time.Now()
	meters, err := cluster.Open("rebalance", s.brokers, s.topic, s.partitions)
	if err != nil {
		return nil, err
	}
	defer meters.Close()
	s.brokers = meters.Brokers()
	l := newLedger()
	t := &troupe{settings: s, ledger: l}
	producing, stopProducing := context.WithCancel(ctx)
	produced := make(chan int, 1)
	go func() { produced <- produce(producing, meters, s.rate) }()
	err = t.comeAndGo(ctx)
	stopProducing()
	r := &result{Produced: <-produced}
	if err == nil {
		err = l.wait(ctx, r.Produced, time.Minute)
	}
	if err = errors.Join(err, t.closeAll()); err != nil {
		return nil, err
	}
	l.fill(r)
	r.Rebalances = t.rebalances
	if r.Committed, r.Lag, err = meters.Consumed(s.group); err != nil {
		return nil, err
	}
	r.Seconds = time.Since(started).Round(time.Millisecond).Seconds()
	return r, nil
}

// produce writes at a steady rate until ctx ends, and returns how many records were confirmed.
func produce(ctx context.Context, meters *cluster.Cluster, rate int) (produced int) {
	const beat = 20 * time.Millisecond
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	due := time.Now()
	for ctx.Err() == nil {
		n := int(time.Since(due).Seconds() * float64(rate))
		due = due.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
		wrote, err := meters.Produce(context.WithoutCancel(ctx), n, func(number int) (string, []byte) {
			return fmt.Sprint("meter-", produced+number), []byte("1")
		})
		produced += wrote
		if err != nil {
			fmt.Fprintln(os.Stderr, "rebalance:", err)
			return produced
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return produced
}
