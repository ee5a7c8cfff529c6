package rebalance

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// PartitionState is the state of one partition under one assignment epoch.
type PartitionState uint8

const (
	// PartitionAssigning: granted, the starting position is being looked for. Nothing is fetched, delivered or committed.
	// Left when the position is known, or when the partition goes again before that.
	PartitionAssigning PartitionState = iota
	// PartitionAssigned: records are fetched, delivered and committed. Left when a drain is asked for or ownership is lost.
	PartitionAssigned
	// PartitionRevoking: nothing new is fetched or delivered; a delivery under way ends, then the final commit goes out.
	// A partition that was lost passes through without either. Left at the latest at the deadline.
	PartitionRevoking
	// PartitionRevoked: released. Nothing of this epoch is delivered or committed any more. Never left; a new grant is a
	// new machine with a new epoch.
	PartitionRevoked
)

// partitionMoves are the legal changes of a partition's state.
var partitionMoves = moves[PartitionState]{
	PartitionAssigning: {PartitionAssigned, PartitionRevoking},
	PartitionAssigned:  {PartitionRevoking},
	PartitionRevoking:  {PartitionRevoked},
	PartitionRevoked:   {},
}

// String returns the state's word in upper case.
func (s PartitionState) String() string {
	switch s {
	case PartitionAssigning:
		return "ASSIGNING"
	case PartitionAssigned:
		return "ASSIGNED"
	case PartitionRevoking:
		return "REVOKING"
	case PartitionRevoked:
		return "REVOKED"
	}
	return "PartitionState(" + strconv.Itoa(int(s)) + ")"
}

// Causes that a handler sees on its canceled context.
var (
	// ErrRevoked means that the partition goes to another member in a rebalance.
	ErrRevoked = errors.New("partition revoked")
	// ErrLost means that the partition was lost: fenced, or the session expired.
	ErrLost = errors.New("partition lost")
)

// cancelGrace is the most that a handler gets between the cancel of its context and the end of the drain.
const cancelGrace = time.Second

// drainStep is how far a partition in REVOKING is.
type drainStep uint8

const (
	// drainHandler: a delivery is outstanding and waited for.
	drainHandler drainStep = iota
	// drainCommit: the final commit is.
	drainCommit
)

// handlerView is what the machine knows of the handler.
type handlerView uint8

const (
	// handlerIdle: no delivery is outstanding.
	handlerIdle handlerView = iota
	// handlerBusy: at least one is.
	handlerBusy
	// handlerCanceled: at least one is and the handler was told to return.
	handlerCanceled
)

// Partition is one partition under one assignment epoch. It is not safe for concurrent use.
//
// Invariants ([Partition.Valid]): records flow only in ASSIGNED; the drain's times are set only in REVOKING and in order;
// REVOKED has been reached exactly when Release was returned.
type Partition struct {
	grant   Grant
	state   PartitionState
	handler handlerView
	step    drainStep
	// cancelAt, drainUntil and deadline are the drain's times, zero outside REVOKING.
	cancelAt, drainUntil, deadline time.Time

	out []PartitionEffect
}

// NewPartition returns a partition in ASSIGNING.
func NewPartition(grant Grant) *Partition { return &Partition{grant: grant} }

// Grant returns the partition and its epoch.
func (p *Partition) Grant() Grant { return p.grant }

// State returns the partition's state.
func (p *Partition) State() PartitionState { return p.state }

// CanDeliver reports whether records may be given to the handler.
func (p *Partition) CanDeliver() bool { return p.state == PartitionAssigned }

// CanCommit reports whether acknowledgements of this epoch still count.
func (p *Partition) CanCommit() bool {
	return p.state == PartitionAssigned || p.state == PartitionRevoking
}

// Step takes one input and returns what to do about it, in order. With an error the input had no consequence.
func (p *Partition) Step(now time.Time, in PartitionInput) ([]PartitionEffect, error) {
	p.out = nil
	err := p.handle(now, in)
	return p.out, err
}

func (p *Partition) handle(now time.Time, in PartitionInput) error {
	switch in := in.(type) {
	case PositionKnown:
		return p.positionKnown(in)
	case DrainRequested:
		return p.drain(now, in)
	case OwnershipLost:
		return p.lost(in)
	case DeliveryStarted:
		return p.deliveryStarted()
	case DeliveryEnded:
		return p.deliveryEnded(now)
	case FinalCommitAnswered:
		return p.finalCommitAnswered(in)
	case PartitionTick:
		return p.goOn(now)
	}
	return unexpected(in, p.state)
}

// move is the only place where the state changes.
func (p *Partition) move(to PartitionState, cause string, err error) error {
	if illegal := partitionMoves.check(p.state, to); illegal != nil {
		return illegal
	}
	p.emit(PartitionMoved{From: p.state, To: to, Cause: cause, Err: err})
	p.state = to
	if to != PartitionRevoking {
		p.cancelAt, p.drainUntil, p.deadline = time.Time{}, time.Time{}, time.Time{}
	}
	return nil
}

func (p *Partition) emit(effects ...PartitionEffect) { p.out = append(p.out, effects...) }

func (p *Partition) positionKnown(in PositionKnown) error {
	switch p.state {
	case PartitionAssigning:
		if err := p.move(PartitionAssigned, "position known", nil); err != nil {
			return err
		}
		p.emit(StartFlow(in))
		return nil
	case PartitionAssigned:
		return unexpected(in, p.state)
	case PartitionRevoking, PartitionRevoked:
		// The look-up took longer than the ownership.
	}
	return nil
}

func (p *Partition) drain(now time.Time, in DrainRequested) error {
	// Times that have passed, zero included, mean now.
	in.Deadline = later(in.Deadline, now)
	in.DrainUntil = earlier(later(in.DrainUntil, now), in.Deadline)
	switch p.state {
	case PartitionAssigning:
		// Nothing was delivered, so there is nothing to wait for and nothing to commit.
		if err := p.move(PartitionRevoking, "revoked", nil); err != nil {
			return err
		}
		return p.release("nothing delivered", false, nil)
	case PartitionAssigned:
		if err := p.move(PartitionRevoking, "revoked", nil); err != nil {
			return err
		}
		p.step = drainHandler
		p.drainUntil, p.deadline = in.DrainUntil, in.Deadline
		p.cancelAt = cancelTime(now, in.DrainUntil)
		p.emit(StopFlow{})
		return p.goOn(now)
	case PartitionRevoking:
		p.drainUntil = earlier(p.drainUntil, in.DrainUntil)
		p.deadline = earlier(p.deadline, in.Deadline)
		p.cancelAt = earlier(p.cancelAt, cancelTime(now, p.drainUntil))
		return p.goOn(now)
	case PartitionRevoked:
	}
	return nil
}

// cancelTime leaves handlers that wait on their context a fifth of the drain, at most a second, to return in time.
func cancelTime(now, drainUntil time.Time) time.Time {
	return drainUntil.Add(-min(cancelGrace, max(0, drainUntil.Sub(now)/5)))
}

func (p *Partition) lost(in OwnershipLost) error {
	cause := fmt.Errorf("rebalance: %s (epoch %d): %w", p.grant.TopicPartition, p.grant.Epoch, ErrLost)
	if in.Cause != nil {
		cause = fmt.Errorf("%w: %w", cause, in.Cause)
	}
	switch p.state {
	case PartitionAssigning, PartitionAssigned:
		flowing := p.state == PartitionAssigned
		if err := p.move(PartitionRevoking, "lost", in.Cause); err != nil {
			return err
		}
		if flowing {
			p.emit(StopFlow{})
		}
	case PartitionRevoking:
	case PartitionRevoked:
		return nil
	}
	if p.handler == handlerBusy {
		p.cancelHandler(cause)
	}
	if p.handler == handlerCanceled && p.step == drainHandler {
		p.emit(AbandonHandler{})
	}
	return p.release("lost", true, cause)
}

func (p *Partition) cancelHandler(cause error) {
	p.handler = handlerCanceled
	p.emit(CancelHandler{Cause: cause})
}

func (p *Partition) deliveryStarted() error {
	if !p.CanDeliver() {
		return unexpected(DeliveryStarted{}, p.state)
	}
	p.handler = handlerBusy
	return nil
}

func (p *Partition) deliveryEnded(now time.Time) error {
	switch p.state {
	case PartitionAssigning:
		return unexpected(DeliveryEnded{}, p.state)
	case PartitionAssigned:
		p.handler = handlerIdle
	case PartitionRevoking:
		p.handler = handlerIdle
		return p.goOn(now)
	case PartitionRevoked:
		// An abandoned handler came back.
		p.handler = handlerIdle
	}
	return nil
}

// goOn takes the steps of the drain that are due.
func (p *Partition) goOn(now time.Time) error {
	if p.state != PartitionRevoking {
		return nil
	}
	if p.step == drainHandler {
		if p.handler == handlerBusy && !now.Before(p.cancelAt) {
			p.cancelHandler(fmt.Errorf("rebalance: %s (epoch %d): %w", p.grant.TopicPartition, p.grant.Epoch, ErrRevoked))
		}
		if p.handler != handlerIdle {
			if now.Before(p.drainUntil) {
				return nil
			}
			p.emit(AbandonHandler{})
		}
		p.step = drainCommit
		if now.Before(p.deadline) {
			p.emit(RequestFinalCommit{Deadline: p.deadline})
		}
	}
	if now.Before(p.deadline) {
		return nil
	}
	err := fmt.Errorf("rebalance: %s (epoch %d): %w", p.grant.TopicPartition, p.grant.Epoch, ErrFinalCommitUnanswered)
	return p.release("deadline passed", false, err)
}

func (p *Partition) finalCommitAnswered(in FinalCommitAnswered) error {
	switch p.state {
	case PartitionAssigning, PartitionAssigned:
		return unexpected(in, p.state)
	case PartitionRevoking:
		if p.step != drainCommit {
			return unexpected(in, p.state)
		}
		cause := in.Err
		if cause != nil {
			cause = fmt.Errorf("rebalance: final commit of %s (epoch %d): %w", p.grant.TopicPartition, p.grant.Epoch, in.Err)
		}
		return p.release("final commit answered", false, cause)
	case PartitionRevoked:
		// Answered after the deadline.
	}
	return nil
}

func (p *Partition) release(why string, lost bool, cause error) error {
	if err := p.move(PartitionRevoked, why, cause); err != nil {
		return err
	}
	p.emit(Release{Lost: lost, Cause: cause})
	return nil
}

// Deadline returns when the partition wants a [PartitionTick], and false when it does not.
func (p *Partition) Deadline() (time.Time, bool) {
	if p.state != PartitionRevoking {
		return time.Time{}, false
	}
	switch {
	case p.step == drainCommit:
		return p.deadline, true
	case p.handler == handlerBusy:
		return earlier(p.cancelAt, p.drainUntil), true
	}
	return p.drainUntil, true
}

// Valid checks the partition's invariants between two steps. A non-nil error wraps [ErrInvalid] and means a bug in this
// package.
func (p *Partition) Valid() error {
	timed := !p.drainUntil.IsZero() && !p.deadline.IsZero() && !p.cancelAt.IsZero()
	switch p.state {
	case PartitionAssigning:
		if p.handler != handlerIdle {
			return invalid("a delivery is outstanding in %s", p.state)
		}
	case PartitionAssigned:
		if p.handler == handlerCanceled {
			return invalid("the handler is canceled in %s", p.state)
		}
	case PartitionRevoking:
		if !timed || p.cancelAt.After(p.drainUntil) || p.drainUntil.After(p.deadline) {
			return invalid("drain times %v, %v, %v", p.cancelAt, p.drainUntil, p.deadline)
		}
		if p.step == drainHandler && p.handler == handlerIdle {
			return invalid("waiting for a handler that is idle")
		}
		return nil
	case PartitionRevoked:
	default:
		return invalid("state %s", p.state)
	}
	if timed {
		return invalid("drain times are set in %s", p.state)
	}
	return nil
}
