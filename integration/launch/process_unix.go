//go:build unix

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// killGroup ends a process that was started as the leader of its own group, and whatever it started.
func killGroup(process *os.Process) error {
	err := syscall.Kill(-process.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// endsProcess reports whether a signal is meant to end a node.
func endsProcess(signal os.Signal) bool {
	switch signal {
	case os.Interrupt, os.Kill, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGABRT:
		return true
	}
	return false
}

// lockPoll is how often a waiting test binary looks whether the other has finished preparing.
const lockPoll = 100 * time.Millisecond

// lockFile takes an exclusive lock on a file, creating it, and returns what gives it back. The kernel gives it back
// too when the process dies, so a crash while preparing blocks nobody.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing the only descriptor gives the lock back
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("wait for the lock %s: %w", path, context.Cause(ctx))
		}
	}
}

// terminate asks a node for a clean stop.
const terminate = syscall.SIGTERM

// freezePoll is how often Freeze looks whether every thread has stopped.
const freezePoll = time.Millisecond

// freezeTimeout bounds that; threads stop within microseconds unless they sit in the disk's driver.
const freezeTimeout = 10 * time.Second

// Freeze stops the node's process where it is (SIGSTOP) and returns when none of its threads runs any more (on Linux;
// elsewhere when the signal is sent). Its connections stay open and answer nothing. Kill works on a frozen node.
func (n *Node) Freeze() error {
	if err := n.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	n.mu.Lock()
	n.frozen = true
	n.mu.Unlock()
	ticker := time.NewTicker(freezePoll)
	defer ticker.Stop()
	deadline := time.Now().Add(freezeTimeout)
	for !stopped(n.PID()) {
		if time.Now().After(deadline) {
			return fmt.Errorf("node %d still runs %v after SIGSTOP", n.ID(), freezeTimeout)
		}
		<-ticker.C
	}
	return nil
}

// Thaw lets a frozen node go on (SIGCONT). AwaitReady tells when it serves.
func (n *Node) Thaw() error {
	if err := n.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	n.mu.Lock()
	n.frozen = false
	n.mu.Unlock()
	return nil
}
