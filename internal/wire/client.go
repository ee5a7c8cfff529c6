package wire

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// closedError is the cause when a client was closed. It matches net.ErrClosed.
type closedError struct{}

func (*closedError) Error() string { return "client closed" }
func (*closedError) Unwrap() error { return net.ErrClosed }

// client is the connection behind every client of the ports: dialed at the first request, dropped after a failure,
// dialed again at the next. One goroutine makes requests, one at a time; Close may come from anywhere.
type client struct {
	network *Network
	// life ends with Close and carries closedError.
	life context.Context
	end  context.CancelCauseFunc
	// link is the worker's own; nil when there is no connection.
	link *link

	mu sync.Mutex
	// raw is the connection under way or in use, for Close, and to whom it is.
	raw net.Conn
	to  kafka.Broker
}

func newClient(n *Network) *client {
	c := &client{network: n}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// Close ends the request under way and closes the connection. The client cannot be used again.
func (c *client) Close() {
	c.end(&closedError{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.raw != nil {
		_ = c.raw.Close()
		c.raw = nil
	}
}

// keep hands the dialed connection to Close.
func (c *client) keep(raw net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		_ = raw.Close()
		return
	}
	c.raw = raw
}

// drop gives the connection up.
func (c *client) drop() {
	if c.link == nil {
		return
	}
	c.link.abort()
	c.link = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raw = nil
}

// within returns a context that ends with ctx, with the client, or after limit. Its cause tells which: the error ctx ended
// with, closedError, or limitError. It hangs below the client's life, so that Close has ended it before it returns.
func (c *client) within(ctx context.Context, limit time.Duration, what string) (context.Context, func()) {
	merged, cancel := context.WithCancelCause(c.life)
	follow := func() { cancel(endOf(ctx)) }
	stop := context.AfterFunc(ctx, follow)
	if ctx.Err() != nil {
		follow()
	}
	merged, done := context.WithTimeoutCause(merged, limit, &limitError{what: what, limit: limit})
	return merged, func() {
		done()
		stop()
		cancel(nil)
	}
}

// serves reports whether there is a connection to that address which can take a request.
func (c *client) serves(addr string) bool {
	return c.link != nil && c.link.broker.Addr == addr && !c.link.old()
}

// connect makes sure of a connection to the broker within limit. A connection to another address is dropped first, and
// one whose session is about to end: whatever the mechanism, that is authenticating again.
func (c *client) connect(ctx context.Context, broker kafka.Broker, limit time.Duration) error {
	if c.serves(broker.Addr) {
		c.link.broker = broker // the node id may have become known
		return nil
	}
	c.drop()
	ctx, done := c.within(ctx, limit, "connection")
	defer done()
	if ctx.Err() != nil {
		return &kafka.ConnectError{Addr: broker.Addr, Phase: phaseDial, Err: because(ctx, nil)}
	}
	c.mu.Lock()
	c.to = broker
	c.mu.Unlock()
	l, err := c.network.open(ctx, broker, c.keep)
	if err != nil {
		c.mu.Lock()
		c.raw = nil
		c.mu.Unlock()
		return err
	}
	c.link = l
	return nil
}

// question is one request to be made.
type question struct {
	api api
	// build makes the request, which then gets the version picked.
	build func(version int16) kmsg.Request
	// limit is how long the answer may take.
	limit time.Duration
	// expect is how many bytes of answer may be allocated before they arrive.
	expect int
	// memory is where the answer's memory comes from; nil for fresh memory.
	memory *pool
}

// answer is what came back. Error codes inside are not looked at yet.
type answer struct {
	resp    kmsg.Response
	version int16
	broker  kafka.Broker
	size    int
	// held is the memory that resp lies in, when the question named a pool, with one reference for whoever asked.
	held *block
}

// call asks one broker. Brokers close connections that were idle for long; when a connection that had served before turns
// out to be gone without a byte of answer, the request is made once more on a new one.
func (c *client) call(ctx context.Context, broker kafka.Broker, q question) (answer, error) {
	reused := c.serves(broker.Addr)
	if err := c.connect(ctx, broker, c.network.cfg.ConnectTimeout); err != nil {
		return answer{}, err
	}
	a, err := c.ask(ctx, q)
	if err == nil || !reused || !closedIdle(ctx, err) {
		return a, err
	}
	if c.connect(ctx, broker, c.network.cfg.ConnectTimeout) != nil {
		return answer{}, err // the first failure stands: the request may have had its effect
	}
	return c.ask(ctx, q)
}

// closedIdle reports whether err looks like an idle connection closed by the other end: it broke, nothing of an answer
// had come, and nobody on our side ended it.
func closedIdle(ctx context.Context, err error) bool {
	var broken *transportError
	var limit *limitError
	var closed *closedError
	return ctx.Err() == nil && errors.As(err, &broken) && !broken.received &&
		!errors.As(err, &limit) && !errors.As(err, &closed)
}

// ask makes one request on the connection there is and drops it after any failure.
func (c *client) ask(ctx context.Context, q question) (answer, error) {
	l := c.link
	version, err := l.versions.pick(q.api, l.broker)
	if err != nil {
		return answer{}, err
	}
	req := q.build(version)
	req.SetVersion(version)
	ctx, done := c.within(ctx, q.limit, "answer")
	defer done()
	if ctx.Err() != nil {
		return answer{}, &kafka.RequestError{API: q.api.name, Broker: l.broker, Err: because(ctx, nil)}
	}
	resp, held, size, err := l.ask(ctx, req, q.memory, c.network.cfg.MaxResponseBytes, min(q.expect, c.network.cfg.MaxResponseBytes))
	if err != nil {
		c.drop()
		var broken *transportError
		if !l.answered && errors.As(err, &broken) && isHangUp(err) {
			err = hungUp(err, !broken.received) // ApiVersions is answered to clients without SASL, too
		}
		return answer{}, &kafka.RequestError{API: q.api.name, Broker: l.broker, Unanswered: true, Err: err}
	}
	l.answered = true
	if ctx.Err() != nil {
		c.drop() // it is being closed, but the answer counts
	}
	return answer{resp: resp, version: version, broker: l.broker, size: size, held: held}, nil
}

// failed returns the request's error for an error code, nil for code 0.
func (a answer) failed(api api, code int16) error {
	if code == 0 {
		return nil
	}
	return a.fails(api, kafka.ErrorCode(code))
}

// fails returns the request's error for an answer that cannot be used.
func (a answer) fails(api api, err error) error {
	return &kafka.RequestError{API: api.name, Broker: a.broker, Err: err}
}

// errNotMentioned is the error of a partition that was asked about and is not in the answer.
var errNotMentioned = errors.New("the answer does not mention it")
