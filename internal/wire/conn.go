package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// keptOutput is the largest write buffer kept for the next request.
const keptOutput = 64 << 10

// link is one connection that sarama opened and we speak on. One goroutine owns it at a time; only abort may be called
// from others. After any error it is closed and must not be used again: what came after would be off by one.
type link struct {
	// raw is the connection as dialed, conn the one to speak on (TLS over raw, or raw itself).
	raw, conn net.Conn
	broker    kafka.Broker
	versions  versionTable
	// renewAt is when the authenticated session gets old, the zero time when it does not.
	renewAt   time.Time
	formatter *kmsg.RequestFormatter
	// answered is true when a request after ApiVersions was answered.
	answered bool
	// correlation is the id of the last request.
	correlation int32
	out         []byte
}

// transportError is a request's failure with what is known about how far it got.
type transportError struct {
	// received is true when a part of the answer had arrived.
	received bool
	err      error
}

func (e *transportError) Error() string { return e.err.Error() }
func (e *transportError) Unwrap() error { return e.err }

// answerError says that an answer came which is not one of the protocol, or not ours.
type answerError struct{ err error }

func (e *answerError) Error() string { return e.err.Error() }
func (e *answerError) Unwrap() error { return e.err }

// limitError says that a limit of ours passed, as opposed to the caller's context.
type limitError struct {
	what  string
	limit time.Duration
}

func (e *limitError) Error() string {
	return fmt.Sprintf("no %s within %v", e.what, e.limit.Round(time.Millisecond))
}
func (e *limitError) Timeout() bool   { return true }
func (e *limitError) Temporary() bool { return true }

// old reports whether the connection must be made anew before the next request, because its session ends soon.
func (l *link) old() bool { return !l.renewAt.IsZero() && !time.Now().Before(l.renewAt) }

// abort closes the connection at once, whatever is going on. It goes past TLS: a close notice could block on a peer that
// reads no more.
func (l *link) abort() { _ = l.raw.Close() }

// ask sends req and reads its answer into the response that belongs to it. size is the answer's size on the wire, held the
// block of memory that the response lies in, nil when memory is.
func (l *link) ask(ctx context.Context, req kmsg.Request, memory *pool, limit, expect int) (resp kmsg.Response, held *block, size int, err error) {
	resp = req.ResponseKind()
	body, held, err := l.roundTrip(ctx, req, resp.IsFlexible(), memory, limit, expect)
	if err != nil {
		return nil, nil, 0, err
	}
	if err := resp.ReadFrom(body); err != nil {
		held.Recycle()
		l.abort()
		return nil, nil, 0, &answerError{fmt.Errorf("malformed answer: %w", err)}
	}
	return resp, held, len(body), nil
}

// roundTrip sends req and returns the body of its answer with the block of memory it lies in: fresh memory and nil when
// memory is nil. When ctx ends the connection is closed and roundTrip returns; the error then wraps ctx's.
func (l *link) roundTrip(ctx context.Context, req kmsg.Request, flexible bool, memory *pool, limit, expect int) ([]byte, *block, error) {
	stop := context.AfterFunc(ctx, l.abort)
	defer stop()
	l.correlation++
	out := l.formatter.AppendRequest(l.out[:0], req, l.correlation)
	if l.out = out; cap(out) > keptOutput {
		l.out = nil
	}
	if _, err := l.conn.Write(out); err != nil {
		l.abort()
		return nil, nil, &transportError{err: because(ctx, err)}
	}
	frame, held, started, err := readFrameInto(memory, l.conn, limit, expect)
	if err != nil {
		l.abort()
		return nil, nil, &transportError{received: started, err: because(ctx, err)}
	}
	body, err := cutHeader(frame, l.correlation, flexible)
	if err != nil {
		held.Recycle()
		l.abort()
		return nil, nil, &answerError{err}
	}
	return body, held, nil
}

// because returns why something failed: err, or what ended ctx when it has ended.
func because(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// endOf returns what an ended context ended with; errors.Is finds both ctx.Err() and its cause.
func endOf(ctx context.Context) error {
	ended, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, ended) {
		return cause
	}
	return fmt.Errorf("%w: %w", ended, cause)
}
