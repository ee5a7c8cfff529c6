// Asyncack: the handler hands each record on and returns at once; whoever has it acknowledges it later.
//
//	go run ./examples/asyncack                             # needs nothing but Go: an embedded broker
//	go run ./examples/asyncack -brokers localhost:9092     # the same on a cluster of yours
//
// Behind the handler is a store that writes clicks in groups, several groups at once. When a group is written, its clicks
// are acknowledged from the store's goroutine, in no order; now and then the store refuses one, and that comes again. What
// is committed is never past the first click that is not acknowledged. Stdout gets what happened and, as its last line, the
// result as JSON. The exit status is 1 when anything was lost or out of order.
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
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/supervisor"
)

// stallLimit is how long the run waits for the next click before it gives up.
const stallLimit = time.Minute

// The orders that -order names.
const (
	orderNone      = "none"
	orderPartition = "partition"
)

// settings are the flags.
type settings struct {
	brokers     []string
	topic       string
	group       string
	records     int
	partitions  int
	order       string
	groupSize   int
	refuseEvery int
	work        time.Duration
	// run marks the clicks of this run, so that those of an earlier one on the same topic are told apart.
	run string
}

func main() {
	s, err := parse(os.Args[1:])
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	r, err := run(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "asyncack:", err)
		os.Exit(1)
	}
	if r.wrong() {
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	s := settings{run: fmt.Sprintf("%x", time.Now().UnixNano())}
	flags := flag.NewFlagSet("asyncack", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between; empty starts an embedded broker")
	flags.StringVar(&s.topic, "topic", "troupe-clicks", "topic, created when it is not there")
	flags.StringVar(&s.group, "group", "asyncack-"+s.run, "consumer group")
	flags.IntVar(&s.records, "records", 20_000, "clicks to produce")
	flags.IntVar(&s.partitions, "partitions", 4, "partitions of the topic when it is created")
	flags.StringVar(&s.order, "order", orderNone, "none: any clicks are in the store at the same time; partition: of each partition, those of one delivery")
	flags.IntVar(&s.groupSize, "group-size", 64, "the most clicks that the store writes at once")
	flags.IntVar(&s.refuseEvery, "refuse-every", 500, "every n-th click is refused the first time; 0 for none")
	flags.DurationVar(&s.work, "work", 4*time.Millisecond, "the longest time that a write takes; each takes a random part of it")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if *brokers != "" {
		s.brokers = strings.Split(*brokers, ",")
	}
	var err error
	switch {
	case s.order != orderNone && s.order != orderPartition:
		err = fmt.Errorf("-order is %q, want none or partition", s.order)
	case min(s.records, s.partitions, s.groupSize) < 1 || s.refuseEvery < 0 || s.work < 0 || flags.NArg() > 0:
		err = errors.New("-records, -partitions and -group-size are at least 1, -refuse-every and -work at least 0, and there are no arguments")
	default:
		return s, nil
	}
	fmt.Fprintln(os.Stderr, "asyncack:", err)
	return s, err
}

// run does the whole job.
func run(ctx context.Context, s settings) (*result, error) {
	clicks, err := cluster.Open("asyncack", s.brokers, s.topic, s.partitions)
	if err != nil {
		return nil, err
	}
	defer clicks.Close()
	s.brokers = clicks.Brokers()
	produced, err := clicks.Produce(ctx, s.records, s.click)
	if err != nil {
		return nil, err
	}
	books, started := newBooks(s), time.Now()
	if err := consume(ctx, s, books, produced); err != nil {
		return nil, err
	}
	r := &result{Produced: produced, Seconds: time.Since(started).Round(time.Millisecond).Seconds()}
	if err := r.fill(clicks, s.group, books); err != nil {
		return nil, err
	}
	fmt.Printf("%d clicks written in %d groups; %d were acknowledged before an earlier one of their partition, %d were refused and came again\n",
		r.Distinct, r.Groups, r.AckedEarly, r.Retries)
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	fmt.Println(string(line))
	return r, nil
}

// consume writes all clicks and returns when they are committed.
func consume(ctx context.Context, s settings, books *books, clicks int) error {
	store := newStore(s, books)
	defer store.close()
	order := api.Unordered(1) // one worker calls the handler, which takes no time; what it has handed on is bounded by MaxInTransit
	if s.order == orderPartition {
		order = api.PartitionOrder()
	}
	consumer, err := api.Spawn(ctx, api.Config{Brokers: s.brokers, GroupID: s.group, ClientID: "asyncack"},
		api.HandleAsync(s.topic, store.put,
			order,
			api.RecycleRecords(), // the store reads a record until it acknowledges it, and not beyond
			// The failures here are made to pass at once. A service keeps the default, which waits longer each time.
			api.Restart(supervisor.Policy{MaxRestarts: 10_000, Backoff: supervisor.Backoff{Initial: 10 * time.Millisecond}}),
		))
	if err != nil {
		return err
	}
	err = books.wait(ctx, clicks, consumer.Done(), stallLimit)
	return errors.Join(err, consumer.Close(context.WithoutCancel(ctx)), consumer.Err())
}
