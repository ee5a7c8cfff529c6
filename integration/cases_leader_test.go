package integration

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// Cases about leaders of partitions that change, with what they lead.

// readLog has the values of a partition's records in the order in which their handling began, and when.
type readLog struct {
	mu   sync.Mutex
	list []readRecord
}

type readRecord struct {
	offset int64
	value  string
	at     time.Time
}

func (v *readLog) note(r *kafka.Record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if r.Partition == 0 {
		v.list = append(v.list, readRecord{r.Offset, string(r.Value), time.Now()})
	}
}

func (v *readLog) all() []readRecord {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]readRecord(nil), v.list...)
}

// of counts how often each value was begun.
func (v *readLog) of() map[string]int {
	counts := make(map[string]int)
	for _, r := range v.all() {
		counts[r.value]++
	}
	return counts
}

// What a member is doing when the log becomes shorter. held is the offset from which on it finishes nothing, until the
// truncation was told of.
type truncationCase struct {
	held int64
	// async holds by not acknowledging; fails by an error, and a long wait before the next try.
	async, fails bool
}

var truncations = map[string]truncationCase{
	"EverythingWasCommitted": {held: 100},
	"ARecordAboveIsHandled":  {held: 82},
	"AnotherAboveIsHandled":  {held: 87}, // one of the two is not the last of its delivery
	"ARecordBelowIsHandled":  {held: 50},
	"AcknowledgedTooLate":    {held: 85, async: true},
	"BelowAcknowledgedLate":  {held: 50, async: true},
	"ARecordBelowHasFailed":  {held: 77, fails: true},
	"ARecordAboveHasFailed":  {held: 86, fails: true},
}

// thomhurst/Dekaf#2258 and others (KIP-320): after an unclean election the consumer goes on as if nothing had been, and
// skips the new records below its position, or commits what is gone.
func TestB37_ATruncatedLogIsReadAgainFromWhereItAgrees(t *testing.T) {
	for order, option := range map[string]api.HandlerOption{"PartitionOrder": api.PartitionOrder(), "KeyOrder": api.KeyOrder(5), "Unordered": api.Unordered(5)} {
		for name, tt := range truncations {
			t.Run(order+"/"+name, func(t *testing.T) {
				story(t, func(t *testing.T, b *embeddedBroker) { truncation(t, b, option, tt) }, kafkatest.Brokers(3))
			})
		}
	}
}

func truncation(t *testing.T, b *embeddedBroker, option api.HandlerOption, tt truncationCase) {
	held := tt.held
	const agrees, oldEnd, newEnd = 80, 100, 90
	b.CreateTopic(t, "orders", 2)
	for _, node := range []int32{2, 1, 0} { // three elections: the log's epoch is 3
		require.NoError(t, b.Cluster().MoveTopicPartition("orders", 0, node))
	}
	require.NoError(t, b.Cluster().MoveTopicPartition("orders", 1, 1))
	var records []kafka.Record
	for offset := range int64(oldEnd) {
		records = append(records, kafka.Record{Key: fmt.Appendf(nil, "key %d", offset%5), Value: []byte(oldValue(offset))})
	}
	b.Produce(t, "orders", records...)
	epoch := b.Cluster().PartitionInfo("orders", 0).Epoch
	log := &truncatedLog{partition: 0, oldEpoch: epoch, newEpoch: epoch + 1, agrees: agrees, added: newEnd - agrees}
	log.serve(b)
	commits, values, release, late := tap(b, "billing", "orders"), &readLog{}, make(chan struct{}), &handles{}
	var freed atomic.Bool
	free := sync.OnceFunc(func() { freed.Store(true); close(release) })
	defer free()
	holds := func(r *kafka.Record) bool {
		return r.Partition == 0 && r.Offset >= held && !freed.Load() && string(r.Value) == oldValue(r.Offset)
	}
	part := api.Handle("orders", func(_ context.Context, r *kafka.Record) error {
		values.note(r)
		switch {
		case holds(r) && tt.fails:
			return errors.New("not yet")
		case holds(r):
			<-release
		}
		return nil
	}, option, api.MaxRecords(15), api.Restart(slowRestart()))
	if tt.async {
		part = api.HandleAsync("orders", func(_ context.Context, d *actors.RecordDelivery) {
			if values.note(d.Record()); holds(d.Record()) {
				late.hold(spotOf(d.Record()), d)
				return
			}
			_ = d.Ack()
		}, option, api.MaxRecords(15))
	}
	c := plain(b)
	c.DrainTimeout = time.Second
	m := spawn(t, c, api.WithDialer(b.Dial), part)
	eventually(t, 10*time.Second, "what is not held is committed", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == held })
	time.Sleep(time.Second) // it has fetched what there is, and waits for more

	log.elect()
	elected := time.Now()
	require.NoError(t, b.Cluster().MoveTopicPartition("orders", 0, 2))
	reset := tellsOf(t, m, 10*time.Second, func(e event.PositionReset) bool { return e.Reason == "truncated" })
	toldAt := time.Now()
	require.Equal(t, at("orders", 0), reset.TopicPartition)
	require.EqualValues(t, oldEnd, reset.From)
	if held >= agrees {
		require.EqualValues(t, agrees, reset.To)
	} else { // what was fetched and not delivered is asked for again
		require.LessOrEqual(t, reset.To, int64(agrees))
		require.GreaterOrEqual(t, reset.To, held)
	}
	time.Sleep(2 * time.Second)
	require.LessOrEqual(t, b.Committed(t, "billing")[at("orders", 0)], int64(newEnd), "nothing that is gone stays committed")
	free()
	for offset := held; offset < oldEnd; offset++ {
		if d := late.of(spot{at("orders", 0), offset}); d != nil {
			_ = d.Ack() // below the truncation it counts, above it changes nothing
		}
	}
	eventually(t, time.Minute, "the new records are committed", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == newEnd })
	time.Sleep(5 * time.Second)
	require.EqualValues(t, newEnd, b.Committed(t, "billing")[at("orders", 0)])
	for _, commit := range commits.list() {
		if commit.tp.Partition == 0 && commit.when.After(elected.Add(time.Second)) {
			assert.LessOrEqual(t, commit.offset, int64(newEnd), "committed %v after the election", commit.when.Sub(elected))
		}
	}
	counts := values.of()
	for offset := range int64(newEnd) {
		if offset < agrees {
			assert.Positive(t, counts[oldValue(offset)], "old record %d", offset)
			continue
		}
		assert.Equal(t, 1, counts[newValue(offset)], "new record %d", offset)
	}
	for _, r := range values.all() {
		assert.False(t, r.offset >= agrees && r.value == oldValue(r.offset) && r.at.After(toldAt), "%q was begun after the truncation was known", r.value)
	}
	require.Equal(t, 1, log.divergingAnswers(), "the leader has to say it once")
	require.Len(t, told[event.PositionReset](m), 3, "two starts, and the truncation")
	log.add(20)
	eventually(t, 10*time.Second, "it goes on", func() bool { return b.Committed(t, "billing")[at("orders", 0)] == newEnd+20 })
	require.EqualValues(t, 1, m.Stats().Rebalances)
	m.mustClose(t)
}

// FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH are about who leads, not about the position: ask who does, and try again.
func TestB37_AnEpochThatIsRefusedIsAskedForAgainAndTheOthersGoOn(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch} {
		for _, key := range []kmsg.Key{kmsg.Fetch, kmsg.ListOffsets} {
			t.Run(code.Message+"/"+key.Name(), func(t *testing.T) {
				story(t, func(t *testing.T, b *embeddedBroker) { epochRefused(t, b, code, key) }, kafkatest.Brokers(2))
			})
		}
	}
}

func epochRefused(t *testing.T, b *embeddedBroker, code *kerr.Error, key kmsg.Key) {
	b.CreateTopic(t, "orders", 2)
	n := fill(t, b, "orders", 2, 20)
	l := newLedger()
	asked := b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Observe: true, Count: -1})
	refuse := func(count int) *kfake.FaultHandle {
		return b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{key}, Topic: "orders", Partitions: []int32{0}, Err: code, Count: count})
	}
	refused := refuse(5)
	m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
	eventually(t, 5*time.Second, "the other partition is handled", func() bool { return len(l.of(at("orders", 1))) == 20 })
	eventually(t, 10*time.Second, "every record handled", func() bool { return l.distinct() == n })
	require.Equal(t, 5, refused.Hits())
	if key == kmsg.Fetch { // in the midst of it, and for longer
		before := asked.Hits()
		refused = refuse(-1)
		for range 10 {
			n += fill(t, b, "orders", 2, 1)
			time.Sleep(time.Second)
		}
		require.Len(t, l.of(at("orders", 1)), 30, "the other partition goes on")
		require.Len(t, l.of(at("orders", 0)), 20)
		require.Greater(t, asked.Hits(), before, "who leads is asked")
		require.Less(t, refused.Hits(), 60, "nobody is hammered")
		require.Less(t, asked.Hits()-before, 60, "nobody is hammered")
		require.NotEmpty(t, told[event.FetchFailed](m), "what does not heal is told")
		p, _ := m.partition(at("orders", 0))
		require.Equal(t, "waiting", p.Condition)
		refused.Remove()
		eventually(t, 12*time.Second, "every record handled", func() bool { return l.distinct() == n })
	}
	require.EqualValues(t, 1, m.Stats().Rebalances)
	m.mustClose(t)
	for _, e := range told[event.PositionReset](m) {
		require.Equal(t, "no_commit", e.Reason, "the position is not in doubt")
	}
	require.Empty(t, l.repeated())
	l.inOrder(t, tps("orders", 0, 1)...)
	require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
}
