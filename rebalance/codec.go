package rebalance

import (
	"encoding/binary"
	"fmt"
	"math"
)

// decoder reads the consumer protocol's fields. The first failure sticks; afterwards every read returns zero.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	d.rest = nil
}

func (d *decoder) take(n int, what string) []byte {
	if d.err != nil {
		return nil
	}
	if n < 0 || n > len(d.rest) {
		d.fail(what)
		return nil
	}
	taken := d.rest[:n:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) int16(what string) int16 {
	if b := d.take(2, what); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (d *decoder) int32(what string) int32 {
	if b := d.take(4, what); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

// string reads a string that must be there.
func (d *decoder) string(what string) string {
	return string(d.take(int(d.int16(what)), what))
}

// nullableString reads a string that may be null, which reads as empty.
func (d *decoder) nullableString(what string) string {
	length := d.int16(what)
	if length < 0 {
		return ""
	}
	return string(d.take(int(length), what))
}

// bytes reads bytes that may be null; the result is a copy.
func (d *decoder) bytes(what string) []byte {
	length := d.int32(what)
	if length < 0 || d.err != nil {
		return nil
	}
	taken := d.take(int(length), what)
	if d.err != nil {
		return nil
	}
	return append(make([]byte, 0, len(taken)), taken...)
}

// count reads an array's length and checks it against the bytes that are left, so that a false one costs no memory.
// A null array has no elements.
func (d *decoder) count(smallest int, what string) int {
	count := d.int32(what)
	if count <= 0 {
		return 0
	}
	if int(count) > len(d.rest)/smallest {
		d.fail(what)
		return 0
	}
	return int(count)
}

func appendString(to []byte, s, what string) ([]byte, error) {
	if len(s) > math.MaxInt16 {
		return to, fmt.Errorf("rebalance: %s of %d bytes is too long", what, len(s))
	}
	return append(binary.BigEndian.AppendUint16(to, uint16(len(s))), s...), nil
}

// appendBytes writes nil as null.
func appendBytes(to, b []byte) []byte {
	if b == nil {
		return appendInt32(to, -1)
	}
	return append(appendInt32(to, int32(len(b))), b...)
}

func appendInt32(to []byte, v int32) []byte {
	return binary.BigEndian.AppendUint32(to, uint32(v))
}
