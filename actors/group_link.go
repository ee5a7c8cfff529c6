package actors

import (
	"context"
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// withCoordinator runs work when the coordinator is known, or tells it that the time has passed.
func (g *group) withCoordinator(ctx actor.Context, limit time.Duration, n need) {
	g.nextNeed++
	g.needs[g.nextNeed] = n
	g.feedLink(ctx, rebalance.Need{ID: g.nextNeed, Deadline: time.Now().Add(limit)})
}

// forgetJoins takes back the requests of an earlier join that still wait for the coordinator: two at once would be two
// rebalances.
func (g *group) forgetJoins(ctx actor.Context) {
	for id := range g.needs {
		delete(g.needs, id)
		g.feedLink(ctx, rebalance.Cancel{ID: id})
	}
}

func (g *group) feedLink(ctx actor.Context, in rebalance.LinkInput) {
	effects, err := g.link.Step(time.Now(), in)
	if err != nil {
		g.refused(err)
	}
	at, ok := g.link.Deadline()
	g.linkAlarm.setAt(g.shared.sys, g.self, at, ok)
	for _, effect := range effects {
		g.runLink(ctx, effect)
	}
}

func (g *group) runLink(ctx actor.Context, effect rebalance.LinkEffect) {
	switch e := effect.(type) {
	case rebalance.Find:
		g.metadata.find(e.Seq)
	case rebalance.Ready:
		if n, ok := g.needs[e.ID]; ok {
			delete(g.needs, e.ID)
			n.ready(e.Broker)
		}
	case rebalance.Expired:
		if n, ok := g.needs[e.ID]; ok {
			delete(g.needs, e.ID)
			n.expired(e.Err)
		}
	case rebalance.LinkMoved:
		g.linkMoved(ctx, e)
	}
}

func (g *group) linkMoved(ctx actor.Context, e rebalance.LinkMoved) {
	stable := e.To == rebalance.LinkStable
	g.shared.board.linked(e.To)
	g.shared.observe(event.CoordinatorMoved{Member: g.shared.member(), From: e.From.String(), To: e.To.String(), Coordinator: e.Broker, Err: e.Err})
	g.shared.logger.Info("coordinator link moved", zap.Stringer("from", e.From), zap.Stringer("to", e.To), zap.String("coordinator", e.Broker.Addr))
	if stable == g.stable && e.Broker == g.broker {
		return
	}
	g.stable, g.broker = stable, e.Broker
	known := &coordinatorKnown{broker: e.Broker, stable: stable}
	g.tell(ctx, heartbeatKey, known)
	g.tell(ctx, committerKey, known)
}

func (g *group) coordinatorAnswered(ctx actor.Context, m *coordinatorAnswered) {
	if m.err != nil {
		if !errors.Is(m.err, context.Canceled) && !onTheWay(m.err) {
			g.shared.board.troubled(m.err)
		}
		g.feedLink(ctx, rebalance.NotFound{Seq: m.seq, Err: m.err})
		if at, planned := g.link.Deadline(); planned && !errors.Is(m.err, context.Canceled) {
			g.shared.trouble("coordinator", m.err, max(0, time.Until(at)))
		}
		return
	}
	g.feedLink(ctx, rebalance.Found{Seq: m.seq, Broker: m.broker})
}

// onTheWay reports codes that a healthy cluster gives while it starts or moves a coordinator: no reason to alarm anybody
// who waits to join.
func onTheWay(err error) bool {
	for _, code := range []kafka.ErrorCode{kafka.CoordinatorNotAvailable, kafka.NotCoordinator, kafka.CoordinatorLoadInProgress} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// doubtCoordinator has the link look again when an error says that the broker is not the coordinator, or cannot be
// reached.
func (g *group) doubtCoordinator(ctx actor.Context, broker kafka.Broker, err error) {
	if putsCoordinatorInDoubt(err) {
		g.feedLink(ctx, rebalance.Doubted{Coordinator: broker, Err: err})
	}
}

// putsCoordinatorInDoubt reports whether an error says that its sender is not the coordinator, or that it cannot be reached.
func putsCoordinatorInDoubt(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	_, coded := errors.AsType[kafka.ErrorCode](err)
	return !coded || errors.Is(err, kafka.NotCoordinator) || errors.Is(err, kafka.CoordinatorNotAvailable)
}

// coordinatorDoubted is what heartbeats and commits tell. Codes are for the machines; a broker that is silent is news.
func (g *group) coordinatorDoubted(ctx actor.Context, m *coordinatorDoubted) {
	if _, coded := errors.AsType[kafka.ErrorCode](m.err); !coded {
		g.shared.trouble("coordinator", m.err, g.shared.settings.Backoff.Initial)
	}
	g.doubtCoordinator(ctx, m.broker, m.err)
}

// passing reports codes that are an ordinary part of joining.
func passing(code kafka.ErrorCode) bool {
	switch code {
	case kafka.MemberIDRequired, kafka.UnknownMemberID, kafka.IllegalGeneration, kafka.RebalanceInProgress:
		return true
	default:
		return onTheWay(code)
	}
}

// sendLeave has the heartbeat say that the member leaves. While that actor is being replaced it is as if the coordinator could
// not be reached: nobody would answer, and the leave would last until its deadline.
func (g *group) sendLeave(ctx actor.Context, e rebalance.SendLeave) {
	g.leaveSeq = e.Seq
	if g.Lookup(heartbeatKey) == nil {
		g.feed(ctx, rebalance.LeaveAnswered{Seq: e.Seq, Err: errNoHeartbeat})
		return
	}
	g.tell(ctx, heartbeatKey, &leaveGroup{seq: e.Seq, request: e.Request})
}

// errNoHeartbeat is why a LeaveGroup was not sent.
var errNoHeartbeat = errors.New("troupe: the heartbeat actor is being replaced")
