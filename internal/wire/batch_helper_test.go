package wire

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// testPartition is where the batches of these tests lie.
var testPartition = kafka.TopicPartition{Topic: "orders", Partition: 7}

const testCap = 16 << 20

// testRecord is one record of a batch made by hand.
type testRecord struct {
	delta      int32
	timestamp  int64 // delta
	key, value []byte
	headers    []kafka.Header
}

// testBatch describes a batch made by hand. mangle may change the records after encoding, codec is applied after that.
type testBatch struct {
	base       int64
	lastDelta  int32 // -1: that of the last record
	epoch      int32
	attributes int16
	baseTime   int64
	maxTime    int64
	producer   int64
	count      int32 // -1: the number of records
	records    []testRecord
	payload    []byte // instead of records
}

func plainBatch(base int64, n int) testBatch {
	b := testBatch{base: base, lastDelta: -1, count: -1, epoch: 3, baseTime: 1000, maxTime: 2000, producer: -1}
	for i := range n {
		b.records = append(b.records, testRecord{delta: int32(i), timestamp: int64(i), key: []byte{'k', byte('0' + i%10)}, value: []byte("value")})
	}
	return b
}

func encodeRecord(r testRecord) []byte {
	rec := kmsg.NewRecord()
	rec.TimestampDelta64 = r.timestamp
	rec.OffsetDelta = r.delta
	rec.Key, rec.Value = r.key, r.value
	for _, h := range r.headers {
		rec.Headers = append(rec.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
	}
	rec.Length = 0
	body := rec.AppendTo(nil)[1:] // Length 0 is one byte
	return append(binary.AppendVarint(nil, int64(len(body))), body...)
}

// encode returns the batch as it lies in a log.
func (b testBatch) encode(t testing.TB) []byte {
	t.Helper()
	payload := b.payload
	count, last := b.count, b.lastDelta
	if payload == nil {
		for _, r := range b.records {
			payload = append(payload, encodeRecord(r)...)
		}
		payload = deflate(t, int(b.attributes&attributeCodec), payload)
	}
	if count == -1 {
		count = int32(len(b.records))
	}
	if last == -1 {
		last = b.records[len(b.records)-1].delta
	}
	batch := kmsg.RecordBatch{
		FirstOffset: b.base, Length: int32(batchRecords - batchLengthEnd + len(payload)), PartitionLeaderEpoch: b.epoch, Magic: 2,
		Attributes: b.attributes, LastOffsetDelta: last, FirstTimestamp: b.baseTime, MaxTimestamp: b.maxTime,
		ProducerID: b.producer, ProducerEpoch: -1, FirstSequence: -1, NumRecords: count, Records: payload,
	}
	raw := batch.AppendTo(nil)
	return seal(raw)
}

// seal sets the checksum of one batch.
func seal(raw []byte) []byte {
	binary.BigEndian.PutUint32(raw[batchChecksum:], crc32.Checksum(raw[batchAttributes:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// markerBatch is a control batch; kind 0 aborts, 1 commits.
func markerBatch(base, producer int64, kind int16) testBatch {
	key := binary.BigEndian.AppendUint16(nil, 0)
	key = binary.BigEndian.AppendUint16(key, uint16(kind))
	b := plainBatch(base, 1)
	b.attributes, b.producer = attributeControl|attributeTransactional, producer
	b.records = []testRecord{{key: key, value: []byte{0, 0, 0, 0, 0, 1}}}
	return b
}

// encoders are made once: making them takes longer than using them.
var encoders struct {
	sync.Mutex
	gzip *gzip.Writer
	lz4  *lz4.Writer
	zstd *zstd.Encoder
}

func deflate(t testing.TB, codec int, payload []byte) []byte {
	t.Helper()
	e := &encoders
	e.Lock()
	defer e.Unlock()
	if e.zstd == nil {
		var err error
		e.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
		require.NoError(t, err)
		e.gzip, e.lz4 = gzip.NewWriter(nil), lz4.NewWriter(nil)
	}
	var buf bytes.Buffer
	var w io.WriteCloser
	switch codec {
	case codecSnappy:
		return s2.EncodeSnappy(nil, payload)
	case codecGzip:
		e.gzip.Reset(&buf)
		w = e.gzip
	case codecLz4:
		e.lz4.Reset(&buf)
		w = e.lz4
	case codecZstd:
		if len(payload)%2 == 0 {
			return e.zstd.EncodeAll(payload, nil) // says how long its content is
		}
		e.zstd.Reset(&buf)
		w = e.zstd
	default:
		return payload
	}
	_, err := w.Write(payload)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func testChunk(data []byte) actors.Chunk {
	return actors.Chunk{TopicPartition: testPartition, Data: data, MaxBatchBytes: testCap, Isolation: kafka.ReadCommitted}
}

// newTestReader returns a reader over the batches in a row.
func newTestReader(t testing.TB, batches ...testBatch) *chunkReader {
	t.Helper()
	var data []byte
	for _, b := range batches {
		data = append(data, b.encode(t)...)
	}
	return newChunkReader(testChunk(data), newDecompressors(), nil)
}

// readAll reads the chunk to its end or error and returns all records, the last NextOffset and the error.
func readAll(r actors.ChunkReader, from int64) (records []kafka.Record, next int64, err error) {
	for next = from; ; {
		slab, err := r.Next(next)
		if err != nil {
			return records, next, err
		}
		records = append(records, slab.Records...)
		next = max(next, slab.NextOffset)
	}
}

func offsetsOf(records []kafka.Record) []int64 {
	var out []int64
	for i := range records {
		out = append(out, records[i].Offset)
	}
	return out
}

// semiRandom is text that compresses about as JSON does.
func semiRandom(rng *rand.Rand, n int) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, n)
	for i := range b {
		if i%4 < 2 {
			b[i] = letters[rng.IntN(len(letters))]
		} else {
			b[i] = "\"status\":"[i%9]
		}
	}
	return b
}

// benchChunk is about 1 MiB of batches of 64 KiB with records of size bytes, as the records' number.
func benchChunk(t testing.TB, codec, size int) (data []byte, records int) {
	rng := rand.New(rand.NewPCG(1, 2))
	base := int64(0)
	for range 16 {
		b := plainBatch(base, 0)
		b.attributes = int16(codec)
		for total := 0; total < 64<<10; total += size {
			b.records = append(b.records, testRecord{delta: int32(len(b.records)), timestamp: int64(len(b.records)), value: semiRandom(rng, size)})
		}
		base += int64(len(b.records))
		records += len(b.records)
		data = append(data, b.encode(t)...)
	}
	return data, records
}

// inflateFresh inflates into memory that nobody gives back.
func inflateFresh(d *decompressors, codec int, src []byte, limit int) ([]byte, error) {
	out, _, err := d.inflate(codec, src, limit, nil)
	return out, err
}
