package wire

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/internal/buffer"
)

// benchmarkDecode reads a chunk of about 1 MiB again and again and reports the time of one record, beside 64 MiB
// of other live heap. When it recycles, eight slabs are out at any time.
func benchmarkDecode(b *testing.B, codec, size int, recycle bool) {
	data, records := benchChunk(b, codec, size)
	d, memory := newDecompressors(), newPool(defaultMaxRecycledBytes, false)
	// A service that consumes has memory of its own. Without any, the collector runs every few batches and the benchmark
	// measures mostly that.
	ballast := make([]byte, 64<<20)
	defer runtime.KeepAlive(ballast)
	var out [8]buffer.Memory
	next := 0
	b.ReportAllocs()
	b.SetBytes(int64(records * size))
	for b.Loop() {
		chunk := testChunk(data)
		chunk.Recycle = recycle
		r := newChunkReader(chunk, d, memory)
		got := 0
		for {
			r.NextBytes()
			slab, err := r.Next(0)
			if err == io.EOF {
				break
			}
			require.NoError(b, err)
			got += len(slab.Records)
			if out[next] != nil {
				out[next].Recycle()
			}
			out[next], next = slab.Memory, (next+1)%len(out)
		}
		if got != records {
			b.Fatalf("%d of %d records", got, records)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(records), "ns/record")
}

func BenchmarkDecode(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"100B", 100}, {"1KB", 1000}} {
		for _, codec := range []struct {
			name string
			id   int
		}{{"none", codecNone}, {"gzip", codecGzip}, {"snappy", codecSnappy}, {"lz4", codecLz4}, {"zstd", codecZstd}} {
			b.Run(size.name+"/"+codec.name+"/kept", func(b *testing.B) { benchmarkDecode(b, codec.id, size.bytes, false) })
			b.Run(size.name+"/"+codec.name+"/recycled", func(b *testing.B) { benchmarkDecode(b, codec.id, size.bytes, true) })
		}
	}
}

// BenchmarkReadFrame reads an answer of 1 MiB into fresh memory, into memory of a pool that gets none of it back, and into
// memory that is given back, beside 64 MiB of other live heap.
func BenchmarkReadFrame(b *testing.B) {
	frame := frameOf(make([]byte, 1<<20))
	ballast := make([]byte, 64<<20)
	defer runtime.KeepAlive(ballast)
	for _, c := range []struct {
		name    string
		memory  *pool
		recycle bool
	}{{"fresh", nil, false}, {"kept", newPool(defaultMaxRecycledBytes, false), false}, {"recycled", newPool(defaultMaxRecycledBytes, false), true}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, held, _, err := readFrameInto(c.memory, bytes.NewReader(frame), 2<<20, 2<<20)
				require.NoError(b, err)
				if c.recycle {
					held.Recycle()
				}
			}
		})
	}
}
