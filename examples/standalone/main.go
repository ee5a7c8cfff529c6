// Standalone: replays what one partition has got since a given time, without a consumer group.
//
//	go run ./examples/standalone                             # needs nothing but Go: an embedded broker
//	go run ./examples/standalone -brokers localhost:9092     # the same on a cluster of yours
//
// Half of the events are produced before the time and half after it. A first consumer is assigned one partition from that time
// and is closed halfway; a second one goes on where it was, since the replay keeps its position in a store of its own. Stdout
// gets what happened and, as its last line, the result as JSON. The exit status is 1 when an event of that partition since that
// time is missing, or another one was replayed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/troupego/troupe/examples/internal/cluster"
	"github.com/troupego/troupe/pkg/kafka"
)

// settings are the flags.
type settings struct {
	brokers    []string
	topic      string
	records    int
	partitions int
	partition  int
}

// result is the last line on stdout. All counts but Produced are of the partition that is replayed.
type result struct {
	// Produced events were confirmed by the brokers, over all partitions.
	Produced int `json:"produced"`
	// Wanted events came into the partition since the time, as the brokers' offsets have it.
	Wanted int64 `json:"wanted"`
	// Replayed counts the events among them that were handled, Lost those that were not, Repeated those that came more than
	// once, and Early events that are older than the time.
	Replayed int64 `json:"replayed"`
	Lost     int64 `json:"lost"`
	Repeated int   `json:"repeated"`
	Early    int   `json:"early"`
	// Seconds is the time that both consumers took together.
	Seconds float64 `json:"seconds"`
}

func (r *result) wrong() bool {
	return r.Lost > 0 || r.Repeated > 0 || r.Early > 0 || r.Replayed != r.Wanted
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
		fmt.Fprintln(os.Stderr, "standalone:", err)
		os.Exit(1)
	}
	if r.wrong() {
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("standalone", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between; empty starts an embedded broker")
	flags.StringVar(&s.topic, "topic", fmt.Sprintf("troupe-events-%x", time.Now().UnixNano()), "topic, created when it is not there")
	flags.IntVar(&s.records, "records", 20_000, "events to produce, half of them since the time")
	flags.IntVar(&s.partitions, "partitions", 4, "partitions of the topic when it is created")
	flags.IntVar(&s.partition, "partition", 1, "the partition to replay")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if *brokers != "" {
		s.brokers = strings.Split(*brokers, ",")
	}
	if s.records < 2 || s.partitions < 1 || s.partition < 0 || s.partition >= s.partitions || flags.NArg() > 0 {
		err := errors.New("-records is at least 2, -partitions at least 1, -partition one of them, and there are no arguments")
		fmt.Fprintln(os.Stderr, "standalone:", err)
		return s, err
	}
	return s, nil
}

// run does the whole job.
func run(ctx context.Context, s settings) (*result, error) {
	events, err := cluster.Open("standalone", s.brokers, s.topic, s.partitions)
	if err != nil {
		return nil, err
	}
	defer events.Close()
	half := s.records / 2
	old, err := events.Produce(ctx, half, event)
	if err != nil {
		return nil, err
	}
	middle, err := events.EndOffsets()
	if err != nil {
		return nil, err
	}
	time.Sleep(5 * time.Millisecond) // records have their time in milliseconds: none of both halves share one
	since := time.Now()
	fresh, err := events.Produce(ctx, s.records-half, event)
	if err != nil {
		return nil, err
	}
	ends, err := events.EndOffsets()
	if err != nil {
		return nil, err
	}
	p := int32(s.partition)
	replay := newReplay(kafka.TopicPartition{Topic: s.topic, Partition: p}, since, middle[p], ends[p])
	started := time.Now()
	for _, until := range []int64{(middle[p] + ends[p]) / 2, ends[p]} {
		if err := replay.consume(ctx, events.Brokers(), until); err != nil {
			return nil, err
		}
		fmt.Printf("%v: %d of %d events replayed when this consumer was closed\n", replay.partition, replay.result().Replayed, ends[p]-middle[p])
	}
	r := replay.result()
	r.Produced, r.Seconds = old+fresh, time.Since(started).Round(time.Millisecond).Seconds()
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	fmt.Println(string(line))
	return r, nil
}

// event makes one event's record; the keys spread over all partitions.
func event(number int) (key string, value []byte) {
	return "device-" + strconv.Itoa(number%997), strconv.AppendInt(nil, int64(number), 10)
}
