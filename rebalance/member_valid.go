package rebalance

import "github.com/troupego/troupe/pkg/kafka"

// Valid checks the member's invariants between two steps. A non-nil error wraps [ErrInvalid] and means a bug in this package.
func (m *Member) Valid() error {
	for _, check := range []func() error{m.validRequest, m.validHoldings, m.validGeneration} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// validRequest: the member waits for exactly what belongs to its state.
func (m *Member) validRequest() error {
	kind := m.request.kind
	if m.unsubscribed && (m.state != StateUnjoined || m.config.Topics != nil) {
		return invalid("waits for a subscription in %s, with %v", m.state, m.config.Topics)
	}
	if (kind == requestNone) != (m.request == request{}) {
		return invalid("request %+v", m.request)
	}
	if kind != requestNone && (m.request.seq == 0) == m.request.at.IsZero() {
		return invalid("request %+v is neither sent nor planned, or both", m.request)
	}
	if m.request.seq > m.seq {
		return invalid("request %d was never sent, the last was %d", m.request.seq, m.seq)
	}
	var ok bool
	switch m.state {
	case StateJoining:
		ok = kind == requestJoin
	case StateSyncing:
		ok = kind == requestSync && m.assignments != nil || kind == requestTopics && m.assignments == nil && m.leads()
	case StateLeaving:
		ok = kind == requestNone || kind == requestLeave && (m.request.seq != 0 || m.memberID != "")
	case StateUnjoined, StateAssigning, StateAssigned, StateRevoking, StateRevoked, StateFatal:
		ok = kind == requestNone
	}
	if !ok {
		return invalid("request of kind %d in %s", kind, m.state)
	}
	if !m.followUp.IsZero() && m.state != StateAssigning && m.state != StateAssigned {
		return invalid("a rebalance is planned in %s", m.state)
	}
	if (m.state == StateRevoking) != !m.releaseBy.IsZero() && m.state != StateLeaving {
		return invalid("release deadline %v in %s", m.releaseBy, m.state)
	}
	return nil
}

// validHoldings: the member owns partitions only where it may, and each under one epoch.
func (m *Member) validHoldings() error {
	if err := m.held.valid(m.epoch); err != nil {
		return err
	}
	counts := m.held.counts
	starting, started, revoking := counts[holdStarting], counts[holdStarted], counts[holdRevoking]
	var ok bool
	switch m.state {
	case StateUnjoined, StateFatal:
		ok = starting == 0 && started == 0 && revoking == 0
	case StateJoining, StateSyncing:
		ok = m.keeps(starting, started) && revoking == 0
	case StateAssigning:
		ok = starting > 0 && revoking == 0
	case StateAssigned:
		ok = starting == 0 && revoking == 0
	case StateRevoking:
		ok = m.keeps(starting, started) && revoking > 0
	case StateRevoked:
		ok = false // only passed through
	case StateLeaving:
		ok = starting == 0 && started == 0 && (revoking > 0 || m.request.kind == requestLeave || counts[holdLost] > 0)
	}
	if !ok {
		return invalid("%d starting, %d started, %d revoking, %d lost in %s", starting, started, revoking, counts[holdLost], m.state)
	}
	return nil
}

// keeps reports whether the member may hold partitions that it does not give up while it rebalances.
func (m *Member) keeps(starting, started int) bool {
	return m.cooperative() || starting == 0 && started == 0
}

// validGeneration: the generation fits the state.
func (m *Member) validGeneration() error {
	if m.entered > m.generation {
		return invalid("entered generation %d of %d", m.entered, m.generation)
	}
	var ok bool
	switch m.state {
	case StateUnjoined, StateFatal:
		ok = m.generation == kafka.NoGeneration && m.entered == kafka.NoGeneration
	case StateJoining, StateLeaving:
		ok = true
	case StateSyncing:
		ok = m.generation != kafka.NoGeneration && m.memberID != "" && m.assignorNamed(m.protocol) != nil
	case StateAssigning, StateAssigned, StateRevoking, StateRevoked:
		ok = m.entered != kafka.NoGeneration && m.entered == m.generation && m.memberID != ""
	}
	if !ok {
		return invalid("generation %d, entered %d, member id %q in %s", m.generation, m.entered, m.memberID, m.state)
	}
	return nil
}
