package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// Handler handles one record. Nil acknowledges it. An error or a panic restarts the handler of that partition, after a
// backoff, and delivers the record again; see [Restart]. Records of one partition come one at a time and in order, those
// of different partitions at the same time. The record is the handler's: it may be kept and changed.
// What an attempt that fails wrote into its fields is undone before the next one; bytes of the key, the value and the headers
// that it changed in place stay changed.
//
// ctx ends when the work is no longer wanted; context.Cause tells why (rebalance.ErrRevoked, rebalance.ErrLost,
// actors.ErrClosing, actors.ErrHandlerRestarted, actors.ErrOverdue, actors.ErrSought, actors.ErrSkipped), and when the record, or
// the delivery that it came with, is finished. actors.DeliveryFrom(ctx).Attempt() tells how often the record was tried.
// ctx does not descend from Spawn's: that one ending starts a drain, in which handlers may finish; see Config.CloseTimeout
// and Config.DrainTimeout for when ctx ends in it.
type Handler func(ctx context.Context, record *kafka.Record) error

// BatchHandler handles up to [MaxRecords] records of one partition, in offset order and never none. Nil acknowledges all
// of them; an error or a panic restarts the handler and delivers all of them again. For the rest see [Handler].
type BatchHandler func(ctx context.Context, records []kafka.Record) error

// AsyncHandler is given one record at a time, returns at once, and acknowledges the record later through the delivery,
// from any goroutine and in any order. It is called with the records of a delivery one after the other; the next delivery
// of the partition (or of the key, see [KeyOrder]) comes when every record of this one has its Ack or Nack. A record that
// was refused comes again. A panic refuses the record. For the context see [Handler]: it lives until the delivery ends.
// Always give a verdict, also when the context has ended: a record without one holds its partition (or key) and the commit.
// When the partition comes back to this process, its next handler waits for calls, not for records without a verdict.
type AsyncHandler func(ctx context.Context, delivery *actors.RecordDelivery)

// Middleware wraps a handler, to do something before and after each record. It is called once, in Spawn or Subscribe; the handler it
// returns is used for every partition at the same time.
type Middleware func(Handler) Handler

// BatchMiddleware wraps a batch handler, as [Middleware] does a handler.
type BatchMiddleware func(BatchHandler) BatchHandler

// Topics is what a registration is for: one topic, several that are handled alike, or those that match a [Pattern].
type Topics interface{ string | []string | Pattern }

// Registration says who handles the records of some topics. [Handle], [HandleBatch], [HandleAsync] and
// [HandleActor] make one; its zero
// value is an error in Spawn. It may be given to several Spawns.
type Registration struct {
	// kind is the name of the function that made it.
	kind       string
	topics     []string
	pattern    *Pattern
	record     Handler
	batch      BatchHandler
	async      AsyncHandler
	actor      actors.ActorProducer
	order      actors.Order
	workers    int
	keyFunc    func(*kafka.Record) []byte
	maxRecords *int
	maxWait    time.Duration
	recycle    bool
	reset      *rebalance.ResetPolicy
	restart    *supervisor.Policy
	// flawed are options that were given wrong values.
	flawed   []Problem
	use      []Middleware
	useBatch []BatchMiddleware
	// nilOptions counts options that were nil.
	nilOptions int
}

// Handle registers a function that is called with each record of the topics:
//
//	api.Handle("orders", charge)
//	api.Handle([]string{"orders", "refunds"}, charge, api.Use(timing))
func Handle[T Topics](topics T, handler Handler, options ...RecordOption) Registration {
	r := Registration{kind: "Handle", topics: topicList(topics), pattern: patternOf(topics), record: handler}
	for _, option := range options {
		if option == nil {
			r.nilOptions++
			continue
		}
		option.applyRecord(&r)
	}
	return r
}

// HandleBatch registers a function that is called with several records of one partition at once (max.poll.records,
// KIP-41): as many as there are, [MaxRecords] at most. It never waits for more to come. How the producers batched the
// records does not matter: a call spans several of their batches.
func HandleBatch[T Topics](topics T, handler BatchHandler, options ...BatchOption) Registration {
	r := Registration{kind: "HandleBatch", topics: topicList(topics), pattern: patternOf(topics), batch: handler}
	for _, option := range options {
		if option == nil {
			r.nilOptions++
			continue
		}
		option.applyBatch(&r)
	}
	return r
}

// HandleAsync registers a function that is called with each record and acknowledges it later; see [AsyncHandler].
func HandleAsync[T Topics](topics T, handler AsyncHandler, options ...AsyncOption) Registration {
	r := Registration{kind: "HandleAsync", topics: topicList(topics), pattern: patternOf(topics), async: handler}
	for _, option := range options {
		if option == nil {
			r.nilOptions++
			continue
		}
		option.applyAsync(&r)
	}
	return r
}

// HandleActor registers an actor of your own for each partition. produce makes one whenever a partition is assigned and
// whenever one has failed. Its actor gets *actors.Assigning, if it is there before it is decided where the partition starts, and
// *actors.Assigned, then any number of *actors.Deliver, at last *actors.Revoking or *actors.Lost, however busy it is, between
// protoactor's own messages, and acknowledges records through the delivery, in any order and from any goroutine. The next
// delivery comes when every record of the last one is acknowledged. It must not block in Receive. The partition's next handler
// in this process waits until the actor has stopped, not for goroutines the actor started.
func HandleActor[T Topics](topics T, produce func(kafka.TopicPartition) actor.Actor, options ...ActorOption) Registration {
	r := Registration{kind: "HandleActor", topics: topicList(topics), pattern: patternOf(topics), actor: produce}
	for _, option := range options {
		if option == nil {
			r.nilOptions++
			continue
		}
		option.applyActor(&r)
	}
	return r
}

func topicList[T Topics](topics T) []string {
	switch t := any(topics).(type) {
	case string:
		return []string{t}
	case []string:
		return slices.Clone(t)
	}
	return nil
}

func patternOf[T Topics](topics T) *Pattern {
	if p, ok := any(topics).(Pattern); ok {
		return &p
	}
	return nil
}

// RecordOption is an option of [Handle].
type RecordOption interface{ applyRecord(*Registration) }

// BatchOption is an option of [HandleBatch].
type BatchOption interface{ applyBatch(*Registration) }

// AsyncOption is an option of [HandleAsync].
type AsyncOption interface{ applyAsync(*Registration) }

// ActorOption is an option of [HandleActor].
type ActorOption interface{ applyActor(*Registration) }

// HandlerOption is an option of every kind of registration.
type HandlerOption interface {
	RecordOption
	BatchOption
	AsyncOption
	ActorOption
}

// MaxRecords sets the most records of one delivery (max.poll.records, KIP-41): of one call of a batch handler, or of one
// *actors.Deliver. A record handler gets the records of a delivery one by one. Default 500, or MaxInTransit where that is
// less; from 1 to MaxInTransit.
//
// While there are enough records, a delivery has between half of n and n: it is made of the producers' batches as they are,
// and a batch of more than n records is split evenly.
func MaxRecords(n int) HandlerOption {
	return handlerOption(func(r *Registration) { r.maxRecords = &n })
}

// Restart sets the restart policy of this registration's handlers, in place of Config.Restart as a whole: zero fields
// mean the supervisor's defaults. With OnSpent supervisor.StopAll a partition whose budget is spent ends the consumer; see
// Config.Restart.
func Restart(policy supervisor.Policy) HandlerOption {
	return handlerOption(func(r *Registration) { r.restart = &policy })
}

// Use wraps the handler. The first middleware is the outermost; a further Use goes inside of those before.
func Use(middleware ...Middleware) RecordOption {
	return recordOption(func(r *Registration) { r.use = append(r.use, middleware...) })
}

// UseBatch wraps the batch handler, as [Use] does a handler.
func UseBatch(middleware ...BatchMiddleware) BatchOption {
	return batchOption(func(r *Registration) { r.useBatch = append(r.useBatch, middleware...) })
}

type handlerOption func(*Registration)

func (o handlerOption) applyRecord(r *Registration) { o(r) }
func (o handlerOption) applyBatch(r *Registration)  { o(r) }
func (o handlerOption) applyAsync(r *Registration)  { o(r) }
func (o handlerOption) applyActor(r *Registration)  { o(r) }

type recordOption func(*Registration)

func (o recordOption) applyRecord(r *Registration) { o(r) }

type batchOption func(*Registration)

func (o batchOption) applyBatch(r *Registration) { o(r) }

// String returns how the registration reads in the program, such as Handle("orders").
func (r Registration) String() string {
	if r.kind == "" {
		return "Registration{}"
	}
	if r.pattern != nil {
		return r.kind + "(" + r.pattern.String() + ")"
	}
	return r.kind + "(" + quotedList(r.topics) + ")"
}

// wrapped returns what the tree calls, with every middleware applied, and reports each that has no handler to give.
func (r *Registration) wrapped(report func(Problem)) (actors.RecordHandler, actors.BatchHandler) {
	of := func(option string) func(i int, value, want string) {
		return func(i int, value, want string) { report(r.problem(fmt.Sprintf("%s[%d]", option, i), value, want)) }
	}
	record := wrap(r.record, r.use, of("Use"))
	batch := wrap(r.batch, r.useBatch, of("UseBatch"))
	return actors.RecordHandler(record), actors.BatchHandler(batch)
}

func wrap[H Handler | BatchHandler, M ~func(H) H](handler H, middleware []M, report func(i int, value, want string)) H {
	const wantHandler = "a middleware that returns a handler"
	for i, around := range slices.Backward(middleware) {
		switch {
		case around == nil:
			report(i, "nil", "a middleware")
		case handler != nil:
			var outer H
			value, panicked := panicOf(func() { outer = around(handler) })
			switch {
			case panicked:
				report(i, value, wantHandler)
			case outer == nil:
				report(i, "nil", wantHandler)
			default:
				handler = outer
			}
		}
	}
	return handler
}
