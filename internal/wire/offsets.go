package wire

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
)

// brokerRetention leaves the offsets' lifetime to the broker. Zero would mean "keep for no time".
const brokerRetention int64 = -1

// offsetsClient writes and reads committed offsets.
type offsetsClient struct{ *client }

// Commit sends one round.
func (c *offsetsClient) Commit(ctx context.Context, coordinator kafka.Broker, round *actors.CommitRound) (map[kafka.TopicPartition]error, error) {
	return c.commit(ctx, coordinator, round.Round())
}

func (c *offsetsClient) commit(ctx context.Context, coordinator kafka.Broker, round commit.Round) (map[kafka.TopicPartition]error, error) {
	want := apiOffsetCommit
	if round.GroupInstanceID != "" {
		want = want.atLeast(offsetCommitInstance) // below it a fenced static member would not be told
	}
	a, err := c.call(ctx, coordinator, question{
		api:   want,
		limit: c.network.cfg.RequestTimeout,
		build: func(int16) kmsg.Request { return commitRequest(round) },
	})
	if err != nil {
		return nil, err
	}
	asked := make(map[kafka.TopicPartition]bool, len(round.Offsets))
	for i := range round.Offsets {
		asked[round.Offsets[i].TopicPartition] = true
	}
	out := make(map[kafka.TopicPartition]error, len(round.Offsets))
	resp := a.resp.(*kmsg.OffsetCommitResponse)
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			tp := kafka.TopicPartition{Topic: t.Topic, Partition: t.Partitions[j].Partition}
			if asked[tp] {
				out[tp] = kafka.ErrorFromCode(t.Partitions[j].ErrorCode)
			}
		}
	}
	return out, nil
}

func commitRequest(round commit.Round) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation, req.MemberID = round.GroupID, int32(round.Generation), round.MemberID
	req.InstanceID = optional(round.GroupInstanceID)
	req.RetentionTimeMillis = brokerRetention
	at := make(map[string]int)
	for i := range round.Offsets {
		o := &round.Offsets[i]
		n, ok := at[o.TopicPartition.Topic]
		if !ok {
			n = len(req.Topics)
			at[o.TopicPartition.Topic] = n
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic = o.TopicPartition.Topic
			req.Topics = append(req.Topics, t)
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch = o.TopicPartition.Partition, o.Offset, o.LeaderEpoch
		p.Metadata = &o.Metadata // empty, never null, as the Java client does
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, p)
	}
	return req
}

// FetchOffsets reads committed offsets.
func (c *offsetsClient) FetchOffsets(ctx context.Context, coordinator kafka.Broker, in actors.OffsetFetchRequest) (map[kafka.TopicPartition]actors.CommittedOffset, error) {
	if in.Partitions != nil && len(in.Partitions) == 0 {
		return map[kafka.TopicPartition]actors.CommittedOffset{}, nil
	}
	a, err := c.call(ctx, coordinator, question{
		api:   apiOffsetFetch,
		limit: c.network.cfg.RequestTimeout,
		build: func(version int16) kmsg.Request { return offsetFetchRequest(in, version) },
	})
	if err != nil {
		return nil, err
	}
	resp := a.resp.(*kmsg.OffsetFetchResponse)
	if err := a.failed(apiOffsetFetch, resp.ErrorCode); err != nil {
		return nil, err
	}
	out := make(map[kafka.TopicPartition]actors.CommittedOffset, len(in.Partitions))
	for _, tp := range in.Partitions {
		out[tp] = noCommitted(errNotMentioned)
	}
	found := func(topic string, partition int32, offset actors.CommittedOffset) {
		tp := kafka.TopicPartition{Topic: topic, Partition: partition}
		if _, asked := out[tp]; asked || in.Partitions == nil {
			out[tp] = offset
		}
	}
	if a.version < offsetFetchGroups {
		for i := range resp.Topics {
			for _, p := range resp.Topics[i].Partitions {
				found(resp.Topics[i].Topic, p.Partition, committed(p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode))
			}
		}
		return out, nil
	}
	for i := range resp.Groups {
		g := &resp.Groups[i]
		if g.Group != in.GroupID {
			continue
		}
		if err := a.failed(apiOffsetFetch, g.ErrorCode); err != nil {
			return nil, err
		}
		for j := range g.Topics {
			for _, p := range g.Topics[j].Partitions {
				found(g.Topics[j].Topic, p.Partition, committed(p.Offset, p.LeaderEpoch, p.Metadata, p.ErrorCode))
			}
		}
		return out, nil
	}
	return nil, a.fails(apiOffsetFetch, errNotMentioned)
}

// committed brings one partition of an answer into the port's form.
func committed(offset int64, leaderEpoch int32, metadata *string, code int16) actors.CommittedOffset {
	if code != 0 {
		return noCommitted(kafka.ErrorCode(code))
	}
	return actors.CommittedOffset{Offset: offset, LeaderEpoch: leaderEpoch, Metadata: text(metadata)}
}

// noCommitted is a partition whose committed offset could not be read.
func noCommitted(err error) actors.CommittedOffset {
	return actors.CommittedOffset{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch, Err: err}
}

// offsetFetchRequest asks for stable offsets wherever the broker knows it: without, a pending transaction's partition
// looks as if it had an older commit or none. Member id and epoch of v9 are for the KIP-848 protocol and are left out; on
// a classic group brokers ignore them.
func offsetFetchRequest(in actors.OffsetFetchRequest, version int16) *kmsg.OffsetFetchRequest {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.RequireStable = version >= offsetFetchStable
	byTopic := groupByTopic(in.Partitions)
	if version < offsetFetchGroups {
		req.Group = in.GroupID
		for _, g := range byTopic {
			t := kmsg.NewOffsetFetchRequestTopic()
			t.Topic, t.Partitions = g.topic, g.partitions
			req.Topics = append(req.Topics, t)
		}
		return req
	}
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = in.GroupID
	for _, g := range byTopic {
		t := kmsg.NewOffsetFetchRequestGroupTopic()
		t.Topic, t.Partitions = g.topic, g.partitions
		group.Topics = append(group.Topics, t)
	}
	req.Groups = append(req.Groups, group)
	return req
}

// topicPartitions is one topic with some of its partitions.
type topicPartitions struct {
	topic      string
	partitions []int32
}

// groupByTopic groups partitions by topic in the order topics first appear; nil stays nil.
func groupByTopic(in []kafka.TopicPartition) []topicPartitions {
	var out []topicPartitions
	at := make(map[string]int)
	for _, tp := range in {
		n, ok := at[tp.Topic]
		if !ok {
			n = len(out)
			at[tp.Topic] = n
			out = append(out, topicPartitions{topic: tp.Topic})
		}
		out[n].partitions = append(out[n].partitions, tp.Partition)
	}
	return out
}
