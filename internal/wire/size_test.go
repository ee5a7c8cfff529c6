package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/kafka"
)

// sizedBatch is a batch of n records, and how long they are. The length is even, for which deflate makes zstd frames that
// state it.
func sizedBatch(t testing.TB, codec, n int) (data []byte, size int) {
	t.Helper()
	odd := (n * len(encodeRecord(plainBatch(0, 1).records[0]))) % 2
	b := plainBatch(0, n)
	b.records[0].value = append(b.records[0].value, bytes.Repeat([]byte("!"), odd)...)
	b.attributes, b.count, b.lastDelta = int16(codec), int32(n), int32(n-1)
	for _, r := range b.records {
		b.payload = append(b.payload, encodeRecord(r)...)
	}
	size = len(b.payload)
	b.payload = deflate(t, codec, b.payload)
	return b.encode(t), size
}

func TestNextBytesIsExactWhereTheSizeIsStated(t *testing.T) {
	for name, codec := range map[string]int{"none": codecNone, "snappy": codecSnappy, "zstd": codecZstd} {
		t.Run(name, func(t *testing.T) {
			data, size := sizedBatch(t, codec, 100)
			r := newChunkReader(testChunk(data), newDecompressors(), nil)
			require.Equal(t, size+100*recordSize, r.NextBytes())
			slab, err := r.Next(0)
			require.NoError(t, err)
			require.Equal(t, size+100*recordSize, slab.Bytes)
			require.Zero(t, r.NextBytes(), "nothing is left")
		})
	}
}

func TestNextBytesOfAnOpenBatchCountsWhatIsLeft(t *testing.T) {
	r := newChunkReader(testChunk(manyRecords(t, codecZstd)), newDecompressors(), nil)
	for _, records := range []int{maxSlabRecords, maxSlabRecords, 100} {
		bound := r.NextBytes()
		slab, err := r.Next(0)
		require.NoError(t, err)
		require.Len(t, slab.Records, records)
		require.GreaterOrEqual(t, bound, slab.Bytes)
		if records == 100 {
			require.Equal(t, bound, slab.Bytes)
		}
	}
	require.Zero(t, r.NextBytes())
}

func TestNextBytesIsUnknownWhereNothingStatesTheSize(t *testing.T) {
	for name, data := range map[string][]byte{
		"gzip": func() []byte { data, _ := sizedBatch(t, codecGzip, 100); return data }(),
		"zstd of unknown length": func() []byte {
			b := plainBatch(0, 1)
			b.attributes, b.count, b.lastDelta = codecZstd, 1, 0
			b.payload = deflate(t, codecZstd, make([]byte, 300_001)) // an odd length is streamed
			return b.encode(t)
		}(),
		"codec 5": func() []byte { data, _ := sizedBatch(t, codecNone, 2); data[batchAttributes+1] = 5; return data }(),
		"magic 1": func() []byte { data, _ := sizedBatch(t, codecNone, 2); data[batchMagic] = 1; return data }(),
		"cut":     func() []byte { data, _ := sizedBatch(t, codecNone, 2); return data[:len(data)-1] }(),
		"short":   make([]byte, batchRecords-1),
		"nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			require.Zero(t, newChunkReader(testChunk(data), newDecompressors(), nil).NextBytes())
		})
	}
}

func TestNextBytesBelievesNoClaim(t *testing.T) {
	for codec, name := range codecNames {
		t.Run(name, func(t *testing.T) {
			b := plainBatch(40, 0)
			b.attributes, b.count, b.lastDelta, b.payload = int16(codec), 1<<30, 1<<30, claim(codec)
			r := newChunkReader(testChunk(b.encode(t)), newDecompressors(), nil)
			require.LessOrEqual(t, r.NextBytes(), testCap+maxSlabRecords*recordSize)
		})
	}
}

func TestInflatedBoundIsNeverBelowTheContent(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := newDecompressors()
	for range 60 {
		content := semiRandom(rng, rng.IntN(200_000))
		if rng.IntN(3) == 0 {
			content = make([]byte, len(content))
		}
		for codec, name := range codecNames {
			payload := deflate(t, codec, content)
			for _, frames := range []int{1, 2} {
				if codec == codecSnappy && frames == 2 {
					continue // blocks do not follow each other
				}
				src := bytes.Repeat(payload, frames)
				out, err := inflateFresh(d, codec, src, testCap)
				require.NoError(t, err)
				bound := inflatedBound(codec, src, testCap)
				require.True(t, bound == 0 || bound >= len(out), "%s: %d of %d", name, bound, len(out))
				if bound > 0 && codec != codecLz4 {
					require.Equal(t, len(out), bound, name)
				}
				require.LessOrEqual(t, inflatedBound(codec, src, 1000), 1000)
				inflatedBound(codec, src[:rng.IntN(len(src)+1)], testCap)
			}
		}
	}
}

func TestInflatedBoundOfAJavaSnappyStreamIsItsSum(t *testing.T) {
	stream := append(append([]byte(nil), xerialMagic...), 0, 0, 0, 1, 0, 0, 0, 1)
	for range 3 {
		chunk := s2.EncodeSnappy(nil, make([]byte, 1000))
		stream = append(binary.BigEndian.AppendUint32(stream, uint32(len(chunk))), chunk...)
	}
	require.Equal(t, 3000, inflatedBound(codecSnappy, stream, testCap))
	require.Zero(t, inflatedBound(codecSnappy, stream[:len(stream)-1], testCap))
}

func TestAnLz4FrameKeepsToTheSizeItStates(t *testing.T) {
	content := semiRandom(rand.New(rand.NewPCG(3, 4)), 100_000)
	frame := func(stated int) []byte {
		var buf bytes.Buffer
		w := lz4.NewWriter(&buf)
		require.NoError(t, w.Apply(lz4.BlockSizeOption(lz4.Block4Mb), lz4.SizeOption(uint64(len(content)))))
		_, err := w.Write(content)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		out := buf.Bytes()
		binary.LittleEndian.PutUint64(out[6:], uint64(stated))
		return out
	}
	require.Equal(t, len(content), inflatedBound(codecLz4, frame(len(content)), testCap))
	_, err := inflateFresh(newDecompressors(), codecLz4, frame(len(content)), testCap)
	require.NoError(t, err)
	for _, stated := range []int{1, len(content) - 1, len(content) + 1} {
		_, err := inflateFresh(newDecompressors(), codecLz4, frame(stated), testCap)
		require.ErrorIs(t, err, kafka.ErrCorruptBatch)
	}
	_, err = inflateFresh(newDecompressors(), codecLz4, frame(testCap+1), testCap)
	require.ErrorIs(t, err, kafka.ErrBatchTooLarge)
}

func TestNextBytesAllocatesNothing(t *testing.T) {
	for _, codec := range []int{codecNone, codecGzip, codecSnappy, codecLz4, codecZstd} {
		data, _ := benchChunk(t, codec, 100)
		r := newChunkReader(testChunk(data), newDecompressors(), nil)
		require.Zero(t, testing.AllocsPerRun(10, func() { r.NextBytes() }), codec)
	}
}
