package integration

import (
	"context"
	"net"
	"sync/atomic"
)

// blackhole is one member's way to the network, which can be made to lose everything: bytes of either direction vanish,
// connections stay open, new ones come about and carry nothing. What was open then stays useless after it has healed.
type blackhole struct {
	dial dialFunc
	on   atomic.Bool
	// only is the one address that is lost; empty for all.
	only string
}

// Dial has the shape that api.WithDialer takes.
func (b *blackhole) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := b.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if b.only != "" && b.only != addr {
		return conn, nil
	}
	return &holedConn{Conn: conn, hole: b}, nil
}

type holedConn struct {
	net.Conn
	hole *blackhole
	lost atomic.Bool // something was lost, so that nothing after it can be understood
}

func (c *holedConn) losing() bool {
	if c.hole.on.Load() {
		c.lost.Store(true)
	}
	return c.lost.Load()
}

func (c *holedConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.losing() {
			return n, err
		}
	}
}

func (c *holedConn) Write(p []byte) (int, error) {
	if c.losing() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}
