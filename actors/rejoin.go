package actors

import (
	"context"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/rebalance"
)

// rejoinOperation asks for a rebalance.
type rejoinOperation struct{ reason string }

// Rejoin asks for a rebalance; see api.Consumer.Rejoin.
func (t *Tree) Rejoin(ctx context.Context, reason string) error {
	if t.shared.standalone != nil {
		return ErrNoGroup
	}
	return t.do(ctx, nil, &rejoinOperation{reason: reason})
}

func (o *rejoinOperation) word() string { return "rejoin" }

// interrupted: the next group joins anew.
func (o *rejoinOperation) interrupted() error { return nil }

func (o *rejoinOperation) run(ctx actor.Context, g *group, m *request) {
	switch {
	case g.ended():
		m.reply(ErrClosing)
		return
	case g.member.State() != rebalance.StateUnjoined: // else it joins anyway
		g.feed(ctx, rebalance.Rejoin{Cause: o.reason})
	}
	m.reply(nil)
}
