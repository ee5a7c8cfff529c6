package kafka

import (
	"errors"
	"fmt"
)

// What can be wrong with a record batch; a [BatchError] wraps one of them.
var (
	// ErrCorruptBatch means that the batch's checksum or structure is wrong.
	ErrCorruptBatch = errors.New("corrupt record batch")
	// ErrUnsupportedCompression means that the batch names a compression this library does not know.
	ErrUnsupportedCompression = errors.New("unsupported compression")
	// ErrBatchTooLarge means that the batch is larger, once decompressed, than MaxBatchBytes allows.
	ErrBatchTooLarge = errors.New("record batch too large")
	// ErrUnsupportedMagic means that the batch is older than format v2 (Kafka 0.11) or newer than this library.
	ErrUnsupportedMagic = errors.New("unsupported record batch format")
)

// BatchError says that one record batch cannot be read. It concerns that partition only.
type BatchError struct {
	// TopicPartition is where the batch lies.
	TopicPartition TopicPartition
	// BaseOffset is the batch's first offset, LastOffset its last one; NoOffset when they could not be read.
	BaseOffset, LastOffset int64
	// Err is one of the sentinels above, with detail.
	Err error
}

// Error names partition, offsets and cause.
func (e *BatchError) Error() string {
	return fmt.Sprintf("kafka: batch %d..%d of %s: %v", e.BaseOffset, e.LastOffset, e.TopicPartition, e.Err)
}

// Unwrap returns the cause.
func (e *BatchError) Unwrap() error { return e.Err }

// PartialBatchError says that an answer ends inside its first batch: the partition must ask for more bytes at once.
type PartialBatchError struct {
	// TopicPartition is where the batch lies.
	TopicPartition TopicPartition
	// Need is the size of the whole batch in bytes.
	Need int
}

// Error names partition and size.
func (e *PartialBatchError) Error() string {
	return fmt.Sprintf("kafka: first batch of %s needs %d bytes", e.TopicPartition, e.Need)
}

// Causes of a [ConnectError] that have no error of their own below.
var (
	// ErrNotKafka means that the other end answered something that is not the Kafka protocol.
	ErrNotKafka = errors.New("the other end does not speak the Kafka protocol")
	// ErrNoBroker means that no bootstrap server and no known broker could be reached.
	ErrNoBroker = errors.New("no broker reachable")
)

// ConnectError says that a connection to a broker could not be made: dialing, TLS, authentication or agreeing on
// versions failed. Nothing was asked of the broker yet.
type ConnectError struct {
	// Addr is the address dialed.
	Addr string
	// Phase is "dial", "tls", "authenticate" or "versions".
	Phase string
	// Err is the cause.
	Err error
}

// Error names address, phase and cause.
func (e *ConnectError) Error() string {
	return fmt.Sprintf("kafka: connect to %s: %s: %v", e.Addr, e.Phase, e.Err)
}

// Unwrap returns the cause.
func (e *ConnectError) Unwrap() error { return e.Err }

// RequestError says that a request got no usable answer or the answer carries an error code.
type RequestError struct {
	// API is Kafka's name of the request, such as "OffsetCommit".
	API string
	// Broker is whom it was sent to.
	Broker Broker
	// Unanswered is true when the request may have reached the broker and no answer came: whether it took effect is not
	// known.
	Unanswered bool
	// Err is the cause, an ErrorCode or a transport error.
	Err error
}

// Error names request, broker and cause.
func (e *RequestError) Error() string {
	return fmt.Sprintf("kafka: %s at %s: %v", e.API, e.Broker, e.Err)
}

// Unwrap returns the cause.
func (e *RequestError) Unwrap() error { return e.Err }

// VersionError says that a broker does not offer a version of a request that this library can use.
type VersionError struct {
	// API is Kafka's name of the request.
	API string
	// Broker is whom it was meant for.
	Broker Broker
	// WantMin and WantMax are the versions this library can use.
	WantMin, WantMax int16
	// HaveMin and HaveMax are the broker's; both -1 when it does not offer the request at all.
	HaveMin, HaveMax int16
}

// Error names the request and both ranges.
func (e *VersionError) Error() string {
	if e.HaveMax < 0 {
		return fmt.Sprintf("kafka: broker %s does not offer %s, v%d to v%d is needed", e.Broker, e.API, e.WantMin, e.WantMax)
	}
	return fmt.Sprintf("kafka: broker %s offers %s v%d to v%d, v%d to v%d is needed",
		e.Broker, e.API, e.HaveMin, e.HaveMax, e.WantMin, e.WantMax)
}
