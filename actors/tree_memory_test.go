package actors

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/kafka"
)

// blockable is a handler that stands still in the partitions that are blocked.
type blockable struct {
	mu      sync.Mutex
	blocked map[int32]chan struct{}
	entered []int32
}

func newBlockable(partitions ...int32) *blockable {
	b := &blockable{blocked: make(map[int32]chan struct{})}
	for _, p := range partitions {
		b.blocked[p] = make(chan struct{})
	}
	return b
}

func (b *blockable) handle(_ context.Context, r *kafka.Record) error {
	b.mu.Lock()
	if !slices.Contains(b.entered, r.Partition) {
		b.entered = append(b.entered, r.Partition)
	}
	wait := b.blocked[r.Partition]
	b.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return nil
}

func (b *blockable) release(p int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.blocked[p])
	delete(b.blocked, p)
}

// order is the partitions whose handler was called, in the order of the first calls.
func (b *blockable) order() []int32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.entered)
}

// inflating is the fake cluster with batches that take batchBytes when they are decoded. Their readers say so when known.
type inflating struct {
	*fakeCluster
	batchBytes func(partition int32) int
	known      bool
	// open counts the readers that were neither closed nor read to their end.
	open atomic.Int64
}

// inflatingReader is one of its readers.
type inflatingReader struct {
	ChunkReader
	n         *inflating
	partition int32
	left      int
	done      bool
}

func (n *inflating) Decode(chunk Chunk) ChunkReader {
	n.open.Add(1)
	return &inflatingReader{ChunkReader: n.fakeCluster.Decode(chunk), n: n, partition: chunk.TopicPartition.Partition, left: len(chunk.Data)}
}

func (r *inflatingReader) Next(from int64) (Slab, error) {
	slab, err := r.ChunkReader.Next(from)
	r.left -= slab.Consumed
	if len(slab.Records) > 0 {
		slab.Bytes = r.n.batchBytes(r.partition)
	}
	if err != nil {
		r.Close()
	}
	return slab, err
}

func (r *inflatingReader) NextBytes() int {
	if r.n.known && r.left > 0 {
		return r.n.batchBytes(r.partition)
	}
	return 0
}

func (r *inflatingReader) Close() {
	if !r.done {
		r.done = true
		r.n.open.Add(-1)
	}
}

// inflated runs f with a world whose batches of five records take batchBytes each. At the end every reader must be closed.
func inflated(t *testing.T, known bool, batchBytes func(partition int32) int, f func(w *treeWorld, start func())) {
	t.Helper()
	var n *inflating
	inTree(t, func(w *treeWorld) {
		n = &inflating{fakeCluster: w.c, batchBytes: batchBytes, known: known}
		f(w, func() { w.tree = SpawnTree(w.settings, Deps{Network: n, Logger: zap.NewNop(), Observe: w.observe}) })
	})
	assert.Zero(t, n.open.Load(), "readers left")
}

// each is the size of all batches.
func each(bytes int) func(int32) int { return func(int32) int { return bytes } }

// decoded is how many decoded bytes are held, and how many partitions wait for some.
func (w *treeWorld) decoded() (held, waiting int) {
	m := w.tree.shared.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.decoded.Held(), m.decoded.Waiting()
}

// eachWay runs a test with readers that know what a batch takes, and with readers that do not.
func eachWay(t *testing.T, test func(t *testing.T, known bool)) {
	t.Helper()
	t.Run("KnownSizes", func(t *testing.T) { test(t, true) })
	t.Run("UnknownSizes", func(t *testing.T) { test(t, false) })
}

func TestTree_BlockedPartitionsNeverStarveAHealthyOne(t *testing.T) {
	eachWay(t, func(t *testing.T, known bool) {
		inflated(t, known, each(8000), func(w *treeWorld, start func()) {
			const partitions, healthy = 7, 3
			w.c.topic("orders", partitions, 50)
			w.settings.MemoryBudget = 100_000 // six blocked batches fit into half of it
			b := newBlockable(0, 1, 2, 4, 5, 6)
			w.setHandle(b.handle)
			start()
			w.sleep(3 * time.Second)
			assert.Equal(t, upTo(0, 50), w.offsets(at(healthy)))
			w.c.produce(at(healthy), 100)
			w.sleep(3 * time.Second)
			assert.Equal(t, upTo(0, 150), w.offsets(at(healthy)))
			for p := range b.blocked {
				b.release(p)
			}
			w.sleep(10 * time.Second)
			for p := range int32(partitions) {
				assert.Subset(t, w.offsets(at(p)), upTo(0, 50), "partition %d", p)
			}
		})
	})
}

func TestTree_BatchesLargerThanTheBudgetPassOneAtATime(t *testing.T) {
	eachWay(t, func(t *testing.T, known bool) {
		inflated(t, known, each(40_000), func(w *treeWorld, start func()) {
			w.c.topic("orders", 3, 30)
			w.settings.MemoryBudget = 60_000 // half of it is less than a batch
			b := newBlockable(0, 1, 2)
			w.setHandle(b.handle)
			start()
			for n := range 3 {
				w.sleep(5 * time.Second)
				assert.Len(t, b.order(), n+1)
				held, waiting := w.decoded()
				assert.Equal(t, []int{40_000, 2}, []int{held, max(waiting, n)})
				b.release(b.order()[n])
			}
			w.sleep(10 * time.Second)
			for p := range int32(3) {
				assert.Equal(t, upTo(0, 30), w.offsets(at(p)), "partition %d", p)
			}
		})
	})
}

func TestTree_APartitionThatHoldsLittleForEverHoldsUpNoBatchLargerThanTheBudget(t *testing.T) {
	sizes := func(partition int32) int {
		if partition == 1 {
			return 1000
		}
		return 40_000
	}
	eachWay(t, func(t *testing.T, known bool) {
		inflated(t, known, sizes, func(w *treeWorld, start func()) {
			w.c.topic("orders", 3, 30)
			w.settings.MemoryBudget = 60_000
			b := newBlockable(1)
			w.setHandle(b.handle)
			start()
			w.sleep(10 * time.Second)
			assert.Equal(t, upTo(0, 30), w.offsets(at(0)))
			assert.Equal(t, upTo(0, 30), w.offsets(at(2)))
			b.release(1)
			w.sleep(10 * time.Second)
			assert.Equal(t, upTo(0, 30), w.offsets(at(1)))
		})
	})
}

func TestTree_DecodedMemoryStaysWithinTheBudgetAndIsHandedOutInTurn(t *testing.T) {
	inflated(t, true, each(10_000), func(w *treeWorld, start func()) {
		const partitions = 9
		w.c.topic("orders", partitions, 20)
		w.settings.MemoryBudget = 60_000 // three batches decoded
		all := make([]int32, partitions)
		for p := range all {
			all[p] = int32(p)
		}
		b := newBlockable(all...)
		w.setHandle(b.handle)
		start()
		w.sleep(3 * time.Second)
		assert.Len(t, b.order(), 3)
		first := b.order()
		held, waiting := w.decoded()
		assert.Equal(t, []int{30_000, partitions - 3}, []int{held, waiting})
		b.release(first[0])
		w.sleep(3 * time.Second)
		assert.Len(t, b.order(), 4, "the next in line, and not the one that was just served")
		assert.Len(t, w.offsets(at(first[0])), 5, "which waits behind all others")
		for len(b.order()) > 0 && len(b.blocked) > 0 {
			for _, p := range b.order() {
				if b.blocked[p] != nil {
					b.release(p)
				}
			}
			w.sleep(time.Second)
		}
		w.sleep(10 * time.Second)
		for p := range int32(partitions) {
			assert.Equal(t, upTo(0, 20), w.offsets(at(p)))
		}
	})
}

func TestTree_ARevokeWhileWaitingGivesThePlaceBack(t *testing.T) {
	inflated(t, true, each(10_000), func(w *treeWorld, start func()) {
		w.c.topic("orders", 4, 20)
		w.settings.MemoryBudget = 20_000 // one batch decoded
		b := newBlockable(0, 1, 2, 3)
		w.setHandle(b.handle)
		start()
		w.sleep(2 * time.Second)
		assert.Len(t, b.order(), 1)
		held, waiting := w.decoded()
		assert.Equal(t, []int{10_000, 3}, []int{held, waiting})
		w.c.rival(true) // takes half of the partitions
		w.sleep(2 * time.Second)
		_, waiting = w.decoded()
		assert.Zero(t, waiting, "an eager rebalance takes them all")
		for _, p := range []int32{0, 1, 2, 3} {
			b.release(p)
		}
		w.sleep(30 * time.Second)
		owned := w.tree.Stats().Partitions
		assert.Len(t, owned, 2)
		for _, s := range owned {
			assert.Equal(t, upTo(0, 20), distinct(w.offsets(s.TopicPartition)))
		}
		held, waiting = w.decoded()
		assert.Equal(t, []int{0, 0}, []int{held, waiting})
	})
}
