package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/troupego/troupe/pkg/kafka"
)

// The layout of a v2 record batch, in bytes from its start. The checksum covers everything from the attributes on.
const (
	batchBaseOffset      = 0
	batchLength          = 8 // counts the bytes after itself
	batchLeaderEpoch     = 12
	batchMagic           = 16
	batchChecksum        = 17
	batchAttributes      = 21
	batchLastOffsetDelta = 23
	batchBaseTimestamp   = 27
	batchMaxTimestamp    = 35
	batchProducerID      = 43
	batchRecordCount     = 57
	batchRecords         = 61

	batchLengthEnd = batchLength + 4
)

// The bits of a batch's attributes. Bit 0x40, the delete horizon of compaction, needs no care here: the base timestamp
// then is the horizon, and the records' deltas count from it all the same.
const (
	attributeCodec         = 0x07
	attributeLogAppendTime = 0x08
	attributeTransactional = 0x10
	attributeControl       = 0x20
)

// minRecordSize is the size of the smallest record: length, attributes, both deltas, no key, no value, no headers.
const minRecordSize = 7

// castagnoli is the checksum of batches. A table is constant data, so it may be shared by all.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batchHeader is what a batch says of itself.
type batchHeader struct {
	baseOffset    int64
	lastOffset    int64
	baseTimestamp int64
	maxTimestamp  int64
	producerID    int64
	leaderEpoch   int32
	recordCount   int32
	attributes    uint16
}

func (h *batchHeader) codec() int          { return int(h.attributes & attributeCodec) }
func (h *batchHeader) logAppendTime() bool { return h.attributes&attributeLogAppendTime != 0 }
func (h *batchHeader) transactional() bool { return h.attributes&attributeTransactional != 0 }
func (h *batchHeader) control() bool       { return h.attributes&attributeControl != 0 }

// parseHeader reads the header of a whole batch, checks its checksum, and checks that its numbers make sense together.
// batch is exactly one v2 batch of at least batchRecords bytes.
func parseHeader(batch []byte) (batchHeader, error) {
	h := batchHeader{
		baseOffset:    int64(binary.BigEndian.Uint64(batch[batchBaseOffset:])),
		baseTimestamp: int64(binary.BigEndian.Uint64(batch[batchBaseTimestamp:])),
		maxTimestamp:  int64(binary.BigEndian.Uint64(batch[batchMaxTimestamp:])),
		producerID:    int64(binary.BigEndian.Uint64(batch[batchProducerID:])),
		leaderEpoch:   int32(binary.BigEndian.Uint32(batch[batchLeaderEpoch:])),
		recordCount:   int32(binary.BigEndian.Uint32(batch[batchRecordCount:])),
		attributes:    binary.BigEndian.Uint16(batch[batchAttributes:]),
		lastOffset:    kafka.NoOffset,
	}
	want := binary.BigEndian.Uint32(batch[batchChecksum:])
	if got := crc32.Checksum(batch[batchAttributes:], castagnoli); got != want {
		return h, fmt.Errorf("%w: checksum %08x, the batch says %08x", kafka.ErrCorruptBatch, got, want)
	}
	delta := int32(binary.BigEndian.Uint32(batch[batchLastOffsetDelta:]))
	if h.baseOffset < 0 || delta < 0 || h.baseOffset > math.MaxInt64-1-int64(delta) {
		return h, fmt.Errorf("%w: base offset %d, last offset delta %d", kafka.ErrCorruptBatch, h.baseOffset, delta)
	}
	h.lastOffset = h.baseOffset + int64(delta)
	if h.recordCount < 0 || int64(h.recordCount) > int64(delta)+1 {
		return h, fmt.Errorf("%w: %d records in %d offsets", kafka.ErrCorruptBatch, h.recordCount, int64(delta)+1)
	}
	return h, nil
}

// recordFields is one record as it lies in its batch.
type recordFields struct {
	key, value     []byte
	headers        []byte
	headerCount    int
	offsetDelta    int64
	timestampDelta int64
}

// What can be wrong with a record. Constants, so that the hot path makes no error values.
const (
	recordGood        = ""
	recordLengthBad   = "length"
	recordDeltaBad    = "timestamp or offset delta"
	recordKeyBad      = "key"
	recordValueBad    = "value"
	recordHeadersBad  = "headers"
	recordTrailingBad = "bytes left after the headers"
)

// parseRecord reads the record at the start of body into f and returns its size, or what is wrong with it. Varints of one
// byte are read in place: nearly all are, and a call for each would be a fifth of the time that a record takes.
func parseRecord(body []byte, f *recordFields) (size int, wrong string) {
	length, p := zigzag(body, 0)
	if p == 0 || length < 0 || length > int64(len(body)-p) {
		return 0, recordLengthBad
	}
	size = p + int(length)
	b := body[p:size:size]
	p = 1 // the record's attributes have no meaning yet
	if p < len(b) && b[p] < 0x80 {
		f.timestampDelta, p = unzigzag(b[p]), p+1
	} else if f.timestampDelta, p = zigzag(b, p); p == 0 {
		return 0, recordDeltaBad
	}
	if p < len(b) && b[p] < 0x80 {
		f.offsetDelta, p = unzigzag(b[p]), p+1
	} else if f.offsetDelta, p = zigzag(b, p); p == 0 {
		return 0, recordDeltaBad
	}
	n := int64(0)
	if p < len(b) && b[p] < 0x80 {
		n, p = unzigzag(b[p]), p+1
	} else if n, p = zigzag(b, p); p == 0 {
		return 0, recordKeyBad
	}
	if n < -1 || n > int64(len(b)-p) {
		return 0, recordKeyBad
	}
	f.key = nil
	if n >= 0 {
		end := p + int(n)
		f.key, p = b[p:end:end], end
	}
	if n, p = zigzag(b, p); p == 0 || n < -1 || n > int64(len(b)-p) {
		return 0, recordValueBad
	}
	f.value = nil
	if n >= 0 {
		end := p + int(n)
		f.value, p = b[p:end:end], end
	}
	if p < len(b) && b[p] == 0 { // no headers
		if p+1 != len(b) {
			return 0, recordTrailingBad
		}
		f.headers, f.headerCount = nil, 0
		return size, recordGood
	}
	if n, p = zigzag(b, p); p == 0 || n < 0 || n > int64(len(b)-p) {
		return 0, recordHeadersBad
	}
	if n == 0 && p != len(b) {
		return 0, recordTrailingBad
	}
	f.headers, f.headerCount = b[p:], int(n)
	return size, recordGood
}

// unzigzag is the number that a varint of one byte stands for.
func unzigzag(c byte) int64 { return int64(c>>1) ^ -int64(c&1) }

// zigzag reads the varint at b[p:] and returns the position after it, 0 when there is none.
func zigzag(b []byte, p int) (v int64, next int) {
	if p+1 < len(b) { // one or two bytes, the lengths of most records and values
		lo, hi := b[p], b[p+1]
		if lo < 0x80 {
			return unzigzag(lo), p + 1
		}
		if hi < 0x80 {
			u := uint64(lo&0x7f) | uint64(hi)<<7
			return int64(u>>1) ^ -int64(u&1), p + 2
		}
	}
	var u uint64
	for shift := uint(0); p < len(b) && shift < 64; shift += 7 {
		c := b[p]
		p++
		if c < 0x80 {
			if shift == 63 && c > 1 {
				return 0, 0
			}
			u |= uint64(c) << shift
			return int64(u>>1) ^ -int64(u&1), p
		}
		u |= uint64(c&0x7f) << shift
	}
	return 0, 0
}
