package kafkatest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// runLog is what a run knows of its records. The handler is wrapped, so it is told each delivery and each verdict.
type runLog struct {
	partitions map[kafka.TopicPartition]*runPartition
	// over is closed when there is nothing left to wait for.
	over chan struct{}

	mu       sync.Mutex
	runs     []RecordRun
	failures int
	// open are the partitions that go on.
	open map[kafka.TopicPartition]bool
	// last has each record's newest delivery to an actor.
	last map[int]*actors.Delivery
	// failed has each partition's newest failure.
	failed map[kafka.TopicPartition]event.HandlerFailed
}

func newRunLog(topics []string, records []kafka.Record) (*runLog, error) {
	partitions, err := sortRecords(topics, records)
	if err != nil {
		return nil, err
	}
	l := &runLog{
		partitions: partitions, over: make(chan struct{}), runs: make([]RecordRun, len(records)),
		open: make(map[kafka.TopicPartition]bool), last: make(map[int]*actors.Delivery),
		failed: make(map[kafka.TopicPartition]event.HandlerFailed),
	}
	for tp, p := range partitions {
		l.open[tp] = true
		for i, at := range p.index {
			l.runs[at] = RecordRun{TopicPartition: tp, Offset: p.records[i].Offset}
		}
	}
	return l, nil
}

// watch wraps the handler with all its middleware.
func (l *runLog) watch(r *actors.Registration) {
	if record := r.Record; record != nil {
		r.Record = func(ctx context.Context, rec *kafka.Record) error {
			at := l.find(rec.TopicPartition(), rec.Offset)
			return l.call(at, 1, func() error { return record(ctx, rec) })
		}
	}
	if batch := r.Batch; batch != nil {
		r.Batch = func(ctx context.Context, records []kafka.Record) error {
			at := l.find(records[0].TopicPartition(), records[0].Offset)
			return l.call(at, len(records), func() error { return batch(ctx, records) })
		}
	}
	if produce := r.Actor; produce != nil {
		r.Actor = func(tp kafka.TopicPartition) actor.Actor {
			inner := produce(tp)
			if inner == nil {
				return nil // the consumer's to refuse
			}
			watched := watchedActor{Actor: inner, log: l}
			if strategy, ok := inner.(actor.SupervisorStrategy); ok {
				return &watchedSupervisor{watchedActor: watched, SupervisorStrategy: strategy}
			}
			return &watched
		}
	}
}

// place is a record's place in its partition.
type place struct {
	partition *runPartition
	tp        kafka.TopicPartition
	i         int
}

func (l *runLog) find(tp kafka.TopicPartition, offset int64) place {
	p := l.partitions[tp]
	i, _ := slices.BinarySearchFunc(p.records, offset, func(r kafka.Record, offset int64) int {
		return cmp.Compare(r.Offset, offset)
	})
	return place{partition: p, tp: tp, i: i}
}

var errHandlerEnded = errors.New("the handler ended its goroutine (runtime.Goexit)")

// call runs a handler function over n records and notes what it did. A panic goes on as it came.
func (l *runLog) call(at place, n int, handle func() error) (err error) {
	l.each(at, n, func(r *RecordRun) {
		r.Deliveries++
		r.Outcome, r.Err = Unsettled, nil
	})
	returned := false
	defer func() {
		v := recover()
		switch {
		case v != nil:
			err = fmt.Errorf("panic: %v", v)
			if cause, ok := v.(error); ok {
				err = fmt.Errorf("panic: %w", cause)
			}
		case !returned:
			err = errHandlerEnded
		}
		l.verdict(at, n, err)
		if v != nil {
			panic(v)
		}
	}()
	err = handle()
	returned = true
	return err
}

func (l *runLog) verdict(at place, n int, err error) {
	l.each(at, n, func(r *RecordRun) {
		if r.Outcome, r.Err = Acked, err; err != nil {
			r.Outcome = Failed
		}
	})
	if err == nil && at.i+n == len(at.partition.records) {
		l.stopped(at.tp)
	}
}

func (l *runLog) each(at place, n int, update func(*RecordRun)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, index := range at.partition.index[at.i : at.i+n] {
		update(&l.runs[index])
	}
}

// stopped notes that nothing more comes of a partition.
func (l *runLog) stopped(tp kafka.TopicPartition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.open, tp); len(l.open) > 0 {
		return
	}
	select {
	case <-l.over:
	default:
		close(l.over)
	}
}

// committed is told of each commit.
func (l *runLog) committed(tp kafka.TopicPartition, offset int64) {
	if p := l.partitions[tp]; p != nil && offset >= p.end() {
		l.stopped(tp)
	}
}

// observe is told every event of the consumer.
func (l *runLog) observe(e event.Event) {
	switch e := e.(type) {
	case event.HandlerFailed:
		l.mu.Lock()
		l.failures++
		l.failed[e.TopicPartition] = e
		l.mu.Unlock()
	case event.PartitionPaused:
		l.stopped(e.TopicPartition)
	}
}

// delivered notes a delivery to an actor.
func (l *runLog) delivered(d *actors.Delivery) {
	records := d.Records()
	for i := range records {
		at := l.find(d.TopicPartition(), records[i].Offset)
		l.mu.Lock()
		index := at.partition.index[at.i]
		l.runs[index].Deliveries++
		l.last[index] = d
		l.mu.Unlock()
	}
}

// result is called when the consumer is closed. What an actor said is read from its deliveries only now, when it may
// have said it from any goroutine.
func (l *runLog) result(network *memoryNetwork, closed error) *HandlerRun {
	l.mu.Lock()
	defer l.mu.Unlock()
	run := &HandlerRun{Records: l.runs, Failures: l.failures, Committed: network.commits(), Close: closed}
	for index, d := range l.last {
		r := &run.Records[index]
		r.Outcome = Unsettled
		switch verdict, cause := d.Verdict(r.Offset); verdict {
		case actors.VerdictAcked:
			r.Outcome = Acked
		case actors.VerdictRefused:
			r.Outcome, r.Err = Failed, cause
		case actors.VerdictOpen:
			// An actor that panicked has said nothing about the record that it failed at.
			if failed, ok := l.failed[r.TopicPartition]; ok && failed.Offset == r.Offset {
				r.Outcome, r.Err = Failed, failed.Err
			}
		}
	}
	return run
}

// watchedActor tells the log of the deliveries that a user's actor gets.
type watchedActor struct {
	actor.Actor
	log *runLog
}

// Receive implements actor.Actor.
func (w *watchedActor) Receive(ctx actor.Context) {
	if d, ok := ctx.Message().(*actors.Deliver); ok {
		w.log.delivered(d.Delivery)
	}
	w.Actor.Receive(ctx)
}

// watchedSupervisor is a watchedActor that supervises its children itself.
type watchedSupervisor struct {
	watchedActor
	actor.SupervisorStrategy
}
