//go:build unix

package integration

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupTap stands between workers and a broker and writes down the requests that change a group.
type groupTap struct {
	listener net.Listener
	target   string
	wait     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]string // both ends, with the client's id once it is known
	frames []groupFrame
}

// groupFrame is one request of a client's.
type groupFrame struct {
	at         time.Time
	client     string
	key        kmsg.Key
	generation int32           // of a commit
	offsets    map[int32]int64 // of a commit, by partition; the groups here have one topic
}

// newGroupTap starts a tap in front of an address. It ends with the test.
func newGroupTap(t *testing.T, target string) *groupTap {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	tap := &groupTap{listener: listener, target: target, conns: make(map[net.Conn]string)}
	tap.wait.Go(tap.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		tap.mu.Lock()
		tap.closed = true
		tap.mu.Unlock()
		tap.cut("")
		tap.wait.Wait()
	})
	return tap
}

func (g *groupTap) addr() string { return g.listener.Addr().String() }

// cut closes the connections of a client, and says how many there were; of all clients for an empty name.
func (g *groupTap) cut(client string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for conn, whose := range g.conns {
		if client == "" || whose == client {
			_ = conn.Close()
			n++
		}
	}
	return n / 2
}

// connected reports how many connections a client has.
func (g *groupTap) connected(client string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, whose := range g.conns {
		if whose == client {
			n++
		}
	}
	return n / 2
}

// sent returns the requests of a client since a time, in the order they came.
func (g *groupTap) sent(client string, since time.Time) []groupFrame {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []groupFrame
	for _, frame := range g.frames {
		if frame.client == client && !frame.at.Before(since) {
			out = append(out, frame)
		}
	}
	return out
}

func (g *groupTap) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		g.wait.Go(func() { g.forward(client) })
	}
}

func (g *groupTap) forward(client net.Conn) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", g.target, requestTimeout)
	if err != nil {
		return
	}
	defer server.Close()
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return
	}
	g.conns[client], g.conns[server] = "", ""
	g.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(client, server) // however it ends, the connection ends with it
		_ = client.Close()
	})
	for g.pass(client, server) {
	}
	_ = server.Close()
	back.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, client)
	delete(g.conns, server)
}

// pass reads one request, writes it down and sends it on.
func (g *groupTap) pass(client, server net.Conn) bool {
	var size [4]byte
	if _, err := io.ReadFull(client, size[:]); err != nil {
		return false
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(client, body); err != nil {
		return false
	}
	g.note(client, server, body)
	_, err := server.Write(append(size[:], body...))
	return err == nil
}

// note looks into a request: api key, version, correlation id, client id, and for flexible versions tags.
func (g *groupTap) note(client, server net.Conn, body []byte) {
	const fixed = 10
	if len(body) < fixed {
		return
	}
	key, version := kmsg.Key(binary.BigEndian.Uint16(body)), int16(binary.BigEndian.Uint16(body[2:]))
	nameEnds := fixed + max(0, int(int16(binary.BigEndian.Uint16(body[8:]))))
	if len(body) < nameEnds {
		return
	}
	frame := groupFrame{at: time.Now(), client: string(body[fixed:nameEnds]), key: key}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[client], g.conns[server] = frame.client, frame.client
	switch key {
	case kmsg.JoinGroup, kmsg.SyncGroup, kmsg.LeaveGroup:
		g.frames = append(g.frames, frame)
	case kmsg.OffsetCommit:
		req := kmsg.NewPtrOffsetCommitRequest()
		req.SetVersion(version)
		rest := body[nameEnds:]
		if req.IsFlexible() {
			rest = rest[1:] // nobody here sends tags
		}
		if err := req.ReadFrom(rest); err != nil {
			panic(err)
		}
		frame.generation, frame.offsets = req.Generation, make(map[int32]int64)
		for _, topic := range req.Topics {
			for _, p := range topic.Partitions {
				frame.offsets[p.Partition] = p.Offset
			}
		}
		g.frames = append(g.frames, frame)
	default:
	}
}
