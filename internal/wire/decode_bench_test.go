package wire

import (
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchmarkDecode reads a chunk of about 1 MiB again and again and reports the time of one record, beside 64 MiB
// of other live heap.
func benchmarkDecode(b *testing.B, codec int) {
	data, records := benchChunk(b, codec, 100)
	d := newDecompressors()
	// A service that consumes has memory of its own. Without any, the collector runs every few batches and the benchmark
	// measures mostly that.
	ballast := make([]byte, 64<<20)
	defer runtime.KeepAlive(ballast)
	b.ReportAllocs()
	b.SetBytes(int64(records * 100))
	for b.Loop() {
		r := newChunkReader(testChunk(data), d)
		got := 0
		for {
			slab, err := r.Next(0)
			if err == io.EOF {
				break
			}
			require.NoError(b, err)
			got += len(slab.Records)
		}
		if got != records {
			b.Fatalf("%d of %d records", got, records)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(records), "ns/record")
}

func BenchmarkDecode100BNone(b *testing.B)   { benchmarkDecode(b, codecNone) }
func BenchmarkDecode100BGzip(b *testing.B)   { benchmarkDecode(b, codecGzip) }
func BenchmarkDecode100BSnappy(b *testing.B) { benchmarkDecode(b, codecSnappy) }
func BenchmarkDecode100BLz4(b *testing.B)    { benchmarkDecode(b, codecLz4) }
func BenchmarkDecode100BZstd(b *testing.B)   { benchmarkDecode(b, codecZstd) }
