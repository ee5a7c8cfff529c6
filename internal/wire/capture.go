package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// authenticate lets a sarama.Broker open conn, which authenticates by whatever SASL mechanism the user configured (none
// is the same way with nothing said), and then takes the connection back and closes the Broker. What is left is the
// connection alone, with no goroutine or meter of sarama's behind it.
//
// It returns the session's lifetime, 0 when it has no end (KIP-368).
//
// When ctx ends the caller closes the connection and authenticate returns. A token provider or Kerberos library that
// blocks is then left to end by itself: nothing can interrupt it.
func (n *Network) authenticate(ctx context.Context, conn net.Conn, addr string) (lifetime time.Duration, err error) {
	lent := &loan{Conn: conn}
	cfg := n.sarama
	cfg.MetricRegistry = metrics.NewRegistry() // Broker.Close empties the registry
	cfg.Net.TLS.Enable = false
	cfg.Net.TLS.Config = nil
	cfg.Net.Proxy.Enable = true
	cfg.Net.Proxy.Dialer = lent
	broker := sarama.NewBroker(addr)
	if err := broker.Open(&cfg); err != nil {
		return 0, err
	}
	opened := make(chan error, 1)
	go func() {
		connected, err := broker.Connected() // waits for the end of Open
		if err == nil && !connected {
			err = errors.New("sarama did not connect")
		}
		lent.takeBack()
		_ = broker.Close()
		opened <- err
	}()
	select {
	case err := <-opened:
		if err != nil {
			return 0, n.saslError(err, lent)
		}
		return sessionLifetime(lent.heard()), conn.SetDeadline(time.Time{}) // sarama left its own deadlines
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// sessionLifetime finds the lifetime in what a broker said during authentication: sarama keeps it to itself, but it is in
// the last answer, that to SaslAuthenticate v1.
func sessionLifetime(heard []byte) time.Duration {
	var last []byte
	for r := bytes.NewReader(heard); r.Len() > 0; {
		frame, _, err := readFrame(r, len(heard), 0)
		if err != nil {
			return 0
		}
		last = frame
	}
	if len(last) < 4 {
		return 0
	}
	resp := kmsg.NewPtrSASLAuthenticateResponse()
	resp.Version = 1
	if err := resp.ReadFrom(last[4:]); err != nil || resp.SessionLifetimeMillis <= 0 {
		return 0
	}
	return time.Duration(min(resp.SessionLifetimeMillis, math.MaxInt32)) * time.Millisecond
}

// mostHeard is how much of the other end's talk is kept: an authentication has some hundred bytes.
const mostHeard = 64 << 10

// errTakenBack is what sarama would get if it used a connection that it no longer has.
var errTakenBack = errors.New("wire: the connection was taken back from sarama")

// loan is a connection lent to sarama: it is the dialer that sarama is given and the connection it gets from it. Once
// taken back, reading and writing through it fail and closing it leaves the connection open.
type loan struct {
	net.Conn
	mu    sync.Mutex
	taken bool
	// said is what the other end said, up to mostHeard.
	said []byte
	// late counts reads and writes tried after the connection was taken back; the guard test wants none.
	late int
}

// Dial returns the connection that is there already.
func (l *loan) Dial(string, string) (net.Conn, error) { return l, nil }

func (l *loan) takeBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = true
}

// heard returns what the other end said while sarama had the connection.
func (l *loan) heard() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said
}

// use reports whether sarama still has the connection.
func (l *loan) use() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken {
		l.late++
		return errTakenBack
	}
	return nil
}

// Read reads unless the connection was taken back.
func (l *loan) Read(b []byte) (int, error) {
	if err := l.use(); err != nil {
		return 0, err
	}
	n, err := l.Conn.Read(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, b[:min(n, mostHeard-len(l.said))]...)
	if l.taken && err == nil {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// Write writes unless the connection was taken back.
func (l *loan) Write(b []byte) (int, error) {
	if err := l.use(); err != nil {
		return 0, err
	}
	return l.Conn.Write(b)
}

// Close closes the connection unless it was taken back.
func (l *loan) Close() error {
	l.mu.Lock()
	taken := l.taken
	l.mu.Unlock()
	if taken {
		return nil
	}
	return l.Conn.Close()
}
