package launch

import (
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
)

// Node is one Kafka process of a cluster started here. Its ports, properties and data outlive the process, so that a
// node that was killed can be started again.
type Node struct {
	plan nodePlan
	dist *distribution
	dir  string // the cluster's run folder

	mu      sync.Mutex
	process *process // guarded by mu; nil before the first start
	ending  bool     // guarded by mu; the process was told to end, so its end is no crash
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

// Addr is the address of the plaintext listener, host:port.
func (n *Node) Addr() string { return n.plan.listener(listenerPlaintext).address() }

// PID is the process id of the node's current or last process, 0 if it was never started.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process == nil {
		return 0
	}
	return n.process.command.Process.Pid
}

// Signal sends a signal to the node's process: an interrupt asks for a clean stop, SIGSTOP freezes, SIGCONT thaws.
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

// Restart starts the node again on its ports and data after it has ended. Cluster.AwaitReady tells when it serves.
func (n *Node) Restart() error { return n.launch(nil) }

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

func (n *Node) dataDir() string { return filepath.Join(n.dir, "data"+strconv.Itoa(n.plan.id)) }
func (n *Node) logFile() string { return filepath.Join(n.dir, "node"+strconv.Itoa(n.plan.id)+".log") }
func (n *Node) propertiesFile() string {
	return filepath.Join(n.dir, "node"+strconv.Itoa(n.plan.id)+".properties")
}

// prepare writes the node's properties and its formatted data folder.
//
// Formatting by Kafka's own tool takes a JVM start of two seconds per node. The files it writes are the same for every
// cluster of a version except meta.properties, so they are copied and that one is written here. Without the others the
// node would start too, but with the features behind KIP-848 and share groups switched off.
func (n *Node) prepare(clusterID, properties string) error {
	if err := os.WriteFile(n.propertiesFile(), []byte(properties), 0o600); err != nil {
		return err
	}
	if err := os.CopyFS(n.dataDir(), os.DirFS(n.dist.template())); err != nil {
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
	n.process, n.ending = life, false
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
