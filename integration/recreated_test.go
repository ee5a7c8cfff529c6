package integration

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

// afterTree is longer than anything that ends a moment after a closed consumer does.
const afterTree = 30 * time.Second

// Offsets are committed by name. While a partition is full, nothing tells it that its topic was made anew, and what its
// handler finished of the old one was committed to the new one: everything below was skipped at the next assignment.
func TestATopicMadeAnewIsReadFromItsBeginning(t *testing.T) {
	for _, full := range []bool{true, false} {
		t.Run("PartitionFull="+strconv.FormatBool(full), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { topicMadeAnew(t, full) })
		})
	}
}

func topicMadeAnew(t *testing.T, full bool) {
	b := kafkatest.NewBroker(t, kafkatest.InMemory(), kafkatest.Topic("t", 1))
	fill := func(prefix string, n, padding int) {
		for from := 0; from < n; from += 10 {
			var records []kafka.Record
			for i := from; i < from+10; i++ {
				records = append(records, kafka.Record{Key: []byte(prefix + strconv.Itoa(i)), Value: make([]byte, padding)})
			}
			require.NoError(t, b.Produce(t.Context(), "t", records...))
		}
	}
	fill("old", 1000, 100)
	config := api.Config{Brokers: b.Addrs(), GroupID: "g"}
	if full {
		config.PartitionMaxBytes = 3000 // two answers fill the partition: nothing is fetched while the handler is slow
	}
	var mu sync.Mutex
	seen := make(map[string]int)
	consumer, err := api.Spawn(t.Context(), config, api.WithDialer(b.Dial),
		api.Handle("t", func(_ context.Context, r *kafka.Record) error {
			time.Sleep(300 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			seen[string(r.Key)]++
			return nil
		}))
	require.NoError(t, err)
	require.NoError(t, consumer.WaitJoined(t.Context()))
	time.Sleep(63 * time.Second) // just after a metadata refresh, about 200 records into the old topic
	require.NoError(t, b.Cluster().DeleteTopic("t"))
	require.NoError(t, b.CreateTopic("t", 1))
	fill("new", 400, 10)
	time.Sleep(20 * time.Minute)
	mu.Lock()
	for i := range 400 {
		assert.Positive(t, seen["new"+strconv.Itoa(i)], "record %d of the new topic", i)
	}
	mu.Unlock()
	require.NoError(t, consumer.Close(context.Background()))
	time.Sleep(afterTree)
}

// A group leader that looks at no topic ids never has the partitions assigned anew; a member rejoins by itself.
func TestATopicMadeAnewUnderAForeignLeaderIsReadOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := kafkatest.NewBroker(t, kafkatest.InMemory(), kafkatest.Topic("t", 1), kafkatest.Topic("u", 1))
		ctx, cancel := context.WithCancel(context.Background())
		leader, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.Dialer(b.Dial), kgo.ConsumerGroup("g"),
			kgo.ConsumeTopics("u"), kgo.Balancers(kgo.RangeBalancer()))
		require.NoError(t, err)
		var polling sync.WaitGroup
		polling.Go(func() {
			for ctx.Err() == nil {
				leader.PollFetches(ctx)
			}
		})
		time.Sleep(5 * time.Second)
		var mu sync.Mutex
		handled := 0
		consumer, err := api.Spawn(ctx, api.Config{Brokers: b.Addrs(), GroupID: "g", MetadataMaxAge: time.Second,
			Assignors: []rebalance.Assignor{rebalance.Range()}}, api.WithDialer(b.Dial),
			api.Handle("t", func(context.Context, *kafka.Record) error {
				mu.Lock()
				defer mu.Unlock()
				handled++
				return nil
			}))
		require.NoError(t, err)
		require.NoError(t, consumer.WaitJoined(ctx))
		require.False(t, consumer.Stats().Leader)
		require.NoError(t, b.Produce(ctx, "t", kafka.Record{Value: []byte("a")}))
		time.Sleep(5 * time.Second)
		require.NoError(t, b.Cluster().DeleteTopic("t"))
		require.NoError(t, b.CreateTopic("t", 1))
		require.NoError(t, b.Produce(ctx, "t", kafka.Record{Value: []byte("b")}, kafka.Record{Value: []byte("c")}))
		time.Sleep(10 * time.Minute)
		mu.Lock()
		assert.Equal(t, 3, handled)
		mu.Unlock()
		cancel()
		polling.Wait()
		leader.Close()
		<-consumer.Done()
		time.Sleep(afterTree)
	})
}
