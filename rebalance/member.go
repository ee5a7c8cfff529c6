package rebalance

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// MemberConfig is what a [Member] needs to know. NewMember checks it.
type MemberConfig struct {
	// GroupID is the consumer group (group.id). Required.
	GroupID string
	// GroupInstanceID makes the member a static one (group.instance.id), which does not leave the group when it stops.
	// Empty = dynamic.
	GroupInstanceID string
	// Topics are the topics to consume. None is legal. Nil = not known yet: the member joins after [SubscriptionChanged].
	Topics []string
	// Assignors are offered to the group, preferred first (partition.assignment.strategy). At least one. As long as any of
	// them is eager the member gives everything up before it joins again, as the Java client does: the group may choose that
	// one.
	Assignors []Assignor
	// Rack is told to the group leader (client.rack). Empty = unknown.
	Rack string
	// SessionTimeout is how long the coordinator waits for a heartbeat (session.timeout.ms). Above HeartbeatInterval.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the coordinator waits for members to join again (Java: max.poll.interval.ms).
	RebalanceTimeout time.Duration
	// HeartbeatInterval is the time between heartbeats (heartbeat.interval.ms), and so how late a rebalance is noticed.
	HeartbeatInterval time.Duration
	// DrainTimeout is how long handlers may go on when their partitions are revoked. Below RebalanceTimeout less
	// HeartbeatInterval; the final commit gets three fifths of what remains between them, at most 3 s. Zero = no time.
	DrainTimeout time.Duration
	// BackoffInitial is the wait after the first failed try, doubled with each further one. Zero = 100 ms.
	BackoffInitial time.Duration
	// BackoffMax is the longest wait, used at once where only a change outside can help. Zero = 10 s.
	BackoffMax time.Duration
	// Seed is for jitter.
	Seed uint64
	// LastEpoch is the last assignment epoch used by an earlier member of the same consumer: epochs go on above it, so that
	// what an earlier member left behind is never taken for this one's. Zero = none.
	LastEpoch kafka.AssignmentEpoch
	// MemberID is the id an earlier member of the same consumer had: with it the group need not wait for that one's session
	// to end. Empty = none.
	MemberID string
}

// requestKind is a request that a member may have under way.
type requestKind uint8

const (
	requestNone requestKind = iota
	requestJoin
	requestTopics
	requestSync
	requestLeave
)

// request is the one thing the member waits for: the answer to seq, or, while seq is zero, the time to send it.
type request struct {
	kind requestKind
	seq  uint64
	at   time.Time
}

// leaving is where a member in LEAVING is. drainUntil and deadline are the caller's.
type leaving struct {
	drainUntil, deadline time.Time
	// tryUntil is until when LeaveGroup is tried again; zero before it has failed.
	tryUntil time.Time
	// err is what did not go well.
	err error
	// givingUp is true when the member comes back, keptID the id it comes back with.
	givingUp bool
	keptID   string
}

// Member is the membership of one consumer in its group. It is not safe for concurrent use.
//
// Invariants ([Member.Valid]): at most one request is under way, and only of the kind that belongs to the state; the member
// owns partitions only in ASSIGNING, ASSIGNED, REVOKING and LEAVING, and under the cooperative protocol also in JOINING and
// SYNCING; no partition is revoking while a JoinGroup is under way; a partition is owned under one epoch at most; a generation that was entered is left before the next UNJOINED.
type Member struct {
	config  MemberConfig
	state   State
	request request
	seq     uint64
	backoff backoff
	held    holdings
	epoch   kafka.AssignmentEpoch

	memberID string
	// generation is that of the last JoinGroup answered, entered that of the last EnterGeneration still in force. While there is
	// one, heartbeats are for generation.
	generation, entered kafka.Generation
	leaderID, protocol  string
	// previous is what the member was last given, in previousGeneration: what an eager member that has given everything up
	// may be given again.
	previous           []kafka.TopicPartition
	previousGeneration kafka.Generation
	// asked are the topics of the last JoinGroup: what an answer to it may give.
	asked []string
	// letGo are topics let go since: what an answer gives of them is not taken.
	letGo []string
	// unsubscribed is true when the member was started and waits to hear what to subscribe to.
	unsubscribed bool
	// reason is told to the coordinator with the next JoinGroup.
	reason string
	// again is the cause of a rebalance asked for while one was under way; empty = none.
	again string

	// roster and union are the group leader's view of the group; assignments is its plan, nil before it is made.
	roster      []AssignorMember
	union       []string
	assignments []MemberAssignment
	// watched is what the plan was made over; nil while not known.
	watched map[string]TopicInfo
	// heldBack is true when the plan gives a partition to nobody, since a member says that it has it: that one is to join again.
	heldBack bool
	// followUp is when the group leader asks for that rebalance itself; zero = it need not.
	followUp time.Time
	// generationEnds is when the coordinator gives up waiting for this member's SyncGroup.
	generationEnds time.Time
	// releaseBy is when partitions that were not released are declared lost.
	releaseBy time.Time
	leave     leaving
	// postponed is a Leave or GiveUp that waits for the JoinGroup or SyncGroup under way; nil when there is none.
	postponed *postponedLeave

	out []Effect
}

// NewMember returns a member in UNJOINED.
func NewMember(config MemberConfig) (*Member, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	if config.Topics != nil {
		config.Topics = append([]string{}, slices.Compact(slices.Sorted(slices.Values(config.Topics)))...)
	}
	config.Assignors = slices.Clone(config.Assignors)
	return &Member{
		config:     config,
		backoff:    newBackoff(config.BackoffInitial, config.BackoffMax, config.Seed),
		epoch:      config.LastEpoch,
		memberID:   config.MemberID,
		generation: kafka.NoGeneration,
		entered:    kafka.NoGeneration,

		previousGeneration: kafka.NoGeneration,
	}, nil
}

func (c *MemberConfig) check() error {
	for _, rule := range []struct {
		bad  bool
		what string
	}{
		{c.GroupID == "", "GroupID is empty"},
		{slices.Contains(c.Topics, ""), "a topic's name is empty"},
		{len(c.Assignors) == 0, "no assignors"},
		{slices.ContainsFunc(c.Assignors, func(a Assignor) bool { return a == nil || a.Name() == "" }), "an assignor is nil or has no name"},
		{c.SessionTimeout <= 0, "SessionTimeout is not positive"},
		{c.RebalanceTimeout <= 0, "RebalanceTimeout is not positive"},
		{c.HeartbeatInterval <= 0, "HeartbeatInterval is not positive"},
		{c.HeartbeatInterval >= c.SessionTimeout, "HeartbeatInterval is not below SessionTimeout"},
		{c.DrainTimeout < 0, "DrainTimeout is negative"},
		{c.DrainTimeout >= c.RebalanceTimeout-c.HeartbeatInterval, "DrainTimeout is not below RebalanceTimeout less HeartbeatInterval"},
		{c.BackoffInitial < 0 || c.BackoffMax < 0, "a backoff is negative"},
		{c.BackoffMax > 0 && c.BackoffInitial > c.BackoffMax, "BackoffInitial is above BackoffMax"},
	} {
		if rule.bad {
			return fmt.Errorf("rebalance: member: %w: %s", ErrConfig, rule.what)
		}
	}
	if _, err := EncodeSubscription(Subscription{Topics: c.Topics, Rack: c.Rack}); err != nil {
		return fmt.Errorf("rebalance: member: %w: %w", ErrConfig, err)
	}
	return nil
}

// Step takes one input and returns what to do about it, in order. With an error the effects returned are to be carried out
// all the same; the input had no further consequence.
func (m *Member) Step(now time.Time, in Input) ([]Effect, error) {
	m.out = nil
	err := m.handle(now, in)
	if p := m.postponed; p != nil && (!m.placePending() || !now.Before(p.until)) {
		err = errors.Join(err, m.leavePostponed(now))
	}
	return m.out, err
}

func (m *Member) handle(now time.Time, in Input) error {
	switch in := in.(type) {
	case Start:
		return m.start(now, in)
	case JoinAnswered:
		return m.joinAnswered(now, in)
	case TopicsKnown:
		return m.topicsKnown(now, in)
	case SyncAnswered:
		return m.syncAnswered(now, in)
	case HeartbeatAnswered:
		return m.heartbeatAnswered(now, in)
	case SessionExpired:
		return m.sessionExpired(now, in)
	case CommitFenced:
		return m.commitFenced(now, in)
	case PartitionStarted:
		return m.partitionStarted(in)
	case PartitionReleased:
		return m.partitionReleased(now, in)
	case TopicsChanged:
		return m.topicsChanged(now, in)
	case TopicRecreated:
		return m.topicRecreated(now, in)
	case SubscriptionChanged:
		return m.subscriptionChanged(now, in)
	case Rejoin:
		return m.rejoinAsked(now, in)
	case Leave:
		return m.leaveAsked(now, in)
	case GiveUp:
		return m.giveUpAsked(now, in)
	case LeaveAnswered:
		return m.leaveAnswered(now, in)
	case Tick:
		return m.tick(now)
	case RangeRead:
		// A member reads on for ever.
	}
	return unexpected(in, m.state)
}

// move is the only place where the state changes.
func (m *Member) move(to State, cause string, err error) error {
	if illegal := memberMoves.check(m.state, to); illegal != nil {
		return illegal
	}
	m.emit(Moved{From: m.state, To: to, Cause: cause, Err: err, Generation: m.generation, MemberID: m.memberID})
	m.state = to
	// What the member waited for belonged to the state it leaves.
	m.request = request{}
	m.releaseBy = time.Time{}
	if to != StateAssigning && to != StateAssigned {
		m.followUp = time.Time{}
	}
	if to == StateUnjoined || to == StateFatal {
		m.forgetGeneration()
	}
	return nil
}

func (m *Member) emit(effects ...Effect) { m.out = append(m.out, effects...) }

// send starts a request and returns its number.
func (m *Member) send(kind requestKind) uint64 {
	m.seq++
	m.request = request{kind: kind, seq: m.seq}
	return m.seq
}

// answered reports whether seq is what the member waits for, and if so ends the wait.
func (m *Member) answered(kind requestKind, seq uint64) bool {
	if seq == 0 || m.request.kind != kind || m.request.seq != seq {
		return false
	}
	m.request = request{}
	return true
}

// Deadline returns when the member wants a [Tick], and false when it does not.
func (m *Member) Deadline() (time.Time, bool) {
	var next time.Time
	consider := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if m.request.kind != requestNone && m.request.seq == 0 {
		consider(m.request.at)
	}
	if m.postponed != nil {
		consider(m.postponed.until)
	}
	switch m.state {
	case StateSyncing:
		// A SyncGroup under way keeps the generation alive, and its own answer ends it.
		if m.request.kind != requestSync || m.request.seq == 0 {
			consider(m.generationEnds)
		}
	case StateRevoking:
		consider(m.releaseBy)
	case StateLeaving:
		consider(m.releaseBy)
		consider(m.leave.deadline)
	case StateAssigning, StateAssigned:
		consider(m.followUp)
	case StateUnjoined, StateJoining, StateRevoked, StateFatal:
	}
	return next, !next.IsZero()
}

func (m *Member) tick(now time.Time) error {
	at, ok := m.Deadline()
	if !ok || now.Before(at) {
		return nil
	}
	if m.postponed != nil && !now.Before(m.postponed.until) {
		return nil // Step leaves now
	}
	switch m.state {
	case StateJoining:
		m.sendJoin()
		return nil
	case StateSyncing:
		return m.syncTick(now)
	case StateRevoking:
		return m.releaseOverdue(now)
	case StateLeaving:
		return m.leaveTick(now)
	case StateAssigning, StateAssigned:
		return m.rebalance(now, reasonNoOwner, nil)
	case StateUnjoined, StateRevoked, StateFatal:
	}
	return nil
}

// State returns the member's state.
func (m *Member) State() State { return m.state }

// Generation returns the generation the member entered last and has not left, [kafka.NoGeneration] for none.
func (m *Member) Generation() kafka.Generation { return m.entered }

// MemberID returns the id the coordinator gave, empty before it did.
func (m *Member) MemberID() string { return m.memberID }

// LastEpoch returns the last assignment epoch given out, for [MemberConfig.LastEpoch] of a member that takes over.
func (m *Member) LastEpoch() kafka.AssignmentEpoch { return m.epoch }

// Granted returns the partitions that are the member's: granted, neither released nor lost. Sorted.
func (m *Member) Granted() []Grant { return m.held.in(holdStarting, holdStarted, holdRevoking) }

// cooperative reports whether the member keeps its partitions over a JoinGroup.
func (m *Member) cooperative() bool {
	return !slices.ContainsFunc(m.config.Assignors, func(a Assignor) bool { return a.Protocol() == Eager })
}

// leads reports whether the member leads the group in its generation.
func (m *Member) leads() bool { return m.leaderID != "" && m.leaderID == m.memberID }
