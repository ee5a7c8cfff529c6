package main

import (
	"context"
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

// job is what is done with a record: to spend some time on it and to write it down.
type job struct {
	output *output
	work   time.Duration
}

// registration makes the handler that the flags ask for.
func (j *job) registration(s settings) api.Registration {
	most := api.MaxRecords(s.maxRecords)
	switch s.handler {
	case kindBatch:
		return api.HandleBatch(s.topic, j.handleBatch, most)
	case kindActor:
		return api.HandleActor(s.topic, func(kafka.TopicPartition) actor.Actor { return &clerk{job: j} }, most)
	default:
		return api.Handle(s.topic, j.handle, most)
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
	if j.work > 0 {
		timer := time.NewTimer(j.work)
		defer timer.Stop()
		select {
		case <-timer.C:
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
// are worked on by a goroutine, which acknowledges each when it is written down. There is one at a time, since the next
// delivery comes when every record of this one has its verdict.
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
