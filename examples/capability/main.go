// Capability: what the token promises, played against a live consumer.
//
//	go run ./examples/capability                             # needs nothing but Go: an embedded broker
//	go run ./examples/capability -brokers localhost:9092     # the same on a cluster of yours
//
// Records flow all the time. Each of the seven semantics of docs/token.md is tried, and stdout gets a line with what came out,
// such as the text of a refusal; the last line is the result as JSON. The exit status is 1 when one of them did not hold.
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
	limit      time.Duration
}

// check is one of the seven semantics: it returns the proof, or what did not hold.
type check struct {
	rule string
	run  func(ctx context.Context, c *live) (proof string, err error)
}

var checks = []check{
	{"a callback calls the consumer again, nested, last in first out", nested},
	{"whoever has no token is refused at once, and nothing else stops", refused},
	{"a token is handed over in one step, and the receiver is watched", handed},
	{"two users of one token are never inside together", oneInside},
	{"a callback that returns too early does no damage", outlived},
	{"a token of a holder that is late, panics or ends is dead for ever", revoked},
	{"what a token may do follows the state of its partitions", allowed},
}

// result is the last line.
type result struct {
	Checks  int     `json:"checks"`
	Failed  int     `json:"failed"`
	Handled int64   `json:"handled"`
	Seconds float64 `json:"seconds"`
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
		fmt.Fprintln(os.Stderr, "capability:", err)
		os.Exit(1)
	}
	if r.Failed > 0 {
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("capability", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between; empty starts an embedded broker")
	name := fmt.Sprintf("%x", time.Now().UnixNano())
	flags.StringVar(&s.topic, "topic", "troupe-tickets-"+name, "topic, created when it is not there")
	flags.StringVar(&s.group, "group", "capability-"+name, "consumer group")
	flags.IntVar(&s.partitions, "partitions", 4, "partitions of the topic when it is created")
	flags.DurationVar(&s.limit, "limit", 30*time.Second, "how long each check may take")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if *brokers != "" {
		s.brokers = strings.Split(*brokers, ",")
	}
	if s.partitions < 2 || s.limit < time.Second || flags.NArg() > 0 {
		err := errors.New("-partitions is at least 2, -limit at least 1s, and there are no arguments")
		fmt.Fprintln(os.Stderr, "capability:", err)
		return s, err
	}
	return s, nil
}

// run plays all checks, each from a consumer at rest.
func run(ctx context.Context, s settings) (r *result, err error) {
	tickets, err := cluster.Open("capability", s.brokers, s.topic, s.partitions)
	if err != nil {
		return nil, err
	}
	defer tickets.Close()
	started := time.Now()
	c, err := newLive(ctx, s, tickets)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	r = &result{Checks: len(checks)}
	for i, check := range checks {
		proof, err := c.try(ctx, check)
		word := "ok"
		if err != nil {
			word, proof = "FAILED", err.Error()
			r.Failed++
		}
		fmt.Printf("%d %-6s %s: %s\n", i+1, word, check.rule, proof)
	}
	r.Handled, r.Seconds = c.handled.Load(), time.Since(started).Round(time.Millisecond).Seconds()
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	fmt.Println(string(line))
	return r, nil
}
