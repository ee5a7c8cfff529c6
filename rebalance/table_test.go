package rebalance

import (
	"errors"
	"strings"
	"testing"
)

// The legal moves once more, written out, so that a change to a table is a decision made twice.
const (
	wantMemberChart = `stateDiagram-v2
    [*] --> UNJOINED
    UNJOINED --> JOINING
    UNJOINED --> LEAVING
    JOINING --> UNJOINED
    JOINING --> SYNCING
    JOINING --> LEAVING
    JOINING --> FATAL
    SYNCING --> UNJOINED
    SYNCING --> JOINING
    SYNCING --> ASSIGNING
    SYNCING --> LEAVING
    SYNCING --> FATAL
    ASSIGNING --> UNJOINED
    ASSIGNING --> ASSIGNED
    ASSIGNING --> REVOKING
    ASSIGNING --> LEAVING
    ASSIGNING --> FATAL
    ASSIGNED --> UNJOINED
    ASSIGNED --> REVOKING
    ASSIGNED --> LEAVING
    ASSIGNED --> FATAL
    REVOKING --> UNJOINED
    REVOKING --> REVOKED
    REVOKING --> LEAVING
    REVOKING --> FATAL
    REVOKED --> UNJOINED
    REVOKED --> JOINING
    REVOKED --> LEAVING
    REVOKED --> FATAL
    LEAVING --> UNJOINED
    LEAVING --> FATAL
    FATAL --> LEAVING
`
	wantPartitionChart = `stateDiagram-v2
    [*] --> ASSIGNING
    ASSIGNING --> ASSIGNED
    ASSIGNING --> REVOKING
    ASSIGNED --> REVOKING
    REVOKING --> REVOKED
    REVOKED --> [*]
`
	wantLinkChart = `stateDiagram-v2
    [*] --> DOWN
    DOWN --> INITIALIZED
    INITIALIZED --> DOWN
    INITIALIZED --> DISCOVERING
    DISCOVERING --> DOWN
    DISCOVERING --> STABLE
    STABLE --> DOWN
    STABLE --> DISCOVERING
`
	wantStandaloneChart = `stateDiagram-v2
    [*] --> UNJOINED
    UNJOINED --> JOINING
    UNJOINED --> LEAVING
    JOINING --> ASSIGNING
    JOINING --> LEAVING
    ASSIGNING --> ASSIGNED
    ASSIGNING --> LEAVING
    ASSIGNED --> ASSIGNING
    ASSIGNED --> LEAVING
    LEAVING --> UNJOINED
`
	wantPulseChart = `stateDiagram-v2
    [*] --> IDLE
    IDLE --> BEATING
    BEATING --> IDLE
    BEATING --> LAPSED
    LAPSED --> IDLE
    LAPSED --> BEATING
`
)

func TestLegalMovesAreAsDecided(t *testing.T) {
	for name, pair := range map[string][2]string{
		"member":      {MemberChart(), wantMemberChart},
		"stand-alone": {StandaloneChart(), wantStandaloneChart},
		"partition":   {PartitionChart(), wantPartitionChart},
		"link":        {LinkChart(), wantLinkChart},
		"pulse":       {PulseChart(), wantPulseChart},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s chart\n%s\nwant\n%s", name, pair[0], pair[1])
		}
	}
}

func TestEveryStateHasAWordAndARow(t *testing.T) {
	words := func(states int, word func(i int) string) {
		for i := range states {
			if w := word(i); w == "" || strings.Contains(w, "(") || w != strings.ToUpper(w) {
				t.Errorf("state %d is called %q", i, w)
			}
		}
		if w := word(states); !strings.Contains(w, "(") {
			t.Errorf("%q has no row in its table", w)
		}
	}
	words(len(memberMoves), func(i int) string { return State(i).String() })
	words(len(partitionMoves), func(i int) string { return PartitionState(i).String() })
	words(len(linkMoves), func(i int) string { return LinkState(i).String() })
	words(len(pulseMoves), func(i int) string { return PulseState(i).String() })
}

func TestIllegalMoveIsAnErrorAndChangesNothing(t *testing.T) {
	m := newRig(t, nil).m
	if err := m.move(StateAssigned, "test", nil); !errors.Is(err, ErrIllegalMove) || m.State() != StateUnjoined || len(m.out) != 0 {
		t.Errorf("member: %v, state %s, %d effects", err, m.State(), len(m.out))
	}
	if err := m.move(State(200), "test", nil); !errors.Is(err, ErrIllegalMove) {
		t.Errorf("member to an unknown state: %v", err)
	}
	p := NewPartition(Grant{})
	if err := p.move(PartitionRevoked, "test", nil); !errors.Is(err, ErrIllegalMove) || p.State() != PartitionAssigning {
		t.Errorf("partition: %v, state %s", err, p.State())
	}
	l := linkIn(t, LinkDown)
	if err := l.move(LinkStable, brokerA, nil); !errors.Is(err, ErrIllegalMove) || l.State() != LinkDown {
		t.Errorf("link: %v, state %s", err, l.State())
	}
	u := testPulse(t)
	if err := u.move(PulseLapsed); !errors.Is(err, ErrIllegalMove) || u.State() != PulseIdle {
		t.Errorf("pulse: %v, state %s", err, u.State())
	}
}

// A nil input is not a case of the sealed interfaces; it must not be swallowed.
func TestNilInputIsAnError(t *testing.T) {
	_, member := newRig(t, nil).m.Step(epoch0, nil)
	_, partition := NewPartition(Grant{}).Step(epoch0, nil)
	_, link := linkIn(t, LinkDown).Step(epoch0, nil)
	_, pulse := testPulse(t).Step(epoch0, nil)
	for _, err := range []error{member, partition, link, pulse} {
		if !errors.Is(err, ErrUnexpectedInput) {
			t.Errorf("got %v", err)
		}
	}
}
