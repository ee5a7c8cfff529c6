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
		if len(src) < 8 {
			return n, io.ErrUnexpectedEOF
		}
		if magic := binary.LittleEndian.Uint32(src); magic&lz4SkippableMask == lz4Skippable {
			size := binary.LittleEndian.Uint32(src[4:])
			if uint64(size) > uint64(len(src)-8) {
				return n, io.ErrUnexpectedEOF
			}
			src = src[8+size:]
			continue
		} else if magic != lz4Magic {
			return n, errLz4Frame
		}
		var err error
		if n, src, err = in.inflateLz4Frame(src, n, limit); err != nil {
			return n, err
		}
	}
	return n, nil
}

// inflateLz4Frame appends the content of one frame to the first n bytes of the scratch buffer and returns their new
// number and what follows the frame.
func (in *inflater) inflateLz4Frame(src []byte, n, limit int) (int, []byte, error) {
	start := n
	flags, descriptor := src[4], src[5]
	if flags&lz4FlagVersion != lz4FlagVersion1 || flags&lz4FlagDictionary != 0 {
		return n, nil, errLz4Frame
	}
	sizeCode := descriptor >> 4 & 7
	if sizeCode < 4 {
		return n, nil, errLz4Frame
	}
	maxBlock := 1 << (8 + 2*sizeCode) // 64 KiB, 256 KiB, 1 MiB, 4 MiB
	head := 7                         // magic, flags, descriptor, header checksum
	if flags&lz4FlagContentSize != 0 {
		head += 8
	}
	trailer := 0
	if flags&lz4FlagBlockChecksum != 0 {
		trailer = 4
	}
	if len(src) < head {
		return n, nil, io.ErrUnexpectedEOF
	}
	for src = src[head:]; ; {
		if len(src) < 4 {
			return n, nil, io.ErrUnexpectedEOF
		}
		mark := binary.LittleEndian.Uint32(src)
		src = src[4:]
		if mark == 0 {
			break
		}
		size := int(mark &^ lz4StoredBlock)
		if size > len(src)-trailer {
			return n, nil, io.ErrUnexpectedEOF
		}
		if size > maxBlock {
			return n, nil, errLz4Frame
		}
		var history []byte
		if flags&lz4FlagIndependent == 0 {
			history = in.scratch[max(start, n-lz4Dictionary):n]
		}
		var err error
		if n, err = in.inflateLz4Block(src[:size], mark&lz4StoredBlock != 0, history, n, maxBlock, limit); err != nil {
			return n, nil, err
		}
		src = src[size+trailer:]
	}
	if flags&lz4FlagContentChecksum != 0 {
		if len(src) < 4 {
			return n, nil, io.ErrUnexpectedEOF
		}
		src = src[4:]
	}
	return n, src, nil
}

// inflateLz4Block appends the content of one block to the first n bytes of the scratch buffer. A block does not say how
// long its content is, so it is tried with more and more room, up to what the frame or the limit allows.
func (in *inflater) inflateLz4Block(block []byte, stored bool, history []byte, n, maxBlock, limit int) (int, error) {
	if stored {
		if n+len(block) > limit || !in.grow(n, n+len(block), limit) {
			return n, errPastLimit
		}
		return n + copy(in.scratch[n:], block), nil
	}
	maxBlock = min(maxBlock, 255*len(block)+16) // a byte of lz4 stands for at most 255
	for room := min(4*len(block), maxBlock); ; room = min(4*room, maxBlock) {
		room = min(room, limit+scratchSlack-n)
		in.grow(n, n+room, limit)
		// No more than a block's worth is offered, so a block that is longer than its frame allows is refused. history
		// may still point into the scratch buffer of before it grew; its bytes are the same.
		end := min(len(in.scratch), n+maxBlock)
		m, err := lz4.UncompressBlockWithDict(block, in.scratch[n:end], history)
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
