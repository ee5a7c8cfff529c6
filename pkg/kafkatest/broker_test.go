package kafkatest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// The meters of sarama, see meter.go, tick in one goroutine for as long as the process lives.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// everywhere runs a test with a broker on loopback and with one in memory inside a bubble.
func everywhere(t *testing.T, test func(t *testing.T, opts ...kafkatest.Option)) {
	t.Helper()
	t.Run("loopback", func(t *testing.T) { test(t) })
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, kafkatest.InMemory()) })
	})
}

// newConsumer returns a client of the broker that is closed before it.
func newConsumer(t *testing.T, b *kafkatest.Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Addrs()...), kgo.Dialer(b.Dial), kgo.FetchMaxWait(100 * time.Millisecond)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// poll reads n records.
func poll(t *testing.T, client *kgo.Client, n int) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fetches := client.PollFetches(ctx)
		require.NoError(t, fetches.Err0())
		out = append(out, fetches.Records()...)
	}
	require.Len(t, out, n)
	return out
}

func values(records []*kgo.Record) []string {
	var out []string
	for _, r := range records {
		out = append(out, string(r.Value))
	}
	return out
}

func TestProducedRecordsComeBackWithEveryField(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...kafkatest.Option) {
		for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
			b := kafkatest.NewBroker(t, append(opts, kafkatest.Topic("orders", 3), kafkatest.Brokers(2), kafkatest.Compression(codec))...)
			require.Len(t, b.Addrs(), 2)
			when := time.UnixMilli(1_700_000_000_000)
			require.NoError(t, b.Produce(t.Context(), "orders", kafka.Record{Partition: 2, Key: []byte("k"), Value: []byte("v"),
				TimestampMillis: when.UnixMilli(), Headers: kafka.NewHeaders(kafka.Header{Key: "h", Value: []byte("1")})}))
			rec := poll(t, newConsumer(t, b, kgo.ConsumeTopics("orders")), 1)[0]
			require.EqualValues(t, 2, rec.Partition)
			require.Equal(t, "k", string(rec.Key))
			require.Equal(t, "v", string(rec.Value))
			require.True(t, when.Equal(rec.Timestamp))
			require.Equal(t, []kgo.RecordHeader{{Key: "h", Value: []byte("1")}}, rec.Headers)
		}
	})
}

func TestKeysChooseThePartitionOnlyWhereAsked(t *testing.T) {
	b := kafkatest.NewBroker(t, kafkatest.Topic("orders", 4))
	var records []kafka.Record
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		for range 3 {
			records = append(records, kafka.Record{Partition: kafkatest.AnyPartition, Key: []byte(key)})
		}
	}
	for range 8 {
		records = append(records, kafka.Record{Partition: kafkatest.AnyPartition, Value: []byte("no key")})
	}
	require.NoError(t, b.Produce(t.Context(), "orders", records...))
	at := map[string]int32{}
	noKey := map[int32]int{}
	for _, rec := range poll(t, newConsumer(t, b, kgo.ConsumeTopics("orders")), len(records)) {
		if rec.Key == nil {
			noKey[rec.Partition]++
			continue
		}
		if p, ok := at[string(rec.Key)]; ok {
			require.Equal(t, p, rec.Partition)
		}
		at[string(rec.Key)] = rec.Partition
	}
	require.Equal(t, map[int32]int{0: 2, 1: 2, 2: 2, 3: 2}, noKey)
	require.Error(t, b.Produce(t.Context(), "orders", kafka.Record{Partition: 4}), "a partition that does not exist")
}

func TestCommittedAndEndOffsetsAreTheBrokers(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...kafkatest.Option) {
		b := kafkatest.NewBroker(t, append(opts, kafkatest.Topic("orders", 2))...)
		committed, err := b.Committed("billing")
		require.NoError(t, err)
		require.Empty(t, committed)
		require.NoError(t, b.Produce(t.Context(), "orders", make([]kafka.Record, 5)...))
		client := newConsumer(t, b, kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"), kgo.DisableAutoCommit())
		poll(t, client, 5)
		require.NoError(t, client.CommitUncommittedOffsets(t.Context()))
		committed, err = b.Committed("billing")
		require.NoError(t, err)
		require.Equal(t, map[kafka.TopicPartition]int64{{Topic: "orders"}: 5}, committed)
		ends, err := b.EndOffsets("orders")
		require.NoError(t, err)
		require.Equal(t, map[kafka.TopicPartition]int64{{Topic: "orders"}: 5, {Topic: "orders", Partition: 1}: 0}, ends)
		_, err = b.EndOffsets("nothing")
		require.Error(t, err)
	})
}

func TestPartitionsAreAddedAndTopicsCreated(t *testing.T) {
	b := kafkatest.NewBroker(t, kafkatest.Brokers(3))
	require.NoError(t, b.CreateTopic("orders", 2))
	require.Error(t, b.CreateTopic("orders", 2))
	require.NoError(t, b.AddPartitions(t.Context(), "orders", 3))
	ends, err := b.EndOffsets("orders")
	require.NoError(t, err)
	require.Len(t, ends, 5)
	require.Error(t, b.AddPartitions(t.Context(), "nothing", 1))
	require.NoError(t, b.Produce(t.Context(), "orders", kafka.Record{Partition: 4}))
	require.Error(t, b.Produce(t.Context(), "orders", kafka.Record{Partition: 5}))
	require.NoError(t, b.AddPartitions(t.Context(), "orders", 1))
	require.NoError(t, b.Produce(t.Context(), "orders", kafka.Record{Partition: 5}), "a partition is there as soon as it was added")
	require.NoError(t, b.Cluster().DeleteTopic("orders"))
	require.ErrorIs(t, b.Produce(t.Context(), "orders", kafka.Record{}), kerr.UnknownTopicOrPartition)
	require.NoError(t, b.CreateTopic("orders", 1))
	require.NoError(t, b.Produce(t.Context(), "orders", kafka.Record{}), "also in a topic that was made anew")
}

func TestCloseEndsWhatWaitsForAnAnswer(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...kafkatest.Option) {
		b := kafkatest.NewBroker(t, append(opts, kafkatest.Topic("orders", 1))...)
		asked := make(chan struct{})
		b.Cluster().ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			close(asked)
			return nil, nil, true // never answered
		})
		done := make(chan error)
		go func() { done <- b.Produce(context.Background(), "orders", kafka.Record{}) }()
		<-asked
		tx, err := b.BeginTransaction() // is never ended
		require.NoError(t, err)
		require.NoError(t, tx.Produce(t.Context(), "orders", kafka.Record{}))
		b.Close()
		require.Error(t, <-done)
		require.ErrorIs(t, tx.Commit(t.Context()), kafkatest.ErrClosed)
	})
}

func TestAbortedTransactionsAreNotForReadCommitted(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...kafkatest.Option) {
		b := kafkatest.NewBroker(t, append(opts, kafkatest.Topic("orders", 1))...)
		value := func(s string) kafka.Record { return kafka.Record{Value: []byte(s)} }
		require.NoError(t, b.ProduceTransaction(t.Context(), false, "orders", value("aborted")))
		require.NoError(t, b.ProduceTransaction(t.Context(), true, "orders", value("committed")))
		tx, err := b.BeginTransaction()
		require.NoError(t, err)
		require.NoError(t, tx.Produce(t.Context(), "orders", value("open")))
		require.NoError(t, b.Produce(t.Context(), "orders", value("plain")))

		all := newConsumer(t, b, kgo.ConsumeTopics("orders"))
		require.Equal(t, []string{"aborted", "committed", "open", "plain"}, values(poll(t, all, 4)))
		stable := newConsumer(t, b, kgo.ConsumeTopics("orders"), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
		require.Equal(t, []string{"committed"}, values(poll(t, stable, 1)), "the open transaction holds the rest back")
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, []string{"open", "plain"}, values(poll(t, stable, 2)))
		require.Error(t, tx.Abort(t.Context()))
		require.Error(t, tx.Produce(t.Context(), "orders", value("late")))
	})
}

func TestAClosedBrokerSaysSoAndLeavesNothing(t *testing.T) {
	b, err := kafkatest.StartBroker(kafkatest.Topic("orders", 1))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(b.Version(), "kfake"), b.Version())
	conn, err := b.Dial(t.Context(), "tcp", b.Addrs()[0])
	require.NoError(t, err)
	defer conn.Close()
	b.Close()
	b.Close()
	require.ErrorIs(t, b.Produce(t.Context(), "orders", kafka.Record{}), kafkatest.ErrClosed)
	require.ErrorIs(t, b.CreateTopic("more", 1), kafkatest.ErrClosed)
	_, err = b.Committed("billing")
	require.ErrorIs(t, err, kafkatest.ErrClosed)
	_, err = b.BeginTransaction()
	require.ErrorIs(t, err, kafkatest.ErrClosed)
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = b.Dial(t.Context(), "tcp", b.Addrs()[0])
	require.Error(t, err)
}

func TestBadOptionsAreErrors(t *testing.T) {
	for _, opt := range []kafkatest.Option{kafkatest.Brokers(0), kafkatest.Topic("t", 0), kafkatest.Compression("zip")} {
		_, err := kafkatest.StartBroker(opt)
		require.ErrorContains(t, err, "kafkatest: ")
	}
}

// ask sends an ApiVersions request; answer reads one answer.
func ask(t *testing.T, conn net.Conn, correlation int32) {
	t.Helper()
	_, err := conn.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("t")).AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), correlation))
	require.NoError(t, err)
}

func answer(t *testing.T, conn net.Conn) (correlation int32) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	var head [8]byte
	_, err := io.ReadFull(conn, head[:])
	require.NoError(t, err)
	_, err = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(head[:]))-4)
	require.NoError(t, err)
	return int32(binary.BigEndian.Uint32(head[4:]))
}

// requireSilence checks that no byte comes for a while.
func requireSilence(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	n, err := conn.Read(make([]byte, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func dial(t *testing.T, b *kafkatest.Broker, node int) net.Conn {
	t.Helper()
	conn, err := b.Dial(t.Context(), "tcp", b.Addrs()[node])
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestAFrozenBrokerIsSilentAndLosesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...kafkatest.Option) {
		b := kafkatest.NewBroker(t, append(opts, kafkatest.Topic("orders", 1))...)
		old := dial(t, b, 0)
		ask(t, old, 1)
		require.EqualValues(t, 1, answer(t, old))

		b.Freeze()
		b.Freeze()
		ask(t, old, 2) // the write succeeds, as to a machine that hangs
		requireSilence(t, old)
		fresh := dial(t, b, 0)
		ask(t, fresh, 3)
		requireSilence(t, fresh)
		require.NoError(t, b.Produce(t.Context(), "orders", kafka.Record{}), "the broker's own ways are open")
		_, err := b.Committed("billing")
		require.NoError(t, err)

		b.Thaw()
		require.EqualValues(t, 2, answer(t, old))
		require.EqualValues(t, 3, answer(t, fresh))
		ask(t, old, 4)
		require.EqualValues(t, 4, answer(t, old))
	})
}

func TestOneNodeFreezesAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...kafkatest.Option) {
		b := kafkatest.NewBroker(t, append(opts, kafkatest.Brokers(2))...)
		zero, one := dial(t, b, 0), dial(t, b, 1)
		b.Freeze(1)
		ask(t, zero, 1)
		ask(t, one, 2)
		require.EqualValues(t, 1, answer(t, zero))
		requireSilence(t, one)
		b.Thaw(1)
		require.EqualValues(t, 2, answer(t, one))
	})
}

func TestAFrozenBrokerCanBeCutAndClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...kafkatest.Option) {
		b := kafkatest.NewBroker(t, append(opts, kafkatest.Topic("orders", 1))...)
		conn := dial(t, b, 0)
		ask(t, conn, 1)
		answer(t, conn)
		b.Freeze()
		ask(t, conn, 2)
		b.Cut()
		_, err := conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		open, accepted := b.Connections()
		require.Zero(t, open)
		require.Equal(t, 1, accepted)
		dial(t, b, 0)
		b.Close()
	})
}

// TestFreezingStopsAnAnswerUnderWay freezes the broker again and again while answers flow: after each Freeze what was sent
// before may still be read, and then nothing comes; after all of it the stream is complete and in order.
func TestFreezingStopsAnAnswerUnderWay(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...kafkatest.Option) {
		b := kafkatest.NewBroker(t, append(opts, kafkatest.Topic("orders", 1))...)
		conn := dial(t, b, 0)
		const requests = 300
		done := make(chan struct{})
		go func() {
			defer close(done)
			f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("t"))
			for i := range int32(requests) {
				if _, err := conn.Write(f.AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), i)); err != nil {
					return
				}
			}
		}()
		for i := range int32(requests) {
			if i%10 == 5 {
				b.Freeze()
				b.Thaw()
			}
			require.Equal(t, i, answer(t, conn))
		}
		<-done
		require.NoError(t, conn.SetReadDeadline(time.Time{}))
	})
}

func TestTimePassesInABubbleWithABrokerInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.NewBroker(t, kafkatest.InMemory(), kafkatest.Topic("orders", 1), kafkatest.MinSessionTimeout(time.Second))
		client := newConsumer(t, b, kgo.ConsumeTopics("orders"), kgo.ConsumerGroup("billing"), kgo.SessionTimeout(2*time.Second), kgo.HeartbeatInterval(500*time.Millisecond))
		start := time.Now()
		for range 5 {
			time.Sleep(2 * time.Minute)
			require.NoError(t, b.Produce(t.Context(), "orders", kafka.Record{Value: []byte("v")}))
			poll(t, client, 1)
		}
		require.GreaterOrEqual(t, time.Since(start), 10*time.Minute)
	})
}

// TestAnAnswerStoppedHalfWayGoesOnAfterTheThaw freezes the broker while it is stuck writing an answer that is larger than
// all the buffers on its way.
func TestAnAnswerStoppedHalfWayGoesOnAfterTheThaw(t *testing.T) {
	everywhere(t, func(t *testing.T, opts ...kafkatest.Option) {
		b := kafkatest.NewBroker(t, append(opts, kafkatest.Topic("orders", 1))...)
		const batches = 18
		for i := range batches {
			require.NoError(t, b.Produce(t.Context(), "orders", kafka.Record{Value: bytes.Repeat([]byte{byte(i), 1, 2}, 300<<10)}))
		}
		req := kmsg.NewPtrFetchRequest()
		req.Version, req.MinBytes, req.MaxBytes, req.SessionEpoch = 11, 1, 64<<20, -1
		topic := kmsg.NewFetchRequestTopic()
		topic.Topic = "orders"
		partition := kmsg.NewFetchRequestTopicPartition()
		partition.PartitionMaxBytes = 64 << 20
		topic.Partitions = append(topic.Partitions, partition)
		req.Topics = append(req.Topics, topic)
		conn := dial(t, b, 0)
		_, err := conn.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("t")).AppendRequest(nil, req, 7))
		require.NoError(t, err)

		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		whole := make([]byte, 32<<20)
		n, err := io.ReadFull(conn, whole[:1000]) // the answer is under way
		require.NoError(t, err)
		b.Freeze()
		for { // what the network had already
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
			m, err := conn.Read(whole[n:])
			n += m
			if err != nil {
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				break
			}
		}
		size := 4 + int(binary.BigEndian.Uint32(whole))
		require.Greater(t, size, batches*900<<10)
		require.Less(t, n, size)
		requireSilence(t, conn)

		b.Thaw()
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = io.ReadFull(conn, whole[n:size])
		require.NoError(t, err)
		var resp kmsg.FetchResponse
		resp.Version = 11
		require.NoError(t, resp.ReadFrom(whole[8:size]))
		found := 0
		for rest := resp.Topics[0].Partitions[0].RecordBatches; len(rest) > 0; found++ {
			end := 12 + int(binary.BigEndian.Uint32(rest[8:]))
			require.Equal(t, binary.BigEndian.Uint32(rest[17:]), crc32.Checksum(rest[21:end], crc32.MakeTable(crc32.Castagnoli)))
			rest = rest[end:]
		}
		require.Equal(t, batches, found)
	})
}
