package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/troupego/troupe/pkg/kafka"
)

// The compression codecs of a record batch, bits 0 to 2 of its attributes.
const (
	codecNone = iota
	codecGzip
	codecSnappy
	codecLz4
	codecZstd
)

const (
	// minScratch is the size a scratch buffer starts with.
	minScratch = 64 << 10
	// keepScratch is the largest scratch buffer that is kept for the next batch: a rare huge batch must not hold its
	// memory for ever.
	keepScratch = 4 << 20
	// scratchSlack is room past the limit. It shows that a stream goes on past it, and it keeps the zstd decoder from
	// growing its output for the last block, which it does unless a whole one would fit.
	scratchSlack = 128<<10 + 64
	// minZstdMemory is the least that a zstd decoder may use. The option limits the window too, for which frames of
	// unknown length ask whether they use it or not; 8 MiB is what every decoder should grant (RFC 8878, 3.1.1.1.2).
	minZstdMemory = 8 << 20
	// maxInt32 is the largest batch the format can express.
	maxInt32 = 1<<31 - 1
)

// errPastLimit says inside this file that the output is longer than the limit.
var errPastLimit = errors.New("longer than the limit when decompressed")

// decompressors inflates the records of batches. It is safe for concurrent use; each call borrows a set of decoders and
// a scratch buffer. It belongs to one Network and is never shared wider: a zstd decoder holds channels, which must not
// cross the border of a synctest bubble.
type decompressors struct {
	idle sync.Pool
}

// inflater is the decoders and memory of one call at a time. Its decoders are made at their first use.
type inflater struct {
	scratch []byte
	src     bytes.Reader
	gzip    *gzip.Reader
	zstd    *zstd.Decoder
	// zstdMemory is the memory zstd was made for.
	zstdMemory int
}

func newDecompressors() *decompressors {
	d := new(decompressors)
	d.idle.New = func() any { return new(inflater) }
	return d
}

// inflate returns the decompressed bytes of src, exactly their number, in a block of memory with one reference to it; in
// fresh memory and a nil block when memory is nil. The error wraps kafka.ErrBatchTooLarge when they are more than limit, and
// no more than that is then decompressed; kafka.ErrUnsupportedCompression for an unknown codec; kafka.ErrCorruptBatch
// otherwise.
func (d *decompressors) inflate(codec int, src []byte, limit int, memory *pool) ([]byte, *block, error) {
	limit = min(limit, maxInt32-scratchSlack)
	if codec == codecSnappy {
		out, held, err := inflateSnappy(src, limit, memory)
		return out, held, inflateError("snappy", limit, err)
	}
	in := d.idle.Get().(*inflater)
	defer d.release(in)
	name := ""
	var n int
	var err error
	switch codec {
	case codecGzip:
		name = "gzip"
		n, err = in.inflateGzip(src, limit)
	case codecLz4:
		name = "lz4"
		n, err = in.inflateLz4(src, limit)
	case codecZstd:
		name = "zstd"
		n, err = in.inflateZstd(src, limit)
	default:
		return nil, nil, fmt.Errorf("%w: codec %d", kafka.ErrUnsupportedCompression, codec)
	}
	if err == nil && n > limit {
		err = errPastLimit
	}
	if err != nil {
		return nil, nil, inflateError(name, limit, err)
	}
	// A large scratch buffer would not be kept for the next batch. It is handed over, so that a large batch is not in
	// memory twice.
	if len(in.scratch) > keepScratch && n >= len(in.scratch)/8*7 {
		out := in.scratch[:n:n]
		in.scratch = nil
		if memory == nil {
			return out, nil, nil
		}
		return out, memory.adopt(out), nil
	}
	// Otherwise the copy costs less than it saves: the slab keeps the buffer for as long as the user keeps a record, so it
	// should be no larger than its content, and most streams do not say how long that is.
	out, held := memory.takeBytes(n)
	copy(out, in.scratch)
	return out[:n:n], held, nil
}

// release gives the decoders back without references to the batch they read.
func (d *decompressors) release(in *inflater) {
	in.src.Reset(nil)
	if cap(in.scratch) > keepScratch {
		in.scratch = nil
	}
	d.idle.Put(in)
}

// inflateError gives err its place among the batch errors.
func inflateError(name string, limit int, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errPastLimit):
		return fmt.Errorf("%w: more than %d bytes after %s", kafka.ErrBatchTooLarge, limit, name)
	default:
		return fmt.Errorf("%w: %s: %w", kafka.ErrCorruptBatch, name, err)
	}
}

// grow makes the scratch buffer hold at least want bytes and keeps its first n. It never makes it longer than
// limit+scratchSlack and reports whether want fits in that.
func (in *inflater) grow(n, want, limit int) bool {
	if want <= len(in.scratch) {
		return true
	}
	if want > limit+scratchSlack {
		return false
	}
	size := max(want, 2*len(in.scratch), minScratch)
	if size >= limit {
		size = limit + scratchSlack
	}
	bigger := make([]byte, size)
	copy(bigger, in.scratch[:n])
	in.scratch = bigger
	return true
}

// inflateGzip leaves the content of the gzip members of src in the scratch buffer and returns its length, which is more
// than limit when it was cut off there.
func (in *inflater) inflateGzip(src []byte, limit int) (int, error) {
	in.src.Reset(src)
	if in.gzip == nil {
		in.gzip = new(gzip.Reader)
	}
	if err := in.gzip.Reset(&in.src); err != nil {
		return 0, unexpectedEOF(err)
	}
	n := 0
	for n <= limit {
		if n == len(in.scratch) {
			in.grow(n, n+1, limit)
		}
		m, err := in.gzip.Read(in.scratch[n:])
		n += m
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// unexpectedEOF turns io.EOF into an error that no caller takes for success.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// inflateZstd leaves the content of the zstd frames of src in the scratch buffer and returns its length.
func (in *inflater) inflateZstd(src []byte, limit int) (int, error) {
	if len(src) == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	if err := in.openZstd(max(limit, minZstdMemory)); err != nil {
		return 0, err
	}
	bound, _, err := zstdBound(src, limit)
	if err != nil {
		return 0, err
	}
	in.grow(0, bound+scratchSlack, limit)
	out, err := in.zstd.DecodeAll(src, in.scratch[:0])
	if cap(out) > len(in.scratch) {
		in.scratch = out[:cap(out)]
	}
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return 0, errPastLimit
	}
	return len(out), err
}

// zstdBound returns how long the content of the zstd frames of src can be at most, or limit when that is less. It looks at
// the headers of frames and blocks only. With it the output is allocated once: left to itself, the decoder would grow it
// many times over, or trust what a frame says of its size. stated is whether every frame says its size; the bound then
// counts on it, as the decoder refuses a frame that is longer.
func zstdBound(src []byte, limit int) (n int, stated bool, err error) {
	const blockHeader, maxBlock, checksum = 3, 128 << 10, 4
	bound := uint64(0)
	stated = true
	for len(src) > 0 {
		var frame zstd.Header
		if err := frame.Decode(src); err != nil {
			return 0, false, unexpectedEOF(err)
		}
		if frame.Skippable {
			if skip := uint64(frame.HeaderSize) + uint64(frame.SkippableSize); skip < uint64(len(src)) {
				src = src[skip:]
				continue
			}
			break
		}
		if frame.HasFCS && frame.FrameContentSize > uint64(limit) {
			return 0, false, errPastLimit
		}
		src = src[frame.HeaderSize:]
		blocks := uint64(0)
		for last := false; !last; {
			if len(src) < blockHeader {
				return 0, false, io.ErrUnexpectedEOF
			}
			head := uint32(src[0]) | uint32(src[1])<<8 | uint32(src[2])<<16
			last = head&1 != 0
			kind, size := head>>1&3, head>>3
			src = src[blockHeader:]
			stored := size
			switch kind {
			case 0: // raw
				blocks += uint64(size)
			case 1: // one byte, repeated
				blocks, stored = blocks+uint64(size), 1
			default:
				blocks += maxBlock
			}
			if uint64(stored) > uint64(len(src)) {
				return 0, false, io.ErrUnexpectedEOF
			}
			src = src[stored:]
		}
		if frame.HasFCS {
			blocks = min(blocks, frame.FrameContentSize)
		}
		stated = stated && frame.HasFCS
		bound += blocks
		if frame.HasCheckSum {
			src = src[min(checksum, len(src)):]
		}
	}
	return int(min(bound, uint64(limit))), stated, nil
}

// openZstd makes a zstd decoder that stops at memory bytes. The limit is nearly always the same, so it is rarely made anew.
func (in *inflater) openZstd(memory int) error {
	if in.zstd != nil && in.zstdMemory == memory {
		return nil
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(uint64(memory)))
	if err != nil {
		return err
	}
	in.zstd, in.zstdMemory = dec, memory
	return nil
}

// xerialMagic begins the framing of the Java snappy stream: then two version numbers and chunks, each behind its length.
var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const xerialHeader = 16

// inflateSnappy decompresses one raw snappy block or a Java snappy stream. Both say how long their content is, so the
// result is allocated once, after that was checked.
func inflateSnappy(src []byte, limit int, memory *pool) ([]byte, *block, error) {
	total, err := snappySize(src, limit)
	if err != nil {
		return nil, nil, err
	}
	out, held := memory.takeBytes(total)
	if err := decodeSnappy(out, src); err != nil {
		held.Recycle()
		return nil, nil, err
	}
	return out[:total:total], held, nil
}

// snappySize returns how long the content of src says it is, errPastLimit when that is more than limit.
func snappySize(src []byte, limit int) (int, error) {
	if !bytes.HasPrefix(src, xerialMagic) {
		total, err := s2.DecodedLen(src)
		if err == nil && total > limit {
			err = errPastLimit
		}
		return total, err
	}
	if len(src) < xerialHeader {
		return 0, io.ErrUnexpectedEOF
	}
	total := 0
	for rest := src[xerialHeader:]; len(rest) > 0; {
		chunk, after, err := cutXerial(rest)
		if err != nil {
			return 0, err
		}
		n, err := s2.DecodedLen(chunk)
		if err != nil {
			return 0, err
		}
		if total += n; total > limit || n > limit {
			return 0, errPastLimit
		}
		rest = after
	}
	return total, nil
}

// decodeSnappy decompresses src, which snappySize has found good, into out of that size.
func decodeSnappy(out, src []byte) error {
	if !bytes.HasPrefix(src, xerialMagic) {
		_, err := s2.Decode(out, src)
		return err
	}
	for rest := src[xerialHeader:]; len(rest) > 0; {
		chunk, after, err := cutXerial(rest)
		if err != nil {
			return err
		}
		part, err := s2.Decode(out, chunk)
		if err != nil {
			return err
		}
		out, rest = out[len(part):], after
	}
	return nil
}

// cutXerial splits the first chunk off a Java snappy stream.
func cutXerial(b []byte) (chunk, rest []byte, err error) {
	if len(b) < 4 {
		return nil, nil, io.ErrUnexpectedEOF
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return nil, nil, io.ErrUnexpectedEOF
	}
	return b[4 : 4+n], b[4+n:], nil
}
