package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// Offsets that the user commits, with metadata.

// userTextOf returns the offset that is committed, and what the user gave along with it.
func userTextOf(t *testing.T, b broker, group string, tp kafka.TopicPartition) (int64, string) {
	t.Helper()
	committed, text := b.metadataOf(t, group, tp)
	m, err := commit.ParseMetadata(text, committed)
	require.NoError(t, err)
	require.False(t, m.Foreign, "%q", text)
	return committed, m.User
}

func commitsAnEarlierOffset(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	n := fill(t, b, topic, 2, 40)
	c := config(b, group)
	c.OffsetMap = true
	one := spawn(t, c, api.Handle(topic, l.note("one")))
	one.allHandledIn(t, patience, l, n)
	require.NoError(t, one.Commit(t.Context()))
	text := "päckchen 100% \x00\xff user map " + strings.Repeat("long ", 700)
	require.NoError(t, one.CommitOffsets(t.Context(),
		kafka.OffsetAndMetadata{TopicPartition: at(topic, 0), Offset: 25, Metadata: text}, kafka.OffsetAndMetadata{TopicPartition: at(topic, 1), Offset: 40}))
	offset, user := userTextOf(t, b, group, at(topic, 0))
	require.EqualValues(t, 25, offset)
	require.Equal(t, text, user)
	offset, user = userTextOf(t, b, group, at(topic, 1))
	require.EqualValues(t, 40, offset)
	require.Empty(t, user)
	back := tellsOf(t, one, patience, func(event.CommitSetBack) bool { return true })
	require.EqualValues(t, 40, back.From)
	require.EqualValues(t, 25, back.To)
	one.mustClose(t)
	require.EqualValues(t, 25, b.Committed(t, group)[at(topic, 0)], "a close leaves it where it was set")

	second := newLedger()
	two := spawn(t, c, api.Handle(topic, second.note("two")))
	two.allHandledIn(t, patience, second, 15)
	eventually(t, patience, "the commit goes on", func() bool { return b.Committed(t, group)[at(topic, 0)] == 40 })
	_, user = userTextOf(t, b, group, at(topic, 0))
	require.Empty(t, user, "another offset goes without the text")
	two.mustClose(t)
	require.Equal(t, 15, second.distinct())
}

func refusesOffsets(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	fill(t, b, topic, 2, 20)
	hold := newBlocking(10)
	m := spawn(t, config(b, group), api.Handle(topic, l.watch("a", hold.handle)))
	eventually(t, patience, "what can be committed is", func() bool {
		committed := b.Committed(t, group)
		return committed[at(topic, 0)] == 10 && committed[at(topic, 1)] == 10
	})
	offset := func(partition int32, offset int64, metadata string) kafka.OffsetAndMetadata {
		return kafka.OffsetAndMetadata{TopicPartition: at(topic, partition), Offset: offset, Metadata: metadata}
	}
	var refused *actors.OffsetError
	require.ErrorAs(t, m.CommitOffsets(t.Context(), offset(0, 11, "")), &refused)
	assert.EqualValues(t, 10, refused.Highest)
	assert.Equal(t, at(topic, 0), refused.TopicPartition)
	require.ErrorAs(t, m.CommitOffsets(t.Context(), offset(0, -1, "")), &refused)
	assert.Equal(t, "Offset", refused.Field)
	require.ErrorAs(t, m.CommitOffsets(t.Context(), offset(0, 5, strings.Repeat("x", commit.MaxUserBytes+1))), &refused)
	assert.Equal(t, "Metadata", refused.Field)
	require.ErrorAs(t, m.CommitOffsets(t.Context(), offset(0, 5, ""), offset(0, 6, "")), &refused)
	assert.Equal(t, "TopicPartition", refused.Field)
	var unassigned *actors.UnassignedError
	require.ErrorAs(t, m.CommitOffsets(t.Context(), offset(0, 5, ""), offset(7, 5, "")), &unassigned)
	require.ErrorIs(t, m.CommitOffsets(t.Context(), kafka.OffsetAndMetadata{TopicPartition: at("elsewhere", 0)}), actors.ErrNotSubscribed)
	require.EqualValues(t, 10, b.Committed(t, group)[at(topic, 0)])
	future := m.CommitOffsetsAsync(t.Context(), offset(0, 5, strings.Repeat("x", commit.MaxUserBytes)), offset(1, 10, "here"))
	require.True(t, within(patience, future.Done()))
	require.NoError(t, future.Err())
	committed, user := userTextOf(t, b, group, at(topic, 0))
	require.EqualValues(t, 5, committed)
	require.Len(t, user, commit.MaxUserBytes)
	close(hold.release)
	eventually(t, patience, "the commit goes on", func() bool { return b.Committed(t, group)[at(topic, 0)] == 20 })
	m.mustClose(t)
	require.ErrorIs(t, m.CommitOffsets(t.Context(), offset(0, 5, "")), actors.ErrClosing)
}

// While members come and go, each commit of an offset is either at the coordinator when it is answered, or a typed error.
func commitsOffsetsThroughRebalances(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 4)
	n := fill(t, b, topic, 4, 50)
	c := config(b, group)
	c.CommitStrategy = commit.OnDemand()
	c.Assignors = []rebalance.Assignor{rebalance.CooperativeSticky()}
	one := spawn(t, c, api.Handle(topic, l.note("one")))
	one.allHandledIn(t, patience, l, n)
	stop, stopped, confirmed := make(chan struct{}), make(chan struct{}), 0
	go func() {
		defer close(stopped)
		for i := int64(0); !within(0, stop); i++ {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			err := one.CommitOffsets(ctx, kafka.OffsetAndMetadata{TopicPartition: at(topic, int32(i)%4), Offset: i % 50, Metadata: "through"})
			cancel()
			if err == nil {
				confirmed++
				continue
			}
			assert.NotErrorIs(t, err, context.DeadlineExceeded)
			assert.True(t, typedRefusal(err), "%v", err)
			pause(10 * time.Millisecond)
		}
	}()
	for range 2 {
		other := spawn(t, c, api.Handle(topic, l.note("other")))
		settled(t, 4, one, other)
		n += fill(t, b, topic, 4, 10)
		other.allHandledIn(t, patience, l, n)
		other.mustClose(t)
	}
	close(stop)
	require.True(t, within(patience, stopped))
	require.Positive(t, confirmed)
	settled(t, 4, one)
	eventually(t, patience, "it has them all again", func() bool {
		return one.CommitOffsets(t.Context(), kafka.OffsetAndMetadata{TopicPartition: at(topic, 3), Offset: 7, Metadata: "after"}) == nil
	})
	committed, user := userTextOf(t, b, group, at(topic, 3))
	require.EqualValues(t, 7, committed)
	require.Equal(t, "after", user)
	one.mustClose(t)
	require.EqualValues(t, 7, b.Committed(t, group)[at(topic, 3)])
}
