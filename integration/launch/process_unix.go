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
