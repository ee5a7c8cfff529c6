package actors

import (
	"context"
	"fmt"
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/rebalance"
)

// Rejoin asks for a rebalance; see api.Consumer.Rejoin.
func (t *Tree) Rejoin(ctx context.Context, reason string) error {
	if t.shared.standalone != nil {
		return ErrNoGroup
	}
	m := &rejoinWanted{reason: reason, answer: make(chan error, 1)}
	t.shared.sys.root.Send(t.rootPID, m)
	select {
	case err := <-m.answer:
		return err
	case <-t.done:
		if err := t.Err(); err != nil {
			return err
		}
		return ErrClosing
	case <-ctx.Done():
		return fmt.Errorf("troupe: asking for a rebalance: %w", context.Cause(ctx))
	}
}

// reply answers once; a later answer is nobody's.
func (m *rejoinWanted) reply(err error) {
	if m.answered.CompareAndSwap(false, true) {
		m.answer <- err
	}
}

// rejoinWanted passes the call on to the group. One between two incarnations is answered by the join of the next.
func (r *root) rejoinWanted(ctx actor.Context, m *rejoinWanted) {
	pid := r.Lookup(groupKey)
	if pid == nil {
		m.reply(nil)
		return
	}
	r.asked = append(slices.DeleteFunc(r.asked, func(m *rejoinWanted) bool { return m.answered.Load() }), m)
	ctx.Send(pid, m)
}

// answerAsked answers for a group that failed: the next one joins anew.
func (r *root) answerAsked() {
	for _, m := range r.asked {
		m.reply(nil)
	}
	r.asked = nil
}

func (g *group) rejoinWanted(ctx actor.Context, m *rejoinWanted) {
	switch state := g.member.State(); {
	case g.closing || state == rebalance.StateFatal:
		m.reply(ErrClosing)
		return
	case state != rebalance.StateUnjoined: // else it joins anyway
		g.feed(ctx, rebalance.Rejoin{Cause: m.reason})
	}
	m.reply(nil)
}
