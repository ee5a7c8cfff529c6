package rebalance

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// PulseInput is one thing that happened to the heartbeat, given to [Pulse.Step].
//
//sumtype:decl
type PulseInput interface{ pulseInput() }

// PulseEnter begins heartbeats for a generation; it replaces the one before. The session counts from now.
type PulseEnter struct {
	Generation kafka.Generation
	// Early makes the first heartbeats come after 100, 200, 400 ms ... up to the interval, to notice early that the group
	// rebalances once more (cooperative). Otherwise there is one per interval from the start.
	Early bool
}

// PulseJoin has the heartbeats go on for a newer generation of the same membership, at once. The session goes on counting: how long
// the answer that brought it was under way is not known. It changes nothing when there are none.
type PulseJoin struct{ Generation kafka.Generation }

// PulseLeave ends heartbeats.
type PulseLeave struct{}

// PulseAnswered answers [SendHeartbeat]: it was sent at SentAt. Err is nil, wraps a kafka.ErrorCode, or is a transport error.
type PulseAnswered struct {
	SentAt time.Time
	Err    error
}

// PulseNudge asks for a heartbeat now, for example because the coordinator moved.
type PulseNudge struct{}

// PulseTick says that the time [Pulse.Deadline] named has come.
type PulseTick struct{}

func (PulseEnter) pulseInput()    {}
func (PulseJoin) pulseInput()     {}
func (PulseLeave) pulseInput()    {}
func (PulseAnswered) pulseInput() {}
func (PulseNudge) pulseInput()    {}
func (PulseTick) pulseInput()     {}

// PulseEffect is one thing the shell must do after [Pulse.Step], in the order given.
//
//sumtype:decl
type PulseEffect interface{ pulseEffect() }

// SendHeartbeat: send a heartbeat of Generation; answer with [PulseAnswered], in every case and also after [PulseLeave]: there
// is never a second heartbeat before that.
type SendHeartbeat struct {
	Generation kafka.Generation
	// SentAt is now; give it back with the answer.
	SentAt time.Time
	// Deadline is when to give up waiting for the answer, so that a frozen coordinator does not use up the session.
	Deadline time.Time
}

// SessionLapsed: no heartbeat of Generation was answered for the session timeout. Comes once per generation, and no
// heartbeat follows until the next [PulseEnter].
type SessionLapsed struct{ Generation kafka.Generation }

func (SendHeartbeat) pulseEffect() {}
func (SessionLapsed) pulseEffect() {}

// PulseState is the state of the heartbeat.
type PulseState uint8

const (
	// PulseIdle: no generation, nothing is sent. Left by [PulseEnter].
	PulseIdle PulseState = iota
	// PulseBeating: heartbeats go out. Left by [PulseLeave] or when the session ends.
	PulseBeating
	// PulseLapsed: the session ended; nothing is sent. Left by [PulseEnter] or [PulseLeave].
	PulseLapsed
)

// pulseMoves are the legal changes of the heartbeat's state.
var pulseMoves = moves[PulseState]{
	PulseIdle:    {PulseBeating},
	PulseBeating: {PulseIdle, PulseLapsed},
	PulseLapsed:  {PulseIdle, PulseBeating},
}

// String returns the state's word in upper case.
func (s PulseState) String() string {
	switch s {
	case PulseIdle:
		return "IDLE"
	case PulseBeating:
		return "BEATING"
	case PulseLapsed:
		return "LAPSED"
	}
	return "PulseState(" + strconv.Itoa(int(s)) + ")"
}

const (
	// pulseRetry is the longest wait after a failed heartbeat.
	pulseRetry = 500 * time.Millisecond
	// pulseEarly is the first wait when heartbeats begin early, and the shortest between two heartbeats.
	pulseEarly = 100 * time.Millisecond
)

// PulseConfig is what a [Pulse] needs to know.
type PulseConfig struct {
	// HeartbeatInterval is the time between heartbeats (heartbeat.interval.ms). Below SessionTimeout.
	HeartbeatInterval time.Duration
	// SessionTimeout is how long the coordinator waits for one (session.timeout.ms).
	SessionTimeout time.Duration
}

// Pulse says when to send a heartbeat and when the session is over. It is not safe for concurrent use.
//
// A success counts from when the heartbeat was sent: what a coordinator or this process answered after being frozen proves
// nothing about the time between.
//
// Invariants ([Pulse.Valid]): in BEATING the next heartbeat is planned; the session began at or before the last input; at
// most one heartbeat is under way.
type Pulse struct {
	config     PulseConfig
	state      PulseState
	generation kafka.Generation
	// alive is when the coordinator last knew of us for certain, entered when the generation began here.
	alive, entered time.Time
	// next is when the next heartbeat is due; it waits for one under way. gap is the time between two.
	next time.Time
	gap  time.Duration
	// sentAt is when the heartbeat under way was sent, zero when none is; lastSent is when the last one was.
	sentAt, lastSent time.Time

	out []PulseEffect
}

// NewPulse returns a heartbeat in IDLE.
func NewPulse(config PulseConfig) (*Pulse, error) {
	if config.HeartbeatInterval <= 0 || config.SessionTimeout <= config.HeartbeatInterval {
		return nil, fmt.Errorf("rebalance: pulse: %w: HeartbeatInterval %v, SessionTimeout %v",
			ErrConfig, config.HeartbeatInterval, config.SessionTimeout)
	}
	return &Pulse{config: config, generation: kafka.NoGeneration}, nil
}

// State returns the heartbeat's state.
func (p *Pulse) State() PulseState { return p.state }

// Generation returns the generation the heartbeats are for, [kafka.NoGeneration] in IDLE.
func (p *Pulse) Generation() kafka.Generation { return p.generation }

// Step takes one input and returns what to do about it, in order.
func (p *Pulse) Step(now time.Time, in PulseInput) ([]PulseEffect, error) {
	p.out = nil
	err := p.handle(now, in)
	return p.out, err
}

func (p *Pulse) handle(now time.Time, in PulseInput) error {
	switch in := in.(type) {
	case PulseEnter:
		return p.enter(now, in)
	case PulseJoin:
		if p.state != PulseBeating {
			return nil
		}
		p.generation = in.Generation
		p.soon(now)
	case PulseLeave:
		if p.state == PulseIdle {
			return nil
		}
		return p.move(PulseIdle)
	case PulseAnswered:
		p.answered(now, in)
	case PulseNudge:
		p.soon(now)
	case PulseTick:
	default:
		return unexpected(in, p.state)
	}
	return p.goOn(now)
}

// move is the only place where the state changes.
func (p *Pulse) move(to PulseState) error {
	if illegal := pulseMoves.check(p.state, to); illegal != nil {
		return illegal
	}
	p.state = to
	if to == PulseIdle {
		p.generation = kafka.NoGeneration
	}
	return nil
}

func (p *Pulse) enter(now time.Time, in PulseEnter) error {
	if in.Generation == kafka.NoGeneration {
		return fmt.Errorf("rebalance: pulse: %w: PulseEnter without a generation", ErrUnexpectedInput)
	}
	if p.state != PulseBeating {
		if err := p.move(PulseBeating); err != nil {
			return err
		}
	}
	p.generation = in.Generation
	p.alive, p.entered = now, now
	p.gap = p.config.HeartbeatInterval
	if in.Early {
		p.gap = min(p.gap, pulseEarly)
	}
	p.next = now.Add(p.gap)
	return nil
}

// answered takes in the answer of the heartbeat under way.
func (p *Pulse) answered(now time.Time, in PulseAnswered) {
	if p.sentAt.IsZero() || !in.SentAt.Equal(p.sentAt) {
		return
	}
	p.sentAt = time.Time{}
	if in.SentAt.Before(p.entered) || p.state != PulseBeating {
		// It was for the generation before and says nothing of this one.
		return
	}
	if in.Err == nil || errors.Is(in.Err, kafka.RebalanceInProgress) {
		p.alive = later(p.alive, in.SentAt)
		p.gap = min(p.gap*2, p.config.HeartbeatInterval)
		p.next = in.SentAt.Add(p.gap)
		return
	}
	p.next = now.Add(min(p.config.HeartbeatInterval, pulseRetry))
}

// soon plans a heartbeat without a wait, but not more often than the early pace, whoever asks.
func (p *Pulse) soon(now time.Time) {
	p.next = earlier(p.next, later(now, p.lastSent.Add(p.shortest())))
}

func (p *Pulse) shortest() time.Duration { return min(p.config.HeartbeatInterval, pulseEarly) }

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// goOn does what is due: first of all it says that the session is over, since a tick may come very late.
func (p *Pulse) goOn(now time.Time) error {
	if p.state != PulseBeating {
		return nil
	}
	if !now.Before(p.sessionEnds()) {
		p.out = append(p.out, SessionLapsed{Generation: p.generation})
		return p.move(PulseLapsed)
	}
	if !p.sentAt.IsZero() || now.Before(p.next) {
		return nil
	}
	p.sentAt, p.lastSent = now, now
	p.next = now.Add(p.gap)
	wait := max(p.config.HeartbeatInterval, p.config.SessionTimeout/3)
	p.out = append(p.out, SendHeartbeat{Generation: p.generation, SentAt: now, Deadline: now.Add(wait)})
	return nil
}

func (p *Pulse) sessionEnds() time.Time { return p.alive.Add(p.config.SessionTimeout) }

// Deadline returns when the heartbeat wants a [PulseTick], and false when it does not.
func (p *Pulse) Deadline() (time.Time, bool) {
	if p.state != PulseBeating {
		return time.Time{}, false
	}
	if !p.sentAt.IsZero() {
		return p.sessionEnds(), true
	}
	return earlier(p.next, p.sessionEnds()), true
}

// Valid checks the heartbeat's invariants between two steps. A non-nil error wraps [ErrInvalid] and means a bug in this
// package.
func (p *Pulse) Valid() error {
	if (p.state == PulseIdle) != (p.generation == kafka.NoGeneration) {
		return invalid("generation %d in %s", p.generation, p.state)
	}
	if p.state == PulseBeating && (p.next.IsZero() || p.alive.Before(p.entered) || p.gap <= 0) {
		return invalid("next %v, alive %v, entered %v, gap %v", p.next, p.alive, p.entered, p.gap)
	}
	if !p.sentAt.IsZero() && !p.sentAt.Equal(p.lastSent) {
		return invalid("under way since %v, last sent %v", p.sentAt, p.lastSent)
	}
	return nil
}
