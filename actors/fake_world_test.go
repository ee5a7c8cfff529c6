package actors

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// treeWorld is one tree over a fake cluster in a bubble, and what its handlers and its observer saw.
type treeWorld struct {
	t        *testing.T
	c        *fakeCluster
	tree     *Tree
	settings Settings

	// handle is what the handler does with a record; nil acknowledges at once.
	handle func(ctx context.Context, r *kafka.Record) error

	mu      sync.Mutex
	events  []event.Event
	handled map[kafka.TopicPartition][]int64
	running map[kafka.TopicPartition]int
	most    int
	now     int
	broken  []string
}

// inTree runs f with a world that has a cluster of one broker; f calls start. At its end the tree must be able to close, and
// nothing may be left of it. No two handlers may ever have been inside of one partition.
func inTree(t *testing.T, f func(w *treeWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &treeWorld{
			t: t, c: newFakeCluster(1), handled: make(map[kafka.TopicPartition][]int64), running: make(map[kafka.TopicPartition]int),
		}
		restart := supervisor.Policy{MaxRestarts: 3, Backoff: supervisor.Backoff{Initial: 100 * time.Millisecond, Max: time.Second}}
		tree := supervisor.Policy{OnSpent: supervisor.StopAll}
		w.settings = Settings{
			GroupID: "billing", SessionTimeout: 10 * time.Second, HeartbeatInterval: time.Second, RebalanceTimeout: 30 * time.Second,
			DrainTimeout: 10 * time.Second, CloseTimeout: 20 * time.Second, TokenTimeout: time.Minute, Assignors: []rebalance.Assignor{rebalance.Range()},
			MaxInTransit: 100, ResumeBelow: 50, MemoryBudget: 1 << 20, FetchMinBytes: 1,
			FetchMaxBytes: 1 << 16, PartitionMaxBytes: 1 << 12, MaxBatchBytes: 1 << 20, FetchMaxWait: 500 * time.Millisecond,
			MetadataMaxAge: time.Minute, Backoff: supervisor.Backoff{Initial: 100 * time.Millisecond, Max: time.Second},
			TreeRestart: tree.WithDefaults(), Seed: 1,
			Registrations: []Registration{{Topics: []string{"orders"}, Record: w.record, MaxRecords: 5, Restart: restart.WithDefaults()}},
		}
		f(w)
		if w.tree != nil {
			w.end()
		}
	})
}

func (w *treeWorld) end() {
	w.c.with(func() { w.c.frozen = false })
	_ = w.tree.Close(context.Background())
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	assert.Empty(w.t, w.tree.shared.sys.alive(), "actors left")
	assert.Empty(w.t, w.tree.shared.gates.running(), "handlers left")
	assert.Zero(w.t, w.tree.shared.memory.held(), "memory left")
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Empty(w.t, w.broken, "two handlers at once")
}

func (w *treeWorld) start() {
	w.tree = SpawnTree(w.settings, Deps{Network: w.c, Logger: zap.NewNop(), Observe: w.observe})
}

func (w *treeWorld) observe(e event.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// record is the handler: it checks G2, calls handle, and notes what was done.
func (w *treeWorld) record(ctx context.Context, r *kafka.Record) error {
	tp := r.TopicPartition()
	defer w.enter(tp, r.Offset)()
	w.mu.Lock()
	handle := w.handle
	w.mu.Unlock()
	if handle != nil {
		if err := handle(ctx, r); err != nil {
			return err
		}
	}
	w.note(tp, r.Offset)
	return nil
}

func (w *treeWorld) note(tp kafka.TopicPartition, offset int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handled[tp] = append(w.handled[tp], offset)
}

func (w *treeWorld) enter(tp kafka.TopicPartition, offset int64) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[tp]++
	w.now++
	w.most = max(w.most, w.now)
	if w.running[tp] > 1 {
		w.broken = append(w.broken, fmt.Sprintf("%s at %d", tp, offset))
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running[tp]--
		w.now--
	}
}

func (w *treeWorld) setHandle(f func(ctx context.Context, r *kafka.Record) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handle = f
}

// offsets returns the offsets handled without an error, in order of handling.
func (w *treeWorld) offsets(tp kafka.TopicPartition) []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.handled[tp])
}

// sleep lets virtual time pass until everything is idle.
func (w *treeWorld) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// eventsOf returns the events of one type so far.
func eventsOf[E event.Event](w *treeWorld) []E {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []E
	for _, e := range w.events {
		if typed, ok := e.(E); ok {
			out = append(out, typed)
		}
	}
	return out
}

func (w *treeWorld) restarted(actor string) int {
	n := 0
	for _, e := range eventsOf[event.ActorRestarted](w) {
		if e.Actor == actor {
			n++
		}
	}
	return n
}

func (w *treeWorld) state() string { return w.tree.Stats().State }

func at(partition int32) kafka.TopicPartition {
	return kafka.TopicPartition{Topic: "orders", Partition: partition}
}

// upTo returns from, from+1 ... to-1.
func upTo(from, to int64) []int64 {
	var out []int64
	for ; from < to; from++ {
		out = append(out, from)
	}
	return out
}

// distinct returns the distinct offsets in order.
func distinct(offsets []int64) []int64 {
	out := slices.Clone(offsets)
	slices.Sort(out)
	return slices.Compact(out)
}

// index is where the journal first has a line, -1 for nowhere.
func index(lines []string, line string) int { return slices.Index(lines, line) }
