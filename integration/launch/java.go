package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// oldestJava is what Kafka 4 brokers need.
const oldestJava = 17

// javaRuntime is a Java that can run Kafka.
type javaRuntime struct {
	path    string
	version string // full text, such as "17.0.15"; class archives belong to one exact version
}

// findJava looks at JAVA_HOME, then PATH. The error is an UnavailableError if there is none that is new enough.
func findJava(ctx context.Context) (javaRuntime, error) {
	wanted := fmt.Sprintf("java %d or newer (JAVA_HOME or PATH)", oldestJava)
	path, err := lookProgram("JAVA_HOME", "java")
	if err != nil {
		return javaRuntime{}, &UnavailableError{Missing: []string{wanted}}
	}
	output, err := run(ctx, "", path, "-version")
	if err != nil {
		return javaRuntime{}, err
	}
	feature, full, err := parseJavaVersion(output)
	if err != nil {
		return javaRuntime{}, fmt.Errorf("%s: %w", path, err)
	}
	if feature < oldestJava {
		return javaRuntime{}, &UnavailableError{Missing: []string{fmt.Sprintf("%s (found %s)", wanted, full)}}
	}
	return javaRuntime{path: path, version: full}, nil
}

// findMaven looks at MAVEN_HOME, then PATH.
func findMaven() (string, error) {
	path, err := lookProgram("MAVEN_HOME", "mvn")
	if err != nil {
		return "", &UnavailableError{Missing: []string{"mvn (Maven; MAVEN_HOME or PATH)"}}
	}
	return path, nil
}

func lookProgram(homeVariable, name string) (string, error) {
	if home := os.Getenv(homeVariable); home != "" {
		if path, err := exec.LookPath(filepath.Join(home, "bin", name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

// outputGrace bounds the wait for a killed command's pipes, should one of its children have kept them open.
const outputGrace = 5 * time.Second

// run executes a helper program to its end and returns what it printed. It is killed, children included, when the
// context ends. A failure's error carries the end of the output.
func run(ctx context.Context, dir, path string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, path, arguments...)
	command.Dir = dir
	var output strings.Builder
	command.Stdout, command.Stderr = &output, &output
	isolate(command)
	command.Cancel = func() error { return killGroup(command.Process) }
	command.WaitDelay = outputGrace
	life := &process{command: command, done: make(chan struct{})}
	if err := life.start(); err != nil {
		return "", fmt.Errorf("start %s: %w", path, err)
	}
	<-life.done
	if life.err == nil {
		return output.String(), nil
	}
	err := life.err
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	text := output.String()
	return "", fmt.Errorf("%s: %w\n%s", filepath.Base(path), err, text[max(0, len(text)-tailBytes):])
}
