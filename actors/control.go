package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// operation is what a control call asks of the consumer. The group actor carries it out in its turn. What it finds out lies in
// the operation itself, for the caller to read once the call was answered without an error.
type operation interface {
	// word names it in errors and events, such as "seek".
	word() string
	// run carries it out and answers the call once, now or later. It must not block.
	run(ctx actor.Context, g *group, m *request)
}

// request: Tree -> root -> group: one operation. Answered through the message: by the group, or by root when the group failed.
type request struct {
	silent
	op operation
	// key is that of a token's operation; nil for a call of the consumer itself.
	key *capability.Key
	// inside is the token whose callback or call the caller is inside of, nil for none.
	inside *Token
	answer chan error
	// begun is true once a group has it; answered once somebody has replied.
	begun, answered atomic.Bool
}

// ErrInterrupted means that the consumer's group actor failed while it carried out a call: it may have been done or not. The
// consumer recovers by itself, and the call may be made again.
var ErrInterrupted = errors.New("troupe: the consumer was interrupted by a failure of its own while it carried out the call")

// UnassignedError means that a call named partitions that the consumer does not own, or named none while it owns none.
type UnassignedError struct {
	// Operation is what was asked for, such as "seek".
	Operation string
	// Partitions are those that are not owned, in order. Empty when none was named.
	Partitions []kafka.TopicPartition
	// State is the member's state, such as "ASSIGNED": before and during a rebalance partitions may be on their way.
	State string
}

// Error names operation, partitions and state.
func (e *UnassignedError) Error() string {
	if len(e.Partitions) == 0 {
		return fmt.Sprintf("troupe: %s: no partition is assigned (member is %s)", e.Operation, e.State)
	}
	names := make([]string, len(e.Partitions))
	for i, tp := range e.Partitions {
		names[i] = tp.String()
	}
	return fmt.Sprintf("troupe: %s: not assigned: %s (member is %s)", e.Operation, strings.Join(names, ", "), e.State)
}

// StateError means that a partition is in a state in which an operation makes no sense.
type StateError struct {
	// Operation is what was asked for, such as "seek".
	Operation      string
	TopicPartition kafka.TopicPartition
	// State is the partition's, such as "REVOKING".
	State string
	// Want says what would be right.
	Want string
}

// Error names operation, partition, state and what would be right.
func (e *StateError) Error() string {
	return fmt.Sprintf("troupe: %s %s: partition is %s: %s", e.Operation, e.TopicPartition, e.State, e.Want)
}

// do has the group carry out an operation and waits for its answer. The operation's results may be read only if it returns
// nil. key is that of a token's operation, nil without a token.
func (t *Tree) do(ctx context.Context, key *capability.Key, op operation) error {
	return t.answered(ctx, t.begin(ctx, key, op))
}

// begin asks the group for an operation, without waiting. Those of one caller are carried out in the order of their beginning.
func (t *Tree) begin(ctx context.Context, key *capability.Key, op operation) *request {
	m := &request{op: op, key: key, inside: t.within(ctx), answer: make(chan error, 1)}
	t.shared.sys.root.Send(t.top(), m)
	return m
}

// answered waits for the answer to an operation.
func (t *Tree) answered(ctx context.Context, m *request) error {
	select {
	case err := <-m.answer:
		return err
	case <-t.done:
		select {
		case err := <-m.answer: // both may be there
			return err
		default:
		}
		return t.over()
	case <-ctx.Done():
		if !m.answered.CompareAndSwap(false, true) { // what has not begun is not wanted any more
			return <-m.answer // both may be there
		}
		return fmt.Errorf("troupe: %s: %w", m.op.word(), endOf(ctx))
	}
}

// over is the error of whatever is asked of a consumer that has ended.
func (t *Tree) over() error {
	if err := t.Err(); err != nil {
		return err
	}
	return ErrClosing
}

// reply answers once; a later answer is nobody's.
func (m *request) reply(err error) {
	if m.answered.CompareAndSwap(false, true) {
		m.answer <- err
	}
}

// called passes a call on to the group. One that comes between two incarnations waits for the next.
func (r *root) called(ctx actor.Context, m *request) {
	r.requests = append(slices.DeleteFunc(r.requests, func(m *request) bool { return m.answered.Load() }), m)
	if pid := r.Lookup(groupKey); pid != nil {
		ctx.Send(pid, m)
	}
}

// interrupted answers the calls that a group took with it. Those that it had not begun are for the next one.
func (r *root) interrupted() {
	r.requests = slices.DeleteFunc(r.requests, func(m *request) bool {
		if !m.begun.Load() {
			return false
		}
		if again, ok := m.op.(interface{ interrupted() error }); ok {
			m.reply(again.interrupted())
		} else {
			m.reply(ErrInterrupted)
		}
		return true
	})
}

// resume sends the calls that wait to a new group.
func (r *root) resume(ctx actor.Context, group *actor.PID) {
	for _, m := range r.requests {
		ctx.Send(group, m)
	}
}

// called carries out a call, unless another incarnation has begun it or its caller does not wait any more.
func (g *group) called(ctx actor.Context, m *request) {
	switch {
	case m.begun.Load() || m.answered.Load():
	case g.defers(m):
		g.desk.deferred = append(g.desk.deferred, m)
	default:
		m.begun.Store(true)
		if m.key != nil {
			// First of all, so that the answer does not depend on which partitions are drained by now.
			if err := g.desk.Authorize(m.key, rights[m.op.word()], m.op.word(), nil); err != nil {
				m.reply(heldError(err))
				return
			}
		}
		m.op.run(ctx, g, m)
	}
}

// ended reports whether the member is leaving or has failed for good, so that nothing can be asked of it any more.
func (g *group) ended() bool {
	return g.closing || g.finishing || g.member.State() == rebalance.StateFatal
}

// named checks the partitions that a call names: each can be one, and has a handler here.
func (s *shared) named(op string, partitions []kafka.TopicPartition) error {
	if err := checkNames(op, partitions); err != nil {
		return err
	}
	for _, tp := range partitions {
		if s.registration(tp.Topic) == nil {
			return fmt.Errorf("%w: %q (%s)", ErrNotSubscribed, tp.Topic, op)
		}
	}
	return nil
}

// targets returns the owned partitions that a call names, in order and each once: all of them when it names none, all of a
// topic for kafka.WholeTopic. One that is not owned is an *UnassignedError; so is a call that means none.
func (g *group) targets(op string, named []kafka.TopicPartition) ([]*part, error) {
	if err := g.shared.named(op, named); err != nil {
		return nil, err
	}
	return g.pick(op, named)
}

// pick is targets for whoever has checked the names, or takes any.
func (g *group) pick(op string, named []kafka.TopicPartition) ([]*part, error) {
	chosen, whole := make(map[kafka.TopicPartition]*part), make(map[string]bool)
	refused := &UnassignedError{Operation: op, State: g.member.State().String()}
	for _, tp := range named {
		if tp.Partition == kafka.AnyPartition {
			whole[tp.Topic] = true
			continue
		}
		if p := g.parts[tp]; p != nil {
			chosen[tp] = p
		} else {
			refused.Partitions = append(refused.Partitions, tp)
		}
	}
	for tp, p := range g.parts {
		if len(named) == 0 || whole[tp.Topic] {
			chosen[tp] = p
		}
	}
	if len(refused.Partitions) > 0 || len(chosen) == 0 {
		slices.SortFunc(refused.Partitions, kafka.TopicPartition.Compare)
		return nil, refused
	}
	out := make([]*part, 0, len(chosen))
	for _, p := range chosen {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *part) int { return a.tp.Compare(b.tp) })
	return out, nil
}
