// Replay: reads what a topic got between two times, without a consumer group, and ends by itself.
//
//	go run ./examples/replay                             # needs nothing but Go: an embedded broker
//	go run ./examples/replay -brokers localhost:9092     # the same on a cluster of yours
//
// A third of the events is produced before the first time, a third between both, and a third after the second. The replay has
// all partitions from the first time up to the second and ends when all of that is handled, although a producer goes on
// meanwhile. Stdout gets the result as JSON in its last line. The exit status is 1 when an event of that time is missing, or
// another one was replayed.
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
	"sync"
	"time"

	"github.com/troupego/troupe/examples/internal/cluster"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// settings are the flags.
type settings struct {
	brokers    []string
	topic      string
	records    int
	partitions int
}

// result is the last line on stdout.
type result struct {
	// Produced events were confirmed by the brokers before the replay began, Live ones while it ran.
	Produced int `json:"produced"`
	Live     int `json:"live"`
	// Wanted events came between both times, as the brokers' offsets have it.
	Wanted int64 `json:"wanted"`
	// Replayed counts the events among them that were handled, Lost those that were not, Repeated those that came more than
	// once, and Outside the events of another time that were handled.
	Replayed int64 `json:"replayed"`
	Lost     int64 `json:"lost"`
	Repeated int   `json:"repeated"`
	Outside  int   `json:"outside"`
	// Seconds is how long the consumer ran.
	Seconds float64 `json:"seconds"`
}

func (r *result) wrong() bool {
	return r.Lost > 0 || r.Repeated > 0 || r.Outside > 0 || r.Replayed != r.Wanted
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
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
	if r.wrong() {
		os.Exit(1)
	}
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("replay", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between; empty starts an embedded broker")
	flags.StringVar(&s.topic, "topic", fmt.Sprintf("troupe-replay-%x", time.Now().UnixNano()), "topic, created when it is not there")
	flags.IntVar(&s.records, "records", 30_000, "events to produce, a third of them between both times")
	flags.IntVar(&s.partitions, "partitions", 4, "partitions of the topic when it is created")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if *brokers != "" {
		s.brokers = strings.Split(*brokers, ",")
	}
	if s.records < 3 || s.partitions < 1 || flags.NArg() > 0 {
		err := errors.New("-records is at least 3, -partitions at least 1, and there are no arguments")
		fmt.Fprintln(os.Stderr, "replay:", err)
		return s, err
	}
	return s, nil
}

// run does the whole job.
func run(ctx context.Context, s settings) (*result, error) {
	events, err := cluster.Open("replay", s.brokers, s.topic, s.partitions)
	if err != nil {
		return nil, err
	}
	defer events.Close()
	r := new(result)
	var times [3]time.Time
	var offsets [3]map[int32]int64 // where each third begins
	for third := range times {
		time.Sleep(5 * time.Millisecond) // records have their time in milliseconds: no two thirds share one
		times[third] = time.Now()
		if offsets[third], err = events.EndOffsets(); err != nil {
			return nil, err
		}
		n, err := events.Produce(ctx, s.records/3, event)
		if r.Produced += n; err != nil {
			return nil, err
		}
	}

	seen := &handled{count: make(map[spot]int)}
	live := goOn(ctx, events)
	started := time.Now()
	err = api.Run(ctx, api.Config{Brokers: events.Brokers(), ClientID: "replay"}, // no group
		api.Handle(s.topic, seen.handle, api.KeyOrder(16)),
		api.ReadRange(kafka.WholeTopic(s.topic),
			rebalance.StartBy(rebalance.ResetAt(times[1].UnixMilli())), rebalance.EndAt(times[2].UnixMilli())))
	r.Seconds = time.Since(started).Round(time.Millisecond).Seconds()
	n, failed := live()
	r.Live = n
	if err := errors.Join(err, failed, ctx.Err()); err != nil { // Run returns nil, too, when it was told to end early
		return nil, err
	}
	seen.result(r, offsets[1], offsets[2])
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	fmt.Println(string(line))
	return r, nil
}

// goOn produces events until it is told to stop; then it returns how many there were.
func goOn(ctx context.Context, events *cluster.Cluster) (stop func() (int, error)) {
	end := make(chan struct{})
	produced, failed := 0, error(nil)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			n, err := events.Produce(ctx, 100, event)
			if produced += n; err != nil {
				failed = err
				return
			}
			select {
			case <-end:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	return func() (int, error) {
		close(end)
		done.Wait()
		return produced, failed
	}
}

// event makes one event's record; the keys spread over all partitions.
func event(number int) (key string, value []byte) {
	return "device-" + strconv.Itoa(number%997), strconv.AppendInt(nil, int64(number), 10)
}

// spot is one event's place.
type spot struct {
	partition int32
	offset    int64
}

// handled is what was replayed.
type handled struct {
	mu    sync.Mutex
	count map[spot]int
}

func (h *handled) handle(_ context.Context, record *kafka.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count[spot{record.Partition, record.Offset}]++
	return nil
}

// result counts, for the events from the offsets first on and before end.
func (h *handled) result(r *result, first, end map[int32]int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for partition, last := range end {
		r.Wanted += last - first[partition]
	}
	for at, n := range h.count {
		if n > 1 {
			r.Repeated++
		}
		if at.offset < first[at.partition] || at.offset >= end[at.partition] {
			r.Outside++
			continue
		}
		r.Replayed++
	}
	r.Lost = r.Wanted - r.Replayed
}
