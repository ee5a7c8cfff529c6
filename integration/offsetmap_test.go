package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// metadataOf returns a committed offset and the text beside it, as the coordinator has them.
func (a admin) metadataOf(t *testing.T, group string, tp kafka.TopicPartition) (offset int64, text string) {
	t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	wantGroup, wantTopic := kmsg.NewOffsetFetchRequestGroup(), kmsg.NewOffsetFetchRequestGroupTopic()
	wantTopic.Topic, wantTopic.Partitions = tp.Topic, []int32{tp.Partition}
	for id := range a.ids(t, tp.Topic) {
		wantTopic.TopicID = id
	}
	wantGroup.Group, wantGroup.Topics = group, append(wantGroup.Topics, wantTopic)
	req.Groups, req.RequireStable = append(req.Groups, wantGroup), true
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	if len(resp.Groups[0].Topics) == 0 { // the group is not there yet, which is an error to some brokers
		return kafka.NoOffset, ""
	}
	checked(t, err, resp.Groups[0].ErrorCode)
	p := resp.Groups[0].Topics[0].Partitions[0]
	checked(t, err, p.ErrorCode)
	if p.Metadata != nil {
		text = *p.Metadata
	}
	return p.Offset, text
}

// finishedInMap returns the offset that is committed and how many records beyond it its map says are finished.
func (a admin) finishedInMap(t *testing.T, group string, tp kafka.TopicPartition) (committed int64, finished int) {
	t.Helper()
	committed, text := a.metadataOf(t, group, tp)
	m, err := commit.ParseMetadata(text, committed)
	require.NoError(t, err)
	require.False(t, m.Foreign, "%q", text)
	for i := range m.Map.Runs() {
		first, last := m.Map.Run(i)
		finished += int(last - first + 1)
	}
	return committed, finished
}

// blocking is a handler that keeps some offsets until it is let go, or its context ends.
type blocking struct {
	offsets map[int64]bool
	release chan struct{}
}

func newBlocking(offsets ...int64) *blocking {
	b := &blocking{offsets: make(map[int64]bool), release: make(chan struct{})}
	for _, offset := range offsets {
		b.offsets[offset] = true
	}
	return b
}

func (b *blocking) handle(ctx context.Context, r *kafka.Record) error {
	if !b.offsets[r.Offset] {
		return nil
	}
	select {
	case <-b.release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// closeAtOnce closes a member whose handlers never return by themselves.
func closeAtOnce(t *testing.T, m *member) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = m.Close(ctx) // it may say that handlers were cut off, which they were
	require.True(t, within(patience, m.Done()))
}

// A member that leaves with holes hands over what is finished beyond them.
func TestOffsetMap_ANewOwnerRepeatsOnlyWhatIsUnfinished(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		topic, group, first, second := unique(t, "topic"), unique(t, "group"), newLedger(), newLedger()
		b.CreateTopic(t, topic, 2)
		fill(t, b, topic, 2, 100)
		c := config(b, group)
		c.OffsetMap = true
		hold := newBlocking(10, 40, 41, 99)
		a := spawn(t, c, api.Handle(topic, first.watch("a", hold.handle), api.Unordered(10)))
		eventually(t, patience, "all but the blocked records are handled", func() bool { return first.distinct() == 200-2*4 })
		closeAtOnce(t, a)
		for _, tp := range tps(topic, 0, 1) {
			require.EqualValues(t, 10, b.Committed(t, group)[tp])
		}
		close(hold.release)
		m := spawn(t, c, api.Handle(topic, second.watch("b", hold.handle), api.Unordered(10)))
		eventually(t, patience, "the commit reaches the end", func() bool {
			return assert.ObjectsAreEqual(b.EndOffsets(t, topic), b.Committed(t, group))
		})
		m.mustClose(t)
		for _, tp := range tps(topic, 0, 1) {
			require.ElementsMatch(t, []int64{10, 40, 41, 99}, second.offsets(tp))
		}
		require.Empty(t, told[event.MetadataIgnored](m))
	})
}

// What was finished a moment before the close is in the last commit's map, although a map was committed a moment before.
func TestOffsetMap_TheLastCommitHasTheLastMap(t *testing.T) {
	for name, part := range map[string]api.HandlerOption{"KeyOrder": api.KeyOrder(4), "Unordered": api.Unordered(4)} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) {
				b.CreateTopic(t, "orders", 1)
				keyed := func(n int) (records []kafka.Record) {
					for i := range n {
						records = append(records, kafka.Record{Key: fmt.Appendf(nil, "%d", i)})
					}
					return records
				}
				c := plain(b)
				c.OffsetMap = true
				l := newLedger()
				m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.watch("a", func(_ context.Context, r *kafka.Record) error {
					if r.Offset == 2 {
						return errors.New("not yet")
					}
					return nil
				}), part, api.Restart(slowRestart())))
				b.Produce(t, "orders", keyed(10)...)
				eventually(t, 10*time.Second, "the map is committed", func() bool {
					_, finished := b.finishedInMap(t, "billing", at("orders", 0))
					return finished == 7
				})
				for n := range 3 { // quicker one after the other than maps are made
					b.Produce(t, "orders", keyed(10)...)
					eventually(t, 10*time.Second, "more is finished", func() bool { return l.distinct() >= 9*(n+2) })
					time.Sleep(50 * time.Millisecond)
				}
				want := l.distinct() - 2 // in key order some wait behind 2
				m.mustClose(t)
				committed, finished := b.finishedInMap(t, "billing", at("orders", 0))
				require.EqualValues(t, 2, committed)
				require.Equal(t, want, finished)
			})
		})
	}
}

// A map that came with the commit is not forgotten by an owner who leaves before it has come to what it tells of.
func TestOffsetMap_AnOwnerThatDoesLittleHandsTheMapOn(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		const n = 300
		b.CreateTopic(t, "orders", 1)
		fill(t, b, "orders", 1, n)
		c := plain(b)
		c.OffsetMap, c.MaxInTransit = true, n+1
		first, second, third := newLedger(), newLedger(), newLedger()
		hold := newBlocking(0, 1, 150)
		m := spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", first.watch("first", hold.handle), api.Unordered(4)))
		eventually(t, 10*time.Second, "all others are handled", func() bool { return first.distinct() == n-3 })
		closeAtOnce(t, m)

		// The next one is given 0, which it finishes, and 1, and with so small a window nothing else.
		c.MaxInTransit = 2
		hold = newBlocking(1)
		m = spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", second.watch("second", hold.handle), api.Unordered(4), api.MaxRecords(1)))
		eventually(t, 10*time.Second, "0 is committed", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == 1 })
		closeAtOnce(t, m)

		c.MaxInTransit = n + 1
		m = spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", third.note("third"), api.Unordered(4)))
		eventually(t, 10*time.Second, "the end is committed", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == n })
		m.mustClose(t)
		require.ElementsMatch(t, []int64{1, 150}, third.offsets(at("orders", 0)))
	})
}

// metadataTap sees what every commit of a group on one topic has for each partition.
type metadataTap struct {
	mu   sync.Mutex
	last *kmsg.OffsetCommitRequest
	seen []map[int32]string
	when []time.Time
}

func tapMetadata(b *embeddedBroker, group string) *metadataTap {
	m := &metadataTap{}
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: group, Observe: true, Count: -1, When: func(req kmsg.Request) bool {
		m.note(req.(*kmsg.OffsetCommitRequest))
		return true
	}})
	return m
}

// textsOf returns what a commit has beside each partition's offset.
func textsOf(req *kmsg.OffsetCommitRequest) map[int32]string {
	texts := make(map[int32]string)
	for _, topic := range req.Topics {
		for _, p := range topic.Partitions {
			if texts[p.Partition] = ""; p.Metadata != nil {
				texts[p.Partition] = *p.Metadata
			}
		}
	}
	return texts
}

// note is called several times for one request.
func (m *metadataTap) note(req *kmsg.OffsetCommitRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if req == m.last {
		return
	}
	m.last = req
	m.seen, m.when = append(m.seen, textsOf(req)), append(m.when, time.Now())
}

func (m *metadataTap) list() ([]map[int32]string, []time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]map[int32]string(nil), m.seen...), append([]time.Time(nil), m.when...)
}
