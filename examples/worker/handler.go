package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// The kinds of handlers, as -handler names them.
const (
	kindFunc  = "func"
	kindBatch = "batch"
	kindActor = "actor"
)

// What is handled one after the other, as -order names it.
const (
	orderPartition = "partition"
	orderKey       = "key"
	orderNone      = "none"
)

// job is what is done with a record: to spend some time on it and to write it down.
type job struct {
	output *output
	work   time.Duration
	// spread is the most that is added to work, drawn for each record.
	spread time.Duration
	// block has the offsets whose records are never finished.
	block []int64
}

// registration makes the handler that the flags ask for.
func (j *job) registration(s settings) api.Registration {
	if s.pattern != "" {
		return register(j, s, api.Matching(s.pattern))
	}
	return register(j, s, s.topic)
}

func register[T api.Topics](j *job, s settings, topics T) api.Registration {
	most, order := api.MaxRecords(s.maxRecords), s.engine()
	switch s.handler {
	case kindBatch:
		return api.HandleBatch(topics, j.handleBatch, most, order)
	case kindActor:
		return api.HandleActor(topics, func(kafka.TopicPartition) actor.Actor { return &clerk{job: j} }, most, order)
	default:
		return api.Handle(topics, j.handle, most, order)
	}
}

// engine is the order that the flags ask for.
func (s settings) engine() api.HandlerOption {
	switch s.order {
	case orderKey:
		return api.KeyOrder(s.workers)
	case orderNone:
		return api.Unordered(s.workers)
	default:
		return api.PartitionOrder()
	}
}

// handle is the handler of kind func. Work that is cut short is an error, so the record is not acknowledged.
func (j *job) handle(ctx context.Context, record *kafka.Record) error {
	return j.do(ctx, actors.DeliveryFrom(ctx).Epoch(), record)
}

// handleBatch is the handler of kind batch: all records are acknowledged together, when the last one is done.
func (j *job) handleBatch(ctx context.Context, records []kafka.Record) error {
	epoch := actors.DeliveryFrom(ctx).Epoch()
	for i := range records {
		if err := j.do(ctx, epoch, &records[i]); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) do(ctx context.Context, epoch kafka.AssignmentEpoch, record *kafka.Record) error {
	if ctx.Err() != nil { // the partition has gone away between two records
		return context.Cause(ctx)
	}
	if err := j.output.note("begin", record, epoch); err != nil {
		return err
	}
	work := j.work
	if j.spread > 0 {
		work += rand.N(j.spread)
	}
	if blocked := slices.Contains(j.block, record.Offset); blocked || work > 0 {
		var over <-chan time.Time // never, for one that is blocked
		if !blocked {
			timer := time.NewTimer(work)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-over:
		case <-ctx.Done():
			if err := j.output.note("cut", record, epoch); err != nil {
				return err
			}
			return context.Cause(ctx)
		}
	}
	return j.output.handled(record, epoch)
}

// clerk is the handler of kind actor, one for each partition. It must not block in Receive, so the records of a delivery
// are worked on by a goroutine, which acknowledges each when it is written down. In partition order there is one at a time,
// since the next delivery comes when every record of this one has its verdict.
type clerk struct{ job *job }

// Receive implements actor.Actor.
func (c *clerk) Receive(ctx actor.Context) {
	if m, ok := ctx.Message().(*actors.Deliver); ok {
		go c.workThrough(m)
	}
}

func (c *clerk) workThrough(d *actors.Deliver) {
	for i := range d.Records() {
		record := &d.Records()[i]
		err := c.job.do(d.Context(), d.Epoch(), record)
		if d.Context().Err() != nil && err != nil {
			return // the rest comes again, to whoever owns the partition then
		}
		if err == nil {
			err = d.Ack(record.Offset)
		} else {
			err = d.Nack(record.Offset, err)
		}
		if err != nil {
			return // too late, for this record and those after it
		}
	}
}
