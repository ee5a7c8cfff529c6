//go:build unix

package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// withoutPrograms makes Java, Maven and every cached jar invisible.
func withoutPrograms(t *testing.T) {
	t.Helper()
	empty := t.TempDir()
	t.Setenv("PATH", empty)
	t.Setenv("JAVA_HOME", "")
	t.Setenv("MAVEN_HOME", "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("TROUPE_KAFKA_BROKERS", "")
	t.Setenv("TROUPE_KAFKA_VERSION", "")
}

// fakeProgram puts a shell script into a folder of its own and returns the folder.
func fakeProgram(t *testing.T, name, script string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestStartWithoutJavaAndMavenNamesBoth(t *testing.T) {
	withoutPrograms(t)
	_, err := Start(t.Context(), Options{})
	if !errors.Is(err, ErrUnavailable) {
		t.Fatalf("Start = %v, want ErrUnavailable", err)
	}
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || len(unavailable.Missing) != 2 {
		t.Fatalf("Start = %#v, want an UnavailableError naming two programs", err)
	}
	for _, name := range []string{"java 17", "mvn", "TROUPE_KAFKA_BROKERS", DefaultVersion} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q does not name %s", err, name)
		}
	}
}

func TestStartWithOldJavaNamesTheVersionFound(t *testing.T) {
	withoutPrograms(t)
	t.Setenv("PATH", fakeProgram(t, "java", `echo 'openjdk version "11.0.2" 2019-01-15' >&2`))
	_, err := Start(t.Context(), Options{})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "11.0.2") {
		t.Fatalf("Start = %v, want ErrUnavailable naming 11.0.2", err)
	}
}

func TestStartWithBrokenJavaIsAnErrorAndNotUnavailable(t *testing.T) {
	withoutPrograms(t)
	t.Setenv("PATH", fakeProgram(t, "java", `echo no memory; exit 3`))
	_, err := Start(t.Context(), Options{})
	if err == nil || errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no memory") {
		t.Fatalf("Start = %v, want a plain error with Java's output", err)
	}
}

func TestStartRejectsBadOptions(t *testing.T) {
	withoutPrograms(t)
	for name, options := range map[string]Options{
		"version": {Version: "../../x"}, "old version": {Version: "2.8.0"}, "nodes": {Nodes: -1}, "many nodes": {Nodes: 10},
	} {
		if _, err := Start(t.Context(), options); err == nil || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: Start = %v, want an error about the option", name, err)
		}
	}
}

func TestOutsideBrokersThatDoNotAnswerAreNamed(t *testing.T) {
	withoutPrograms(t)
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := listener{port: ports[0]}.address()
	t.Setenv("TROUPE_KAFKA_BROKERS", " "+address+" ,")
	if _, err := Start(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), address) {
		t.Fatalf("Start = %v, want an error naming %s", err, address)
	}
}

func TestRunIsCutOffWithItsChildren(t *testing.T) {
	shell := filepath.Join(fakeProgram(t, "child", `sleep 600 & wait`), "child")
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	started := time.Now()
	_, err := run(ctx, "", shell)
	if !errors.Is(err, cause) {
		t.Errorf("run = %v, want the cause of the cancellation", err)
	}
	if took := time.Since(started); took > outputGrace {
		t.Errorf("run returned after %v: a child kept the pipe open", took)
	}
}

func TestLockFileExcludesAndHonorsTheContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*lockPoll)
	defer cancel()
	if _, err := lockFile(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("second lock = %v, want the deadline", err)
	}
	unlock()
	again, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestModuleVersionIsThatOfGoMod(t *testing.T) {
	got, err := ModuleVersion(t.Context(), "github.com/twmb/franz-go/pkg/kmsg")
	if err != nil || !strings.HasPrefix(got, "v1.") {
		t.Errorf("ModuleVersion = %q, %v", got, err)
	}
	if got, err := ModuleVersion(t.Context(), "github.com/twmb/no-such-module"); err == nil {
		t.Errorf("ModuleVersion of an unknown module = %q, want an error", got)
	}
}

func TestReportedLinesOfManyWritersStayWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "brokers")
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if err := appendLine(path, oneLine("one\nline")); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("one line\n", 8); string(text) != want {
		t.Errorf("file holds %q, want %q", text, want)
	}
}

// TestRealKafkaServesGroupsAndGoesAway starts the real thing: it is ready when Start returns, survives a freeze and a
// kill, and leaves no process, no port and no folder.
func TestRealKafkaServesGroupsAndGoesAway(t *testing.T) {
	skipForOutsideBrokers(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cluster := ForTest(t, Options{})
	if cluster.External() || len(cluster.Nodes()) != 1 {
		t.Fatalf("%s: want one own node", cluster)
	}
	node := cluster.Nodes()[0]
	if features := finalizedFeatures(t, node.Addr()); !strings.HasPrefix(cluster.Version(), "3.") && features["group.version"] < 1 {
		t.Errorf("finalized features %v: want group.version, or KIP-848 is off", features)
	}

	first := node.PID()
	if err := node.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := node.Kill(); err != nil { // a frozen process can be killed too
		t.Fatal(err)
	}
	if err := syscall.Kill(first, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d after Kill: %v, want ESRCH", first, err)
	}
	if err := node.Signal(syscall.SIGCONT); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Signal after Kill = %v, want ErrNotRunning", err)
	}
	if err := node.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := cluster.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(node.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d after Stop: %v, want ESRCH", node.PID(), err)
	}
	if _, err := os.Stat(cluster.LogDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("run folder after Stop: %v, want it gone", err)
	}
}

// TestRealKafkaThatCannotStartTellsWhy gives a property Kafka refuses.
func TestRealKafkaThatCannotStartTellsWhy(t *testing.T) {
	skipForOutsideBrokers(t)
	cluster, err := Start(t.Context(), Options{Properties: map[string]string{"num.io.threads": "none"}})
	if errors.Is(err, ErrUnavailable) {
		if Required() {
			t.Fatal(err)
		}
		ReportSkipped(t.Name(), err)
		t.Skip(err)
	}
	if err == nil {
		_ = cluster.Stop()
		t.Fatal("Start succeeded with num.io.threads=none")
	}
	if !strings.Contains(err.Error(), "num.io.threads") || !strings.Contains(err.Error(), "logs kept in") {
		t.Errorf("Start = %v, want the broker's own words and where the logs are", err)
	}
	_, rest, _ := strings.Cut(err.Error(), "logs kept in ")
	dir, _, _ := strings.Cut(rest, ")")
	if _, err := os.Stat(filepath.Join(dir, "node1.log")); err != nil {
		t.Errorf("kept log: %v", err)
	}
	if filepath.Dir(dir) == filepath.Clean(os.TempDir()) && strings.HasPrefix(filepath.Base(dir), "troupe-kafka-") {
		_ = os.RemoveAll(dir)
	}
}

// skipForOutsideBrokers leaves a run that was pointed at a cluster of its own without nodes of ours: it need not have a
// Java.
func skipForOutsideBrokers(t *testing.T) {
	t.Helper()
	if len(outsideBrokers()) > 0 {
		t.Skip("TROUPE_KAFKA_BROKERS is set; own nodes are not under test")
	}
}

func finalizedFeatures(t *testing.T, address string) map[string]int16 {
	t.Helper()
	p, err := newProbe(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	request := kmsg.NewPtrApiVersionsRequest()
	request.Version, request.ClientSoftwareName, request.ClientSoftwareVersion = 3, "troupe-launch", "0"
	answer, err := p.ask(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	features := map[string]int16{}
	for _, feature := range answer.(*kmsg.ApiVersionsResponse).FinalizedFeatures {
		features[feature.Name] = feature.MaxVersionLevel
	}
	return features
}
