package rebalance

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// partitionIn makes a partition in a state, a delivery outstanding where there can be one.
func partitionIn(t *testing.T, state PartitionState) *Partition {
	t.Helper()
	p := NewPartition(Grant{TopicPartition: tp("t", 0), Epoch: 1})
	inputs := map[PartitionState][]PartitionInput{
		PartitionAssigned:  {PositionKnown{Offset: 7}, DeliveryStarted{}},
		PartitionRevoking:  {PositionKnown{Offset: 7}, DeliveryStarted{}, drainIn(10 * time.Second)},
		PartitionRevoked:   {OwnershipLost{Cause: errNetwork}},
		PartitionAssigning: nil,
	}
	for _, in := range inputs[state] {
		if _, err := p.Step(epoch0, in); err != nil {
			t.Fatal(err)
		}
	}
	if p.State() != state {
		t.Fatalf("state %s, want %s", p.State(), state)
	}
	return p
}

func drainIn(d time.Duration) DrainRequested {
	return DrainRequested{DrainUntil: epoch0.Add(d), Deadline: epoch0.Add(d + 3*time.Second)}
}

var partitionInputs = map[string]PartitionInput{
	"PositionKnown":       PositionKnown{Offset: 7},
	"DrainRequested":      drainIn(10 * time.Second),
	"OwnershipLost":       OwnershipLost{Cause: kafka.UnknownMemberID},
	"DeliveryStarted":     DeliveryStarted{},
	"DeliveryEnded":       DeliveryEnded{},
	"FinalCommitAnswered": FinalCommitAnswered{},
	"PartitionTick":       PartitionTick{},
}

// partitionTable is the partition's behavior with a delivery outstanding; the drain's own steps are in its stories.
const partitionTable = `
ASSIGNING DeliveryEnded: error
ASSIGNING DeliveryStarted: error
ASSIGNING DrainRequested: >REVOKING >REVOKED Release
ASSIGNING FinalCommitAnswered: error
ASSIGNING OwnershipLost: >REVOKING >REVOKED Release
ASSIGNING PartitionTick: -
ASSIGNING PositionKnown: >ASSIGNED StartFlow
ASSIGNED DeliveryEnded: -
ASSIGNED DeliveryStarted: -
ASSIGNED DrainRequested: >REVOKING StopFlow
ASSIGNED FinalCommitAnswered: error
ASSIGNED OwnershipLost: >REVOKING StopFlow CancelHandler AbandonHandler >REVOKED Release
ASSIGNED PartitionTick: -
ASSIGNED PositionKnown: error
REVOKING DeliveryEnded: RequestFinalCommit
REVOKING DeliveryStarted: error
REVOKING DrainRequested: -
REVOKING FinalCommitAnswered: error
REVOKING OwnershipLost: CancelHandler AbandonHandler >REVOKED Release
REVOKING PartitionTick: -
REVOKING PositionKnown: -
REVOKED DeliveryEnded: -
REVOKED DeliveryStarted: error
REVOKED DrainRequested: -
REVOKED FinalCommitAnswered: -
REVOKED OwnershipLost: -
REVOKED PartitionTick: -
REVOKED PositionKnown: -
`

func TestEveryPartitionInputHasAnOutcomeInEveryState(t *testing.T) {
	inputs := implementers(t, "partitionInput")
	sameNames(t, "partition inputs", slices.Collect(maps.Keys(partitionInputs)), inputs)
	checkTable(t, partitionTable, len(partitionMoves), inputs, func(state PartitionState, input string) string {
		p := partitionIn(t, state)
		effects, err := p.Step(epoch0, partitionInputs[input])
		if invalid := p.Valid(); invalid != nil {
			t.Errorf("%s after %s: %v", state, input, invalid)
		}
		return outcome(summary(effects), err)
	})
}

var brokerA = kafka.Broker{ID: 1, Addr: "a:9092"}

// linkIn makes a link in a state; in DISCOVERING one piece of work waits, number 1, until ten seconds later.
func linkIn(t *testing.T, state LinkState) *Link {
	t.Helper()
	l, err := NewLink(LinkConfig{BackoffMax: time.Second, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	inputs := []LinkInput{LinkStart{}, Need{ID: 1, Deadline: epoch0.Add(10 * time.Second)}, Found{Seq: 1, Broker: brokerA}}
	for _, in := range inputs[:int(state)] {
		if _, err := l.Step(epoch0, in); err != nil {
			t.Fatal(err)
		}
	}
	if l.State() != state {
		t.Fatalf("state %s, want %s", l.State(), state)
	}
	return l
}

var linkInputs = map[string]LinkInput{
	"LinkStart": LinkStart{},
	"Found":     Found{Seq: 1, Broker: brokerA},
	"NotFound":  NotFound{Seq: 1, Err: kafka.CoordinatorNotAvailable},
	"Doubted":   Doubted{Err: kafka.NotCoordinator, Coordinator: brokerA},
	"Need":      Need{ID: 2, Deadline: epoch0.Add(time.Second)},
	"Cancel":    Cancel{ID: 1},
	"LinkTick":  LinkTick{},
	"LinkStop":  LinkStop{},
}

const linkTable = `
DOWN Cancel: -
DOWN Doubted: -
DOWN Found: -
DOWN LinkStart: >INITIALIZED
DOWN LinkStop: -
DOWN LinkTick: -
DOWN Need: Expired
DOWN NotFound: -
INITIALIZED Cancel: -
INITIALIZED Doubted: -
INITIALIZED Found: -
INITIALIZED LinkStart: error
INITIALIZED LinkStop: >DOWN
INITIALIZED LinkTick: -
INITIALIZED Need: >DISCOVERING Find
INITIALIZED NotFound: -
DISCOVERING Cancel: -
DISCOVERING Doubted: -
DISCOVERING Found: >STABLE Ready
DISCOVERING LinkStart: error
DISCOVERING LinkStop: >DOWN Expired
DISCOVERING LinkTick: -
DISCOVERING Need: -
DISCOVERING NotFound: -
STABLE Cancel: -
STABLE Doubted: >DISCOVERING Find
STABLE Found: -
STABLE LinkStart: error
STABLE LinkStop: >DOWN
STABLE LinkTick: -
STABLE Need: Ready
STABLE NotFound: -
`

func TestEveryLinkInputHasAnOutcomeInEveryState(t *testing.T) {
	inputs := implementers(t, "linkInput")
	sameNames(t, "link inputs", slices.Collect(maps.Keys(linkInputs)), inputs)
	checkTable(t, linkTable, len(linkMoves), inputs, func(state LinkState, input string) string {
		l := linkIn(t, state)
		effects, err := l.Step(epoch0, linkInputs[input])
		if invalid := l.Valid(); invalid != nil {
			t.Errorf("%s after %s: %v", state, input, invalid)
		}
		return outcome(summary(effects), err)
	})
}

func testPulse(t *testing.T) *Pulse {
	t.Helper()
	p, err := NewPulse(PulseConfig{HeartbeatInterval: 3 * time.Second, SessionTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// pulseIn makes a heartbeat in a state; in BEATING one is due at once and none is under way. The time is pulseNow.
func pulseIn(t *testing.T, state PulseState) *Pulse {
	t.Helper()
	p := testPulse(t)
	if state == PulseIdle {
		return p
	}
	at := map[PulseState]time.Time{PulseBeating: pulseNow.Add(-3 * time.Second), PulseLapsed: pulseNow.Add(-time.Minute)}[state]
	for _, step := range []struct {
		at time.Time
		in PulseInput
	}{{at, PulseEnter{Generation: 5}}, {at, PulseTick{}}} {
		if _, err := p.Step(step.at, step.in); err != nil {
			t.Fatal(err)
		}
	}
	if state == PulseLapsed {
		if _, err := p.Step(pulseNow, PulseTick{}); err != nil {
			t.Fatal(err)
		}
	}
	if p.State() != state {
		t.Fatalf("state %s, want %s", p.State(), state)
	}
	return p
}

var pulseNow = epoch0.Add(time.Hour)

var pulseInputs = map[string]PulseInput{
	"PulseEnter":    PulseEnter{Generation: 6},
	"PulseJoin":     PulseJoin{Generation: 6},
	"PulseLeave":    PulseLeave{},
	"PulseAnswered": PulseAnswered{SentAt: pulseNow},
	"PulseNudge":    PulseNudge{},
	"PulseTick":     PulseTick{},
}

const pulseTable = `
IDLE PulseAnswered: - in IDLE
IDLE PulseEnter: - in BEATING
IDLE PulseJoin: - in IDLE
IDLE PulseLeave: - in IDLE
IDLE PulseNudge: - in IDLE
IDLE PulseTick: - in IDLE
BEATING PulseAnswered: SendHeartbeat in BEATING
BEATING PulseEnter: - in BEATING
BEATING PulseJoin: SendHeartbeat in BEATING
BEATING PulseLeave: - in IDLE
BEATING PulseNudge: SendHeartbeat in BEATING
BEATING PulseTick: SendHeartbeat in BEATING
LAPSED PulseAnswered: - in LAPSED
LAPSED PulseEnter: - in BEATING
LAPSED PulseJoin: - in LAPSED
LAPSED PulseLeave: - in IDLE
LAPSED PulseNudge: - in LAPSED
LAPSED PulseTick: - in LAPSED
`

func TestEveryPulseInputHasAnOutcomeInEveryState(t *testing.T) {
	inputs := implementers(t, "pulseInput")
	sameNames(t, "pulse inputs", slices.Collect(maps.Keys(pulseInputs)), inputs)
	checkTable(t, pulseTable, len(pulseMoves), inputs, func(state PulseState, input string) string {
		p := pulseIn(t, state)
		effects, err := p.Step(pulseNow, pulseInputs[input])
		if invalid := p.Valid(); invalid != nil {
			t.Errorf("%s after %s: %v", state, input, invalid)
		}
		return outcome(summary(effects), err) + " in " + p.State().String()
	})
}
