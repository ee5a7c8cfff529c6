package launch

import (
	"fmt"
	"time"
)

// Usage is what a process uses.
type Usage struct {
	RSS     int64         // memory in use now, bytes
	PeakRSS int64         // the most it ever had, bytes
	CPU     time.Duration // user and kernel time since its start, in steps of 10 ms
}

// Usage reads what the node's process uses now. Linux only.
func (n *Node) Usage() (Usage, error) {
	if !n.Running() {
		return Usage{}, fmt.Errorf("node %d: %w", n.ID(), ErrNotRunning)
	}
	return ProcessUsage(n.PID())
}
