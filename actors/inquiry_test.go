package actors

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

var inquiryBackoff = supervisor.Backoff{Initial: 100 * time.Millisecond, Max: time.Second}

func askFor(asked map[kafka.TopicPartition]int64) *inquiry {
	return newInquiry("end offsets", inquiryBackoff, &request{answer: make(chan error, 1)}, asked)
}

// described returns a topic whose partitions are led by these brokers.
func ledBy(leaders ...int32) TopicMetadata {
	var t TopicMetadata
	for _, leader := range leaders {
		t.Partitions = append(t.Partitions, PartitionMetadata{Leader: leader, LeaderEpoch: 3})
	}
	return t
}

func viewOf(topics map[string]TopicMetadata, brokers ...int32) inquiryView {
	v := newInquiryView()
	m := &ClusterMetadata{Brokers: make(map[int32]kafka.Broker), Topics: topics}
	for _, id := range brokers {
		m.Brokers[id] = kafka.Broker{ID: id, Addr: "b"}
	}
	v.answered(m)
	return v
}

func TestInquiry_WhomIsAskedWhat(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, test := range []struct {
		name      string
		view      inquiryView
		committed bool
		asked     []kafka.TopicPartition
		topics    []string
		leaders   map[int32]int
		commits   int
		waits     bool
	}{
		{"nothing is known", newInquiryView(), false, []kafka.TopicPartition{at(0)}, []string{"orders"}, nil, 0, false},
		{"each leader for its own", viewOf(map[string]TopicMetadata{"orders": ledBy(1, 2, 1)}, 1, 2), false,
			[]kafka.TopicPartition{at(0), at(1), at(2)}, nil, map[int32]int{1: 2, 2: 1}, 0, false},
		{"a partition that metadata does not have", viewOf(map[string]TopicMetadata{"orders": ledBy(1)}, 1), false,
			[]kafka.TopicPartition{at(0), at(1)}, []string{"orders"}, map[int32]int{1: 1}, 0, false},
		{"a whole topic is always asked for", viewOf(map[string]TopicMetadata{"orders": ledBy(1)}, 1), false,
			[]kafka.TopicPartition{kafka.WholeTopic("orders")}, []string{"orders"}, nil, 0, false},
		{"no leader", viewOf(map[string]TopicMetadata{"orders": ledBy(-1, 1)}, 1), false,
			[]kafka.TopicPartition{at(0), at(1)}, nil, map[int32]int{1: 1}, 0, true},
		{"a leader nobody can reach", viewOf(map[string]TopicMetadata{"orders": ledBy(7)}, 1), false,
			[]kafka.TopicPartition{at(0)}, nil, nil, 0, true},
		{"committed offsets need no leader", viewOf(map[string]TopicMetadata{"orders": ledBy(-1)}, 1), true,
			[]kafka.TopicPartition{at(0)}, nil, nil, 1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := askFor(sameTime(test.asked, rebalance.TimestampLatest))
			q.committed = test.committed
			plan := test.view.plan(now, []*inquiry{q})
			assert.Equal(t, test.topics, plan.topics)
			assert.Len(t, plan.committed, test.commits)
			assert.Len(t, plan.leaders, len(test.leaders))
			for id, n := range test.leaders {
				assert.Len(t, plan.leaders[id], n, "broker %d", id)
			}
			assert.Equal(t, test.waits, !plan.next.IsZero())
			if test.waits {
				assert.Equal(t, now.Add(inquiryBackoff.Initial), plan.next)
				later := test.view.plan(plan.next, []*inquiry{q})
				assert.Equal(t, []string{"orders"}, later.topics, "who leads is asked before it is tried again")
			}
		})
	}
}

func TestInquiry_WhatAFailureMeans(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, test := range []struct {
		err   error
		final bool
	}{
		{kafka.NotLeaderForPartition, false},
		{kafka.FencedLeaderEpoch, false},
		{kafka.UnknownLeaderEpoch, false},
		{kafka.OffsetNotAvailable, false},
		{kafka.UnstableOffsetCommit, false},
		{kafka.NotCoordinator, false},
		{&kafka.RequestError{API: "ListOffsets", Err: errors.New("connection reset")}, false},
		{errNotAnswered, false},
		{kafka.TopicAuthorizationFailed, true},
		{kafka.GroupAuthorizationFailed, true},
		{kafka.SaslAuthenticationFailed, true},
		{&kafka.RequestError{API: "ListOffsets", Err: kafka.UnsupportedForMessageFormat}, true},
		{&kafka.VersionError{API: "ListOffsets"}, true},
	} {
		q := askFor(sameTime([]kafka.TopicPartition{at(0), at(1)}, rebalance.TimestampLatest))
		item := q.open[at(0)]
		item.asked = true
		item.failedWith(now, test.err)
		done, err := q.outcome()
		assert.Equal(t, test.final, done, "%v", test.err)
		if test.final {
			question, ok := errors.AsType[*QuestionError](err)
			require.True(t, ok)
			assert.Equal(t, at(0), question.TopicPartition)
			assert.ErrorIs(t, err, test.err)
			continue
		}
		assert.False(t, item.asked)
		assert.Equal(t, now.Add(inquiryBackoff.Initial), item.due)
		item.failedWith(now, test.err)
		assert.Equal(t, now.Add(2*inquiryBackoff.Initial), item.due)
		for range 100 {
			item.failedWith(now, test.err)
		}
		assert.Equal(t, now.Add(inquiryBackoff.Max), item.due)
		assert.ErrorIs(t, q.trouble.Load(), test.err)
	}
}

func TestInquiry_ATopicIsUnknownOnlyWhenThreeAnswersInARowSaySo(t *testing.T) {
	now := time.Unix(1000, 0)
	none := map[string]TopicMetadata{"orders": {Err: kafka.UnknownTopicOrPartition}}
	q := askFor(sameTime([]kafka.TopicPartition{at(0), kafka.WholeTopic("orders")}, rebalance.TimestampLatest))
	q.begin(4)
	q.described(now, 4, none)
	assert.Zero(t, q.open[at(0)].missed, "it was asked before the call")
	q.described(now, 5, none)
	q.described(now, 6, none)
	assert.Equal(t, 1, q.open[at(0)].missed, "the second one came before it was asked again")
	now = now.Add(time.Minute)
	q.described(now, 7, map[string]TopicMetadata{"orders": ledBy(1)})
	assert.Zero(t, q.open[at(0)].missed)
	require.Len(t, q.open, 1, "the topic is its partition, which was named as well")
	for number := uint64(8); number < 10; number++ {
		done, _ := q.outcome()
		assert.False(t, done)
		now = now.Add(time.Minute)
		q.described(now, number, none)
	}
	now = now.Add(time.Minute)
	q.described(now, 10, map[string]TopicMetadata{"orders": {Err: kafka.LeaderNotAvailable}})
	done, _ := q.outcome()
	assert.False(t, done, "a topic that is being made is not unknown")
	now = now.Add(time.Minute)
	q.described(now, 11, none)
	done, err := q.outcome()
	assert.True(t, done)
	unknown, ok := errors.AsType[*UnknownPartitionError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, []kafka.TopicPartition{at(0)}, unknown.Partitions)
	assert.ErrorIs(t, err, kafka.UnknownTopicOrPartition)
}

func TestInquiry_WhatIsAskedTogether(t *testing.T) {
	view := viewOf(map[string]TopicMetadata{"orders": ledBy(1, 1)}, 1)
	end := askFor(sameTime([]kafka.TopicPartition{at(0), at(1)}, rebalance.TimestampLatest))
	same := askFor(sameTime([]kafka.TopicPartition{at(0)}, rebalance.TimestampLatest))
	other := askFor(sameTime([]kafka.TopicPartition{at(0)}, rebalance.TimestampEarliest))
	items := []*inquiryItem{end.open[at(0)], end.open[at(1)], same.open[at(0)], other.open[at(0)]}
	queries, asked := view.batch(items)
	assert.Equal(t, []OffsetQuery{
		{TopicPartition: at(0), LeaderEpoch: 3, Timestamp: rebalance.TimestampLatest},
		{TopicPartition: at(1), LeaderEpoch: 3, Timestamp: rebalance.TimestampLatest},
	}, queries)
	assert.Equal(t, []*inquiryItem{end.open[at(0)], same.open[at(0)]}, asked[at(0)])
	assert.False(t, other.open[at(0)].asked, "a request has each partition once")
	for _, items := range asked {
		for _, item := range items {
			item.found(OffsetAnswer{Offset: 5}, CommittedOffset{})
		}
	}
	for _, q := range []*inquiry{end, same} {
		done, err := q.outcome()
		assert.NoError(t, err)
		assert.True(t, done)
	}
	done, _ := other.outcome()
	assert.False(t, done)
}

func TestInquiry_WhatIsDoubtedIsNotLearntFromSomebodyWhoMayKnowLess(t *testing.T) {
	view := viewOf(map[string]TopicMetadata{"orders": ledBy(1)}, 1)
	view.doubted["orders"] = true
	view.learn(map[int32]kafka.Broker{1: {ID: 1, Addr: "older"}, 2: {ID: 2, Addr: "b"}},
		map[string]TopicMetadata{"orders": ledBy(1), "clicks": ledBy(2)})
	_, known := view.partition(at(0))
	assert.False(t, known)
	_, known = view.partition(kafka.TopicPartition{Topic: "clicks"})
	assert.True(t, known)
	assert.Equal(t, "b", view.brokers[1].Addr)
	fresh := ledBy(2)
	fresh.Partitions[0].LeaderEpoch = 2
	view.answered(&ClusterMetadata{Brokers: view.brokers, Topics: map[string]TopicMetadata{"orders": fresh}})
	partition, known := view.partition(at(0))
	assert.True(t, known)
	assert.EqualValues(t, 1, partition.Leader, "an older leader epoch does not replace a newer one")
}
