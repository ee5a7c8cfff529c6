package buffer

import (
	"errors"
	"fmt"

	"github.com/troupego/troupe/pkg/kafka"
)

// ErrNoChunk is returned by [Surplus.Decoded] when no chunk is being decoded.
var ErrNoChunk = errors.New("buffer: no chunk to decode")

// chunk is one part of a fetch answer, still compressed. bytes is what of it still counts.
type chunk[C any] struct {
	content C
	bytes   int
}

// slab is the records of one batch that were not taken, next the position behind the batch. lease is nil when its memory
// is left to the garbage collector.
type slab struct {
	records []kafka.Record
	next    int64
	bytes   int
	lease   *Lease
}

// Surplus holds what one partition received and has not delivered, in offset order: chunks that are still compressed, and
// behind the cursor the records of those that were decoded (KIP-41: what one delivery leaves over is kept for the next
// one and never fetched twice). C is the chunk's type, which it never looks into.
//
// The way through it: Push a chunk; when NeedsDecode, decode one batch of Front and give it to Decoded, or call Finish
// when the chunk holds no further batch; Take records. Bytes are counted compressed until decoded, then decompressed,
// never both.
//
// Invariants (checked by Valid): no slab is without records; the bytes counted are those of chunks and slabs; position
// never falls.
type Surplus[C any] struct {
	chunks   []chunk[C]
	slabs    []slab
	closes   func(C)
	position int64
	count    int
	// compressed is the bytes of chunks, decoded those of slabs.
	compressed, decoded int
}

// NewSurplus returns an empty surplus; position is the next offset to deliver. Drop calls closes with each chunk it lets
// go; nil for nothing to do.
func NewSurplus[C any](position int64, closes func(C)) *Surplus[C] {
	return &Surplus[C]{position: position, closes: closes}
}

// Push adds a chunk of that many compressed bytes behind all others.
func (s *Surplus[C]) Push(content C, bytes int) {
	bytes = max(bytes, 0)
	s.chunks = append(s.chunks, chunk[C]{content: content, bytes: bytes})
	s.compressed += bytes
}

// NeedsDecode reports whether no record is ready and a chunk is waiting.
func (s *Surplus[C]) NeedsDecode() bool { return s.count == 0 && len(s.chunks) > 0 }

// Front returns the chunk to decode next, and whether there is one.
func (s *Surplus[C]) Front() (content C, ok bool) {
	if len(s.chunks) == 0 {
		return content, false
	}
	return s.chunks[0].content, true
}

// FrontBytes returns what still counts of the chunk to decode next.
func (s *Surplus[C]) FrontBytes() int {
	if len(s.chunks) == 0 {
		return 0
	}
	return s.chunks[0].bytes
}

// Decoded adds one decoded batch of the front chunk: its records, which may be none (a control batch, or one emptied by
// compaction), the offset after the batch, its decompressed bytes, and the compressed bytes of the chunk it came from
// (0 when that is not known: they count until Finish). memory is what the records lie in, nil for the garbage collector's;
// it is recycled by the slab's [Lease], and at once when there are no records.
func (s *Surplus[C]) Decoded(records []kafka.Record, next int64, bytes, consumed int, memory Memory) error {
	if len(s.chunks) == 0 {
		return ErrNoChunk
	}
	front := &s.chunks[0]
	consumed = min(max(consumed, 0), front.bytes)
	front.bytes -= consumed
	s.compressed -= consumed
	lease := newLease(memory)
	if len(records) > 0 {
		bytes = max(bytes, 0)
		s.slabs = append(s.slabs, slab{records: records, next: next, bytes: bytes, lease: lease})
		s.count += len(records)
		s.decoded += bytes
		return nil
	}
	lease.end()
	if last := len(s.slabs) - 1; last >= 0 {
		s.slabs[last].next = max(s.slabs[last].next, next)
	} else {
		s.position = max(s.position, next)
	}
	return nil
}

// Finish ends the front chunk: no further batch is in it.
func (s *Surplus[C]) Finish() {
	if len(s.chunks) == 0 {
		return
	}
	s.compressed -= s.chunks[0].bytes
	s.chunks = pop(s.chunks)
}

// pop drops the first element. The memory is reused, and what was dropped is not kept alive.
func pop[E any](queue []E) []E {
	rest := copy(queue, queue[1:])
	clear(queue[rest:])
	return queue[:rest]
}

// Take returns at most limit records, those next in order, out of one slab and without copying; nil when none is ready. A
// slab larger than limit is taken in even parts.
// Appending to them never reaches the records left. lease is a hold on the slab's memory, for the taker to release when
// nobody reads these records any more; nil when the memory is not recycled. freed is the slab's bytes when these are its
// last records, else 0: from then on the slab is the taker's alone.
func (s *Surplus[C]) Take(limit int) (records []kafka.Record, lease *Lease, freed int) {
	if len(s.slabs) == 0 || limit <= 0 {
		return nil, nil, 0
	}
	front := &s.slabs[0]
	n := len(front.records)
	if parts := (n + limit - 1) / limit; parts > 1 {
		n = (n + parts - 1) / parts // even parts, so that the last one is not a crumb
	}
	records, lease = front.records[:n:n], front.lease
	lease.hold()
	s.count -= n
	if n < len(front.records) {
		front.records = front.records[n:]
		s.position = records[n-1].Offset + 1
		return records, lease, 0
	}
	freed = front.bytes
	s.decoded -= freed
	lease.end()
	s.position = max(s.position, front.next, records[n-1].Offset+1)
	s.slabs = pop(s.slabs)
	return records, lease, freed
}

// Position returns the next offset to deliver: behind the last record taken, and behind the markers and empty batches
// that follow it.
func (s *Surplus[C]) Position() int64 { return s.position }

// Len returns the number of records ready to be taken.
func (s *Surplus[C]) Len() int { return s.count }

// Bytes returns the bytes held, of compressed chunks and of decoded slabs. A slab counts as a whole until its last records
// are taken.
func (s *Surplus[C]) Bytes() (compressed, decoded int) { return s.compressed, s.decoded }

// Empty reports whether nothing is held at all.
func (s *Surplus[C]) Empty() bool { return len(s.slabs) == 0 && len(s.chunks) == 0 }

// Drop lets everything go and returns its bytes: chunks are closed, and the memory of slabs is recycled, now or when what
// was taken of them is released. The position stays.
func (s *Surplus[C]) Drop() (freed int) {
	freed = s.compressed + s.decoded
	if s.closes != nil {
		for _, c := range s.chunks {
			s.closes(c.content)
		}
	}
	for _, b := range s.slabs {
		b.lease.end()
	}
	clear(s.chunks)
	clear(s.slabs)
	s.chunks, s.slabs, s.count, s.compressed, s.decoded = s.chunks[:0], s.slabs[:0], 0, 0, 0
	return freed
}

// Valid checks the invariants named at the type.
func (s *Surplus[C]) Valid() error {
	count, compressed, decoded := 0, 0, 0
	for _, c := range s.chunks {
		compressed += c.bytes
	}
	for _, b := range s.slabs {
		if len(b.records) == 0 {
			return errors.New("buffer: a slab without records")
		}
		count += len(b.records)
		decoded += b.bytes
	}
	if count != s.count || compressed != s.compressed || decoded != s.decoded {
		return fmt.Errorf("buffer: %d records of %d bytes and %d compressed counted, %d, %d and %d held",
			s.count, s.decoded, s.compressed, count, decoded, compressed)
	}
	return nil
}
