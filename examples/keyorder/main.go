// Keyorder: a ledger of payments. Those of one account are applied one after the other and in order, those of different
// accounts at the same time, by 64 workers over a few partitions.
//
//	go run ./examples/keyorder                             # needs nothing but Go: an embedded broker
//	go run ./examples/keyorder -brokers localhost:9092     # the same on a cluster of yours
//
// Each payment says which one of its account it is, and what the balance is after it. The ledger keeps balances of its own
// and compares: a payment applied too early, too late, twice at once or not at all is seen. Some payments fail the first
// time; those behind them in the same account wait, all others go on. Stdout gets what happened and, as its last line, the
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

// stallLimit is how long the run waits for the next payment before it gives up.
const stallLimit = time.Minute

// settings are the flags.
type settings struct {
	brokers    []string
	topic      string
	group      string
	records    int
	partitions int
	accounts   int
	workers    int
	failEvery  int
	work       time.Duration
	// run marks the payments of this run, so that those of an earlier one on the same topic are told apart.
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
		fmt.Fprintln(os.Stderr, "keyorder:", err)
		os.Exit(1)
	}
	if r.wrong() {
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	s := settings{run: fmt.Sprintf("%x", time.Now().UnixNano())}
	flags := flag.NewFlagSet("keyorder", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between; empty starts an embedded broker")
	flags.StringVar(&s.topic, "topic", "troupe-ledger", "topic, created when it is not there")
	flags.StringVar(&s.group, "group", "keyorder-"+s.run, "consumer group")
	flags.IntVar(&s.records, "records", 20_000, "payments to produce")
	flags.IntVar(&s.partitions, "partitions", 4, "partitions of the topic when it is created")
	flags.IntVar(&s.accounts, "accounts", 1_000, "accounts that the payments are spread over")
	flags.IntVar(&s.workers, "workers", 64, "payments that are applied at the same time, at most")
	flags.IntVar(&s.failEvery, "fail-every", 500, "every n-th payment fails the first time; 0 for none")
	flags.DurationVar(&s.work, "work", 2*time.Millisecond, "the longest time that a payment takes; each takes a random part of it")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if *brokers != "" {
		s.brokers = strings.Split(*brokers, ",")
	}
	if min(s.records, s.partitions, s.accounts, s.workers) < 1 || s.failEvery < 0 || s.work < 0 || flags.NArg() > 0 {
		err := errors.New("-records, -partitions, -accounts and -workers are at least 1, -fail-every and -work at least 0, and there are no arguments")
		fmt.Fprintln(os.Stderr, "keyorder:", err)
		return s, err
	}
	return s, nil
}

// run does the whole job.
func run(ctx context.Context, s settings) (*result, error) {
	payments, err := cluster.Open("keyorder", s.brokers, s.topic, s.partitions)
	if err != nil {
		return nil, err
	}
	defer payments.Close()
	s.brokers = payments.Brokers()
	produced, err := payments.Produce(ctx, s.records, newTill(s).payment)
	if err != nil {
		return nil, err
	}
	ledger, started := newLedger(s), time.Now()
	if err := consume(ctx, s, ledger, produced); err != nil {
		return nil, err
	}
	took := time.Since(started).Round(time.Millisecond)
	fmt.Printf("%d payments of %d accounts in %.1f s, by up to %d workers at once; one after the other the work alone takes %.1f s\n",
		produced, s.accounts, took.Seconds(), s.workers, ledger.worked().Seconds())
	r := &result{Produced: produced, Seconds: took.Seconds()}
	if err := r.fill(payments, s.group, ledger); err != nil {
		return nil, err
	}
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	fmt.Println(string(line))
	return r, nil
}

// consume applies all payments and returns when they are committed.
func consume(ctx context.Context, s settings, ledger *ledger, payments int) error {
	consumer, err := api.Spawn(ctx, api.Config{Brokers: s.brokers, GroupID: s.group, ClientID: "keyorder"},
		api.Handle(s.topic, ledger.apply,
			api.KeyOrder(s.workers),
			// The failures here are made to pass at once. A service keeps the default, which waits longer each time.
			api.Restart(supervisor.Policy{MaxRestarts: 100, Backoff: supervisor.Backoff{Initial: 10 * time.Millisecond}}),
		))
	if err != nil {
		return err
	}
	err = ledger.wait(ctx, payments, consumer.Done(), stallLimit)
	return errors.Join(err, consumer.Close(context.WithoutCancel(ctx)), consumer.Err())
}
