package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

func TestRecordsKeepEveryFieldOfTheWire(t *testing.T) {
	b := plainBatch(100, 0)
	b.records = []testRecord{
		{delta: 0, timestamp: 5, key: []byte("k"), value: []byte("v"), headers: []kafka.Header{{Key: "a", Value: []byte("1")}, {Key: "b"}}},
		{delta: 1, timestamp: -3},
		{delta: 4, timestamp: 1 << 40, key: []byte{}, value: []byte{}},
	}
	r := newTestReader(t, b)
	slab, err := r.Next(0)
	require.NoError(t, err)
	require.Len(t, slab.Records, 3)
	require.EqualValues(t, 105, slab.NextOffset)
	require.EqualValues(t, 3, slab.LeaderEpoch)

	first := slab.Records[0]
	require.Equal(t, "orders", first.Topic)
	require.EqualValues(t, 7, first.Partition)
	require.EqualValues(t, 100, first.Offset)
	require.EqualValues(t, 3, first.LeaderEpoch)
	require.EqualValues(t, 1005, first.TimestampMillis)
	require.Equal(t, kafka.CreateTime, first.TimestampType)
	require.Equal(t, "k", string(first.Key))
	require.Equal(t, "v", string(first.Value))
	require.Equal(t, []kafka.Header{{Key: "a", Value: []byte("1")}, {Key: "b"}}, first.Headers.Slice())

	require.Nil(t, slab.Records[1].Key)
	require.Nil(t, slab.Records[1].Value)
	require.EqualValues(t, 997, slab.Records[1].TimestampMillis)
	require.NotNil(t, slab.Records[2].Key, "an empty key is not a missing one")
	require.NotNil(t, slab.Records[2].Value, "an empty value is not a tombstone")
	require.EqualValues(t, 104, slab.Records[2].Offset, "holes in a batch stay holes")
	require.EqualValues(t, 1000+1<<40, slab.Records[2].TimestampMillis)

	_, err = r.Next(105)
	require.Equal(t, io.EOF, err)
	_, err = r.Next(105)
	require.Equal(t, io.EOF, err)
}

func TestAppendingToAFieldNeverTouchesItsNeighbor(t *testing.T) {
	records, _, err := readAll(newTestReader(t, plainBatch(0, 3)), 0)
	require.Equal(t, io.EOF, err)
	_ = append(records[0].Key, "XXXXXXXX"...)
	_ = append(records[0].Value, "XXXXXXXX"...)
	_ = append(records, kafka.Record{})
	require.Equal(t, "value", string(records[0].Value))
	require.Equal(t, "k1", string(records[1].Key))
}

func TestLogAppendTimeIsTheBatchsMaximum(t *testing.T) {
	b := plainBatch(0, 2)
	b.attributes = attributeLogAppendTime
	records, _, err := readAll(newTestReader(t, b), 0)
	require.Equal(t, io.EOF, err)
	for _, rec := range records {
		require.EqualValues(t, 2000, rec.TimestampMillis)
		require.Equal(t, kafka.LogAppendTime, rec.TimestampType)
	}
}

func TestDeleteHorizonLeavesTimestampsAndRecordsAlone(t *testing.T) {
	b := plainBatch(0, 2)
	b.attributes = 0x40
	records, _, err := readAll(newTestReader(t, b), 0)
	require.Equal(t, io.EOF, err)
	require.EqualValues(t, 1001, records[1].TimestampMillis)
}

func TestPositionFollowsTheBatchAndNotItsRecords(t *testing.T) {
	empty := plainBatch(10, 0)
	empty.lastDelta = 4
	short := plainBatch(15, 2)
	short.lastDelta = 9
	r := newTestReader(t, empty, short, markerBatch(25, 1, 1))
	for _, want := range []struct{ records, next int64 }{{0, 15}, {2, 25}, {0, 26}} {
		slab, err := r.Next(10)
		require.NoError(t, err)
		require.Len(t, slab.Records, int(want.records))
		require.Equal(t, want.next, slab.NextOffset)
	}
	_, err := r.Next(26)
	require.Equal(t, io.EOF, err)
}

func TestRecordsBelowThePositionAreLeftOut(t *testing.T) {
	for from, want := range map[int64]int{0: 30, 15: 15, 20: 10, 29: 1, 30: 0} {
		records, next, err := readAll(newTestReader(t, plainBatch(0, 10), plainBatch(10, 10), plainBatch(20, 10)), from)
		require.Equal(t, io.EOF, err)
		require.Len(t, records, want)
		require.EqualValues(t, 30, next)
		if want > 0 {
			require.Equal(t, from, records[0].Offset)
		}
	}
}

func TestSlabBytesCountTheBufferAndTheRecordValues(t *testing.T) {
	b := plainBatch(0, 10)
	slab, err := newTestReader(t, b).Next(0)
	require.NoError(t, err)
	require.Equal(t, len(b.encode(t))-batchRecords+10*recordSize, slab.Bytes)

	slab, err = newTestReader(t, markerBatch(0, 1, 0)).Next(0)
	require.NoError(t, err)
	require.Zero(t, slab.Bytes, "a slab without records keeps nothing alive")
}

func TestABatchOfVeryManyRecordsComesInSeveralSlabs(t *testing.T) {
	for _, codec := range []int{codecNone, codecZstd} {
		b := plainBatch(50, 2*maxSlabRecords+3)
		b.attributes = int16(codec)
		b.lastDelta = 2*maxSlabRecords + 10
		r := newTestReader(t, b)
		next := int64(51)
		var got []kafka.Record
		for _, size := range []int{maxSlabRecords, maxSlabRecords, 2} {
			slab, err := r.Next(next)
			require.NoError(t, err)
			require.Len(t, slab.Records, size)
			got = append(got, slab.Records...)
			require.Greater(t, slab.NextOffset, got[len(got)-1].Offset)
			next = slab.NextOffset
		}
		require.EqualValues(t, 50+2*maxSlabRecords+11, next)
		for i := range got {
			require.EqualValues(t, 51+i, got[i].Offset)
		}
		_, err := r.Next(next)
		require.Equal(t, io.EOF, err)
	}
}

// transaction returns transactional batches of one record each at the offsets given.
func transactional(producer int64, offsets ...int64) []testBatch {
	var out []testBatch
	for _, o := range offsets {
		b := plainBatch(o, 1)
		b.attributes, b.producer = attributeTransactional, producer
		out = append(out, b)
	}
	return out
}

func TestReadCommittedLeavesOutAbortedTransactions(t *testing.T) {
	var log []testBatch
	log = append(log, transactional(1, 0)...)  // aborted
	log = append(log, transactional(2, 1)...)  // committed
	log = append(log, plainBatch(2, 1))        // outside of transactions
	log = append(log, markerBatch(3, 2, 1))    // commits 2
	log = append(log, transactional(1, 4)...)  // aborted
	log = append(log, markerBatch(5, 1, 0))    // aborts 1
	log = append(log, transactional(1, 6)...)  // a new transaction of 1, committed
	log = append(log, markerBatch(7, 1, 1))    //
	log = append(log, transactional(2, 8)...)  // aborted
	same := plainBatch(9, 1)                   // of the same producer id, but outside of transactions
	same.producer = 2                          //
	log = append(log, same)                    //
	log = append(log, markerBatch(10, 2, 0))   //
	log = append(log, transactional(3, 11)...) // aborted, marker not in this answer
	log = append(log, transactional(2, 12)...) // committed
	aborted := []actors.AbortedTransaction{{ProducerID: 3, FirstOffset: 11}, {ProducerID: 2, FirstOffset: 8}, {ProducerID: 1, FirstOffset: 0}}

	var data []byte
	for _, b := range log {
		data = append(data, b.encode(t)...)
	}
	chunk := testChunk(data)
	chunk.Aborted = aborted
	records, next, err := readAll(newChunkReader(chunk, newDecompressors(), nil), 0)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []int64{1, 2, 6, 9, 12}, offsetsOf(records))
	require.EqualValues(t, 13, next)
	require.EqualValues(t, 3, chunk.Aborted[0].ProducerID, "the list is the caller's")

	chunk.Isolation = kafka.ReadUncommitted
	records, _, err = readAll(newChunkReader(chunk, newDecompressors(), nil), 0)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []int64{0, 1, 2, 4, 6, 8, 9, 11, 12}, offsetsOf(records))

	// A transaction that began before the position is aborted all the same.
	chunk.Isolation = kafka.ReadCommitted
	records, _, err = readAll(newChunkReader(chunk, newDecompressors(), nil), 4)
	require.Equal(t, io.EOF, err)
	require.Equal(t, []int64{6, 9, 12}, offsetsOf(records))
}

func TestAMarkerWithoutAKeyIsCorruptOnlyWhereItMatters(t *testing.T) {
	marker := markerBatch(1, 1, 0)
	marker.records[0].key = []byte{0}
	chunk := testChunk(append(transactional(1, 0)[0].encode(t), marker.encode(t)...))
	_, _, err := readAll(newChunkReader(chunk, newDecompressors(), nil), 0)
	require.Equal(t, io.EOF, err)
	chunk.Aborted = []actors.AbortedTransaction{{ProducerID: 1}}
	_, _, err = readAll(newChunkReader(chunk, newDecompressors(), nil), 0)
	requireBatchError(t, err, kafka.ErrCorruptBatch, 1, 1)
}

func TestABatchCutOffIsTheEndUnlessItIsTheFirst(t *testing.T) {
	first, second := plainBatch(0, 3).encode(t), plainBatch(3, 3).encode(t)
	for cut := range len(second) {
		data := append(append([]byte(nil), first...), second[:cut]...)
		records, next, err := readAll(newChunkReader(testChunk(data), newDecompressors(), nil), 0)
		require.Equal(t, io.EOF, err)
		require.Len(t, records, 3)
		require.EqualValues(t, 3, next)
	}
	_, err := newChunkReader(testChunk(nil), newDecompressors(), nil).Next(0)
	require.Equal(t, io.EOF, err)
	for cut := 1; cut < len(first); cut++ {
		r := newChunkReader(testChunk(first[:cut]), newDecompressors(), nil)
		for range 2 {
			_, err := r.Next(0)
			var partial *kafka.PartialBatchError
			require.ErrorAs(t, err, &partial)
			require.Equal(t, testPartition, partial.TopicPartition)
			if cut >= batchLengthEnd {
				require.Equal(t, len(first), partial.Need)
			} else {
				require.Greater(t, partial.Need, cut)
			}
		}
	}
}

func TestAPartialBatchThatCouldNeverBeReadIsTooLarge(t *testing.T) {
	data := plainBatch(9, 1).encode(t)
	binary.BigEndian.PutUint32(data[batchLength:], testCap+batchRecords)
	_, err := newChunkReader(testChunk(data), newDecompressors(), nil).Next(0)
	requireBatchError(t, err, kafka.ErrBatchTooLarge, 9, kafka.NoOffset)
}

func requireBatchError(t *testing.T, err, cause error, base, last int64) {
	t.Helper()
	var batch *kafka.BatchError
	require.ErrorAs(t, err, &batch)
	require.ErrorIs(t, err, cause)
	require.Equal(t, testPartition, batch.TopicPartition)
	require.Equal(t, base, batch.BaseOffset, err)
	require.Equal(t, last, batch.LastOffset, err)
}

func TestABatchThatCannotBeReadIsATypedErrorForGood(t *testing.T) {
	payloadOf := func(records ...[]byte) []byte {
		var out []byte
		for _, r := range records {
			out = append(out, r...)
		}
		return out
	}
	good := encodeRecord(testRecord{value: []byte("v")})
	with := func(change func(*testBatch)) []byte {
		b := plainBatch(40, 2)
		change(&b)
		return b.encode(t)
	}
	sealed := func(change func(raw []byte)) []byte {
		raw := plainBatch(40, 2).encode(t)
		change(raw)
		return seal(raw)
	}
	varint := func(v int64) []byte { return binary.AppendVarint(nil, v) }
	for name, c := range map[string]struct {
		data  []byte
		cause error
		last  int64
	}{
		"checksum": {func() []byte { b := plainBatch(40, 2).encode(t); b[len(b)-1] ^= 1; return b }(), kafka.ErrCorruptBatch, kafka.NoOffset},
		"magic 0":  {sealed(func(b []byte) { b[batchMagic] = 0 }), kafka.ErrUnsupportedMagic, kafka.NoOffset},
		"magic 1":  {sealed(func(b []byte) { b[batchMagic] = 1 }), kafka.ErrUnsupportedMagic, kafka.NoOffset},
		"magic 3":  {sealed(func(b []byte) { b[batchMagic] = 3 }), kafka.ErrUnsupportedMagic, kafka.NoOffset},
		"codec 5":  {with(func(b *testBatch) { b.attributes = 5 }), kafka.ErrUnsupportedCompression, 41},
		"codec 7":  {with(func(b *testBatch) { b.attributes = 7 }), kafka.ErrUnsupportedCompression, 41},
		"negative length": {sealed(func(b []byte) { binary.BigEndian.PutUint32(b[batchLength:], math.MaxUint32) }),
			kafka.ErrCorruptBatch, kafka.NoOffset},
		"length below a header": {sealed(func(b []byte) { binary.BigEndian.PutUint32(b[batchLength:], 48) }),
			kafka.ErrCorruptBatch, kafka.NoOffset},
		"negative count":             {with(func(b *testBatch) { b.count = -2 }), kafka.ErrCorruptBatch, 41},
		"count of 2^31-1":            {with(func(b *testBatch) { b.count, b.lastDelta = math.MaxInt32, math.MaxInt32 }), kafka.ErrCorruptBatch, 40 + math.MaxInt32},
		"count above the offsets":    {with(func(b *testBatch) { b.lastDelta = 0 }), kafka.ErrCorruptBatch, 40},
		"count above the records":    {with(func(b *testBatch) { b.count, b.lastDelta = 3, 5 }), kafka.ErrCorruptBatch, 45},
		"count below the records":    {with(func(b *testBatch) { b.count = 1 }), kafka.ErrCorruptBatch, 41},
		"count 0 with records":       {with(func(b *testBatch) { b.count = 0 }), kafka.ErrCorruptBatch, 41},
		"negative last offset delta": {with(func(b *testBatch) { b.lastDelta = -5 }), kafka.ErrCorruptBatch, kafka.NoOffset},

		"same delta twice":       {with(func(b *testBatch) { b.payload, b.lastDelta = payloadOf(good, good), 1 }), kafka.ErrCorruptBatch, 41},
		"delta above the last":   {with(func(b *testBatch) { b.records[1].delta, b.lastDelta = 9, 1 }), kafka.ErrCorruptBatch, 41},
		"negative delta":         {with(func(b *testBatch) { b.records[0].delta = -1 }), kafka.ErrCorruptBatch, 41},
		"negative record length": {with(func(b *testBatch) { b.payload = payloadOf(varint(-3), good); b.lastDelta = 1 }), kafka.ErrCorruptBatch, 41},
		"record past the batch":  {with(func(b *testBatch) { b.payload = payloadOf(good, varint(200), make([]byte, 20)); b.lastDelta = 1 }), kafka.ErrCorruptBatch, 41},
		"key past the record":    {with(func(b *testBatch) { b.payload = payloadOf(varint(6), []byte{0, 0, 0, 20, 1, 0}, good); b.lastDelta = 1 }), kafka.ErrCorruptBatch, 41},
		"key of length -2":       {with(func(b *testBatch) { b.payload = payloadOf(varint(6), []byte{0, 0, 0, 3, 1, 0}, good); b.lastDelta = 1 }), kafka.ErrCorruptBatch, 41},
		"value past the record":  {with(func(b *testBatch) { b.payload = payloadOf(varint(6), []byte{0, 0, 0, 1, 20, 0}, good); b.lastDelta = 1 }), kafka.ErrCorruptBatch, 41},
		"negative header count":  {with(func(b *testBatch) { b.payload = payloadOf(varint(6), []byte{0, 0, 0, 1, 1, 1}, good); b.lastDelta = 1 }), kafka.ErrCorruptBatch, 41},
		"headers that are not there": {with(func(b *testBatch) {
			b.payload = payloadOf(varint(7), []byte{0, 0, 0, 1, 1, 4, 0}, good)
			b.lastDelta = 1
		}), kafka.ErrCorruptBatch, 41},
		"endless varint": {with(func(b *testBatch) {
			b.payload = payloadOf(varint(20), append([]byte{0}, bytesOf(0xff, 19)...), good)
			b.lastDelta = 1
		}), kafka.ErrCorruptBatch, 41},
	} {
		t.Run(name, func(t *testing.T) {
			// A good batch in front shows that what came before is delivered and that the error comes in its turn.
			data := append(plainBatch(30, 2).encode(t), c.data...)
			data = append(data, plainBatch(90, 1).encode(t)...)
			r := newChunkReader(testChunk(data), newDecompressors(), nil)
			records, _, err := readAll(r, 0)
			require.GreaterOrEqual(t, len(records), 2)
			require.Equal(t, []int64{30, 31}, offsetsOf(records)[:2])
			requireBatchError(t, err, c.cause, 40, c.last)
			_, again := r.Next(0)
			require.True(t, errors.Is(again, err), "the error stays")
		})
	}
}

func bytesOf(c byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = c
	}
	return b
}
