package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// firstStep is how much of a frame is allocated before any of it has arrived, unless the caller expects more.
const firstStep = 256 << 10

var (
	errShortHeader = errors.New("answer ends inside its header")
	errCorrelation = errors.New("answer to another request")
)

// frameSizeError says that a frame's length makes no sense or is above the cap.
type frameSizeError struct {
	// first is the length as it came; it tells what else may be talking.
	first [4]byte
	limit int
}

func (e *frameSizeError) Error() string {
	return fmt.Sprintf("answer of %d bytes, allowed are 4 to %d", int32(binary.BigEndian.Uint32(e.first[:])), e.limit)
}

// readFrame reads one frame without its length field into memory that is fresh and the caller's; see readFrameInto.
func readFrame(r io.Reader, limit, expect int) (frame []byte, started bool, err error) {
	frame, _, started, err = readFrameInto(nil, r, limit, expect)
	return frame, started, err
}

// readFrameInto reads one frame without its length field into a block of the pool, fresh memory when that is nil. Length is
// checked against limit, and memory is taken as bytes arrive: at first no more than expect (or firstStep when that is
// larger), then in doubling steps, so a length that lies costs little. The caller has the one reference to the block.
// started tells whether any byte arrived.
func readFrameInto(memory *pool, r io.Reader, limit, expect int) (frame []byte, held *block, started bool, err error) {
	var size [4]byte
	n, err := io.ReadFull(r, size[:])
	if err != nil {
		return nil, nil, n > 0, err
	}
	signed := int32(binary.BigEndian.Uint32(size[:]))
	if signed < 4 || int64(signed) > int64(limit) {
		return nil, nil, true, &frameSizeError{first: size, limit: limit}
	}
	length := int(signed)
	frame, held = memory.takeBytes(min(length, max(expect, firstStep)))
	for filled := 0; ; {
		if _, err := io.ReadFull(r, frame[filled:]); err != nil {
			held.Recycle()
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, nil, true, err
		}
		if filled = len(frame); filled == length {
			return frame, held, true, nil
		}
		grown, larger := memory.takeBytes(min(length, 2*filled))
		copy(grown, frame)
		held.Recycle()
		frame, held = grown, larger
	}
}

// cutHeader takes the response header off a frame and checks whose answer it is. Tags in a flexible header are skipped:
// a later Kafka may put some there.
func cutHeader(frame []byte, correlation int32, flexible bool) (body []byte, err error) {
	if len(frame) < 4 {
		return nil, errShortHeader
	}
	if got := int32(binary.BigEndian.Uint32(frame)); got != correlation {
		return nil, fmt.Errorf("%w: correlation id %d, want %d", errCorrelation, got, correlation)
	}
	body = frame[4:]
	if !flexible {
		return body, nil
	}
	tags, body, ok := cutUvarint(body)
	if !ok {
		return nil, errShortHeader
	}
	for range tags {
		var size uint64
		if _, body, ok = cutUvarint(body); !ok {
			return nil, errShortHeader
		}
		if size, body, ok = cutUvarint(body); !ok || size > uint64(len(body)) {
			return nil, errShortHeader
		}
		body = body[size:]
	}
	return body, nil
}

// cutUvarint takes an unsigned varint of at most 32 bits off b.
func cutUvarint(b []byte) (value uint64, rest []byte, ok bool) {
	value, n := binary.Uvarint(b)
	if n <= 0 || n > binary.MaxVarintLen32 {
		return 0, nil, false
	}
	return value, b[n:], true
}
