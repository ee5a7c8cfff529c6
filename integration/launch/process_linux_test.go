package launch

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const orphanVariable = "TROUPE_LAUNCH_TEST_ORPHAN"

// TestNodesDieWithATestThatPanics runs this test binary again; that one starts a child as nodes are started, prints its
// process id and panics.
func TestNodesDieWithATestThatPanics(t *testing.T) {
	if os.Getenv(orphanVariable) != "" {
		life := &process{command: exec.Command("sleep", "600"), done: make(chan struct{})}
		isolate(life.command)
		if err := life.start(); err != nil {
			t.Fatal(err)
		}
		_, _ = os.Stdout.WriteString("child " + strconv.Itoa(life.command.Process.Pid) + "\n")
		panic("on purpose")
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	again.Env = append(os.Environ(), orphanVariable+"=1")
	output, err := again.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	child := 0
	lines := bufio.NewScanner(output)
	for child == 0 && lines.Scan() {
		if pid, found := strings.CutPrefix(lines.Text(), "child "); found {
			child, _ = strconv.Atoi(pid)
		}
	}
	_, _ = io.Copy(io.Discard, output)
	if err := again.Wait(); err == nil || child == 0 {
		t.Fatalf("the other run ended with %v and child %d, want a panic and a child", err, child)
	}
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !gone(child) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(child, syscall.SIGKILL)
			t.Fatalf("child %d outlived the test that started it", child)
		}
		<-tick.C
	}
}

// gone reports whether the process has ended; one that nobody has reaped yet counts as ended.
func gone(pid int) bool {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return true
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(status), ") ")
	return strings.HasPrefix(rest, "Z")
}
