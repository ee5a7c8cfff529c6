package rebalance

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

func (m *Member) leaveAsked(now time.Time, in Leave) error {
	in = boundedLeave(now, in)
	if m.state == StateLeaving {
		return errors.Join(m.stayAway(), m.leaveSooner(now, in))
	}
	m.postpone(now, postponedLeave{leave: in, reason: "leaving"})
	return nil // Step leaves at once when nothing is waited for
}

// boundedLeave has its times in order: those that have passed, zero included, mean now.
func boundedLeave(now time.Time, in Leave) Leave {
	in.Deadline = later(in.Deadline, now)
	in.DrainUntil = earlier(later(in.DrainUntil, now), in.Deadline)
	return in
}

// postpone has a leave wait; of two, the earlier times hold.
func (m *Member) postpone(now time.Time, p postponedLeave) {
	if other := m.postponed; other != nil {
		p.leave.Deadline, p.leave.DrainUntil = earlier(p.leave.Deadline, other.leave.Deadline), earlier(p.leave.DrainUntil, other.leave.DrainUntil)
	}
	p.until = now.Add(p.leave.DrainUntil.Sub(now) / 2)
	m.postponed = &p
}

// postponedLeave is a Leave or GiveUp that waits until a JoinGroup under way has led to the next generation, or until half of the time
// to drain is gone. Nobody can commit in between: the group has left the old generation and the new one is not known.
type postponedLeave struct {
	leave    Leave
	until    time.Time
	givingUp bool
	reason   string
}

// placePending reports whether a member that has kept its partitions waits for its place in the next generation.
func (m *Member) placePending() bool {
	if m.held.owned() == 0 {
		return false
	}
	return m.state == StateJoining && m.request.seq != 0 || m.state == StateSyncing
}

func (m *Member) leaveNow(now time.Time, p postponedLeave) error {
	in := p.leave
	in.DrainUntil = later(in.DrainUntil, now)
	in.Deadline = later(in.Deadline, in.DrainUntil)
	if m.held.owned() > 0 && (m.state == StateJoining || m.state == StateSyncing) {
		// No place in time. The generation that the group had may still be the one it has.
		m.emit(ResumeCommits{Generation: max(m.generation, m.entered), MemberID: m.memberID})
	}
	cause := "leave"
	if p.givingUp {
		cause = "give up: " + p.reason
	}
	if err := m.move(StateLeaving, cause, nil); err != nil {
		return err
	}
	m.leave = leaving{drainUntil: in.DrainUntil, deadline: in.Deadline, givingUp: p.givingUp}
	m.again, m.reason, m.unsubscribed = "", p.reason, false
	m.revokeForLeave()
	return m.leaveOn()
}

// leaveSooner takes an earlier deadline; a later one changes nothing.
func (m *Member) leaveSooner(now time.Time, in Leave) error {
	if !in.Deadline.Before(m.leave.deadline) && !in.DrainUntil.Before(m.leave.drainUntil) {
		return nil
	}
	m.leave.deadline = earlier(m.leave.deadline, in.Deadline)
	m.leave.drainUntil = later(earlier(m.leave.drainUntil, in.DrainUntil), now)
	m.revokeForLeave()
	return nil
}

// revokeForLeave revokes all that is owned, also what is being revoked already, with the deadlines for leaving. Some of the
// time is kept back for LeaveGroup.
func (m *Member) revokeForLeave() {
	grants := m.held.move(holdRevoking)
	if len(grants) == 0 {
		return
	}
	reserve := min(leaveReserve, m.leave.deadline.Sub(m.leave.drainUntil)/2)
	deadline := m.leave.deadline.Add(-reserve)
	m.releaseBy = deadline.Add(reserve / 2)
	m.emit(RevokePartitions{Grants: grants, DrainUntil: m.leave.drainUntil, Deadline: deadline, Closing: !m.leave.givingUp})
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// leaveOn takes the next step of leaving, if it can be taken: LeaveGroup when the last revoked partition is released,
// the end when LeaveGroup was answered and also the lost partitions are released.
func (m *Member) leaveOn() error {
	if m.held.count(holdRevoking) > 0 || m.request.kind == requestLeave {
		return nil
	}
	m.releaseBy = time.Time{}
	if m.memberID != "" && (m.config.GroupInstanceID == "" || m.leave.givingUp) {
		m.sendLeave()
		return nil
	}
	m.leaveGeneration(nil)
	if len(m.held.phases) > 0 {
		return nil
	}
	return m.left()
}

func (m *Member) sendLeave() {
	m.emit(SendLeave{Seq: m.send(requestLeave), Request: LeaveRequest{
		GroupID: m.config.GroupID, MemberID: m.memberID, GroupInstanceID: m.config.GroupInstanceID, Reason: shortened(m.reason),
	}})
}

func (m *Member) leaveAnswered(now time.Time, in LeaveAnswered) error {
	if !m.answered(requestLeave, in.Seq) {
		return nil
	}
	if in.Err != nil && !errors.Is(in.Err, kafka.UnknownMemberID) {
		if m.leaveAgain(now, in.Err) {
			return nil
		}
		if err := m.leaveRefused(in.Err); err != nil || m.state == StateFatal {
			return err
		}
		m.leave.err = errors.Join(m.leave.err, fmt.Errorf("rebalance: LeaveGroup: %w", in.Err))
	}
	// Whatever the answer, the id is not used again here.
	m.memberID = ""
	return m.leaveOn()
}

// loseWhileLeaving gives up draining: the partitions belong to somebody else by now.
func (m *Member) loseWhileLeaving(cause string, err error, fate idFate) error {
	m.loseAll(cause, err)
	if fate == forgetMemberID {
		m.memberID = ""
		// A LeaveGroup under way can only say the same.
		m.request = request{}
	}
	return m.leaveOn()
}

func (m *Member) leaveTick(now time.Time) error {
	if now.Before(m.leave.deadline) {
		if m.request.kind == requestLeave && m.request.seq == 0 && !now.Before(m.request.at) {
			m.sendLeave()
			return nil
		}
		m.loseOverdue()
		return m.leaveOn()
	}
	var undone error
	if m.memberID != "" { // the coordinator was not told, and may still count the member in
		m.leave.keptID = m.memberID
	}
	switch {
	case m.held.owned() > 0:
		undone = fmt.Errorf("rebalance: %w: %d partitions not released", ErrLeaveUnfinished, m.held.owned())
	case m.request.kind == requestLeave:
		undone = fmt.Errorf("rebalance: %w: LeaveGroup not answered", ErrLeaveUnfinished)
	default:
		undone = fmt.Errorf("rebalance: %w: %d lost partitions not released", ErrLeaveUnfinished, m.held.count(holdLost))
	}
	m.leave.err = errors.Join(m.leave.err, undone)
	m.loseAll("leave deadline passed", undone)
	return m.left()
}

// left ends the membership.
func (m *Member) left() error {
	was := m.leave
	m.leaveGeneration(was.err)
	m.held.clear()
	m.leave = leaving{}
	if illegal := m.move(StateUnjoined, "left the group", was.err); illegal != nil {
		return illegal
	}
	m.memberID = ""
	m.backoff.reset()
	if was.givingUp {
		m.memberID = was.keptID
		m.emit(GaveUp{Err: was.err})
		return nil
	}
	m.emit(Left{Err: was.err})
	return nil
}
