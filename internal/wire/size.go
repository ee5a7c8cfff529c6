package wire

import (
	"encoding/binary"

	"github.com/troupego/troupe/actors"
)

// inflatedBound returns the most that the content of src can be long, judged by the lengths and headers in it, but no more
// than limit. It is 0 where they do not say: gzip never does, as its length at the end may be of one member of many, and
// zstd only where every frame states its size. Decompressing src gives no more than that, or an error.
func inflatedBound(codec int, src []byte, limit int) int {
	limit = min(limit, maxInt32-scratchSlack)
	n, err := 0, error(nil)
	switch codec {
	case codecNone:
		n = len(src)
	case codecSnappy:
		n, err = snappySize(src, limit)
	case codecLz4:
		n, err = lz4Bound(src, limit)
	case codecZstd:
		stated := false
		if n, stated, err = zstdBound(src, limit); !stated {
			return 0
		}
	}
	if err != nil {
		return 0
	}
	return min(n, limit)
}

// nextBytes returns the most that the first slab of the batch at the start of rest can take, 0 where that cannot be known.
func nextBytes(chunk *actors.Chunk, rest []byte) int {
	if len(rest) < batchRecords || rest[batchMagic] != 2 {
		return 0
	}
	size := int64(int32(binary.BigEndian.Uint32(rest[batchLength:]))) + batchLengthEnd
	if size < batchRecords || size > int64(len(rest)) {
		return 0
	}
	attributes := binary.BigEndian.Uint16(rest[batchAttributes:])
	body := inflatedBound(int(attributes&attributeCodec), rest[batchRecords:size], chunk.MaxBatchBytes)
	return slabBytes(body, int(int32(binary.BigEndian.Uint32(rest[batchRecordCount:]))))
}

// slabBytes returns the most that a slab of what is left of a batch can take: left records in body bytes.
func slabBytes(body, left int) int {
	records := min(max(left, 0), body/minRecordSize, maxSlabRecords)
	if records == 0 {
		return 0
	}
	return body + records*recordSize
}
