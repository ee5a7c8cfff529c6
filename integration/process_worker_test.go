//go:build unix

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The process tests run examples/worker as processes of their own, on a real Kafka, and end, freeze and restart them and
// the brokers' nodes.

// buildWorker builds the worker once for all tests below a parent.
func buildWorker(t *testing.T) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "worker")
	output, err := exec.Command("go", "build", "-o", binary, "github.com/troupego/troupe/examples/worker").CombinedOutput()
	require.NoError(t, err, "%s", output)
	return binary
}

// stage is a topic and a group on a cluster, and all workers that were ever started on it.
type stage struct {
	binary     string
	dir        string
	brokers    []string
	admin      admin
	topic      string
	group      string
	partitions int32
	// flags are given to every worker.
	flags   []string
	workers []*worker
}

// newStage makes the topic. Its files are kept, and the ends of the workers' logs shown, when the test fails.
func newStage(t *testing.T, binary string, brokers []string, a admin, partitions int32, flags ...string) *stage {
	t.Helper()
	name := unique(t, "stage")
	dir, err := os.MkdirTemp("", "troupe-workers-")
	require.NoError(t, err)
	s := &stage{binary: binary, dir: dir, brokers: brokers, admin: a, topic: name, group: name, partitions: partitions, flags: flags}
	t.Cleanup(func() {
		for _, w := range s.workers {
			w.end()
		}
		if !t.Failed() {
			_ = os.RemoveAll(dir)
			return
		}
		t.Logf("logs and traces of the workers are kept in %s", dir)
		for _, w := range s.workers {
			t.Logf("the log of %s ends with:\n%s", w.name, w.logTail())
		}
	})
	a.CreateTopic(t, s.topic, partitions)
	return s
}

// fill produces records to each partition and returns how many in all.
func (s *stage) fill(t *testing.T, perPartition int) int {
	t.Helper()
	records := numbered(s.partitions, perPartition)
	s.admin.Produce(t, s.topic, records...)
	return len(records)
}

// worker is one process: one incarnation of a worker.
type worker struct {
	// name is the worker's in its stage, client its client id: stages run side by side behind one tap.
	name    string
	client  string
	command *exec.Cmd
	path    string // of its files, without their endings
	done    chan struct{}
	ended   time.Time // set when done is closed
	err     error     // set when done is closed
}

// start starts a worker under a name that no other one of the stage has.
func (s *stage) start(t *testing.T, name string, flags ...string) *worker {
	t.Helper()
	w := &worker{name: name, client: name + "-" + s.group, path: filepath.Join(s.dir, name), done: make(chan struct{})}
	args := append([]string{
		"-brokers", strings.Join(s.brokers, ","), "-topic", s.topic, "-group", s.group, "-client-id", w.client,
		"-out", w.path + ".out", "-trace", w.path + ".trace",
	}, s.flags...)
	w.command = exec.Command(s.binary, append(args, flags...)...)
	log, err := os.Create(w.path + ".log")
	require.NoError(t, err)
	defer log.Close()
	w.command.Stdout, w.command.Stderr = log, log
	endWithParent(w.command)
	require.NoError(t, w.command.Start())
	s.workers = append(s.workers, w)
	go func() {
		defer close(w.done)
		w.err = w.command.Wait()
		w.ended = time.Now()
	}()
	return w
}

// signal sends a signal to the process, which must still be there.
func (w *worker) signal(t *testing.T, s os.Signal) {
	t.Helper()
	select {
	case <-w.done:
		t.Fatalf("%s has ended by itself: %v\n%s", w.name, w.err, w.logTail())
	default:
	}
	require.NoError(t, w.command.Process.Signal(s))
}

// kill ends the process by SIGKILL and returns when it is gone.
func (w *worker) kill(t *testing.T) {
	t.Helper()
	w.signal(t, syscall.SIGKILL)
	<-w.done
}

// end ends whatever is left of the process.
func (w *worker) end() {
	_ = w.command.Process.Kill()
	<-w.done
}

// exit waits for the process and returns its exit status.
func (w *worker) exit(t *testing.T, in time.Duration) int {
	t.Helper()
	if !within(in, w.done) {
		t.Fatalf("%s did not end within %v\n%s", w.name, in, w.logTail())
	}
	var status *exec.ExitError
	if w.err != nil && !errors.As(w.err, &status) {
		t.Fatal(w.err)
	}
	return w.command.ProcessState.ExitCode()
}

// lines returns the complete lines of one of the worker's files, by its ending; none before it is there.
func (w *worker) lines(ending string) []string {
	content, err := os.ReadFile(w.path + ending)
	if err != nil {
		return nil
	}
	content = content[:bytes.LastIndexByte(content, '\n')+1]
	if len(content) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
}

// handled returns the records that the worker wrote down as finished, in the order it did.
func (w *worker) handled(t *testing.T) []place {
	t.Helper()
	var out []place
	for _, line := range w.lines(".out") {
		var p place
		_, err := fmt.Sscanf(line, "%d %d", &p.partition, &p.offset)
		require.NoError(t, err, "line %q of %s", line, w.name)
		out = append(out, p)
	}
	return out
}

// traced is one line of a worker's trace.
type traced struct {
	place
	what  string
	epoch uint64
	at    time.Time
}

func (w *worker) trace(t *testing.T) []traced {
	t.Helper()
	var out []traced
	for _, line := range w.lines(".trace") {
		out = append(out, w.parse(t, line))
	}
	return out
}

// lastTraced is the last line of the trace, however long that is; the zero value before there is one.
func (w *worker) lastTraced(t *testing.T) traced {
	t.Helper()
	const most = 256 // bytes, which is more than two lines
	file, err := os.Open(w.path + ".trace")
	if err != nil {
		return traced{}
	}
	defer file.Close()
	info, err := file.Stat()
	require.NoError(t, err)
	from := max(0, info.Size()-most)
	end, err := io.ReadAll(io.NewSectionReader(file, from, info.Size()-from))
	require.NoError(t, err)
	lines := strings.Split(string(end), "\n") // what comes after the last line end is no line yet, what comes first may be half of one
	if len(lines) < 3 {
		return traced{}
	}
	return w.parse(t, lines[len(lines)-2])
}

func (w *worker) parse(t *testing.T, line string) traced {
	t.Helper()
	fields := strings.Fields(line)
	require.Len(t, fields, 5, "line %q of %s", line, w.name)
	var numbers [4]int64
	for i := range numbers {
		n, err := strconv.ParseInt(fields[i+1], 10, 64)
		require.NoError(t, err, "line %q of %s", line, w.name)
		numbers[i] = n
	}
	return traced{place{int32(numbers[0]), numbers[1]}, fields[0], uint64(numbers[2]), time.Unix(0, numbers[3])}
}

// assignments returns the lines of the worker's log that tell of an assignment.
func (w *worker) assignments() []string { return w.logged(`"event":"partitions_assigned"`) }

// logged returns the lines of the worker's log with a text.
func (w *worker) logged(text string) (found []string) {
	for _, line := range w.lines(".log") {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func (w *worker) logTail() string {
	lines := w.lines(".log")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}
