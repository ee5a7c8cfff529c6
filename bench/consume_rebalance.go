package main

import (
	"context"
	"fmt"
	"time"
)

// step is a member that comes or goes.
type step struct {
	// Member is who, from 1; the first one is there before the first step.
	Member int `json:"member"`
	// Leaves says that the member goes; otherwise it comes.
	Leaves bool `json:"leaves,omitempty"`
	// Pause is waited before the span in which nothing happens, so that the step meets heartbeats anywhere between two.
	Pause time.Duration `json:"pause"`
}

// String says what happens.
func (s step) String() string {
	if s.Leaves {
		return fmt.Sprintf("member %d leaves", s.Member)
	}
	return fmt.Sprintf("member %d joins", s.Member)
}

// consumeRebalance is a group whose members come and go, all in this process, so that their times are of one clock. Who is
// left at the end is given up with the process.
func consumeRebalance(ctx context.Context, t task) (*result, error) {
	seen := newRecorder(t.Topic.Partitions)
	members := make(map[int]*running)
	failed := make(chan error, 1)
	join := func(member int) error {
		consumer, err := start(ctx, t, seen.handler(member))
		if err != nil {
			return err
		}
		members[member] = consumer
		go func() {
			if err := <-consumer.failed; err != nil {
				select {
				case failed <- fmt.Errorf("member %d: %w", member, err):
				default:
				}
			}
		}()
		return nil
	}
	if err := join(1); err != nil {
		return nil, err
	}
	everyone := &running{failed: failed}
	if err := everyone.wait(seen.all); err != nil {
		return nil, err
	}
	for _, step := range t.Steps {
		if err := everyone.rest(t.Rest + step.Pause + t.Window); err != nil {
			return nil, err
		}
		seen.mark()
		if step.Leaves {
			go func(leaving *running) {
				if err := leaving.stop(); err != nil {
					failed <- fmt.Errorf("%s: %w", step, err)
				}
			}(members[step.Member])
		} else if err := join(step.Member); err != nil {
			return nil, err
		}
		if err := everyone.rest(t.Window); err != nil {
			return nil, err
		}
	}
	return seen.taken().measure(t)
}

// rest lets time pass, unless the consumer fails.
func (r *running) rest(d time.Duration) error {
	done := make(chan struct{})
	timer := time.AfterFunc(d, func() { close(done) })
	defer timer.Stop()
	return r.wait(done)
}
