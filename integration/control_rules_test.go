package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// pausesAndResumes pauses a partition, a topic and everything, with rebalances in between, and a partition that is new.
func pausesAndResumes(t *testing.T, b broker) {
	topic, other, group, l := unique(t, "topic"), unique(t, "other"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	b.CreateTopic(t, other, 1)
	m := spawn(t, config(b, group), api.Handle([]string{topic, other}, l.note("a")))
	settled(t, 3, m)
	ctx := requestContext(t)
	handled := func(topic string, partition int32, n int) {
		t.Helper()
		eventually(t, patience, "what is not paused flows", func() bool { return len(l.offsets(at(topic, partition))) == n })
	}
	still := func(topic string, partition int32, n int) {
		t.Helper()
		pause(300 * time.Millisecond)
		require.Len(t, l.offsets(at(topic, partition)), n)
		p, ok := m.partition(at(topic, partition))
		require.True(t, ok)
		require.Equal(t, []string{"user"}, p.PauseReasons)
	}
	write := func() { fill(t, b, topic, 2, 10); fill(t, b, other, 1, 10) }

	require.NoError(t, m.Pause(ctx, at(topic, 0)))
	write()
	handled(topic, 1, 10)
	handled(other, 0, 10)
	still(topic, 0, 0)
	rebalances := m.Stats().Rebalances
	inTheMiddleOfARebalance(t, m)
	eventually(t, patience, "the rebalance is over", func() bool { return m.Stats().Rebalances > rebalances })
	settled(t, 3, m)
	still(topic, 0, 0)
	require.NoError(t, m.Resume(ctx, at(topic, 0)))
	handled(topic, 0, 10)

	inTheMiddleOfARebalance(t, m)
	require.NoError(t, m.Pause(ctx, kafka.WholeTopic(topic)), "a partition that stays is paused in a rebalance as well")
	write()
	handled(other, 0, 20)
	still(topic, 0, 10)
	still(topic, 1, 10)
	b.AddPartitions(t, topic, 1)
	settled(t, 4, m)
	fillOne(t, b, topic, 2, 10)
	still(topic, 2, 0)
	require.NoError(t, m.Resume(ctx, kafka.WholeTopic(topic)))
	handled(topic, 0, 20)
	handled(topic, 1, 20)
	handled(topic, 2, 10)

	require.NoError(t, m.Pause(ctx))
	write()
	still(other, 0, 20)
	require.NoError(t, m.Resume(ctx, at(other, 0)))
	handled(other, 0, 30)
	still(topic, 1, 20)
	inTheMiddleOfARebalance(t, m)
	require.NoError(t, m.Resume(ctx))
	m.allHandledIn(t, patience, l, 100)
	m.mustClose(t)
	require.ErrorIs(t, m.Pause(ctx), actors.ErrClosing)
	require.ErrorIs(t, m.Resume(ctx, at(topic, 0)), actors.ErrClosing)
	require.Empty(t, l.repeated())
	l.noOverlap(t)
	require.Equal(t, all(t, b.EndOffsets, topic, other), b.Committed(t, group))
}

// refusesBadInput gives each control call what cannot be meant. Nothing is changed by any of it.
func refusesBadInput(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	n := fill(t, b, topic, 2, 10)
	m := spawn(t, config(b, group), api.Handle(topic, l.note("a")))
	m.allHandledIn(t, patience, l, n)
	eventually(t, patience, "all is committed", func() bool {
		return b.Committed(t, group)[at(topic, 0)] == 10 && b.Committed(t, group)[at(topic, 1)] == 10
	})
	ctx := requestContext(t)
	nothing := func(context.Context, *api.Token) error { t.Error("it is refused"); return nil }
	for word, call := range map[string]func(kafka.TopicPartition) error{
		"pause":  func(tp kafka.TopicPartition) error { return m.Pause(ctx, at(topic, 0), tp) },
		"resume": func(tp kafka.TopicPartition) error { return m.Resume(ctx, at(topic, 0), tp) },
		"seek":   func(tp kafka.TopicPartition) error { return m.Seek(ctx, rebalance.StartAtOffset(0), at(topic, 0), tp) },
		"commit": func(tp kafka.TopicPartition) error { return m.Commit(ctx, at(topic, 0), tp) },
		"commit async": func(tp kafka.TopicPartition) error {
			future := m.CommitAsync(ctx, at(topic, 0), tp)
			require.True(t, within(patience, future.Done()))
			return future.Err()
		},
		"commit offsets": func(tp kafka.TopicPartition) error {
			return m.CommitOffsets(ctx, kafka.OffsetAndMetadata{TopicPartition: at(topic, 0), Offset: 5}, kafka.OffsetAndMetadata{TopicPartition: tp})
		},
		"token":      func(tp kafka.TopicPartition) error { _, err := m.Token(ctx, "a test", at(topic, 0), tp); return err },
		"try token":  func(tp kafka.TopicPartition) error { _, err := m.TryToken(ctx, "a test", at(topic, 0), tp); return err },
		"with token": func(tp kafka.TopicPartition) error { return m.WithToken(ctx, "a test", nothing, at(topic, 0), tp) },
		"position":   func(tp kafka.TopicPartition) error { _, err := m.Position(ctx, at(topic, 0), tp); return err },
		"lag":        func(tp kafka.TopicPartition) error { _, err := m.Lag(ctx, at(topic, 0), tp); return err },
	} {
		var unassigned *actors.UnassignedError
		require.ErrorAs(t, call(at(topic, 9)), &unassigned, word)
		require.Equal(t, tps(topic, 9), unassigned.Partitions, word)
		var argument *actors.ArgumentError
		if word != "commit offsets" { // which names what is wrong by its own error
			require.ErrorAs(t, call(at(topic, -5)), &argument, word)
			require.Equal(t, at(topic, -5), argument.TopicPartition, word)
		}
		err := call(at("elsewhere", 0))
		_, none := errors.AsType[*actors.UnassignedError](err)
		require.True(t, none || errors.Is(err, actors.ErrNotSubscribed), "%s: %v", word, err)
	}
	var offset *actors.OffsetError
	require.ErrorAs(t, m.CommitOffsets(ctx, kafka.OffsetAndMetadata{TopicPartition: at(topic, -5)}), &offset)
	require.Equal(t, "TopicPartition", offset.Field)
	var position *rebalance.StartPositionError
	require.ErrorAs(t, m.Seek(ctx, rebalance.StartAtOffset(-3)), &position)
	require.ErrorAs(t, m.Seek(ctx, rebalance.StartBy(rebalance.ResetNone)), &position)
	var skip *actors.SkipError
	for _, bad := range []struct {
		partition int32
		offset    int64
		reason    string
	}{{-5, 0, "why"}, {0, -1, "why"}, {0, 3, " "}, {0, 3, "it is finished already"}, {0, 99, "it is not there"}} {
		require.ErrorAs(t, m.Skip(ctx, at(topic, bad.partition), bad.offset, bad.reason), &skip, bad.reason)
	}
	require.ErrorAs(t, m.Skip(ctx, at(topic, 9), 3, "why"), new(*actors.UnassignedError))
	require.ErrorIs(t, m.Skip(ctx, at("elsewhere", 0), 3, "why"), actors.ErrNotSubscribed)
	_, err := m.OffsetsForTimes(ctx, map[kafka.TopicPartition]time.Time{at(topic, 0): time.Unix(-1, 0)})
	require.ErrorAs(t, err, new(*actors.ArgumentError))
	require.ErrorAs(t, m.SetConcurrency(ctx, -1), new(*api.ConfigError))
	require.ErrorAs(t, m.Subscribe(ctx), new(*api.ConfigError))
	require.ErrorAs(t, m.Subscribe(ctx, api.Handle("not a topic", l.note("a"))), new(*api.ConfigError))
	require.ErrorAs(t, m.Unsubscribe(ctx, "elsewhere"), new(*api.ConfigError))

	require.Empty(t, m.Stats().Tokens)
	for _, p := range m.Stats().Partitions {
		require.Empty(t, p.PauseReasons)
	}
	n += fill(t, b, topic, 2, 10)
	m.allHandledIn(t, patience, l, n)
	m.mustClose(t)
	require.Empty(t, l.repeated())
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}
