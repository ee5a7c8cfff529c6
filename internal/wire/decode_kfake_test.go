package wire

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// newTestProducer starts an embedded broker and returns a client of it.
func newTestProducer(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(testPartition.Partition+1, testPartition.Topic))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// fetchRaw asks the broker for the partition as it lies in the log.
func fetchRaw(t *testing.T, client *kgo.Client, isolation kafka.IsolationLevel, from int64) actors.Chunk {
	t.Helper()
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch, req.IsolationLevel = 10, 1, 64<<20, -1, int8(isolation)
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic = testPartition.Topic
	partition := kmsg.NewFetchRequestTopicPartition()
	partition.Partition, partition.FetchOffset, partition.PartitionMaxBytes = testPartition.Partition, from, 64<<20
	topic.Partitions = append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	raw, err := client.Broker(0).Request(t.Context(), byName{req})
	require.NoError(t, err)
	resp := raw.(*kmsg.FetchResponse)
	require.Len(t, resp.Topics, 1)
	got := resp.Topics[0].Partitions[0]
	require.Zero(t, got.ErrorCode)
	chunk := testChunk(got.RecordBatches)
	chunk.Isolation = isolation
	for _, a := range got.AbortedTransactions {
		chunk.Aborted = append(chunk.Aborted, actors.AbortedTransaction{ProducerID: a.ProducerID, FirstOffset: a.FirstOffset})
	}
	return chunk
}

// byName keeps the client below the versions that go by topic id.
type byName struct{ *kmsg.FetchRequest }

// MaxVersion implements kmsg.Request.
func (byName) MaxVersion() int16 { return 12 }

func TestWhatAProducerWroteComesBackInEveryCodec(t *testing.T) {
	for name, codec := range map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()} {
		t.Run(name, func(t *testing.T) {
			client := newTestProducer(t, kgo.ProducerBatchCompression(codec))
			rng := rand.New(rand.NewPCG(5, 6))
			var want []kafka.Record
			var produced []*kgo.Record
			for i := range 3000 {
				rec := kafka.Record{Topic: testPartition.Topic, Partition: testPartition.Partition, Offset: int64(i),
					TimestampMillis: 1_700_000_000_000 + int64(rng.IntN(5000)), Value: semiRandom(rng, rng.IntN(500))}
				if i%3 > 0 {
					rec.Key = fmt.Appendf(nil, "key %d", i)
				}
				out := &kgo.Record{Topic: rec.Topic, Partition: rec.Partition, Key: rec.Key, Value: rec.Value, Timestamp: rec.Timestamp()}
				if i%5 == 0 {
					rec.Headers = kafka.NewHeaders(kafka.Header{Key: "trace", Value: []byte{1}}, kafka.Header{Key: "trace", Value: []byte("2")})
					out.Headers = []kgo.RecordHeader{{Key: "trace", Value: []byte{1}}, {Key: "trace", Value: []byte("2")}}
				}
				want, produced = append(want, rec), append(produced, out)
			}
			require.NoError(t, client.ProduceSync(t.Context(), produced...).FirstErr())
			d := newDecompressors()
			for _, from := range []int64{0, 1234} {
				got, next, err := readAll(newChunkReader(fetchRaw(t, client, kafka.ReadCommitted, from), d, nil), from)
				require.Equal(t, io.EOF, err)
				require.EqualValues(t, 3000, next)
				for i := range got {
					got[i].LeaderEpoch = 0
				}
				requireSameRecords(t, want[from:], got)
			}
		})
	}
}

func TestTransactionsOfARealProducerAreFiltered(t *testing.T) {
	client := newTestProducer(t, kgo.TransactionalID("wire"))
	transaction := func(how kgo.TransactionEndTry, values ...string) {
		require.NoError(t, client.BeginTransaction())
		for _, v := range values {
			rec := &kgo.Record{Topic: testPartition.Topic, Partition: testPartition.Partition, Value: []byte(v)}
			require.NoError(t, client.ProduceSync(t.Context(), rec).FirstErr())
		}
		require.NoError(t, client.EndTransaction(t.Context(), how))
	}
	transaction(kgo.TryAbort, "0", "1")  // marker at 2
	transaction(kgo.TryCommit, "3", "4") // marker at 5
	transaction(kgo.TryAbort, "6")       // marker at 7

	committed, next, err := readAll(newChunkReader(fetchRaw(t, client, kafka.ReadCommitted, 0), newDecompressors(), nil), 0)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []int64{3, 4}, offsetsOf(committed))
	require.EqualValues(t, 8, next, "the position passes the trailing marker")
	all, next, err := readAll(newChunkReader(fetchRaw(t, client, kafka.ReadUncommitted, 0), newDecompressors(), nil), 0)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []int64{0, 1, 3, 4, 6}, offsetsOf(all))
	require.EqualValues(t, 8, next)
}

func TestChunksDecodeAtOnceInManyGoroutines(t *testing.T) {
	data, records := benchChunk(t, codecZstd, 100)
	d := newDecompressors()
	done := make(chan int)
	for range 8 {
		go func() {
			total := 0
			for range 5 {
				got, _, _ := readAll(newChunkReader(testChunk(data), d, nil), 0)
				total += len(got)
			}
			done <- total
		}()
	}
	for range 8 {
		require.Equal(t, 5*records, <-done)
	}
}

func TestEachBubbleDecodesWithItsOwnDecompressors(t *testing.T) {
	for codec := range codecNames {
		b := plainBatch(0, 100)
		b.attributes = int16(codec)
		chunk := testChunk(b.encode(t))
		for range 3 {
			synctest.Test(t, func(t *testing.T) {
				records, _, err := readAll(newChunkReader(chunk, newDecompressors(), nil), 0)
				require.Equal(t, io.EOF, err)
				require.Len(t, records, 100)
			})
		}
	}
}
