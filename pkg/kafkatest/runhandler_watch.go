package kafkatest

import (
	"context"
	"errors"
	"fmt"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// watch wraps the handler with all its middleware, and the function that gives the ordering key.
func (l *runLog) watch(r *actors.Registration) {
	if record := r.Record; record != nil {
		r.Record = func(ctx context.Context, rec *kafka.Record) error {
			return l.call(rec.TopicPartition(), []int64{rec.Offset}, func() error { return record(ctx, rec) })
		}
	}
	if batch := r.Batch; batch != nil {
		r.Batch = func(ctx context.Context, records []kafka.Record) error {
			offsets := make([]int64, len(records))
			for i := range records {
				offsets[i] = records[i].Offset
			}
			return l.call(records[0].TopicPartition(), offsets, func() error { return batch(ctx, records) })
		}
	}
	if async := r.Async; async != nil {
		r.Async = func(ctx context.Context, d *actors.RecordDelivery) {
			l.gave(d.TopicPartition(), d.Offset(), d.Verdict)
			async(ctx, d)
		}
	}
	if produce := r.Actor; produce != nil {
		r.Actor = func(tp kafka.TopicPartition) actor.Actor { return l.watchActor(produce(tp)) }
	}
	if key := r.KeyFunc; key != nil {
		r.KeyFunc = func(rec *kafka.Record) []byte {
			tp, offset, name := rec.TopicPartition(), rec.Offset, key(rec)
			l.mu.Lock()
			defer l.mu.Unlock()
			p := l.partitions[tp]
			if i, found := p.find(offset); found {
				p.join(i, name)
			}
			return name
		}
	}
}

func (l *runLog) watchActor(inner actor.Actor) actor.Actor {
	if inner == nil {
		return nil // the consumer's to refuse
	}
	watched := watchedActor{Actor: inner, log: l}
	if strategy, ok := inner.(actor.SupervisorStrategy); ok {
		return &watchedSupervisor{watchedActor: watched, SupervisorStrategy: strategy}
	}
	return &watched
}

var errHandlerEnded = errors.New("the handler ended its goroutine (runtime.Goexit)")

// call runs a handler function over some records of a partition and notes what it did. A panic goes on as it came.
func (l *runLog) call(tp kafka.TopicPartition, offsets []int64, handle func() error) (err error) {
	p := l.partitions[tp]
	at := make([]int, len(offsets))
	for n, offset := range offsets {
		at[n], _ = p.find(offset)
	}
	l.began(p, at)
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
		l.returned(tp, p, at, err)
		if v != nil {
			panic(v)
		}
	}()
	err = handle()
	returned = true
	return err
}

// watchedActor tells the log of the deliveries that a user's actor gets.
type watchedActor struct {
	actor.Actor
	log *runLog
}

// Receive implements actor.Actor.
func (w *watchedActor) Receive(ctx actor.Context) {
	if d, ok := ctx.Message().(*actors.Deliver); ok {
		records := d.Records()
		for i := range records {
			offset := records[i].Offset
			w.log.gave(d.TopicPartition(), offset, func() (actors.Verdict, error) { return d.Verdict(offset) })
		}
	}
	w.Actor.Receive(ctx)
}

// watchedSupervisor is a watchedActor that supervises its children itself.
type watchedSupervisor struct {
	watchedActor
	actor.SupervisorStrategy
}
