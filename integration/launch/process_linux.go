package launch

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// isolate puts the child into a group of its own, so that it and its children can be ended together and the terminal's
// interrupt goes to us alone; and asks the kernel to end it when we die.
func isolate(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether no thread of the process runs; a process that is gone counts as stopped.
func stopped(pid int) bool {
	threads, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "stat"))
	if err != nil {
		return true
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			continue // ended meanwhile
		}
		// The name in parentheses may hold anything; the state is the letter after it.
		_, rest, found := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(" "))
		if found && len(rest) > 0 && !bytes.ContainsAny(rest[:1], "tTZX") {
			return false
		}
	}
	return true
}
