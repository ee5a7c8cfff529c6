//go:build unix

package integration

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/integration/launch"
)

// frozenFor is how long a frozen node stays so at least: beyond sessions and requests.
const frozenFor = max(chaosSession, chaosRequest) + time.Second

// fault is one kind of trouble.
type fault struct {
	kind string
	// takes is how long it takes from its beginning until all is well, at first on a machine that does nothing else, later
	// as measured.
	takes  time.Duration
	strike func(*chaos, *testing.T, *fault)
}

// chaosFaults are all kinds.
func chaosFaults() []*fault {
	return []*fault{
		{"rolling_restart", 25 * time.Second, (*chaos).restartAll},
		{"broker_killed", 12 * time.Second, onNode((*chaos).bystander, (*chaos).killNode)},
		{"broker_frozen", 12 * time.Second, onNode((*chaos).bystander, (*chaos).freezeNode)},
		{"coordinator_killed", 12 * time.Second, onNode((*chaos).coordinating, (*chaos).killNode)},
		{"coordinator_frozen", 12 * time.Second, onNode((*chaos).coordinating, (*chaos).freezeNode)},
		{"coordinator_stopped", 12 * time.Second, onNode((*chaos).coordinating, (*chaos).stopNode)},
		{"member_killed", 10 * time.Second, onSlot((*slot).dynamicProcess, (*chaos).killMember)},
		{"static_member_killed", 3 * time.Second, onSlot((*slot).static, (*chaos).killMember)},
		{"member_closed", 4 * time.Second, onSlot((*slot).any, (*chaos).replaceMember)},
		{"member_frozen", 13 * time.Second, onSlot((*slot).process, (*chaos).freezeMember)},
	}
}

// draw takes the next fault of those that fit into what is left of the time; none when no fault does. Every kind comes
// before any comes again, as far as time allows.
func (c *chaos) draw(left time.Duration) *fault {
	fits := func(f *fault) bool { return f.takes <= left }
	if !slices.ContainsFunc(c.deck, fits) {
		c.deck = slices.Clone(c.faults)
		c.random.Shuffle(len(c.deck), func(i, j int) { c.deck[i], c.deck[j] = c.deck[j], c.deck[i] })
	}
	i := slices.IndexFunc(c.deck, fits)
	if i < 0 {
		return nil
	}
	next := c.deck[i]
	c.deck = slices.Delete(c.deck, i, i+1)
	return next
}

// onNode is a fault of a node that is chosen when it happens.
func onNode(choose func(*chaos, *testing.T) *launch.Node, strike func(*chaos, *testing.T, string, *launch.Node)) func(*chaos, *testing.T, *fault) {
	return func(c *chaos, t *testing.T, f *fault) {
		t.Helper()
		node := choose(c, t)
		t.Logf("%s: node %d", f.kind, node.ID())
		strike(c, t, f.kind, node)
		c.whole(t)
		c.stable(t, f.kind)
	}
}

// coordinating is the node that coordinates the group. It leads the one partition of __consumer_offsets.
func (c *chaos) coordinating(t *testing.T) *launch.Node {
	t.Helper()
	return c.coordinator(t)
}

// bystander is any other node.
func (c *chaos) bystander(t *testing.T) *launch.Node {
	t.Helper()
	coordinator := c.coordinator(t)
	others := slices.DeleteFunc(c.cluster.Nodes(), func(n *launch.Node) bool { return n == coordinator })
	return others[c.random.IntN(len(others))]
}

// killNode kills a node, which is started again when the group does well without it.
func (c *chaos) killNode(t *testing.T, kind string, node *launch.Node) {
	t.Helper()
	require.NoError(t, node.Kill())
	c.stable(t, kind)
	require.NoError(t, node.Restart())
}

// stopNode is killNode in a friendly way.
func (c *chaos) stopNode(t *testing.T, kind string, node *launch.Node) {
	t.Helper()
	c.stop(t, node)
	c.stable(t, kind)
	require.NoError(t, node.Restart())
}

func (c *chaos) stop(t *testing.T, node *launch.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), nodeLimit)
	defer cancel()
	require.NoError(t, node.Stop(ctx))
}

// freezeNode freezes a node for longer than sessions and requests last. The group has to do well without it.
func (c *chaos) freezeNode(t *testing.T, kind string, node *launch.Node) {
	t.Helper()
	frozen := time.Now()
	require.NoError(t, node.Freeze())
	c.stable(t, kind)
	pause(frozenFor - time.Since(frozen))
	require.NoError(t, node.Thaw())
	c.stable(t, kind)
}

// restartAll restarts one node after the other, as for an upgrade.
func (c *chaos) restartAll(t *testing.T, f *fault) {
	t.Helper()
	for _, node := range c.cluster.Nodes() {
		c.stop(t, node)
		require.NoError(t, node.Restart())
		c.whole(t)
	}
	c.stable(t, f.kind)
}

// onSlot is a fault of one of the members that fit.
func onSlot(fits func(*slot) bool, strike func(*chaos, *testing.T, string, *slot)) func(*chaos, *testing.T, *fault) {
	return func(c *chaos, t *testing.T, f *fault) {
		t.Helper()
		candidates := slices.DeleteFunc(slices.Clone(c.slots), func(s *slot) bool { return !fits(s) })
		slot := candidates[c.random.IntN(len(candidates))]
		t.Logf("%s: %s", f.kind, slot.current.name)
		strike(c, t, f.kind, slot)
		c.stable(t, f.kind)
	}
}

// killMember kills a member's process and starts another one in its place.
func (c *chaos) killMember(t *testing.T, _ string, s *slot) {
	t.Helper()
	s.current.worker.kill(t)
	c.join(t, s)
}

// replaceMember closes a member and starts another one.
func (c *chaos) replaceMember(t *testing.T, _ string, s *slot) {
	t.Helper()
	c.close(t, s.current)
	c.join(t, s)
}

// freezeMember stops a member's process until the group has put it out, and lets it go on.
func (c *chaos) freezeMember(t *testing.T, kind string, s *slot) {
	t.Helper()
	s.current.worker.signal(t, syscall.SIGSTOP)
	c.stable(t, kind, s)
	s.current.worker.signal(t, syscall.SIGCONT)
}
