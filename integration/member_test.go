package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

// patience is how long something that must happen may take on a machine that does much else.
const patience = 45 * time.Second

// eventually polls until a condition holds, and fails the test when it does not in time.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	if !waitFor(within, holds) {
		t.Fatalf("not within %v: %s", within, what)
	}
}

func waitFor(within time.Duration, holds func() bool) bool {
	const pollEvery = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return holds()
		}
	}
	return true
}

// pause lets time pass in which something must not happen.
func pause(d time.Duration) { waitFor(d, func() bool { return false }) }

// within reports whether a channel is closed, or sends, in time.
func within[T any](d time.Duration, done <-chan T) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// receive takes one value from a channel, and fails the test when none comes.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-from:
		return v
	case <-timer.C:
		t.Fatalf("nothing came within %v", patience)
		panic("unreachable")
	}
}

var nameCount atomic.Int64

// unique returns a name for a topic or a group of this test only, also on a cluster that outlives this run.
func unique(t *testing.T, kind string) string {
	t.Helper()
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())
	if len(clean) > 100 {
		clean = clean[len(clean)-100:]
	}
	return fmt.Sprintf("%s-%s-%d-%d", kind, clean, time.Now().UnixNano()%1e9, nameCount.Add(1))
}

// config is a group's configuration with times that suit tests: a change is noticed soon, a busy machine costs nothing.
func config(b broker, group string) api.Config {
	return api.Config{
		Brokers: b.Addrs(), GroupID: group,
		SessionTimeout: 15 * time.Second, HeartbeatInterval: 250 * time.Millisecond, RebalanceTimeout: 25 * time.Second,
		MetadataMaxAge: time.Second, Backoff: supervisor.Backoff{Initial: 50 * time.Millisecond, Max: time.Second},
	}
}

// quick is a restart policy that does not make a test wait.
func quick() supervisor.Policy {
	return supervisor.Policy{MaxRestarts: 1000, Backoff: supervisor.Backoff{Initial: 10 * time.Millisecond, Max: 50 * time.Millisecond}}
}

// slowRestart waits half a minute before it tries again.
func slowRestart() supervisor.Policy {
	return supervisor.Policy{MaxRestarts: 1000, Backoff: supervisor.Backoff{Initial: 30 * time.Second, Max: 30 * time.Second}}
}

// member is a consumer with the events it told.
type member struct {
	*api.Consumer
	events *eventLog
}

// spawn starts a consumer that is closed at the test's end, if it was not before.
func spawn(t *testing.T, config api.Config, parts ...api.Part) *member {
	t.Helper()
	m := &member{events: &eventLog{}}
	if login := logins.of(config.Brokers); login != nil {
		parts = append([]api.Part{login}, parts...)
	}
	var err error
	// An observer among the parts takes the place of the log's.
	m.Consumer, err = api.Spawn(context.Background(), config, append([]api.Part{api.WithObserver(m.events.add), api.WithObserverBuffer(1 << 14)}, parts...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("events of %s: %s", config.GroupID, m.events)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = m.Close(ctx)
	})
	return m
}

// joined waits until the member has an assignment.
func (m *member) joined(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for { // WaitJoined tells of trouble that passes, such as a coordinator that is not there yet
		err := m.WaitJoined(ctx)
		if err == nil {
			return
		}
		require.NoError(t, ctx.Err(), "not joined: %v", err)
		pause(20 * time.Millisecond)
	}
}

// mustClose closes the consumer and demands that everything was finished.
func (m *member) mustClose(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	require.NoError(t, m.Close(ctx))
}

// owned returns the partitions the member owns now.
func (m *member) owned() []kafka.TopicPartition {
	var out []kafka.TopicPartition
	for _, p := range m.Stats().Partitions {
		out = append(out, p.TopicPartition)
	}
	return out
}

// partition returns one owned partition's part of the member's stats.
func (m *member) partition(tp kafka.TopicPartition) (actors.PartitionStats, bool) {
	for _, p := range m.Stats().Partitions {
		if p.TopicPartition == tp {
			return p, true
		}
	}
	return actors.PartitionStats{}, false
}

// eventLog keeps events in order.
type eventLog struct {
	mu    sync.Mutex
	list  []event.Event
	times []time.Time // when each was told
}

func (l *eventLog) add(e event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list, l.times = append(l.list, e), append(l.times, time.Now())
}

// String lists the last events.
func (l *eventLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, e := range l.list[max(0, len(l.list)-60):] {
		fmt.Fprintf(&b, "\n\t%s %.400s", e.Name(), fmt.Sprintf("%+v", e))
	}
	return b.String()
}

// told returns the events of one type, in order.
func told[E event.Event](m *member) []E {
	m.events.mu.Lock()
	defer m.events.mu.Unlock()
	var out []E
	for _, e := range m.events.list {
		if e, ok := e.(E); ok {
			out = append(out, e)
		}
	}
	return out
}

// timed is an event and when it was told.
type timed[E event.Event] struct {
	event E
	at    time.Time
}

// toldWhen returns the events of one type with their times, in order.
func toldWhen[E event.Event](m *member) []timed[E] {
	m.events.mu.Lock()
	defer m.events.mu.Unlock()
	var out []timed[E]
	for i, e := range m.events.list {
		if e, ok := e.(E); ok {
			out = append(out, timed[E]{e, m.events.times[i]})
		}
	}
	return out
}

// tellsOf waits for an event that fits.
func tellsOf[E event.Event](t *testing.T, m *member, in time.Duration, fits func(E) bool) E {
	t.Helper()
	var found E
	eventually(t, in, fmt.Sprintf("an event %q that fits", found.Name()), func() bool {
		for _, e := range told[E](m) {
			if fits(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// allHandledIn waits until a number of records was handled, and tells how far each partition came if they are not.
func (m *member) allHandledIn(t *testing.T, within time.Duration, l *ledger, n int) {
	t.Helper()
	if !waitFor(within, func() bool { return l.distinct() == n }) {
		t.Fatalf("%d of %d records handled after %v: %+v", l.distinct(), n, within, m.Stats())
	}
}

// fill produces perPartition records to each of the partitions, a batch for each, and returns how many that are.
func fill(t *testing.T, b broker, topic string, partitions int32, perPartition int) int {
	t.Helper()
	records := numbered(partitions, perPartition)
	b.Produce(t, topic, records...)
	return len(records)
}

func numbered(partitions int32, perPartition int) []kafka.Record {
	var records []kafka.Record
	for p := range partitions {
		for i := range perPartition {
			records = append(records, kafka.Record{Partition: p, Value: fmt.Appendf(nil, "%d/%d", p, i)})
		}
	}
	return records
}

func tps(topic string, partitions ...int32) []kafka.TopicPartition {
	var out []kafka.TopicPartition
	for _, p := range partitions {
		out = append(out, kafka.TopicPartition{Topic: topic, Partition: p})
	}
	return out
}

func at(topic string, partition int32) kafka.TopicPartition {
	return kafka.TopicPartition{Topic: topic, Partition: partition}
}
