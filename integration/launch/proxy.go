package launch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Proxy forwards TCP connections from a loopback port of its own to one address, byte by byte, until told otherwise.
// As Options.AdvertisedOverride it stands between clients and one listener of a node:
//
//	AdvertisedOverride: func(node int, listener, address string) string {
//		proxy, err := launch.NewProxy(address)
//		…
//		return proxy.Addr()
//	}
type Proxy struct {
	listener net.Listener
	target   string
	wait     sync.WaitGroup

	mu      sync.Mutex
	open    map[net.Conn]struct{} // guarded by mu; both ends of every connection
	refuses bool                  // guarded by mu
	closed  bool                  // guarded by mu
}

// NewProxy starts a proxy to an address, host:port.
func NewProxy(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return nil, fmt.Errorf("launch: proxy: %w", err)
	}
	p := &Proxy{listener: listener, target: target, open: map[net.Conn]struct{}{}}
	p.wait.Go(p.accept)
	return p, nil
}

// Addr is the address to connect to, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Refuse decides whether new connections are closed at once. Open ones stay; see Cut.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = refuse
}

// Connections is the number of connections now open through the proxy.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open) / 2
}

// Cut closes every open connection, in both directions.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		_ = conn.Close()
	}
}

// Close cuts every connection, gives the port back and returns when nothing of the proxy runs any more.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.Cut()
	p.wait.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wait.Go(func() { p.forward(client) })
	}
}

func (p *Proxy) forward(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	refused := p.refuses || p.closed
	p.mu.Unlock()
	if refused {
		return
	}
	server, err := net.DialTimeout("tcp", p.target, dialTimeout)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.register(client, server) {
		return
	}
	defer p.forget(client, server)
	var copies sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		copies.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // however it ends, the connection ends with it
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	copies.Wait()
}

func (p *Proxy) register(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refuses {
		return false
	}
	for _, conn := range conns {
		p.open[conn] = struct{}{}
	}
	return true
}

func (p *Proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		delete(p.open, conn)
	}
}
