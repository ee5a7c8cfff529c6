package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/troupego/troupe/integration/launch"
)

// peerSource is the Java consumers' programs, each in a folder of its own.
//
//go:embed java/pom.xml java/src javaconsumer/pom.xml javaconsumer/src
var peerSource embed.FS

// javaProgram is a consumer in Java: its folder and its class.
type javaProgram struct{ dir, class string }

// javaPrograms are the consumers in Java.
var javaPrograms = map[string]javaProgram{
	parallelConsumer: {"java", "ParallelPeer"},
	javaConsumer:     {"javaconsumer", "RebalancePeer"},
}

// peerHeap bounds the Java heap.
const peerHeap = "-Xmx1g"

// warmupRecords is how many records the peer handles, at most, before it is measured, so that the compiler is done.
const warmupRecords = 100_000

// peerGrace bounds the wait for a killed command's pipes, should a child of its own have kept them open.
const peerGrace = 5 * time.Second

// peer is a Java program, built.
type peer struct{ java, classPath, class string }

// findPeers builds the Java programs of the consumers that take part, each once for each version of its source, in the user's
// cache folder. One is left out, after a loud line, when Java or Maven is missing or fails. On the embedded broker there is
// none: the Kafka client of the Parallel Consumer refuses the feature versions which that broker tells.
func findPeers(ctx context.Context, kind string, takesPart func(consumer string) bool) map[string]*peer {
	peers := make(map[string]*peer)
	for _, consumer := range slices.Sorted(maps.Keys(javaPrograms)) {
		if !takesPart(consumer) {
			continue
		}
		if kind != brokerKafka {
			progress("%s needs a real Kafka (-broker %s)", consumer, brokerKafka)
			continue
		}
		p, err := javaPrograms[consumer].build(ctx)
		if err != nil {
			launch.ReportSkipped("bench beside "+consumer, err)
			continue
		}
		peers[consumer] = p
	}
	return peers
}

func (j javaProgram) build(ctx context.Context) (*peer, error) {
	java, err := lookProgram("JAVA_HOME", "java")
	if err != nil {
		return nil, fmt.Errorf("no java (JAVA_HOME or PATH): %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("cache folder: %w", err)
	}
	digest, err := j.digest()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "troupe", "bench-peer-"+digest)
	found := &peer{java: java, class: j.class, classPath: filepath.Join(dir, "target", "classes") +
		string(os.PathListSeparator) + filepath.Join(dir, "target", "dependency", "*")}
	if _, err := os.Stat(dir); err == nil {
		return found, nil
	}
	maven, err := lookProgram("MAVEN_HOME", "mvn")
	if err != nil {
		return nil, fmt.Errorf("no mvn (MAVEN_HOME or PATH): %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "building-peer-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(work) }()
	progress("building %s by Maven (once)", j.class)
	if err := j.copy(work); err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, maven, "-q", "-B", "compile", "dependency:copy-dependencies", "-DincludeScope=runtime")
	command.Dir, command.WaitDelay = filepath.Join(work, j.dir), peerGrace
	if output, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mvn: %w\n%s", err, output)
	}
	// Where somebody else was faster, theirs is as good.
	if err := os.Rename(filepath.Join(work, j.dir), dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return found, nil
}

func lookProgram(homeVariable, name string) (string, error) {
	if home := os.Getenv(homeVariable); home != "" {
		if path, err := exec.LookPath(filepath.Join(home, "bin", name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

// eachFile calls f for the files of the source, in the order of their names.
func (j javaProgram) eachFile(f func(path string, content []byte) error) error {
	return fs.WalkDir(peerSource, j.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := peerSource.ReadFile(path)
		if err != nil {
			return err
		}
		return f(path, content)
	})
}

// digest names the version of the source.
func (j javaProgram) digest() (string, error) {
	hash := sha256.New()
	err := j.eachFile(func(path string, content []byte) error {
		_, err := fmt.Fprintf(hash, "%s %d %s", path, len(content), content)
		return err
	})
	return hex.EncodeToString(hash.Sum(nil))[:12], err
}

func (j javaProgram) copy(to string) error {
	return j.eachFile(func(path string, content []byte) error {
		target := filepath.Join(to, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, content, 0o600)
	})
}

// peerArguments say what the peer is to do.
func peerArguments(t task) []string {
	if t.Mode == modeRebalance {
		return rebalanceArguments(t)
	}
	buffer := int64(0)
	if t.Mode == modeKeyOrder {
		buffer = t.Topic.Records // so that the window bounds nothing
	}
	return []string{
		"brokers=" + strings.Join(t.Brokers, ","), "topic=" + t.Topic.Name, "group=" + t.Group, "order=" + t.Order,
		fmt.Sprintf("workers=%d", t.Workers), fmt.Sprintf("records=%d", t.Topic.Records), fmt.Sprintf("buffer=%d", buffer),
		fmt.Sprintf("warmup=%d", min(warmupRecords, t.Topic.Records)), fmt.Sprintf("span=%t", t.Mode == modeKeyOrder),
	}
}

// rebalanceArguments are those of the Java consumer. A step is its member, with a minus when that leaves, and what is waited
// before it, in milliseconds.
func rebalanceArguments(t task) []string {
	var steps []string
	for _, s := range t.Steps {
		member := s.Member
		if s.Leaves {
			member = -member
		}
		steps = append(steps, fmt.Sprintf("%d:%d", member, (t.Rest+s.Pause+t.Window).Milliseconds()))
	}
	return []string{
		"brokers=" + strings.Join(t.Brokers, ","), "topic=" + t.Topic.Name, "group=" + t.Group,
		fmt.Sprintf("partitions=%d", t.Topic.Partitions), fmt.Sprintf("heartbeat=%d", t.Heartbeat.Milliseconds()),
		fmt.Sprintf("span=%d", t.Window.Milliseconds()), "steps=" + strings.Join(steps, ","),
	}
}

// consume runs the peer in a process of its own and reads what it found.
func (p *peer) consume(ctx context.Context, t task) (*result, error) {
	command := exec.CommandContext(ctx, p.java, append([]string{peerHeap, "-cp", p.classPath, p.class}, peerArguments(t)...)...)
	command.WaitDelay = peerGrace
	stdin, err := command.StdinPipe() // it ends with this
	if err != nil {
		return nil, err
	}
	defer func() { _ = stdin.Close() }()
	var errs bytes.Buffer
	command.Stderr = &errs
	output, err := command.Output()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s did not end in time: %w", t.Consumer, context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("%s: %w\n%s", t.Consumer, err, errs.String())
	}
	return readPeer(output, t)
}

// peerAnswer is the peer's line.
type peerAnswer struct {
	Records    int64   `json:"records"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpuSeconds"`
	// Committed is nanoseconds since the first handler's start.
	Committed int64 `json:"committed"`
	spans
}

// readPeer reads the peer's answer to a task.
func readPeer(line []byte, t task) (*result, error) {
	if t.Mode == modeRebalance {
		var seen deliveries
		if err := json.Unmarshal(line, &seen); err != nil {
			return nil, fmt.Errorf("answer of %s: %w", t.Consumer, err)
		}
		return seen.measure(t)
	}
	var answer peerAnswer
	if err := json.Unmarshal(line, &answer); err != nil {
		return nil, fmt.Errorf("answer of %s: %w", t.Consumer, err)
	}
	if answer.Records != t.Topic.Records {
		return nil, fmt.Errorf("%s handled %d records, the topic has %d", t.Consumer, answer.Records, t.Topic.Records)
	}
	r := &result{Records: answer.Records, Seconds: answer.Seconds, CPUSeconds: answer.CPUSeconds}
	if t.Mode != modeKeyOrder {
		return r, nil
	}
	if n := int64(len(answer.Keys)); n != answer.Records || len(answer.Starts) != len(answer.Keys) || len(answer.Ends) != len(answer.Keys) {
		return nil, fmt.Errorf("answer of %s: times of %d records, want %d", t.Consumer, n, answer.Records)
	}
	return r, answer.summarize(t.Order, t.Workers, answer.Committed, r)
}
