//go:build unix

package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/integration/launch"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// meteredDialer counts the bytes read from each address.
type meteredDialer struct {
	mu   sync.Mutex
	read map[string]*atomic.Int64
}

func (d *meteredDialer) of(addr string) *atomic.Int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.read == nil {
		d.read = make(map[string]*atomic.Int64)
	}
	if d.read[addr] == nil {
		d.read[addr] = new(atomic.Int64)
	}
	return d.read[addr]
}

func (d *meteredDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &meteredConn{Conn: conn, read: d.of(addr)}, nil
}

type meteredConn struct {
	net.Conn
	read *atomic.Int64
}

func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// KIP-392: what a member reads comes from the replica in its rack, from the leaders while that one is away, and from the
// replica again when it is back.
func TestAMemberReadsFromTheReplicaInItsRack(t *testing.T) {
	t.Parallel()
	const (
		partitions, perRound = 6, 200
		roundBytes           = partitions * perRound * 1024
	)
	cluster := launch.ForTest(t, launch.Options{Nodes: 3})
	b := newAdmin(t, cluster.Brokers(), nil)
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, partitions)
	near := cluster.Nodes()[1]
	meter := &meteredDialer{}
	c := api.Config{
		Brokers: cluster.Brokers(), GroupID: group, Rack: fmt.Sprintf("rack-%d", near.ID()), MetadataMaxAge: time.Second, SessionTimeout: 20 * time.Second,
		RequestTimeout: 10 * time.Second,
	}
	n := 0
	// round produces to every partition, waits for the records to be handled and returns what was read from near and in all.
	round := func() (fromNear, fromAll int64) {
		before, all := meter.of(near.Addr()).Load(), meter.total()
		var records []kafka.Record
		for p := range int32(partitions) {
			for range perRound {
				value := make([]byte, 1024)
				_, _ = rand.Read(value) // nothing to compress
				records = append(records, kafka.Record{Partition: p, Value: value})
			}
		}
		b.Produce(t, topic, records...)
		n += len(records)
		eventually(t, 2*patience, "every record handled", func() bool { return l.distinct() == n })
		return meter.of(near.Addr()).Load() - before, meter.total() - all
	}
	m := spawn(t, c, api.WithDialer(meter.dial), api.Handle(topic, l.note("a")))
	round()
	// A replica may be told up to MetadataMaxAge later, and again each time that has passed; most rounds come from it alone.
	mostlyNear := func() bool {
		fromNear, fromAll := round()
		t.Logf("read of a round of %d bytes: %d from the replica, %d in all", roundBytes, fromNear, fromAll)
		return fromNear >= roundBytes*9/10 && fromNear >= fromAll*9/10
	}
	require.True(t, waitFor(patience, mostlyNear), "records come from the replica in the rack")

	ctx, cancel := context.WithTimeout(t.Context(), nodeLimit)
	defer cancel()
	require.NoError(t, near.Kill())
	fromNear, _ := round()
	assert.Less(t, fromNear, int64(roundBytes/10), "from the leaders")
	require.NoError(t, near.Restart())
	require.NoError(t, cluster.AwaitReady(ctx))
	require.NoError(t, cluster.AwaitInSync(ctx))
	require.True(t, waitFor(patience, mostlyNear), "and from the replica again")
	m.mustClose(t)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
	var all []int32
	for p := range int32(partitions) {
		all = append(all, p)
	}
	l.inOrder(t, tps(topic, all...)...)
	require.Empty(t, l.repeated())
}

func (d *meteredDialer) total() (sum int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, read := range d.read {
		sum += read.Load()
	}
	return sum
}
