package wire

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// fetchRaw asks the broker for a partition as it lies in the log.
func fetchRaw(t *testing.T, b *kafkatest.Broker, isolation kafka.IsolationLevel, from int64, maxBytes int32) actors.Chunk {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.Dialer(b.Dial))
	require.NoError(t, err)
	defer client.Close()
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch, req.IsolationLevel = 12, 10, 1, 64<<20, -1, int8(isolation)
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic = testPartition.Topic
	partition := kmsg.NewFetchRequestTopicPartition()
	partition.Partition, partition.FetchOffset, partition.PartitionMaxBytes = testPartition.Partition, from, maxBytes
	topic.Partitions = append(topic.Partitions, partition)
	req.Topics = append(req.Topics, topic)
	versions := kmsg.NewPtrMetadataRequest()
	_, err = versions.RequestWith(t.Context(), client)
	require.NoError(t, err)
	raw, err := client.Broker(0).Request(t.Context(), pinned{req})
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

// pinned keeps the client from asking by topic id: the request names the topic.
type pinned struct{ *kmsg.FetchRequest }

// MaxVersion implements kmsg.Request.
func (pinned) MaxVersion() int16 { return 12 }

func newTestBroker(t *testing.T, opts ...kafkatest.Option) *kafkatest.Broker {
	return kafkatest.NewBroker(t, append(opts, kafkatest.Topic(testPartition.Topic, testPartition.Partition+1))...)
}

func TestWhatAProducerWroteComesBackInEveryCodec(t *testing.T) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		t.Run(codec, func(t *testing.T) {
			b := newTestBroker(t, kafkatest.Compression(codec))
			rng := rand.New(rand.NewPCG(5, 6))
			var want []kafka.Record
			for i := range 3000 {
				rec := kafka.Record{Topic: testPartition.Topic, Partition: testPartition.Partition, Offset: int64(i),
					TimestampMillis: 1_700_000_000_000 + int64(rng.IntN(5000)), Value: semiRandom(rng, rng.IntN(500))}
				if i%3 > 0 {
					rec.Key = fmt.Appendf(nil, "key %d", i)
				}
				if i%5 == 0 {
					rec.Headers = kafka.NewHeaders(kafka.Header{Key: "trace", Value: []byte{1}}, kafka.Header{Key: "trace", Value: []byte("2")})
				}
				want = append(want, rec)
			}
			require.NoError(t, b.Produce(t.Context(), testPartition.Topic, want...))
			d := newDecompressors()
			for _, from := range []int64{0, 1234} {
				chunk := fetchRaw(t, b, kafka.ReadCommitted, from, 32<<20)
				got, next, err := readAll(newChunkReader(chunk, d), from)
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
	b := newTestBroker(t)
	ctx := t.Context()
	rec := func(s string) kafka.Record { return kafka.Record{Partition: testPartition.Partition, Value: []byte(s)} }
	require.NoError(t, b.ProduceTransaction(ctx, false, testPartition.Topic, rec("a0"), rec("a1")))
	require.NoError(t, b.ProduceTransaction(ctx, true, testPartition.Topic, rec("c3")))
	first, err := b.BeginTransaction()
	require.NoError(t, err)
	require.NoError(t, first.Produce(ctx, testPartition.Topic, rec("a5")))
	require.NoError(t, b.Produce(ctx, testPartition.Topic, rec("p6")))
	require.NoError(t, first.Abort(ctx))

	committed, next, err := readAll(newChunkReader(fetchRaw(t, b, kafka.ReadCommitted, 0, 1<<20), newDecompressors()), 0)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []int64{3, 6}, offsetsOf(committed))
	require.EqualValues(t, 8, next, "the position passes the trailing marker")
	all, next, err := readAll(newChunkReader(fetchRaw(t, b, kafka.ReadUncommitted, 0, 1<<20), newDecompressors()), 0)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []int64{0, 1, 3, 5, 6}, offsetsOf(all))
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
				got, _, _ := readAll(newChunkReader(testChunk(data), d), 0)
				total += len(got)
			}
			done <- total
		}()
	}
	for range 8 {
		require.Equal(t, 5*records, <-done)
	}
}
