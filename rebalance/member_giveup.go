package rebalance

import (
	"errors"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// GiveUp asks the member to give everything up and leave the group, all of it before Deadline, because it cannot work on
// what it has: another member takes the partitions at once. It rests in UNJOINED after that, until [Start]. Also a static
// member tells the coordinator that it leaves, since nobody could take its partitions before its session ends. Out of the
// group, or on its way out, it changes nothing but an earlier deadline.
type GiveUp struct {
	DrainUntil time.Time
	Deadline   time.Time
	// Reason is told to the coordinator (KIP-800).
	Reason string
}

// GaveUp answers [GiveUp]: the member is out of the group and does nothing until [Start]. Err says what did not go well, nil
// if all did.
type GaveUp struct{ Err error }

func (GiveUp) memberInput()  {}
func (GaveUp) memberEffect() {}

func (m *Member) giveUpAsked(now time.Time, in GiveUp) error {
	leave := boundedLeave(now, Leave{DrainUntil: in.DrainUntil, Deadline: in.Deadline})
	switch m.state {
	case StateUnjoined, StateFatal:
		return nil // out already
	case StateLeaving:
		if m.leave.givingUp {
			return m.leaveSooner(now, leave)
		}
		return nil
	case StateJoining, StateSyncing, StateAssigning, StateAssigned, StateRevoking, StateRevoked:
	}
	if m.postponed != nil && !m.postponed.givingUp {
		return nil
	}
	m.postpone(now, postponedLeave{leave: leave, givingUp: true, reason: in.Reason})
	return nil // Step leaves at once when nothing is waited for
}

// leavePostponed is called when the time of a postponed leave has come.
func (m *Member) leavePostponed(now time.Time) error {
	p := *m.postponed
	m.postponed = nil
	if p.givingUp && m.state == StateFatal {
		return nil // refused for good meanwhile: there is no way back
	}
	return m.leaveNow(now, p)
}

// stayAway makes a member that was giving up leave for good.
func (m *Member) stayAway() error {
	m.leave.givingUp, m.leave.keptID, m.leave.tryUntil = false, "", time.Time{}
	if m.request.kind == requestLeave && m.request.seq == 0 {
		m.request = request{}
		return m.leaveOn()
	}
	return nil
}

// leaveTries is how long a member that leaves for good tries LeaveGroup again: long enough for a coordinator that moves, and
// no reason to wait for where there is no cluster any more.
const leaveTries = 3 * time.Second

// leaveAgain plans the next try of LeaveGroup when one has failed by something that passes: until the coordinator hears of
// it nobody else can take the partitions. A member that gives up tries until its deadline; one that leaves for good has
// somebody waiting for it.
func (m *Member) leaveAgain(now time.Time, err error) bool {
	if verdictOf(err) != verdictRetry {
		return false
	}
	if m.leave.tryUntil.IsZero() {
		m.leave.tryUntil = m.leave.deadline
		if !m.leave.givingUp {
			m.leave.tryUntil = earlier(m.leave.deadline, now.Add(leaveTries))
		}
	}
	wait := m.backoff.next()
	if !now.Add(wait).Before(m.leave.tryUntil) {
		return false
	}
	m.retryLater(now, requestLeave, "LeaveGroup", err, wait)
	return true
}

// leaveRefused takes a LeaveGroup that has failed for good. A member that comes back keeps its id: the coordinator may still
// count it in, and would have the group wait for it.
func (m *Member) leaveRefused(err error) error {
	if m.leave.givingUp {
		if errors.Is(err, kafka.FencedInstanceID) {
			return m.fail(described("LeaveGroup", err), err)
		}
		m.leave.keptID = m.memberID
	}
	return nil
}
