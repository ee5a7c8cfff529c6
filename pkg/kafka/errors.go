package kafka

import (
	"errors"
	"fmt"
	"strings"
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
	// ErrHungUp means that the other end closed the connection in place of its first answer. Listeners that want TLS or
	// SASL do so to clients without, and listeners without TLS to clients with it.
	ErrHungUp = errors.New("the other end closed the connection without an answer")
	// ErrTLSNeeded means that the listener speaks TLS and the client does not. It matches ErrNotKafka as well.
	ErrTLSNeeded = fmt.Errorf("%w but TLS", ErrNotKafka)
	// ErrNoTLS means that the client speaks TLS and the listener does not.
	ErrNoTLS = errors.New("the other end does not speak TLS")
	// ErrCertificateExpired means that the broker's certificate has ended, by this machine's clock. An
	// x509.CertificateInvalidError with the dates is below.
	ErrCertificateExpired = errors.New("the broker's certificate has expired")
	// ErrCertificateNotYetValid means that the broker's certificate has not begun: most often a clock is wrong.
	ErrCertificateNotYetValid = errors.New("the broker's certificate is not yet valid")
)

// AuthError says that a login failed: the broker refused it, or whoever makes the credentials (a token provider, a
// Kerberos library) has none. It is found below a [ConnectError] and never holds the credentials.
type AuthError struct {
	// Mechanism is the SASL mechanism used, such as "SCRAM-SHA-512".
	Mechanism string
	// Offered are the mechanisms the broker offers, as far as it said; nil when it said nothing.
	Offered []string
	// Err is the cause. When the broker refused, errors.Is finds [SaslAuthenticationFailed] (wrong name, password, token),
	// [UnsupportedSaslMechanism], or [IllegalSaslState] (the listener takes no login).
	Err error
}

// Error names mechanism and cause, and what is offered when the mechanism is not.
func (e *AuthError) Error() string {
	text := fmt.Sprintf("login by %s: %v", e.Mechanism, e.Err)
	if errors.Is(e.Err, UnsupportedSaslMechanism) && len(e.Offered) > 0 {
		text += " (offered: " + strings.Join(e.Offered, ", ") + ")"
	}
	return text
}

// Unwrap returns the cause.
func (e *AuthError) Unwrap() error { return e.Err }

// ConnectError says that a connection to a broker could not be made: dialing, TLS, authentication or agreeing on
// versions failed. Nothing was asked of the broker yet.
type ConnectError struct {
	// Addr is the address dialed.
	Addr string
	// Phase is "dial", "tls", "authenticate" or "versions".
	Phase string
	// Source says which broker's answer named the address, such as "Metadata from 1@10.0.0.5:9092": if it cannot be reached
	// from here, that broker's advertised.listeners is to be looked at. Empty for the bootstrap servers.
	Source string
	// Err is the cause.
	Err error
}

// Error names address, phase and cause.
func (e *ConnectError) Error() string {
	return fmt.Sprintf("kafka: connect to %s: %s: %v", e.where(), e.Phase, e.Err)
}

func (e *ConnectError) where() string {
	if e.Source == "" {
		return e.Addr
	}
	return e.Addr + " (" + e.Source + ")"
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
