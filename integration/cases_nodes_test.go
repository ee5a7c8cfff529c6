package integration

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

// powerCut is a way to the network that loses all connections to one address at once.
type powerCut struct {
	dial dialFunc

	mu    sync.Mutex
	conns map[string][]net.Conn
}

// Dial has the shape that api.WithDialer takes.
func (p *powerCut) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := p.dial(ctx, network, addr)
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.conns == nil {
			p.conns = make(map[string][]net.Conn)
		}
		p.conns[addr] = append(p.conns[addr], conn)
	}
	return conn, err
}

func (p *powerCut) cut(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns[addr] {
		_ = conn.Close()
	}
	delete(p.conns, addr)
}

// librdkafka#2944 and others: after a rolling restart on new addresses the client asks the old ones for ever.
func TestB34_NodesThatAreReplacedOneByOneOnNewAddressesAreFollowed(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		const partitions, nodes = 6, 3
		b.CreateTopic(t, "orders", partitions)
		commits, l, cluster := tap(b, "billing", "orders"), newLedger(), b.Cluster()
		power := &powerCut{dial: b.Dial}
		work := func(context.Context, *kafka.Record) error {
			time.Sleep(time.Millisecond)
			return nil
		}
		one := spawn(t, plain(b), api.WithDialer(power.Dial), api.Handle("orders", l.watch("one", work)))
		two := spawn(t, plain(b), api.WithDialer(power.Dial), api.Handle("orders", l.watch("two", work)))
		settled(t, partitions, one, two)
		stop := stream(t, b, "orders", partitions)
		defer stop()
		time.Sleep(5 * time.Second)
		// stable demands that what was written until now is committed soon, of every partition.
		stable := func(what string) {
			t.Helper()
			began := time.Now()
			time.Sleep(time.Second) // so that there is something that was written after it
			ends := b.EndOffsets(t, "orders")
			eventually(t, 9*time.Second, "stable after "+what, func() bool {
				committed := b.Committed(t, "billing")
				for tp, end := range ends {
					if committed[tp] < end {
						return false
					}
				}
				for _, m := range []*member{one, two} {
					if s := m.Stats(); s.State != rebalance.StateAssigned.String() || s.Coordinator != rebalance.LinkStable.String() {
						return false
					}
				}
				return true
			})
			t.Logf("stable %v after %s", time.Since(began), what)
		}
		addrs := b.Addrs()
		for node := range int32(nodes) {
			require.NoError(t, cluster.RemoveNode(node))
			power.cut(addrs[node])
			cluster.RehashCoordinators()
			stable("a node went")
			_, _, err := cluster.AddNode(node, 0)
			require.NoError(t, err)
			cluster.RehashCoordinators()
			stable("another one came")
			time.Sleep(20 * time.Second)
		}
		for _, addr := range cluster.ListenAddrs() {
			require.NotContains(t, addrs, addr, "all are new")
		}
		cluster.RehashCoordinators()
		stable("the roll")
		n := stop()
		eventually(t, 30*time.Second, "every record handled", func() bool { return l.distinct() == n })
		for _, m := range []*member{one, two} {
			assert.Empty(t, told[event.PartitionsLost](m))
			m.mustClose(t)
		}
		l.allHandled(t, b.EndOffsets(t, "orders"))
		l.noOverlap(t)
		require.Empty(t, l.repeated())
		commits.orderly(t)
		require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
	}, kafkatest.Brokers(3))
}
