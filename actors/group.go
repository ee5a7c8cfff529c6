package actors

import (
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// Keys of the group's children; partitions and fetchers have keys of their own kind.
const (
	heartbeatKey = "heartbeat"
	committerKey = "committer"
	inquirerKey  = "inquirer"
)

// group is the member: it runs the membership and link machines, mints the key, and coordinates a rebalance. What it
// decides itself is only whom to tell. Without a group it runs what stands in for the membership, and no link.
type group struct {
	*supervisor.Supervisor
	shared *shared
	self   *actor.PID
	parent *actor.PID

	member      membership
	memberAlarm alarm
	inputs      []rebalance.Input
	stepping    bool
	held        bool
	memberID    string
	generation  kafka.Generation
	// joined is that of a later generation whose JoinGroup was answered and that is not entered; nil when there is none.
	joined *generationJoined

	link      *rebalance.Link
	linkAlarm alarm
	needs     map[uint64]need
	nextNeed  uint64
	broker    kafka.Broker
	stable    bool

	join      MembershipClient
	joinWork  *worker
	metadata  *metadataView
	parts     map[kafka.TopicPartition]*part
	fetchers  map[int32]kafka.Broker
	loan      *loan
	desk      *desk
	starts    startQueue
	callbacks callbacks
	// inquiries are those that the inquirer has, or gets when it is back.
	inquiries []*inquiry

	// leaveSeq is the LeaveGroup that is asked for; praised is when the children were last told that they do well.
	leaveSeq uint64
	// syncSent is when the last SyncGroup was sent: the session of its generation counts from there.
	syncSent     time.Time
	praised      time.Time
	releaseAlarm alarm
	workAlarm    alarm // see group_giveup.go
	closing      bool
	finishing    bool
	err          error
	report       closeReport

	// absent are partitions assigned without a group that their topic does not have.
	absent []kafka.TopicPartition
	// subscription is what the member asks for, in order. unasked is true while patterns wait for the first look at the cluster,
	// and the member for them.
	subscription []string
	unasked      bool
}

// need is work that waits for the coordinator.
type need struct {
	ready   func(kafka.Broker)
	expired func(error)
}

func newGroup(s *shared) *group {
	return &group{
		Supervisor: supervisor.New(s.settings.Seed), shared: s, generation: kafka.NoGeneration,
		needs: make(map[uint64]need), parts: make(map[kafka.TopicPartition]*part), fetchers: make(map[int32]kafka.Broker),
	}
}

// Receive implements actor.Actor.
func (g *group) Receive(ctx actor.Context) {
	outcomes, handled := g.Supervisor.Receive(ctx)
	for _, o := range outcomes {
		g.outcome(ctx, o)
	}
	if !handled {
		g.receive(ctx, ctx.Message())
	}
}

func (g *group) receive(ctx actor.Context, message any) {
	switch m := message.(type) {
	case *actor.Started:
		g.start(ctx)
	case *actor.Stopping:
		g.stop()
	case *workDone:
		g.receive(ctx, m.worker.finished(m))
	case *alarmRang:
		g.alarmRang(ctx, m)
	case *shutdown:
		g.closing = true
		g.feed(ctx, rebalance.Leave{DrainUntil: m.drainUntil, Deadline: m.deadline})
	case *consumerFailed:
		g.closeByItself(ctx, m.err)
	case *heartbeatAnswered:
		g.feed(ctx, rebalance.HeartbeatAnswered{Generation: m.generation, Err: m.err})
	case *sessionLapsed:
		g.feed(ctx, rebalance.SessionExpired{Generation: m.generation})
	case *membershipDoubted:
		g.feed(ctx, rebalance.CommitFenced{Generation: m.generation, Err: m.err})
	case *leaveAnswered:
		g.feed(ctx, rebalance.LeaveAnswered{Seq: m.seq, Err: m.err})
	case *joinAnswered:
		g.doubtCoordinator(ctx, m.broker, m.answer.Err)
		g.feed(ctx, m.answer)
	case *syncAnswered:
		g.doubtCoordinator(ctx, m.broker, m.answer.Err)
		g.feed(ctx, m.answer)
	default:
		g.receiveMore(ctx, message)
	}
}

// receiveMore is the second half of receive: the coordinator, metadata, partitions, and the key.
func (g *group) receiveMore(ctx actor.Context, message any) {
	switch m := message.(type) {
	case *coordinatorAnswered:
		g.coordinatorAnswered(ctx, m)
	case *coordinatorDoubted:
		g.coordinatorDoubted(ctx, m)
	case *metadataAnswered:
		g.metadataAnswered(ctx, m)
	case *brokerDoubted:
		g.brokerDoubted(ctx, m.broker)
	case *leaderDoubted:
		g.leaderDoubted(ctx, m)
	case *replicaPreferred:
		g.replicaPreferred(ctx, m)
	case *offsetsFetched:
		g.offsetsFetched(ctx, m)
	case *positionsAnswered:
		g.positionsAnswered(ctx, m)
	case *partitionReleased:
		g.partitionReleased(ctx, m)
	case *rangeRead:
		g.rangeRead(ctx, m)
	case *givenUpReturned:
		g.comeBack(ctx)
	case *callbackDone:
		g.callbackDone(ctx, m)
	case *keyReturned:
		g.keyReturned(ctx, m)
	case *request:
		g.called(ctx, m)
	case *tokenLeft:
		delete(g.desk.asked, m.id)
		g.stepDesk(ctx, capability.Ended{ID: m.id, Cause: m.cause})
	case *tokenHanded:
		g.tokenHanded(ctx, m)
	case *actor.Terminated:
		g.receiverEnded(m)
	}
}

// newMember returns the member of this incarnation of the group actor.
func (g *group) newMember() *rebalance.Member {
	s := g.shared.settings
	memberID, lastEpoch := g.shared.board.identity()
	member, err := rebalance.NewMember(rebalance.MemberConfig{
		MemberID: memberID, LastEpoch: lastEpoch,
		GroupID: s.GroupID, GroupInstanceID: s.GroupInstanceID, Topics: g.firstTopics(), Assignors: s.Assignors, Rack: s.Rack,
		SessionTimeout: s.SessionTimeout, RebalanceTimeout: s.RebalanceTimeout, HeartbeatInterval: s.HeartbeatInterval,
		DrainTimeout: s.DrainTimeout, BackoffInitial: s.Backoff.Initial, BackoffMax: s.Backoff.Max, Seed: s.Seed,
	})
	if err != nil {
		panic(err)
	}
	return member
}

func (g *group) start(ctx actor.Context) {
	s := g.shared.settings
	g.self, g.parent = ctx.Self(), ctx.Parent()
	g.member = g.newMembership()
	g.shared.board.subscribed(g.subscription)
	var err error
	// A coordinator that moves while the session runs is sought at least as often as heartbeats are due.
	g.link, err = rebalance.NewLink(rebalance.LinkConfig{
		BackoffInitial: s.Backoff.Initial, BackoffMax: s.Backoff.Max, SeekAtLeast: s.HeartbeatInterval, Seed: s.Seed,
	})
	if err != nil {
		panic(err)
	}
	g.join = g.shared.network.Membership()
	g.joinWork = newWorker(g.shared.sys, g.self, &g.shared.workers)
	g.metadata = newMetadataView(g.shared, g.self)
	g.loan, g.desk = newLoan(), newDesk()
	g.spawnChild(ctx, committerKey, func() actor.Actor { return newCommitter(g.shared) })
	g.spawnChild(ctx, inquirerKey, func() actor.Actor { return newInquirer(g.shared) })
	if g.shared.standalone == nil { // else there is no coordinator
		g.spawnChild(ctx, heartbeatKey, func() actor.Actor { return newHeartbeat(g.shared) })
		g.feedLink(ctx, rebalance.LinkStart{})
	}
	g.metadata.refresh(g.watched())
	g.adopt(ctx)
	g.firstJoin(ctx)
}

// spawnChild starts one of the tree's own actors. When its budget is spent the group fails, and root decides.
func (g *group) spawnChild(ctx actor.Context, key string, producer func() actor.Actor) {
	policy := g.shared.settings.TreeRestart
	policy.OnSpent = supervisor.StopAll
	g.spawnWith(ctx, key, policy, producer)
}

func (g *group) spawnWith(ctx actor.Context, key string, policy supervisor.Policy, producer func() actor.Actor) *actor.PID {
	pid, err := g.Start(ctx, supervisor.ChildSpec{
		Key: key, Role: key, Policy: policy,
		Spawn: func(ctx actor.Context) *actor.PID { return g.shared.sys.spawnChild(ctx, key, producer) },
	})
	if err != nil {
		panic(fmt.Errorf("spawn %s: %w", key, err))
	}
	return pid
}

func (g *group) stop() {
	for _, a := range []*alarm{&g.memberAlarm, &g.linkAlarm, &g.releaseAlarm, &g.workAlarm} {
		a.stop()
	}
	g.starts.hook.stop()
	g.orphaned()
	g.stopCallbacks()
	g.closeDesk()
	g.joinWork.stop()
	g.join.Close()
	g.metadata.stop()
}

func (g *group) alarmRang(ctx actor.Context, m *alarmRang) {
	switch {
	case g.memberAlarm.rang(m):
		g.feed(ctx, rebalance.Tick{})
	case g.linkAlarm.rang(m):
		g.feedLink(ctx, rebalance.LinkTick{})
	case g.metadata.alarm.rang(m):
		g.metadata.refresh(g.watched())
	case g.releaseAlarm.rang(m):
		g.releaseOverdue(ctx)
	case g.workAlarm.rang(m):
		g.lookForOverdue(ctx)
	case g.desk.alarm.rang(m):
		g.stepDesk(ctx, capability.DeskTick{})
	case g.starts.hook.alarm.rang(m):
		g.positionsAlarm()
	}
}

// feed steps the member and runs what it says. Inputs that come up meanwhile wait their turn.
func (g *group) feed(ctx actor.Context, in rebalance.Input) {
	g.inputs = append(g.inputs, in)
	if g.stepping {
		return
	}
	g.stepping = true
	for len(g.inputs) > 0 {
		in := g.inputs[0]
		g.inputs = g.inputs[1:]
		effects, err := g.member.Step(time.Now(), in)
		if err != nil {
			g.refused(fmt.Errorf("member: %T: %w", in, err))
		}
		for _, effect := range effects {
			g.run(ctx, effect)
		}
	}
	g.stepping = false
	at, ok := g.member.Deadline()
	g.memberAlarm.setAt(g.shared.sys, g.self, at, ok)
}

// run carries out one effect of the member.
func (g *group) run(ctx actor.Context, effect rebalance.Effect) {
	switch e := effect.(type) {
	case rebalance.SendJoin:
		g.sendJoin(ctx, e)
	case rebalance.SendSync:
		g.sendSync(ctx, e)
	case rebalance.SendLeave:
		g.sendLeave(ctx, e)
	case rebalance.QueryTopics:
		g.metadata.query(e.Seq, e.Topics, g.watched())
	case rebalance.HoldCommits:
		g.held = true
		g.tell(ctx, committerKey, &commitsHeld{})
	case rebalance.ResumeCommits:
		g.held = false
		g.tell(ctx, committerKey, &generationEntered{generation: e.Generation, memberID: e.MemberID, since: g.syncSent})
	case rebalance.EnterGeneration:
		g.enterGeneration(ctx, e)
	case rebalance.JoinGeneration:
		g.joinGeneration(ctx, e)
	case rebalance.LeaveGeneration:
		g.leaveGeneration(ctx, e)
	case rebalance.AssignPartitions:
		g.shared.board.granted(g.member.LastEpoch())
		g.assign(ctx, e)
	case rebalance.MissPartitions:
		g.missPartitions(e)
	case rebalance.RangesRead:
		g.allRead(ctx)
	case rebalance.RangeGone:
		g.closeByItself(ctx, e.Err)
	case rebalance.RevokePartitions:
		g.revoke(ctx, e)
	case rebalance.LosePartitions:
		g.lose(ctx, e)
	case rebalance.Left:
		g.finish(ctx, e.Err)
	case rebalance.GaveUp:
		g.gaveUp(ctx, e.Err)
	case rebalance.Failed:
		err := g.explain(e.Err)
		g.shared.board.troubled(err)
		g.shared.logger.Error("the group refuses this member for good", zap.Error(err))
		g.finish(ctx, err)
	case rebalance.Refused:
		g.refusedByMember(e.Err)
	case rebalance.Moved:
		g.moved(e)
	}
}

// explain adds the setting behind a refusal.
func (g *group) explain(err error) error {
	s := &g.shared.settings
	switch {
	case errors.Is(err, kafka.InvalidSessionTimeout):
		return fmt.Errorf("SessionTimeout %v is outside of the brokers' group.min.session.timeout.ms and group.max.session.timeout.ms: %w",
			s.SessionTimeout, err)
	case errors.Is(err, kafka.FencedInstanceID):
		return fmt.Errorf("GroupInstanceID %q is used by another member of group %q: %w", s.GroupInstanceID, s.GroupID, err)
	}
	return err
}

func (g *group) moved(e rebalance.Moved) {
	g.shared.board.moved(e.To, e.Generation, e.MemberID)
	g.freshen(e.To)
	g.shared.observe(event.MemberMoved{
		Member: event.Member{GroupID: g.shared.settings.GroupID, MemberID: e.MemberID, Generation: e.Generation},
		From:   e.From.String(), To: e.To.String(), Cause: e.Cause, Err: e.Err,
	})
	g.shared.logger.Info("member moved", zap.Stringer("from", e.From), zap.Stringer("to", e.To), zap.String("cause", e.Cause),
		zap.Int32("generation", int32(e.Generation)), zap.String("member_id", e.MemberID))
}

// refusedByMember tells of attempts that failed and are made again, and of what was not followed.
func (g *group) refusedByMember(err error) {
	attempt, ok := errors.AsType[*rebalance.AttemptError](err)
	if !ok {
		g.refused(err)
		return
	}
	if code, coded := errors.AsType[kafka.ErrorCode](err); coded && passing(code) {
		return
	}
	explained := g.explain(attempt.Err)
	g.shared.board.attempted(g.explain(err))
	g.shared.trouble(attempt.Op, explained, time.Until(attempt.RetryAt))
}

func (g *group) refused(err error) {
	g.shared.observe(event.Refused{Member: g.shared.member(), Err: err})
	g.shared.logger.Warn("refused", zap.Error(err))
}

// tell sends to a child of the group, if it is alive; one that is respawned is told everything anew.
func (g *group) tell(ctx actor.Context, key string, message any) {
	if pid := g.Lookup(key); pid != nil {
		ctx.Send(pid, message)
	}
}

// closeByItself ends the whole consumer, in order: drain, commit, leave. err is why, nil when it has done what it is for.
func (g *group) closeByItself(ctx actor.Context, err error) {
	if g.closing {
		return
	}
	g.closing, g.err = true, err
	now := time.Now()
	total := g.shared.settings.CloseTimeout
	g.feed(ctx, rebalance.Leave{DrainUntil: now.Add(total / 2), Deadline: now.Add(total)})
}

// finish stops the children and, when the last is gone, tells root.
func (g *group) finish(ctx actor.Context, err error) {
	if g.finishing {
		return
	}
	g.finishing = true
	if g.err == nil {
		g.err = err
	}
	g.Stopping()
	for _, key := range g.Keys() {
		g.Stop(ctx, key)
	}
	g.finished(ctx)
}

func (g *group) finished(ctx actor.Context) {
	if g.finishing && len(g.Keys()) == 0 {
		ctx.Send(g.parent, &groupEnded{err: g.err, report: g.report})
	}
}

// outcome reacts to what happened to a child.
func (g *group) outcome(ctx actor.Context, o supervisor.Outcome) {
	switch o := o.(type) {
	case supervisor.ChildFailed:
		g.shared.observe(event.ActorRestarted{Member: g.shared.member(), Actor: o.Role, Restarts: o.Decision.Restarts, Err: reasonError(o.Reason)})
		g.shared.logger.Error("actor failed", zap.String("actor", o.Role), zap.Error(reasonError(o.Reason)))
		g.childFailed(ctx, o)
	case supervisor.BudgetSpent:
		if o.Decision.Action == supervisor.Stop {
			panic(fmt.Errorf("%s: restart budget spent: %w", o.Role, reasonError(o.Reason)))
		}
	case supervisor.ChildRespawned:
		g.childRespawned(ctx, o)
	case supervisor.ChildStopped:
		g.childStopped(ctx, o.Key)
		g.finished(ctx)
	}
}

func (g *group) childFailed(ctx actor.Context, o supervisor.ChildFailed) {
	switch o.Key {
	case heartbeatKey:
		// Nobody kept the session alive meanwhile: that is as good as having lost it.
		g.feed(ctx, rebalance.SessionExpired{Generation: g.generation})
		g.feed(ctx, rebalance.LeaveAnswered{Seq: g.leaveSeq, Err: reasonError(o.Reason)})
	case committerKey:
		g.loan.broken()
	case inquirerKey:
		g.inquirerFailed()
	default:
		g.partitionFailed(ctx, o.Key)
	}
}

// childRespawned tells a new incarnation what the old one knew.
func (g *group) childRespawned(ctx actor.Context, o supervisor.ChildRespawned) {
	switch o.Key {
	case heartbeatKey, committerKey:
		ctx.Send(o.PID, &coordinatorKnown{broker: g.broker, stable: g.stable})
		if g.generation != kafka.NoGeneration {
			ctx.Send(o.PID, &generationEntered{generation: g.generation, memberID: g.memberID, since: g.syncSent})
		}
		if o.Key == heartbeatKey && g.joined != nil {
			ctx.Send(o.PID, g.joined)
		}
		if o.Key == committerKey {
			g.committerRespawned(ctx, o.PID)
		}
	case inquirerKey:
		for _, q := range g.inquiries {
			g.inquire(ctx, o.PID, q)
		}
	default:
		g.childBack(ctx, o.Key, o.PID)
	}
}
