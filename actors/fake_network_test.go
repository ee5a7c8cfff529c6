package actors

import (
	"context"
	"encoding/binary"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

var _ Network = (*fakeCluster)(nil)

// fakeClient is one connection: every port's client of the fake.
type fakeClient struct {
	c      *fakeCluster
	broker kafka.Broker

	mu     sync.Mutex
	closed bool
	cancel context.CancelFunc
}

func (c *fakeCluster) client(broker kafka.Broker) *fakeClient {
	return &fakeClient{c: c, broker: broker}
}

func (c *fakeCluster) Metadata() MetadataClient                { return c.client(kafka.Broker{}) }
func (c *fakeCluster) Membership() MembershipClient            { return c.client(kafka.Broker{}) }
func (c *fakeCluster) Heartbeat() HeartbeatClient              { return c.client(kafka.Broker{}) }
func (c *fakeCluster) Offsets() OffsetsClient                  { return c.client(kafka.Broker{}) }
func (c *fakeCluster) Fetch(broker kafka.Broker) FetchClient   { return c.client(broker) }
func (c *fakeCluster) Lookup(broker kafka.Broker) LookupClient { return c.client(broker) }
func (c *fakeCluster) Decode(chunk Chunk) ChunkReader          { return &fakeReader{c: c, chunk: chunk} }

// begin starts a call that ends with its context, with Close, or with end.
func (f *fakeClient) begin(ctx context.Context, api string) (call context.Context, end func(), err error) {
	call, cancel := context.WithCancel(ctx)
	f.mu.Lock()
	f.cancel = cancel
	if f.closed {
		f.closed = false // a closed connection is made anew by the next call
	}
	f.mu.Unlock()
	return call, cancel, f.c.enter(call, api)
}

func (f *fakeClient) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.cancel != nil {
		f.cancel()
	}
}

func (f *fakeClient) Metadata(ctx context.Context, topics []string) (*ClusterMetadata, error) {
	_, end, err := f.begin(ctx, "Metadata")
	defer end()
	if err != nil {
		return nil, err
	}
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &ClusterMetadata{Brokers: maps.Clone(c.brokers), Topics: make(map[string]TopicMetadata)}
	if topics == nil {
		topics = slices.Collect(maps.Keys(c.topics))
	}
	for _, name := range topics {
		t := c.topics[name]
		if t == nil {
			out.Topics[name] = TopicMetadata{Err: kafka.UnknownTopicOrPartition}
			continue
		}
		meta := TopicMetadata{ID: t.id}
		for _, p := range t.parts {
			meta.Partitions = append(meta.Partitions, PartitionMetadata{Leader: p.leader, LeaderEpoch: p.epoch})
		}
		out.Topics[name] = meta
	}
	return out, nil
}

func (f *fakeClient) Avoid(kafka.Broker) {}

func (f *fakeClient) FindCoordinator(ctx context.Context, _ string) (kafka.Broker, error) {
	_, end, err := f.begin(ctx, "FindCoordinator")
	defer end()
	if err != nil {
		return kafka.Broker{}, err
	}
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.c.coordinator == 0 {
		return kafka.Broker{}, coded("FindCoordinator", kafka.CoordinatorNotAvailable)
	}
	return f.c.brokers[f.c.coordinator], nil
}

func (f *fakeClient) Join(ctx context.Context, broker kafka.Broker, req rebalance.JoinRequest) (rebalance.JoinResponse, error) {
	_, end, err := f.begin(ctx, "JoinGroup")
	defer end()
	if err != nil {
		return rebalance.JoinResponse{}, err
	}
	return f.c.join(broker, req)
}

func (f *fakeClient) Sync(ctx context.Context, broker kafka.Broker, req rebalance.SyncRequest) (rebalance.SyncResponse, error) {
	_, end, err := f.begin(ctx, "SyncGroup")
	defer end()
	if err != nil {
		return rebalance.SyncResponse{}, err
	}
	return f.c.sync(broker, req)
}

func (f *fakeClient) Heartbeat(ctx context.Context, broker kafka.Broker, req rebalance.HeartbeatRequest) error {
	_, end, err := f.begin(ctx, "Heartbeat")
	defer end()
	if err != nil {
		return err
	}
	return f.c.heartbeat(broker, req)
}

func (f *fakeClient) Leave(ctx context.Context, broker kafka.Broker, req rebalance.LeaveRequest) error {
	_, end, err := f.begin(ctx, "LeaveGroup")
	defer end()
	if err != nil {
		return err
	}
	return f.c.leave(broker, req)
}

func (f *fakeClient) Commit(ctx context.Context, broker kafka.Broker, round *CommitRound) (map[kafka.TopicPartition]error, error) {
	call, end, err := f.begin(ctx, "OffsetCommit")
	defer end()
	if err != nil {
		return nil, err
	}
	f.c.mu.Lock()
	hook := f.c.onCommit
	f.c.mu.Unlock()
	if hook != nil {
		if results, err := hook(call, round); results != nil || err != nil {
			return results, err
		}
	}
	return f.c.commit(broker, round)
}

func (f *fakeClient) FetchOffsets(ctx context.Context, broker kafka.Broker, req OffsetFetchRequest) (map[kafka.TopicPartition]CommittedOffset, error) {
	_, end, err := f.begin(ctx, "OffsetFetch")
	defer end()
	if err != nil {
		return nil, err
	}
	if broker.ID != f.c.coordinator {
		return nil, coded("OffsetFetch", kafka.NotCoordinator)
	}
	return f.c.fetchOffsets(req), nil
}

// --- the logs

func (f *fakeClient) Fetch(ctx context.Context, req *FetchRequest) (*FetchResponse, error) {
	call, end, err := f.begin(ctx, "Fetch")
	defer end()
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(time.Duration(req.MaxWaitMillis) * time.Millisecond)
	defer timer.Stop()
	for {
		response, something, changed := f.read(req)
		if something {
			return response, nil
		}
		select {
		case <-call.Done():
			return nil, call.Err()
		case <-timer.C:
			return response, nil
		case <-changed:
		}
	}
}

func (f *fakeClient) read(req *FetchRequest) (response *FetchResponse, something bool, changed chan struct{}) {
	c := f.c
	c.mu.Lock()
	hook := c.onFetch
	c.mu.Unlock()
	response = &FetchResponse{}
	for i, p := range req.Partitions {
		var part *FetchedPartition
		if hook != nil {
			part = hook(f.broker, p)
		}
		if part == nil {
			part = c.readPartition(f.broker, p)
		}
		c.mu.Lock()
		if c.answerBytes > 0 && response.Bytes >= c.answerBytes && part.Err == nil {
			part.Chunk = Chunk{NextOffset: kafka.NoOffset}
		}
		c.mu.Unlock()
		part.TopicPartition, part.Index = p.TopicPartition, i
		part.Chunk.TopicPartition = p.TopicPartition
		something = something || part.Err != nil || len(part.Chunk.Data) > 0 || part.Diverging != nil || part.PreferredReadReplica >= 0
		response.Bytes += len(part.Chunk.Data)
		response.Partitions = append(response.Partitions, *part)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return response, something, c.changed
}

func failedPart(code kafka.ErrorCode) *FetchedPartition {
	return &FetchedPartition{
		Err: code, HighWatermark: kafka.NoOffset, LastStableOffset: kafka.NoOffset, PreferredReadReplica: -1,
		Chunk: Chunk{NextOffset: kafka.NoOffset},
	}
}

// fakeBytes is the size of one record in a chunk, and of one decoded.
const fakeBytes = 16

func (c *fakeCluster) readPartition(broker kafka.Broker, p FetchPartition) *FetchedPartition {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.log(p.TopicPartition)
	switch {
	case l == nil:
		return failedPart(kafka.UnknownTopicOrPartition)
	case !p.TopicID.IsZero() && p.TopicID != c.topics[p.TopicPartition.Topic].id:
		return failedPart(kafka.UnknownTopicID)
	case l.leader != broker.ID:
		return failedPart(kafka.NotLeaderForPartition)
	case p.Offset > l.end, p.Offset < l.start:
		return failedPart(kafka.OffsetOutOfRange)
	}
	out := &FetchedPartition{HighWatermark: l.end, LastStableOffset: l.end, LogStartOffset: l.start, PreferredReadReplica: -1}
	out.Chunk.NextOffset = kafka.NoOffset
	for _, offset := range l.offsets {
		if offset < p.Offset || len(out.Chunk.Data) >= c.batch*c.chunkBatches*fakeBytes {
			continue
		}
		record := make([]byte, fakeBytes)
		binary.BigEndian.PutUint64(record, uint64(offset))
		out.Chunk.Data = append(out.Chunk.Data, record...)
		out.Chunk.NextOffset, out.Chunk.LastEpoch = offset+1, l.epoch
	}
	return out
}

func (f *fakeClient) ListOffsets(ctx context.Context, _ kafka.IsolationLevel, queries []OffsetQuery) (map[kafka.TopicPartition]OffsetAnswer, error) {
	call, end, err := f.begin(ctx, "ListOffsets")
	defer end()
	if err != nil {
		return nil, err
	}
	f.c.mu.Lock()
	hook := f.c.onLookup
	f.c.mu.Unlock()
	if hook != nil {
		if err := hook(call, f.broker, queries); err != nil {
			return nil, err
		}
	}
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	out := make(map[kafka.TopicPartition]OffsetAnswer)
	for _, q := range queries {
		l := f.c.log(q.TopicPartition)
		switch {
		case l == nil, l.leader != f.broker.ID:
			out[q.TopicPartition] = OffsetAnswer{Err: kafka.NotLeaderForPartition}
		case q.Timestamp == rebalance.TimestampLatest:
			out[q.TopicPartition] = OffsetAnswer{Offset: l.end, LeaderEpoch: l.epoch}
		case q.Timestamp == rebalance.TimestampEarliestLocal:
			out[q.TopicPartition] = OffsetAnswer{Offset: max(l.start, f.c.localStart), LeaderEpoch: l.epoch}
		case q.Timestamp >= 0 && l.every > 0:
			out[q.TopicPartition] = l.byTime(q.Timestamp)
		default:
			out[q.TopicPartition] = OffsetAnswer{Offset: l.start, LeaderEpoch: l.epoch}
		}
	}
	return out, nil
}

// byTime finds the first record at or after a time.
func (l *fakeLog) byTime(timestamp int64) OffsetAnswer {
	for _, offset := range l.offsets {
		if offset >= l.start && offset*l.every >= timestamp {
			return OffsetAnswer{Offset: offset, Timestamp: offset * l.every, LeaderEpoch: l.epoch}
		}
	}
	return OffsetAnswer{Offset: kafka.NoOffset, Timestamp: -1, LeaderEpoch: kafka.NoLeaderEpoch}
}

func (f *fakeClient) EpochEnds(context.Context, []EpochQuery) (map[kafka.TopicPartition]EpochAnswer, error) {
	return nil, nil
}

// fakeReader decodes the offsets that a chunk holds, one batch at a time.
type fakeReader struct {
	c     *fakeCluster
	chunk Chunk
	at    int
}

func (r *fakeReader) Next(from int64) (Slab, error) {
	r.c.mu.Lock()
	hook, batch := r.c.onDecode, r.c.batch
	r.c.mu.Unlock()
	if hook != nil {
		if err := hook(r.chunk.TopicPartition, from); err != nil {
			return Slab{}, err
		}
	}
	if r.at == len(r.chunk.Data) {
		return Slab{}, io.EOF
	}
	slab := Slab{LeaderEpoch: r.chunk.LastEpoch}
	for range batch {
		if r.at == len(r.chunk.Data) {
			break
		}
		offset := int64(binary.BigEndian.Uint64(r.chunk.Data[r.at:]))
		r.at += fakeBytes
		slab.Consumed += fakeBytes
		slab.NextOffset = offset + 1
		if offset < from {
			continue
		}
		slab.Bytes += fakeBytes
		slab.Records = append(slab.Records, kafka.Record{
			Topic: r.chunk.TopicPartition.Topic, Partition: r.chunk.TopicPartition.Partition, Offset: offset, LeaderEpoch: r.chunk.LastEpoch,
		})
	}
	return slab, nil
}

func (r *fakeReader) NextBytes() int { return 0 }

func (r *fakeReader) Close() {}
