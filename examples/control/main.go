// Control: seek by time, pause, resume and skip on a live consumer, through a small HTTP API on loopback.
//
//	go run ./examples/control                             # needs nothing but Go: an embedded broker
//	go run ./examples/control -brokers localhost:9092     # the same on a cluster of yours
//	go run ./examples/control -serve                      # keeps the API open when the script is over
//
// A script asks the API for one thing after the other, as a person would with curl, and looks whether the consumer did it. Stdout gets
// a line for each check with its proof and, as its last line, the result as JSON. The exit status is 1 when a check failed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/troupego/troupe/examples/internal/cluster"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// poison is the value of an event that the handler can never handle.
var poison = []byte("poison")

// settings are the flags.
type settings struct {
	brokers    []string
	topic      string
	group      string
	listen     string
	records    int
	partitions int
	serve      bool
}

// result is the last line on stdout.
type result struct {
	Checks int `json:"checks"`
	Failed int `json:"failed"`
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
		fmt.Fprintln(os.Stderr, "control:", err)
		os.Exit(1)
	}
	if r.Failed > 0 {
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("control", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between; empty starts an embedded broker")
	number := fmt.Sprintf("%x", time.Now().UnixNano())
	flags.StringVar(&s.topic, "topic", "troupe-control-"+number, "topic, created when it is not there")
	flags.StringVar(&s.group, "group", "control-"+number, "consumer group")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:0", "loopback address of the HTTP API; port 0 takes a free one")
	flags.IntVar(&s.records, "records", 1_000, "events to produce in each part of the script")
	flags.IntVar(&s.partitions, "partitions", 3, "partitions of the topic when it is created")
	flags.BoolVar(&s.serve, "serve", false, "keep the API open until interrupted when the script is over")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if *brokers != "" {
		s.brokers = strings.Split(*brokers, ",")
	}
	if s.records < 10 || s.partitions < 2 || flags.NArg() > 0 {
		err := errors.New("-records is at least 10, -partitions at least 2, and there are no arguments")
		fmt.Fprintln(os.Stderr, "control:", err)
		return s, err
	}
	return s, nil
}

// run does the whole job.
func run(ctx context.Context, s settings) (r *result, err error) {
	events, err := cluster.Open("control", s.brokers, s.topic, s.partitions)
	if err != nil {
		return nil, err
	}
	defer events.Close()
	l := newLedger(func(record *kafka.Record) bool { return string(record.Value) == string(poison) })
	consumer, err := api.Spawn(ctx, api.Config{Brokers: events.Brokers(), GroupID: s.group, ClientID: "control"}, api.Handle(s.topic, l.handle))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, consumer.Close(context.WithoutCancel(ctx))) }()
	if err := consumer.WaitJoined(ctx); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return nil, err
	}
	web := &http.Server{Handler: (&server{consumer: consumer, topic: s.topic}).routes(), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = web.Serve(listener) }()
	defer func() { _ = web.Close() }()

	p := &play{base: "http://" + listener.Addr().String(), events: events, ledger: l, records: s.records, group: s.group}
	p.run(ctx)
	r = &result{Checks: p.checks, Failed: p.failed}
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if s.serve {
		fmt.Printf("the API is at %s until you interrupt: GET /partitions, POST /pause, /resume, /seek, /skip\n", p.base)
		<-ctx.Done()
	}
	fmt.Println(string(line))
	return r, nil
}

// event makes one event's record; the keys spread over all partitions.
func event(number int) (key string, value []byte) {
	return "device-" + strconv.Itoa(number%997), strconv.AppendInt(nil, int64(number), 10)
}
