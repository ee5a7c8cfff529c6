package integration

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// Cases about memory and about records that do not fit.

// writer returns a client that produces batches of up to 6 MiB in the codec.
func writer(t *testing.T, b broker, codec kgo.CompressionCodec) admin {
	t.Helper()
	var dial dialFunc
	if embedded, ok := b.(*embeddedBroker); ok {
		dial = embedded.Dial
	}
	return newAdmin(t, b.Addrs(), dial, kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(6<<20))
}

// createRoomy creates a topic that takes batches of 6 MiB.
func createRoomy(t *testing.T, w admin, topic string, partitions int32) {
	t.Helper()
	req, most := kmsg.NewPtrCreateTopicsRequest(), "6291456"
	req.TimeoutMillis = int32(requestTimeout.Milliseconds())
	want, limit := kmsg.NewCreateTopicsRequestTopic(), kmsg.NewCreateTopicsRequestTopicConfig()
	limit.Name, limit.Value = "max.message.bytes", &most
	want.Topic, want.NumPartitions, want.ReplicationFactor, want.Configs = topic, partitions, -1, append(want.Configs, limit)
	req.Topics = append(req.Topics, want)
	resp, err := req.RequestWith(requestContext(t), w.client)
	require.NoError(t, err)
	checked(t, err, resp.Topics[0].ErrorCode)
}

// liveHeap is what is reachable now.
func liveHeap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // what was finalized or pooled at the first one
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// residentMemory is what the runtime has from the system and has not given back: the resident set, as far as it is Go's.
func residentMemory() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}

// peakOf samples the resident memory until stop is called, which returns the highest value.
func peakOf() (stop func() int64) {
	end, peak := make(chan struct{}), make(chan int64)
	go func() {
		most := residentMemory()
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				most = max(most, residentMemory())
			case <-end:
				peak <- most
				return
			}
		}
	}()
	return sync.OnceValue(func() int64 {
		close(end)
		return <-peak
	})
}

// librdkafka#2076 and others: slow handlers, many partitions and well packed data take memory far above the limit. It
// measures the memory of this process, so it runs alone.
func TestB41_WellPackedDataStaysWithinTheMemoryBudget(t *testing.T) {
	for name, codec := range map[string]kgo.CompressionCodec{"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()} {
		t.Run("Embedded/"+name, func(t *testing.T) { wellPacked(t, newEmbedded(t), codec) })
	}
	t.Run("Kafka", func(t *testing.T) { wellPacked(t, realKafka.broker(t), kgo.ZstdCompression()) })
}

func wellPacked(t *testing.T, b broker, codec kgo.CompressionCodec) {
	const (
		partitions, batches = 60, 4
		batchBytes          = 1 << 20
		budget              = 32 << 20
	)
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	w := writer(t, b, codec)
	createRoomy(t, w, topic, partitions)
	zeros := make([]byte, batchBytes)
	for range batches { // one record in each batch, as no two of a partition are sent at once
		records := make([]kafka.Record, partitions)
		for p := range records {
			records[p] = kafka.Record{Partition: int32(p), Value: zeros}
		}
		w.Produce(t, topic, records...)
	}
	w.client.Close()
	c := config(b, group)
	c.MemoryBudget = budget
	debug.FreeOSMemory()
	heap, resident := liveHeap(), residentMemory()
	peak := peakOf()
	defer peak()
	release := make(chan struct{})
	m := spawn(t, c, api.Handle(topic, l.watch("a", func(_ context.Context, r *kafka.Record) error {
		<-release
		return nil
	})))
	m.joined(t)
	running := func() (n int) {
		for _, s := range m.Stats().Partitions {
			if !s.HandlerSince.IsZero() {
				n++
			}
		}
		return n
	}
	eventually(t, patience, "half of the budget is decoded", func() bool { return running() >= budget/2/batchBytes })
	pause(2 * time.Second) // and no more than that
	blocked, held := running(), m.Stats().MemoryHeld
	grown := liveHeap() - heap
	t.Logf("%d of %d handlers run, %d KiB counted, live heap grew by %d KiB, resident memory by %d KiB at most",
		blocked, partitions, held>>10, grown>>10, (peak()-resident)>>10)
	require.LessOrEqual(t, held, int64(budget+batchBytes))
	require.LessOrEqual(t, grown, int64(budget+budget/4+16<<20))
	require.Less(t, peak()-resident, int64(3*budget))
	require.Less(t, blocked, partitions)

	peak = peakOf()
	close(release)
	eventually(t, patience, "every record handled", func() bool { return l.distinct() == partitions*batches })
	// How far garbage may pile up while memory is used up fast is the collector's to say.
	t.Logf("resident memory grew by %d KiB at most while all was handled", (peak()-resident)>>10)
	m.mustClose(t)
	require.Empty(t, l.repeated())
	for p := range int32(partitions) {
		l.inOrder(t, at(topic, p))
	}
	require.Zero(t, m.Stats().MemoryHeld)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

// countFetches counts the fetches of a partition at an offset.
func countFetches(b *embeddedBroker, partition int32, offset int64) *kfake.FaultHandle {
	return b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Observe: true, Count: -1, When: func(req kmsg.Request) bool {
		for _, topic := range req.(*kmsg.FetchRequest).Topics {
			for _, p := range topic.Partitions {
				if p.Partition == partition && p.FetchOffset == offset {
					return true
				}
			}
		}
		return false
	}})
}

// largeAmongSmall produces 10 records to each of two partitions, one of 5 MiB to partition 1, and 10 more to each.
func largeAmongSmall(t *testing.T, b broker, topic string) {
	t.Helper()
	w := writer(t, b, kgo.NoCompression())
	createRoomy(t, w, topic, 2)
	fill(t, b, topic, 2, 10)
	w.Produce(t, topic, kafka.Record{Partition: 1, Value: make([]byte, 5<<20)})
	fill(t, b, topic, 2, 10)
	w.client.Close()
}

// librdkafka#3935 and others: a record larger than the fetch size stops the partition, or spins.
func TestB42_ALargeRecordIsDeliveredInAFewFetches(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		largeAmongSmall(t, b, topic)
		var fetches *kfake.FaultHandle
		if embedded, ok := b.(*embeddedBroker); ok {
			fetches = countFetches(embedded, 1, 10)
		}
		c := config(b, group)
		c.PartitionMaxBytes = 64 << 10
		m := spawn(t, c, api.Handle(topic, l.note("a")))
		eventually(t, patience, "every record handled", func() bool { return l.distinct() == 41 })
		m.mustClose(t)
		l.inOrder(t, tps(topic, 0, 1)...)
		require.Empty(t, told[event.PartitionFailed](m))
		if fetches != nil {
			t.Logf("%d fetches", fetches.Hits())
			require.Less(t, fetches.Hits(), 10)
		}
	})
}

// The same record above the cap on a batch: its partition says so, with offset and size, and does not spin; no other is
// affected.
func TestB42_ALargeRecordAboveTheCapStopsItsPartitionOnly(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		largeAmongSmall(t, b, topic)
		var fetches *kfake.FaultHandle
		if embedded, ok := b.(*embeddedBroker); ok {
			fetches = countFetches(embedded, 1, 10)
		}
		c := config(b, group)
		c.PartitionMaxBytes, c.MaxBatchBytes = 64<<10, 1<<20
		m := spawn(t, c, api.Handle(topic, l.note("a")))
		m.joined(t)
		failed := tellsOf(t, m, 2*time.Second, func(event.PartitionFailed) bool { return true })
		require.Equal(t, at(topic, 1), failed.TopicPartition)
		require.EqualValues(t, 10, failed.Offset)
		require.ErrorIs(t, failed.Err, kafka.ErrBatchTooLarge)
		require.ErrorContains(t, failed.Err, "1048576")
		eventually(t, patience, "all that can be read is handled", func() bool { return l.distinct() == 30 })
		if fetches != nil {
			pause(2 * time.Second) // until the wait between two tries is at its longest
			const window = 4
			before := fetches.Hits()
			pause(window * time.Second)
			tries := fetches.Hits() - before
			t.Logf("%d fetches in %d s", tries, window)
			require.Less(t, tries, 2*window)
		}
		n := 30 + fillOne(t, b, topic, 0, 10)
		eventually(t, patience, "the other partition flows", func() bool { return l.distinct() == n })
		m.mustClose(t)
		require.Equal(t, map[kafka.TopicPartition]int64{at(topic, 0): 30, at(topic, 1): 10}, b.Committed(t, group))
	})
}

// fillOne produces n records to one partition.
func fillOne(t *testing.T, b broker, topic string, partition int32, n int) int {
	t.Helper()
	records := make([]kafka.Record, n)
	for i := range records {
		records[i] = kafka.Record{Partition: partition, Value: []byte("more")}
	}
	b.Produce(t, topic, records...)
	return n
}
