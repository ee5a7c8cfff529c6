//go:build unix

package launch

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestRealKafkaOfThreeNodes takes one secured cluster through what can happen to its nodes, one after the other.
func TestRealKafkaOfThreeNodes(t *testing.T) {
	skipForOutsideBrokers(t)
	cluster := ForTest(t, Options{Nodes: 3, Security: &Security{}})
	if got := len(cluster.BrokersOf(ListenerSASLSSL)); got != 3 || cluster.BrokersOf("NONE") != nil {
		t.Errorf("%d addresses of SASL_SSL, want 3", got)
	}
	if err := cluster.CreateTopics(bounded(t), Topic{Name: "placed", Replicas: [][]int32{{3, 1, 2}, {2, 3, 1}}}, Topic{Name: "spread", Partitions: 3}); err != nil {
		t.Fatal(err)
	}
	leader, err := cluster.Leader(bounded(t), "placed", 0)
	if err != nil || leader.ID() != 3 {
		t.Fatalf("leader of placed/0 = %v, %v; want node 3", leader, err)
	}
	if _, err := leader.Usage(); err != nil {
		t.Error(err)
	}
	t.Run("freeze", func(t *testing.T) { frozenNodeIsReplacedAndComesBack(t, cluster) })
	t.Run("kill", func(t *testing.T) { killedLeaderIsReplacedAndComesBack(t, cluster) })
	t.Run("stop", func(t *testing.T) { stoppedNodeLeavesInOrder(t, cluster) })
}

// coordinator is that of a group, and another one than the given node.
func coordinator(t *testing.T, cluster *Cluster, not *Node) *Node {
	t.Helper()
	node, err := cluster.Coordinator(bounded(t), "group")
	if err != nil {
		t.Fatal(err)
	}
	if node == not {
		t.Fatalf("the coordinator is node %d, which does not serve", node.ID())
	}
	return node
}

func frozenNodeIsReplacedAndComesBack(t *testing.T, cluster *Cluster) {
	node := coordinator(t, cluster, nil)
	if err := node.Freeze(); err != nil {
		t.Fatal(err)
	}
	if !node.Frozen() || !node.Running() || !stopped(node.PID()) {
		t.Errorf("node %d after Freeze: frozen %v, running %v", node.ID(), node.Frozen(), node.Running())
	}
	// The kernel still accepts; nobody answers.
	impatient, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := askAt(impatient, node.Addr(), metadataRequest()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("request to a frozen node: %v, want a timeout", err)
	}
	coordinator(t, cluster, node)
	// Rights are changed without the frozen node and reach it when it is back.
	if err := cluster.Allow(bounded(t), ConsumerACLs("alice", "group", "placed")...); err != nil {
		t.Fatal(err)
	}
	if err := node.Thaw(); err != nil {
		t.Fatal(err)
	}
	awaitWhole(t, cluster)
	coordinator(t, cluster, nil) // all three agree again
	client := clientOf(t, cluster, ListenerSASLSSL, cluster.User("alice"), MechanismSCRAM512, kgo.SeedBrokers(node.AddrOf(ListenerSASLSSL)))
	err := poll(bounded(t), func() error { return topicError(bounded(t), t, client, "placed") })
	if err != nil {
		t.Errorf("right given while node %d was frozen: %v", node.ID(), err)
	}
}

// awaitWhole returns when all three nodes serve and every replica is in sync.
func awaitWhole(t *testing.T, cluster *Cluster) {
	t.Helper()
	started := time.Now()
	ready := cluster.AwaitReady(bounded(t))
	t.Logf("ready again after %.1f s", time.Since(started).Seconds())
	if err := errors.Join(ready, cluster.AwaitInSync(bounded(t))); err != nil {
		t.Fatal(err)
	}
	t.Logf("in sync again after %.1f s", time.Since(started).Seconds())
}

func killedLeaderIsReplacedAndComesBack(t *testing.T, cluster *Cluster) {
	node, err := cluster.Leader(bounded(t), "placed", 0)
	if err != nil {
		t.Fatal(err)
	}
	pid, started := node.PID(), time.Now()
	if err := node.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) || node.Running() {
		t.Errorf("process %d after Kill: %v, want ESRCH", pid, err)
	}
	if _, err := node.Usage(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Usage after Kill = %v, want ErrNotRunning", err)
	}
	other, err := cluster.Leader(bounded(t), "placed", 0)
	if err != nil || other == node {
		t.Fatalf("leader after the kill: %v, %v", other, err)
	}
	t.Logf("new leader after %.1f s", time.Since(started).Seconds())
	if err := node.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := node.Restart(); err == nil {
		t.Error("Restart of a running node succeeded")
	}
	if err := node.AwaitReady(bounded(t)); err != nil {
		t.Fatal(err)
	}
	awaitWhole(t, cluster)
}

func stoppedNodeLeavesInOrder(t *testing.T, cluster *Cluster) {
	node, started := coordinator(t, cluster, nil), time.Now()
	if err := node.Stop(bounded(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped after %.1f s", time.Since(started).Seconds())
	if err := node.Stop(bounded(t)); err != nil {
		t.Errorf("Stop of a stopped node: %v", err)
	}
	if err := errors.Join(node.Freeze(), node.Thaw()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Freeze and Thaw of a stopped node: %v, want ErrNotRunning", err)
	}
	coordinator(t, cluster, node)

	// A frozen one cannot be asked: it is killed when the context ends.
	other := coordinator(t, cluster, node)
	if err := other.Freeze(); err != nil {
		t.Fatal(err)
	}
	impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := other.Stop(impatient); !errors.Is(err, context.DeadlineExceeded) || other.Running() {
		t.Errorf("Stop of a frozen node: %v, running %v", err, other.Running())
	}
}

func TestProxyForwardsCutsAndRefuses(t *testing.T) {
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	go func() {
		for {
			conn, err := target.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	proxy, err := NewProxy(target.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	echo := func() (net.Conn, error) {
		conn, err := net.Dial("tcp", proxy.Addr())
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = conn.Close() })
		buffer := make([]byte, 4)
		_, writeErr := conn.Write([]byte("ping"))
		_, readErr := io.ReadFull(conn, buffer)
		return conn, errors.Join(writeErr, readErr)
	}
	conn, err := echo()
	if err != nil || proxy.Connections() != 1 {
		t.Fatalf("echo through the proxy: %v, %d connections", err, proxy.Connections())
	}
	proxy.Cut()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a cut connection still reads")
	}
	proxy.Refuse(true)
	if _, err := echo(); err == nil {
		t.Error("a refused connection answers")
	}
	proxy.Refuse(false)
	if _, err := echo(); err != nil {
		t.Errorf("after refusing: %v", err)
	}
	if err := errors.Join(proxy.Close(), proxy.Close()); err != nil {
		t.Error(err)
	}
	if _, err := echo(); err == nil || proxy.Connections() != 0 {
		t.Errorf("after Close: %v, %d connections", err, proxy.Connections())
	}
}

func TestSkipTags(t *testing.T) {
	for name, row := range map[string]struct {
		body string
		want string
		bad  bool
	}{
		"none":    {body: "\x00rest", want: "rest"},
		"two":     {body: "\x02\x00\x03abc\x01\x00rest", want: "rest"},
		"cut off": {body: "\x01\x00\x09abc", bad: true},
		"empty":   {body: "", want: ""},
	} {
		got, err := skipTags([]byte(row.body))
		if string(got) != row.want || (err != nil) != row.bad {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestPollEndsWithTheCauseOrAFinalError(t *testing.T) {
	cause, seen := errors.New("enough"), errors.New("not yet")
	ctx, cancel := context.WithCancelCause(t.Context())
	looks := 0
	err := poll(ctx, func() error {
		if looks++; looks == 2 {
			cancel(cause)
		}
		return seen
	})
	if !errors.Is(err, cause) || !errors.Is(err, seen) {
		t.Errorf("poll = %v, want the cause and what was last seen", err)
	}
	if err := poll(t.Context(), func() error { return finalError{seen} }); err != seen {
		t.Errorf("poll = %v, want the final error itself", err)
	}
}

func TestTopicRequests(t *testing.T) {
	plain := Topic{Name: "a"}.request()
	if plain.NumPartitions != 1 || plain.ReplicationFactor != -1 {
		t.Errorf("zero topic: %d partitions, %d replicas", plain.NumPartitions, plain.ReplicationFactor)
	}
	placed := Topic{Name: "a", Partitions: 9, Replicas: [][]int32{{2}, {1}}}.request()
	if placed.NumPartitions != -1 || len(placed.ReplicaAssignment) != 2 || placed.ReplicaAssignment[1].Replicas[0] != 1 {
		t.Errorf("placed topic: %+v", placed)
	}
	acls := ConsumerACLs("u", "g", "t")
	if len(acls) != 2 || acls[0].String() != "u READ GROUP g" || describeACL(acls[1], kmsg.ACLPermissionTypeAny) == nil {
		t.Errorf("ACLs %v", acls)
	}
	if err := resultOfACLs(&kmsg.CreateACLsResponse{Results: []kmsg.CreateACLsResponseResult{{ErrorCode: kerr.SecurityDisabled.Code}}}); !errors.As(err, new(finalError)) {
		t.Errorf("result without an authorizer: %v, want a final error", err)
	}
}
