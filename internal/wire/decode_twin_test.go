package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// The twin decodes a chunk in the simplest way, with kmsg's own batch and record types and the libraries' own readers.
// It checks little; where it and the decoder both accept a chunk they must agree to the byte.

var errTwin = errors.New("twin: malformed")

func twinInflate(codec int, src []byte, limit int) ([]byte, error) {
	var r io.Reader = bytes.NewReader(src)
	var err error
	switch codec {
	case codecNone:
	case codecGzip:
		r, err = gzip.NewReader(r)
	case codecSnappy:
		if bytes.HasPrefix(src, xerialMagic) {
			var out []byte
			for rest := src[16:]; len(rest) > 0; {
				n := binary.BigEndian.Uint32(rest)
				part, err := snappy.Decode(nil, rest[4:4+n])
				if err != nil {
					return nil, err
				}
				out, rest = append(out, part...), rest[4+n:]
			}
			return out, nil
		}
		return snappy.Decode(nil, src)
	case codecLz4:
		r = lz4.NewReader(r)
	case codecZstd:
		var dec *zstd.Decoder
		if dec, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1)); err == nil {
			defer dec.Close()
			r = dec
		}
	default:
		err = errTwin
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, int64(limit)))
}

// twinRead returns what a consumer that reads the whole chunk from the offset given is to get.
func twinRead(chunk actors.Chunk, from int64) (records []kafka.Record, next int64, err error) {
	next = from
	aborted := map[int64][]int64{}
	for _, a := range chunk.Aborted {
		aborted[a.ProducerID] = append(aborted[a.ProducerID], a.FirstOffset)
	}
	ended := map[int64]int64{} // producer -> offset of its last abort marker
	for data := chunk.Data; len(data) > 12; {
		size := 12 + int(int32(binary.BigEndian.Uint32(data[8:])))
		if size > len(data) || size < 61 {
			return records, next, io.EOF
		}
		var b kmsg.RecordBatch
		if err := b.ReadFrom(data[:size]); err != nil {
			return records, next, err
		}
		if crc32.Checksum(data[21:size], crc32.MakeTable(crc32.Castagnoli)) != uint32(b.CRC) {
			return records, next, errTwin
		}
		data = data[size:]
		last := b.FirstOffset + int64(b.LastOffsetDelta)
		isAborted := false
		if chunk.Isolation == kafka.ReadCommitted && b.Attributes&attributeTransactional != 0 {
			for _, first := range aborted[b.ProducerID] {
				if end, ok := ended[b.ProducerID]; first <= last && (!ok || first > end) {
					isAborted = true
				}
			}
		}
		if b.Attributes&attributeControl != 0 { // only its first record counts, and only where somebody has to know
			var rec kmsg.Record
			raw, err := twinInflate(int(b.Attributes&attributeCodec), b.Records, chunk.MaxBatchBytes)
			if err == nil && b.NumRecords > 0 && rec.ReadFrom(raw) == nil && len(rec.Key) >= 4 && rec.Key[2] == 0 && rec.Key[3] == 0 {
				ended[b.ProducerID] = last
			}
		}
		if b.Attributes&attributeControl != 0 || isAborted || last < next {
			next = max(next, last+1)
			continue
		}
		raw, err := twinInflate(int(b.Attributes&attributeCodec), b.Records, chunk.MaxBatchBytes)
		if err != nil {
			return records, next, err
		}
		for range b.NumRecords {
			length, n := binary.Varint(raw)
			if n <= 0 || length < 0 || length > int64(len(raw)-n) {
				return records, next, errTwin
			}
			var rec kmsg.Record
			if err := rec.ReadFrom(raw[:n+int(length)]); err != nil {
				return records, next, err
			}
			raw = raw[n+int(length):]
			out := kafka.Record{Topic: chunk.TopicPartition.Topic, Partition: chunk.TopicPartition.Partition, Key: rec.Key, Value: rec.Value,
				Offset: b.FirstOffset + int64(rec.OffsetDelta), TimestampMillis: b.FirstTimestamp + rec.TimestampDelta64, LeaderEpoch: b.PartitionLeaderEpoch}
			if b.Attributes&attributeLogAppendTime != 0 {
				out.TimestampType, out.TimestampMillis = kafka.LogAppendTime, b.MaxTimestamp
			}
			var headers []kafka.Header
			for _, h := range rec.Headers {
				headers = append(headers, kafka.Header{Key: h.Key, Value: h.Value})
			}
			out.Headers = kafka.NewHeaders(headers...)
			if out.Offset >= from {
				records = append(records, out)
			}
		}
		next = max(next, last+1)
	}
	return records, next, io.EOF
}

// requireSameRecords compares what can be seen of the records.
func requireSameRecords(t *testing.T, want, got []kafka.Record) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		w, g := want[i], got[i]
		if w.Offset != g.Offset || w.TimestampMillis != g.TimestampMillis || w.TimestampType != g.TimestampType ||
			w.TopicPartition() != g.TopicPartition() || w.LeaderEpoch != g.LeaderEpoch ||
			!bytes.Equal(w.Key, g.Key) || !bytes.Equal(w.Value, g.Value) ||
			(w.Key == nil) != (g.Key == nil) || (w.Value == nil) != (g.Value == nil) {
			t.Fatalf("record %d: want %+v, got %+v", i, w, g)
		}
		if !slices.EqualFunc(w.Headers.Slice(), g.Headers.Slice(), func(a, b kafka.Header) bool {
			return a.Key == b.Key && bytes.Equal(a.Value, b.Value) && (a.Value == nil) == (b.Value == nil)
		}) {
			t.Fatalf("record %d: headers %v, want %v", i, g.Headers.Slice(), w.Headers.Slice())
		}
	}
}

// randomLog is a log of batches of every kind, with the aborted transactions in it.
func randomLog(t testing.TB, rng *rand.Rand) (data []byte, aborted []actors.AbortedTransaction, end int64) {
	open := map[int64]int64{} // producer -> first offset of its transaction
	base := int64(rng.IntN(1000))
	for range rng.IntN(20) {
		producer := int64(rng.IntN(3))
		b := plainBatch(base, 0)
		b.epoch = int32(rng.IntN(5))
		first, inTransaction := open[producer]
		if inTransaction && rng.IntN(3) == 0 {
			kind := int16(rng.IntN(2))
			b = markerBatch(base, producer, kind)
			if kind == 0 {
				aborted = append(aborted, actors.AbortedTransaction{ProducerID: producer, FirstOffset: first})
			}
			delete(open, producer)
			data = append(data, b.encode(t)...)
			base += 1 + int64(rng.IntN(3))
			continue
		}
		delta := int32(0)
		for range rng.IntN(30) {
			r := testRecord{delta: delta, timestamp: int64(rng.IntN(2000) - 100)}
			if rng.IntN(3) > 0 {
				r.key = semiRandom(rng, rng.IntN(70))
			}
			if rng.IntN(5) > 0 {
				r.value = semiRandom(rng, rng.IntN(300))
			}
			for range rng.IntN(3) {
				r.headers = append(r.headers, kafka.Header{Key: string(semiRandom(rng, rng.IntN(5))), Value: [][]byte{nil, {}, {1}}[rng.IntN(3)]})
			}
			b.records = append(b.records, r)
			delta += 1 + int32(rng.IntN(2)*rng.IntN(5))
		}
		b.lastDelta = delta + int32(rng.IntN(3))
		b.attributes = int16(rng.IntN(5)) | int16(rng.IntN(2))*attributeLogAppendTime
		if rng.IntN(2) == 0 {
			b.attributes, b.producer = b.attributes|attributeTransactional, producer
			if !inTransaction {
				open[producer] = base
			}
		}
		data = append(data, b.encode(t)...)
		base += int64(b.lastDelta) + 1 + int64(rng.IntN(3))
	}
	rng.Shuffle(len(aborted), func(i, j int) { aborted[i], aborted[j] = aborted[j], aborted[i] })
	return data, aborted, base
}

func TestDecoderAgreesWithItsNaiveTwinOnRandomLogs(t *testing.T) {
	d := newDecompressors()
	total := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		chunk := testChunk(nil)
		chunk.Data, chunk.Aborted, _ = randomLog(t, rng)
		chunk.Isolation = kafka.IsolationLevel(rng.IntN(2))
		if len(chunk.Data) > 0 && rng.IntN(4) == 0 {
			chunk.Data = append(chunk.Data, plainBatch(1<<40, 1).encode(t)[:rng.IntN(70)]...)
		}
		from := int64(0)
		if rng.IntN(2) == 0 {
			from = int64(rng.IntN(1500))
		}
		want, wantNext, err := twinRead(chunk, from)
		require.Equal(t, io.EOF, err)
		got, next, err := readAll(newChunkReader(chunk, d, nil), from)
		require.Equal(t, io.EOF, err, "seed %d", seed)
		require.Equal(t, wantNext, next, "seed %d", seed)
		requireSameRecords(t, want, got)
		total += len(got)
	}
	require.Greater(t, total, 5_000)
}

// reseal sets the checksums right, so that the fuzzer gets past them, and says whether the data is whole batches.
func reseal(data []byte) {
	for len(data) >= batchRecords {
		size := batchLengthEnd + int64(int32(binary.BigEndian.Uint32(data[batchLength:])))
		if size < batchRecords || size > int64(len(data)) {
			return
		}
		seal(data[:size])
		data = data[size:]
	}
}

func FuzzChunkReader(f *testing.F) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 9))
		data, _, _ := randomLog(f, rng)
		f.Add(data, int64(0), int64(rng.IntN(2)), int64(rng.IntN(100)), seed%2 == 0)
	}
	for codec := range codecNames {
		b := plainBatch(40, 0)
		b.attributes, b.count, b.lastDelta, b.payload = int16(codec), 1000, 999, claim(codec)
		f.Add(b.encode(f), int64(0), int64(0), int64(0), true)
	}
	const limit = 64 << 10
	d := newDecompressors()
	f.Fuzz(func(t *testing.T, data []byte, from, producer, first int64, committed bool) {
		reseal(data)
		chunk := actors.Chunk{TopicPartition: testPartition, Data: data, MaxBatchBytes: limit, Isolation: kafka.ReadUncommitted}
		if committed {
			chunk.Isolation = kafka.ReadCommitted
			chunk.Aborted = []actors.AbortedTransaction{{ProducerID: producer, FirstOffset: first}}
		}
		r := newChunkReader(chunk, d, nil)
		var got []kafka.Record
		var err error
		next, calls := from, 0
		for ; ; calls++ {
			var slab actors.Slab
			bound := r.NextBytes()
			require.LessOrEqual(t, bound, limit+maxSlabRecords*recordSize)
			if slab, err = r.Next(next); err != nil {
				break
			}
			require.True(t, bound == 0 || slab.Bytes <= bound, "%d bytes, %d were told", slab.Bytes, bound)
			require.LessOrEqual(t, len(slab.Records), maxSlabRecords)
			require.LessOrEqual(t, slab.Bytes, limit+limit/minRecordSize*recordSize)
			require.LessOrEqual(t, slab.Bytes, limit+cap(slab.Records)*recordSize)
			offset := int64(-1)
			for i := range slab.Records {
				require.Greater(t, slab.Records[i].Offset, offset, "offsets rise")
				require.GreaterOrEqual(t, slab.Records[i].Offset, next, "nothing below the position")
				offset = slab.Records[i].Offset
				slab.Records[i].Headers.Slice()
			}
			require.Greater(t, slab.NextOffset, offset)
			got = append(got, slab.Records...)
			next = max(next, slab.NextOffset)
		}
		require.LessOrEqual(t, calls, len(data)/batchRecords+len(data)*100/maxSlabRecords+1)
		_, again := r.Next(next)
		require.Equal(t, err, again)
		require.Zero(t, r.NextBytes())

		memory := newPool(1<<20, true)
		lent, source := recycled(chunk, memory)
		same, sameNext, sameErr := readRecycled(t, rand.New(rand.NewPCG(uint64(from), uint64(first))), newChunkReader(lent, d, memory), from)
		require.Equal(t, err, sameErr)
		require.Equal(t, next, sameNext)
		requireSameRecords(t, got, same)
		require.Zero(t, source.references.Load())
		var batch *kafka.BatchError
		var partial *kafka.PartialBatchError
		switch {
		case err == io.EOF:
			// The naive twin repeats records of batches whose offsets overlap; the decoder never goes back.
			want, wantNext, twinErr := twinRead(chunk, from)
			if twinErr != nil && strings.Contains(twinErr.Error(), "checksum") {
				return // the frame's own checksum: the decoder leaves that to the batch's
			}
			if rising(data) {
				require.Equal(t, io.EOF, twinErr)
				require.Equal(t, wantNext, next)
				requireSameRecords(t, want, got)
			}
		case errors.As(err, &batch):
			require.Error(t, batch.Err)
		case errors.As(err, &partial):
			require.Greater(t, partial.Need, len(data))
		default:
			require.Fail(t, "untyped", "%v", err)
		}
	})
}

// rising reports whether each batch begins above the end of the one before.
func rising(data []byte) bool {
	end := int64(-1)
	for len(data) >= batchRecords {
		size := batchLengthEnd + int64(int32(binary.BigEndian.Uint32(data[batchLength:])))
		base := int64(binary.BigEndian.Uint64(data))
		if base <= end {
			return false
		}
		if size < batchRecords || size > int64(len(data)) {
			return true
		}
		end = base + int64(int32(binary.BigEndian.Uint32(data[batchLastOffsetDelta:])))
		data = data[size:]
	}
	return true
}
