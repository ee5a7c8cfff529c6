package wire

import (
	"math/bits"
	"sync"
	"unsafe"

	"github.com/troupego/troupe/pkg/kafka"
)

const (
	// defaultMaxRecycledBytes is what a pool keeps at most when the configuration does not say: the answers and records
	// of a busy member between two deliveries. What comes back beyond that would only wait for its next use.
	defaultMaxRecycledBytes = 64 << 20
	// stepsPerOctave is how many size classes lie between a size and its double. A block is used for what is up to a class
	// smaller, so at most a quarter of it lies idle, and an eighth on average.
	stepsPerOctave = 8
	// sizeClasses is one more than the class of the largest block, of 2 GiB.
	sizeClasses = (31-3+2)*stepsPerOctave + 1
	// blockOverhead is the memory of a block without what it holds.
	blockOverhead = int(unsafe.Sizeof(block{}))
)

// The two kinds of memory a pool keeps.
const (
	kindBytes = iota
	kindRecords
	kinds
)

// pool keeps memory that was given back for its next use, no more than limit bytes of it. When there is too much, what was
// not used for the longest time goes to the garbage collector, so that a pool follows a load that changes. Unlike a
// sync.Pool it loses nothing at a collection, which is what it is there to avoid, and its size is known. It is safe for
// concurrent use. A nil pool keeps nothing.
type pool struct {
	// limit bounds held.
	limit int
	// poison is whether what is given back is overwritten.
	poison bool

	mu sync.Mutex
	// held is the memory of the blocks in the pool.
	held int
	// recycling is whether somebody gives records back. New blocks are rounded up only then: for those who keep theirs,
	// the rest would be wasted.
	recycling bool
	// shelves are the blocks in the pool by kind and size class, each shelf a stack.
	shelves [kinds][sizeClasses]*block
	// oldest and newest are the ends of all blocks in the pool, by when they came back.
	oldest, newest *block
}

// newPool returns a pool that keeps up to limit bytes.
func newPool(limit int, poison bool) *pool {
	return &pool{limit: limit, poison: poison || poisonAlways}
}

// sizeClass returns the largest class whose smallest size is not above size.
func sizeClass(size int) int {
	if size < stepsPerOctave {
		return max(size, 0)
	}
	octave := bits.Len(uint(size)) - 4 // the leading one and three bits after it make the class
	return min(octave*stepsPerOctave+size>>octave, sizeClasses-1)
}

// roundUp returns the smallest size of the lowest class that holds size.
func roundUp(size int) int {
	if size < stepsPerOctave {
		return size
	}
	step := bits.Len(uint(size)) - 4
	return (size + 1<<step - 1) >> step << step
}

// takeBytes returns n bytes of any content and the block they lie in, with one reference to it. A nil pool returns fresh
// bytes and a nil block.
func (p *pool) takeBytes(n int) ([]byte, *block) {
	if p == nil {
		return make([]byte, n), nil
	}
	b, size := p.take(kindBytes, n)
	if b == nil {
		b = &block{pool: p, size: size, bytes: make([]byte, n, size)}
	}
	b.bytes = b.bytes[:n]
	b.references.Store(1)
	return b.bytes, b
}

// takeRecords returns a block of n records of any content, with one reference to it.
func (p *pool) takeRecords(n int) *block {
	b, size := p.take(kindRecords, n)
	if b == nil {
		b = &block{pool: p, kind: kindRecords, size: size, records: make([]kafka.Record, n, size)}
	}
	b.records = b.records[:n]
	b.references.Store(1)
	return b
}

// adopt makes bytes that came from elsewhere a block of this pool, with one reference to it.
func (p *pool) adopt(bytes []byte) *block {
	b := &block{pool: p, size: cap(bytes), bytes: bytes}
	b.references.Store(1)
	return b
}

// take takes a block of at least n out of the pool, or returns nil and the size that a new one should have.
func (p *pool) take(kind, n int) (*block, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if kind == kindRecords {
		p.recycling = true
	}
	class := sizeClass(n)
	for _, b := range p.shelves[kind][class:min(class+2, sizeClasses)] {
		if b != nil && b.size >= n {
			p.unlink(b)
			return b, 0
		}
	}
	if p.recycling {
		n = roundUp(n)
	}
	return nil, n
}

// put takes a block that nobody refers to any more into the pool. One that would take most of the room is left to the
// garbage collector: it would push out everything else.
func (p *pool) put(b *block) {
	cost := b.cost()
	if cost > p.limit/2 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.held+cost > p.limit {
		p.unlink(p.oldest)
	}
	p.held += cost
	shelf := &p.shelves[b.kind][sizeClass(b.size)]
	b.below, b.above = *shelf, nil
	if b.below != nil {
		b.below.above = b
	}
	*shelf = b
	b.older, b.newer = p.newest, nil
	if b.older != nil {
		b.older.newer = b
	} else {
		p.oldest = b
	}
	p.newest = b
}

// unlink takes b out of its shelf and out of the order of age.
func (p *pool) unlink(b *block) {
	p.held -= b.cost()
	if b.below != nil {
		b.below.above = b.above
	}
	if b.above != nil {
		b.above.below = b.below
	} else {
		p.shelves[b.kind][sizeClass(b.size)] = b.below
	}
	if b.older != nil {
		b.older.newer = b.newer
	} else {
		p.oldest = b.newer
	}
	if b.newer != nil {
		b.newer.older = b.older
	} else {
		p.newest = b.older
	}
	b.below, b.above, b.older, b.newer = nil, nil, nil, nil
}
