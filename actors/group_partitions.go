package actors

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// part is one granted partition as the group sees it.
type part struct {
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch
	key   string
	cell  *cell
	// registration handles it for as long as it is owned.
	registration *Registration
	phase        partPhase
	route        route
	// told is true when OnAssigning has returned: before that nothing starts. held is true until OnAssigned has returned: before
	// that nothing is delivered. leaving is the revocation that callbacks hold up.
	told    bool
	held    bool
	leaving *leaving
	// watch is what its handler works on; overdue is why it is given up, hurried whether its drain waits for nobody.
	watch   workWatch
	overdue *OverdueError
	hurried bool
}

// partPhase is how far the group is with a partition; the partition's own machine has the rest.
type partPhase uint8

const (
	// partStarting: the member waits to hear that its start is decided.
	partStarting partPhase = iota
	// partRestarting: the same after its actor died; the member knows it already.
	partRestarting
	partRunning
	partLeaving
)

// errReleaseOverdue means that a partition did not let go in time, which its own deadlines should have made impossible.
var errReleaseOverdue = errors.New("troupe: partition did not let go in time")

func (g *group) part(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) *part {
	p := g.parts[tp]
	if p == nil || p.epoch != epoch {
		g.shared.staleMessage()
		return nil
	}
	return p
}

func (g *group) partByKey(key string) *part {
	for _, p := range g.parts {
		if p.key == key {
			return p
		}
	}
	return nil
}

func partitionsOf(grants []rebalance.Grant) []kafka.TopicPartition {
	out := make([]kafka.TopicPartition, len(grants))
	for i, grant := range grants {
		out[i] = grant.TopicPartition
	}
	return out
}

// assign starts the partitions granted and asks where they are to begin.
func (g *group) assign(ctx actor.Context, e rebalance.AssignPartitions) {
	if len(e.Grants) > 0 {
		g.starts.asked = nil // an answer that is still under way may be older than another owner's last commit
		g.shared.observe(event.PartitionsAssigned{Member: g.shared.member(), Partitions: partitionsOf(e.Grants)})
	}
	handlers := g.shared.handlers.Load()
	for _, grant := range e.Grants {
		tp, epoch := grant.TopicPartition, grant.Epoch
		if lost := g.parts[tp]; lost != nil { // lost, and granted anew before it has let go
			g.release(ctx, lost, &partitionReleased{
				tp: tp, epoch: lost.epoch, committed: lost.cell.committed.Load(), pending: lost.cell.finished.Load(),
				uncommitted: int(lost.cell.inTransit.Load()), err: rebalance.ErrLost,
			})
		}
		entry := handlers.entry(tp.Topic)
		p := &part{
			tp: tp, epoch: epoch, key: fmt.Sprintf("partition-%s-%d", tp, epoch), cell: newCell(tp, epoch), route: noRoute,
			registration: entry.registration,
		}
		g.parts[tp] = p
		g.shared.board.add(p.cell)
		g.loan.want[tp] = struct{}{}
		policy := g.shared.settings.TreeRestart
		policy.OnSpent = supervisor.PauseAndProbe
		config := partitionConfig{tp: tp, epoch: epoch, cell: p.cell, registration: entry.registration, pool: entry.pool, group: g.self}
		pid := g.spawnWith(ctx, p.key, policy, func() actor.Actor { return newPartition(g.shared, config) })
		g.introduce(ctx, p, pid, partStarting)
	}
	if g.leaderMissing() {
		g.refreshSoon()
	}
	g.settleLoan(ctx)
	g.stepDesk(ctx, capability.Owned{Partitions: partitionsOf(e.Grants)})
	g.assigningCallback(ctx, e.Grants)
}

// introduce tells a new partition actor what it needs to begin.
func (g *group) introduce(ctx actor.Context, p *part, pid *actor.PID, phase partPhase) {
	p.phase, p.route = phase, noRoute
	if committer := g.Lookup(committerKey); committer != nil {
		ctx.Send(pid, &committerKnown{epoch: p.epoch, pid: committer})
	}
	g.route(ctx, p)
	switch {
	case p.told:
		g.decideStart(ctx, p)
	case p.cell.sought.Load() != nil:
		g.beginSought(ctx, p)
	}
}

// partitionFailed is called when a partition or fetcher actor died.
func (g *group) partitionFailed(ctx actor.Context, key string) {
	p := g.partByKey(key)
	if p == nil {
		return
	}
	g.shared.memory.drop(partitionHolder(p.tp, p.epoch))
	g.unroute(ctx, p)
	if p.phase == partLeaving {
		g.release(ctx, p, &partitionReleased{
			tp: p.tp, epoch: p.epoch, committed: p.cell.committed.Load(), pending: p.cell.finished.Load(),
			uncommitted: int(p.cell.inTransit.Load()), err: fmt.Errorf("partition actor failed while letting go: %w", supervisor.ErrStoppedUnexpectedly),
		})
		return
	}
	g.starts.remove(p.tp)
	p.cell.condition.Store(int32(conditionBackingOff))
}

// childBack is called when a partition or fetcher actor was respawned.
func (g *group) childBack(ctx actor.Context, key string, pid *actor.PID) {
	if p := g.partByKey(key); p != nil {
		phase := partRestarting
		if p.phase == partStarting {
			phase = partStarting
		}
		g.introduce(ctx, p, pid, phase)
		g.requestStarts(ctx)
		return
	}
	for _, p := range g.parts { // a fetcher: it has to be told its partitions, and they have to ask again
		if fetcherKey(p.route.broker) == key {
			p.route.broker = -1
		}
		g.route(ctx, p)
	}
}

func (g *group) childStopped(ctx actor.Context, key string) {
	for id := range g.fetchers {
		if fetcherKey(id) == key {
			delete(g.fetchers, id)
			for _, p := range g.parts {
				g.route(ctx, p)
			}
			return // route may have put a new fetcher of this broker into the map that is ranged over
		}
	}
}

// committerRespawned gives a new committer what the old one had: the open partitions, the key, and the question for
// offsets.
func (g *group) committerRespawned(ctx actor.Context, pid *actor.PID) {
	if g.held {
		ctx.Send(pid, &commitsHeld{})
	}
	for _, p := range g.parts {
		if p.phase != partStarting {
			ctx.Send(pid, &partitionOpened{tp: p.tp, epoch: p.epoch, committed: p.cell.committed.Load(), cell: p.cell})
		}
		if partition := g.Lookup(p.key); partition != nil {
			ctx.Send(partition, &committerKnown{epoch: p.epoch, pid: pid})
		}
	}
	g.settleLoan(ctx)
	g.starts.asked = nil // the old committer took the question with it
	g.requestStarts(ctx)
}

// revoke begins REVOKING: each partition drains, commits and lets go by itself.
func (g *group) revoke(ctx actor.Context, e rebalance.RevokePartitions) {
	g.shared.observe(event.PartitionsRevoked{Member: g.shared.member(), Partitions: partitionsOf(e.Grants), Closing: e.Closing})
	g.stepDesk(ctx, capability.Gone{Partitions: partitionsOf(e.Grants)})
	g.revokingCallback(ctx, e.Grants, e.DrainUntil, e.Deadline)
	for _, grant := range e.Grants {
		p := g.part(grant.TopicPartition, grant.Epoch)
		if p == nil {
			continue
		}
		p.phase = partLeaving
		g.starts.remove(p.tp)
		pid := g.Lookup(p.key)
		if pid == nil { // between two incarnations: it owns nothing
			g.release(ctx, p, &partitionReleased{tp: p.tp, epoch: p.epoch, committed: p.cell.committed.Load(), pending: p.cell.finished.Load()})
			continue
		}
		consulted := p.leaving != nil && p.leaving.revoking
		ctx.Send(pid, &drainWanted{epoch: p.epoch, drainUntil: e.DrainUntil, deadline: e.Deadline, closing: e.Closing, consulted: consulted})
	}
	g.releaseAlarm.setAt(g.shared.sys, g.self, e.Deadline.Add(time.Second), true)
}

// lose fences partitions at once: the key dies first, so that not even a round that is being built goes out.
func (g *group) lose(ctx actor.Context, e rebalance.LosePartitions) {
	lost := partitionsOf(e.Grants)
	g.shared.observe(event.PartitionsLost{Member: g.shared.member(), Partitions: lost, Err: e.Cause})
	g.stepDesk(ctx, capability.Gone{Partitions: lost})
	g.lostCallback(ctx, e.Grants)
	g.cutOff(ctx, lost)
	for _, grant := range e.Grants {
		p := g.part(grant.TopicPartition, grant.Epoch)
		if p == nil {
			continue // drained: lostCallback sees to it
		}
		p.phase = partLeaving
		p.cell.lose()
		g.lostWhileLeaving(ctx, p)
		g.starts.remove(p.tp)
		g.tell(ctx, committerKey, &partitionFenced{tp: p.tp, epoch: p.epoch})
		pid := g.Lookup(p.key)
		if pid == nil {
			g.release(ctx, p, &partitionReleased{tp: p.tp, epoch: p.epoch, committed: p.cell.committed.Load(), pending: p.cell.finished.Load(), err: e.Cause})
			continue
		}
		ctx.Send(pid, &ownershipLost{epoch: p.epoch, cause: e.Cause})
	}
	g.releaseAlarm.setAt(g.shared.sys, g.self, time.Now().Add(g.shared.settings.SessionTimeout), true)
}

// releaseOverdue lets go of partitions that did not do so themselves: no rebalance may wait for one for ever.
func (g *group) releaseOverdue(ctx actor.Context) {
	for _, p := range g.parts {
		if p.phase == partLeaving {
			g.release(ctx, p, &partitionReleased{
				tp: p.tp, epoch: p.epoch, committed: p.cell.committed.Load(), pending: p.cell.finished.Load(),
				uncommitted: int(p.cell.inTransit.Load()), err: errReleaseOverdue,
			})
		}
	}
}

func (g *group) partitionReleased(ctx actor.Context, m *partitionReleased) {
	if p := g.part(m.tp, m.epoch); p != nil {
		g.release(ctx, p, m)
	}
}

// release ends a partition's epoch: fenced at the committer, unread, its actor stopped, the member told.
func (g *group) release(ctx actor.Context, p *part, m *partitionReleased) {
	delete(g.parts, p.tp)
	delete(g.loan.want, p.tp)
	g.starts.remove(p.tp)
	g.tell(ctx, committerKey, &partitionFenced{tp: p.tp, epoch: p.epoch})
	g.settleLoan(ctx)
	g.unroute(ctx, p)
	g.awaitGivenUp(p)
	g.Stop(ctx, p.key)
	g.shared.memory.drop(partitionHolder(p.tp, p.epoch))
	g.shared.board.remove(p.tp, p.epoch)
	if _, subscribed := slices.BinarySearch(g.subscription, p.tp.Topic); !subscribed {
		g.forgetTopics([]string{p.tp.Topic})
	}
	g.shared.observe(event.PartitionReleased{
		Member: g.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, Committed: m.committed, Uncommitted: m.uncommitted, Err: m.err,
	})
	g.shared.logger.Info("partition released", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Uint64("epoch", uint64(p.epoch)), zap.Int64("committed", m.committed), zap.Int("uncommitted", m.uncommitted), zap.Error(m.err))
	if g.closing && m.pending > m.committed && !commit.IsManual(g.shared.settings.Strategy) {
		g.report.uncommitted = append(g.report.uncommitted,
			UncommittedPartition{TopicPartition: p.tp, Committed: m.committed, Pending: m.pending, Err: m.err})
	}
	g.drained(ctx, p)
}
