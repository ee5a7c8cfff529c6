package api

import (
	"context"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// Token is the right to change what a consumer does with some partitions. It is the type of package actors, whose messages
// carry it (actors.TokenHanded).
type Token = actors.Token

// Token waits for the token over partitions that are owned, over all of them when none is named, and returns it. While it is out
// everybody else who wants to change something about these partitions is refused at once with an *actors.HeldError; calls that
// only read, and the commits that the consumer makes by itself, go on. Those who wait get their turn in the order of asking.
// operation says what it is for and is not blank; errors, events and Stats().Tokens name it.
//
// Give it back with Token.Return. It ends by itself when ctx does, or after Config.TokenTimeout: then it is revoked, with
// event.TokenRevoked. Partitions that are given up or lost go out of it at once; those that come are not in it.
//
// The error is an *actors.UnassignedError for partitions that are not owned, actors.ErrClosing, or wraps that of ctx. A call
// that could only wait for itself, from inside a callback that has the token already, fails at once with actors.ErrSelfWait.
// (KIP-944.)
func (c *Consumer) Token(ctx context.Context, operation string, partitions ...kafka.TopicPartition) (*Token, error) {
	return c.tree.Token(ctx, operation, true, partitions)
}

// TryToken is [Consumer.Token] that does not wait: it fails at once with an *actors.HeldError if somebody has the token over one
// of the partitions, or waits for it.
func (c *Consumer) TryToken(ctx context.Context, operation string, partitions ...kafka.TopicPartition) (*Token, error) {
	return c.tree.Token(ctx, operation, false, partitions)
}

// WithToken waits for the token, calls f with it, and takes it back however f ends. ctx, for f, knows of the token, so that a
// call that would wait for it fails at once. If f panics, or a call with the token is still under way when it returns, the token
// is revoked (event.TokenRevoked); a panic goes on to the caller.
func (c *Consumer) WithToken(
	ctx context.Context, operation string, f func(ctx context.Context, token *Token) error, partitions ...kafka.TopicPartition,
) error {
	return c.tree.WithToken(ctx, operation, f, partitions)
}
