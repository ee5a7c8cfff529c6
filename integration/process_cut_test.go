//go:build unix

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cutConnections cuts all connections of a worker a hundred times. It stays the member it was, repeats nothing, and has
// as many sockets at the end as before.
func cutConnections(t *testing.T, n *oneNode) {
	const cuts = 100
	s := n.stage(t, 4, "-session-timeout", "45s")
	total := s.fill(t, 1)
	w := s.start(t, "cut")
	flows := func() bool { return len(w.handled(t)) >= total }
	eventually(t, patience, "the first records are handled", flows)
	// All that it needs in steady work is open when the first commits are confirmed.
	eventually(t, patience, "the first commits are confirmed", func() bool { return slices.Equal(s.ends(t), s.committed(t)) })
	connections, sockets := n.tap.connected(w.client), socketsOf(t, w)
	for range cuts {
		require.Positive(t, n.tap.cut(w.client), "connections to cut")
		total += s.fill(t, 1)
		eventually(t, patience, "records flow after a cut", flows)
	}
	if !waitFor(patience, func() bool { return n.tap.connected(w.client) <= connections && socketsOf(t, w) <= sockets }) {
		t.Errorf("%d connections and %d sockets, at first %d and %d", n.tap.connected(w.client), socketsOf(t, w), connections, sockets)
	}
	assert.Len(t, w.assignments(), 1, "assignments")
	s.drained(t, w)
	assert.Empty(t, s.repeated(t), "repeated")
	s.inOrder(t)
	s.noOverlap(t)
}

// socketsOf counts the sockets of a worker, where the system tells: on Linux.
func socketsOf(t *testing.T, w *worker) (sockets int) {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.command.Process.Pid))
	require.NoError(t, err)
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, "socket:") {
			sockets++
		}
	}
	return sockets
}
