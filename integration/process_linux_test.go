package integration

import (
	"os/exec"
	"syscall"
)

// endWithParent asks the kernel to end the process, frozen or not, when this one dies, and keeps the terminal's interrupt
// from it.
func endWithParent(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
