package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Node is one Kafka process of a cluster started here. Its ports, properties and data outlive the process, so that a
// node that was killed can be started again.
type Node struct {
	plan    nodePlan
	dist    *distribution
	cluster *Cluster

	mu      sync.Mutex
	process *process // guarded by mu; nil before the first start
	ending  bool     // guarded by mu; the process was told to end, so its end is no crash
	frozen  bool     // guarded by mu; the process was stopped by Freeze
}

// process is one life of a node.
type process struct {
	command *exec.Cmd
	done    chan struct{} // closed when the process was reaped
	err     error         // how it ended; valid after done
}

// ErrNotRunning is returned when a signal is sent to a node whose process has ended.
var ErrNotRunning = errors.New("node is not running")

// ID is the node's node.id, from 1.
func (n *Node) ID() int { return n.plan.id }

// Addr is the address of the PLAINTEXT listener, host:port.
func (n *Node) Addr() string { return n.AddrOf(ListenerPlaintext) }

// AddrOf is the address a listener listens on, host:port; empty if the node has no such listener.
func (n *Node) AddrOf(name string) string {
	if l := n.plan.listener(name); l.name != "" {
		return l.address()
	}
	return ""
}

// PID is the process id of the node's current or last process, 0 if it was never started.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil {
		return 0
	}
	return n.process.command.Process.Pid
}

// Signal sends a signal to the node's process. Prefer Freeze, Thaw and Stop, which wait until it has worked.
func (n *Node) Signal(signal os.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.process.running() {
		return fmt.Errorf("node %d: %w", n.plan.id, ErrNotRunning)
	}
	if endsProcess(signal) {
		n.ending = true
	}
	return n.process.command.Process.Signal(signal)
}

// Kill ends the node's process at once, frozen or not, and returns when it is gone. A node that is not running is fine.
func (n *Node) Kill() error {
	n.mu.Lock()
	life := n.process
	running := life.running()
	if running {
		n.ending = true
	}
	n.mu.Unlock()
	if !running {
		return nil
	}
	if err := killGroup(life.command.Process); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-life.done
	return nil
}

// Done is closed when the node's current process has ended. A node that was never started is done.
func (n *Node) Done() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return n.process.done
}

// Restart starts the node again on its ports and data after it has ended. AwaitReady tells when it serves.
func (n *Node) Restart() error { return n.launch(nil) }

// Running reports whether the node's process lives, frozen or not.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process.running()
}

// Frozen reports whether the node's process lives and was stopped by Freeze.
func (n *Node) Frozen() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process.running() && n.frozen
}

// serving reports whether an answer can be expected.
func (n *Node) serving() bool { return n.Running() && !n.Frozen() }

// stopTimeout bounds a clean stop. The last of several nodes never ends by itself: it waits for a quorum.
const stopTimeout = 30 * time.Second

// Stop asks the node to stop (SIGTERM), which hands its leaders and groups over first, and returns when it is gone. If
// it is still there when the context ends, or after 30 s, it is killed and that is the error. A node that is not
// running is fine.
func (n *Node) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopTimeout, fmt.Errorf("still there after %v", stopTimeout))
	defer cancel()
	if err := n.Signal(terminate); errors.Is(err, ErrNotRunning) || errors.Is(err, os.ErrProcessDone) {
		return nil
	} else if err != nil {
		return err
	}
	select {
	case <-n.Done():
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("node %d asked to stop: %w; killed", n.ID(), context.Cause(ctx)), n.Kill())
	}
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// crashed returns how the process ended if nobody had told it to, nil otherwise.
func (n *Node) crashed() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil || n.process.running() || n.ending {
		return nil
	}
	return fmt.Errorf("node %d (pid %d) ended by itself: %v", n.plan.id, n.process.command.Process.Pid, n.process.err)
}

func (n *Node) dataDir() string { return filepath.Join(n.cluster.dir, "data"+strconv.Itoa(n.plan.id)) }
func (n *Node) logFile() string {
	return filepath.Join(n.cluster.dir, "node"+strconv.Itoa(n.plan.id)+".log")
}
func (n *Node) propertiesFile() string {
	return filepath.Join(n.cluster.dir, "node"+strconv.Itoa(n.plan.id)+".properties")
}

// prepare writes the node's properties and its formatted data folder.
//
// Formatting by Kafka's own tool takes a JVM start of two seconds per node. The files it writes are the same for every
// cluster of a version except meta.properties, so they are copied and that one is written here. Without the others the
// node would start too, but with the features behind KIP-848 and share groups switched off.
func (n *Node) prepare(template, clusterID, properties string) error {
	if err := os.WriteFile(n.propertiesFile(), []byte(properties), 0o600); err != nil {
		return err
	}
	if err := os.CopyFS(n.dataDir(), os.DirFS(template)); err != nil {
		return fmt.Errorf("copy the formatted data folder: %w", err)
	}
	meta := fmt.Sprintf("version=1\ncluster.id=%s\nnode.id=%d\ndirectory.id=%s\n", clusterID, n.plan.id, newUUID())
	return os.WriteFile(filepath.Join(n.dataDir(), metaProperties), []byte(meta), 0o600)
}

// launch starts the JVM. The extra flags come before the class path.
func (n *Node) launch(extraFlags []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process.running() {
		return errors.New("already running")
	}
	log, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	command := exec.Command(n.dist.java.path, n.dist.kafkaArguments(n.plan.heapMiB, extraFlags, n.propertiesFile())...)
	command.Stdout, command.Stderr = log, log
	isolate(command)
	life := &process{command: command, done: make(chan struct{})}
	if err := life.start(); err != nil {
		return fmt.Errorf("start java: %w", err)
	}
	n.process, n.ending, n.frozen = life, false, false
	return nil
}

// start runs the command and reaps it on a thread of its own. The kernel ties the "parent died" signal to the thread
// that started the child, so that thread must live as long as the child does.
func (p *process) start() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := p.command.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = p.command.Wait()
		close(p.done)
	}()
	return <-started
}

// tailBytes is how much of a log an error message quotes.
const tailBytes = 4096

// logTail is the end of the node's log, whole lines, or why it cannot be read.
func (n *Node) logTail() string {
	file, err := os.Open(n.logFile())
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err.Error()
	}
	start := max(0, info.Size()-tailBytes)
	text, err := io.ReadAll(io.NewSectionReader(file, start, tailBytes))
	if err != nil {
		return err.Error()
	}
	if start > 0 {
		if _, rest, found := strings.Cut(string(text), "\n"); found {
			return rest
		}
	}
	return string(text)
}
