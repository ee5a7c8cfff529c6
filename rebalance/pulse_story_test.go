package rebalance

import (
	"errors"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// pulseRig drives a heartbeat and checks its invariants after every step.
type pulseRig struct {
	t   *testing.T
	p   *Pulse
	now time.Time
}

func newPulseRig(t *testing.T) *pulseRig {
	t.Helper()
	return &pulseRig{t: t, p: testPulse(t), now: epoch0}
}

func (r *pulseRig) step(in PulseInput, want string) *pulseRig {
	r.t.Helper()
	effects, err := r.p.Step(r.now, in)
	if err != nil {
		r.t.Fatalf("%T in %s: %v", in, r.p.State(), err)
	}
	if got := summary(effects); got != want {
		r.t.Fatalf("%T at %v\n got  %q\n want %q", in, r.now.Sub(epoch0), got, want)
	}
	if err := r.p.Valid(); err != nil {
		r.t.Fatalf("after %T: %v", in, err)
	}
	return r
}

func (r *pulseRig) tickDue(after time.Duration, want string) *pulseRig {
	r.t.Helper()
	at, ok := r.p.Deadline()
	if !ok || at.Sub(epoch0) != after {
		r.t.Fatalf("deadline %v (%t), want %v", at.Sub(epoch0), ok, after)
	}
	r.now = at
	return r.step(PulseTick{}, want)
}

func (r *pulseRig) answer(err error) PulseAnswered {
	return PulseAnswered{SentAt: r.p.sentAt, Err: err}
}

func (r *pulseRig) wait(d time.Duration) *pulseRig { r.now = r.now.Add(d); return r }

func TestHeartbeatsComeOncePerIntervalFromWhenTheyWereSent(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5}, "")
	r.tickDue(3*time.Second, "SendHeartbeat")
	r.wait(time.Second).step(r.answer(nil), "")
	r.tickDue(6*time.Second, "SendHeartbeat")
	r.wait(time.Second).step(r.answer(kafka.RebalanceInProgress), "") // the coordinator knows us
	r.tickDue(9*time.Second, "SendHeartbeat")
}

func TestHeartbeatsGoOnForTheGenerationThatWasJoinedAndTheSessionCountsOn(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5}, "").tickDue(3*time.Second, "SendHeartbeat")
	r.step(r.answer(kafka.RebalanceInProgress), "")
	r.wait(time.Second)
	effects, err := r.p.Step(r.now, PulseJoin{Generation: 6})
	if sent := find[SendHeartbeat](t, effects); err != nil || sent.Generation != 6 {
		t.Errorf("%v, %v", effects, err)
	}
	r.wait(4*time.Second).step(PulseAnswered{SentAt: r.p.sentAt, Err: errors.New("cut")}, "")
	r.now = epoch0.Add(12 * time.Second) // ten after the last one that was answered was sent, and more
	r.step(PulseTick{}, "SendHeartbeat")
	r.tickDue(13*time.Second, "SessionLapsed")
	r.step(PulseJoin{Generation: 7}, "")
}

func TestSuccessCountsFromWhenItWasSent(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5}, "").tickDue(3*time.Second, "SendHeartbeat")
	r.wait(6*time.Second).step(r.answer(nil), "SendHeartbeat")
	r.tickDue(13*time.Second, "SessionLapsed") // not 19 s
	if r.p.State() != PulseLapsed {
		t.Errorf("state %s", r.p.State())
	}
}

func TestFrozenProcessSaysLapsedBeforeAnythingElse(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5}, "")
	r.wait(time.Minute).step(PulseTick{}, "SessionLapsed").step(PulseTick{}, "").step(PulseNudge{}, "")

	r = newPulseRig(t).step(PulseEnter{Generation: 5}, "").tickDue(3*time.Second, "SendHeartbeat")
	r.wait(time.Minute).step(r.answer(nil), "SessionLapsed") // a stale success proves nothing
	r.step(PulseEnter{Generation: 6}, "").wait(3*time.Second).step(PulseTick{}, "SendHeartbeat")
}

func TestAtMostOneHeartbeatIsUnderWay(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5}, "").tickDue(3*time.Second, "SendHeartbeat")
	r.wait(4*time.Second).step(PulseTick{}, "").step(PulseNudge{}, "")
	r.tickDue(10*time.Second, "SessionLapsed")
}

func TestFailedHeartbeatIsRepeatedSoonButNotInALoop(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5}, "").tickDue(3*time.Second, "SendHeartbeat")
	for i := range 13 {
		r.step(r.answer(errNetwork), "")
		r.tickDue(3*time.Second+time.Duration(i+1)*500*time.Millisecond, "SendHeartbeat")
	}
	r.step(r.answer(errNetwork), "").tickDue(10*time.Second, "SessionLapsed")
}

func TestEarlyHeartbeatsDoubleUpToTheInterval(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5, Early: true}, "")
	var at time.Duration
	for _, gap := range []time.Duration{100, 200, 400, 800, 1600, 3000, 3000} {
		at += gap * time.Millisecond
		r.tickDue(at, "SendHeartbeat").step(r.answer(nil), "")
	}
}

func TestAnswerOfTheGenerationBeforeSaysNothingOfThisOne(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5}, "").tickDue(3*time.Second, "SendHeartbeat")
	old := r.answer(nil)
	r.wait(time.Second).step(PulseEnter{Generation: 6}, "")
	r.wait(3*time.Second).step(PulseTick{}, "") // one is still under way
	r.step(old, "SendHeartbeat")
	r.step(PulseAnswered{SentAt: epoch0, Err: nil}, "") // unknown
	r.tickDue(14*time.Second, "SessionLapsed")
}

func TestNudgeSendsAtOnceButNotTooOften(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5}, "").wait(time.Second).step(PulseNudge{}, "SendHeartbeat")
	r.step(r.answer(errNetwork), "").step(PulseNudge{}, "")
	r.tickDue(1100*time.Millisecond, "SendHeartbeat")
}

func TestNothingIsSentWithoutAGeneration(t *testing.T) {
	r := newPulseRig(t).step(PulseEnter{Generation: 5}, "").tickDue(3*time.Second, "SendHeartbeat")
	sent := r.answer(kafka.UnknownMemberID)
	r.step(PulseLeave{}, "").step(sent, "").wait(time.Hour).step(PulseTick{}, "")
	if _, ok := r.p.Deadline(); ok || r.p.Generation() != kafka.NoGeneration {
		t.Error("IDLE wants something")
	}
	if _, err := r.p.Step(r.now, PulseEnter{Generation: kafka.NoGeneration}); !errors.Is(err, ErrUnexpectedInput) {
		t.Errorf("entered no generation: %v", err)
	}
	for _, config := range []PulseConfig{{}, {HeartbeatInterval: 2, SessionTimeout: 2}} {
		if _, err := NewPulse(config); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", config, err)
		}
	}
}
