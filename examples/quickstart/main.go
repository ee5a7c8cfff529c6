// Quickstart: a stream of orders, consumed by a group of consumers that fail now and then and lose nothing.
//
//	go run ./examples/quickstart                             # needs nothing but Go: an embedded broker
//	go run ./examples/quickstart -brokers localhost:9092     # the same on a cluster of yours
//
// A real producer writes keyed JSON orders, several consumers of one group handle them in this process, and some orders make
// the handler return an error or panic the first time. While it runs, progress goes to stderr. At the end stdout gets a table
// and, as its last line, the result as JSON. The exit status is 1 when anything was lost.
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

// stallLimit is how long the run waits for the next order before it gives up.
const stallLimit = time.Minute

// settings are the flags.
type settings struct {
	brokers    []string
	topic      string
	group      string
	records    int
	partitions int
	members    int
	failEvery  int
	// run marks the orders of this run, so that those of an earlier one on the same topic are told apart.
	run string
}

func main() {
	s, err := parse(os.Args[1:])
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	lost, err := run(ctx, s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
	}
	if err != nil || lost {
		stop()
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	s := settings{run: fmt.Sprintf("%x", time.Now().UnixNano())}
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between; empty starts an embedded broker")
	flags.StringVar(&s.topic, "topic", "troupe-orders", "topic, created when it is not there")
	flags.StringVar(&s.group, "group", "quickstart-"+s.run, "consumer group")
	flags.IntVar(&s.records, "records", 20_000, "orders to produce")
	flags.IntVar(&s.partitions, "partitions", 12, "partitions of the topic when it is created")
	flags.IntVar(&s.members, "members", 2, "consumers in the group, all in this process")
	flags.IntVar(&s.failEvery, "fail-every", 1_000, "every n-th order fails the first time, by an error or a panic in turn; 0 for none")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if *brokers != "" {
		s.brokers = strings.Split(*brokers, ",")
	}
	if s.records < 1 || s.partitions < 1 || s.members < 1 || s.failEvery < 0 || flags.NArg() > 0 {
		err := errors.New("-records, -partitions and -members are at least 1, -fail-every at least 0, and there are no arguments")
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		return s, err
	}
	return s, nil
}

// run does the whole job and reports whether anything was lost.
func run(ctx context.Context, s settings) (lost bool, err error) {
	started := time.Now()
	orders, err := cluster.Open("quickstart", s.brokers, s.topic, s.partitions)
	if err != nil {
		return false, err
	}
	defer orders.Close()
	s.brokers = orders.Brokers()

	ledger := newLedger(s)
	group, err := spawnGroup(ctx, s, ledger)
	if err != nil {
		return false, err
	}
	stopProgress := showProgress(ledger, s.records)
	produced, err := consume(ctx, s, orders, ledger, group)
	stopProgress()
	r := result{Produced: produced, Rebalances: group.rebalances()}
	err = errors.Join(err, group.close())
	if err != nil {
		return false, err
	}
	if err := r.fill(orders, s.group, ledger); err != nil {
		return false, err
	}
	r.ElapsedMillis = time.Since(started).Milliseconds()
	printTable(os.Stdout, group, &r)
	line, err := json.Marshal(&r)
	if err != nil {
		return false, err
	}
	fmt.Println(string(line))
	return r.lost(), nil
}

// consume waits for the group, produces the orders, and waits until all of them are handled.
func consume(ctx context.Context, s settings, orders *cluster.Cluster, ledger *ledger, group *group) (produced int, err error) {
	if err := group.waitJoined(ctx); err != nil {
		return 0, err
	}
	if produced, err = orders.Produce(ctx, s.records, s.order); err != nil {
		return produced, err
	}
	return produced, ledger.wait(ctx, produced, group.ended(), stallLimit)
}
