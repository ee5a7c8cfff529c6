package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// childVariable marks a process as a child of this command.
const childVariable = "TROUPE_BENCH_CHILD"

// isChild reports whether this process is to do a task given on standard input.
func isChild() bool { return os.Getenv(childVariable) != "" }

// childMain does the task and returns the exit status. It ends the process when standard input closes before.
func childMain() int {
	input := json.NewDecoder(os.Stdin)
	var t task
	if err := input.Decode(&t); err != nil {
		fmt.Fprintln(os.Stderr, "bench: task:", err)
		return 2
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(2)
	}()
	answer, err := perform(t)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(answer)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s %s: %v\n", t.Role, t.Consumer, err)
		return 1
	}
	return 0
}

func perform(t task) (any, error) {
	ctx := context.Background()
	switch t.Role {
	case roleBroker:
		return nil, serve(t.Nodes)
	case roleLoad:
		return load(ctx, t)
	case roleProduce:
		return nil, produce(ctx, t)
	case roleConsume:
		return consume(ctx, t)
	}
	return nil, fmt.Errorf("unknown role %q", t.Role)
}

// child is a process that does a task.
type child struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	answers *json.Decoder
}

// startChild starts a process for the task. It is killed when ctx ends.
func startChild(ctx context.Context, t task) (*child, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{command: exec.CommandContext(ctx, path)}
	c.command.Env = append(os.Environ(), childVariable+"=1")
	c.command.Stderr = os.Stderr
	if c.stdin, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.answers = json.NewDecoder(stdout)
	if err := c.command.Start(); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(c.stdin).Encode(t); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// stop ends the process and waits for it.
func (c *child) stop() error {
	_ = c.stdin.Close() // the child exits, with a status that means nothing
	var exit *exec.ExitError
	if err := c.command.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// runChild runs a task to its end. Its answer goes to answer.
func runChild(ctx context.Context, t task, answer any) error {
	c, err := startChild(ctx, t)
	if err != nil {
		return err
	}
	decoded := c.answers.Decode(answer)
	err = c.command.Wait()
	_ = c.stdin.Close()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s did not end in time: %w", t.Role, t.Consumer, context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("%s %s: %w", t.Role, t.Consumer, err)
	}
	return decoded
}
