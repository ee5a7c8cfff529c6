//go:build unix && !linux

package launch

import (
	"os/exec"
	"syscall"
)

// isolate puts the child into a group of its own, so that it and its children can be ended together. Here no kernel
// ends it for us: a test binary that dies without Stop leaves its nodes running.
func isolate(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// stopped cannot be seen in a portable way; SIGSTOP takes microseconds.
func stopped(int) bool { return true }
