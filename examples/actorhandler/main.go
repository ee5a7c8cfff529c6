// Actorhandler: an actor of your own handles each partition, and acknowledges records in any order.
//
//	go run ./examples/actorhandler                             # an embedded broker
//	go run ./examples/actorhandler -brokers localhost:9092     # a cluster of yours
//
// Each payment is checked by a slow service, several at once. The checks end in any order; the auditor of the partition
// books each as it comes and acknowledges it then, so a later payment is acknowledged before an earlier one. What is
// committed is still never past the first that is not: that is Troupe's work. Now and then a check fails, the auditor
// refuses the payment, and it is delivered again. The exit status is 1 when anything was lost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/examples/internal/cluster"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

// runLimit is how long the whole run may take.
const runLimit = 2 * time.Minute

type settings struct {
	brokers    []string
	topic      string
	group      string
	records    int
	partitions int
}

func main() {
	s, err := parse(os.Args[1:])
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit, fmt.Errorf("not done after %v", runLimit))
	err = run(ctx, s)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "actorhandler:", err)
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("actorhandler", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between; empty starts an embedded broker")
	flags.StringVar(&s.topic, "topic", "troupe-payments", "topic, created when it is not there")
	flags.StringVar(&s.group, "group", fmt.Sprintf("actorhandler-%x", time.Now().UnixNano()), "consumer group")
	flags.IntVar(&s.records, "records", 2_000, "payments to produce")
	flags.IntVar(&s.partitions, "partitions", 4, "partitions of the topic when it is created")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if *brokers != "" {
		s.brokers = strings.Split(*brokers, ",")
	}
	if s.records < 1 || s.partitions < 1 || flags.NArg() > 0 {
		err := errors.New("-records and -partitions are at least 1, and there are no arguments")
		fmt.Fprintln(os.Stderr, "actorhandler:", err)
		return s, err
	}
	return s, nil
}

func run(ctx context.Context, s settings) error {
	payments, err := cluster.Open("actorhandler", s.brokers, s.topic, s.partitions)
	if err != nil {
		return err
	}
	defer payments.Close()
	s.brokers = payments.Brokers()
	produced, err := payments.Produce(ctx, s.records, func(number int) (string, []byte) {
		return fmt.Sprintf("account-%d", number%97), fmt.Append(nil, number)
	})
	if err != nil {
		return err
	}

	books := newBooks(payments.Before(), produced)
	consumer, err := api.Spawn(ctx, api.Config{Brokers: s.brokers, GroupID: s.group},
		api.HandleActor(s.topic, func(tp kafka.TopicPartition) actor.Actor { return newAuditor(tp, books) },
			api.MaxRecords(32), // so many checks of a partition run at once
			api.Restart(supervisor.Policy{MaxRestarts: 1_000, Backoff: supervisor.Backoff{Initial: 10 * time.Millisecond}}),
		))
	if err != nil {
		return err
	}
	select {
	case <-books.complete:
	case <-consumer.Done():
		err = errors.Join(errors.New("the consumer ended"), consumer.Err())
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err = errors.Join(err, consumer.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	return books.report(payments, s.group)
}
