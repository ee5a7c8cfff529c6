package rebalance

import (
	"errors"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// A check of invariants that finds nothing is worth nothing: each of these breaks one.
func TestValidFindsABrokenMember(t *testing.T) {
	for name, c := range map[string]struct {
		state State
		bust  func(m *Member)
	}{
		"request in a state without one":  {StateAssigned, func(m *Member) { m.request = request{kind: requestJoin, seq: m.seq} }},
		"nothing under way while joining": {StateJoining, func(m *Member) { m.request = request{} }},
		"sent and planned":                {StateJoining, func(m *Member) { m.request.at = epoch0 }},
		"neither sent nor planned":        {StateJoining, func(m *Member) { m.request.seq = 0 }},
		"never sent":                      {StateJoining, func(m *Member) { m.request.seq++ }},
		"kind without a request":          {StateAssigned, func(m *Member) { m.request = request{seq: 1} }},
		"owned while joining":             {StateJoining, func(m *Member) { m.epoch = 1; m.held.set(Grant{tp("t", 0), 1}, holdStarted) }},
		"revoking in ASSIGNED":            {StateAssigned, func(m *Member) { m.held.move(holdRevoking) }},
		"nothing starts in ASSIGNING":     {StateAssigning, func(m *Member) { m.held.move(holdStarted) }},
		"nothing drains in REVOKING":      {StateRevoking, func(m *Member) { m.held.move(holdLost) }},
		"no deadline in REVOKING":         {StateRevoking, func(m *Member) { m.releaseBy = time.Time{} }},
		"nothing to do in LEAVING":        {StateLeaving, func(m *Member) { m.held.clear() }},
		"at rest in REVOKED":              {StateRevoked, func(*Member) {}},
		"epoch from nowhere":              {StateAssigned, func(m *Member) { m.held.set(Grant{tp("t", 5), 99}, holdStarted) }},
		"owned twice":                     {StateAssigned, func(m *Member) { m.epoch++; m.held.set(Grant{tp("t", 0), m.epoch}, holdStarted) }},
		"counts":                          {StateAssigned, func(m *Member) { m.held.counts[holdLost]++ }},
		"entered another generation":      {StateAssigned, func(m *Member) { m.generation++ }},
		"entered a later generation":      {StateAssigned, func(m *Member) { m.entered++ }},
		"generation while unjoined":       {StateUnjoined, func(m *Member) { m.generation = 3 }},
		"no member id":                    {StateAssigned, func(m *Member) { m.memberID = "" }},
		"no generation in SYNCING":        {StateSyncing, func(m *Member) { m.generation = kafka.NoGeneration }},
		"no plan in SYNCING":              {StateSyncing, func(m *Member) { m.assignments = nil }},
		"no such state":                   {StateAssigned, func(m *Member) { m.state = 99 }},
	} {
		m := newRig(t, nil).to(c.state).m
		c.bust(m)
		if err := m.Valid(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidFindsABrokenPartition(t *testing.T) {
	for name, c := range map[string]struct {
		state PartitionState
		bust  func(p *Partition)
	}{
		"delivery in ASSIGNING": {PartitionAssigning, func(p *Partition) { p.handler = handlerBusy }},
		"canceled in ASSIGNED":  {PartitionAssigned, func(p *Partition) { p.handler = handlerCanceled }},
		"no times in REVOKING":  {PartitionRevoking, func(p *Partition) { p.deadline = time.Time{} }},
		"times out of order":    {PartitionRevoking, func(p *Partition) { p.deadline = p.cancelAt.Add(-1) }},
		"waits for an idle one": {PartitionRevoking, func(p *Partition) { p.handler = handlerIdle }},
		"times in REVOKED":      {PartitionRevoked, func(p *Partition) { p.cancelAt, p.drainUntil, p.deadline = epoch0, epoch0, epoch0 }},
		"no such state":         {PartitionRevoked, func(p *Partition) { p.state = 99 }},
	} {
		p := partitionIn(t, c.state)
		c.bust(p)
		if err := p.Valid(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidFindsABrokenLink(t *testing.T) {
	for name, c := range map[string]struct {
		state LinkState
		bust  func(l *Link)
	}{
		"no search":                 {LinkDiscovering, func(l *Link) { l.searching = 0 }},
		"search and retry":          {LinkDiscovering, func(l *Link) { l.retryAt = epoch0 }},
		"coordinator while seeking": {LinkDiscovering, func(l *Link) { l.broker = brokerA }},
		"coordinator when down":     {LinkDown, func(l *Link) { l.broker = brokerA }},
		"work waits in STABLE":      {LinkStable, func(l *Link) { l.waiting = []Need{{ID: 1, Deadline: epoch0}} }},
		"no time in STABLE":         {LinkStable, func(l *Link) { l.stableSince = time.Time{} }},
		"work without a deadline":   {LinkDiscovering, func(l *Link) { l.waiting = []Need{{ID: 1}} }},
		"one number twice":          {LinkDiscovering, func(l *Link) { l.waiting = append(l.waiting, l.waiting[0]) }},
		"no such state":             {LinkDown, func(l *Link) { l.state = 99 }},
	} {
		l := linkIn(t, c.state)
		c.bust(l)
		if err := l.Valid(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidFindsABrokenPulse(t *testing.T) {
	for name, c := range map[string]struct {
		state PulseState
		bust  func(p *Pulse)
	}{
		"generation in IDLE":       {PulseIdle, func(p *Pulse) { p.generation = 1 }},
		"no generation in BEATING": {PulseBeating, func(p *Pulse) { p.generation = kafka.NoGeneration }},
		"nothing planned":          {PulseBeating, func(p *Pulse) { p.next = time.Time{} }},
		"session before the start": {PulseBeating, func(p *Pulse) { p.alive = p.entered.Add(-1) }},
		"under way and never sent": {PulseBeating, func(p *Pulse) { p.sentAt = epoch0 }},
	} {
		p := pulseIn(t, c.state)
		c.bust(p)
		if err := p.Valid(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
