package actors

import (
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
)

// route is where a partition is read.
type route struct {
	broker      int32
	leaderEpoch int32
	topicID     kafka.TopicID
	// replica is the preferred replica read instead of the leader until replicaUntil; -1 for none (KIP-392).
	replica      int32
	replicaUntil time.Time
	// follower is true while broker is a replica and not the leader.
	follower bool
}

var noRoute = route{broker: -1, leaderEpoch: kafka.NoLeaderEpoch, replica: -1}

func fetcherKey(broker int32) string { return fmt.Sprintf("fetcher-%d", broker) }

// route sends a partition to the fetcher of its leader, or preferred replica, when that changed.
func (g *group) route(ctx actor.Context, p *part) {
	pid := g.Lookup(p.key)
	if pid == nil || p.phase == partLeaving || g.finishing {
		return
	}
	meta, broker, ok := g.metadata.leader(p.tp)
	target := p.route
	target.broker, target.leaderEpoch, target.follower = -1, meta.LeaderEpoch, false
	if ok {
		target.broker = broker.ID
	}
	if t := g.metadata.topics[p.tp.Topic]; t != nil {
		target.topicID = t.ID
	}
	if p.route.replica >= 0 {
		replica, known := g.metadata.brokers[p.route.replica]
		if known && time.Now().Before(p.route.replicaUntil) {
			broker, target.broker, ok = replica, replica.ID, true
			target.follower = replica.ID != meta.Leader
		} else {
			target.replica = -1
		}
	}
	var fetcher *actor.PID
	if ok {
		fetcher = g.fetcher(ctx, broker)
	}
	if fetcher == nil {
		target.broker = -1 // routed when the leader is known, or the fetcher is back
	}
	if target == p.route {
		return
	}
	if target.broker != p.route.broker {
		g.unroute(ctx, p)
	}
	p.route = target
	if fetcher != nil {
		ctx.Send(fetcher, &partitionRouted{tp: p.tp, epoch: p.epoch, pid: pid})
	}
	ctx.Send(pid, &leaderKnown{
		epoch: p.epoch, fetcher: fetcher, broker: broker, leaderEpoch: target.leaderEpoch, topicID: target.topicID, follower: target.follower,
	})
}

func (g *group) unroute(ctx actor.Context, p *part) {
	if p.route.broker >= 0 {
		g.tell(ctx, fetcherKey(p.route.broker), &partitionUnrouted{tp: p.tp, epoch: p.epoch})
		p.route.broker = -1
	}
}

// fetcher returns a broker's fetcher, starts it when there is none, and tells it the broker's address when that is new. It
// returns nil while the fetcher is being replaced or stops.
func (g *group) fetcher(ctx actor.Context, broker kafka.Broker) *actor.PID {
	key := fetcherKey(broker.ID)
	known, there := g.fetchers[broker.ID]
	g.fetchers[broker.ID] = broker
	if !there {
		g.spawnChild(ctx, key, func() actor.Actor { return newFetcher(g.shared, g.fetchers[broker.ID], g.self) })
	} else if known != broker {
		g.tell(ctx, key, &brokerMoved{broker: broker})
	}
	return g.Lookup(key)
}

// stopIdleFetchers ends the connections to brokers that nothing is read from.
func (g *group) stopIdleFetchers(ctx actor.Context) {
	used := make(map[int32]bool, len(g.fetchers))
	for _, p := range g.parts {
		used[p.route.broker] = true
		if _, broker, ok := g.metadata.leader(p.tp); ok {
			used[broker.ID] = true // also while its fetcher is between two incarnations and nobody is routed there
		}
	}
	for id := range g.fetchers {
		if !used[id] && !g.Stop(ctx, fetcherKey(id)) {
			delete(g.fetchers, id)
		}
	}
}

// brokerDoubted sends what is read from a replica there back to the leader, and has the metadata refreshed.
func (g *group) brokerDoubted(ctx actor.Context, broker kafka.Broker) {
	for _, p := range g.parts {
		if p.route.replica == broker.ID {
			p.route.replica = -1
			g.route(ctx, p)
		}
	}
	// Else the question who leads now might wait at the very broker that hangs.
	g.metadata.client.Avoid(broker)
	g.refreshSoon()
}

// leaderDoubted takes over a newer leader that a broker named, and has the metadata refreshed.
func (g *group) leaderDoubted(ctx actor.Context, m *leaderDoubted) {
	p := g.part(m.tp, m.epoch)
	if p == nil {
		return
	}
	p.route.replica = -1
	if t := g.metadata.topics[m.tp.Topic]; m.leader != nil && t != nil && int(m.tp.Partition) < len(t.Partitions) {
		meta := &t.Partitions[m.tp.Partition]
		if _, reachable := g.metadata.brokers[m.leader.BrokerID]; reachable && m.leader.LeaderEpoch > meta.LeaderEpoch {
			meta.Leader, meta.LeaderEpoch, meta.Err = m.leader.BrokerID, m.leader.LeaderEpoch, nil
			g.route(ctx, p)
			return
		}
	}
	g.refreshSoon()
}

// replicaPreferred reads from a replica for as long as metadata is good for, or goes back to the leader.
func (g *group) replicaPreferred(ctx actor.Context, m *replicaPreferred) {
	p := g.part(m.tp, m.epoch)
	if p == nil {
		return
	}
	p.route.replica, p.route.replicaUntil = m.broker, time.Now().Add(g.shared.settings.MetadataMaxAge)
	if _, known := g.metadata.brokers[m.broker]; m.broker >= 0 && !known {
		g.refreshSoon()
		return
	}
	g.unroute(ctx, p) // also when it is the replica read already: the partition waits for an answer
	g.route(ctx, p)
}
