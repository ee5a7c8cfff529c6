package kafkatest

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// gate stands between the nodes and their clients: every byte of every client's connection passes it. All connections of
// one broker share it.
type gate struct {
	mu     sync.Mutex
	change *sync.Cond // something below changed, or a connection was closed
	// frozen has the frozen nodes.
	frozen map[int32]bool
	conns  map[*gatedConn]struct{}
	// accepted counts the connections so far.
	accepted int
}

func newGate() *gate {
	g := &gate{frozen: make(map[int32]bool), conns: make(map[*gatedConn]struct{})}
	g.change = sync.NewCond(&g.mu)
	return g
}

// admit takes a node's side of a new client connection under control.
func (g *gate) admit(node int32, inner net.Conn) net.Conn {
	c := &gatedConn{Conn: inner, gate: g, node: node}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[c] = struct{}{}
	g.accepted++
	return c
}

// freeze stops the bytes of the nodes. When it returns, no byte of theirs moves: what a client sent before and the node
// did not read stays unread, an answer under way is stopped where it is.
func (g *gate) freeze(nodes []int32) {
	g.mu.Lock()
	for _, n := range nodes {
		g.frozen[n] = true
	}
	var stopped []*gatedConn
	for c := range g.conns {
		if g.frozen[c.node] {
			stopped = append(stopped, c)
			// A deadline in the past brings reads and writes back that wait in the connection; they go on after the thaw.
			_ = c.Conn.SetDeadline(time.Unix(1, 0))
		}
	}
	g.mu.Unlock()
	for _, c := range stopped { // wait for those that were just moving bytes
		c.reading.Lock()
		c.reading.Unlock() //nolint:staticcheck // nothing is to be done inside
		c.writing.Lock()
		c.writing.Unlock() //nolint:staticcheck // nothing is to be done inside
	}
}

func (g *gate) thaw(nodes []int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range nodes {
		delete(g.frozen, n)
	}
	for c := range g.conns {
		if !g.frozen[c.node] {
			_ = c.Conn.SetDeadline(time.Time{})
		}
	}
	g.change.Broadcast()
}

// cut closes all connections.
func (g *gate) cut() {
	g.mu.Lock()
	conns := make([]*gatedConn, 0, len(g.conns))
	for c := range g.conns {
		conns = append(conns, c)
	}
	g.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (g *gate) counts() (open, accepted int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns), g.accepted
}

// gatedConn is a node's side of a client's connection.
type gatedConn struct {
	net.Conn
	gate *gate
	node int32
	// reading and writing are held while bytes may move.
	reading, writing sync.Mutex
	closed           bool // under gate.mu
}

// pass waits until bytes may move and reports false when the connection was closed meanwhile.
func (c *gatedConn) pass() bool {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	for c.gate.frozen[c.node] && !c.closed {
		c.gate.change.Wait()
	}
	return !c.closed
}

// stopped reports whether bytes may not move.
func (c *gatedConn) stopped() bool {
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	return c.gate.frozen[c.node]
}

// move calls step when bytes may move, and again when a freeze brought it back.
func (c *gatedConn) move(held *sync.Mutex, step func() (done bool, err error)) error {
	for {
		if !c.pass() {
			return net.ErrClosed
		}
		held.Lock()
		if c.stopped() { // between pass and here; freeze waits for held, so this is certain
			held.Unlock()
			continue
		}
		done, err := step()
		held.Unlock()
		// The nodes set no deadlines, so one that passed was the freeze's.
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if done || err != nil {
			return err
		}
	}
}

// Read implements net.Conn.
func (c *gatedConn) Read(b []byte) (n int, err error) {
	err = c.move(&c.reading, func() (bool, error) {
		var err error
		n, err = c.Conn.Read(b)
		return true, err
	})
	return n, err
}

// Write implements net.Conn.
func (c *gatedConn) Write(b []byte) (n int, err error) {
	err = c.move(&c.writing, func() (bool, error) {
		m, err := c.Conn.Write(b[n:])
		n += m
		return n == len(b), err
	})
	return n, err
}

// Close implements net.Conn.
func (c *gatedConn) Close() error {
	c.gate.mu.Lock()
	c.closed = true
	delete(c.gate.conns, c)
	c.gate.change.Broadcast()
	c.gate.mu.Unlock()
	return c.Conn.Close()
}
