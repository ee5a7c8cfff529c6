package wire

import (
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// countedMemory counts how often it was given back.
type countedMemory struct{ recycled int }

func (m *countedMemory) Recycle() { m.recycled++ }

// recycled is the chunk with Recycle and data in a block of the pool, of which the chunk has the only reference.
func recycled(chunk actors.Chunk, memory *pool) (actors.Chunk, *block) {
	data, held := memory.takeBytes(len(chunk.Data))
	copy(data, chunk.Data)
	chunk.Data, chunk.Buffer, chunk.Recycle = data, held, true
	return chunk, held
}

// cloned copies records so that they share nothing.
func cloned(records []kafka.Record) []kafka.Record {
	out := make([]kafka.Record, len(records))
	for i := range records {
		out[i] = records[i].Clone()
	}
	return out
}

// heldSlab is a slab that is still read, with a copy of how it was handed out.
type heldSlab struct {
	slab actors.Slab
	copy []kafka.Record
}

// recycle checks that nobody changed the slab and gives it back.
func (h *heldSlab) recycle(t *testing.T) {
	t.Helper()
	requireSameRecords(t, h.copy, h.slab.Records)
	if h.slab.Memory != nil {
		h.slab.Memory.Recycle()
	}
}

// readRecycled is readAll over a chunk with Recycle. It keeps slabs for a while, recycles them in random order, and
// returns copies of the records. NextBytes is checked on the way.
func readRecycled(t *testing.T, rng *rand.Rand, r *chunkReader, from int64) (records []kafka.Record, next int64, err error) {
	t.Helper()
	var out []heldSlab
	giveBack := func(most int) {
		for len(out) > most {
			i := rng.IntN(len(out))
			out[i].recycle(t)
			out[i] = out[len(out)-1]
			out = out[:len(out)-1]
		}
	}
	for next = from; ; {
		bound := r.NextBytes()
		slab, err := r.Next(next)
		if err != nil {
			if rng.IntN(2) == 0 {
				r.Close()
			}
			giveBack(0)
			return records, next, err
		}
		require.True(t, bound == 0 || slab.Bytes <= bound, "%d bytes, %d were told", slab.Bytes, bound)
		require.Equal(t, len(slab.Records) > 0, slab.Memory != nil)
		copies := cloned(slab.Records)
		out = append(out, heldSlab{slab, copies})
		records = append(records, copies...)
		next = max(next, slab.NextOffset)
		giveBack(rng.IntN(8))
	}
}

func TestRecyclingChangesNoRecord(t *testing.T) {
	d := newDecompressors()
	memory := newPool(256<<10, true) // small: blocks are reused, and dropped, all the time
	total := 0
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 11))
		plain := testChunk(nil)
		plain.Data, plain.Aborted, _ = randomLog(t, rng)
		plain.Isolation = kafka.IsolationLevel(rng.IntN(2))
		from := int64(rng.IntN(2) * rng.IntN(1500))
		want, wantNext, wantErr := readAll(newChunkReader(plain, d, nil), from)
		chunk, source := recycled(plain, memory)
		got, next, err := readRecycled(t, rng, newChunkReader(chunk, d, memory), from)
		require.Equal(t, wantErr, err, "seed %d", seed)
		require.Equal(t, wantNext, next, "seed %d", seed)
		requireSameRecords(t, want, got)
		require.Zero(t, source.references.Load(), "seed %d: the answer is free", seed)
		require.LessOrEqual(t, memory.held, memory.limit)
		total += len(got)
	}
	require.Greater(t, total, 3_000)
}

// manyRecords is a batch of so many records that it comes as three slabs.
func manyRecords(t testing.TB, codec int) []byte {
	t.Helper()
	b := plainBatch(0, 0)
	b.attributes = int16(codec)
	for i := range 2*maxSlabRecords + 100 {
		b.records = append(b.records, testRecord{delta: int32(i), value: []byte("value")})
	}
	return b.encode(t)
}

func TestSlabsOfOneBatchShareItsMemory(t *testing.T) {
	for name, codec := range map[string]int{"none": codecNone, "snappy": codecSnappy, "lz4": codecLz4, "zstd": codecZstd} {
		t.Run(name, func(t *testing.T) {
			memory := newPool(64<<20, true)
			chunk, source := recycled(testChunk(manyRecords(t, codec)), memory)
			r := newChunkReader(chunk, newDecompressors(), memory)
			var out []heldSlab
			for next := int64(0); ; {
				slab, err := r.Next(next)
				if err == io.EOF {
					break
				}
				require.NoError(t, err)
				out, next = append(out, heldSlab{slab, cloned(slab.Records)}), slab.NextOffset
			}
			require.Len(t, out, 3)
			body := out[0].slab.Memory.(*block).beneath.(*block)
			require.EqualValues(t, 3, body.references.Load())
			require.Equal(t, codec == codecNone, body == source, "uncompressed records lie in the answer itself")
			for _, i := range []int{1, 2, 0} {
				require.Positive(t, body.references.Load())
				out[i].recycle(t)
			}
			require.Zero(t, body.references.Load())
			require.Zero(t, source.references.Load())
		})
	}
}

func TestAPartialBatchGivesItsAnswerBack(t *testing.T) {
	first, second := plainBatch(0, 3).encode(t), plainBatch(3, 3).encode(t)
	memory := newPool(1<<20, true)
	buffer := new(countedMemory)
	chunk := testChunk(first[:len(first)-1])
	chunk.Recycle, chunk.Buffer = true, buffer
	r := newChunkReader(chunk, newDecompressors(), memory)
	require.Zero(t, r.NextBytes())
	_, err := r.Next(0)
	var partial *kafka.PartialBatchError
	require.ErrorAs(t, err, &partial)
	require.Equal(t, 1, buffer.recycled)
	r.Close()
	require.Equal(t, 1, buffer.recycled)

	// Behind a whole batch the cut one is the end.
	buffer = new(countedMemory)
	chunk.Data, chunk.Buffer = append(first[:len(first):len(first)], second[:len(second)-1]...), buffer
	r = newChunkReader(chunk, newDecompressors(), memory)
	slab, err := r.Next(0)
	require.NoError(t, err)
	require.Zero(t, r.NextBytes())
	_, err = r.Next(3)
	require.Equal(t, io.EOF, err)
	require.Zero(t, buffer.recycled, "the slab aliases it")
	slab.Memory.Recycle()
	require.Equal(t, 1, buffer.recycled)
}

func TestClosingAReaderLetsGoOfWhatWasNotRead(t *testing.T) {
	data := append(manyRecords(t, codecNone), plainBatch(1<<20, 3).encode(t)...)
	for _, reads := range []int{0, 1, 2, 3, 4, 5} {
		memory, buffer := newPool(64<<20, true), new(countedMemory)
		chunk := testChunk(data)
		chunk.Recycle, chunk.Buffer = true, buffer
		r := newChunkReader(chunk, newDecompressors(), memory)
		var out []heldSlab
		for next := range reads {
			slab, err := r.Next(int64(next))
			if err == nil {
				out = append(out, heldSlab{slab, cloned(slab.Records)})
			}
		}
		for range 2 {
			r.Close()
			require.Zero(t, r.NextBytes())
			_, err := r.Next(0)
			require.Equal(t, io.EOF, err)
		}
		for i := range out {
			require.Zero(t, buffer.recycled)
			out[i].recycle(t)
		}
		require.Equal(t, 1, buffer.recycled)
	}
}

func TestWithoutRecycleTheChunksBufferIsLeftAlone(t *testing.T) {
	buffer := new(countedMemory)
	chunk := testChunk(plainBatch(0, 3).encode(t))
	chunk.Buffer = buffer
	r := newChunkReader(chunk, newDecompressors(), newPool(1<<20, true))
	slab, err := r.Next(0)
	require.NoError(t, err)
	require.Nil(t, slab.Memory)
	_, err = r.Next(3)
	require.Equal(t, io.EOF, err)
	r.Close()
	require.Zero(t, buffer.recycled)
}

func TestAnErrorInABatchLeavesItsEarlierSlabsAlone(t *testing.T) {
	for name, codec := range map[string]int{"none": codecNone, "lz4": codecLz4} {
		t.Run(name, func(t *testing.T) {
			b := plainBatch(0, 0)
			b.attributes = int16(codec)
			for i := range maxSlabRecords + 10 {
				b.records = append(b.records, testRecord{delta: int32(i), value: []byte("value")})
			}
			b.records[maxSlabRecords+5].delta = 1 // in the second slab, when records of it have been read
			memory := newPool(64<<20, true)
			chunk, source := recycled(testChunk(b.encode(t)), memory)
			r := newChunkReader(chunk, newDecompressors(), memory)
			slab, err := r.Next(0)
			require.NoError(t, err)
			first := heldSlab{slab, cloned(slab.Records)}
			body := slab.Memory.(*block).beneath.(*block)
			_, err = r.Next(slab.NextOffset)
			requireBatchError(t, err, kafka.ErrCorruptBatch, 0, maxSlabRecords+9)
			require.EqualValues(t, 1, body.references.Load(), "only the first slab reads it any more")
			first.recycle(t)
			require.Zero(t, body.references.Load())
			require.Zero(t, source.references.Load())
		})
	}
}

func TestASlabInThePoolKeepsNothingAlive(t *testing.T) {
	memory := newPool(1<<20, false)
	chunk, _ := recycled(testChunk(plainBatch(0, 3).encode(t)), memory)
	slab, err := newChunkReader(chunk, newDecompressors(), memory).Next(0)
	require.NoError(t, err)
	own := slab.Memory.(*block)
	own.Recycle()
	require.Nil(t, own.beneath)
	for _, r := range own.records[:cap(own.records)] {
		require.True(t, r.Key == nil || &r.Key[0] == &poisonBytes[0])
		require.True(t, r.Value == nil || &r.Value[0] == &poisonBytes[0])
		require.Zero(t, r.Headers.Len())
	}
}

func TestSlabsAreRecycledInOtherGoroutines(t *testing.T) {
	d, memory := newDecompressors(), newPool(1<<20, true)
	var logs [][]byte
	for _, codec := range []int{codecNone, codecSnappy, codecLz4, codecZstd} {
		data, _ := benchChunk(t, codec, 1000)
		logs = append(logs, data)
	}
	var sources []*block
	handed := make(chan heldSlab, 16)
	var readers, handlers sync.WaitGroup
	for i, data := range logs {
		chunk, source := recycled(testChunk(data), memory)
		sources = append(sources, source)
		readers.Go(func() {
			r := newChunkReader(chunk, d, memory)
			defer r.Close()
			for next := int64(0); ; {
				slab, err := r.Next(next)
				if err != nil {
					if err != io.EOF {
						t.Errorf("log %d: %v", i, err)
					}
					return
				}
				handed <- heldSlab{slab, cloned(slab.Records)}
				next = slab.NextOffset
			}
		})
	}
	for range 4 {
		handlers.Go(func() {
			for h := range handed {
				for i := range h.copy {
					if string(h.copy[i].Value) != string(h.slab.Records[i].Value) || h.copy[i].Offset != h.slab.Records[i].Offset {
						t.Errorf("record %d changed", i)
					}
				}
				h.slab.Memory.Recycle()
			}
		})
	}
	readers.Wait()
	close(handed)
	handlers.Wait()
	for _, source := range sources {
		require.Zero(t, source.references.Load())
	}
	require.LessOrEqual(t, memory.held, memory.limit)
}

func TestDecodingWithRecyclingAllocatesNextToNothing(t *testing.T) {
	for codec, name := range codecNames {
		t.Run(name, func(t *testing.T) {
			data, records := benchChunk(t, codec, 100)
			d, memory := newDecompressors(), newPool(defaultMaxRecycledBytes, false)
			read := func() {
				chunk := testChunk(data)
				chunk.Recycle = true
				r := newChunkReader(chunk, d, memory)
				for {
					slab, err := r.Next(0)
					if err != nil {
						return
					}
					slab.Memory.Recycle()
				}
			}
			// The decoders lie in a sync.Pool, which a collection in between may empty, and of which the race detector drops some.
			least := math.Inf(1)
			for range 3 {
				least = min(least, testing.AllocsPerRun(5, read)/float64(records))
			}
			require.Less(t, least, 0.02)
		})
	}
}
