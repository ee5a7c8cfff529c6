package rebalance

import (
	"errors"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// linkRig drives a link and checks its invariants after every step.
type linkRig struct {
	t       *testing.T
	l       *Link
	now     time.Time
	effects []LinkEffect
}

func newLinkRig(t *testing.T, state LinkState) *linkRig {
	t.Helper()
	return &linkRig{t: t, l: linkIn(t, state), now: epoch0}
}

func (r *linkRig) step(in LinkInput, want string) *linkRig {
	r.t.Helper()
	effects, err := r.l.Step(r.now, in)
	if err != nil {
		r.t.Fatalf("%T in %s: %v", in, r.l.State(), err)
	}
	if got := summary(effects); got != want {
		r.t.Fatalf("%T\n got  %q\n want %q", in, got, want)
	}
	if err := r.l.Valid(); err != nil {
		r.t.Fatalf("after %T: %v", in, err)
	}
	r.effects = effects
	return r
}

func (r *linkRig) tickDue(want string) *linkRig {
	r.t.Helper()
	at, ok := r.l.Deadline()
	if !ok {
		r.t.Fatalf("no deadline in %s", r.l.State())
	}
	r.now = later(r.now, at)
	return r.step(LinkTick{}, want)
}

// The session runs while a coordinator moves; a right that is missing is another matter.
func TestACoordinatorThatMovesIsSoughtMoreOftenThanOneThatRefuses(t *testing.T) {
	for err, most := range map[error]time.Duration{
		kafka.CoordinatorNotAvailable: time.Second, errors.New("connection reset"): time.Second, kafka.GroupAuthorizationFailed: 8 * time.Second,
	} {
		l, problem := NewLink(LinkConfig{BackoffMax: 8 * time.Second, SeekAtLeast: time.Second, Seed: 1})
		if problem != nil {
			t.Fatal(problem)
		}
		r := &linkRig{t: t, l: l, now: epoch0}
		r.step(LinkStart{}, ">INITIALIZED").step(Need{ID: 1, Deadline: r.now.Add(time.Hour)}, ">DISCOVERING Find")
		for range 12 {
			r.step(NotFound{Seq: r.l.seq, Err: err}, "")
			at, _ := r.l.Deadline()
			if wait := at.Sub(r.now); wait > most {
				t.Errorf("%v: waits %v", err, wait)
			}
			r.now = at
			r.step(LinkTick{}, "Find")
		}
		r.step(NotFound{Seq: r.l.seq, Err: err}, "")
		if at, _ := r.l.Deadline(); at.Sub(r.now) < most*8/10 {
			t.Errorf("%v: waits %v after many failures", err, at.Sub(r.now))
		}
	}
}

func TestCoordinatorIsSoughtUntilFoundAndWorkIsServedInOrder(t *testing.T) {
	r := newLinkRig(t, LinkInitialized)
	r.step(Need{ID: 7, Deadline: r.now.Add(time.Hour)}, ">DISCOVERING Find")
	r.step(Need{ID: 3, Deadline: r.now.Add(time.Hour)}, "")
	for range 20 {
		r.step(NotFound{Seq: r.l.seq, Err: kafka.CoordinatorNotAvailable}, "")
		if at, _ := r.l.Deadline(); at.Sub(r.now) > time.Second || at.Sub(r.now) < 80*time.Millisecond {
			t.Errorf("waits %v", at.Sub(r.now))
		}
		r.tickDue("Find")
	}
	r.step(Found{Seq: r.l.seq - 1, Broker: brokerA}, "") // stale
	r.step(Found{Seq: r.l.seq, Broker: brokerA}, ">STABLE Ready Ready")
	if first := r.effects[1].(Ready); first.ID != 7 || first.Broker != brokerA {
		t.Errorf("first %+v", first)
	}
	if broker, ok := r.l.Coordinator(); !ok || broker != brokerA {
		t.Errorf("coordinator %v %t", broker, ok)
	}
}

func TestWorkExpiresWithTheLastFailure(t *testing.T) {
	r := newLinkRig(t, LinkDiscovering).step(NotFound{Seq: 1, Err: kafka.CoordinatorNotAvailable}, "")
	r.step(Need{ID: 2, Deadline: r.now.Add(50 * time.Millisecond)}, "")
	r.tickDue("Expired")
	expired := find[Expired](t, r.effects)
	if expired.ID != 2 || !errors.Is(expired.Err, ErrNoCoordinator) || !errors.Is(expired.Err, kafka.CoordinatorNotAvailable) {
		t.Errorf("expired %+v", expired)
	}
	r.tickDue("Find") // the search goes on
	r.step(Need{ID: 3, Deadline: r.now}, "Expired")
	r.step(Cancel{ID: 1}, "").step(Cancel{ID: 1}, "")
	r.step(Found{Seq: r.l.seq, Broker: brokerA}, ">STABLE")
}

func TestWorkThatExpiredMeanwhileIsNotReady(t *testing.T) {
	r := newLinkRig(t, LinkDiscovering)
	r.now = r.now.Add(time.Minute)
	r.step(Found{Seq: 1, Broker: brokerA}, ">STABLE Expired")
}

func TestDoubtAboutAnotherBrokerIsIgnored(t *testing.T) {
	r := newLinkRig(t, LinkStable)
	r.step(Doubted{Err: kafka.NotCoordinator, Coordinator: kafka.Broker{ID: 2, Addr: "b:9092"}}, "")
	r.step(Doubted{Err: kafka.NotCoordinator, Coordinator: kafka.Broker{ID: 1, Addr: "old:9092"}}, "")
	r.step(Doubted{Err: kafka.NotCoordinator, Coordinator: kafka.Broker{ID: 1, Addr: "a:9092", Rack: "r"}}, ">DISCOVERING Find")
}

func TestCoordinatorDoubtedTimeAndAgainIsSoughtWithBackoff(t *testing.T) {
	r := newLinkRig(t, LinkStable)
	began := r.now
	r.step(Doubted{Err: kafka.NotCoordinator, Coordinator: brokerA}, ">DISCOVERING Find")
	for range 8 {
		r.step(Found{Seq: r.l.seq, Broker: brokerA}, ">STABLE") // the same node is a valid answer
		r.step(Doubted{Err: kafka.NotCoordinator, Coordinator: brokerA}, ">DISCOVERING")
		r.tickDue("Find")
	}
	if got := r.now.Sub(began); got < 3*time.Second {
		t.Errorf("eight doubts in %v", got)
	}
	r.step(Found{Seq: r.l.seq, Broker: brokerA}, ">STABLE")
	r.now = r.now.Add(time.Second) // calm
	r.step(Doubted{Err: errNetwork, Coordinator: brokerA}, ">DISCOVERING Find")
}

func TestStoppedLinkFailsWhatWaitsAndMayStartAgain(t *testing.T) {
	r := newLinkRig(t, LinkDiscovering).step(LinkStop{}, ">DOWN Expired")
	if err := find[Expired](t, r.effects).Err; !errors.Is(err, ErrLinkDown) {
		t.Errorf("expired with %v", err)
	}
	r.step(Found{Seq: 1, Broker: brokerA}, "").step(LinkStart{}, ">INITIALIZED")
	r.step(Need{ID: 1, Deadline: r.now.Add(time.Second)}, ">DISCOVERING Find")
	r.step(Found{Seq: 1, Broker: brokerA}, "") // of the life before
}

func TestWorkNeedsADeadlineAndANumberOfItsOwn(t *testing.T) {
	for _, in := range []LinkInput{Need{ID: 9}, Need{ID: 1, Deadline: epoch0.Add(time.Second)}} {
		if _, err := linkIn(t, LinkDiscovering).Step(epoch0, in); !errors.Is(err, ErrUnexpectedInput) {
			t.Errorf("%+v: %v", in, err)
		}
	}
	for _, config := range []LinkConfig{{BackoffInitial: -1}, {BackoffMax: -1}, {BackoffInitial: 2, BackoffMax: 1}} {
		if _, err := NewLink(config); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", config, err)
		}
	}
}
