package integration

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// wireTap is a client's way to the network that writes down when each request went out and when its answer had come. It
// understands frames, so it is for connections without TLS and SASL.
type wireTap struct {
	dial  dialFunc
	conns atomic.Int64

	mu    sync.Mutex
	trips []*trip
}

// trip is one request and its answer.
type trip struct {
	conn           int64
	key            kmsg.Key
	correlation    int32
	sent, answered time.Time // answered is zero while there is no answer
}

func directDial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, addr)
}

// Dial has the shape that api.WithDialer and kgo.Dialer take.
func (w *wireTap) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := w.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &tappedConn{Conn: conn, tap: w, id: w.conns.Add(1)}, nil
}

// of returns the trips of one api, in the order they were begun.
func (w *wireTap) of(key kmsg.Key) (out []trip) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.trips {
		if t.key == key {
			out = append(out, *t)
		}
	}
	return out
}

// together returns the apis that were used on one connection with the given one.
func (w *wireTap) together(key kmsg.Key) (out []string) {
	mine := make(map[int64]bool)
	for _, t := range w.of(key) {
		mine[t.conn] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.trips {
		if mine[t.conn] && !slices.Contains(out, t.key.Name()) {
			out = append(out, t.key.Name())
		}
	}
	slices.Sort(out)
	return out
}

// percentile returns how long the given part of the trips took at most; one without an answer takes until now.
func percentile(trips []trip, part float64) time.Duration {
	if len(trips) == 0 {
		return 0
	}
	var took []time.Duration
	for _, t := range trips {
		if t.answered.IsZero() {
			t.answered = time.Now()
		}
		took = append(took, t.answered.Sub(t.sent))
	}
	slices.Sort(took)
	return took[max(0, min(len(took)-1, int(part*float64(len(took)))))]
}

// tappedConn cuts both directions into frames.
type tappedConn struct {
	net.Conn
	tap     *wireTap
	id      int64
	out, in []byte // what is not a whole frame yet; Write and Read have one caller each
}

const frameSize = 4 // of a frame's length, which it begins with

func (c *tappedConn) Write(b []byte) (int, error) {
	c.out = append(c.out, b...)
	for {
		frame := nextFrame(&c.out)
		if frame == nil {
			break
		}
		t := &trip{
			conn: c.id, key: kmsg.Key(binary.BigEndian.Uint16(frame)), correlation: int32(binary.BigEndian.Uint32(frame[4:])), sent: time.Now(),
		}
		c.tap.mu.Lock()
		c.tap.trips = append(c.tap.trips, t)
		c.tap.mu.Unlock()
	}
	return c.Conn.Write(b)
}

func (c *tappedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in = append(c.in, b[:n]...)
	for {
		frame := nextFrame(&c.in)
		if frame == nil {
			return n, err
		}
		correlation := int32(binary.BigEndian.Uint32(frame))
		c.tap.mu.Lock()
		for _, t := range c.tap.trips {
			if t.conn == c.id && t.correlation == correlation && t.answered.IsZero() {
				t.answered = time.Now()
			}
		}
		c.tap.mu.Unlock()
	}
}

// nextFrame takes one whole frame, without its length, off the front of what came; nil when there is none.
func nextFrame(from *[]byte) []byte {
	b := *from
	if len(b) < frameSize {
		return nil
	}
	end := frameSize + int(binary.BigEndian.Uint32(b))
	if len(b) < end {
		return nil
	}
	*from = b[end:]
	return b[frameSize:end]
}
