package rebalance

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func (m *Member) start(now time.Time, in Start) error {
	if m.state != StateUnjoined {
		return unexpected(in, m.state)
	}
	m.reason = cmp.Or(in.Reason, "first join")
	if m.config.Topics == nil {
		m.unsubscribed = true
		return nil
	}
	return m.toJoining(now, "start", nil, 0)
}

// toJoining moves to JOINING and sends JoinGroup, after a wait when there is one.
func (m *Member) toJoining(now time.Time, cause string, err error, wait time.Duration) error {
	if illegal := m.move(StateJoining, cause, err); illegal != nil {
		return illegal
	}
	m.joinAfter(now, wait)
	return nil
}

// joinAfter sends JoinGroup now or plans it.
func (m *Member) joinAfter(now time.Time, wait time.Duration) {
	if wait > 0 {
		m.request = request{kind: requestJoin, at: now.Add(wait)}
		return
	}
	m.sendJoin()
}

func (m *Member) sendJoin() {
	// A JoinGroup carries everything that an earlier wish to rejoin was about.
	m.again, m.asked, m.letGo = "", m.config.Topics, nil
	if m.entered != kafka.NoGeneration {
		m.emit(HoldCommits{})
	}
	// The configuration was checked, so encoding cannot fail; a protocol that did would be left out.
	protocols := make([]Protocol, 0, len(m.config.Assignors))
	owned := m.ownedPartitions()
	for _, assignor := range m.config.Assignors {
		userData := assignor.UserData(m.config.Topics, owned, m.entered)
		if assignor.Protocol() == Eager {
			userData = assignor.UserData(m.config.Topics, m.previous, m.previousGeneration)
		}
		metadata, err := EncodeSubscription(Subscription{
			Topics:     m.config.Topics,
			UserData:   userData,
			Owned:      owned,
			Generation: m.entered,
			Rack:       m.config.Rack,
		})
		if err != nil {
			m.emit(Refused{Err: err})
			continue
		}
		protocols = append(protocols, Protocol{Name: assignor.Name(), Metadata: metadata})
	}
	m.emit(SendJoin{Seq: m.send(requestJoin), Request: JoinRequest{
		GroupID:          m.config.GroupID,
		MemberID:         m.memberID,
		GroupInstanceID:  m.config.GroupInstanceID,
		SessionTimeout:   m.config.SessionTimeout,
		RebalanceTimeout: m.config.RebalanceTimeout,
		Protocols:        protocols,
		Reason:           shortened(m.reason),
	}})
}

// shortened cuts a reason to what the Java client sends at most; it may hold the text of a foreign error.
func shortened(reason string) string {
	const most = 255
	if len(reason) <= most {
		return reason
	}
	return strings.ToValidUTF8(reason[:most], "")
}

func (m *Member) ownedPartitions() []kafka.TopicPartition { return partitionsIn(m.Granted()) }

func partitionsIn(grants []Grant) (partitions []kafka.TopicPartition) {
	for _, grant := range grants {
		partitions = append(partitions, grant.TopicPartition)
	}
	return partitions
}

func (m *Member) joinAnswered(now time.Time, in JoinAnswered) error {
	if !m.answered(requestJoin, in.Seq) {
		return nil
	}
	if in.Err != nil {
		return m.joinFailed(now, in)
	}
	if err := m.checkJoin(&in.Response); err != nil {
		m.retryJoin(now, err, m.backoff.slow())
		return nil
	}
	m.memberID = in.Response.MemberID
	m.generation = in.Response.Generation
	m.leaderID = in.Response.LeaderID
	m.protocol = in.Response.Protocol
	m.roster, m.union, m.assignments, m.watched, m.heldBack = nil, nil, nil, nil, false
	// Until SyncGroup is parked at the coordinator nothing else keeps the session of the new generation.
	m.generationEnds = now.Add(min(m.config.SessionTimeout, m.config.RebalanceTimeout))
	if err := m.move(StateSyncing, "JoinGroup answered", nil); err != nil {
		return err
	}
	if m.entered != kafka.NoGeneration {
		m.emit(JoinGeneration{Generation: m.generation, MemberID: m.memberID})
	}
	if m.leads() {
		m.readRoster(in.Response.Members)
		if !in.Response.SkipAssignment {
			m.queryTopics()
			return nil
		}
	}
	m.assignments = []MemberAssignment{}
	m.sendSync()
	return nil
}

func (m *Member) checkJoin(r *JoinResponse) error {
	switch {
	case r.Generation < 0 || r.MemberID == "":
		return fmt.Errorf("JoinGroup: %w: generation %d, member id %q", ErrBadAnswer, r.Generation, r.MemberID)
	case m.assignorNamed(r.Protocol) == nil:
		return fmt.Errorf("JoinGroup: %w: protocol %q was not offered", ErrBadAnswer, r.Protocol)
	}
	return nil
}

func (m *Member) assignorNamed(name string) Assignor {
	i := slices.IndexFunc(m.config.Assignors, func(a Assignor) bool { return a.Name() == name })
	if i < 0 {
		return nil
	}
	return m.config.Assignors[i]
}

// readRoster decodes what the members of the group ask for. One that cannot be read takes part without topics, so that it
// does not stop the others.
func (m *Member) readRoster(members []JoinMember) {
	m.roster = make([]AssignorMember, 0, len(members))
	for _, member := range members {
		subscription, err := DecodeSubscription(member.Metadata)
		if err != nil {
			m.emit(Refused{Err: fmt.Errorf("member %q: %w", member.MemberID, err)})
		}
		if len(subscription.Owned) > 0 && subscription.Generation >= m.generation {
			// Taken at its word it would outdo whoever has them. Still nobody else is given what it may have.
			m.emit(Refused{Err: fmt.Errorf("member %q: %w: %d, and this is %d", member.MemberID, ErrFutureClaim, subscription.Generation, m.generation)})
			subscription.Generation, subscription.UserData = kafka.NoGeneration, nil
		}
		m.roster = append(m.roster, AssignorMember{
			MemberID:        member.MemberID,
			GroupInstanceID: member.GroupInstanceID,
			Topics:          subscription.Topics,
			Owned:           subscription.Owned,
			Generation:      subscription.Generation,
			UserData:        subscription.UserData,
			Rack:            subscription.Rack,
		})
		m.union = append(m.union, subscription.Topics...)
	}
	slices.Sort(m.union)
	m.union = slices.Compact(m.union)
}

func (m *Member) joinFailed(now time.Time, in JoinAnswered) error {
	cause := described("JoinGroup", in.Err)
	switch verdictOf(in.Err) {
	case verdictNewID:
		id := in.Response.MemberID
		if id == "" || id == m.memberID {
			m.retryJoin(now, in.Err, m.backoff.next())
			return nil
		}
		m.memberID = id
		m.reason = "joining with the member id given"
		m.sendJoin()
		return nil
	case verdictForgetID:
		return m.lose(now, cause, in.Err, forgetMemberID)
	case verdictFatal:
		return m.fail(cause, in.Err)
	case verdictSlow:
		m.retryJoin(now, in.Err, m.backoff.slow())
		return nil
	case verdictRetry, verdictRejoin:
	}
	m.retryJoin(now, in.Err, m.backoff.next())
	return nil
}

func (m *Member) retryJoin(now time.Time, err error, wait time.Duration) {
	m.retryLater(now, requestJoin, "JoinGroup", err, wait)
}

// retryLater plans a request again and says so.
func (m *Member) retryLater(now time.Time, kind requestKind, op string, err error, wait time.Duration) {
	at := now.Add(wait)
	m.request = request{kind: kind, at: at}
	m.emit(Refused{Err: &AttemptError{Op: op, Attempt: m.backoff.failures, RetryAt: at, Err: err}})
}

// idFate says what becomes of the member id when the membership ends.
type idFate uint8

const (
	keepMemberID idFate = iota
	forgetMemberID
)

// lose gives up everything without a commit and joins again. The new JoinGroup does not wait for the lost partitions.
func (m *Member) lose(now time.Time, cause string, err error, fate idFate) error {
	m.loseAll(cause, err)
	if illegal := m.move(StateUnjoined, cause, err); illegal != nil {
		return illegal
	}
	if fate == forgetMemberID {
		m.memberID = ""
	}
	if m.postponed != nil {
		return nil // Step leaves now
	}
	m.reason = cause
	return m.toJoining(now, "join again", nil, m.backoff.soon())
}

// loseAll fences all partitions and leaves the generation.
func (m *Member) loseAll(cause string, err error) {
	if err == nil {
		err = errors.New(cause)
	}
	if lost := m.held.move(holdLost); len(lost) > 0 {
		m.emit(LosePartitions{Grants: lost, Cause: err})
	}
	m.leaveGeneration(err)
}

// leaveGeneration ends the membership in the generation entered, if any.
func (m *Member) leaveGeneration(cause error) {
	if m.entered != kafka.NoGeneration {
		m.emit(LeaveGeneration{Cause: cause})
	}
	m.entered = kafka.NoGeneration
}

// forgetGeneration forgets all that belongs to a generation.
func (m *Member) forgetGeneration() {
	m.generation, m.entered = kafka.NoGeneration, kafka.NoGeneration
	m.leaderID, m.protocol = "", ""
	m.roster, m.union, m.assignments, m.watched, m.heldBack = nil, nil, nil, nil, false
	m.generationEnds = time.Time{}
}

// fail gives up for good.
func (m *Member) fail(cause string, err error) error {
	m.loseAll(cause, err)
	if illegal := m.move(StateFatal, cause, err); illegal != nil {
		return illegal
	}
	if errors.Is(err, kafka.FencedInstanceID) {
		// The id is the older process's name for a place that another one has now; LeaveGroup with it would hit that one.
		m.memberID = ""
	}
	m.emit(Failed{Err: fmt.Errorf("rebalance: group %q: %w", m.config.GroupID, err)})
	return nil
}
