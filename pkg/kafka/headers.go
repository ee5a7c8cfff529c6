package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
)

// ErrMalformedHeaders is returned by [HeadersFromWire] when the bytes are not the headers of a v2 record.
var ErrMalformedHeaders = errors.New("kafka: malformed record headers")

// Header is one header of a record. Keys may repeat.
type Header struct {
	// Key is the header's name.
	Key string
	// Value is the header's value; nil when it has none.
	Value []byte
}

// Headers are the headers of one record, in the record's order, kept as they were on the wire and parsed when asked for.
// The zero value is no headers. It is safe for concurrent reading.
type Headers struct {
	raw   []byte
	count int
}

// NewHeaders returns the headers given, for tests and for records made by hand. It copies them.
func NewHeaders(headers ...Header) Headers {
	var raw []byte
	for _, h := range headers {
		raw = binary.AppendVarint(raw, int64(len(h.Key)))
		raw = append(raw, h.Key...)
		if h.Value == nil {
			raw = binary.AppendVarint(raw, -1)
			continue
		}
		raw = binary.AppendVarint(raw, int64(len(h.Value)))
		raw = append(raw, h.Value...)
	}
	return Headers{raw: raw, count: len(headers)}
}

// HeadersFromWire returns the headers that raw holds in the encoding of a v2 record, without their count in front. raw is
// kept, not copied. It checks the whole of raw, so reading the headers later cannot fail.
func HeadersFromWire(count int, raw []byte) (Headers, error) {
	if count < 0 {
		return Headers{}, fmt.Errorf("%w: count %d", ErrMalformedHeaders, count)
	}
	rest := raw
	for i := range count {
		var ok bool
		if _, rest, ok = cutBytes(rest, false); !ok {
			return Headers{}, fmt.Errorf("%w: key of header %d", ErrMalformedHeaders, i)
		}
		if _, rest, ok = cutBytes(rest, true); !ok {
			return Headers{}, fmt.Errorf("%w: value of header %d", ErrMalformedHeaders, i)
		}
	}
	if len(rest) != 0 {
		return Headers{}, fmt.Errorf("%w: %d bytes left after %d headers", ErrMalformedHeaders, len(rest), count)
	}
	return Headers{raw: raw, count: count}, nil
}

// cutBytes splits a length-prefixed field off b.
func cutBytes(b []byte, nullable bool) (field, rest []byte, ok bool) {
	n, width := binary.Varint(b)
	if width <= 0 {
		return nil, nil, false
	}
	b = b[width:]
	if n == -1 && nullable {
		return nil, b, true
	}
	if n < 0 || n > int64(len(b)) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}

// Len returns the number of headers.
func (h Headers) Len() int { return h.count }

// All iterates over the headers in order. Values alias the record's memory; keys are copies.
func (h Headers) All() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		rest := h.raw
		for range h.count {
			var key, value []byte
			key, rest, _ = cutBytes(rest, false)
			value, rest, _ = cutBytes(rest, true)
			if !yield(string(key), value) {
				return
			}
		}
	}
}

// Last returns the value of the last header with that key, as the Java client's lastHeader does, and whether there is
// one. The value aliases the record's memory.
func (h Headers) Last(key string) (value []byte, ok bool) {
	rest := h.raw
	for range h.count {
		var k, v []byte
		k, rest, _ = cutBytes(rest, false)
		v, rest, _ = cutBytes(rest, true)
		if string(k) == key {
			value, ok = v, true
		}
	}
	return value, ok
}

// Slice returns the headers in order, nil when there are none.
func (h Headers) Slice() []Header {
	if h.count == 0 {
		return nil
	}
	out := make([]Header, 0, h.count)
	for k, v := range h.All() {
		out = append(out, Header{Key: k, Value: v})
	}
	return out
}
