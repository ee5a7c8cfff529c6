package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Report says which broker a suite really ran on: "BROKER: " and the line, on standard error and, because `go test`
// shows nothing of a package that passed, appended to the file named by TROUPE_BROKER_LOG. `make test` sets that
// variable and prints the file at its end. Appending one short line is atomic, so test binaries may share the file.
func Report(line string) { announce("BROKER: " + line) }

// ReportSkipped says as loudly that a suite did not run: "SKIPPED: ", the suite and the reason.
func ReportSkipped(suite string, reason error) { announce("SKIPPED: " + suite + ": " + reason.Error()) }

func announce(line string) {
	line = oneLine(line)
	fmt.Fprint(os.Stderr, line)
	if path := os.Getenv("TROUPE_BROKER_LOG"); path != "" {
		if err := appendLine(path, line); err != nil {
			fmt.Fprintf(os.Stderr, "TROUPE_BROKER_LOG: %v\n", err)
		}
	}
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", " ") + "\n" }

func appendLine(path, line string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(line)
	return errors.Join(err, file.Close())
}

// ModuleVersion is the version of a module this build is pinned to, for example of the embedded broker, to be given to
// Report. Test binaries do not carry their modules' versions, so the go command is asked.
func ModuleVersion(ctx context.Context, module string) (string, error) {
	output, err := run(ctx, "", "go", "list", "-m", "-f", "{{.Version}}", module)
	if err != nil {
		return "", fmt.Errorf("version of module %s: %w", module, err)
	}
	return strings.TrimSpace(output), nil
}

// ForTest starts a cluster for a test and stops it at the test's end, logs kept if the test failed. Without a way to
// have one the test is skipped with a loud line, or fails if Required. For a cluster that several tests share use Start
// in TestMain with the same rules.
func ForTest(tb testing.TB, options Options) *Cluster {
	tb.Helper()
	if options.Log == nil {
		options.Log = tb.Logf
	}
	cluster, err := Start(tb.Context(), options)
	if errors.Is(err, ErrUnavailable) && !Required() {
		ReportSkipped(tb.Name(), err)
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	Report(cluster.String())
	tb.Cleanup(func() {
		if tb.Failed() {
			cluster.KeepLogs()
			tb.Logf("logs of %s are kept in %s", cluster, cluster.LogDir())
		}
		if err := cluster.Stop(); err != nil {
			tb.Error(err)
		}
	})
	return cluster
}

// Main is the body of a TestMain whose package shares one cluster: it starts one, runs the tests with it, and stops it,
// keeping the logs if a test failed. The cluster is nil, after a loud line, if there is no way to have one and none is
// Required; tests then skip themselves. The result is for os.Exit.
func Main(suite string, options Options, run func(*Cluster) int) int {
	cluster, err := Start(context.Background(), options)
	switch {
	case errors.Is(err, ErrUnavailable) && !Required():
		ReportSkipped(suite, err)
		return run(nil)
	case err != nil:
		fmt.Fprintf(os.Stderr, "FAIL: %s: %v\n", suite, err)
		return 1
	}
	Report(cluster.String())
	code := run(cluster)
	if code != 0 {
		cluster.KeepLogs()
		fmt.Fprintf(os.Stderr, "logs of %s are kept in %s\n", cluster, cluster.LogDir())
	}
	if err := cluster.Stop(); err != nil {
		fmt.Fprintf(os.Stderr, "FAIL: %s: %v\n", suite, err)
		return 1
	}
	return code
}
