// Worker: a plain service around a consumer, as one would deploy it. Start it as often as you like: the group shares the
// partitions.
//
//	go run ./examples/worker -brokers localhost:9092 -topic orders -group billing -out handled.txt
//
// It handles each record of a topic for a given time and then, before the record is acknowledged, appends the line
// "PARTITION OFFSET" to a file in one write. So the file has every record that was finished, whatever happens to the
// process afterwards. Errors and events go to stderr, a line of JSON each.
//
// SIGTERM or SIGINT drains: the handlers finish, what they finished is committed, the member leaves, and the exit status
// is 0. A second signal leaves at once, without a commit, and the exit status is 128 and the signal's number (143 for
// SIGTERM). The exit status is 1 when the consumer failed or could not finish in time, 2 for wrong flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
)

// The exit statuses besides 0.
const (
	exitFailed = 1
	exitUsage  = 2
	exitSignal = 128 // and the signal's number
)

// settings are the flags.
type settings struct {
	brokers        []string
	topic, pattern string
	group          string
	instance       string
	clientID       string
	sessionTimeout time.Duration
	rebalance      time.Duration
	drain          time.Duration
	maxProcessing  time.Duration
	metadataAge    time.Duration
	requestTimeout time.Duration
	handler        string
	order          string
	workers        int
	maxRecords     int
	work           time.Duration
	spread         time.Duration
	block          []int64
	offsetMap      bool
	out            string
	trace          string
}

func main() {
	s, err := parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(exitUsage)
	}
	log := newLogger()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, drain := context.WithCancel(context.Background())
	go func() {
		first := <-signals
		log.Info("draining; a second signal leaves at once", zap.Stringer("signal", first))
		drain()
		second := <-signals
		log.Warn("leaving at once, without a commit", zap.Stringer("signal", second))
		status := exitFailed
		if number, ok := second.(syscall.Signal); ok {
			status = exitSignal + int(number)
		}
		os.Exit(status)
	}()
	if err := run(ctx, s, log); err != nil {
		log.Error("failed", zap.Error(err))
		if errors.As(err, new(*api.ConfigError)) {
			os.Exit(exitUsage)
		}
		os.Exit(exitFailed)
	}
	log.Info("done")
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("worker", flag.ContinueOnError)
	brokers := flags.String("brokers", "", "bootstrap servers, host:port with commas between (required)")
	flags.StringVar(&s.topic, "topic", "", "topic")
	flags.StringVar(&s.pattern, "pattern", "", "expression that the names of the topics match, in place of -topic")
	flags.StringVar(&s.group, "group", "", "consumer group (required)")
	flags.StringVar(&s.instance, "instance", "", "group.instance.id, which makes this a static member")
	flags.StringVar(&s.clientID, "client-id", "worker", "client.id")
	flags.DurationVar(&s.sessionTimeout, "session-timeout", 45*time.Second, "after how long without a heartbeat the member is taken for dead")
	flags.DurationVar(&s.rebalance, "rebalance-timeout", 0, "how long a rebalance waits for a member to join again; 0 for the default, 60s")
	flags.DurationVar(&s.drain, "drain", 0, "how long handlers may go on with a partition that moves away; 0 for the default, 30s")
	flags.DurationVar(&s.maxProcessing, "max-processing", 0, "how long one record may take before the member leaves the group until it is done; 0 for any time")
	flags.DurationVar(&s.metadataAge, "metadata-age", 0, "metadata.max.age.ms; 0 for the default, 1m")
	flags.DurationVar(&s.requestTimeout, "request-timeout", 0, "request.timeout.ms; 0 for the default, 30s")
	flags.StringVar(&s.handler, "handler", kindFunc, "func, batch or actor")
	flags.StringVar(&s.order, "order", orderPartition, "what is handled one after the other: partition, key or none")
	flags.IntVar(&s.workers, "workers", 16, "how many records are handled at once with -order key and none")
	flags.IntVar(&s.maxRecords, "max-records", 500, "the most records of one delivery")
	flags.DurationVar(&s.work, "work", 0, "time to spend on each record")
	flags.DurationVar(&s.spread, "spread", 0, "time to spend on a record beside -work, at most; it is drawn for each")
	block := flags.String("block", "", "offsets with commas between, of every partition, whose records are worked on for ever")
	flags.BoolVar(&s.offsetMap, "offset-map", false, "commit what is finished beyond the committed offset, so that it is not repeated")
	flags.StringVar(&s.out, "out", "", `file to append "PARTITION OFFSET" to, for each handled record (required)`)
	flags.StringVar(&s.trace, "trace", "", `file to append "begin|done|cut PARTITION OFFSET EPOCH NANOSECONDS" to; empty for none`)
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	var wrong []string
	for _, required := range []struct{ name, value string }{{"brokers", *brokers}, {"group", s.group}, {"out", s.out}} {
		if required.value == "" {
			wrong = append(wrong, "-"+required.name+" is missing")
		}
	}
	if (s.topic == "") == (s.pattern == "") {
		wrong = append(wrong, "one of -topic and -pattern is needed")
	}
	if s.handler != kindFunc && s.handler != kindBatch && s.handler != kindActor {
		wrong = append(wrong, "-handler is func, batch or actor")
	}
	if s.order != orderPartition && s.order != orderKey && s.order != orderNone {
		wrong = append(wrong, "-order is partition, key or none")
	}
	for text := range strings.SplitSeq(*block, ",") {
		if offset, err := strconv.ParseInt(text, 10, 64); err == nil && offset >= 0 {
			s.block = append(s.block, offset)
		} else if *block != "" {
			wrong = append(wrong, "-block is offsets with commas between")
			break
		}
	}
	if s.work < 0 || s.spread < 0 {
		wrong = append(wrong, "-work and -spread are not negative")
	}
	if flags.NArg() > 0 {
		wrong = append(wrong, "there are no arguments")
	}
	if len(wrong) > 0 {
		err := errors.New(strings.Join(wrong, "; "))
		fmt.Fprintln(os.Stderr, "worker:", err)
		return s, err
	}
	s.brokers = strings.Split(*brokers, ",")
	return s, nil
}

// run consumes until ctx ends or the consumer fails.
func run(ctx context.Context, s settings, log *zap.Logger) error {
	output, err := openOutput(s.out, s.trace)
	if err != nil {
		return err
	}
	err = api.Run(ctx, api.Config{
		Brokers:         s.brokers,
		GroupID:         s.group,
		GroupInstanceID: s.instance,
		ClientID:        s.clientID,
		SessionTimeout:  s.sessionTimeout,
		DrainTimeout:    s.drain,
		// A handler that hangs would keep its partition for ever: with a limit another worker takes it.
		MaxProcessingTime: s.maxProcessing,
		MetadataMaxAge:    s.metadataAge,
		RequestTimeout:    s.requestTimeout,
		OffsetMap:         s.offsetMap,
		RebalanceTimeout:  s.rebalance,
	},
		(&job{output: output, work: s.work, spread: s.spread, block: s.block}).registration(s),
		api.WithLogger(log),
		api.WithObserver(func(e event.Event) { logEvent(log, e) }),
	)
	return errors.Join(err, output.Close())
}

// newLogger writes lines of JSON to stderr. None is left out, unlike with zap's own setup for production.
func newLogger() *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(config), zapcore.Lock(os.Stderr), zap.InfoLevel))
}

// logEvent writes an event's name and all it says, and by themselves the things one looks for in the log of a service.
func logEvent(log *zap.Logger, e event.Event) {
	fields := []zap.Field{zap.String("event", e.Name())}
	switch e := e.(type) {
	case event.PartitionsAssigned:
		fields = append(fields, zap.String("member", e.Member.MemberID), zap.Int32("generation", int32(e.Member.Generation)),
			zap.Int("partitions", len(e.Partitions)))
	case event.PartitionsLost:
		fields = append(fields, zap.String("member", e.Member.MemberID), zap.Int32("generation", int32(e.Member.Generation)),
			zap.Int("partitions", len(e.Partitions)), zap.Error(e.Err))
	case event.ProcessingOverdue:
		fields = append(fields, zap.Stringer("partition", e.TopicPartition), zap.Int64("offset", e.Offset), zap.Duration("limit", e.Limit))
	case event.PartitionStuck:
		fields = append(fields, zap.Stringer("partition", e.TopicPartition), zap.String("waiting", e.Waiting), zap.Duration("age", e.Age))
	case event.SubscriptionChanged:
		fields = append(fields, zap.Int("topics", len(e.Topics)), zap.Strings("added", e.Added), zap.Strings("removed", e.Removed))
	case event.HandlerFailed:
		fields = append(fields, zap.Stringer("partition", e.TopicPartition), zap.Int64("offset", e.Offset), zap.Error(e.Err))
	case event.PartitionPaused:
		fields = append(fields, zap.Stringer("partition", e.TopicPartition), zap.Int64("offset", e.Offset), zap.Error(e.Err))
	default:
	}
	log.Info("event", append(fields, zap.String("details", fmt.Sprintf("%+v", e)))...)
}
