package api

import (
	"context"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// Callbacks tell a program of the partitions that come and go; each function may be nil. They run in goroutines of their
// own, one at a time and in order. Heartbeats, the network and the partitions that stay never wait for them. An error, a
// panic, or not returning in time is an event.CallbackFailed, and the member goes on. Beside [Assign], OnAssigned is called when
// partitions appear, OnRevoking and OnRevoked by Close alone, and OnLost for a topic that was made anew. (Java:
// ConsumerRebalanceListener.)
type Callbacks struct {
	// OnAssigned is called with the partitions that are new; nothing of them is delivered before it returns. ctx ends after
	// Timeout, or when they are to be given up again.
	OnAssigned func(ctx context.Context, partitions []kafka.TopicPartition) error
	// OnRevoking is called when partitions begin to be given up: handlers may go on until ctx ends (Config.DrainTimeout).
	OnRevoking func(ctx context.Context, partitions []kafka.TopicPartition) error
	// OnRevoked is called when their handlers have ended and what they finished is committed; the partitions go to others
	// when it has returned. ctx ends when the rebalance cannot wait any longer.
	OnRevoked func(ctx context.Context, partitions []kafka.TopicPartition) error
	// OnLost is called in place of both when the membership was lost: the partitions may be others' already, and nothing more
	// is committed for them. Nothing waits for it. ctx ends after Timeout.
	OnLost func(ctx context.Context, partitions []kafka.TopicPartition) error
	// Timeout bounds OnAssigned and OnLost. Default 30 s; at least 1 ms.
	Timeout time.Duration
}

const defaultCallbackTimeout = 30 * time.Second

// WithCallbacks sets the callbacks of a consumer.
func WithCallbacks(callbacks Callbacks) Option {
	return optionFunc(func(p *parts) {
		if callbacks.Timeout == 0 {
			callbacks.Timeout = defaultCallbackTimeout
		}
		p.problems = append(p.problems, broken([]rule{between("WithCallbacks.Timeout", callbacks.Timeout, minDuration)})...)
		p.callbacks = actors.Callbacks{
			Assigned: callbacks.OnAssigned, Revoking: callbacks.OnRevoking, Revoked: callbacks.OnRevoked, Lost: callbacks.OnLost,
			Timeout: callbacks.Timeout,
		}
	})
}
