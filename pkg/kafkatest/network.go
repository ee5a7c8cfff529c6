package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// memoryNode is the address of a node on a network in memory. No resolver ever knows such a host (RFC 6761), so that a
// client that was not given [Broker.Dial] reaches nobody, and not by chance a real Kafka on this machine.
func memoryNode(node int32) memoryAddr {
	return memoryAddr(fmt.Sprintf("node-%d.kafkatest.invalid:9092", node))
}

// network makes the listeners of the nodes and connects to them.
type network struct {
	gate     *gate
	inMemory bool

	mu        sync.Mutex
	listeners map[string]*listener // by address
	nodes     int32
	clients   atomic.Int64
}

func newNetwork(inMemory bool) *network {
	return &network{gate: newGate(), inMemory: inMemory, listeners: make(map[string]*listener)}
}

// listen is kfake's way to make the listener of the next node.
func (n *network) listen(networkName, address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{network: n, node: n.nodes, conns: make(chan net.Conn), closed: make(chan struct{})}
	if n.inMemory {
		l.addr = memoryNode(n.nodes)
	} else {
		socket, err := net.Listen(networkName, address)
		if err != nil {
			return nil, err
		}
		l.socket, l.addr = socket, socket.Addr()
		go l.acceptSocket()
	}
	n.nodes++
	n.listeners[l.addr.String()] = l
	return l, nil
}

// find returns the listener at an address.
func (n *network) find(address string) (*listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l, ok := n.listeners[address]; ok {
		return l, nil
	}
	return nil, fmt.Errorf("kafkatest: nobody listens at %s", address)
}

// dial is how a client connects.
func (n *network) dial(ctx context.Context, networkName, address string) (net.Conn, error) {
	if !n.inMemory {
		var d net.Dialer
		return d.DialContext(ctx, networkName, address)
	}
	return n.connect(ctx, address, n.gate)
}

// dialInside is how the broker's own client connects: on a pipe, also when the clients are on loopback, and past the gate.
func (n *network) dialInside(ctx context.Context, _, address string) (net.Conn, error) {
	return n.connect(ctx, address, nil)
}

func (n *network) connect(ctx context.Context, address string, g *gate) (net.Conn, error) {
	l, err := n.find(address)
	if err != nil {
		return nil, err
	}
	client, server := newPipe(memoryAddr(fmt.Sprintf("client:%d", n.clients.Add(1))), l.addr)
	if g != nil {
		server = g.admit(l.node, server)
	}
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		err = fmt.Errorf("kafkatest: nobody listens at %s any more", address)
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = server.Close()
	_ = client.Close()
	return nil, err
}

// listener is one node's listener. Connections come from its socket, if it has one, and from the network.
type listener struct {
	network *network
	node    int32
	addr    net.Addr
	socket  net.Listener // nil in memory
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

// acceptSocket moves connections from the socket to conns until the socket is closed.
func (l *listener) acceptSocket() {
	for {
		inner, err := l.socket.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as a client that was gone at once
			select {
			case <-l.closed:
				return
			default:
				continue
			}
		}
		conn := l.network.gate.admit(l.node, inner)
		select {
		case l.conns <- conn:
		case <-l.closed:
			_ = conn.Close()
			return
		}
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	var err error
	l.once.Do(func() {
		close(l.closed)
		l.network.mu.Lock()
		delete(l.network.listeners, l.addr.String())
		l.network.mu.Unlock()
		if l.socket != nil {
			err = l.socket.Close()
		}
	})
	return err
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.addr }
