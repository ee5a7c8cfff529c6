package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

const (
	// noSession and noSessionEpoch make a fetch on its own, outside of any fetch session (KIP-227).
	noSession      int32 = 0
	noSessionEpoch int32 = -1
	// consumerReplica is the replica id of everybody who is no broker.
	consumerReplica int32 = -1
	// fetchOverhead is what an answer may have on top of its records, per partition and in all.
	fetchOverheadPerPartition = 256
	fetchOverhead             = 4 << 10
	// mostExpected bounds what is allocated for an answer before it arrives.
	mostExpected = 64 << 20
)

// errNotAsked means that a broker answered for a partition nobody asked about.
var errNotAsked = errors.New("the answer is for a partition that was not asked about")

// fetchClient reads records from one broker.
type fetchClient struct {
	*client
	broker kafka.Broker
}

// Fetch sends one fetch outside of any session. Every answer has a block of memory of its own. The chunks with data share
// it, each with a reference as its Buffer; where one of them does not give that back, records may alias the answer for ever.
func (c *fetchClient) Fetch(ctx context.Context, in *actors.FetchRequest) (*actors.FetchResponse, error) {
	want := apiFetch
	for i := range in.Partitions {
		if in.Partitions[i].TopicID.IsZero() {
			want = want.atMost(fetchByTopicID - 1)
			break
		}
	}
	wait := time.Duration(max(in.MaxWaitMillis, 0)) * time.Millisecond
	expect := int(max(in.MaxBytes, 0)) + fetchOverhead + len(in.Partitions)*fetchOverheadPerPartition
	a, err := c.call(ctx, c.broker, question{
		api:    want,
		limit:  wait + c.network.cfg.RequestTimeout,
		expect: min(expect, mostExpected),
		memory: c.network.memory,
		build:  func(int16) kmsg.Request { return fetchRequest(in) },
	})
	if err != nil {
		return nil, err
	}
	// What follows copies everything but the batches. An answer without any is free for the next one at once.
	defer a.held.Recycle()
	resp := a.resp.(*kmsg.FetchResponse)
	if err := a.failed(apiFetch, resp.ErrorCode); err != nil {
		return nil, err
	}
	out, err := readFetch(resp, a.held, in, a.version >= fetchByTopicID, c.network.cfg.MaxBatchBytes)
	if err != nil {
		c.drop()
		return nil, a.fails(apiFetch, err)
	}
	out.Bytes = a.size
	return out, nil
}

// fetchPartitionsHint bounds what is set aside at once for the partitions of one topic.
const fetchPartitionsHint = 1024

// fetchRequest keeps the order of the partitions: a topic is named again when another came between.
func fetchRequest(in *actors.FetchRequest) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID = consumerReplica
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = in.MaxWaitMillis, in.MinBytes, in.MaxBytes
	req.IsolationLevel = int8(in.Isolation)
	req.SessionID, req.SessionEpoch = noSession, noSessionEpoch
	req.Rack = in.Rack
	var topic *kmsg.FetchRequestTopic
	for i := range in.Partitions {
		p := &in.Partitions[i]
		if topic == nil || topic.Topic != p.TopicPartition.Topic || topic.TopicID != p.TopicID {
			req.Topics = append(req.Topics, kmsg.NewFetchRequestTopic())
			topic = &req.Topics[len(req.Topics)-1]
			topic.Topic, topic.TopicID = p.TopicPartition.Topic, p.TopicID
			topic.Partitions = make([]kmsg.FetchRequestTopicPartition, 0, min(len(in.Partitions)-i, fetchPartitionsHint))
		}
		out := kmsg.NewFetchRequestTopicPartition()
		out.Partition, out.FetchOffset = p.TopicPartition.Partition, p.Offset
		out.CurrentLeaderEpoch, out.LastFetchedEpoch = p.LeaderEpoch, p.LastFetchedEpoch
		out.PartitionMaxBytes = p.MaxBytes
		topic.Partitions = append(topic.Partitions, out)
	}
	return req
}

// fetchKey names a partition as the version in use does: by topic id, or by name with a zero id.
type fetchKey struct {
	id        kafka.TopicID
	topic     string
	partition int32
}

// fetchMatch finds the partition of a request that a part of the answer is for. Answers come in any order, but mostly in
// the request's: the next one is looked at first, and only then all are put into a map.
type fetchMatch struct {
	asked    []actors.FetchPartition
	byID     bool
	next     int
	byKey    map[fetchKey]int
	answered []bool
}

func (m *fetchMatch) key(id kafka.TopicID, topic string, partition int32) fetchKey {
	if m.byID {
		return fetchKey{id: id, partition: partition}
	}
	return fetchKey{topic: topic, partition: partition}
}

func (m *fetchMatch) keyAt(i int) fetchKey {
	p := &m.asked[i]
	return m.key(p.TopicID, p.TopicPartition.Topic, p.TopicPartition.Partition)
}

// find returns the place in the request; ok is false for what was not asked for, or was answered before.
func (m *fetchMatch) find(id kafka.TopicID, topic string, partition int32) (index int, ok bool) {
	key := m.key(id, topic, partition)
	if m.next < len(m.asked) && !m.answered[m.next] && m.keyAt(m.next) == key {
		index = m.next
	} else {
		if m.byKey == nil {
			m.byKey = make(map[fetchKey]int, len(m.asked))
			for i := range m.asked {
				m.byKey[m.keyAt(i)] = i
			}
		}
		if index, ok = m.byKey[key]; !ok || m.answered[index] {
			return 0, false
		}
	}
	m.answered[index], m.next = true, index+1
	return index, true
}

// readFetch brings an answer into the port's form. held is the memory that the answer lies in.
func readFetch(resp *kmsg.FetchResponse, held *block, in *actors.FetchRequest, byID bool, maxBatchBytes int) (*actors.FetchResponse, error) {
	match := fetchMatch{asked: in.Partitions, byID: byID, answered: make([]bool, len(in.Partitions))}
	out := &actors.FetchResponse{
		Partitions:     make([]actors.FetchedPartition, 0, len(in.Partitions)),
		ThrottleMillis: resp.ThrottleMillis,
	}
	if len(resp.Brokers) > 0 {
		out.Brokers = make(map[int32]kafka.Broker, len(resp.Brokers))
		for _, b := range resp.Brokers {
			out.Brokers[b.NodeID] = brokerOf(b.NodeID, b.Host, b.Port, b.Rack)
		}
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			index, ok := match.find(t.TopicID, t.Topic, p.Partition)
			if !ok {
				return nil, fmt.Errorf("%w: topic %q, id %s, partition %d", errNotAsked, t.Topic, kafka.TopicID(t.TopicID), p.Partition)
			}
			fetched := readFetched(p, in.Partitions[index].TopicPartition, in.Isolation, maxBatchBytes)
			fetched.Index = index
			if len(p.RecordBatches) > 0 {
				fetched.Chunk.Buffer = held.hold()
			}
			out.Partitions = append(out.Partitions, fetched)
		}
	}
	return out, nil
}

// readFetched brings one partition of an answer into the port's form.
func readFetched(p *kmsg.FetchResponseTopicPartition, tp kafka.TopicPartition, isolation kafka.IsolationLevel, maxBatchBytes int) actors.FetchedPartition {
	out := actors.FetchedPartition{
		TopicPartition:       tp,
		Err:                  kafka.ErrorFromCode(p.ErrorCode),
		HighWatermark:        p.HighWatermark,
		LastStableOffset:     p.LastStableOffset,
		LogStartOffset:       p.LogStartOffset,
		PreferredReadReplica: p.PreferredReadReplica,
		Chunk: actors.Chunk{
			TopicPartition: tp,
			Isolation:      isolation,
			Data:           p.RecordBatches,
			MaxBatchBytes:  maxBatchBytes,
		},
	}
	out.Chunk.NextOffset, out.Chunk.LastEpoch = scanBatches(p.RecordBatches)
	if d := &p.DivergingEpoch; d.Epoch >= 0 || d.EndOffset >= 0 {
		out.Diverging = &actors.EpochEnd{Epoch: d.Epoch, EndOffset: d.EndOffset}
	}
	if l := &p.CurrentLeader; l.LeaderID >= 0 {
		out.CurrentLeader = &actors.PartitionLeader{BrokerID: l.LeaderID, LeaderEpoch: l.LeaderEpoch}
	}
	if len(p.AbortedTransactions) > 0 {
		out.Chunk.Aborted = make([]actors.AbortedTransaction, len(p.AbortedTransactions))
		for i, a := range p.AbortedTransactions {
			out.Chunk.Aborted[i] = actors.AbortedTransaction{ProducerID: a.ProducerID, FirstOffset: a.FirstOffset}
		}
	}
	return out
}
