package wire

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/pierrec/lz4/v4"
)

// The parts of an lz4 frame that the reader below looks at.
const (
	lz4Magic         = 0x184D2204
	lz4SkippableMask = 0xFFFFFFF0
	lz4Skippable     = 0x184D2A50
	lz4Dictionary    = 64 << 10 // how far back a linked block may refer

	lz4FlagVersion         = 0b1100_0000
	lz4FlagVersion1        = 0b0100_0000
	lz4FlagIndependent     = 0b0010_0000
	lz4FlagBlockChecksum   = 0b0001_0000
	lz4FlagContentSize     = 0b0000_1000
	lz4FlagContentChecksum = 0b0000_0100
	lz4FlagDictionary      = 0b0000_0001

	lz4StoredBlock = 1 << 31
)

var errLz4Frame = errors.New("malformed frame")

// inflateLz4 leaves the content of the lz4 frames of src in the scratch buffer and returns its length. The frame format
// is read here and only its blocks by the library: the library's frame reader allocates a block buffer of the size the
// frame claims (up to 4 MiB for a few bytes) and copies every block out of it. The frame's own checksums are passed
// over: the batch's checksum covers the same bytes.
func (in *inflater) inflateLz4(src []byte, limit int) (int, error) {
	if len(src) == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n := 0
	for len(src) > 0 {
		frame, rest, err := cutLz4Frame(src)
		if err != nil {
			return n, err
		}
		if n, src, err = in.inflateLz4Frame(frame, rest, n, limit); err != nil {
			return n, err
		}
	}
	return n, nil
}

// lz4Frame is what the header of an lz4 frame says.
type lz4Frame struct {
	// skippable is whether the frame has no content; it then was cut off as a whole.
	skippable bool
	// flags are the header's.
	flags byte
	// maxBlock is the most that a block may hold.
	maxBlock int
	// content is how long the frame's content is, when the flags say that it is stated.
	content uint64
}

func (f *lz4Frame) has(flag byte) bool { return f.flags&flag != 0 }

// cutLz4Frame splits the header of a frame off src, or a whole frame that is to be skipped.
func cutLz4Frame(src []byte) (f lz4Frame, rest []byte, err error) {
	if len(src) < 8 {
		return f, nil, io.ErrUnexpectedEOF
	}
	if magic := binary.LittleEndian.Uint32(src); magic&lz4SkippableMask == lz4Skippable {
		size := binary.LittleEndian.Uint32(src[4:])
		if uint64(size) > uint64(len(src)-8) {
			return f, nil, io.ErrUnexpectedEOF
		}
		return lz4Frame{skippable: true}, src[8+size:], nil
	} else if magic != lz4Magic {
		return f, nil, errLz4Frame
	}
	descriptor := src[5]
	f.flags = src[4]
	sizeCode := descriptor >> 4 & 7
	if f.flags&lz4FlagVersion != lz4FlagVersion1 || f.has(lz4FlagDictionary) || sizeCode < 4 {
		return f, nil, errLz4Frame
	}
	f.maxBlock = 1 << (8 + 2*sizeCode) // 64 KiB, 256 KiB, 1 MiB, 4 MiB
	head := 7                          // magic, flags, descriptor, header checksum
	if f.has(lz4FlagContentSize) {
		head += 8
	}
	if len(src) < head {
		return f, nil, io.ErrUnexpectedEOF
	}
	if f.has(lz4FlagContentSize) {
		f.content = binary.LittleEndian.Uint64(src[6:])
	}
	return f, src[head:], nil
}

// lz4Block is one block of a frame.
type lz4Block struct {
	data []byte
	// stored is whether data is the content itself.
	stored bool
	// end is whether it is the mark after the last block instead.
	end bool
}

// most is how long the block's content can be.
func (b *lz4Block) most(maxBlock int) int {
	if b.stored {
		return len(b.data)
	}
	return min(maxBlock, 255*len(b.data)+16) // a byte of lz4 stands for at most 255
}

// cutBlock splits the next block of the frame off src, with its checksum or, at the end, that of the frame.
func (f *lz4Frame) cutBlock(src []byte) (b lz4Block, rest []byte, err error) {
	if len(src) < 4 {
		return b, nil, io.ErrUnexpectedEOF
	}
	mark := binary.LittleEndian.Uint32(src)
	src = src[4:]
	size, trailer := int(mark&^lz4StoredBlock), 0
	if mark == 0 {
		b.end = true
		if f.has(lz4FlagContentChecksum) {
			trailer = 4
		}
	} else if f.has(lz4FlagBlockChecksum) {
		trailer = 4
	}
	if size > len(src)-trailer {
		return b, nil, io.ErrUnexpectedEOF
	}
	if size > f.maxBlock {
		return b, nil, errLz4Frame
	}
	b.data, b.stored = src[:size], mark&lz4StoredBlock != 0
	return b, src[size+trailer:], nil
}

// inflateLz4Frame appends the content of one frame to the first n bytes of the scratch buffer and returns their new
// number and what follows the frame. A frame that states its content's length must keep to it.
func (in *inflater) inflateLz4Frame(frame lz4Frame, src []byte, n, limit int) (int, []byte, error) {
	if frame.skippable {
		return n, src, nil
	}
	if frame.has(lz4FlagContentSize) && frame.content > uint64(limit) {
		return n, nil, errPastLimit
	}
	for start := n; ; {
		block, rest, err := frame.cutBlock(src)
		if err != nil {
			return n, nil, err
		}
		if src = rest; block.end {
			if frame.has(lz4FlagContentSize) && frame.content != uint64(n-start) {
				return n, nil, errLz4Frame
			}
			return n, src, nil
		}
		var history []byte
		if !frame.has(lz4FlagIndependent) {
			history = in.scratch[max(start, n-lz4Dictionary):n]
		}
		if n, err = in.inflateLz4Block(block, history, n, frame.maxBlock, limit); err != nil {
			return n, nil, err
		}
	}
}

// lz4Bound returns how long the content of the lz4 frames of src can be at most, or limit when that is less. It looks at the
// headers of frames and blocks only.
func lz4Bound(src []byte, limit int) (int, error) {
	bound := uint64(0)
	for len(src) > 0 {
		frame, rest, err := cutLz4Frame(src)
		if err != nil {
			return 0, err
		}
		src = rest
		if frame.skippable {
			continue
		}
		content := uint64(0)
		for {
			block, rest, err := frame.cutBlock(src)
			if err != nil {
				return 0, err
			}
			if src = rest; block.end {
				break
			}
			content += uint64(block.most(frame.maxBlock))
		}
		if frame.has(lz4FlagContentSize) {
			content = min(content, frame.content)
		}
		bound += content
	}
	return int(min(bound, uint64(limit))), nil
}

// inflateLz4Block appends the content of one block to the first n bytes of the scratch buffer. A block does not say how
// long its content is, so it is tried with more and more room, up to what the frame or the limit allows.
func (in *inflater) inflateLz4Block(block lz4Block, history []byte, n, maxBlock, limit int) (int, error) {
	data := block.data
	if block.stored {
		if n+len(data) > limit || !in.grow(n, n+len(data), limit) {
			return n, errPastLimit
		}
		return n + copy(in.scratch[n:], data), nil
	}
	maxBlock = block.most(maxBlock)
	for room := min(4*len(data), maxBlock); ; room = min(4*room, maxBlock) {
		room = min(room, limit+scratchSlack-n)
		in.grow(n, n+room, limit)
		// No more than a block's worth is offered, so a block that is longer than its frame allows is refused. history
		// may still point into the scratch buffer of before it grew; its bytes are the same.
		end := min(len(in.scratch), n+maxBlock)
		m, err := lz4.UncompressBlockWithDict(data, in.scratch[n:end], history)
		if err == nil {
			n += m
			if n > limit {
				return n, errPastLimit
			}
			return n, nil
		}
		if end-n >= maxBlock {
			return n, err
		}
		if end >= limit+scratchSlack {
			return n, errPastLimit
		}
		room = max(room, end-n)
	}
}
