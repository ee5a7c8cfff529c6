package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// auditor is the actor of one partition. What it knows needs no lock, since an actor handles one message at a time.
type auditor struct {
	tp    kafka.TopicPartition
	books *books
	// early counts payments acknowledged although an earlier one was not.
	early int
	// open are the offsets that are not acknowledged yet.
	open map[int64]bool
}

// checked is what a check sends to its auditor.
type checked struct {
	delivery *actors.Deliver
	offset   int64
	err      error
}

var errNoAnswer = errors.New("the checking service gave no answer")

func newAuditor(tp kafka.TopicPartition, books *books) *auditor {
	return &auditor{tp: tp, books: books, open: make(map[int64]bool)}
}

// Receive implements actor.Actor. It must not block, so the checks run in goroutines of their own.
func (a *auditor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actors.Assigned:
		fmt.Printf("%s: mine from offset %d\n", m.TopicPartition, m.Position)
	case *actors.Deliver:
		self, root := ctx.Self(), ctx.ActorSystem().Root
		for _, record := range m.Records() {
			a.open[record.Offset] = true
			go func() {
				root.Send(self, &checked{delivery: m, offset: record.Offset, err: check(m, record.Offset)})
			}()
		}
	case *checked:
		a.book(m)
	case *actors.Revoking:
		fmt.Printf("%s: given up, %d payments open, %d were acknowledged early\n", m.TopicPartition, len(a.open), a.early)
	case *actors.Lost:
		fmt.Printf("%s: lost, %v\n", m.TopicPartition, m.Cause)
	}
}

// check asks the slow service, which now and then gives no answer the first time.
func check(d *actors.Deliver, offset int64) error {
	select {
	case <-time.After(time.Duration(rand.IntN(5_000)) * time.Microsecond):
	case <-d.Context().Done(): // the partition is gone: nobody waits for this check any more
		return d.Context().Err()
	}
	if d.Attempt() == 1 && offset%100 == 99 {
		return errNoAnswer
	}
	return nil
}

// book acknowledges a payment, or refuses it: then it comes again in a later delivery.
func (a *auditor) book(m *checked) {
	if m.err != nil {
		if err := m.delivery.Nack(m.offset, m.err); err == nil {
			a.books.refuse()
		}
		return
	}
	if err := m.delivery.Ack(m.offset); err != nil {
		return // too late: the partition has another owner, and so has the payment
	}
	delete(a.open, m.offset)
	early := false
	for offset := range a.open {
		early = early || offset < m.offset
	}
	if early {
		a.early++
	}
	a.books.book(a.tp.Partition, m.offset, early)
}
