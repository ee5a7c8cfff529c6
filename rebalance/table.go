package rebalance

import (
	"fmt"
	"slices"
	"strings"
)

// machineState is a state of one of the machines: a small number with a name.
type machineState interface {
	~uint8
	fmt.Stringer
}

// moves is a machine's table of legal changes of state: for every state its legal successors, in the order of the states.
// The first state is where a machine starts. An empty row is a state that is never left.
type moves[S machineState] [][]S

// check returns nil when the table has the move.
func (m moves[S]) check(from, to S) error {
	if int(from) < len(m) && slices.Contains(m[from], to) {
		return nil
	}
	return fmt.Errorf("rebalance: %w: %s to %s", ErrIllegalMove, from, to)
}

// mermaid draws the table as a state chart.
func (m moves[S]) mermaid() string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	if len(m) > 0 {
		fmt.Fprintf(&b, "    [*] --> %s\n", S(0))
	}
	for from, row := range m {
		for _, to := range row {
			fmt.Fprintf(&b, "    %s --> %s\n", S(from), to)
		}
		if len(row) == 0 && m.reaches(S(from)) {
			fmt.Fprintf(&b, "    %s --> [*]\n", S(from))
		}
	}
	return b.String()
}

// reaches reports whether any row leads to a state: a table may be one of a part of the states.
func (m moves[S]) reaches(state S) bool {
	return slices.ContainsFunc(m, func(row []S) bool { return slices.Contains(row, state) })
}

// MemberChart returns the member's legal moves as a mermaid state chart.
func MemberChart() string { return memberMoves.mermaid() }

// StandaloneChart returns the legal moves of a consumer without a group as a mermaid state chart.
func StandaloneChart() string { return standaloneMoves.mermaid() }

// PartitionChart returns a partition's legal moves as a mermaid state chart.
func PartitionChart() string { return partitionMoves.mermaid() }

// LinkChart returns the coordinator link's legal moves as a mermaid state chart.
func LinkChart() string { return linkMoves.mermaid() }

// PulseChart returns the heartbeat's legal moves as a mermaid state chart.
func PulseChart() string { return pulseMoves.mermaid() }
