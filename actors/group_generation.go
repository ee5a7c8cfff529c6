package actors

import (
	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// joinGeneration has heartbeats go on for a generation that was joined and is not entered yet.
func (g *group) joinGeneration(ctx actor.Context, e rebalance.JoinGeneration) {
	g.joined = &generationJoined{generation: e.Generation, memberID: e.MemberID}
	g.tell(ctx, heartbeatKey, g.joined)
}

func (g *group) enterGeneration(ctx actor.Context, e rebalance.EnterGeneration) {
	g.held, g.memberID, g.generation, g.joined = false, e.MemberID, e.Generation, nil
	g.shared.board.entered(e.Leader, g.syncSent)
	g.metadata.watch(e.Leader, e.Topics)
	entered := &generationEntered{generation: e.Generation, memberID: e.MemberID, since: g.syncSent, early: e.Early}
	g.tell(ctx, heartbeatKey, entered)
	g.tell(ctx, committerKey, entered)
	g.join.Close() // the next rebalance makes a connection of its own
	g.join = g.shared.network.Membership()
}

func (g *group) leaveGeneration(ctx actor.Context, e rebalance.LeaveGeneration) {
	g.held, g.generation, g.joined = false, kafka.NoGeneration, nil
	left := &generationLeft{cause: e.Cause}
	g.tell(ctx, heartbeatKey, left)
	g.tell(ctx, committerKey, left)
}
