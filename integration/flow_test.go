package integration

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

func eachRecordOnceAndInOrder(t *testing.T, b broker) {
	const partitions = 6
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	n := fill(t, b, topic, partitions, 400)
	m := spawn(t, config(b, group), api.Handle(topic, l.note("a")))
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	n += fill(t, b, topic, partitions, 10) // and those that come while it waits
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })

	eventually(t, patience, "lag 0 and known", func() bool {
		stats := m.Stats()
		if len(stats.Partitions) != partitions {
			return false
		}
		for _, p := range stats.Partitions {
			if !p.LagKnown || p.Lag != 0 {
				return false
			}
		}
		return true
	})
	require.NoError(t, m.Healthy())
	for _, p := range m.Stats().Partitions {
		assert.EqualValues(t, 410, p.Delivered, p.TopicPartition)
		assert.Zero(t, p.Redelivered, p.TopicPartition)
	}
	m.mustClose(t)
	require.NoError(t, m.Err())
	ends := b.EndOffsets(t, topic)
	require.Len(t, ends, partitions)
	require.Equal(t, ends, b.Committed(t, group))
	require.Empty(t, l.repeated())
	l.inOrder(t, tps(topic, 0, 1, 2, 3, 4, 5)...)
	l.noOverlap(t)
	require.Empty(t, b.Group(t, group).Members, "the member has left")
}

func commitsWhileRunning(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 3)
	m := spawn(t, config(b, group), api.Handle(topic, l.note("a")))
	m.joined(t)
	n := 0
	for range 3 {
		n += fill(t, b, topic, 3, 50)
		ends := b.EndOffsets(t, topic)
		eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
		eventually(t, patience, "every record committed", func() bool { // without a rebalance or a close, which would commit it too
			return assert.ObjectsAreEqual(ends, b.Committed(t, group))
		})
	}
}

func batchesAreBounded(t *testing.T, b broker) {
	const most, perPartition = 50, 1003
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 2)
	n := fill(t, b, topic, 2, perPartition)
	var (
		mu    sync.Mutex
		sizes []int
		next  = make(map[int32]int64)
		wrong []kafka.Record
		total atomic.Int64
	)
	m := spawn(t, config(b, group), api.HandleBatch(topic, func(_ context.Context, records []kafka.Record) error {
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, len(records))
		for _, r := range records {
			if r.Partition != records[0].Partition || r.Offset != next[r.Partition] {
				wrong = append(wrong, r)
			}
			next[r.Partition] = r.Offset + 1
		}
		total.Add(int64(len(records)))
		return nil
	}, api.MaxRecords(most)))
	eventually(t, patience, "every record handled", func() bool { return total.Load() >= int64(n) })
	eventually(t, patience, "every record counted as delivered once", func() bool {
		var delivered, acked, again uint64
		for _, p := range m.Stats().Partitions {
			delivered, acked, again = delivered+p.Delivered, acked+p.Acked, again+p.Redelivered
		}
		return delivered == uint64(n) && acked == uint64(n) && again == 0
	})
	m.mustClose(t)
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, wrong, "out of order, or of another partition")
	large := 0
	for _, size := range sizes {
		require.Positive(t, size)
		require.LessOrEqual(t, size, most)
		if 2*size > most { // a surplus is taken in even parts
			large++
		}
	}
	require.Greater(t, large, len(sizes)/2, "the surplus was kept: most calls are nearly full, %v", sizes)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

// ackingActor is a user's actor that has its records acknowledged elsewhere, last record first.
type ackingActor struct {
	log  *actorLog
	nack int64 // this offset is refused at its first attempt
}

type actorLog struct {
	mu       sync.Mutex
	messages []any
	acks     sync.WaitGroup
	errs     []error
}

func (l *actorLog) add(m any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = append(l.messages, m)
}

func (l *actorLog) list() []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]any(nil), l.messages...)
}

func (a *ackingActor) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actors.Assigned, *actors.Revoking, *actors.Lost:
		a.log.add(m)
	case *actors.Deliver:
		a.log.add(m)
		a.log.acks.Go(func() {
			records := m.Records()
			for i := len(records) - 1; i >= 0; i-- {
				var err error
				if records[i].Offset == a.nack && m.Attempt() == 1 {
					err = m.Nack(a.nack, errors.New("not yet"))
				} else {
					err = m.Ack(records[i].Offset)
				}
				if err != nil {
					a.log.mu.Lock()
					a.log.errs = append(a.log.errs, err)
					a.log.mu.Unlock()
				}
			}
		})
	}
}

func handlerActor(t *testing.T, b broker) {
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 1)
	n := fill(t, b, topic, 1, 40)
	log := &actorLog{}
	m := spawn(t, config(b, group), api.HandleActor(topic, func(kafka.TopicPartition) actor.Actor {
		return &ackingActor{log: log, nack: 13}
	}, api.MaxRecords(10), api.Restart(quick())))
	eventually(t, patience, "everything committed", func() bool {
		return b.Committed(t, group)[at(topic, 0)] == int64(n)
	})
	m.mustClose(t)
	log.acks.Wait()
	require.Empty(t, log.errs)

	messages := log.list()
	assigned, ok := messages[0].(*actors.Assigned)
	require.True(t, ok, "the first message is %T", messages[0])
	require.Equal(t, at(topic, 0), assigned.TopicPartition)
	require.Zero(t, assigned.Position)
	revoking, ok := messages[len(messages)-1].(*actors.Revoking)
	require.True(t, ok, "the last message is %T", messages[len(messages)-1])
	require.True(t, revoking.Closing)
	next, attempts := int64(0), map[int64]int{}
	for _, message := range messages[1 : len(messages)-1] {
		deliver, ok := message.(*actors.Deliver)
		require.True(t, ok, "%T in between", message)
		require.LessOrEqual(t, len(deliver.Records()), 10)
		for _, r := range deliver.Records() {
			attempts[r.Offset]++
			if attempts[r.Offset] == 1 {
				require.Equal(t, next, r.Offset)
				next++
				require.Equal(t, 1, deliver.Attempt())
			} else {
				require.Equal(t, 2, deliver.Attempt())
			}
		}
	}
	require.EqualValues(t, n, next)
	require.Equal(t, 2, attempts[13])
	delete(attempts, 13)
	for offset, k := range attempts {
		require.Equal(t, 1, k, "offset %d was acknowledged and comes again", offset)
	}
	failed := told[event.HandlerFailed](m)
	require.Len(t, failed, 1)
	require.EqualValues(t, 13, failed[0].Offset)
}

func failingHandlerRestartsAlone(t *testing.T, b broker) {
	const partitions, perPartition, bad = 4, 60, 1
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	n := fill(t, b, topic, partitions, perPartition)
	refused := errors.New("the database is away")
	m := spawn(t, config(b, group), api.Handle(topic, l.watch("a", func(ctx context.Context, r *kafka.Record) error {
		attempt := actors.DeliveryFrom(ctx).Attempt()
		switch {
		case r.Partition == bad && r.Offset == 5 && attempt <= 2:
			return refused
		case r.Partition == bad && r.Offset == 20 && attempt == 1:
			panic("no such customer")
		}
		return nil
	}), api.Restart(quick())))
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	stats := m.Stats()
	m.mustClose(t)

	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
	require.Empty(t, l.repeated())
	l.noOverlap(t)
	epochs := map[kafka.AssignmentEpoch]bool{}
	for _, p := range stats.Partitions {
		epochs[p.Epoch] = true
		if p.TopicPartition.Partition == bad {
			assert.EqualValues(t, 3, p.Restarts)
			continue
		}
		assert.Zero(t, p.Restarts, p.TopicPartition)
		assert.Zero(t, p.Redelivered, p.TopicPartition)
		l.inOrder(t, p.TopicPartition)
	}
	attempts := map[int64][]int{}
	for _, e := range l.of(at(topic, bad)) {
		attempts[e.offset] = append(attempts[e.offset], e.attempt)
	}
	assert.Equal(t, []int{1, 2, 3}, attempts[5])
	assert.Equal(t, []int{1, 2}, attempts[20])
	assert.Equal(t, []int{1}, attempts[6])

	failed := told[event.HandlerFailed](m)
	require.Len(t, failed, 3)
	for i, want := range []struct {
		offset int64
		panics bool
	}{{5, false}, {5, false}, {20, true}} {
		assert.Equal(t, at(topic, bad), failed[i].TopicPartition)
		assert.Equal(t, want.offset, failed[i].Offset)
		assert.Equal(t, want.panics, failed[i].Panic)
		var typed *actors.HandlerError
		require.ErrorAs(t, failed[i].Err, &typed)
		assert.Equal(t, want.offset, typed.Offset)
	}
	require.ErrorIs(t, failed[0].Err, refused)
	restarted := told[event.HandlerRestarted](m)
	require.Len(t, restarted, 3)
	for _, e := range restarted {
		assert.Equal(t, at(topic, bad), e.TopicPartition)
	}
	require.Len(t, told[event.PartitionsAssigned](m), 1, "no rebalance was needed")
}

func restartGoesOn(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 3)
	n := fill(t, b, topic, 3, 300)
	slow := func(context.Context, *kafka.Record) error {
		pause(time.Millisecond)
		return nil
	}
	handled := 0
	for _, name := range []string{"first", "second", "third"} {
		m := spawn(t, config(b, group), api.Handle(topic, l.watch(name, slow)))
		want := min(handled+150, n)
		eventually(t, patience, name+" handles a part", func() bool { return l.distinct() >= want })
		m.mustClose(t)
		handled = l.distinct()
		sum := int64(0)
		for _, offset := range b.Committed(t, group) {
			sum += offset
		}
		require.EqualValues(t, handled, sum, "everything %s handled is committed", name)
	}
	last := spawn(t, config(b, group), api.Handle(topic, l.note("last")))
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == n })
	last.mustClose(t)
	require.Empty(t, l.repeated())
	l.inOrder(t, tps(topic, 0, 1, 2)...)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}
