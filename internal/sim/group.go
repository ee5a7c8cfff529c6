package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// groupShell is actors/group*.go: it runs the member and link machines and tells everybody else.
type groupShell struct {
	w       *World
	process *process
	box     *mailbox

	member      *rebalance.Member
	memberAlarm alarm
	inputs      []rebalance.Input
	stepping    bool
	// before is the member's state before the present step, for the checker.
	before     rebalance.State
	memberID   string
	generation kafka.Generation

	link      *rebalance.Link
	linkAlarm alarm
	needs     map[uint64]need
	nextNeed  uint64
	broker    kafka.Broker
	stable    bool

	// joining is the JoinGroup or SyncGroup under way.
	joining *call
	// knownID is the member id the coordinator gave last, for the checker; retried says that the next JoinGroup is one.
	knownID string
	// joined is the generation joined last while another one was in force, for the checker.
	joined  kafka.Generation
	retried bool
	// asked is the JoinGroup or SyncGroup whose answer the member takes, 0 for none; for the checker.
	asked uint64
	// lost is what was lost last, and lostIn the generation of it; for a mutant.
	lost   []kafka.TopicPartition
	lostIn kafka.Generation
	// entering is the assignment that SyncGroup brought, for the checker.
	entering []byte
	// syncSent is when the last SyncGroup was sent.
	syncSent int64

	// parts has the present grant of each partition, leaving those on their way out.
	parts   []*grantView
	leaving []*grantView
	loan    loan
	starts  startQueue
	topic   topicView
	tokens  tokenDesk

	closing bool
	// leaveAnswered is for the checker.
	leaveAnswered bool
}

// need is work that waits for the coordinator.
type need struct {
	ready   func(broker int)
	expired func(error)
}

// grantView is one grant as the group sees it.
type grantView struct {
	part    int
	epoch   kafka.AssignmentEpoch
	shell   *partitionShell
	started bool
	// revoking from RevokePartitions on, lost from LosePartitions on, released at last.
	revoking, lost, released bool
	// topicID is the topic's incarnation as the partition was told.
	topicID kafka.TopicID
	// leaving is its revocation, while that waits for callbacks.
	leaving *leavingSet
}

func newGroupShell(p *process) *groupShell {
	w := p.w
	g := &groupShell{
		w: w, process: p, generation: kafka.NoGeneration, lostIn: kafka.NoGeneration, needs: map[uint64]need{}, parts: make([]*grantView, w.script.Partitions),
	}
	g.box = p.newBox(g)
	g.memberAlarm.box, g.linkAlarm.box, g.topic.alarm.box = g.box, g.box, g.box
	if !w.script.changing() {
		g.topic.known = w.topic
	}
	seed := w.rng.Uint64()
	member, err := rebalance.NewMember(rebalance.MemberConfig{
		GroupID: "group", GroupInstanceID: p.instance, Topics: []string{topic}, Assignors: offers[p.offer],
		SessionTimeout: w.script.Session, RebalanceTimeout: w.script.Rebalance, HeartbeatInterval: w.script.Heartbeat,
		DrainTimeout: w.script.Drain, BackoffInitial: backoffInitial, BackoffMax: backoffMax, Seed: seed,
	})
	if err != nil {
		panic(err)
	}
	g.member = member
	g.link, err = rebalance.NewLink(rebalance.LinkConfig{BackoffInitial: backoffInitial, BackoffMax: backoffMax, Seed: seed})
	if err != nil {
		panic(err)
	}
	g.loan = loan{mint: capability.NewMint(), want: make([]bool, w.script.Partitions), have: make([]bool, w.script.Partitions)}
	return g
}

const (
	backoffInitial = 100 * time.Millisecond
	backoffMax     = time.Second
)

func (g *groupShell) receive(m *message) {
	switch m.kind { //nolint:exhaustive // the other messages are not for this actor
	case messageRing:
		switch a := m.payload.(*alarm); {
		case g.w.rang(&g.memberAlarm, a):
			g.feed(rebalance.Tick{})
		case g.w.rang(&g.linkAlarm, a):
			g.feedLink(rebalance.LinkTick{})
		case g.w.rang(&g.topic.alarm, a):
			g.refreshTopic()
		case g.w.rang(&g.tokens.alarm, a):
			g.stepDesk(capability.DeskTick{})
		case g.w.rang(&g.tokens.callbackAlarm, a):
			g.callbackDone(g.tokens.queue[0].id, errCallbackOverdue)
		}
	case messageCallDone:
		g.answered(m.payload.(*call))
	case messageShutdown:
		g.closing = true
		g.feed(rebalance.Leave{DrainUntil: epochStart.Add(time.Duration(m.at)), Deadline: epochStart.Add(time.Duration(m.offset))})
	case messageRejoin:
		if s := g.member.State(); s != rebalance.StateUnjoined && s != rebalance.StateFatal {
			g.feed(rebalance.Rejoin{Cause: "asked for"})
		}
	case messageHeartbeatAnswered:
		fenced := g.told(m.err, kafka.Generation(m.gen))
		g.feed(rebalance.HeartbeatAnswered{Generation: kafka.Generation(m.gen), Err: g.heard(m.err)})
		g.w.check.fenced(g, fenced)
	case messageSessionLapsed:
		g.feed(rebalance.SessionExpired{Generation: kafka.Generation(m.gen)})
	case messageMembershipDoubted:
		fenced := g.told(m.err, kafka.Generation(m.gen))
		g.feed(rebalance.CommitFenced{Generation: kafka.Generation(m.gen), Err: g.heard(m.err)})
		g.w.check.fenced(g, fenced)
	case messageLeaveAnswered:
		g.leaveAnswered = m.err == nil // after a failure it is tried again
		g.feed(rebalance.LeaveAnswered{Seq: m.seq, Err: m.err})
	case messageCoordinatorDoubted:
		g.doubtCoordinator(int(m.seq), m.err)
	case messageOffsetsFetched:
		g.offsetsFetched(m)
	case messagePartitionReleased:
		g.partitionReleased(int(m.part), kafka.AssignmentEpoch(m.epoch))
	case messageLeaderDoubted:
		if g.view(int(m.part), kafka.AssignmentEpoch(m.epoch)) != nil {
			g.refreshSoon()
		}
	case messageTokenWanted:
		g.tokenWanted(m.payload.(*tokenUser))
	case messageTokenLeft:
		g.tokenLeft(m.seq, m.err)
	case messageOperation:
		g.operate(m.payload.(*operation))
	case messageCallbackDone:
		g.callbackDone(m.seq, nil)
	case messageKeyReturned:
		g.keyReturned(m.payload.(*capability.Key))
	default:
		g.w.unknownMessage(g, m)
	}
}

// told notes for the checker that the coordinator does not know the member id any more, and reports whether another process
// has taken the member's place.
func (g *groupShell) told(err error, gen kafka.Generation) (fenced bool) {
	if entered := g.member.Generation(); entered == kafka.NoGeneration || gen != entered && gen != g.joined {
		return false
	}
	fenced = errors.Is(err, kafka.FencedInstanceID)
	if fenced || errors.Is(err, kafka.UnknownMemberID) {
		g.knownID = ""
	}
	return fenced
}

// heard is what the member is told of an error; for a mutant.
func (g *groupShell) heard(err error) error {
	if g.w.mutant == MutantFencedAgain && errors.Is(err, kafka.FencedInstanceID) {
		return kafka.UnknownMemberID
	}
	return err
}

// answered takes the outcome of a call of the group's own.
func (g *groupShell) answered(c *call) {
	switch c.api { //nolint:exhaustive // the others are not the group's
	case apiFind:
		g.found(c)
		return
	case apiMetadata:
		g.metadataAnswered(c)
		return
	}
	if c != g.joining {
		return
	}
	g.joining = nil
	g.doubtCoordinator(c.broker, c.err)
	for range 1 + g.w.once() {
		if c.api == apiJoin {
			fenced := c.seq == g.asked && errors.Is(c.err, kafka.FencedInstanceID)
			g.noteJoin(c)
			g.feed(rebalance.JoinAnswered{Seq: c.seq, Response: c.joined, Err: g.heard(c.err)})
			g.w.check.fenced(g, fenced)
		} else {
			if c.seq == g.asked && (errors.Is(c.err, kafka.UnknownMemberID) || errors.Is(c.err, kafka.FencedInstanceID)) {
				g.knownID = ""
			}
			g.entering = c.synced.Assignment
			fenced := c.seq == g.asked && errors.Is(c.err, kafka.FencedInstanceID)
			g.feed(rebalance.SyncAnswered{Seq: c.seq, Response: c.synced, Err: g.heard(c.err)})
			g.w.check.fenced(g, fenced)
		}
		if g.process.ended {
			return
		}
	}
}

// noteJoin keeps the member id that the coordinator gave, for the checker.
func (g *groupShell) noteJoin(c *call) {
	if c.seq != g.asked {
		return
	}
	g.asked = 0
	switch {
	case c.err == nil, errors.Is(c.err, kafka.MemberIDRequired):
		g.knownID = c.joined.MemberID
	case errors.Is(c.err, kafka.UnknownMemberID), errors.Is(c.err, kafka.FencedInstanceID):
		g.knownID = ""
	default:
		g.retried = true
	}
}

// feed steps the member and runs what it says. Inputs that come up meanwhile wait their turn.
func (g *groupShell) feed(in rebalance.Input) {
	g.inputs = append(g.inputs, in)
	if g.stepping {
		return
	}
	g.stepping = true
	for len(g.inputs) > 0 {
		in := g.inputs[0]
		g.inputs = g.inputs[1:]
		g.before = g.member.State()
		effects, err := g.member.Step(g.process.now(), in)
		g.w.check.machine(err)
		g.w.check.machine(g.member.Valid())
		for _, effect := range effects {
			g.run(effect)
		}
	}
	g.stepping = false
	if g.process.ended {
		return
	}
	at, ok := g.member.Deadline()
	g.w.setAlarm(&g.memberAlarm, at, ok)
}

// run carries out one effect of the member.
func (g *groupShell) run(effect rebalance.Effect) {
	p := g.process
	switch e := effect.(type) {
	case rebalance.SendJoin:
		g.sendJoin(e)
	case rebalance.SendSync:
		g.asked = e.Seq
		g.withCoordinator(need{
			ready: func(broker int) {
				g.syncSent = g.process.at()
				g.joining = &call{api: apiSync, process: p, box: g.box, broker: broker, seq: e.Seq, sync: e.Request}
				g.w.send(g.joining, g.w.script.Rebalance+5*time.Second)
			},
			expired: func(err error) { g.feed(rebalance.SyncAnswered{Seq: e.Seq, Err: err}) },
		})
	case rebalance.SendLeave:
		g.leaveAnswered = false
		g.w.post(p.heartbeat.box, message{kind: messageLeaveGroup, payload: &call{
			api: apiLeave, process: p, seq: e.Seq, member: e.Request.MemberID, instance: e.Request.GroupInstanceID,
		}})
	case rebalance.QueryTopics:
		g.w.send(&call{api: apiMetadata, process: p, box: g.box, seq: e.Seq}, g.w.script.Request)
	case rebalance.HoldCommits:
		if g.w.mutant == MutantCommitsNotHeld {
			g.process.committer.held = true
			return
		}
		g.w.post(p.committer.box, message{kind: messageCommitsHeld})
	case rebalance.ResumeCommits:
		g.w.post(p.committer.box, message{kind: messageGenerationEntered, gen: int32(e.Generation), at: g.syncSent, payload: e.MemberID})
	case rebalance.EnterGeneration:
		g.memberID, g.generation = e.MemberID, e.Generation
		entered := message{kind: messageGenerationEntered, gen: int32(e.Generation), at: g.syncSent, payload: e.MemberID}
		if e.Early {
			entered.offset = 1
		}
		g.w.post(p.heartbeat.box, entered)
		g.w.post(p.committer.box, entered)
	case rebalance.JoinGeneration:
		g.joined = e.Generation
		if g.w.mutant != MutantOldHeartbeats {
			g.w.post(p.heartbeat.box, message{kind: messageGenerationJoined, gen: int32(e.Generation), payload: e.MemberID})
		}
	case rebalance.LeaveGeneration:
		g.generation = kafka.NoGeneration
		left := message{kind: messageGenerationLeft, err: e.Cause}
		g.w.post(p.heartbeat.box, left)
		g.w.post(p.committer.box, left)
	case rebalance.AssignPartitions:
		g.assign(e)
	case rebalance.RevokePartitions:
		g.w.check.revokes(g, e)
		g.revoke(e)
	case rebalance.LosePartitions:
		g.w.check.loses(g, e)
		g.lose(e)
	case rebalance.MissPartitions, rebalance.RangeGone, rebalance.RangesRead: // a consumer without a group
	case rebalance.Left:
		g.w.check.left(p, e.Err)
		p.finish()
	case rebalance.GaveUp: // no script asks for it
		g.feed(rebalance.Start{Reason: "back"})
	case rebalance.Failed:
		g.w.check.failed(p, e.Err)
		p.finish()
	case rebalance.Refused:
		g.w.check.refused(g, e.Err)
	case rebalance.Moved:
		g.w.stats.Moves++
		if e.To == rebalance.StateUnjoined && e.From != rebalance.StateLeaving {
			g.w.stats.Losses++
		}
		if e.To == rebalance.StateAssigned {
			g.retried = false
		}
		if e.To == rebalance.StateUnjoined {
			g.asked = 0
		}
	}
}

func (g *groupShell) sendJoin(e rebalance.SendJoin) {
	abandon(g.joining)
	g.joining, g.asked = nil, e.Seq
	for id := range g.needs { // two at once would be two rebalances
		delete(g.needs, id)
		g.feedLink(rebalance.Cancel{ID: id})
	}
	if g.w.mutant == MutantDropMemberID && g.retried {
		e.Request.MemberID = ""
	}
	if g.w.mutant == MutantStaleClaim {
		g.claimLost(&e.Request)
	}
	g.w.check.joining(g, e.Request.MemberID)
	g.w.check.claims(g, e.Request.Protocols)
	g.withCoordinator(need{
		ready: func(broker int) {
			g.joining = &call{api: apiJoin, process: g.process, box: g.box, broker: broker, seq: e.Seq, join: e.Request}
			g.w.send(g.joining, g.w.script.Rebalance+5*time.Second)
		},
		expired: func(err error) { g.feed(rebalance.JoinAnswered{Seq: e.Seq, Err: err}) },
	})
}

// withCoordinator runs work when the coordinator is known, or tells it that the time has passed.
func (g *groupShell) withCoordinator(n need) {
	g.nextNeed++
	g.needs[g.nextNeed] = n
	g.feedLink(rebalance.Need{ID: g.nextNeed, Deadline: g.process.now().Add(g.w.script.Rebalance)})
}

func (g *groupShell) feedLink(in rebalance.LinkInput) {
	effects, err := g.link.Step(g.process.now(), in)
	g.w.check.machine(err)
	g.w.check.machine(g.link.Valid())
	at, ok := g.link.Deadline()
	g.w.setAlarm(&g.linkAlarm, at, ok)
	for _, effect := range effects {
		switch e := effect.(type) {
		case rebalance.Find:
			g.w.send(&call{api: apiFind, process: g.process, box: g.box, seq: e.Seq}, g.w.script.Request)
		case rebalance.Ready:
			if n, ok := g.needs[e.ID]; ok {
				delete(g.needs, e.ID)
				n.ready(int(e.Broker.ID))
			}
		case rebalance.Expired:
			if n, ok := g.needs[e.ID]; ok {
				delete(g.needs, e.ID)
				n.expired(e.Err)
			}
		case rebalance.LinkMoved:
			g.linkMoved(e)
		}
	}
}

func (g *groupShell) linkMoved(e rebalance.LinkMoved) {
	stable := e.To == rebalance.LinkStable
	if stable == g.stable && e.Broker == g.broker {
		return
	}
	g.stable, g.broker = stable, e.Broker
	known := message{kind: messageCoordinatorKnown, seq: uint64(max(e.Broker.ID, 0))}
	if stable {
		known.offset = 1
	}
	g.w.post(g.process.heartbeat.box, known)
	g.w.post(g.process.committer.box, known)
}

func (g *groupShell) found(c *call) {
	for range 1 + g.w.once() {
		if c.err != nil {
			g.feedLink(rebalance.NotFound{Seq: c.seq, Err: c.err})
		} else {
			g.feedLink(rebalance.Found{Seq: c.seq, Broker: brokerOf(c.found)})
		}
	}
}

// doubtCoordinator has the link look again when an error says that the broker is not the coordinator, or cannot be reached.
func (g *groupShell) doubtCoordinator(broker int, err error) {
	if err == nil || g.w.mutant == MutantIgnoreDoubt {
		return
	}
	_, coded := errors.AsType[kafka.ErrorCode](err)
	if !coded || errors.Is(err, kafka.NotCoordinator) || errors.Is(err, kafka.CoordinatorNotAvailable) {
		g.feedLink(rebalance.Doubted{Coordinator: brokerOf(broker), Err: err})
	}
}

// view returns the grant of that epoch that was not released yet.
func (g *groupShell) view(part int, epoch kafka.AssignmentEpoch) *grantView {
	if v := g.parts[part]; v != nil && v.epoch == epoch {
		return v
	}
	if i := slices.IndexFunc(g.leaving, func(v *grantView) bool { return v.part == part && v.epoch == epoch }); i >= 0 {
		return g.leaving[i]
	}
	return nil
}
