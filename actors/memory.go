package actors

import (
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

// leastFetch is the least that a fetch goes out with, and the least that a partition asks for, in bytes: a producer's
// batch.size by default.
const leastFetch = 16 << 10

// holder is who holds bytes of the member's memory budget: a fetch on its way, or a partition's surplus.
type holder struct {
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch
	// broker and lane name a fetch; broker is -1 for a partition.
	broker int32
	lane   int
}

func partitionHolder(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) holder {
	return holder{tp: tp, epoch: epoch, broker: -1}
}

// memory is the register of the member's byte budget. One half of it is for what is compressed: fetches ask before they go
// out, and what came is counted by the partition it is for until it is decoded. The other half is for what is decoded:
// partitions ask before they decode, and count it until its delivery ended. Each half is handed out in turn. As neither
// half waits for the other, whatever was fetched can be decoded, however much else was fetched.
//
// Both halves may be exceeded by the last grant, and by a batch that turned out larger than was asked for.
type memory struct {
	sys *system
	mu  sync.Mutex
	// half is the bytes that are compressed at most, least those of the smallest fetch.
	half, least         int
	compressed, decoded *buffer.Budget[holder]
	// asking has who waits, granted what became theirs and they have not heard of. Who waits does so in one half: fetches
	// ask for compressed bytes, partitions for decoded ones.
	asking  map[holder]*actor.PID
	granted map[holder]int
	// partitions are those that share.
	partitions map[holder]struct{}
}

func newMemory(sys *system, limit int64) *memory {
	half := int(limit / 2)
	return &memory{
		sys: sys, half: half, least: min(leastFetch, max(half, 1)),
		compressed: buffer.NewBudget[holder](half), decoded: buffer.NewBudget[holder](int(limit) - half),
		asking: make(map[holder]*actor.PID), granted: make(map[holder]int), partitions: make(map[holder]struct{}),
	}
}

// join counts a partition among those that share, until it is dropped.
func (m *memory) join(h holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.partitions[h] = struct{}{}
}

// share is one partition's part of either half: what it may take on top of what it holds already. One that holds nothing is
// not bound by it.
func (m *memory) share() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(m.half/max(len(m.partitions), 1), min(2*maxChunks*m.least, m.half/4)) // no few partitions take it all
}

// fetch reserves at most most bytes for a fetch and returns how many, as many as are free but no fewer than the least
// fetch has. It returns 0 while nothing is free or others wait already: then asker gets a memoryFreed.
func (m *memory) fetch(h holder, most int, asker *actor.PID) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	least := min(m.least, most)
	if bytes := min(most, max(least, m.compressed.Free())); m.compressed.Try(h, bytes) {
		return bytes
	}
	m.compressed.Ask(h, least)
	m.asking[h] = asker
	return 0
}

// fetchGranted returns what a fetch that waited has now, at most most; 0 while it waits still.
func (m *memory) fetchGranted(h holder, most int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	bytes := m.granted[h]
	if bytes == 0 {
		return 0
	}
	delete(m.granted, h)
	more := min(most-bytes, m.compressed.Free())
	if more > 0 {
		m.compressed.Adjust(h, more)
		bytes += more
	}
	return bytes
}

// decode reserves bytes for a partition to decode into, and reports whether it may. While it may not it waits in line, and
// asker gets a memoryFreed; with a nil asker it does not wait.
func (m *memory) decode(h holder, bytes int, asker *actor.PID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.decoded.Try(h, bytes) {
		return true
	}
	if asker != nil {
		m.decoded.Ask(h, bytes)
		m.asking[h] = asker
	}
	return false
}

// decodeGranted returns what a partition that waited was granted; 0 while it waits still.
func (m *memory) decodeGranted(h holder) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	bytes := m.granted[h]
	delete(m.granted, h)
	return bytes
}

// leave gives up a partition's place in line, and what it was granted without having heard of it.
func (m *memory) leave(h holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.asking, h)
	m.wake(m.decoded.Withdraw(h))
	m.wake(m.decoded.Release(h, m.granted[h]))
	delete(m.granted, h)
}

// adjust changes what a partition holds, also above the limits: the bytes are there already.
func (m *memory) adjust(h holder, compressed, decoded int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wake(m.compressed.Adjust(h, compressed))
	m.wake(m.decoded.Adjust(h, decoded))
}

// drop gives back all that a holder holds or waits for. A partition does not share any more.
func (m *memory) drop(h holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.asking, h)
	delete(m.granted, h)
	delete(m.partitions, h)
	m.wake(m.compressed.Drop(h))
	m.wake(m.decoded.Drop(h))
}

// wake tells those that waited and got what they asked for.
func (m *memory) wake(grants []buffer.Grant[holder]) {
	for _, g := range grants {
		if pid := m.asking[g.Holder]; pid != nil {
			delete(m.asking, g.Holder)
			m.granted[g.Holder] = g.Bytes
			m.sys.root.Send(pid, &memoryFreed{})
		}
	}
}

// held is the bytes held now.
func (m *memory) held() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(m.compressed.Held() + m.decoded.Held())
}
