package kafkatest

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipeBuffer is how many bytes a direction of a connection in memory holds: writing blocks only when nobody reads for
// that long, as with a socket.
const pipeBuffer = 256 << 10

// newPipe returns the two ends of a connection in memory. Unlike net.Pipe it has buffers, so that writing to a peer that
// does not read succeeds, as it does on a socket. It waits with a condition variable, which a synctest bubble counts as
// being blocked.
func newPipe(client, server net.Addr) (clientEnd, serverEnd net.Conn) {
	up, down := newStream(), newStream()
	return &pipeEnd{in: down, out: up, local: client, remote: server}, &pipeEnd{in: up, out: down, local: server, remote: client}
}

// stream is one direction of a pipe.
type stream struct {
	mu   sync.Mutex
	wake *sync.Cond
	buf  []byte
	// writeClosed: the writer's end is closed, the reader gets what is left and io.EOF. readClosed: nobody will read.
	writeClosed, readClosed bool
	readLimit, writeLimit   deadline
}

func newStream() *stream {
	s := new(stream)
	s.wake = sync.NewCond(&s.mu)
	return s
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.readClosed:
			return 0, io.ErrClosedPipe
		case s.readLimit.passed:
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case len(s.buf) > 0:
			n := copy(b, s.buf)
			s.buf = s.buf[n:]
			s.wake.Broadcast()
			return n, nil
		case s.writeClosed:
			return 0, io.EOF
		}
		s.wake.Wait()
	}
}

func (s *stream) write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for done := 0; ; {
		switch {
		case s.writeClosed, s.readClosed:
			return done, io.ErrClosedPipe
		case s.writeLimit.passed:
			return done, os.ErrDeadlineExceeded
		case done == len(b):
			return done, nil
		}
		if room := min(pipeBuffer-len(s.buf), len(b)-done); room > 0 {
			s.buf = append(s.buf, b[done:done+room]...)
			done += room
			s.wake.Broadcast()
			continue
		}
		s.wake.Wait()
	}
}

// close ends the stream for one of its sides.
func (s *stream) close(side *bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*side = true
	s.readLimit.stop()
	s.writeLimit.stop()
	s.wake.Broadcast()
}

func (s *stream) setLimit(d *deadline, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.stop()
	d.passed = false
	d.number++
	if !t.IsZero() {
		if wait := time.Until(t); wait <= 0 {
			d.passed = true
		} else {
			number := d.number
			d.timer = time.AfterFunc(wait, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				if d.number == number {
					d.passed = true
					s.wake.Broadcast()
				}
			})
		}
	}
	s.wake.Broadcast()
}

// deadline is a read or write deadline. number tells a timer that fires late that it was replaced.
type deadline struct {
	timer  *time.Timer
	number int
	passed bool
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// pipeEnd is one end of a pipe.
type pipeEnd struct {
	in, out       *stream
	local, remote net.Addr
}

// Read implements net.Conn.
func (e *pipeEnd) Read(b []byte) (int, error) { return e.in.read(b) }

// Write implements net.Conn.
func (e *pipeEnd) Write(b []byte) (int, error) { return e.out.write(b) }

// Close implements net.Conn.
func (e *pipeEnd) Close() error {
	e.out.close(&e.out.writeClosed)
	e.in.close(&e.in.readClosed)
	return nil
}

// LocalAddr implements net.Conn.
func (e *pipeEnd) LocalAddr() net.Addr { return e.local }

// RemoteAddr implements net.Conn.
func (e *pipeEnd) RemoteAddr() net.Addr { return e.remote }

// SetDeadline implements net.Conn.
func (e *pipeEnd) SetDeadline(t time.Time) error {
	_ = e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (e *pipeEnd) SetReadDeadline(t time.Time) error {
	e.in.setLimit(&e.in.readLimit, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (e *pipeEnd) SetWriteDeadline(t time.Time) error {
	e.out.setLimit(&e.out.writeLimit, t)
	return nil
}

// memoryAddr is an address on the network in memory.
type memoryAddr string

// Network implements net.Addr.
func (memoryAddr) Network() string { return "memory" }

// String implements net.Addr.
func (a memoryAddr) String() string { return string(a) }
