package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// The phases of a connection, as kafka.ConnectError names them.
const (
	phaseDial         = "dial"
	phaseTLS          = "tls"
	phaseAuthenticate = "authenticate"
	phaseVersions     = "versions"
)

// renewPercent is the share of an authenticated session's lifetime after which the connection is made anew. After the
// whole of it the broker closes the connection at the next request, without an answer (KIP-368).
const renewPercent = 80

// contextDialer is what a user's proxy dialer may offer beyond sarama's proxy.Dialer.
type contextDialer interface {
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
}

// open makes a connection to a broker: dial, TLS, sarama authenticates, versions are agreed on. keep is called with the
// dialed connection before anything is said on it, so that its owner can close it from elsewhere. When ctx ends the
// connection is closed at once. Every error is a *kafka.ConnectError.
func (n *Network) open(ctx context.Context, broker kafka.Broker, keep func(net.Conn)) (*link, error) {
	fail := func(phase string, err error) error {
		return &kafka.ConnectError{Addr: broker.Addr, Phase: phase, Source: n.source(broker.Addr), Err: because(ctx, err)}
	}
	leave, err := n.logins.enter(broker.Addr)
	if err != nil {
		return nil, fail(phaseAuthenticate, err)
	}
	defer func() { leave(err) }()
	raw, err := n.dial(ctx, broker.Addr)
	if err != nil {
		return nil, fail(phaseDial, err)
	}
	keep(raw)
	l := &link{raw: raw, conn: raw, broker: broker, correlation: firstCorrelation - 1,
		formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID(n.cfg.ClientID))}
	stop := context.AfterFunc(ctx, l.abort)
	defer stop()
	phase, err := n.greet(ctx, l)
	if err == nil && !stop() {
		err = ctx.Err() // the connection is being closed already
	}
	if err != nil {
		l.abort()
		return nil, fail(phase, err)
	}
	return l, nil
}

// source says which answer named an address, the empty string for the bootstrap servers.
func (n *Network) source(addr string) string {
	if slices.Contains(n.cfg.Brokers, addr) {
		return ""
	}
	return n.origins.of(addr)
}

// greet does all that comes between dialing and the first request. It returns the phase that failed.
func (n *Network) greet(ctx context.Context, l *link) (phase string, err error) {
	defer func() {
		if isRemoteAlert(err) {
			phase = phaseTLS
		}
	}()
	if n.tls != nil {
		secured := tls.Client(l.raw, n.tlsFor(l.broker.Addr))
		if err := secured.HandshakeContext(ctx); err != nil {
			return phaseTLS, n.tlsError(err)
		}
		l.conn = secured
	}
	lifetime, err := n.authenticate(ctx, l.conn, l.broker.Addr)
	if err != nil {
		return phaseAuthenticate, err
	}
	if lifetime > 0 {
		l.renewAt = time.Now().Add(lifetime / 100 * renewPercent)
	}
	return phaseVersions, l.negotiate(ctx, n.cfg.SoftwareVersion)
}

// tlsFor returns the TLS configuration for one address: the user's, with the host as server name unless one is set.
func (n *Network) tlsFor(addr string) *tls.Config {
	cfg := n.tls.Clone()
	if cfg.ServerName == "" {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			cfg.ServerName = host
		}
	}
	return cfg
}

// dial makes the plain connection by the first of: the override, the user's proxy, a dialer with the user's settings.
func (n *Network) dial(ctx context.Context, addr string) (net.Conn, error) {
	settings := &n.sarama.Net
	switch {
	case n.cfg.Dial != nil:
		return n.cfg.Dial(ctx, "tcp", addr)
	case !settings.Proxy.Enable:
		d := net.Dialer{LocalAddr: settings.LocalAddr, KeepAlive: settings.KeepAlive}
		return d.DialContext(ctx, "tcp", addr)
	}
	if d, ok := settings.Proxy.Dialer.(contextDialer); ok {
		return d.DialContext(ctx, "tcp", addr)
	}
	return dialBlocking(ctx, settings.Proxy.Dialer.Dial, addr)
}

// dialBlocking runs a dial that knows no context. When ctx ends first it returns, and a connection that is made later is
// closed.
func dialBlocking(ctx context.Context, dial func(network, addr string) (net.Conn, error), addr string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				r = result{err: fmt.Errorf("proxy dialer panicked: %v", p)}
			}
			done <- r
		}()
		r.conn, r.err = dial("tcp", addr)
	}()
	select {
	case r := <-done:
		if r.err == nil && r.conn == nil {
			r.err = errors.New("proxy dialer returned no connection")
		}
		return r.conn, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.conn != nil {
				_ = r.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}
