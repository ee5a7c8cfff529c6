package wire

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// lookupClient asks one broker for offsets.
type lookupClient struct {
	*client
	broker kafka.Broker
}

// ListOffsets returns the offset for each partition's timestamp, by one request.
func (c *lookupClient) ListOffsets(ctx context.Context, isolation kafka.IsolationLevel, queries []actors.OffsetQuery) (map[kafka.TopicPartition]actors.OffsetAnswer, error) {
	out := make(map[kafka.TopicPartition]actors.OffsetAnswer, len(queries))
	if len(queries) == 0 {
		return out, nil
	}
	a, err := c.call(ctx, c.broker, question{
		api:   apiListOffsets,
		limit: c.network.cfg.RequestTimeout,
		build: func(int16) kmsg.Request {
			req := kmsg.NewPtrListOffsetsRequest()
			req.ReplicaID = consumerReplica
			req.IsolationLevel = int8(isolation)
			req.TimeoutMillis = millis(c.network.cfg.RequestTimeout)
			at := make(map[string]int)
			for _, q := range queries {
				n, ok := at[q.TopicPartition.Topic]
				if !ok {
					n = len(req.Topics)
					at[q.TopicPartition.Topic] = n
					t := kmsg.NewListOffsetsRequestTopic()
					t.Topic = q.TopicPartition.Topic
					req.Topics = append(req.Topics, t)
				}
				p := kmsg.NewListOffsetsRequestTopicPartition()
				p.Partition, p.CurrentLeaderEpoch, p.Timestamp = q.TopicPartition.Partition, q.LeaderEpoch, q.Timestamp
				req.Topics[n].Partitions = append(req.Topics[n].Partitions, p)
			}
			return req
		},
	})
	if err != nil {
		return nil, err
	}
	for _, q := range queries {
		out[q.TopicPartition] = actors.OffsetAnswer{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch, Err: errNotMentioned}
	}
	resp := a.resp.(*kmsg.ListOffsetsResponse)
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			tp := kafka.TopicPartition{Topic: t.Topic, Partition: p.Partition}
			if _, asked := out[tp]; !asked {
				continue
			}
			found := actors.OffsetAnswer{Offset: p.Offset, Timestamp: p.Timestamp, LeaderEpoch: p.LeaderEpoch}
			if p.ErrorCode != 0 {
				found = actors.OffsetAnswer{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch, Err: kafka.ErrorCode(p.ErrorCode)}
			}
			out[tp] = found
		}
	}
	return out, nil
}

// EpochEnds returns where the leader epochs asked about end, by one request.
func (c *lookupClient) EpochEnds(ctx context.Context, queries []actors.EpochQuery) (map[kafka.TopicPartition]actors.EpochAnswer, error) {
	out := make(map[kafka.TopicPartition]actors.EpochAnswer, len(queries))
	if len(queries) == 0 {
		return out, nil
	}
	a, err := c.call(ctx, c.broker, question{
		api:   apiEpochEnds,
		limit: c.network.cfg.RequestTimeout,
		build: func(int16) kmsg.Request {
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			req.ReplicaID = consumerReplica
			at := make(map[string]int)
			for _, q := range queries {
				n, ok := at[q.TopicPartition.Topic]
				if !ok {
					n = len(req.Topics)
					at[q.TopicPartition.Topic] = n
					t := kmsg.NewOffsetForLeaderEpochRequestTopic()
					t.Topic = q.TopicPartition.Topic
					req.Topics = append(req.Topics, t)
				}
				p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
				p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = q.TopicPartition.Partition, q.CurrentEpoch, q.Epoch
				req.Topics[n].Partitions = append(req.Topics[n].Partitions, p)
			}
			return req
		},
	})
	if err != nil {
		return nil, err
	}
	none := actors.EpochEnd{Epoch: kafka.NoLeaderEpoch, EndOffset: kafka.NoOffset}
	for _, q := range queries {
		out[q.TopicPartition] = actors.EpochAnswer{End: none, Err: errNotMentioned}
	}
	resp := a.resp.(*kmsg.OffsetForLeaderEpochResponse)
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			tp := kafka.TopicPartition{Topic: t.Topic, Partition: p.Partition}
			if _, asked := out[tp]; !asked {
				continue
			}
			if p.ErrorCode != 0 {
				out[tp] = actors.EpochAnswer{End: none, Err: kafka.ErrorCode(p.ErrorCode)}
				continue
			}
			out[tp] = actors.EpochAnswer{End: actors.EpochEnd{Epoch: p.LeaderEpoch, EndOffset: p.EndOffset}}
		}
	}
	return out, nil
}
