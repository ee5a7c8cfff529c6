package launch

import (
	"os/exec"
	"syscall"
)

// isolate puts the child into a group of its own, so that it and its children can be ended together and the terminal's
// interrupt goes to us alone; and asks the kernel to end it when we die.
func isolate(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
