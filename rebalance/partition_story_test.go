package rebalance

import (
	"errors"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// partitionRig drives a partition and checks its invariants after every step.
type partitionRig struct {
	t       *testing.T
	p       *Partition
	now     time.Time
	effects []PartitionEffect
}

func newPartitionRig(t *testing.T, state PartitionState) *partitionRig {
	t.Helper()
	return &partitionRig{t: t, p: partitionIn(t, state), now: epoch0}
}

func (r *partitionRig) step(in PartitionInput, want string) *partitionRig {
	r.t.Helper()
	effects, err := r.p.Step(r.now, in)
	if err != nil {
		r.t.Fatalf("%T in %s: %v", in, r.p.State(), err)
	}
	if got := summary(effects); got != want {
		r.t.Fatalf("%T\n got  %q\n want %q", in, got, want)
	}
	if err := r.p.Valid(); err != nil {
		r.t.Fatalf("after %T: %v", in, err)
	}
	r.effects = effects
	return r
}

func (r *partitionRig) tickDue(after time.Duration, want string) *partitionRig {
	r.t.Helper()
	at, ok := r.p.Deadline()
	if !ok || at.Sub(epoch0) != after {
		r.t.Fatalf("deadline %v (%t), want %v", at.Sub(epoch0), ok, after)
	}
	r.now = at
	return r.step(PartitionTick{}, want)
}

func TestDrainedPartitionCommitsThenReleases(t *testing.T) {
	r := newPartitionRig(t, PartitionAssigned)
	r.step(drainIn(10*time.Second), ">REVOKING StopFlow")
	if r.p.CanDeliver() || !r.p.CanCommit() {
		t.Error("REVOKING delivers, or does not commit")
	}
	r.step(DeliveryEnded{}, "RequestFinalCommit")
	if got := find[RequestFinalCommit](t, r.effects).Deadline; got != epoch0.Add(13*time.Second) {
		t.Errorf("deadline %v", got)
	}
	r.step(FinalCommitAnswered{}, ">REVOKED Release")
	if release := find[Release](t, r.effects); release.Lost || release.Cause != nil || r.p.CanCommit() {
		t.Errorf("release %+v", release)
	}
	if _, ok := r.p.Deadline(); ok {
		t.Error("REVOKED has a deadline")
	}
}

func TestDrainWithNothingOutstandingCommitsAtOnce(t *testing.T) {
	r := newPartitionRig(t, PartitionAssigned).step(DeliveryEnded{}, "")
	r.step(drainIn(10*time.Second), ">REVOKING StopFlow RequestFinalCommit")
	r.tickDue(13*time.Second, ">REVOKED Release")
	if err := find[Release](t, r.effects).Cause; !errors.Is(err, ErrFinalCommitUnanswered) {
		t.Errorf("cause %v", err)
	}
	r.step(FinalCommitAnswered{}, "")
}

func TestSlowHandlerIsCanceledBeforeTheDrainEndsThenAbandoned(t *testing.T) {
	r := newPartitionRig(t, PartitionRevoking)
	r.tickDue(9*time.Second, "CancelHandler")
	if err := find[CancelHandler](t, r.effects).Cause; !errors.Is(err, ErrRevoked) {
		t.Errorf("cause %v", err)
	}
	r.tickDue(10*time.Second, "AbandonHandler RequestFinalCommit")
	r.step(DeliveryEnded{}, "") // too late to matter
	r.step(FinalCommitAnswered{Err: kafka.RebalanceInProgress}, ">REVOKED Release")
	if release := find[Release](t, r.effects); release.Lost || !errors.Is(release.Cause, kafka.RebalanceInProgress) {
		t.Errorf("release %+v", release)
	}
}

func TestHandlerThatReturnsAfterTheCancelIsInTime(t *testing.T) {
	r := newPartitionRig(t, PartitionRevoking).tickDue(9*time.Second, "CancelHandler")
	r.step(DeliveryEnded{}, "RequestFinalCommit").step(FinalCommitAnswered{}, ">REVOKED Release")
}

func TestShortDrainLeavesAFifthForTheCancel(t *testing.T) {
	r := newPartitionRig(t, PartitionAssigned).step(drainIn(time.Second), ">REVOKING StopFlow")
	r.tickDue(800*time.Millisecond, "CancelHandler")
}

func TestDrainWhoseTimeHasPassedReleasesAtOnce(t *testing.T) {
	newPartitionRig(t, PartitionAssigned).
		step(DrainRequested{}, ">REVOKING StopFlow CancelHandler AbandonHandler >REVOKED Release")
	newPartitionRig(t, PartitionAssigned).
		step(drainIn(0), ">REVOKING StopFlow CancelHandler AbandonHandler RequestFinalCommit")
}

func TestLateTickTakesAllStepsOfTheDrain(t *testing.T) {
	r := newPartitionRig(t, PartitionRevoking)
	r.now = epoch0.Add(time.Hour)
	r.step(PartitionTick{}, "CancelHandler AbandonHandler >REVOKED Release")
}

func TestLostPartitionIsReleasedWithoutACommit(t *testing.T) {
	for name, before := range map[string]func(r *partitionRig){
		"handler running":  func(*partitionRig) {},
		"handler canceled": func(r *partitionRig) { r.tickDue(9*time.Second, "CancelHandler") },
		"commit asked for": func(r *partitionRig) { r.step(DeliveryEnded{}, "RequestFinalCommit") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newPartitionRig(t, PartitionRevoking)
			before(r)
			want := map[string]string{
				"handler running":  "CancelHandler AbandonHandler >REVOKED Release",
				"handler canceled": "AbandonHandler >REVOKED Release",
				"commit asked for": ">REVOKED Release",
			}[name]
			r.step(OwnershipLost{Cause: kafka.UnknownMemberID}, want)
			release := find[Release](t, r.effects)
			if !release.Lost || !errors.Is(release.Cause, ErrLost) || !errors.Is(release.Cause, kafka.UnknownMemberID) {
				t.Errorf("release %+v", release)
			}
			r.step(FinalCommitAnswered{}, "").step(OwnershipLost{}, "").step(drainIn(0), "")
		})
	}
}

func TestLossAndDrainBeforeThePositionIsKnown(t *testing.T) {
	newPartitionRig(t, PartitionAssigning).step(OwnershipLost{}, ">REVOKING >REVOKED Release").step(PositionKnown{Offset: 1}, "")
	newPartitionRig(t, PartitionAssigning).step(drainIn(0), ">REVOKING >REVOKED Release").step(PositionKnown{Offset: 1}, "")
}

func TestSecondDrainOnlyShortens(t *testing.T) {
	r := newPartitionRig(t, PartitionRevoking)
	r.step(drainIn(time.Hour), "")
	r.step(drainIn(2*time.Second), "")
	r.tickDue(1600*time.Millisecond, "CancelHandler").tickDue(2*time.Second, "AbandonHandler RequestFinalCommit")
	r.tickDue(5*time.Second, ">REVOKED Release")
}

func TestNothingIsDeliveredOutsideAssigned(t *testing.T) {
	for _, state := range []PartitionState{PartitionAssigning, PartitionRevoking, PartitionRevoked} {
		r := newPartitionRig(t, state)
		if _, err := r.p.Step(epoch0, DeliveryStarted{}); !errors.Is(err, ErrUnexpectedInput) || r.p.CanDeliver() {
			t.Errorf("%s: %v", state, err)
		}
	}
}
