package api

import (
	"context"
	"time"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// PartitionsFunc is a callback. The token is the right to change the consumer over exactly these partitions; it ends when the
// callback returns. Calls of the consumer that change something about them are refused meanwhile with an *actors.HeldError, also
// from inside the callback: use the token. Returning an error, a panic, and not returning in time are told by
// event.CallbackFailed. context.Cause(ctx) tells why ctx has ended: actors.ErrCallbackOverdue when the time was over; before it,
// rebalance.ErrRevoked or rebalance.ErrLost when that happened to the partitions, actors.ErrCallbackCut when another callback cannot
// wait, actors.ErrClosing. A callback that returns ctx.Err() or that cause when it was ended before its time has not failed.
type PartitionsFunc func(ctx context.Context, token *Token, partitions []kafka.TopicPartition) error

// Callbacks tell a program of the partitions that come and go; each function may be nil. They run in goroutines of their
// own, one at a time and in order. Heartbeats, the network and the partitions that stay never wait for them; the member does: it
// goes to its next state when they have returned, or their time is over. Beside [Assign], OnAssigning and OnAssigned are called
// when partitions appear, OnRevoking and OnRevoked by Close alone, and OnLost for a topic that was made anew. They may be called
// before Spawn has returned: use the token. With OnAssigning or OnAssigned set, the others name only partitions that one of these has
// named: a partition may be taken away again before it is decided where it starts. The token is not over those of its partitions
// that were given up, lost, or came back while the callback waited for its turn. Pass ctx on to whatever is called: by it a call
// knows that it is inside. (Java: ConsumerRebalanceListener.)
type Callbacks struct {
	// OnAssigning is called with the partitions that are new, before it is looked up where they start: its token may seek, which
	// decides it, and pause. ctx ends after Timeout, or when they are to be given up again.
	OnAssigning PartitionsFunc
	// OnAssigned is called when it is decided where partitions start; nothing of them is delivered before it returns. Its token may
	// seek, pause and commit. It may be called several times in one rebalance, each partition once. ctx ends as OnAssigning's.
	OnAssigned PartitionsFunc
	// OnRevoking is called when partitions begin to be given up: handlers may go on until ctx ends (Config.DrainTimeout). Its
	// token may commit.
	OnRevoking PartitionsFunc
	// OnRevoked is called when their handlers have ended and what they finished is committed; the partitions go to others
	// when it has returned. Its token may only read (Token.Position). ctx ends when the rebalance cannot wait any longer.
	OnRevoked PartitionsFunc
	// OnLost is called in place of both when the membership was lost: the partitions may be others' already, and nothing more
	// is committed for them; so when the consumer's own group actor failed (event.ActorRestarted). Only other callbacks wait for it. Its token may only read. ctx ends after Timeout.
	OnLost PartitionsFunc
	// Timeout bounds OnAssigning, OnAssigned and OnLost, each from when it is called. Default 30 s; at least 1 ms.
	Timeout time.Duration
	// FailConsumer has a callback that fails end the consumer: it drains, commits and leaves, and Consumer.Err wraps the failure.
	// Default: an event, and the member goes on.
	FailConsumer bool
}

const defaultCallbackTimeout = 30 * time.Second

// WithCallbacks sets the callbacks of a consumer.
func WithCallbacks(callbacks Callbacks) Option {
	return optionOf("WithCallbacks", func(p *parts) {
		if callbacks.Timeout == 0 {
			callbacks.Timeout = defaultCallbackTimeout
		}
		p.problems = append(p.problems, broken([]rule{between("WithCallbacks.Timeout", callbacks.Timeout, minDuration)})...)
		p.callbacks = actors.Callbacks{
			Assigning: actors.PartitionsFunc(callbacks.OnAssigning), Assigned: actors.PartitionsFunc(callbacks.OnAssigned),
			Revoking: actors.PartitionsFunc(callbacks.OnRevoking), Revoked: actors.PartitionsFunc(callbacks.OnRevoked),
			Lost:    actors.PartitionsFunc(callbacks.OnLost),
			Timeout: callbacks.Timeout, Strict: callbacks.FailConsumer,
		}
	})
}
