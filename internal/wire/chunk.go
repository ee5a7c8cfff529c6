package wire

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"unsafe"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

const (
	// defaultMaxBatchBytes is the cap on a decompressed batch when the chunk has none.
	defaultMaxBatchBytes = 64 << 20
	// maxSlabRecords bounds the records of one slab. A Record value is larger than the smallest record on the wire by
	// far, so without it a small batch of many empty records would take many times the cap in memory.
	maxSlabRecords = 8192
	// recordSize is the memory of one kafka.Record without what it points to.
	recordSize = int(unsafe.Sizeof(kafka.Record{}))
)

// chunkReader implements actors.ChunkReader.
//
// A batch goes through these steps: its length and magic are looked at in place; its checksum is checked; a control batch
// or one of an aborted transaction ends there; its records are decompressed, into a buffer of their own, or left where
// they lie; the records become a slab whose keys, values and headers alias that buffer. A batch of more than
// maxSlabRecords records comes as several slabs, one per call.
//
// With Recycle, the decompressed bytes and the records lie in blocks of the pool. The reader has a reference to the bytes
// it reads, each slab one to the bytes it aliases: the body of its batch, or the chunk's buffer. Slabs may be recycled from
// other goroutines while the reader goes on.
type chunkReader struct {
	chunk      actors.Chunk
	decompress *decompressors
	// memory is where bodies and records come from; nil without Recycle.
	memory *pool
	// source is the memory that the chunk lies in, as long as the reader has its reference to it.
	source *block
	// rest is what was not looked at yet.
	rest []byte
	// read is whether a whole batch was read.
	read bool
	// err is returned by every further call.
	err error

	// aborted is the aborted transactions that were not met yet, by first offset.
	aborted []actors.AbortedTransaction
	// aborting is the producers whose transaction, aborted later on, covers the current position.
	aborting []int64

	// The batch that is being read: its header, the records not handed out yet, the memory they lie in, their number, and
	// the offset delta of the last one handed out.
	header    batchHeader
	body      []byte
	bodyHeld  *block
	left      int
	lastDelta int64
	// slab is the records that are being filled in.
	slab *block
}

// newChunkReader returns a reader over chunk. Its blocks come from memory when the chunk has Recycle.
func newChunkReader(chunk actors.Chunk, decompress *decompressors, memory *pool) *chunkReader {
	if chunk.MaxBatchBytes <= 0 {
		chunk.MaxBatchBytes = defaultMaxBatchBytes
	}
	r := &chunkReader{chunk: chunk, decompress: decompress, rest: chunk.Data}
	if chunk.Recycle && memory != nil {
		r.memory, r.source = memory, sourceOf(chunk.Buffer)
	}
	if chunk.Isolation == kafka.ReadCommitted && len(chunk.Aborted) > 0 {
		r.aborted = slices.Clone(chunk.Aborted)
		slices.SortFunc(r.aborted, func(a, b actors.AbortedTransaction) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	}
	return r
}

// sourceOf returns the block that a chunk's buffer is, or one that stands for it.
func sourceOf(memory buffer.Memory) *block {
	if b, ours := memory.(*block); ours || memory == nil {
		return b
	}
	b := &block{beneath: memory}
	b.references.Store(1)
	return b
}

// Next implements actors.ChunkReader.
func (r *chunkReader) Next(from int64) (actors.Slab, error) {
	if r.err != nil {
		return actors.Slab{}, r.err
	}
	consumed := 0
	if r.left == 0 {
		batch, err := r.cutBatch()
		if err != nil {
			return r.fail(err)
		}
		consumed = len(batch)
		deliver, err := r.openBatch(batch, from)
		if err != nil {
			return r.fail(r.batchError(r.header.baseOffset, r.header.lastOffset, err))
		}
		if !deliver {
			r.closeBatch()
			return actors.Slab{NextOffset: r.header.lastOffset + 1, LeaderEpoch: r.header.leaderEpoch, Consumed: consumed}, nil
		}
	}
	slab, err := r.readSlab(from)
	if err != nil {
		return r.fail(r.batchError(r.header.baseOffset, r.header.lastOffset, err))
	}
	slab.Consumed = consumed
	if r.slab != nil {
		r.slab.records, r.slab.beneath = r.slab.records[:len(slab.Records)], memoryOf(r.bodyHeld.hold())
		slab.Memory, r.slab = r.slab, nil
	}
	if r.left == 0 {
		r.closeBatch()
	}
	return slab, nil
}

// memoryOf is b as what lies beneath a slab; nil stays nil.
func memoryOf(b *block) buffer.Memory {
	if b == nil {
		return nil
	}
	return b
}

// NextBytes implements actors.ChunkReader. It costs a look at the headers of the batch's blocks, no more.
func (r *chunkReader) NextBytes() int {
	if r.left > 0 {
		return slabBytes(len(r.body), r.left)
	}
	return nextBytes(&r.chunk, r.rest)
}

// Close implements actors.ChunkReader.
func (r *chunkReader) Close() {
	if r.err == nil {
		_, _ = r.fail(io.EOF)
	}
}

// fail makes err the answer to this and every further call and lets go of the bytes. Slabs handed out before keep theirs.
func (r *chunkReader) fail(err error) (actors.Slab, error) {
	r.err = err
	r.closeBatch()
	r.slab.Recycle()
	r.source.Recycle()
	r.slab, r.source, r.rest, r.chunk.Data, r.chunk.Buffer = nil, nil, nil, nil, nil
	return actors.Slab{}, err
}

// closeBatch lets go of the batch that is being read.
func (r *chunkReader) closeBatch() {
	r.bodyHeld.Recycle()
	r.body, r.bodyHeld, r.left = nil, nil, 0
}

func (r *chunkReader) batchError(base, last int64, err error) error {
	return &kafka.BatchError{TopicPartition: r.chunk.TopicPartition, BaseOffset: base, LastOffset: last, Err: err}
}

// cutBatch splits the next whole v2 batch off rest. It returns io.EOF at the end of the chunk.
func (r *chunkReader) cutBatch() ([]byte, error) {
	b := r.rest
	if len(b) == 0 {
		return nil, io.EOF
	}
	if len(b) < batchLengthEnd {
		return nil, r.cutOff(batchRecords)
	}
	base := int64(binary.BigEndian.Uint64(b[batchBaseOffset:]))
	length := int64(int32(binary.BigEndian.Uint32(b[batchLength:])))
	// The magic of every format lies at the same place, so the oldest ones are recognized, and are no shorter than that.
	if length < batchMagic+1-batchLengthEnd {
		return nil, r.batchError(base, kafka.NoOffset, fmt.Errorf("%w: batch length %d", kafka.ErrCorruptBatch, length))
	}
	size := length + batchLengthEnd
	if len(b) > batchMagic && b[batchMagic] != 2 {
		return nil, r.batchError(base, kafka.NoOffset, fmt.Errorf("%w: magic %d", kafka.ErrUnsupportedMagic, int8(b[batchMagic])))
	}
	if size < batchRecords {
		return nil, r.batchError(base, kafka.NoOffset, fmt.Errorf("%w: batch length %d", kafka.ErrCorruptBatch, length))
	}
	if size > int64(len(b)) {
		if !r.read && size-batchRecords > int64(r.chunk.MaxBatchBytes) {
			return nil, r.batchError(base, kafka.NoOffset, fmt.Errorf("%w: %d bytes, at most %d are read",
				kafka.ErrBatchTooLarge, size, r.chunk.MaxBatchBytes))
		}
		return nil, r.cutOff(int(size))
	}
	r.rest, r.read = b[size:], true
	return b[:size:size], nil
}

// cutOff is the answer when the chunk ends inside a batch of need bytes.
func (r *chunkReader) cutOff(need int) error {
	if r.read {
		return io.EOF
	}
	return &kafka.PartialBatchError{TopicPartition: r.chunk.TopicPartition, Need: need}
}

// openBatch reads the header of batch and makes its records ready to be handed out. It reports false for a batch whose
// records are not to be delivered; the batch was checked all the same.
func (r *chunkReader) openBatch(batch []byte, from int64) (deliver bool, err error) {
	r.header.baseOffset, r.header.lastOffset = int64(binary.BigEndian.Uint64(batch)), kafka.NoOffset
	h, err := parseHeader(batch)
	r.header = h
	if err != nil {
		return false, err
	}
	skip := r.skipAborted()
	payload := batch[batchRecords:]
	if h.control() {
		return false, r.readMarker(payload)
	}
	if skip || h.lastOffset < from {
		return false, nil
	}
	if r.body, r.bodyHeld, err = r.open(payload); err != nil {
		return false, err
	}
	r.left, r.lastDelta = int(h.recordCount), -1
	if r.left > len(r.body)/minRecordSize {
		return false, fmt.Errorf("%w: %d records in %d bytes", kafka.ErrCorruptBatch, r.left, len(r.body))
	}
	if r.left == 0 {
		return false, r.checkEnd()
	}
	return true, nil
}

// open returns the decompressed records and the block they lie in, with one reference to it; no block without Recycle.
func (r *chunkReader) open(payload []byte) ([]byte, *block, error) {
	codec := r.header.codec()
	if codec != codecNone && (len(payload) > 0 || r.header.recordCount > 0) {
		return r.decompress.inflate(codec, payload, r.chunk.MaxBatchBytes, r.memory)
	}
	if len(payload) > r.chunk.MaxBatchBytes {
		return nil, nil, fmt.Errorf("%w: %d bytes, at most %d are read", kafka.ErrBatchTooLarge, len(payload), r.chunk.MaxBatchBytes)
	}
	return payload, r.source.hold(), nil
}

// checkEnd checks that nothing follows the last record of the batch.
func (r *chunkReader) checkEnd() error {
	if len(r.body) > 0 {
		return fmt.Errorf("%w: %d bytes left after the last record", kafka.ErrCorruptBatch, len(r.body))
	}
	return nil
}

// skipAborted moves the list of aborted transactions on to the current batch and reports whether the batch belongs to one
// of them.
func (r *chunkReader) skipAborted() bool {
	for len(r.aborted) > 0 && r.aborted[0].FirstOffset <= r.header.lastOffset {
		if id := r.aborted[0].ProducerID; !slices.Contains(r.aborting, id) {
			r.aborting = append(r.aborting, id)
		}
		r.aborted = r.aborted[1:]
	}
	return r.header.transactional() && slices.Contains(r.aborting, r.header.producerID)
}

// readMarker reads a control batch. An abort marker ends the aborted transaction of its producer; every other control
// record means nothing to a consumer.
func (r *chunkReader) readMarker(payload []byte) error {
	if len(r.aborting) == 0 || r.header.recordCount == 0 {
		return nil
	}
	body, held, err := r.open(payload)
	if err != nil {
		return err
	}
	defer held.Recycle()
	var f recordFields
	if _, wrong := parseRecord(body, &f); wrong != recordGood {
		return fmt.Errorf("%w: control record: %s", kafka.ErrCorruptBatch, wrong)
	}
	const typeAbort = 0
	if len(f.key) < 4 {
		return fmt.Errorf("%w: control record: key of %d bytes", kafka.ErrCorruptBatch, len(f.key))
	}
	if binary.BigEndian.Uint16(f.key[2:]) == typeAbort {
		r.aborting = slices.DeleteFunc(r.aborting, func(id int64) bool { return id == r.header.producerID })
	}
	return nil
}

// readSlab hands out the next records of the open batch that are at or above from, at most maxSlabRecords of them.
func (r *chunkReader) readSlab(from int64) (actors.Slab, error) {
	var f recordFields
	before := len(r.body)
	slab := actors.Slab{LeaderEpoch: r.header.leaderEpoch}
	var records []kafka.Record
	n := 0
	body, left, lastDelta := r.body, r.left, r.lastDelta
	base := r.header.baseOffset
	maxDelta := r.header.lastOffset - base
	timestampType := kafka.CreateTime
	if r.header.logAppendTime() {
		timestampType = kafka.LogAppendTime
	}
	for left > 0 && n < maxSlabRecords {
		size, wrong := parseRecord(body, &f)
		if wrong != recordGood {
			return slab, fmt.Errorf("%w: record after delta %d: %s", kafka.ErrCorruptBatch, lastDelta, wrong)
		}
		// Offsets rise inside a batch. All that follows counts on it, above all the contiguous commit.
		if f.offsetDelta <= lastDelta || f.offsetDelta > maxDelta {
			return slab, fmt.Errorf("%w: offset delta %d after %d, last is %d", kafka.ErrCorruptBatch, f.offsetDelta, lastDelta, maxDelta)
		}
		var headers kafka.Headers
		if f.headerCount > 0 {
			var err error
			if headers, err = kafka.HeadersFromWire(f.headerCount, f.headers); err != nil {
				return slab, fmt.Errorf("%w: record of delta %d: %w", kafka.ErrCorruptBatch, f.offsetDelta, err)
			}
		}
		lastDelta = f.offsetDelta
		body = body[size:]
		left--
		if base+lastDelta < from {
			continue
		}
		if records == nil {
			records = r.takeRecords(min(left+1, maxSlabRecords))
		}
		rec := &records[n]
		n++
		rec.Topic = r.chunk.TopicPartition.Topic
		rec.Key = f.key
		rec.Value = f.value
		rec.Headers = headers
		rec.Offset = base + lastDelta
		if timestampType == kafka.LogAppendTime {
			rec.TimestampMillis = r.header.maxTimestamp
		} else {
			rec.TimestampMillis = r.header.baseTimestamp + f.timestampDelta
		}
		rec.Partition = r.chunk.TopicPartition.Partition
		rec.LeaderEpoch = r.header.leaderEpoch
		rec.TimestampType = timestampType
	}
	r.body, r.left, r.lastDelta = body, left, lastDelta
	slab.Records = records[:n:n]
	if n > 0 {
		slab.Bytes = before - len(body) + len(records)*recordSize
	}
	if left > 0 {
		slab.NextOffset = base + lastDelta + 1
		return slab, nil
	}
	slab.NextOffset = r.header.lastOffset + 1
	return slab, r.checkEnd()
}

// takeRecords returns memory for n records of the next slab.
func (r *chunkReader) takeRecords(n int) []kafka.Record {
	if r.memory == nil {
		return make([]kafka.Record, n)
	}
	r.slab = r.memory.takeRecords(n)
	return r.slab.records
}
