package actors

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// Token is the right to change what a consumer does with some partitions: an object capability (KIP-944). Whoever has a live
// one may call its methods, from any goroutine, one call at a time: of two at once the second is refused. Everybody else who
// wants to change something about these partitions is refused at once with a *[HeldError]. It cannot be made, copied into life
// or guessed: the zero Token and a copy of a live one are dead. A dead one stays dead for ever.
//
// A callback gets one over exactly the partitions that it is about, valid until it returns; Tree.Token gives one over those that
// are owned. What it allows follows their state: everything while they are owned; to seek and to pause before the start
// (OnAssigning), also to commit when the position is known (OnAssigned); to commit while they are given up (OnRevoking); only to
// read when they are gone (OnRevoked, OnLost). A partition that is given up or lost goes out of every token at once.
//
// Commits of what is finished, which the consumer makes by itself, are never held up by a token.
type Token struct {
	// self tells an original from a copy.
	self   *Token
	tree   *Tree
	key    *capability.Key
	holder capability.Holder
	// grant is the number in the group's ledger; 0 for one that lives inside of a call only.
	grant uint64
	// accepted is true once the receiver of a handed token has used it.
	accepted atomic.Bool
	// last is how far partitions had come that are given up or lost; nil while they stay.
	last map[kafka.TopicPartition]*cell
	// release stops what watches over the token.
	release func() bool
}

func (t *Tree) newToken(key *capability.Key, grant uint64) *Token {
	token := &Token{tree: t, key: key, holder: key.Holder(), grant: grant}
	token.self = token
	return token
}

// live returns the key of a token that is one.
func (t *Token) live() *capability.Key {
	if t == nil || t.self != t {
		return nil
	}
	return t.key
}

// Holder names who has the token, such as "OnRevoking"; empty when it is dead.
func (t *Token) Holder() string { return string(t.live().Holder()) }

// Live reports whether the token can be used now: it is alive, was not handed on, and no call with it is under way.
func (t *Token) Live() bool { return t.live().Valid() }

// Partitions returns the partitions that it covers, in order; nil when it is dead.
func (t *Token) Partitions() []kafka.TopicPartition { return t.live().Partitions() }

// enter begins a call with the token.
func (t *Token) enter(op string) (*capability.Key, error) {
	key := t.live()
	if key == nil {
		return nil, &HeldError{Operation: op, Asker: "a token that is none", Reason: ErrTokenDead}
	}
	inside, err := key.Acquire(t.holder, op)
	if err != nil {
		return nil, heldError(err)
	}
	t.accepted.Store(true)
	return inside, nil
}

// operate runs one call on partitions, all that the token covers when none is named.
func (t *Token) operate(op string, named []kafka.TopicPartition, call func(key *capability.Key, named []kafka.TopicPartition) error) error {
	key, err := t.enter(op)
	if err != nil {
		return err
	}
	defer func() { _ = key.Return(t.holder) }() // it may have been revoked meanwhile
	if len(named) == 0 {
		if named = key.Partitions(); len(named) == 0 {
			return &HeldError{Operation: op, Asker: string(t.holder), Reason: ErrNotCovered}
		}
	}
	return call(key, named)
}

// Pause is Tree.Pause with the token.
func (t *Token) Pause(ctx context.Context, partitions ...kafka.TopicPartition) error {
	return t.operate("pause", partitions, func(key *capability.Key, named []kafka.TopicPartition) error {
		return t.tree.pause(ctx, key, true, named)
	})
}

// Resume is Tree.Resume with the token.
func (t *Token) Resume(ctx context.Context, partitions ...kafka.TopicPartition) error {
	return t.operate("resume", partitions, func(key *capability.Key, named []kafka.TopicPartition) error {
		return t.tree.pause(ctx, key, false, named)
	})
}

// Commit is Tree.Commit with the token.
func (t *Token) Commit(ctx context.Context, partitions ...kafka.TopicPartition) error {
	return t.operate("commit", partitions, func(key *capability.Key, named []kafka.TopicPartition) error {
		return t.tree.commit(ctx, key, named)()
	})
}

// CommitOffsets is Tree.CommitOffsets with the token.
func (t *Token) CommitOffsets(ctx context.Context, offsets ...kafka.OffsetAndMetadata) error {
	return t.operate(offsetsWord, partitionsIn(offsets), func(key *capability.Key, _ []kafka.TopicPartition) error {
		return t.tree.commitOffsets(ctx, key, offsets)()
	})
}

// CommitAsync is Tree.CommitAsync with the token, which cannot be used otherwise until the future is done.
func (t *Token) CommitAsync(ctx context.Context, partitions ...kafka.TopicPartition) *Future {
	begun := make(chan struct{})
	future := inFuture(func() error {
		return t.operate("commit", partitions, func(key *capability.Key, named []kafka.TopicPartition) error {
			wait := t.tree.commit(ctx, key, named)
			close(begun)
			return wait()
		})
	})
	select {
	case <-begun: // the token is inside the call when this returns
	case <-future.Done():
	}
	return future
}

func partitionsIn(offsets []kafka.OffsetAndMetadata) []kafka.TopicPartition {
	out := make([]kafka.TopicPartition, len(offsets))
	for i := range offsets {
		out[i] = offsets[i].TopicPartition
	}
	return out
}

// Seek is Tree.Seek with the token.
func (t *Token) Seek(ctx context.Context, to rebalance.StartPosition, partitions ...kafka.TopicPartition) error {
	return t.operate("seek", partitions, func(key *capability.Key, named []kafka.TopicPartition) error {
		return t.tree.seek(ctx, key, to, named)
	})
}

// Skip is Tree.Skip with the token.
func (t *Token) Skip(ctx context.Context, partition kafka.TopicPartition, offset int64, reason string) error {
	return t.operate("skip", []kafka.TopicPartition{partition}, func(key *capability.Key, _ []kafka.TopicPartition) error {
		return t.tree.skip(ctx, key, partition, offset, reason)
	})
}

// Position is Tree.Position with the token: the next offset of each partition named that would be delivered, of all that it covers
// when none is named. Of partitions that are given up or lost it is how far they had come, kafka.NoOffset where they never knew where
// they begin. One that the token does not cover is a *[HeldError] with [ErrNotCovered].
func (t *Token) Position(ctx context.Context, partitions ...kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
	const op = "position"
	out := make(map[kafka.TopicPartition]int64)
	err := t.operate(op, partitions, func(key *capability.Key, named []kafka.TopicPartition) error {
		covered, here := key.Partitions(), []kafka.TopicPartition(nil)
		for _, tp := range named {
			found := false
			for _, other := range covered {
				if other != tp && tp != kafka.WholeTopic(other.Topic) {
					continue
				}
				if found = true; t.last[other] != nil {
					out[other] = t.last[other].position.Load()
				} else {
					here = append(here, other)
				}
			}
			if !found {
				return &HeldError{Operation: op, Asker: string(t.holder), TopicPartition: tp, Reason: ErrNotCovered}
			}
		}
		if len(here) == 0 {
			return nil
		}
		positions, err := t.tree.Position(withToken(ctx, t), here)
		maps.Copy(out, positions)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Within runs f with a token of its own on top of this one, which cannot be used meanwhile: a callback inside of a call. The
// inner token is dead when f returns. If somebody is still inside a call with it then, the calls are ended with it, and Within
// returns a *[HeldError] with [ErrTokenInside], beside the error of f. A panic of f goes on to the caller.
func (t *Token) Within(ctx context.Context, operation string, f func(ctx context.Context, inner *Token) error) (err error) {
	key, err := t.enter(operation)
	if err != nil {
		return err
	}
	inner := t.tree.newToken(key, 0)
	inner.last = t.last
	since := key.Since()
	defer func() {
		if inside, _ := key.End(t.holder); len(inside) > 0 {
			err = errors.Join(err, insideError(operation, string(t.holder), since, inside))
		}
	}()
	return f(withToken(ctx, inner), inner)
}

// insideError says who was inside when a token ended that was out since then.
func insideError(operation, asker string, since time.Time, inside []capability.Level) error {
	last := inside[len(inside)-1]
	return &HeldError{
		Operation: operation, Asker: asker, Holder: string(last.Holder), HolderOperation: last.Op, Since: since, Reason: ErrTokenInside,
	}
}

// Return gives the token back before its time, with [ErrTokenInside] while a call with it is under way. A callback's is
// returned by itself when the callback does.
func (t *Token) Return() error {
	key := t.live()
	if key == nil {
		return &HeldError{Operation: "return", Asker: "a token that is none", Reason: ErrTokenDead}
	}
	err := key.Return(t.holder)
	switch {
	case err == nil:
		t.left(nil)
	case t.release != nil && key.Holder() == "": // it has ended in another way
		t.release()
	}
	return heldError(err)
}

// left tells the group that the holder is done.
func (t *Token) left(cause error) {
	if t.release != nil {
		t.release()
	}
	if t.grant != 0 {
		t.tree.shared.sys.root.Send(t.tree.top(), &tokenLeft{id: t.grant, cause: cause})
	}
}

// pass makes the receiver's token. From then on this one is dead.
func (t *Token) pass(receiver string) (*Token, error) {
	key := t.live()
	if key == nil {
		return nil, &HeldError{Operation: "hand", Asker: "a token that is none", Reason: ErrTokenDead}
	}
	passed, err := key.Pass(t.holder, capability.Holder(receiver))
	if err != nil {
		return nil, heldError(err)
	}
	token := t.tree.newToken(passed, t.grant)
	token.last, token.release = t.last, t.release
	return token, nil
}

// Hand gives the token to a goroutine that runs f. The receiver's is alive and this one is dead from the moment that Hand
// returns nil. When f returns, its token is returned, and is dead. When f panics or ends its goroutine, the token is revoked,
// with event.TokenRevoked, and the panic goes no further. receiver names it in errors and events.
//
// A token that a callback has handed on ends with the callback, and with it what f does: wait for f, if it is to have its
// time. ctx is given to f.
func (t *Token) Hand(ctx context.Context, receiver string, f func(ctx context.Context, token *Token)) error {
	token, err := t.pass(receiver)
	if err != nil {
		return err
	}
	t.tree.shared.sys.root.Send(t.tree.top(), &tokenHanded{token: token})
	go func() {
		died := fmt.Errorf("%w: %s", ErrHolderDied, receiver)
		defer func() {
			if v := recover(); v != nil {
				died = fmt.Errorf("%w: panic: %w", died, panicError(v))
				t.tree.shared.logger.Error("holder of a token panicked: " + string(debug.Stack()))
			}
			token.over(died)
		}()
		f(withToken(ctx, token), token)
		died = nil
	}()
	return nil
}

// over ends the token of a receiver that has ended: returned, or revoked if something became of the receiver, or somebody is
// still inside a call with it. One that it has handed on is not its own any more.
func (t *Token) over(died error) {
	if t.key.Passed() {
		return
	}
	switch {
	case t.grant == 0 && died != nil:
		t.revokeInner(died)
	case died != nil:
		t.left(died)
	default:
		err := t.Return()
		switch {
		case !errors.Is(err, ErrTokenInside):
		case t.grant == 0:
			t.revokeInner(err)
		default:
			t.left(nil)
		}
	}
}

// revokeInner ends a token that lives inside of a call, and so is in no ledger.
func (t *Token) revokeInner(cause error) {
	covered, since := t.Partitions(), t.key.Since()
	inside, err := t.key.End(t.holder)
	if err != nil {
		return // it has ended already
	}
	calls := make([]string, len(inside))
	for i, level := range inside {
		calls[i] = level.Op
	}
	s := t.tree.shared
	s.observe(event.TokenRevoked{
		Member: s.member(), Holder: string(t.holder), Operation: t.key.Op(), Since: since, Partitions: covered, Calls: calls, Err: cause,
	})
	s.logger.Warn("token revoked", zap.String("holder", string(t.holder)), zap.Time("since", since), zap.Strings("calls", calls), zap.Error(cause))
}

// TokenHanded brings an actor the token that somebody has handed to it by [Token.HandTo]. It is the actor's until it returns
// it. When the actor ends before it has used or accepted it, the token is returned; if it ends later without returning it, it
// is revoked, with event.TokenRevoked.
type TokenHanded struct {
	silent
	Token *Token
}

// HandTo is [Token.Hand] to an actor, as a *[TokenHanded]: one of the consumer's actor system, such as a handler's actor (see
// api.HandleActor), or one of the system that was given to api.WithActorSystem.
func (t *Token) HandTo(receiver *actor.PID) error {
	if receiver == nil {
		return &HeldError{Operation: "hand", Asker: string(t.live().Holder()), Reason: errNoReceiver}
	}
	token, err := t.pass("actor " + receiver.Id)
	if err != nil {
		return err
	}
	t.tree.shared.sys.root.Send(t.tree.top(), &tokenHanded{receiver: receiver, token: token})
	return nil
}

// errNoReceiver refuses to hand a token to nobody.
var errNoReceiver = errors.New("the receiver is nil: it has to be an actor's PID")

// Accept says that the receiver has the token, without doing anything with it. The first call with it does so as well.
func (t *Token) Accept() error {
	key, err := t.enter("accept")
	if err != nil {
		return err
	}
	return heldError(key.Return(t.holder))
}

// tokenKey is where a context has the token of the callback that it is of, and outside of it those that this one is inside of.
type tokenKey struct{}

type tokenScope struct {
	token   *Token
	outside *tokenScope
}

func withToken(ctx context.Context, token *Token) context.Context {
	outside, _ := ctx.Value(tokenKey{}).(*tokenScope)
	return context.WithValue(ctx, tokenKey{}, &tokenScope{token: token, outside: outside})
}

// within returns the innermost token of this tree that ctx is inside of and that has not ended, nil for none.
func (t *Tree) within(ctx context.Context) *Token {
	scope, _ := ctx.Value(tokenKey{}).(*tokenScope)
	for ; scope != nil; scope = scope.outside {
		if scope.token.tree == t && scope.token.live().Holder() != "" {
			return scope.token
		}
	}
	return nil
}

// InCallback reports whether ctx is that of one of this tree's callbacks that has not ended, or derived from it.
func (t *Tree) InCallback(ctx context.Context) bool {
	token := t.within(ctx)
	return token != nil && token.callback()
}

// callback reports whether the token is a callback's, or was handed on by one.
func (t *Token) callback() bool { return t.key.Forced() }

// selfWait refuses what could only wait for the callback or holder that ctx is inside of.
func (t *Tree) selfWait(ctx context.Context, op string, named []kafka.TopicPartition) error {
	token := t.within(ctx)
	if token == nil {
		return nil
	}
	covered := token.Partitions()
	overlaps := func(tp kafka.TopicPartition) bool {
		return slices.ContainsFunc(covered, func(other kafka.TopicPartition) bool {
			return other == tp || tp == kafka.WholeTopic(other.Topic)
		})
	}
	if len(covered) == 0 || len(named) > 0 && !slices.ContainsFunc(named, overlaps) {
		return nil
	}
	return &HeldError{
		Operation: op, Asker: string(token.holder), Holder: string(token.holder), Since: token.key.Since(),
		TopicPartition: covered[0], Reason: ErrSelfWait,
	}
}
