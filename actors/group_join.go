package actors

import (
	"context"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func (g *group) sendJoin(ctx actor.Context, e rebalance.SendJoin) {
	g.joinWork.abort()
	g.forgetJoins(ctx)
	g.withCoordinator(ctx, g.shared.settings.RebalanceTimeout, need{
		ready: func(broker kafka.Broker) {
			client := g.join
			g.joinWork.do(func(c context.Context) any {
				response, err := client.Join(c, broker, e.Request)
				return &joinAnswered{broker: broker, answer: rebalance.JoinAnswered{Seq: e.Seq, Response: response, Err: err}}
			})
		},
		expired: func(err error) { g.feed(ctx, rebalance.JoinAnswered{Seq: e.Seq, Err: err}) },
	})
}

func (g *group) sendSync(ctx actor.Context, e rebalance.SendSync) {
	g.withCoordinator(ctx, g.shared.settings.RebalanceTimeout, need{
		ready: func(broker kafka.Broker) {
			client := g.join
			g.syncSent = time.Now()
			g.joinWork.do(func(c context.Context) any {
				response, err := client.Sync(c, broker, e.Request)
				return &syncAnswered{broker: broker, answer: rebalance.SyncAnswered{Seq: e.Seq, Response: response, Err: err}}
			})
		},
		expired: func(err error) { g.feed(ctx, rebalance.SyncAnswered{Seq: e.Seq, Err: err}) },
	})
}
