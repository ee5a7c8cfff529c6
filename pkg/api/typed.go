package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/troupego/troupe/pkg/kafka"
)

// Codec makes values of the type T out of records. It is used for every partition at the same time. Decode must not keep
// memory of the record beyond the call, and must not change the record; a value that shares memory with it is good only for
// as long as the record is (see [RecycleRecords]). An error says that this record cannot be read: see [DecodeError].
type Codec[T any] interface {
	Decode(record *kafka.Record) (T, error)
}

// CodecFunc is a function as a [Codec].
type CodecFunc[T any] func(record *kafka.Record) (T, error)

// Decode calls f.
func (f CodecFunc[T]) Decode(record *kafka.Record) (T, error) { return f(record) }

// JSON reads the record's value by encoding/json: names match without regard to case, unknown fields are ignored, a field
// that is missing stays zero, and a number in an interface becomes a float64, which rounds integers beyond 2^53. The value
// shares no memory with the record. A tombstone, whose value is nil, is the zero T, without a call of the decoder; take a
// pointer as T, or look at the record, to tell it from an empty object.
func JSON[T any]() Codec[T] { return jsonCodec[T]{} }

// Bytes returns a copy of the record's value, which may be kept also with [RecycleRecords]; nil for a tombstone.
func Bytes() Codec[[]byte] {
	return CodecFunc[[]byte](func(record *kafka.Record) ([]byte, error) { return slices.Clone(record.Value), nil })
}

// HandleTyped registers a function that is called with each record's value, as the codec reads it, and with the record:
//
//	api.HandleTyped("orders", api.JSON[Order](), func(ctx context.Context, order Order, _ *kafka.Record) error { ... })
//
// A record that the codec refuses, or panics at, fails like one whose handler returned an error, with a *[DecodeError]: it
// is tried again, and stops its partition, as the restart policy says. Middleware ([Use]) is outside of the codec: it sees
// the record, and the codec's error. With [RecycleRecords] the record is valid until the handler returns, and so is a value
// of a codec that does not copy; those of [JSON] and [Bytes] may be kept. For the rest see [Handle].
func HandleTyped[T any, N Topics](topics N, codec Codec[T], handler func(ctx context.Context, value T, record *kafka.Record) error, options ...RecordOption) Registration {
	r := Registration{kind: "HandleTyped", topics: topicList(topics), pattern: patternOf(topics)}
	if handler != nil {
		r.record = func(ctx context.Context, record *kafka.Record) error {
			value, err := decode(codec, record)
			if err != nil {
				return err
			}
			return handler(ctx, value, record)
		}
	}
	function, isFunction := codec.(CodecFunc[T])
	r.flawed = r.flaws("codec", "nil", codec != nil && (!isFunction || function != nil), "a codec")
	for _, option := range options {
		if option == nil {
			r.nilOptions++
			continue
		}
		option.applyRecord(&r)
	}
	return r
}

// DecodeError is why a typed handler failed at a record that its codec could not read. Nothing of the record's content is
// in it, unless a codec of your own puts it into its error.
type DecodeError struct {
	TopicPartition kafka.TopicPartition
	Offset         int64
	// Err is the codec's error. That of [JSON] says what is wrong, and at which byte of the value, and quotes nothing.
	Err error
}

// Error names the record and the cause.
func (e *DecodeError) Error() string {
	return fmt.Sprintf("troupe: decode %s@%d: %v", e.TopicPartition, e.Offset, e.Err)
}

// Unwrap returns the codec's error.
func (e *DecodeError) Unwrap() error { return e.Err }

// decode calls the codec, contains its panics, and names the record in its errors.
func decode[T any](codec Codec[T], record *kafka.Record) (value T, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = codecPanic(v)
		}
		if err != nil {
			err = &DecodeError{TopicPartition: record.TopicPartition(), Offset: record.Offset, Err: err}
		}
	}()
	return codec.Decode(record)
}

// codecPanic tells of a panic without its value, which may be a part of the record, except for what the runtime says.
func codecPanic(v any) error {
	if fault, ok := v.(runtime.Error); ok {
		return fmt.Errorf("the codec panicked: %w", fault)
	}
	return fmt.Errorf("the codec panicked with a %T", v)
}

type jsonCodec[T any] struct{}

func (jsonCodec[T]) Decode(record *kafka.Record) (T, error) {
	var value T
	if record.Value == nil {
		return value, nil
	}
	if err := json.Unmarshal(record.Value, &value); err != nil {
		var zero T
		return zero, withoutPayload(err)
	}
	return value, nil
}

// withoutPayload says what encoding/json's error says, without what it quotes of the value.
func withoutPayload(err error) error {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("json: syntax error at byte %d", syntax.Offset)
	case errors.As(err, &mismatch):
		kind, _, _ := strings.Cut(mismatch.Value, " ") // a number's digits follow the word
		if mismatch.Field != "" {
			return fmt.Errorf("json: %s at byte %d does not fit field %s of type %v", kind, mismatch.Offset, mismatch.Field, mismatch.Type)
		}
		return fmt.Errorf("json: %s at byte %d does not fit type %v", kind, mismatch.Offset, mismatch.Type)
	}
	return fmt.Errorf("json: the value was refused with a %T", err)
}
