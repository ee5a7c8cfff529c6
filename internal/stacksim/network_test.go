package stacksim

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafkatest"
)

var errNoRoute = errors.New("stacksim: no route")

// link is one process' way to the network.
type link struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu sync.Mutex
	// hole makes bytes vanish, refusing breaks connections.
	hole, refusing bool
	conns          map[*linkConn]struct{}
}

func newLink(b *kafkatest.Broker) *link {
	return &link{dial: b.Dial, conns: make(map[*linkConn]struct{})}
}

// Dial has the shape that api.WithDialer takes.
func (l *link) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	refusing := l.refusing
	l.mu.Unlock()
	if refusing {
		return nil, errNoRoute
	}
	conn, err := l.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &linkConn{Conn: conn, link: l}
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	return c, nil
}

// set changes how the link is. What was open while bytes vanished stays useless.
func (l *link) set(hole, refusing bool) {
	l.mu.Lock()
	l.hole, l.refusing = hole, refusing
	var broken []*linkConn
	for c := range l.conns {
		c.lost = c.lost || hole
		if refusing {
			broken = append(broken, c)
		}
	}
	l.mu.Unlock()
	for _, c := range broken {
		c.Close()
	}
}

type linkConn struct {
	net.Conn
	link *link
	lost bool // under link.mu
}

func (c *linkConn) losing() bool {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.lost = c.lost || c.link.hole
	return c.lost
}

// Read implements net.Conn.
func (c *linkConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.losing() {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (c *linkConn) Write(p []byte) (int, error) {
	if c.losing() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *linkConn) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}

// wire is what the brokers do to requests beyond kfake's own faults.
type wire struct {
	mu    sync.Mutex
	rules []*wireRule
}

type wireRule struct {
	action
	left    int
	expired bool
}

func (w *wire) add(a action) *wireRule {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &wireRule{action: a, left: a.count}
	w.rules = append(w.rules, r)
	return r
}

func (w *wire) remove(r *wireRule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.expired = true
}

// next is the rule that a request falls under.
func (w *wire) next(key int16) (rule action, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.rules {
		if r.expired || int16(r.key) != key || r.left == 0 && r.kind != actSlow {
			continue
		}
		r.left--
		return r.action, true
	}
	return action{}, false
}

var errDropped = errors.New("stacksim: connection dropped")

// control stands before every request.
func (w *world) control(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's shape
	if resp := w.mutate(req); resp != nil {
		w.broker.Cluster().KeepControl()
		return resp, nil, true
	}
	if commit, ok := req.(*kmsg.OffsetCommitRequest); ok && commit.Group == group {
		w.tap(commit)
	}
	w.hear(req)
	rule, ok := w.wire.next(req.Key())
	if !ok {
		return nil, nil, false
	}
	cluster := w.broker.Cluster()
	w.ledger.note("WIRE", rule.kind, kmsg.NameForKey(req.Key()))
	switch rule.kind {
	case actSlow:
		cluster.SleepControl(func() { time.Sleep(rule.delay) })
		return nil, nil, false
	case actSilence:
		cluster.KeepControl()
		return nil, nil, true
	default:
		cluster.KeepControl()
		return nil, errDropped, true
	}
}

// hear notes when a member spoke to its group last.
func (w *world) hear(req kmsg.Request) {
	var member string
	switch req := req.(type) {
	case *kmsg.HeartbeatRequest:
		member = req.MemberID
	case *kmsg.JoinGroupRequest:
		member = req.MemberID
	case *kmsg.SyncGroupRequest:
		member = req.MemberID
	case *kmsg.OffsetCommitRequest:
		member = req.MemberID
	}
	if member != "" {
		w.ledger.mu.Lock()
		defer w.ledger.mu.Unlock()
		w.heard[member] = time.Now()
	}
}

// The mutants.
const (
	mutantCommitAhead   = "commit-ahead"   // a commit is one record further than its member said
	mutantCommitLost    = "commit-lost"    // a commit is confirmed and not kept
	mutantCommitLess    = "commit-less"    // a commit is three records less far than its member said
	mutantAssignedTwice = "assigned-twice" // every member is given what the first one is
	mutantDeafGroup     = "deaf-group"     // heartbeats are answered and not counted
)

// mutate does to a request what the plan's mutant does, and returns its answer if that is all that comes of it.
func (w *world) mutate(req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.OffsetCommitRequest:
		return w.mutateCommit(req)
	case *kmsg.SyncGroupRequest:
		for i := range req.GroupAssignment {
			if w.plan.mutant == mutantAssignedTwice {
				req.GroupAssignment[i].MemberAssignment = req.GroupAssignment[0].MemberAssignment
			}
		}
	case *kmsg.HeartbeatRequest:
		if w.plan.mutant == mutantDeafGroup {
			return req.ResponseKind()
		}
	}
	return nil
}

func (w *world) mutateCommit(req *kmsg.OffsetCommitRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	for i := range req.Topics {
		topic := kmsg.NewOffsetCommitResponseTopic()
		topic.Topic, topic.TopicID = req.Topics[i].Topic, req.Topics[i].TopicID
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			switch {
			case w.plan.mutant == mutantCommitAhead && p.Offset > 0:
				p.Offset++
			case w.plan.mutant == mutantCommitLess:
				p.Offset = max(p.Offset-3, 0)
			}
			partition := kmsg.NewOffsetCommitResponseTopicPartition()
			partition.Partition = p.Partition
			topic.Partitions = append(topic.Partitions, partition)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	if w.plan.mutant == mutantCommitLost {
		return resp
	}
	return nil
}
