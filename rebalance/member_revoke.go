package rebalance

import (
	"fmt"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

const (
	// finalCommitTime is the most that final commits get between the end of the drain and the JoinGroup.
	finalCommitTime = 3 * time.Second
	// leaveReserve is the most that is kept back of the time for leaving, for the LeaveGroup after the drain.
	leaveReserve = 2 * time.Second
)

// rebalance begins a rebalance of the generation the member is in: under an eager assignor everything is revoked first,
// under a cooperative one only what the member itself lets go is before the group has said what moves.
func (m *Member) rebalance(now time.Time, cause string, err error) error {
	if m.cooperative() {
		return m.revoke(now, m.held.moveUnwanted(holdRevoking), cause, err)
	}
	return m.revoke(now, m.held.move(holdRevoking), cause, err)
}

// revoke gives up partitions and joins again after that, for cause.
func (m *Member) revoke(now time.Time, grants []Grant, cause string, err error) error {
	if illegal := m.move(StateRevoking, cause, err); illegal != nil {
		return illegal
	}
	m.reason, m.again = cause, ""
	if len(grants) == 0 {
		return m.revoked(now)
	}
	// The coordinator has been waiting since up to one heartbeat interval; JoinGroup must be there before it gives up.
	spare := m.config.RebalanceTimeout - m.config.HeartbeatInterval - m.config.DrainTimeout
	drainUntil := now.Add(m.config.DrainTimeout)
	deadline := drainUntil.Add(min(finalCommitTime, spare*3/5))
	m.releaseBy = deadline.Add(min(time.Second, spare/5))
	m.emit(RevokePartitions{Grants: grants, DrainUntil: drainUntil, Deadline: deadline})
	return nil
}

// revoked goes through REVOKED to the next JoinGroup.
func (m *Member) revoked(now time.Time) error {
	if err := m.move(StateRevoked, "nothing left to release", nil); err != nil {
		return err
	}
	return m.toJoining(now, m.reason, nil, 0)
}

// rebalanceOrRemember rebalances now, or after the rebalance that is under way when that one is too far to notice.
func (m *Member) rebalanceOrRemember(now time.Time, cause string) error {
	switch m.state {
	case StateAssigning, StateAssigned:
		return m.rebalance(now, cause, nil)
	case StateJoining, StateSyncing:
		if m.request.kind != requestJoin || m.request.seq != 0 {
			m.again = cause
		}
		return nil
	case StateUnjoined, StateRevoking, StateRevoked, StateLeaving, StateFatal:
	}
	return nil
}

func (m *Member) rejoinAsked(now time.Time, in Rejoin) error {
	switch m.state {
	case StateUnjoined, StateFatal:
		return unexpected(in, m.state)
	case StateLeaving, StateRevoking, StateRevoked:
		// Leaving for good, or a JoinGroup follows anyway.
		return nil
	case StateJoining, StateSyncing, StateAssigning, StateAssigned:
	}
	cause := in.Cause
	if cause == "" {
		cause = "asked to rejoin"
	}
	return m.rebalanceOrRemember(now, cause)
}

// topicRecreated gives up what is held of a topic that is another one now. An eager member gives up everything anyway; a
// cooperative one would keep it over the rebalance.
func (m *Member) topicRecreated(now time.Time, in TopicRecreated) error {
	cause := fmt.Sprintf("topic %s was made anew", in.Topic)
	if m.cooperative() && m.state != StateLeaving {
		m.loseTopic(in.Topic, fmt.Errorf("rebalance: %w: %s", ErrTopicRecreated, in.Topic))
	}
	if m.state == StateRevoking && m.held.count(holdRevoking) == 0 {
		return m.revoked(now)
	}
	return m.rebalanceOrRemember(now, cause)
}

func (m *Member) loseTopic(topic string, err error) {
	var lost []Grant
	for _, grant := range m.Granted() {
		if grant.TopicPartition.Topic == topic {
			m.held.set(grant, holdLost)
			lost = append(lost, grant)
		}
	}
	if len(lost) > 0 {
		m.emit(LosePartitions{Grants: lost, Cause: err})
	}
}

func (m *Member) partitionReleased(now time.Time, in PartitionReleased) error {
	grant := Grant(in)
	phase, ok := m.held.phase(grant)
	if !ok {
		return nil
	}
	if phase != holdRevoking && phase != holdLost {
		return fmt.Errorf("rebalance: %w: %s (epoch %d) released without being revoked", ErrUnexpectedInput, in.TopicPartition, in.Epoch)
	}
	m.held.drop(grant)
	switch m.state {
	case StateRevoking:
		if m.held.count(holdRevoking) == 0 {
			return m.revoked(now)
		}
	case StateLeaving:
		return m.leaveOn()
	case StateUnjoined, StateJoining, StateSyncing, StateAssigning, StateAssigned, StateRevoked, StateFatal:
		// A lost partition on its way out; nothing waits for it here.
	}
	return nil
}

// releaseOverdue declares partitions lost that were not released in time, and goes on.
func (m *Member) releaseOverdue(now time.Time) error {
	m.loseOverdue()
	return m.revoked(now)
}

func (m *Member) loseOverdue() {
	m.releaseBy = time.Time{}
	overdue := m.held.in(holdRevoking)
	if len(overdue) == 0 {
		return
	}
	err := fmt.Errorf("rebalance: %w: %d partitions, first %s (epoch %d)",
		ErrNotReleased, len(overdue), overdue[0].TopicPartition, overdue[0].Epoch)
	for _, grant := range overdue {
		m.held.set(grant, holdLost)
	}
	m.emit(Refused{Err: err}, LosePartitions{Grants: overdue, Cause: err})
}

func (m *Member) heartbeatAnswered(now time.Time, in HeartbeatAnswered) error {
	if in.Generation != m.generation || m.entered == kafka.NoGeneration {
		return nil
	}
	if in.Err == nil {
		m.calm()
		return nil
	}
	return m.doubted(now, "heartbeat", in.Err)
}

func (m *Member) commitFenced(now time.Time, in CommitFenced) error {
	if in.Generation != m.entered || m.entered == kafka.NoGeneration {
		return nil
	}
	if doubtOf(in.Err) == doubtRebalance {
		// Means "later" to a commit; the heartbeat starts the rebalance.
		return nil
	}
	return m.doubted(now, "commit", in.Err)
}

// calm forgets past failures: a heartbeat was answered in a settled group.
func (m *Member) calm() {
	switch m.state {
	case StateAssigning, StateAssigned, StateRevoking:
		m.backoff.reset()
	case StateUnjoined, StateJoining, StateSyncing, StateRevoked, StateLeaving, StateFatal:
		// The answer was under way since before the failures that are being counted.
	}
}

// doubted handles what a heartbeat or a commit of the generation entered said about the membership.
func (m *Member) doubted(now time.Time, source string, err error) error {
	cause := described(source, err)
	switch doubtOf(err) {
	case doubtNone:
		return nil
	case doubtOther:
		m.emit(Refused{Err: fmt.Errorf("rebalance: %s: %w", source, err)})
		return nil
	case doubtRebalance:
		switch m.state {
		case StateAssigning, StateAssigned:
			m.calm()
			return m.rebalance(now, cause, err)
		case StateUnjoined, StateJoining, StateSyncing, StateRevoking, StateRevoked, StateLeaving, StateFatal:
			// Known already.
		}
		return nil
	case doubtGeneration:
		return m.generationGone(now, cause, err)
	case doubtMember:
		if m.state == StateLeaving {
			return m.loseWhileLeaving(cause, err, forgetMemberID)
		}
		return m.lose(now, cause, err, forgetMemberID)
	case doubtInstance:
		if m.state == StateLeaving && !m.leave.givingUp {
			m.leave.err = err
			return m.loseWhileLeaving(cause, err, forgetMemberID)
		}
		return m.fail(cause, err)
	}
	return nil
}

func (m *Member) generationGone(now time.Time, cause string, err error) error {
	switch m.state {
	case StateJoining, StateSyncing:
		// A JoinGroup is under way and the group has gone on from the old generation: "later", not "lost".
		return nil
	case StateLeaving:
		return m.loseWhileLeaving(cause, err, keepMemberID)
	case StateUnjoined, StateAssigning, StateAssigned, StateRevoking, StateRevoked, StateFatal:
	}
	return m.lose(now, cause, err, keepMemberID)
}

func (m *Member) sessionExpired(now time.Time, in SessionExpired) error {
	// One session lasts from the generation entered to the one joined; it may have ended before the heartbeats heard of the latter.
	if in.Generation < m.entered || in.Generation > m.generation || m.entered == kafka.NoGeneration {
		return nil
	}
	switch m.state {
	case StateJoining, StateSyncing:
		if m.held.owned() == 0 {
			// Nothing to lose, and the coordinator does not count the session of a member that waits in JoinGroup or
			// SyncGroup. Their answer decides.
			return nil
		}
	case StateLeaving:
		return m.loseWhileLeaving("session expired", ErrSessionExpired, keepMemberID)
	case StateUnjoined, StateAssigning, StateAssigned, StateRevoking, StateRevoked, StateFatal:
	}
	// The coordinator may never have noticed (it was the network), so the id is worth a try; if it has, it says so.
	return m.lose(now, "session expired", ErrSessionExpired, keepMemberID)
}
