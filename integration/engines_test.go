package integration

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// Every engine with every kind of handler, under handlers that fail in every way, on a log with holes, with members that
// come and go.

// engine is an order, and what must not overlap under it.
type engine struct {
	option func() api.HandlerOption
	lane   func(*entry) any
	// perDelivery is how many records of one delivery an asynchronous handler or an actor gets.
	perDelivery int
}

// keyLane is one key of one partition.
type keyLane struct {
	tp  kafka.TopicPartition
	key string
}

// inPartitionOrder, inKeyOrder and inNoOrder are the engines. An asynchronous handler is not told which records are of one
// delivery, inside of which the order is its own, so in order it gets one at a time.
var (
	inPartitionOrder = engine{api.PartitionOrder, func(e *entry) any { return e.tp }, 1}
	inKeyOrder       = engine{func() api.HandlerOption { return api.KeyOrder(6) }, func(e *entry) any { return keyLane{e.tp, e.key} }, 1}
	inNoOrder        = engine{func() api.HandlerOption { return api.Unordered(6) }, func(e *entry) any { return e.spot }, 5}
)

// handlerKind makes a registration of one kind, whose handler follows the script.
type handlerKind func(s *script, topic, member string, e engine) api.Registration

// holesAndFailures is the rule of one engine and one kind of handler.
func holesAndFailures(e engine, kind handlerKind) func(*testing.T, broker) {
	return func(t *testing.T, b broker) {
		const partitions, rounds, perRound = 4, 10, 6
		topic, group := unique(t, "topic"), unique(t, "group")
		b.CreateTopic(t, topic, partitions)
		log := newHoleyLog(t, b, topic)
		defer log.close()
		s := &script{ledger: newLedger(), failed: make(map[spot]bool)}
		join := func(name string) *member {
			c := config(b, group)
			c.OffsetMap = true // so that nothing is repeated although members leave with holes
			return spawn(t, c, kind(s, topic, name, e))
		}
		one := join("one")
		for i := range rounds / 2 {
			log.write(t, partitions, perRound, i%3 == 1)
		}
		two := join("two")
		settled(t, partitions, one, two)
		half := s.ledger.distinct() + partitions
		for i := range rounds / 2 {
			log.write(t, partitions, perRound, i%3 == 1)
		}
		eventually(t, patience, "records flow with two", func() bool {
			log.neverPast(t, b, group, s.ledger)
			return s.ledger.distinct() >= min(half, len(log.committed))
		})
		one.mustClose(t)
		log.write(t, partitions, perRound, false)
		two.allHandledIn(t, patience, s.ledger, len(log.committed))
		eventually(t, patience, "the commit is at the high watermark", func() bool {
			log.neverPast(t, b, group, s.ledger)
			return assert.ObjectsAreEqual(b.EndOffsets(t, topic), b.Committed(t, group))
		})
		two.mustClose(t)
		log.demand(t, s.ledger)
		s.ledger.noOverlapIn(t, e.lane)
		s.ledger.afterItsPredecessors(t, e.lane)
		assert.Empty(t, s.ledger.repeated())
		assert.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
		for _, m := range []*member{one, two} {
			assert.Zero(t, m.Stats().StaleAcks)
			assert.Empty(t, told[event.PartitionsLost](m))
			assert.Empty(t, told[event.MetadataIgnored](m))
		}
		assert.NotEmpty(t, told[event.HandlerFailed](two), "handlers fail in this test")
	}
}

// holeyLog writes transactions, some of which it aborts.
type holeyLog struct {
	producer *kgo.Client
	topic    string
	random   *rand.Rand
	// committed are the records that are to be handled, aborted those that are not.
	committed, aborted map[spot]bool
}

func newHoleyLog(t *testing.T, b broker, topic string) *holeyLog {
	t.Helper()
	id := "integration-holes-" + strconv.FormatInt(transactionalIDs.Add(1), 10)
	opts := append(slices.Clone(newAdmin(t, b.Addrs(), nil).opts), kgo.TransactionalID(id))
	producer, err := kgo.NewClient(opts...)
	require.NoError(t, err)
	return &holeyLog{
		producer: producer, topic: topic, random: rand.New(rand.NewPCG(5, uint64(len(topic)))),
		committed: make(map[spot]bool), aborted: make(map[spot]bool),
	}
}

func (h *holeyLog) close() { h.producer.Close() }

// write writes n records to each partition in one transaction.
func (h *holeyLog) write(t *testing.T, partitions int32, n int, abort bool) {
	t.Helper()
	ctx := requestContext(t)
	var records []*kgo.Record
	for p := range partitions {
		for range n {
			r := &kgo.Record{Topic: h.topic, Partition: p, Value: []byte("v")}
			if key := h.random.IntN(6); key > 0 { // the others have none
				r.Key = []byte{'k', byte('0' + key)}
			}
			records = append(records, r)
		}
	}
	require.NoError(t, h.producer.BeginTransaction())
	require.NoError(t, h.producer.ProduceSync(ctx, records...).FirstErr())
	into, how := h.committed, kgo.TryCommit
	if abort {
		into, how = h.aborted, kgo.TryAbort
	}
	require.NoError(t, h.producer.EndTransaction(ctx, how))
	for _, r := range records {
		into[spot{kafka.TopicPartition{Topic: h.topic, Partition: r.Partition}, r.Offset}] = true
	}
}

// neverPast demands that no commit is past a record that nobody has handled.
func (h *holeyLog) neverPast(t *testing.T, b broker, group string, l *ledger) {
	t.Helper()
	committed := b.Committed(t, group)
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range h.committed {
		if l.handled[s] == 0 && committed[s.tp] > s.offset {
			require.Fail(t, "a commit is past a record that was not handled", "%s: %d is committed, %d not handled", s.tp, committed[s.tp], s.offset)
		}
	}
}

// demand demands that every record of a committed transaction was handled, and none of another.
func (h *holeyLog) demand(t *testing.T, l *ledger) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range h.committed {
		if !assert.Positive(t, l.handled[s], "%s@%d was lost", s.tp, s.offset) {
			return
		}
	}
	for _, e := range l.entries {
		if !assert.False(t, h.aborted[e.spot], "%s@%d of an aborted transaction was delivered", e.tp, e.offset) {
			return
		}
	}
}

// script decides what happens to each record: some fail the first time, each in a way of its own.
type script struct {
	ledger *ledger
	mu     sync.Mutex
	failed map[spot]bool
}

var errScripted = errors.New("the script says so")

// How a record fails.
const (
	fine = iota
	refused
	panics
)

func (s *script) fate(r *kafka.Record) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := spotOf(r)
	if s.failed[at] || (r.Offset+int64(r.Partition))%9 != 4 {
		return fine
	}
	s.failed[at] = true
	return refused + int(r.Offset/9)%2
}

func (s *script) work() { pause(time.Duration(rand.IntN(4)) * time.Millisecond) }

// recordKind is a plain function.
func recordKind(s *script, topic, member string, e engine) api.Registration {
	return api.Handle(topic, s.ledger.watch(member, func(_ context.Context, r *kafka.Record) error {
		s.work()
		switch s.fate(r) {
		case refused:
			return errScripted
		case panics:
			panic(errScripted)
		}
		return nil
	}), e.option(), api.Restart(quick()), api.MaxRecords(10))
}

// batchKind is a function for batches, which fail as a whole.
func batchKind(s *script, topic, member string, e engine) api.Registration {
	return api.HandleBatch(topic, func(ctx context.Context, records []kafka.Record) error {
		call, entries, worst := s.ledger.newCall(), make([]*entry, len(records)), fine
		for i := range records {
			entries[i] = s.ledger.openIn(ctx, member, call, &records[i])
			worst = max(worst, s.fate(&records[i]))
		}
		s.work()
		var err error
		if worst != fine {
			err = errScripted
		}
		for _, e := range entries {
			s.ledger.close(e, err)
		}
		if worst == panics {
			panic(err)
		}
		return err
	}, e.option(), api.Restart(quick()), api.MaxRecords(7))
}

// asyncKind is a function that acknowledges later, and panics at times.
func asyncKind(s *script, topic, member string, e engine) api.Registration {
	return api.HandleAsync(topic, func(ctx context.Context, d *actors.RecordDelivery) {
		noted, fate := s.ledger.open(ctx, member, d.Record()), s.fate(d.Record())
		if fate == panics {
			s.ledger.close(noted, errScripted)
			panic(errScripted)
		}
		go func() {
			s.work()
			if fate == refused {
				s.ledger.close(noted, errScripted)
				_ = d.Nack(errScripted)
				return
			}
			s.ledger.close(noted, nil)
			_ = d.Ack() // one that is too late is counted, and looked for at the end
		}()
	}, e.option(), api.Restart(quick()), api.MaxRecords(e.perDelivery))
}

// actorKind is an actor, which knows what is one delivery, and so gets several records in every engine.
func actorKind(s *script, topic, member string, e engine) api.Registration {
	return api.HandleActor(topic, func(kafka.TopicPartition) actor.Actor {
		return &scriptedActor{script: s, member: member}
	}, e.option(), api.Restart(quick()), api.MaxRecords(4))
}

// scriptedActor has its records acknowledged in any order by goroutines. It panics only while it has none, as nobody waits
// for the goroutines of an actor that failed.
type scriptedActor struct {
	script *script
	member string
	open   atomic.Int32
}

func (a *scriptedActor) Receive(ctx actor.Context) {
	d, ok := ctx.Message().(*actors.Deliver)
	if !ok {
		return
	}
	records, l := d.Records(), a.script.ledger
	call, entries, fates := l.newCall(), make([]*entry, len(records)), make([]int, len(records))
	worst := fine
	for i := range records {
		entries[i] = l.openIn(d.Context(), a.member, call, &records[i])
		fates[i] = a.script.fate(&records[i])
		worst = max(worst, fates[i])
	}
	if worst == panics && a.open.Load() == 0 {
		for _, e := range entries {
			l.close(e, errScripted)
		}
		panic(errScripted)
	}
	a.open.Add(1)
	go func() {
		a.script.work()
		order := rand.Perm(len(records))
		for n, i := range order {
			var verdict error
			if fates[i] != fine {
				verdict = errScripted
			}
			l.close(entries[i], verdict)
			if n == len(order)-1 {
				a.open.Add(-1)
			}
			if verdict != nil {
				_ = d.Nack(records[i].Offset, verdict)
			} else {
				_ = d.Ack(records[i].Offset)
			}
		}
	}()
}
