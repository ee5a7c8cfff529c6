package integration

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// seeks goes to an offset, to the beginning, to the end and to a time, with what is delivered and committed after each.
func seeks(t *testing.T, b broker) {
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 1)
	began := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	for i := range 20 {
		b.Produce(t, topic, kafka.Record{Value: []byte("x"), TimestampMillis: began.Add(time.Duration(i) * time.Minute).UnixMilli()})
	}
	tp := at(topic, 0)
	var l atomic.Pointer[ledger]
	l.Store(newLedger())
	m := spawn(t, config(b, group), api.Handle(topic, func(ctx context.Context, r *kafka.Record) error {
		return l.Load().note("a")(ctx, r)
	}))
	drained := func(from int64) {
		t.Helper()
		ends := b.EndOffsets(t, topic)[tp]
		want := int(ends - from)
		eventually(t, patience, "everything from there on is handled", func() bool { return l.Load().distinct() == want })
		eventually(t, patience, "and committed", func() bool { return b.Committed(t, group)[tp] == ends })
		if want > 0 {
			require.Equal(t, from, slices.Min(l.Load().offsets(tp)))
		}
		require.Empty(t, l.Load().repeated())
		l.Load().noOverlap(t)
	}
	drained(0)
	for i, to := range []struct {
		position rebalance.StartPosition
		from     int64
	}{
		{rebalance.StartAtOffset(7), 7},
		{rebalance.StartBy(rebalance.ResetEarliest), 0},
		{rebalance.StartBy(rebalance.ResetAt(began.Add(12 * time.Minute).UnixMilli())), 12},
		{rebalance.StartBy(rebalance.ResetAt(began.Add(2 * time.Hour).UnixMilli())), 20},
		{rebalance.StartBy(rebalance.ResetByDuration(time.Since(began) - 5*time.Minute - 30*time.Second)), 6},
		{rebalance.StartBy(rebalance.ResetLatest), 20},
	} {
		l.Store(newLedger())
		require.NoError(t, m.Seek(t.Context(), to.position, tp), to.position)
		drained(to.from)
		eventually(t, patience, "it is told that it goes on at "+to.position.String(), func() bool {
			resets := told[event.PositionReset](m)
			last := resets[len(resets)-1]
			return len(resets) == i+2 && last.To == to.from && last.Reason == rebalance.ReasonSought
		})
	}
	l.Store(newLedger())
	b.Produce(t, topic, kafka.Record{Value: []byte("y")})
	drained(20)
	err := m.Seek(t.Context(), rebalance.StartAtOffset(3), at(topic, 5))
	_, ok := errors.AsType[*actors.UnassignedError](err)
	require.True(t, ok, err)
	m.mustClose(t)
	require.ErrorIs(t, m.Seek(t.Context(), rebalance.StartAtOffset(3), tp), actors.ErrClosing)
}

// seeksWhileRebalancing seeks everything it owns while another member comes and goes. Each call works, or says that the
// partition is not here; nothing is lost either way.
func seeksWhileRebalancing(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 4)
	n := fill(t, b, topic, 4, 50)
	first := spawn(t, config(b, group), api.Handle(topic, l.note("first")))
	first.joined(t)
	worked := 0
	for range 2 {
		second := spawn(t, config(b, group), api.Handle(topic, l.note("second")))
		for done := time.Now().Add(3 * time.Second); time.Now().Before(done) && len(second.owned()) == 0; {
			for p := range int32(4) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				err := first.Seek(ctx, rebalance.StartBy(rebalance.ResetEarliest), at(topic, p))
				cancel()
				_, unassigned := errors.AsType[*actors.UnassignedError](err)
				_, state := errors.AsType[*actors.StateError](err)
				require.True(t, err == nil || unassigned || state, err)
				if err == nil {
					worked++
				}
			}
			pause(20 * time.Millisecond)
		}
		second.mustClose(t)
	}
	require.Positive(t, worked)
	first.allHandledIn(t, patience, l, n)
	ends := b.EndOffsets(t, topic)
	eventually(t, patience, "all is committed", func() bool {
		committed := b.Committed(t, group)
		for tp, end := range ends {
			if committed[tp] != end {
				return false
			}
		}
		return true
	})
	first.mustClose(t)
	l.noOverlap(t)
}

// skipsAPoisonRecord skips what pauses a partition, in each order.
func skipsAPoisonRecord(t *testing.T, b broker) {
	for name, option := range map[string]api.HandlerOption{"PartitionOrder": nil, "KeyOrder": api.KeyOrder(4), "Unordered": api.Unordered(4)} {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 1)
		n := fill(t, b, topic, 1, 30)
		tp := at(topic, 0)
		options := []api.RecordOption{api.Restart(slowRestart())}
		if option != nil {
			options = append(options, option)
		}
		m := spawn(t, config(b, group), api.Handle(topic, l.watch("a", func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 11 {
				return errors.New("poison")
			}
			return nil
		}), options...))
		tellsOf(t, m, patience, func(event.HandlerFailed) bool { return true })
		err := m.Skip(t.Context(), tp, 11, "")
		_, ok := errors.AsType[*actors.SkipError](err)
		require.True(t, ok, err)
		require.NoError(t, m.Skip(t.Context(), tp, 11, "cannot be parsed"), name)
		eventually(t, patience, "the commit passes it", func() bool { return b.Committed(t, group)[tp] == int64(n) })
		skipped := tellsOf(t, m, patience, func(event.RecordSkipped) bool { return true })
		require.Equal(t, "cannot be parsed", skipped.Reason)
		require.NoError(t, m.Healthy())
		m.mustClose(t)
		if option == nil { // the other orders have several records of the partition at work
			l.noOverlap(t)
		}
	}
}
