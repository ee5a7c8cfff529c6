//go:build unix && !linux

package integration

import (
	"os/exec"
	"syscall"
)

// endWithParent keeps the terminal's interrupt from the process. Here no kernel ends it when this one dies.
func endWithParent(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
