//go:build unix

package integration

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/integration/launch"
)

const (
	// nodesSession is the workers' session timeout on three nodes. A coordinator that was killed is replaced in 3 to 5 s.
	nodesSession = 20 * time.Second
	// flowLimit is how soon every partition must flow again after a node was killed.
	flowLimit = 20 * time.Second
	// nodeLimit bounds what a node does when it starts or stops.
	nodeLimit = 90 * time.Second
)

// nodes is a cluster of three with two workers and a producer that goes on all the time.
type nodes struct {
	*stage
	cluster  *launch.Cluster
	a, b     *worker
	producer *steadyProducer
}

// threeNodes kills, freezes and restarts nodes one after the other under the same two workers.
func threeNodes(t *testing.T, binary string) {
	cluster := launch.ForTest(t, launch.Options{Nodes: 3})
	// The producer must not be what takes long when a node goes or freezes.
	admin := newAdmin(t, cluster.Brokers(), nil, kgo.MetadataMinAge(200*time.Millisecond),
		kgo.ProduceRequestTimeout(2*time.Second), kgo.RequestTimeoutOverhead(2*time.Second))
	s := newStage(t, binary, cluster.Brokers(), admin, 6,
		"-session-timeout", nodesSession.String(), "-request-timeout", "10s", "-work", "1ms")
	n := &nodes{stage: s, cluster: cluster, producer: produceSteadily(t, s)}
	n.a, n.b = s.bothWork(t)
	n.step(t, "KillTheCoordinator", (*nodes).killCoordinator)
	n.step(t, "KillLeaders", (*nodes).killLeaders)
	n.step(t, "FreezeAndThawTheCoordinator", (*nodes).freezeCoordinator)
	n.step(t, "RollingRestart", (*nodes).rollingRestart)
	n.producer.stop()
	s.nothingLost(t)
	s.drained(t, n.a, n.b)
	s.inOrder(t)
	s.noOverlap(t)
	t.Logf("%d records, repeated: %d", s.finished(t), len(s.repeated(t)))
}

// step runs a part of the story. After one that failed the others have nothing to start from.
func (n *nodes) step(t *testing.T, name string, run func(*nodes, *testing.T)) {
	t.Helper()
	if !t.Run(name, func(t *testing.T) { run(n, t) }) {
		t.FailNow()
	}
}

// membership is what must not change when Kafka keeps a group: the members and their assignments so far.
type membership struct {
	members     []string
	assignments int
}

func (n *nodes) membership(t *testing.T) membership {
	t.Helper()
	members := slices.Sorted(maps.Keys(n.admin.Group(t, n.group).Members))
	return membership{members, len(n.a.assignments()) + len(n.b.assignments())}
}

// whole waits until all nodes serve again, with every replica in sync, so that another one may go.
func (n *nodes) whole(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), nodeLimit)
	defer cancel()
	require.NoError(t, n.cluster.AwaitReady(ctx))
	require.NoError(t, n.cluster.AwaitInSync(ctx))
}

func (n *nodes) coordinator(t *testing.T) *launch.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), nodeLimit)
	defer cancel()
	node, err := n.cluster.Coordinator(ctx, n.group)
	require.NoError(t, err)
	return node
}

// killCoordinator kills the node that coordinates the group. The group is kept: same members, same generation.
func (n *nodes) killCoordinator(t *testing.T) {
	before, repeated := n.membership(t), n.repeated(t)
	node := n.coordinator(t)
	n.kill(t, node)
	assert.Equal(t, before, n.membership(t), "members and assignments")
	assert.NotEqual(t, node, n.coordinator(t))
	n.restart(t, node)
	assert.Equal(t, before, n.membership(t), "members and assignments")
	assert.Equal(t, repeated, n.repeated(t), "repeated")
}

// killLeaders kills, one after the other, the nodes that lead partitions and do not coordinate the group.
func (n *nodes) killLeaders(t *testing.T) {
	before, repeated := n.membership(t), n.repeated(t)
	coordinator := n.coordinator(t)
	for _, node := range n.cluster.Nodes() {
		if node == coordinator {
			continue
		}
		require.Positive(t, n.leads(t, node), "partitions led by node %d", node.ID())
		n.kill(t, node)
		n.restart(t, node)
	}
	assert.Equal(t, before, n.membership(t), "members and assignments")
	assert.Equal(t, repeated, n.repeated(t), "repeated")
}

// leads returns how many partitions a node leads.
func (n *nodes) leads(t *testing.T, node *launch.Node) (led int) {
	t.Helper()
	for _, topic := range n.admin.metadata(t, n.topic) {
		for _, p := range topic.Partitions {
			if int(p.Leader) == node.ID() {
				led++
			}
		}
	}
	return led
}

// kill kills a node and demands that every partition flows again in time.
func (n *nodes) kill(t *testing.T, node *launch.Node) {
	t.Helper()
	at := time.Now()
	require.NoError(t, node.Kill())
	took := n.flowsSince(t, at)
	t.Logf("node %d killed: records of every partition flow again after %v", node.ID(), took)
	assert.Less(t, took, flowLimit, "records flow again")
}

func (n *nodes) restart(t *testing.T, node *launch.Node) {
	t.Helper()
	require.NoError(t, node.Restart())
	n.whole(t)
	n.spreadLeaders(t)
}

// spreadLeaders gives every node the partitions it is preferred for. Kafka does so by itself, but only every five minutes.
func (n *nodes) spreadLeaders(t *testing.T) {
	t.Helper()
	req := kmsg.NewPtrElectLeadersRequest()
	req.TimeoutMillis = int32(requestTimeout.Milliseconds())
	topic := kmsg.NewElectLeadersRequestTopic()
	topic.Topic = n.topic
	for p := range n.partitions {
		topic.Partitions = append(topic.Partitions, p)
	}
	req.Topics = append(req.Topics, topic)
	eventually(t, patience, "every node leads partitions", func() bool {
		_, err := req.RequestWith(requestContext(t), n.admin.client)
		return err == nil && !slices.ContainsFunc(n.cluster.Nodes(), func(node *launch.Node) bool { return n.leads(t, node) == 0 })
	})
}

// flowsSince waits until a record of every partition that was produced after a time is handled, and returns how long
// after that time it was.
func (n *nodes) flowsSince(t *testing.T, at time.Time) (took time.Duration) {
	t.Helper()
	if !waitFor(2*patience, func() bool {
		took = 0
		flowing := make(map[int32]time.Time)
		for _, w := range n.workers {
			for _, line := range w.trace(t) {
				if line.what == "done" && line.at.After(at) && n.producer.after(line.place, at) && flowing[line.partition].IsZero() {
					flowing[line.partition] = line.at
				}
			}
		}
		for _, first := range flowing {
			took = max(took, first.Sub(at))
		}
		return len(flowing) == int(n.partitions)
	}) {
		t.Fatalf("not every partition flows again %v after the fault", time.Since(at))
	}
	return took
}

// freezeCoordinator freezes the node that coordinates the group until all flows without it, and lets it go on.
func (n *nodes) freezeCoordinator(t *testing.T) {
	before := n.membership(t)
	node := n.coordinator(t)
	at := time.Now()
	require.NoError(t, node.Freeze())
	took := n.flowsSince(t, at)
	t.Logf("node %d frozen: records of every partition flow again after %v (%v of it until they were produced)", node.ID(), took,
		n.producer.firsts(at))
	require.NotEqual(t, node, n.coordinator(t))
	thawed := time.Now()
	require.NoError(t, node.Thaw())
	n.whole(t)
	t.Logf("node %d thawed: records of every partition flow after %v", node.ID(), n.flowsSince(t, thawed))
	assert.Equal(t, before.members, n.membership(t).members, "members")
}

// rollingRestart stops and starts one node after the other, as for an upgrade.
func (n *nodes) rollingRestart(t *testing.T) {
	before, repeated := n.membership(t), n.repeated(t)
	for _, node := range n.cluster.Nodes() {
		at := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), nodeLimit)
		require.NoError(t, node.Stop(ctx))
		cancel()
		t.Logf("node %d stopped in %v: records of every partition flow again after %v", node.ID(), time.Since(at), n.flowsSince(t, at))
		n.restart(t, node)
	}
	n.flowsSince(t, time.Now())
	assert.Equal(t, before, n.membership(t), "members and assignments")
	assert.Equal(t, repeated, n.repeated(t), "repeated")
}

// steadyProducer produces records to every partition until it is stopped, whatever happens to the brokers.
type steadyProducer struct {
	mu   sync.Mutex
	sent map[place]time.Time
	stop func()
}

func produceSteadily(t *testing.T, s *stage) *steadyProducer {
	t.Helper()
	const every = 20 * time.Millisecond
	p := &steadyProducer{sent: make(map[place]time.Time)}
	ctx, cancel := context.WithCancel(context.Background())
	var producing sync.WaitGroup
	for partition := range s.partitions {
		producing.Go(func() {
			ticker := time.NewTicker(every)
			defer ticker.Stop()
			for ctx.Err() == nil {
				at := time.Now()
				record := &kgo.Record{Topic: s.topic, Partition: partition, Value: []byte("steady")}
				if s.admin.client.ProduceSync(ctx, record).FirstErr() == nil {
					p.mu.Lock()
					p.sent[place{partition, record.Offset}] = at
					p.mu.Unlock()
				}
				select {
				case <-ticker.C:
				case <-ctx.Done():
				}
			}
		})
	}
	p.stop = func() {
		cancel()
		producing.Wait()
	}
	t.Cleanup(p.stop)
	return p
}

// firsts returns how long after a time every partition had taken a record that was produced after it.
func (p *steadyProducer) firsts(at time.Time) (took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := make(map[int32]time.Time)
	for record, sent := range p.sent {
		if sent.After(at) && (first[record.partition].IsZero() || sent.Before(first[record.partition])) {
			first[record.partition] = sent
		}
	}
	for _, sent := range first {
		took = max(took, sent.Sub(at))
	}
	return took
}

// after reports whether the record was produced after a time.
func (p *steadyProducer) after(record place, at time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent, ok := p.sent[record]
	return ok && sent.After(at)
}
