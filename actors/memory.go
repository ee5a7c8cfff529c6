package actors

import (
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

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

// memory is the register of the member's byte budget. Fetches ask first and wait in turn; what came moves to the
// partition it is for, which gives it back when its records are delivered or dropped.
type memory struct {
	sys    *system
	mu     sync.Mutex
	budget *buffer.Budget[holder]
	asking map[holder]*actor.PID
}

func newMemory(sys *system, limit int64) *memory {
	return &memory{sys: sys, budget: buffer.NewBudget[holder](int(limit)), asking: make(map[holder]*actor.PID)}
}

// ask reserves between least and most bytes for a fetch and returns how many. When there is not even the least, or others
// wait already, it returns 0: then asker gets a memoryFreed when most is its own.
func (m *memory) ask(h holder, least, most int, asker *actor.PID) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	bytes := most
	if free := m.budget.Free(); m.budget.Waiting() == 0 && free >= least {
		bytes = min(most, free)
	}
	if m.budget.Ask(h, bytes) {
		return bytes
	}
	m.asking[h] = asker
	return 0
}

// adjust changes what a holder holds by delta, also above the limit: the bytes are there already.
func (m *memory) adjust(h holder, delta int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.granted(m.budget.Adjust(h, int(delta)))
}

// drop gives back all that a holder holds or waits for.
func (m *memory) drop(h holder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.asking, h)
	m.granted(m.budget.Drop(h))
}

func (m *memory) granted(grants []buffer.Grant[holder]) {
	for _, g := range grants {
		if pid := m.asking[g.Holder]; pid != nil {
			delete(m.asking, g.Holder)
			m.sys.root.Send(pid, &memoryFreed{})
		}
	}
}

// held is the bytes held now.
func (m *memory) held() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(m.budget.Held())
}

// has reports whether what a holder asked for is its own by now.
func (m *memory) has(h holder) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, waiting := m.asking[h]
	return !waiting
}
