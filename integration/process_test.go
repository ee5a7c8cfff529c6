//go:build unix

package integration

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/integration/launch"
)

// sessionTimeout is the workers' on the one node: how long a dead one holds its partitions.
const sessionTimeout = 6 * time.Second

// closeTimeout is Config.CloseTimeout's default.
const closeTimeout = 30 * time.Second

// TestProcesses runs the worker as processes on clusters that nobody else uses.
func TestProcesses(t *testing.T) {
	t.Parallel()
	binary := buildWorker(t)
	t.Run("OneNode", func(t *testing.T) {
		t.Parallel()
		n := startOneNode(t, binary)
		for _, kind := range []string{"func", "batch", "actor"} {
			t.Run("SIGKILLInMidWork/"+kind, n.parallel(func(t *testing.T, n *oneNode) { killInMidWork(t, n, kind) }))
			t.Run("SIGTERM/"+kind, n.parallel(func(t *testing.T, n *oneNode) { terminateInMidWork(t, n, kind) }))
		}
		t.Run("SecondSIGTERM", n.parallel(secondSIGTERM))
		t.Run("AllMembersKilledAtOnce", n.parallel(killAllMembers))
		t.Run("CutConnections", n.parallel(cutConnections))
	})
	t.Run("ThreeNodes", func(t *testing.T) {
		t.Parallel()
		threeNodes(t, binary)
	})
}

// oneNode is a cluster of one node with a tap in front of it. The tests share it, each with its own topic and group.
type oneNode struct {
	binary string
	tap    *groupTap
	direct []string
}

func startOneNode(t *testing.T, binary string) *oneNode {
	t.Helper()
	n := &oneNode{binary: binary}
	cluster := launch.ForTest(t, launch.Options{AdvertisedOverride: func(_ int, _, address string) string {
		if n.tap == nil {
			n.tap = newGroupTap(t, address)
		}
		return n.tap.addr()
	}})
	n.direct = cluster.BrokersOf("BROKERS")
	return n
}

func (n *oneNode) parallel(test func(*testing.T, *oneNode)) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		test(t, n)
	}
}

// stage makes a topic and a group of the test's own.
func (n *oneNode) stage(t *testing.T, partitions int32, flags ...string) *stage {
	t.Helper()
	flags = append([]string{"-session-timeout", sessionTimeout.String()}, flags...)
	return newStage(t, n.binary, []string{n.tap.addr()}, newAdmin(t, n.direct, nil), partitions, flags...)
}

// settled returns what is committed for the group once nothing of the given workers, which are dead or frozen, is under
// way any more, as far as can be seen.
func (n *oneNode) settled(t *testing.T, s *stage, workers ...*worker) (committed []int64) {
	t.Helper()
	// A commit whose connection broke may be dropped by the broker, so it is waited for, but not demanded.
	waitFor(2*time.Second, func() bool {
		committed = s.committed(t)
		for p, offset := range n.sent(s, workers...) {
			if committed[p] < offset {
				return false
			}
		}
		return true
	})
	return committed
}

// sent returns the highest offsets that the workers (a nil one sent nothing) asked to be committed, as far as the tap has passed them on: under load it may still have some that a dead worker wrote.
func (n *oneNode) sent(s *stage, workers ...*worker) []int64 {
	sent := make([]int64, s.partitions)
	for _, w := range workers {
		if w == nil {
			continue
		}
		for _, frame := range n.tap.sent(w.client, time.Time{}) {
			for p, offset := range frame.offsets {
				sent[p] = max(sent[p], offset)
			}
		}
	}
	return sent
}

// terminate sends SIGTERM and demands a clean end within the close timeout.
func (w *worker) terminate(t *testing.T) {
	t.Helper()
	w.signal(t, syscall.SIGTERM)
	assert.Zero(t, w.exit(t, closeTimeout), "exit status of %s\n%s", w.name, w.logTail())
}

// killInMidWork kills a worker five times in the midst of its work. Nothing is lost, and what comes again was not
// committed.
func killInMidWork(t *testing.T, n *oneNode, kind string) {
	const kills, perPartition, perLife = 5, 1500, 200
	s := n.stage(t, 4, "-handler", kind, "-work", "2ms", "-max-records", "50")
	total := s.fill(t, perPartition)
	resumed, finished := make([]int64, s.partitions), 0
	var killed *worker
	for life := range kills + 1 {
		w := s.start(t, fmt.Sprintf("%s-%d", kind, life+1))
		if life == kills {
			s.nothingLost(t)
			s.drained(t, w)
			checkResumption(t, s, w, resumed, n.sent(s, killed))
			break
		}
		eventually(t, patience, "some records are handled", func() bool { return s.finished(t) >= finished+perLife })
		w.kill(t)
		finished = s.finished(t)
		require.Less(t, finished, total, "it was killed too late")
		committed := n.settled(t, s, w)
		s.neverPast(t, committed)
		s.neverPast(t, n.sent(s, w))
		checkResumption(t, s, w, resumed, n.sent(s, killed))
		resumed, killed = committed, w
		open := 0
		for _, span := range w.spans(t) {
			if span.open {
				open++
			}
		}
		t.Logf("killed with %d finished, %d in work, committed %v", finished, open, committed)
	}
	s.inOrder(t)
	s.noOverlap(t)
}

// checkResumption demands that a worker began each partition at what was committed before it was started, or at a commit
// that was on its way then: that far back and no further do records come again.
func checkResumption(t *testing.T, s *stage, w *worker, committed, sent []int64) {
	t.Helper()
	for p, first := range s.firstBegun(t, w) {
		assert.GreaterOrEqual(t, first, committed[p], "%s begins partition %d", w.name, p)
		assert.LessOrEqual(t, first, max(committed[p], sent[p]), "%s begins partition %d", w.name, p)
	}
}

// firstBegun returns the offset that any of the workers began first, by partition; none where none did.
func (s *stage) firstBegun(t *testing.T, workers ...*worker) map[int32]int64 {
	t.Helper()
	first := make(map[int32]traced)
	for _, w := range workers {
		for _, line := range w.trace(t) {
			if known, ok := first[line.partition]; !ok || line.at.Before(known.at) {
				first[line.partition] = line
			}
		}
	}
	offsets := make(map[int32]int64)
	for p, line := range first {
		offsets[p] = line.offset
	}
	return offsets
}

// bothWork starts two workers and waits until each works on half of the partitions.
func (s *stage) bothWork(t *testing.T) (a, b *worker) {
	t.Helper()
	a, b = s.start(t, "a"), s.start(t, "b")
	half := int(s.partitions) / 2
	eventually(t, patience, "both workers have half of the partitions", func() bool {
		owned := s.owned(t)
		return len(owned["a"]) == half && len(owned["b"]) == half
	})
	before := map[*worker]int{a: len(a.handled(t)), b: len(b.handled(t))}
	eventually(t, patience, "both work", func() bool { return len(a.handled(t)) > before[a] && len(b.handled(t)) > before[b] })
	return a, b
}

// owned returns which partitions the coordinator has given to each worker, by name; nothing in a rebalance.
func (s *stage) owned(t *testing.T) map[string][]int32 {
	t.Helper()
	owned := make(map[string][]int32)
	view := s.admin.Group(t, s.group)
	if view.State != "Stable" {
		return owned
	}
	for id, partitions := range view.Members {
		for _, tp := range partitions {
			for _, w := range s.workers {
				if strings.HasPrefix(id, w.name+"-") { // member ids are the client's id and something random
					owned[w.name] = append(owned[w.name], tp.Partition)
				}
			}
		}
	}
	return owned
}

// terminateInMidWork stops one of two workers by SIGTERM in the midst of its work, and the other at the end.
func terminateInMidWork(t *testing.T, n *oneNode, kind string) {
	s := n.stage(t, 4, "-handler", kind, "-work", "2ms", "-max-records", "50")
	total := s.fill(t, 2000)
	a, b := s.bothWork(t)
	a.terminate(t)
	require.Less(t, s.finished(t), total, "it was stopped too late")
	s.nothingLost(t)
	s.drained(t, b)
	assert.Empty(t, s.repeated(t), "repeated")
	s.inOrder(t)
	s.noOverlap(t)
}

// secondSIGTERM does not wait for a handler that is at work.
func secondSIGTERM(t *testing.T, n *oneNode) {
	s := n.stage(t, 1)
	s.fill(t, 1)
	slow := s.start(t, "slow", "-work", "1h")
	eventually(t, patience, "the record is in work", func() bool { return len(slow.trace(t)) == 1 })
	slow.signal(t, syscall.SIGTERM)
	eventually(t, patience, "it drains", func() bool { return len(slow.logged("draining")) == 1 })
	require.False(t, within(time.Second, slow.done), "it did not wait for its handler\n%s", slow.logTail())
	slow.signal(t, syscall.SIGTERM)
	again := time.Now()
	require.Equal(t, 128+int(syscall.SIGTERM), slow.exit(t, closeTimeout))
	require.Less(t, slow.ended.Sub(again), 5*time.Second, "it did not leave at once")
	require.Equal(t, []int64{0}, s.committed(t), "committed")
	next := s.start(t, "next")
	s.nothingLost(t)
	s.drained(t, next)
}

// killAllMembers kills three workers at once and starts three others: they go on where the dead had committed.
func killAllMembers(t *testing.T, n *oneNode) {
	s := n.stage(t, 6, "-work", "5ms", "-max-records", "50")
	total := s.fill(t, 500)
	var lives [2][]*worker
	for life := range lives {
		for i := range 3 {
			lives[life] = append(lives[life], s.start(t, fmt.Sprintf("%c-%d", 'a'+i, life+1)))
		}
		if life == 1 {
			break
		}
		eventually(t, patience, "all three work", func() bool {
			return !slices.ContainsFunc(lives[0], func(w *worker) bool { return len(w.handled(t)) < 60 })
		})
		for _, w := range lives[0] {
			w.signal(t, syscall.SIGKILL)
		}
		for _, w := range lives[0] {
			<-w.done
		}
		require.Less(t, s.finished(t), total, "they were killed too late")
	}
	committed := n.settled(t, s, lives[0]...)
	s.neverPast(t, committed)
	s.nothingLost(t)
	s.drained(t, lives[1]...)
	for p, first := range s.firstBegun(t, lives[1]...) {
		assert.GreaterOrEqual(t, first, committed[p], "partition %d goes on", p)
		assert.LessOrEqual(t, first, max(committed[p], n.sent(s, lives[0]...)[p]), "partition %d goes on", p)
	}
	for _, p := range s.repeated(t) {
		assert.GreaterOrEqual(t, p.offset, committed[p.partition], "%s is repeated although committed", p)
	}
	s.inOrder(t)
	s.noOverlap(t)
}
