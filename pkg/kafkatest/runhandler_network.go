package kafkatest

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// memoryBroker is the only broker of a memoryNetwork.
var memoryBroker = kafka.Broker{ID: 0, Addr: "node-0.kafkatest.invalid:9092"}

// memoryMember is the only member of its group.
const memoryMember = "kafkatest-member"

// memoryBatch is how many records a batch of a memoryNetwork has at most.
const memoryBatch = 200

// memoryNetwork is a cluster of one broker that holds the records of a run, and a group of one member. It stands where
// internal/wire stands in a consumer: nothing is encoded and nothing is sent.
type memoryNetwork struct {
	// counts has the number of partitions of each topic.
	counts     map[string]int32
	partitions map[kafka.TopicPartition]*runPartition

	mu         sync.Mutex
	generation kafka.Generation
	committed  map[kafka.TopicPartition]int64
}

var _ actors.Network = (*memoryNetwork)(nil)

func newMemoryNetwork(topics []string, partitions map[kafka.TopicPartition]*runPartition) *memoryNetwork {
	n := &memoryNetwork{counts: make(map[string]int32), partitions: partitions, committed: make(map[kafka.TopicPartition]int64)}
	for _, topic := range topics {
		n.counts[topic] = 1
	}
	for tp := range partitions {
		n.counts[tp.Topic] = max(n.counts[tp.Topic], tp.Partition+1)
	}
	return n
}

// commits returns the committed offsets of the partitions that have records: a consumer commits where it starts, too.
func (n *memoryNetwork) commits() map[kafka.TopicPartition]int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	committed := maps.Clone(n.committed)
	maps.DeleteFunc(committed, func(tp kafka.TopicPartition, _ int64) bool { return n.partitions[tp] == nil })
	return committed
}

// Metadata implements actors.Network.
func (n *memoryNetwork) Metadata() actors.MetadataClient { return memoryClient{n} }

// Membership implements actors.Network.
func (n *memoryNetwork) Membership() actors.MembershipClient { return memoryClient{n} }

// Heartbeat implements actors.Network.
func (n *memoryNetwork) Heartbeat() actors.HeartbeatClient { return memoryClient{n} }

// Offsets implements actors.Network.
func (n *memoryNetwork) Offsets() actors.OffsetsClient { return memoryClient{n} }

// Fetch implements actors.Network.
func (n *memoryNetwork) Fetch(kafka.Broker) actors.FetchClient { return memoryClient{n} }

// Lookup implements actors.Network.
func (n *memoryNetwork) Lookup(kafka.Broker) actors.LookupClient { return memoryClient{n} }

// Decode implements actors.Network. A chunk's data is the offset it begins at.
func (n *memoryNetwork) Decode(chunk actors.Chunk) actors.ChunkReader {
	return &memoryReader{partition: n.partitions[chunk.TopicPartition], data: chunk.Data, recycle: chunk.Recycle}
}

// chunk returns the batch from an offset on: as a broker's, it has a limit.
func (n *memoryNetwork) chunk(tp kafka.TopicPartition, from int64) actors.Chunk {
	c := actors.Chunk{TopicPartition: tp, NextOffset: kafka.NoOffset, LastEpoch: kafka.NoLeaderEpoch}
	if p := n.partitions[tp]; p != nil && from < p.end() {
		_, c.NextOffset = p.batch(from)
		c.Data = binary.BigEndian.AppendUint64(nil, uint64(from)) //nolint:gosec // offsets are not negative
	}
	return c
}

// memoryClient is every client of a memoryNetwork. Its answers are there at once, but for a fetch that finds nothing.
type memoryClient struct{ *memoryNetwork }

// Close implements every client. A call that is under way ends with its context, which is ended along with the client.
func (memoryClient) Close() {}

// Metadata implements actors.MetadataClient.
func (c memoryClient) Metadata(_ context.Context, topics []string) (*actors.ClusterMetadata, error) {
	m := &actors.ClusterMetadata{
		ClusterID: "kafkatest", Brokers: map[int32]kafka.Broker{memoryBroker.ID: memoryBroker}, Topics: make(map[string]actors.TopicMetadata),
	}
	for _, topic := range topics {
		count, ok := c.counts[topic]
		if !ok {
			m.Topics[topic] = actors.TopicMetadata{Err: kafka.UnknownTopicOrPartition}
			continue
		}
		partitions := make([]actors.PartitionMetadata, count)
		for i := range partitions {
			partitions[i].Leader = memoryBroker.ID
		}
		m.Topics[topic] = actors.TopicMetadata{Partitions: partitions}
	}
	return m, nil
}

// Avoid implements actors.MetadataClient.
func (c memoryClient) Avoid(kafka.Broker) {}

// FindCoordinator implements actors.MetadataClient.
func (c memoryClient) FindCoordinator(context.Context, string) (kafka.Broker, error) {
	return memoryBroker, nil
}

// Join implements actors.MembershipClient: the member leads its group of one.
func (c memoryClient) Join(_ context.Context, _ kafka.Broker, req rebalance.JoinRequest) (rebalance.JoinResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	return rebalance.JoinResponse{
		Generation: c.generation, MemberID: memoryMember, LeaderID: memoryMember, Protocol: req.Protocols[0].Name,
		Members: []rebalance.JoinMember{{MemberID: memoryMember, Metadata: req.Protocols[0].Metadata}},
	}, nil
}

// Sync implements actors.MembershipClient.
func (c memoryClient) Sync(_ context.Context, _ kafka.Broker, req rebalance.SyncRequest) (rebalance.SyncResponse, error) {
	for _, a := range req.Assignments {
		if a.MemberID == memoryMember {
			return rebalance.SyncResponse{Protocol: req.Protocol, Assignment: a.Assignment}, nil
		}
	}
	return rebalance.SyncResponse{}, fmt.Errorf("kafkatest: SyncGroup of the leader has no assignment for %s", memoryMember)
}

// Heartbeat implements actors.HeartbeatClient.
func (c memoryClient) Heartbeat(context.Context, kafka.Broker, rebalance.HeartbeatRequest) error {
	return nil
}

// Leave implements actors.HeartbeatClient.
func (c memoryClient) Leave(context.Context, kafka.Broker, rebalance.LeaveRequest) error { return nil }

// Commit implements actors.OffsetsClient.
func (c memoryClient) Commit(_ context.Context, _ kafka.Broker, round *actors.CommitRound) (map[kafka.TopicPartition]error, error) {
	results := make(map[kafka.TopicPartition]error)
	for _, o := range round.Round().Offsets {
		c.mu.Lock()
		c.committed[o.TopicPartition] = o.Offset
		c.mu.Unlock()
		results[o.TopicPartition] = nil
	}
	return results, nil
}

// FetchOffsets implements actors.OffsetsClient.
func (c memoryClient) FetchOffsets(_ context.Context, _ kafka.Broker, req actors.OffsetFetchRequest) (map[kafka.TopicPartition]actors.CommittedOffset, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	partitions := req.Partitions
	if partitions == nil {
		for tp := range c.committed {
			partitions = append(partitions, tp)
		}
	}
	out := make(map[kafka.TopicPartition]actors.CommittedOffset)
	for _, tp := range partitions {
		offset, ok := c.committed[tp]
		if !ok {
			offset = kafka.NoOffset
		}
		out[tp] = actors.CommittedOffset{Offset: offset, LeaderEpoch: kafka.NoLeaderEpoch}
	}
	return out, nil
}

// ListOffsets implements actors.LookupClient.
func (c memoryClient) ListOffsets(_ context.Context, _ kafka.IsolationLevel, queries []actors.OffsetQuery) (map[kafka.TopicPartition]actors.OffsetAnswer, error) {
	out := make(map[kafka.TopicPartition]actors.OffsetAnswer)
	for _, q := range queries {
		start, end := c.bounds(q.TopicPartition)
		if q.Timestamp == rebalance.TimestampLatest {
			start = end
		}
		out[q.TopicPartition] = actors.OffsetAnswer{Offset: start, LeaderEpoch: kafka.NoLeaderEpoch}
	}
	return out, nil
}

// EpochEnds implements actors.LookupClient.
func (c memoryClient) EpochEnds(_ context.Context, queries []actors.EpochQuery) (map[kafka.TopicPartition]actors.EpochAnswer, error) {
	out := make(map[kafka.TopicPartition]actors.EpochAnswer)
	for _, q := range queries {
		_, end := c.bounds(q.TopicPartition)
		out[q.TopicPartition] = actors.EpochAnswer{End: actors.EpochEnd{Epoch: q.Epoch, EndOffset: end}}
	}
	return out, nil
}

// bounds are the first offset of a partition, and the one after its last.
func (n *memoryNetwork) bounds(tp kafka.TopicPartition) (start, end int64) {
	if p := n.partitions[tp]; p != nil {
		return p.start(), p.end()
	}
	return 0, 0
}

// Fetch implements actors.FetchClient.
func (c memoryClient) Fetch(ctx context.Context, req *actors.FetchRequest) (*actors.FetchResponse, error) {
	resp := &actors.FetchResponse{}
	for i, want := range req.Partitions {
		start, end := c.bounds(want.TopicPartition)
		answer := actors.FetchedPartition{
			TopicPartition: want.TopicPartition, Index: i, HighWatermark: end, LastStableOffset: end, LogStartOffset: start, PreferredReadReplica: -1,
			Chunk: c.chunk(want.TopicPartition, want.Offset),
		}
		resp.Bytes += len(answer.Chunk.Data)
		resp.Partitions = append(resp.Partitions, answer)
	}
	if resp.Bytes > 0 {
		return resp, nil
	}
	timer := time.NewTimer(time.Duration(req.MaxWaitMillis) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return resp, nil
	case <-ctx.Done():
		return nil, &kafka.RequestError{API: "Fetch", Broker: memoryBroker, Unanswered: true, Err: ctx.Err()}
	}
}

// memoryReader reads one chunk, which is one batch.
type memoryReader struct {
	partition *runPartition
	data      []byte
	recycle   bool
}

// Next implements actors.ChunkReader.
func (r *memoryReader) Next(from int64) (actors.Slab, error) {
	if len(r.data) == 0 || r.partition == nil {
		return actors.Slab{}, io.EOF
	}
	records, next := r.partition.batch(int64(binary.BigEndian.Uint64(r.data))) //nolint:gosec // it was an offset
	slab := actors.Slab{NextOffset: next, LeaderEpoch: kafka.NoLeaderEpoch, Consumed: len(r.data)}
	r.data = nil
	for i := range records {
		if records[i].Offset >= from {
			slab.Records = append(slab.Records, records[i].Clone())
			slab.Bytes += len(records[i].Key) + len(records[i].Value)
		}
	}
	if r.recycle {
		slab.Memory = newSlabMemory(slab.Records)
	}
	return slab, nil
}

// batch returns the records of the batch that begins at an offset or behind it, and the offset after the batch.
func (p *runPartition) batch(from int64) (records []kafka.Record, next int64) {
	first, _ := slices.BinarySearchFunc(p.records, from, func(r kafka.Record, from int64) int { return cmp.Compare(r.Offset, from) })
	last := min(first+memoryBatch, len(p.records))
	if last == len(p.records) {
		return p.records[first:], p.end()
	}
	return p.records[first:last], p.records[last].Offset
}

// NextBytes implements actors.ChunkReader.
func (r *memoryReader) NextBytes() int { return 0 }

// Close implements actors.ChunkReader.
func (r *memoryReader) Close() {}
