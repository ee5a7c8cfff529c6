package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

func unknownTopic(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	c := config(b, group)
	m := spawn(t, c, api.Handle(topic, l.note("a")))
	missing := tellsOf(t, m, patience, func(event.TopicMissing) bool { return true })
	require.Equal(t, topic, missing.Topic)
	require.ErrorIs(t, missing.Err, kafka.UnknownTopicOrPartition)
	m.joined(t)
	require.Empty(t, m.owned())
	b.CreateTopic(t, topic, 3)
	n := fill(t, b, topic, 3, 20)
	eventually(t, c.MetadataMaxAge+10*time.Second, "the records flow", func() bool { return l.distinct() == n })
	m.mustClose(t)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

// unreachable demands what must hold while there is no Kafka at the other end.
func unreachable(t *testing.T, addr string, connectTimeout time.Duration, want func(error) bool) {
	t.Helper()
	m := spawn(t, api.Config{Brokers: []string{addr}, GroupID: "billing", ConnectTimeout: connectTimeout},
		api.Handle("orders", func(context.Context, *kafka.Record) error { return nil }))
	tellsOf(t, m, 5*time.Second, func(e event.ConnectFailed) bool { return want(e.Err) && e.RetryIn > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	err := m.WaitJoined(ctx)
	require.True(t, want(err), "WaitJoined returned %v", err)
	var typed *kafka.ConnectError
	require.ErrorAs(t, err, &typed)
	require.Equal(t, addr, typed.Addr)
	require.ErrorIs(t, m.Healthy(), actors.ErrNotHealthy)
	tellsOf(t, m, 10*time.Second, func(event.ConnectFailed) bool { return len(told[event.ConnectFailed](m)) >= 2 }) // tried again
	started := time.Now()
	require.NoError(t, m.Close(ctx))
	require.Less(t, time.Since(started), 2*time.Second)
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	l := listen(t)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	unreachable(t, addr, 0, func(err error) bool { return errors.Is(err, kafka.ErrNoBroker) })
}

// A wrong port where something else waits for its client to speak.
func TestTheOtherEndSaysNothing(t *testing.T) {
	t.Parallel()
	l := listen(t)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 1))
				_, _ = conn.Read(make([]byte, 1<<16)) // the client's patience ends it
				for err := error(nil); err == nil; {
					_, err = conn.Read(make([]byte, 1<<16))
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); conns.Wait() })
	unreachable(t, l.Addr().String(), time.Second, func(err error) bool {
		typed, ok := errors.AsType[*kafka.ConnectError](err)
		return ok && typed.Phase == "versions"
	})
}

func TestAnHTTPServerIsNotKafka(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	unreachable(t, s.Listener.Addr().String(), 0, func(err error) bool { return errors.Is(err, kafka.ErrNotKafka) })
}

func closeIsBounded(t *testing.T, b broker) {
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 2)
	fill(t, b, topic, 2, 5)
	release, entered := make(chan struct{}), make(chan struct{})
	var others atomic.Int64
	m := spawn(t, config(b, group), api.Handle(topic, func(_ context.Context, r *kafka.Record) error {
		if r.Partition == 1 && r.Offset == 3 {
			close(entered)
			<-release // deaf to its context
		}
		if r.Partition == 0 {
			others.Add(1)
		}
		return nil
	}))
	defer close(release)
	receive(t, entered)
	eventually(t, patience, "the other partition is handled", func() bool { return others.Load() == 5 })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	started := time.Now()
	err := m.Close(ctx)
	took := time.Since(started)
	require.Less(t, took, 3*time.Second)
	var typed *actors.CloseError
	require.ErrorAs(t, err, &typed)
	require.Len(t, typed.Running, 1, "%v", err)
	require.Equal(t, at(topic, 1), typed.Running[0].TopicPartition)
	require.EqualValues(t, 3, typed.Running[0].Offset)
	require.Greater(t, typed.Running[0].Age, time.Second)
	require.Contains(t, err.Error(), topic)
	require.Equal(t, map[kafka.TopicPartition]int64{at(topic, 0): 5, at(topic, 1): 3}, b.Committed(t, group),
		"what was finished is committed all the same")
	tellsOf(t, m, patience, func(e event.HandlerAbandoned) bool { return e.TopicPartition == at(topic, 1) && e.Offset == 3 })
}

// A batch that is far larger once it is decompressed.
func bombStopsItsPartitionOnly(t *testing.T, b broker) {
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 3)
	c := config(b, group)
	c.MaxBatchBytes = 64 << 10
	var dial dialFunc
	if embedded, ok := b.(*embeddedBroker); ok {
		dial = embedded.Dial
	}
	fill(t, b, topic, 3, 10)
	zip := newAdmin(t, b.Addrs(), dial, kgo.ProducerBatchCompression(kgo.GzipCompression()))
	zip.Produce(t, topic, kafka.Record{Partition: 1, Value: make([]byte, 900<<10)})
	fill(t, b, topic, 3, 10)
	m := spawn(t, c, api.Handle(topic, l.note("a")))
	failed := tellsOf(t, m, patience, func(event.PartitionFailed) bool { return true })
	require.Equal(t, at(topic, 1), failed.TopicPartition)
	require.EqualValues(t, 10, failed.Offset)
	require.ErrorIs(t, failed.Err, kafka.ErrBatchTooLarge)
	require.Positive(t, failed.RetryIn)
	eventually(t, patience, "all that can be read is handled", func() bool { return l.distinct() == 50 })
	require.ErrorIs(t, m.Healthy(), actors.ErrNotHealthy)
	m.mustClose(t)
	for _, e := range told[event.PartitionFailed](m) {
		require.Equal(t, at(topic, 1), e.TopicPartition)
	}
	require.Equal(t, map[kafka.TopicPartition]int64{at(topic, 0): 20, at(topic, 1): 10, at(topic, 2): 20}, b.Committed(t, group))
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// rawBatches reads a partition's batches as they are on the wire.
func rawBatches(t *testing.T, b *embeddedBroker, tp kafka.TopicPartition) []byte {
	t.Helper()
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.SessionEpoch = 1<<20, -1
	wantTopic, want := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	wantTopic.Topic, wantTopic.TopicID = tp.Topic, b.Cluster().TopicInfo(tp.Topic).TopicID
	want.Partition, want.PartitionMaxBytes = tp.Partition, 1<<20
	wantTopic.Partitions = append(wantTopic.Partitions, want)
	req.Topics = append(req.Topics, wantTopic)
	node := b.client.Broker(int(b.Cluster().LeaderFor(tp.Topic, tp.Partition)))
	resp, err := node.Request(requestContext(t), req)
	require.NoError(t, err)
	answer := resp.(*kmsg.FetchResponse)
	require.Zero(t, answer.ErrorCode)
	raw := answer.Topics[0].Partitions[0].RecordBatches
	require.NotEmpty(t, raw)
	return raw
}

// forged answers every fetch of a cluster from batches of the test's own; each is a whole log that starts at offset 0.
type forged struct {
	mu      sync.Mutex
	logs    map[int32][]byte
	fetches map[int32]int
}

func (f *forged) set(partition int32, log []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logs[partition] = log
}

func (f *forged) asked(partition int32) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fetches[partition]
}

func (f *forged) answer(req *kmsg.FetchRequest, end int64) *kmsg.FetchResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	for _, topic := range req.Topics {
		answer := kmsg.NewFetchResponseTopic()
		answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
		for _, p := range topic.Partitions {
			f.fetches[p.Partition]++
			part := kmsg.NewFetchResponseTopicPartition()
			part.Partition, part.HighWatermark, part.LastStableOffset, part.LogStartOffset = p.Partition, end, end, 0
			if p.FetchOffset < end {
				part.RecordBatches = f.logs[p.Partition]
			}
			answer.Partitions = append(answer.Partitions, part)
		}
		resp.Topics = append(resp.Topics, answer)
	}
	return resp
}

// Where things are in a record batch of format v2.
const (
	batchCRC        = 17
	batchAttributes = 21
)

// sealed returns a batch with its checksum made right.
func sealed(batch []byte) []byte {
	binary.BigEndian.PutUint32(batch[batchCRC:], crc32.Checksum(batch[batchAttributes:], crc32.MakeTable(crc32.Castagnoli)))
	return batch
}

func TestABadBatchStopsItsPartitionOnly(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(batch []byte) []byte
		want  error
	}{
		"CRC": {func(batch []byte) []byte {
			batch[len(batch)-1] ^= 1
			return batch
		}, kafka.ErrCorruptBatch},
		"Length": {func(batch []byte) []byte {
			binary.BigEndian.PutUint32(batch[8:], 3)
			return batch
		}, kafka.ErrCorruptBatch},
		"Compression": {func(batch []byte) []byte {
			batch[batchAttributes+1] = 5
			return sealed(batch)
		}, kafka.ErrUnsupportedCompression},
		"Magic": {func(batch []byte) []byte {
			batch[16] = 1
			return batch
		}, kafka.ErrUnsupportedMagic},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newEmbedded(t)
			b.CreateTopic(t, "orders", 3)
			fill(t, b, "orders", 3, 10)
			f := &forged{logs: make(map[int32][]byte), fetches: make(map[int32]int)}
			for p := range int32(3) {
				f.logs[p] = rawBatches(t, b, at("orders", p))
			}
			good := f.logs[1]
			f.set(1, tt.spoil(slices.Clone(good)))
			b.Cluster().ControlKey(kmsg.Fetch.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
				b.Cluster().KeepControl()
				return f.answer(req.(*kmsg.FetchRequest), 10), nil, true
			})
			l := newLedger()
			m := spawn(t, config(b, "billing"), api.Handle("orders", l.note("a")))
			failed := tellsOf(t, m, patience, func(event.PartitionFailed) bool { return true })
			require.Equal(t, at("orders", 1), failed.TopicPartition)
			require.Zero(t, failed.Offset)
			require.ErrorIs(t, failed.Err, tt.want)
			var typed *kafka.BatchError
			require.ErrorAs(t, failed.Err, &typed)
			require.Equal(t, at("orders", 1), typed.TopicPartition)
			eventually(t, patience, "the others are handled", func() bool { return l.distinct() == 20 })
			eventually(t, patience, "the others are committed", func() bool {
				c := b.Committed(t, "billing")
				return c[at("orders", 0)] == 10 && c[at("orders", 2)] == 10
			})
			p, _ := m.partition(at("orders", 1))
			assert.Equal(t, "failed", p.Condition)
			before := f.asked(1)
			pause(time.Second)
			assert.LessOrEqual(t, f.asked(1)-before, 12, "fetches of the bad batch in a second")
			// It is tried again, so what was bad on the way is read when it comes right.
			f.set(1, good)
			eventually(t, patience, "the partition is handled in the end", func() bool { return l.distinct() == 30 })
			m.mustClose(t)
			for _, e := range told[event.PartitionFailed](m) {
				require.Equal(t, at("orders", 1), e.TopicPartition)
			}
			l.inOrder(t, tps("orders", 0, 1, 2)...)
		})
	}
}
