package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// Cases about what holds the flow up: pauses, windows, metadata.

// confluent-kafka-dotnet#672 and others: a pause before the first record loses the position, and what comes meanwhile.
func TestB40_APauseBeforeTheFirstRecordLosesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
		b.CreateTopic(t, topic, 1)
		fill(t, b, topic, 1, 5)
		c := config(b, group)
		c.Reset = rebalance.ResetLatest
		m := spawn(t, c, api.Handle(topic, l.note("a")))
		require.NoError(t, m.Pause(t.Context()))
		eventually(t, patience, "it starts at the end", func() bool { return b.Committed(t, group)[at(topic, 0)] == 5 })
		fill(t, b, topic, 1, 10)
		pause(500 * time.Millisecond)
		require.Zero(t, l.distinct(), "it is paused")
		p, ok := m.partition(at(topic, 0))
		require.True(t, ok)
		require.Equal(t, []string{"user"}, p.PauseReasons)
		require.NoError(t, m.Healthy())
		require.NoError(t, m.Resume(t.Context()))
		m.allHandledIn(t, patience, l, 10)
		m.mustClose(t)
		require.Equal(t, []int64{5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, l.offsets(at(topic, 0)))
		require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
	})
}

// readCounter counts what a consumer reads from its connections.
type readCounter struct {
	dial dialFunc
	read atomic.Int64
}

func (c *readCounter) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := c.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: conn, counter: c}, nil
}

type countedConn struct {
	net.Conn
	counter *readCounter
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.counter.read.Add(int64(n))
	return n, err
}

// The same under load, a thousand times: each resume fetches again what was thrown away, and records come after the pause.
func TestB40_AThousandPausesUnderLoadAreExact(t *testing.T) {
	for name, option := range map[string]api.HandlerOption{"PartitionOrder": api.PartitionOrder(), "KeyOrder": api.KeyOrder(4)} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, b broker) { thousandPauses(t, b, option) })
		})
	}
}

func thousandPauses(t *testing.T, b broker, option api.HandlerOption) {
	const toggles, partitions, perBatch, size = 1000, 2, 20, 1000
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	counter := &readCounter{dial: (&net.Dialer{}).DialContext}
	var paused atomic.Bool
	var broken atomic.Int64
	m := spawn(t, config(b, group), api.WithDialer(counter.Dial), api.Handle(topic, l.watch("a", func(context.Context, *kafka.Record) error {
		if paused.Load() {
			broken.Add(1)
		}
		return nil
	}), option))
	settled(t, partitions, m)
	random, produced := rand.NewChaCha8([32]byte{40}), 0
	for i := range toggles {
		if i%20 == 0 {
			var records []kafka.Record
			for p := range int32(partitions) {
				for k := range perBatch {
					value := make([]byte, size) // which does not compress
					_, _ = random.Read(value)
					records = append(records, kafka.Record{Partition: p, Key: []byte{byte(k % 5)}, Value: value})
				}
			}
			b.Produce(t, topic, records...)
			produced += len(records)
		}
		require.NoError(t, m.Pause(t.Context()))
		paused.Store(true)
		if i%100 == 50 {
			pause(30 * time.Millisecond) // records come meanwhile
		}
		paused.Store(false)
		require.NoError(t, m.Resume(t.Context()))
	}
	m.allHandledIn(t, patience, l, produced)
	m.mustClose(t)
	require.Zero(t, broken.Load(), "handlers that ran in a pause")
	lane := func(e *entry) any { return keyLane{e.tp, e.key} }
	l.noOverlapIn(t, lane)
	l.afterItsPredecessors(t, lane)
	require.Empty(t, l.repeated())
	l.allHandled(t, b.EndOffsets(t, topic))
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
	t.Logf("%d bytes read for %d bytes of values", counter.read.Load(), produced*size)
	require.Less(t, counter.read.Load(), int64(2*produced*size))
}

// parallel-consumer#832 and others: keys that always fail fill the window, and then nothing moves and nobody says so.
func TestB43_KeysThatAlwaysFailHoldTheOthersUpAtTheWindowOnlyAndThatIsTold(t *testing.T) {
	const records, keys, failing, window = 10_000, 100, 20, 8_000
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 1)
		for from := 0; from < records; from += 1000 {
			var batch []kafka.Record
			for i := from; i < from+1000; i++ {
				batch = append(batch, kafka.Record{Key: fmt.Appendf(nil, "%02d", i%keys)})
			}
			b.Produce(t, "orders", batch...)
		}
		var mu sync.Mutex
		done := make(map[int64]int)
		healed := false
		c := plain(b)
		c.MaxInTransit, c.ResumeBelow = window, window/2
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", func(_ context.Context, r *kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if key := int(r.Offset) % keys; key >= 40 && key < 40+failing && !healed {
				return errors.New("never")
			}
			done[r.Offset]++
			return nil
		}, api.KeyOrder(16), api.Restart(supervisor.Policy{MaxRestarts: 10_000, Backoff: supervisor.Backoff{Initial: time.Second, Max: 10 * time.Second}})))
		handled := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(done)
		}
		healthyBelow := func(position int64) (n int) {
			for offset := range position {
				if key := offset % keys; key < 40 || key >= 40+failing {
					n++
				}
			}
			return n
		}
		eventually(t, 2*time.Minute, "the window is full", func() bool {
			neverNegative(t, m.Stats())
			return len(told[event.WindowFull](m)) > 0
		})
		for range 10 {
			time.Sleep(6 * time.Second)
			neverNegative(t, m.Stats())
		}
		p, ok := m.partition(at("orders", 0))
		require.True(t, ok)
		// It begins at 40, the first record that fails. Once paused it stays so until half of it is free.
		require.GreaterOrEqual(t, p.Position, int64(window))
		require.LessOrEqual(t, p.Position, int64(window+40))
		require.Equal(t, healthyBelow(p.Position), handled(), "every healthy record of the window is done, and none beyond")
		require.EqualValues(t, 40, b.Committed(t, "billing")[at("orders", 0)])
		full := told[event.WindowFull](m)
		require.Len(t, full, 1)
		require.EqualValues(t, 40, full[0].Offset)
		require.Equal(t, failing, full[0].Lanes)
		require.Contains(t, p.PauseReasons, "window")
		require.NotNil(t, p.Blocked)
		require.EqualValues(t, 40, p.Blocked.Offset)

		mu.Lock()
		healed = true
		mu.Unlock()
		eventually(t, 5*time.Minute, "the end is committed", func() bool {
			neverNegative(t, m.Stats())
			return b.Committed(t, "billing")[at("orders", 0)] == records
		})
		m.mustClose(t)
		require.Len(t, done, records)
		for offset, n := range done {
			require.Equal(t, 1, n, "offset %d", offset)
		}
		require.Len(t, told[event.WindowFull](m), 1)
	})
}

// neverNegative demands that no number of the stats is below zero, or has been, and become very large.
func neverNegative(t *testing.T, s actors.Stats) {
	t.Helper()
	const most = 1 << 40
	require.GreaterOrEqual(t, s.MemoryHeld, int64(0))
	for _, p := range s.Partitions {
		require.GreaterOrEqual(t, p.InTransit, 0)
		require.GreaterOrEqual(t, p.Lag, int64(0))
		for _, n := range []uint64{p.Delivered, p.Acked, p.Redelivered, p.Restarts} {
			require.Less(t, n, uint64(most))
		}
		require.LessOrEqual(t, p.Acked, p.Delivered)
	}
}

// apache/kafka#15536 and others: metadata over the broker's limit fails every commit. Only the partition that is refused is
// sent again, at once, and from then on without a map.
func TestB57_MetadataThatIsTooLargeIsLeftOut(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		all := tapMetadata(b, "billing")
		refusals := b.Cluster().Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: "billing", Topic: "orders", Partitions: []int32{0}, Err: kerr.OffsetMetadataTooLarge, Count: -1,
			When: func(req kmsg.Request) bool {
				return strings.Contains(textsOf(req.(*kmsg.OffsetCommitRequest))[0], " map ")
			},
		})
		fill(t, b, "orders", 2, 50)
		l := newLedger()
		c := plain(b)
		c.OffsetMap = true
		hold := newBlocking(10)
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.watch("a", hold.handle), api.Unordered(8)))
		eventually(t, 10*time.Second, "all but the blocked records are handled", func() bool { return l.distinct() == 98 })
		eventually(t, 10*time.Second, "the metadata is refused", func() bool { return refusals.Hits() == 1 })
		time.Sleep(5 * time.Second)
		_, finished := b.finishedInMap(t, "billing", at("orders", 1))
		require.Equal(t, 39, finished, "the other partition's map is stored")
		require.Equal(t, map[kafka.TopicPartition]int64{at("orders", 0): 10, at("orders", 1): 10}, b.Committed(t, "billing"))
		fill(t, b, "orders", 2, 20)
		time.Sleep(5 * time.Second)

		seen, _ := all.list()
		sent := 0
		for _, texts := range seen {
			if strings.Contains(texts[0], " map ") {
				sent++
			}
		}
		require.Equal(t, 1, sent, "no map is sent again: %v", seen)
		require.Equal(t, 1, refusals.Hits())
		close(hold.release)
		eventually(t, 10*time.Second, "the end is committed", func() bool {
			return assert.ObjectsAreEqual(b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
		})
		m.mustClose(t)
		require.Empty(t, l.repeated())
	})
}

// The same where the map came with an offset that moved: the offset is there without it in less than a second.
func TestB57_AnOffsetWhoseMetadataIsTooLargeIsSentAgainAtOnce(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		all, hold := tapMetadata(b, "billing"), newBlocking(10)
		var strict atomic.Bool
		b.Cluster().Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: "billing", Topic: "orders", Partitions: []int32{0}, Err: kerr.OffsetMetadataTooLarge, Count: -1,
			When: func(req kmsg.Request) bool {
				return strict.Load() && strings.Contains(textsOf(req.(*kmsg.OffsetCommitRequest))[0], " map ")
			},
		})
		fill(t, b, "orders", 2, 50)
		c := plain(b)
		c.OffsetMap = true
		l := newLedger()
		freed := make(chan struct{})
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.watch("a", func(ctx context.Context, r *kafka.Record) error {
			if r.Offset == 0 {
				<-freed
				return nil
			}
			return hold.handle(ctx, r)
		}), api.Unordered(8)))
		eventually(t, 10*time.Second, "the maps of both are stored", func() bool {
			_, one := b.finishedInMap(t, "billing", at("orders", 0))
			_, other := b.finishedInMap(t, "billing", at("orders", 1))
			return one == 48 && other == 48
		})
		strict.Store(true)
		before, _ := all.list()
		close(freed) // both move to 10, with a map
		time.Sleep(time.Second)
		require.Equal(t, map[kafka.TopicPartition]int64{at("orders", 0): 10, at("orders", 1): 10}, b.Committed(t, "billing"))
		seen, when := all.list()
		seen, when = seen[len(before):], when[len(before):]
		require.Len(t, seen, 2, "%v", seen)
		require.Len(t, seen[0], 2)
		require.Contains(t, seen[0][0], " map ")
		require.Len(t, seen[1], 1, "only the refused one is sent again")
		require.NotContains(t, seen[1][0], " map ")
		require.Less(t, when[1].Sub(when[0]), time.Second)
		close(hold.release)
		eventually(t, 10*time.Second, "the end is committed", func() bool {
			return assert.ObjectsAreEqual(b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
		})
		m.mustClose(t)
	})
}

// Metadata that others wrote, or that is damaged, is ignored, with one warning.
func TestB57_MetadataThatCannotBeTrustedIsIgnoredAndToldOnce(t *testing.T) {
	none := strings.Repeat("0", 32)
	for name, text := range map[string]string{
		"Foreign":        "xyz\x01\x02",
		"NotBase64":      "troupe topic " + none + " map !!!",
		"BadChecksum":    "troupe topic " + none + " map AQEAAAAAAAAA",
		"NotATopic":      "troupe topic orders",
		"SomethingElse":  "troupe topic " + none + " and more",
		"EmptyMap":       "troupe topic " + none + " map ",
		"OfAnotherPlace": mapOf(t, 5),
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, b broker) {
				topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
				b.CreateTopic(t, topic, 2)
				fill(t, b, topic, 2, 20)
				b.Commit(t, group, at(topic, 0), 7, text)
				b.Commit(t, group, at(topic, 1), 9)
				c := config(b, group)
				c.OffsetMap = true
				m := spawn(t, c, api.Handle(topic, l.note("a"), api.Unordered(4)))
				m.allHandledIn(t, patience, l, 13+11)
				m.mustClose(t)
				for _, e := range l.of(at(topic, 0)) {
					require.GreaterOrEqual(t, e.offset, int64(7))
				}
				ignored := told[event.MetadataIgnored](m)
				require.Len(t, ignored, 1)
				require.Equal(t, at(topic, 0), ignored[0].TopicPartition)
				require.EqualValues(t, 7, ignored[0].Offset)
				require.Error(t, ignored[0].Err)
				require.NotContains(t, ignored[0].Err.Error(), "\x01")
				require.Empty(t, l.repeated())
				require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
			})
		})
	}
}

// mapOf is metadata of ours for a committed offset, beyond which two records are finished.
func mapOf(t *testing.T, committed int64) string {
	t.Helper()
	tracker := commit.NewTracker(committed)
	require.NoError(t, tracker.Deliver([]kafka.Record{{Offset: committed}, {Offset: committed + 3}, {Offset: committed + 4}}))
	tracker.Ack(committed + 3)
	tracker.Ack(committed + 4)
	text, kept := commit.Metadata{Map: tracker.Map()}.Encode(committed, commit.DefaultMetadataLimit)
	require.True(t, kept)
	return text
}
