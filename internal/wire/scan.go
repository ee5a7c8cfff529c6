package wire

import (
	"encoding/binary"
	"math"

	"github.com/troupego/troupe/pkg/kafka"
)

// scanBatches walks over the headers of the whole v2 batches at the start of data, without looking inside, and returns the
// offset after the last of them and its leader epoch: where the next fetch goes on. It returns kafka.NoOffset and
// kafka.NoLeaderEpoch when not even the first one is whole. Checksums are left to whoever decodes.
func scanBatches(data []byte) (next int64, epoch int32) {
	next, epoch = kafka.NoOffset, kafka.NoLeaderEpoch
	for len(data) >= batchRecords && data[batchMagic] == 2 {
		size := int64(int32(binary.BigEndian.Uint32(data[batchLength:]))) + batchLengthEnd
		if size < batchRecords || size > int64(len(data)) {
			break
		}
		base := int64(binary.BigEndian.Uint64(data[batchBaseOffset:]))
		delta := int32(binary.BigEndian.Uint32(data[batchLastOffsetDelta:]))
		if base < 0 || delta < 0 || base > math.MaxInt64-1-int64(delta) {
			break
		}
		next, epoch = base+int64(delta)+1, int32(binary.BigEndian.Uint32(data[batchLeaderEpoch:]))
		data = data[size:]
	}
	return next, epoch
}
