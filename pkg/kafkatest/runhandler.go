package kafkatest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// runLimit is how long RunHandler waits when its context has no deadline.
const runLimit = 30 * time.Second

// runCloseTimeout is how long a handler that has not returned may go on after the end.
const runCloseTimeout = 2 * time.Second

// How many records of a partition may be in transit: all of them, so that what is delivered does not depend on which
// records fail.
const (
	leastInTransit = 10_000
	mostInTransit  = 1_000_000
)

// Outcome is what became of one record that RunHandler was given.
type Outcome int

const (
	// NotDelivered: the handler was never given the record, because its partition, or the records of its key, had stopped
	// before it.
	NotDelivered Outcome = iota
	// Unsettled: the handler was given the record and neither acknowledged nor refused it.
	Unsettled
	// Failed: the last time the handler had the record, it returned an error, panicked or refused it.
	Failed
	// Acked: the record is acknowledged.
	Acked
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case NotDelivered:
		return "not delivered"
	case Unsettled:
		return "unsettled"
	case Failed:
		return "failed"
	case Acked:
		return "acked"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// RecordRun is one record's part of a [HandlerRun].
type RecordRun struct {
	TopicPartition kafka.TopicPartition
	Offset         int64
	Outcome        Outcome
	// Deliveries is how often the handler was given the record.
	Deliveries int
	// Err is why the outcome is Failed, and nil for every other one. A panic's value is part of it.
	Err error
}

// HandlerRun is what RunHandler saw.
type HandlerRun struct {
	// Records has one entry for each record given, in the order given.
	Records []RecordRun
	// Committed has for each partition the offset that would be read from after a restart: the first record that is not
	// acknowledged.
	Committed map[kafka.TopicPartition]int64
	// Failures is how often a handler failed, over all partitions: calls of a function, failures of an actor, and records
	// that were refused, of which those that come again together count once.
	Failures int
	// Close is what the handler did not finish when the run ended, nil for nothing.
	Close error
}

// Err returns nil when every record is acknowledged; else an error that names the first of the others and counts them.
func (r *HandlerRun) Err() error {
	open := 0
	var first *RecordRun
	for i := range r.Records {
		if r.Records[i].Outcome != Acked {
			if open++; first == nil {
				first = &r.Records[i]
			}
		}
	}
	if first == nil {
		return nil
	}
	err := fmt.Errorf("kafkatest: %d of %d records are not acknowledged; the first is offset %d of %s, %v",
		open, len(r.Records), first.Offset, first.TopicPartition, first.Outcome)
	if first.Err != nil {
		err = fmt.Errorf("%w: %w", err, first.Err)
	}
	return err
}

// RunOption changes how RunHandler runs a handler.
type RunOption interface{ applyRun(*runSettings) }

type runOptionFunc func(*runSettings)

func (f runOptionFunc) applyRun(s *runSettings) { f(s) }

type runSettings struct {
	restarts int
	logger   *zap.Logger
}

// Restarts lets the handler of each partition fail n times and go on, at once and without a backoff; from 0 to 10,000.
// Without it, and at the failure after the last one, the partition stops. Under api.KeyOrder and api.Unordered each record
// may fail n times, and only the records of its key stop.
func Restarts(n int) RunOption {
	return runOptionFunc(func(s *runSettings) { s.restarts = n })
}

// RunLogger sets a logger. Without it there is none.
func RunLogger(logger *zap.Logger) RunOption {
	return runOptionFunc(func(s *runSettings) { s.logger = logger })
}

// RunHandler gives records to a handler without any broker, and tells what became of each. The handler runs in a real
// consumer, so everything around it is real: middleware, the order and its workers, deliveries of at most MaxRecords, the
// context with attempt and cause, contained panics, restarts, and the messages to an actor of yours. Only the network below
// the consumer is made up, and the registration's restart policy is replaced by [Restarts], so that no test waits for a
// backoff; api.ResetTo means nothing, and as many records may be in transit as are given, up to 1,000,000.
//
// Topic and Partition say where a record belongs. An empty Topic is the registration's, if it has one only and no pattern. Offsets must
// rise in each partition, with or without holes; where all of a partition are zero they are numbered from 0. The handler
// gets copies. With api.RecycleRecords these are overwritten, the bytes with 0xDB, as soon as they are given back, so that
// a handler that keeps a record beyond its acknowledgment is seen to.
//
// It returns when every record is acknowledged or its partition, or its key, has stopped by a failure, or when ctx ends, in
// 30 s at the latest where ctx has no deadline; an actor or an asynchronous handler that leaves a record unsettled is
// waited for until then. The error is for a registration or records that cannot be run; what the handler does wrong is in
// the HandlerRun.
func RunHandler(ctx context.Context, registration api.Registration, records []kafka.Record, opts ...RunOption) (*HandlerRun, error) {
	s := runSettings{logger: zap.NewNop()}
	for _, o := range opts {
		o.applyRun(&s)
	}
	if s.restarts < 0 {
		return nil, fmt.Errorf("kafkatest: Restarts is %d, at least 0 is needed", s.restarts)
	}
	settings, err := api.Resolve(api.Config{
		Brokers: []string{memoryBroker.Addr}, GroupID: "kafkatest", CloseTimeout: runCloseTimeout, Restart: s.policy(),
		MaxInTransit: min(max(len(records), leastInTransit), mostInTransit),
	}, registration)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return &HandlerRun{Committed: map[kafka.TopicPartition]int64{}}, nil
	}
	handler := &settings.Registrations[0]
	handler.Restart, handler.Reset = s.policy().WithDefaults(), rebalance.ResetEarliest
	if err := nameTopics(handler, records); err != nil {
		return nil, err
	}
	log, err := newRunLog(handler, s.restarts, records)
	if err != nil {
		return nil, err
	}
	log.watch(handler)
	network := newMemoryNetwork(handler.Topics, log.partitions)
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, runLimit)
		defer cancel()
	}
	tree := actors.SpawnTree(settings, actors.Deps{Network: network, Logger: s.logger, Observe: log.observe})
	log.wait(ctx, tree.Done())
	closed := tree.Close(context.WithoutCancel(ctx))
	return log.result(network, closed), nil
}

// nameTopics puts in place of a pattern the topics of the records that it matches: nothing else is there to match.
func nameTopics(r *actors.Registration, records []kafka.Record) error {
	if len(r.Allow) == 0 {
		return nil
	}
	selection, err := rebalance.NewSelection([]rebalance.TopicRule{{Allow: r.Allow, Deny: r.Deny}})
	if err != nil {
		return err
	}
	for i := range records {
		if _, wanted := selection.Rule(records[i].Topic); !wanted || records[i].Topic == "" {
			return fmt.Errorf("kafkatest: record %d is of topic %q, which the handler's pattern does not match", i, records[i].Topic)
		}
		if !slices.Contains(r.Topics, records[i].Topic) {
			r.Topics = append(r.Topics, records[i].Topic)
		}
	}
	r.Allow, r.Deny = nil, nil
	return nil
}

// policy stops a partition at the failure after the last restart: the first probe is further away than any run.
func (s *runSettings) policy() supervisor.Policy {
	restarts := s.restarts
	if restarts == 0 {
		restarts = supervisor.NoRestarts
	}
	return supervisor.Policy{
		MaxRestarts: restarts, Window: 24 * time.Hour, Backoff: supervisor.Backoff{Initial: supervisor.NoDelay},
		OnSpent: supervisor.PauseAndProbe, ProbeInitial: 24 * time.Hour, ProbeMax: 24 * time.Hour,
	}
}

// sortRecords puts the records where they belong.
func sortRecords(topics []string, records []kafka.Record) (map[kafka.TopicPartition]*runPartition, error) {
	known := make(map[string]bool)
	for _, topic := range topics {
		known[topic] = true
	}
	partitions := make(map[kafka.TopicPartition]*runPartition)
	for i := range records {
		r := records[i].Clone()
		if r.Topic == "" && len(topics) == 1 {
			r.Topic = topics[0]
		}
		if !known[r.Topic] || r.Partition < 0 {
			return nil, fmt.Errorf("kafkatest: record %d is of %q, partition %d; the handler's topics are %q", i, r.Topic, r.Partition, strings.Join(topics, ", "))
		}
		p := partitions[r.TopicPartition()]
		if p == nil {
			p = new(runPartition)
			partitions[r.TopicPartition()] = p
		}
		p.records, p.index = append(p.records, r), append(p.index, i)
	}
	for tp, p := range partitions {
		if err := p.number(tp); err != nil {
			return nil, err
		}
	}
	return partitions, nil
}

// number gives the records offsets where they have none, and checks those they have.
func (p *runPartition) number(tp kafka.TopicPartition) error {
	numbered := false
	for i := range p.records {
		numbered = numbered || p.records[i].Offset != 0
	}
	for i := range p.records {
		switch {
		case !numbered:
			p.records[i].Offset = int64(i)
		case p.records[i].Offset < 0, i > 0 && p.records[i].Offset <= p.records[i-1].Offset:
			return fmt.Errorf("kafkatest: record %d has offset %d in %s, which is not above the one before it", p.index[i], p.records[i].Offset, tp)
		}
	}
	return nil
}
