package wire

import (
	"bytes"
	"sync/atomic"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

// block is memory with a count of who still reads it: the bytes of a fetch answer or of a decompressed batch, or the
// records of a slab together with a reference to the bytes that they alias. It implements buffer.Memory: each reference is
// given back with one call to Recycle, from any goroutine, and with the last one the block goes back to its pool. The block
// itself goes along, so that nothing is allocated for its next use. When a reference is not given back, all of it is left
// to the garbage collector.
//
// References are counted and not told apart: whoever gave one back must not do so again, since the block may be
// somebody else's by then.
type block struct {
	pool *pool
	// references is how many readers the block has; 0 in the pool.
	references atomic.Int32
	kind       int
	// size is the capacity of bytes or records.
	size    int
	bytes   []byte
	records []kafka.Record
	// beneath is memory that is given back with the block: what the records alias.
	beneath buffer.Memory

	// The block's neighbors in the pool.
	below, above, older, newer *block
}

var _ buffer.Memory = (*block)(nil)

// hold returns the block with one more reference to it. The caller has one already. A nil block stays nil.
func (b *block) hold() *block {
	if b != nil {
		b.references.Add(1)
	}
	return b
}

// Recycle gives one reference back. Nothing happens to a nil block.
func (b *block) Recycle() {
	if b == nil {
		return
	}
	switch left := b.references.Add(-1); {
	case left == 0:
		b.release()
	case left < 0 && b.pool != nil && b.pool.poison:
		panic("wire: memory was recycled twice")
	}
}

// release puts the block into its pool, in a state in which it keeps no other memory alive.
func (b *block) release() {
	if b.pool != nil && b.pool.poison {
		b.poison()
	} else {
		clear(b.records)
	}
	if beneath := b.beneath; beneath != nil {
		b.beneath = nil
		beneath.Recycle()
	}
	if b.pool != nil {
		b.pool.put(b)
	}
}

// cost is the memory that the block takes.
func (b *block) cost() int {
	if b.kind == kindRecords {
		return blockOverhead + b.size*recordSize
	}
	return blockOverhead + b.size
}

// What is read of memory that was recycled too early, when it is overwritten.
const (
	poisonByte   = 0xDB
	poisonOffset = -0xDEAD
	poisonTopic  = "recycled"
)

// poisonBytes is what recycled bytes are overwritten with, piece by piece, and what recycled records point to.
var poisonBytes = bytes.Repeat([]byte{poisonByte}, 4<<10)

// poison overwrites what the block's last user got of it.
func (b *block) poison() {
	for rest := b.bytes; len(rest) > 0; {
		rest = rest[copy(rest, poisonBytes):]
	}
	for i := range b.records {
		b.records[i] = kafka.Record{Topic: poisonTopic, Key: poisonBytes[:8:8], Value: poisonBytes[:8:8], Offset: poisonOffset,
			TimestampMillis: poisonOffset, Partition: -1, LeaderEpoch: kafka.NoLeaderEpoch}
	}
}
