package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/kafka"
)

var codecNames = map[int]string{codecGzip: "gzip", codecSnappy: "snappy", codecLz4: "lz4", codecZstd: "zstd"}

func TestEachCodecInflatesToABufferOfExactlyItsContent(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	d := newDecompressors()
	for codec, name := range codecNames {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{0, 1, 100, 4 << 10, 64<<10 - 1, 64 << 10, 300_001, 5<<20 + 3} {
				contents := [][]byte{make([]byte, size)}
				if size < 1<<20 { // random text of megabytes takes too long under the race detector
					contents = append(contents, semiRandom(rng, size))
				}
				for _, content := range contents {
					out, err := inflateFresh(d, codec, deflate(t, codec, content), max(size, 1))
					require.NoError(t, err)
					require.True(t, bytes.Equal(content, out), size)
					require.LessOrEqual(t, cap(out), size+size/4+64) // size classes round up
				}
			}
		})
	}
}

func TestOneByteAboveTheLimitIsTooLarge(t *testing.T) {
	d := newDecompressors()
	for codec, name := range codecNames {
		for _, size := range []int{10, 70_000, 1 << 20} {
			content := semiRandom(rand.New(rand.NewPCG(3, 4)), size)
			_, err := inflateFresh(d, codec, deflate(t, codec, content), size)
			require.NoError(t, err, name)
			_, err = inflateFresh(d, codec, deflate(t, codec, content), size-1)
			require.ErrorIs(t, err, kafka.ErrBatchTooLarge, name)
		}
	}
}

// bomb is a compressed gigabyte of zeros.
func bomb(t testing.TB, codec int) []byte {
	t.Helper()
	const size = 1 << 30
	var buf bytes.Buffer
	block := make([]byte, 1<<20)
	switch codec {
	case codecGzip:
		w := gzip.NewWriter(&buf)
		for range 4 { // members may follow each other: the same 16 MiB many times
			for range 16 {
				_, _ = w.Write(block)
			}
			require.NoError(t, w.Close())
			w.Reset(&buf)
		}
		return bytes.Repeat(buf.Bytes(), size>>26)
	case codecLz4:
		w := lz4.NewWriter(&buf)
		for range 16 {
			_, _ = w.Write(block)
		}
		require.NoError(t, w.Close())
		return bytes.Repeat(buf.Bytes(), size>>24)
	case codecZstd:
		w, err := zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1))
		require.NoError(t, err)
		for range 64 {
			_, _ = w.Write(block)
		}
		require.NoError(t, w.Close())
		return bytes.Repeat(buf.Bytes(), size>>26)
	default: // a Java snappy stream of many blocks
		buf.Write(xerialMagic)
		buf.Write(make([]byte, 8))
		chunk := s2.EncodeSnappy(nil, block)
		for range size >> 20 {
			_ = binary.Write(&buf, binary.BigEndian, uint32(len(chunk)))
			buf.Write(chunk)
		}
		return buf.Bytes()
	}
}

// claim is a few bytes that say they are a gigabyte.
func claim(codec int) []byte {
	switch codec {
	case codecGzip: // one stored block that is not there, length 2^30 in the trailer
		return []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x40}
	case codecLz4: // content size 2^30, blocks of 4 MiB
		return []byte{0x04, 0x22, 0x4d, 0x18, 0x68, 0x70, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}
	case codecZstd: // single segment, content size 2^30, one raw block of a byte
		return []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x40, 9, 0, 0, 0}
	default:
		return append(binary.AppendUvarint(nil, 1<<30), 0, 0)
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestABombIsRefusedWithoutInflatingIt(t *testing.T) {
	const limit = 16 << 20
	for codec, name := range codecNames {
		t.Run(name, func(t *testing.T) {
			for kind, payload := range map[string][]byte{"bomb": bomb(t, codec), "claim": claim(codec)} {
				b := plainBatch(40, 0)
				b.attributes, b.count, b.lastDelta, b.payload = int16(codec), 1000, 999, payload
				chunk := testChunk(b.encode(t))
				chunk.MaxBatchBytes = limit
				var err error
				bytes := allocated(func() { _, err = newChunkReader(chunk, newDecompressors(), nil).Next(0) })
				// A scratch buffer that doubles allocates twice its last size in all.
				require.Less(t, bytes, uint64(5*limit/2), kind)
				if kind == "bomb" {
					requireBatchError(t, err, kafka.ErrBatchTooLarge, 40, 1039)
				} else {
					require.Error(t, err)
					require.Less(t, bytes, uint64(2<<20), "what is claimed is not believed")
				}
			}
		})
	}
}

func TestABombOfTinyRecordsIsHandedOutPieceByPiece(t *testing.T) {
	// 7 bytes on the wire and more than 100 in memory: without pieces 8 MiB of records would take 150.
	const count = 1 << 20
	b := plainBatch(0, 0)
	b.attributes, b.count, b.lastDelta = codecZstd, count, count-1
	var raw []byte
	for i := range count {
		raw = append(raw, encodeRecord(testRecord{delta: int32(i)})...)
	}
	b.payload = deflate(t, codecZstd, raw)
	r := newTestReader(t, b)
	next, total := int64(0), 0
	for next < count {
		var largest int
		bytes := allocated(func() {
			slab, err := r.Next(next)
			require.NoError(t, err)
			next, largest = slab.NextOffset, slab.Bytes
			total += len(slab.Records)
		})
		require.LessOrEqual(t, largest, maxSlabRecords*(recordSize+10))
		if total > maxSlabRecords { // the first call decompresses
			require.Less(t, bytes, uint64(2*maxSlabRecords*recordSize))
		}
	}
	require.Equal(t, count, total)
}

func TestBytesThatAreNotTheCodecsAreCorrupt(t *testing.T) {
	d := newDecompressors()
	content := semiRandom(rand.New(rand.NewPCG(3, 4)), 10_000)
	for codec, name := range codecNames {
		t.Run(name, func(t *testing.T) {
			whole := deflate(t, codec, content)
			for _, src := range [][]byte{nil, []byte("this is not compressed at all"), whole[:len(whole)/2], whole[:len(whole)-5]} {
				_, err := inflateFresh(d, codec, src, testCap)
				if err != nil {
					require.ErrorIs(t, err, kafka.ErrCorruptBatch)
					continue
				}
				require.Fail(t, "accepted", "%q", src)
			}
			out, err := inflateFresh(d, codec, whole, testCap)
			require.NoError(t, err, "a failure leaves the decoders usable")
			require.Equal(t, content, out)
		})
	}
}

func TestJavaSnappyStreamsOfSeveralChunksAreRead(t *testing.T) {
	d := newDecompressors()
	content := semiRandom(rand.New(rand.NewPCG(3, 4)), 100_000)
	stream := append(append([]byte(nil), xerialMagic...), 0, 0, 0, 1, 0, 0, 0, 1)
	for rest := content; len(rest) > 0; {
		n := min(len(rest), 32<<10)
		chunk := s2.EncodeSnappy(nil, rest[:n])
		stream = binary.BigEndian.AppendUint32(stream, uint32(len(chunk)))
		stream = append(stream, chunk...)
		rest = rest[n:]
	}
	out, err := inflateFresh(d, codecSnappy, stream, len(content))
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, out))
	_, err = inflateFresh(d, codecSnappy, stream, len(content)-1)
	require.ErrorIs(t, err, kafka.ErrBatchTooLarge)
	for _, cut := range []int{8, 15, 17, 19, 30, len(stream) - 1} {
		_, err = inflateFresh(d, codecSnappy, stream[:cut], testCap)
		require.ErrorIs(t, err, kafka.ErrCorruptBatch, cut)
	}
}

func TestLz4FramesOfEveryShapeAreRead(t *testing.T) {
	d := newDecompressors()
	content := semiRandom(rand.New(rand.NewPCG(3, 4)), 700_000)
	for _, options := range [][]lz4.Option{
		{lz4.BlockSizeOption(lz4.Block64Kb)},
		{lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false)},
		{lz4.BlockSizeOption(lz4.Block256Kb), lz4.BlockChecksumOption(true)},
		{lz4.BlockSizeOption(lz4.Block1Mb), lz4.SizeOption(uint64(len(content)))},
		{lz4.BlockSizeOption(lz4.Block4Mb), lz4.CompressionLevelOption(lz4.Level5)},
	} {
		var buf bytes.Buffer
		w := lz4.NewWriter(&buf)
		require.NoError(t, w.Apply(options...))
		_, err := w.Write(content)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		out, err := inflateFresh(d, codecLz4, buf.Bytes(), len(content))
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, out))
		two := append(append([]byte{0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3}, buf.Bytes()...), buf.Bytes()...)
		out, err = inflateFresh(d, codecLz4, two, 2*len(content))
		require.NoError(t, err, "frames may follow each other, behind a skippable one")
		require.Len(t, out, 2*len(content))
	}
}

func TestLz4BlocksMayReferToTheBlocksBefore(t *testing.T) {
	// "0123456789abcdef" stored, then a block that copies it 16 bytes back, twice the length: one literal and a match.
	frame := []byte{0x04, 0x22, 0x4d, 0x18, 0x40, 0x40, 0}
	frame = append(frame, 16, 0, 0, 0x80)
	frame = append(frame, "0123456789abcdef"...)
	block := []byte{0x0f, 16, 0, 13, 0x50, 'V', 'W', 'X', 'Y', 'Z'} // match of 15+13+4 = 32 bytes, then 5 literals
	frame = append(frame, byte(len(block)), 0, 0, 0)
	frame = append(frame, block...)
	frame = append(frame, 0, 0, 0, 0)
	out, err := inflateFresh(newDecompressors(), codecLz4, frame, 10_000)
	require.NoError(t, err)
	require.Equal(t, "0123456789abcdef0123456789abcdef0123456789abcdefVWXYZ", string(out))
	frame[4] |= lz4FlagIndependent
	_, err = inflateFresh(newDecompressors(), codecLz4, frame, 10_000)
	require.ErrorIs(t, err, kafka.ErrCorruptBatch, "the same in a frame of independent blocks refers to nothing")
}

func TestDecompressorsServeManyGoroutinesAtOnce(t *testing.T) {
	d := newDecompressors()
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 8 {
				content := append(strconv.AppendInt(nil, int64(g*1000+i), 10), semiRandom(rng, rng.IntN(50_000))...)
				for codec := range codecNames {
					out, err := inflateFresh(d, codec, deflate(t, codec, content), testCap)
					if err != nil || !bytes.Equal(out, content) {
						t.Errorf("codec %d: %v", codec, err)
					}
				}
			}
		})
	}
	group.Wait()
}
