package main

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
)

// The requests that are counted, by their API keys.
const (
	apiListOffsets = 2
	apiOffsetFetch = 9
)

// requests counts what is asked of each broker, whoever's client writes it.
type requests struct {
	mu     sync.Mutex
	counts map[asked]int // guarded by mu
}

// asked is a kind of request to a broker.
type asked struct {
	addr string
	api  int16
}

func newRequests() *requests { return &requests{counts: make(map[asked]int)} }

// dial connects and counts what is written on the connection.
func (q *requests) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: conn, requests: q, addr: addr}, nil
}

// Dial is dial for sarama.
func (q *requests) Dial(network, addr string) (net.Conn, error) {
	return q.dial(context.Background(), network, addr)
}

func (q *requests) add(addr string, api int16) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.counts[asked{addr, api}]++
}

// most is how many requests of a kind the broker got that got most of them.
func (q *requests) most(api int16) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	most := 0
	for at, n := range q.counts {
		if at.api == api {
			most = max(most, n)
		}
	}
	return most
}

// countedConn reads the beginning of each request that is written: four bytes of size, two of the API key.
type countedConn struct {
	net.Conn
	requests *requests
	addr     string
	// head is what is known of the request under way, skip how much of it is still to come. Nobody writes twice at once.
	head []byte
	skip int
}

// The parts of a request's beginning.
const (
	sizeBytes = 4
	headBytes = sizeBytes + 2
)

// Write is net.Conn's.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.count(b[:n])
	return n, err
}

func (c *countedConn) count(b []byte) {
	for len(b) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(b))
			c.skip -= n
			b = b[n:]
			continue
		}
		n := min(headBytes-len(c.head), len(b))
		c.head = append(c.head, b[:n]...)
		b = b[n:]
		if len(c.head) == headBytes {
			c.requests.add(c.addr, int16(binary.BigEndian.Uint16(c.head[sizeBytes:])))
			c.skip = int(binary.BigEndian.Uint32(c.head)) - (headBytes - sizeBytes)
			c.head = c.head[:0]
		}
	}
}
