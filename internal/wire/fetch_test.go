package wire

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// fetchSetup starts a broker with two topics and returns a fetch client with the topics' ids.
func fetchSetup(t *testing.T, opts ...kfake.Opt) (*kfake.Cluster, actors.FetchClient, map[string]actors.TopicMetadata) {
	t.Helper()
	cluster := newCluster(t, append(opts, kfake.SeedTopics(2, "clicks"))...)
	n := newNetwork(t, cluster.ListenAddrs(), func(c *Config) { c.MaxBatchBytes = 12345 })
	m := n.Metadata()
	defer m.Close()
	meta, err := m.Metadata(t.Context(), []string{"orders", "clicks"})
	require.NoError(t, err)
	c := n.Fetch(meta.Brokers[meta.Topics["orders"].Partitions[0].Leader])
	t.Cleanup(c.Close)
	return cluster, c, meta.Topics
}

// fetchOf asks for partitions from offset 0.
func fetchOf(topics map[string]actors.TopicMetadata, partitions ...kafka.TopicPartition) *actors.FetchRequest {
	req := &actors.FetchRequest{MaxWaitMillis: 100, MinBytes: 1, MaxBytes: 1 << 20, Isolation: kafka.ReadCommitted, Rack: "r1"}
	for _, tp := range partitions {
		req.Partitions = append(req.Partitions, actors.FetchPartition{TopicPartition: tp, TopicID: topics[tp.Topic].ID,
			LeaderEpoch: kafka.NoLeaderEpoch, LastFetchedEpoch: kafka.NoLeaderEpoch, MaxBytes: 1 << 20})
	}
	return req
}

func TestFetchByIDAndByName(t *testing.T) {
	clicks0 := kafka.TopicPartition{Topic: "clicks"}
	for name, byID := range map[string]bool{"id": true, "name": false} {
		t.Run(name, func(t *testing.T) {
			cluster, c, topics := fetchSetup(t)
			produce(t, cluster.ListenAddrs(), "orders", 0, "a", "b")
			produce(t, cluster.ListenAddrs(), "clicks", 0, "c")
			req := fetchOf(topics, orders0, clicks0, orders1)
			if !byID {
				req.Partitions[1].TopicID = kafka.TopicID{}
			}
			version := make(chan int16, 1)
			cluster.ControlKey(1, func(r kmsg.Request) (kmsg.Response, error, bool) {
				version <- r.GetVersion()
				return nil, nil, false
			})
			got, err := c.Fetch(t.Context(), req)
			require.NoError(t, err)
			if byID {
				require.Equal(t, int16(18), <-version)
			} else {
				require.Equal(t, int16(12), <-version)
			}
			require.Len(t, got.Partitions, 3)
			require.Positive(t, got.Bytes)
			seen := map[kafka.TopicPartition]actors.FetchedPartition{}
			for _, p := range got.Partitions {
				require.NoError(t, p.Err)
				require.Equal(t, p.TopicPartition, p.Chunk.TopicPartition)
				require.Equal(t, kafka.ReadCommitted, p.Chunk.Isolation)
				require.Equal(t, 12345, p.Chunk.MaxBatchBytes)
				require.Equal(t, int32(-1), p.PreferredReadReplica)
				require.Nil(t, p.Diverging)
				require.Nil(t, p.CurrentLeader)
				seen[p.TopicPartition] = p
			}
			require.Equal(t, int64(2), seen[orders0].HighWatermark)
			require.Equal(t, int64(1), seen[clicks0].HighWatermark)
			require.Empty(t, seen[orders1].Chunk.Data)
		})
	}
}

func TestFetchedBytesDecode(t *testing.T) {
	cluster, c, topics := fetchSetup(t)
	produce(t, cluster.ListenAddrs(), "orders", 0, "a", "b")
	got, err := c.Fetch(t.Context(), fetchOf(topics, orders0))
	require.NoError(t, err)
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	reader := n.Decode(got.Partitions[0].Chunk)
	var values []string
	for from := int64(0); ; {
		slab, err := reader.Next(from)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		for _, r := range slab.Records {
			values = append(values, string(r.Value))
		}
		from = slab.NextOffset
	}
	require.Equal(t, []string{"a", "b"}, values)
}

func TestFetchKeepsTheOrderOfPartitions(t *testing.T) {
	clicks0 := kafka.TopicPartition{Topic: "clicks"}
	req := fetchRequest(fetchOf(nil, orders1, clicks0, orders0))
	var order []kafka.TopicPartition
	for _, topic := range req.Topics {
		for _, p := range topic.Partitions {
			order = append(order, kafka.TopicPartition{Topic: topic.Topic, Partition: p.Partition})
		}
	}
	require.Equal(t, []kafka.TopicPartition{orders1, clicks0, orders0}, order)
	require.Equal(t, int32(-1), req.SessionEpoch)
	require.Equal(t, "r1", req.Rack)
}

func TestFetchPassesOnWhatTheBrokerSays(t *testing.T) {
	cluster, c, topics := fetchSetup(t)
	answerWith(cluster, 1, func(req kmsg.Request, resp *kmsg.FetchResponse) {
		in := req.(*kmsg.FetchRequest)
		require.Equal(t, int32(7), in.Topics[0].Partitions[0].CurrentLeaderEpoch)
		require.Equal(t, int32(6), in.Topics[0].Partitions[0].LastFetchedEpoch)
		resp.ThrottleMillis = 70
		b := kmsg.NewFetchResponseBroker()
		b.NodeID, b.Host, b.Port = 9, "::1", 9092
		resp.Brokers = append(resp.Brokers, b)
		topic := kmsg.NewFetchResponseTopic()
		topic.TopicID = topics["orders"].ID
		second, first := kmsg.NewFetchResponseTopicPartition(), kmsg.NewFetchResponseTopicPartition()
		second.Partition, second.ErrorCode = 1, int16(kafka.FencedLeaderEpoch)
		second.HighWatermark, second.LastStableOffset = -1, -1
		second.CurrentLeader.LeaderID, second.CurrentLeader.LeaderEpoch = 9, 8
		first.DivergingEpoch.Epoch, first.DivergingEpoch.EndOffset = 0, 10
		first.PreferredReadReplica = 2
		first.RecordBatches = []byte("batch")
		aborted := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
		aborted.ProducerID, aborted.FirstOffset = 5, 6
		first.AbortedTransactions = append(first.AbortedTransactions, aborted)
		topic.Partitions = append(topic.Partitions, second, first)
		resp.Topics = append(resp.Topics, topic)
	})
	req := fetchOf(topics, orders0, orders1)
	req.Partitions[0].LeaderEpoch, req.Partitions[0].LastFetchedEpoch = 7, 6
	got, err := c.Fetch(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, int32(70), got.ThrottleMillis)
	require.Equal(t, map[int32]kafka.Broker{9: {ID: 9, Addr: "[::1]:9092"}}, got.Brokers)
	require.Equal(t, orders1, got.Partitions[0].TopicPartition, "matched by name, not by order")
	require.ErrorIs(t, got.Partitions[0].Err, kafka.FencedLeaderEpoch)
	require.Equal(t, &actors.PartitionLeader{BrokerID: 9, LeaderEpoch: 8}, got.Partitions[0].CurrentLeader)
	require.Equal(t, kafka.NoOffset, got.Partitions[0].HighWatermark)
	require.Equal(t, &actors.EpochEnd{Epoch: 0, EndOffset: 10}, got.Partitions[1].Diverging)
	require.Equal(t, int32(2), got.Partitions[1].PreferredReadReplica)
	require.Equal(t, "batch", string(got.Partitions[1].Chunk.Data))
	require.Equal(t, []actors.AbortedTransaction{{ProducerID: 5, FirstOffset: 6}}, got.Partitions[1].Chunk.Aborted)
}

func TestFetchErrorsOfTopicsAndRequest(t *testing.T) {
	cluster, c, topics := fetchSetup(t)
	req := fetchOf(topics, orders0)
	req.Partitions = append(req.Partitions, actors.FetchPartition{TopicPartition: kafka.TopicPartition{Topic: "gone"},
		TopicID: kafka.TopicID{1, 2, 3}, MaxBytes: 1})
	got, err := c.Fetch(t.Context(), req)
	require.NoError(t, err)
	var gone error
	for _, p := range got.Partitions {
		if p.TopicPartition.Topic == "gone" {
			gone = p.Err
		}
	}
	require.ErrorIs(t, gone, kafka.UnknownTopicID)

	cluster.ControlKey(1, func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		resp.ErrorCode = int16(kafka.FetchSessionTopicIDError)
		return resp, nil, true
	})
	_, err = c.Fetch(t.Context(), req)
	require.ErrorIs(t, err, kafka.FetchSessionTopicIDError)

	cluster.ControlKey(1, func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		topic := kmsg.NewFetchResponseTopic()
		topic.TopicID = [16]byte{9}
		topic.Partitions = append(topic.Partitions, kmsg.NewFetchResponseTopicPartition())
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
	_, err = c.Fetch(t.Context(), req)
	require.ErrorIs(t, err, errNotAsked)
	_, err = c.Fetch(t.Context(), fetchOf(topics, orders0))
	require.NoError(t, err, "the next fetch is on a new connection")
}

func TestOutOfRangeAndRecordsKeptForEver(t *testing.T) {
	cluster, c, topics := fetchSetup(t)
	produce(t, cluster.ListenAddrs(), "orders", 0, "a")
	req := fetchOf(topics, orders0)
	first, err := c.Fetch(t.Context(), req)
	require.NoError(t, err)
	kept := first.Partitions[0].Chunk.Data
	before := string(kept)
	for range 5 {
		_, err = c.Fetch(t.Context(), req)
		require.NoError(t, err)
	}
	require.Equal(t, before, string(kept))
	req.Partitions[0].Offset = 99
	got, err := c.Fetch(t.Context(), req)
	require.NoError(t, err)
	require.ErrorIs(t, got.Partitions[0].Err, kafka.OffsetOutOfRange)
}

func TestAnAnswersMemoryIsUsedAgainWhenEveryChunkGaveItBack(t *testing.T) {
	cluster := newCluster(t)
	n := newNetwork(t, cluster.ListenAddrs(), nil)
	m := n.Metadata()
	defer m.Close()
	meta, err := m.Metadata(t.Context(), []string{"orders"})
	require.NoError(t, err)
	c := n.Fetch(meta.Brokers[meta.Topics["orders"].Partitions[0].Leader])
	defer c.Close()
	orders2 := kafka.TopicPartition{Topic: "orders", Partition: 2}
	req := fetchOf(meta.Topics, orders0, orders1, orders2)
	req.MinBytes = 0
	_, err = c.Fetch(t.Context(), req)
	require.NoError(t, err)
	require.Positive(t, n.memory.held, "an answer without records is free at once")

	produce(t, cluster.ListenAddrs(), "orders", 0, "a", "b")
	produce(t, cluster.ListenAddrs(), "orders", 1, "c")
	fetch := func() map[kafka.TopicPartition]actors.Chunk {
		got, err := c.Fetch(t.Context(), req)
		require.NoError(t, err)
		chunks := map[kafka.TopicPartition]actors.Chunk{}
		for _, p := range got.Partitions {
			chunks[p.TopicPartition] = p.Chunk
		}
		require.Nil(t, chunks[orders2].Buffer, "nothing lies in it")
		require.True(t, chunks[orders0].Buffer == chunks[orders1].Buffer)
		return chunks
	}
	kept, lent := fetch(), fetch()
	before := string(kept[orders0].Data)
	require.False(t, kept[orders0].Buffer == lent[orders0].Buffer)
	kept[orders1].Buffer.Recycle() // the other chunk of that answer is kept

	chunk := lent[orders0]
	chunk.Recycle = true
	r := n.Decode(chunk)
	for next, value := range []string{"a", "b"} {
		slab, err := r.Next(int64(next))
		require.NoError(t, err)
		require.Equal(t, value, string(slab.Records[0].Value))
		slab.Memory.Recycle()
	}
	_, err = r.Next(2)
	require.Equal(t, io.EOF, err)
	lent[orders1].Buffer.Recycle()

	require.True(t, lent[orders0].Buffer == fetch()[orders0].Buffer, "all chunks were given back")
	for range 3 {
		require.False(t, kept[orders0].Buffer == fetch()[orders0].Buffer)
	}
	require.Equal(t, before, string(kept[orders0].Data))
}
