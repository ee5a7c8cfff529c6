package rebalance

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// LinkState is the state of the link to the group's coordinator.
type LinkState uint8

const (
	// LinkDown: not started, or stopped. Nothing is sent; work that asks for a coordinator fails at once.
	LinkDown LinkState = iota
	// LinkInitialized: started, and nobody has needed a coordinator yet. Nothing is sent. Left by the first [Need].
	LinkInitialized
	// LinkDiscovering: FindCoordinator is under way or waits for its next try; work waits up to its deadline. Left when a
	// coordinator is found. The search never ends by itself.
	LinkDiscovering
	// LinkStable: the coordinator is known. Left when its user doubts it.
	LinkStable
)

// linkMoves are the legal changes of the link's state.
var linkMoves = moves[LinkState]{
	LinkDown:        {LinkInitialized},
	LinkInitialized: {LinkDown, LinkDiscovering},
	LinkDiscovering: {LinkDown, LinkStable},
	LinkStable:      {LinkDown, LinkDiscovering},
}

// String returns the state's word in upper case.
func (s LinkState) String() string {
	switch s {
	case LinkDown:
		return "DOWN"
	case LinkInitialized:
		return "INITIALIZED"
	case LinkDiscovering:
		return "DISCOVERING"
	case LinkStable:
		return "STABLE"
	}
	return "LinkState(" + strconv.Itoa(int(s)) + ")"
}

// LinkConfig is what a [Link] needs to know.
type LinkConfig struct {
	// BackoffInitial is the wait after the first failed search, doubled with each further one. Zero = 100 ms.
	BackoffInitial time.Duration
	// BackoffMax is the longest wait. A coordinator that was good for this long counts as found for good. Zero = 10 s.
	BackoffMax time.Duration
	// SeekAtLeast is the longest wait after a failure that may pass by itself, such as a coordinator that moves: the session
	// runs meanwhile. A missing right, which somebody has to grant, is waited for as long as BackoffMax says. Zero = BackoffMax.
	SeekAtLeast time.Duration
	// Seed is for jitter.
	Seed uint64
}

// Link is what is known of the group's coordinator. It is not safe for concurrent use.
//
// Invariants ([Link.Valid]): work waits only in DISCOVERING, each with a deadline and a number of its own; in DISCOVERING
// exactly one search is under way or planned, elsewhere none.
type Link struct {
	state       LinkState
	backoff     backoff
	seekAtLeast time.Duration
	seq         uint64
	// searching is the number of the search under way, zero when none is; retryAt is when the next one starts.
	searching uint64
	retryAt   time.Time
	// broker is the coordinator, known since stableSince; both zero outside STABLE.
	broker      kafka.Broker
	stableSince time.Time
	// waiting is in the order of arrival.
	waiting []Need
	// lastErr is the last failure since the coordinator was known.
	lastErr error

	out []LinkEffect
}

// NewLink returns a link in DOWN.
func NewLink(config LinkConfig) (*Link, error) {
	if config.BackoffInitial < 0 || config.BackoffMax < 0 ||
		config.BackoffMax > 0 && config.BackoffInitial > config.BackoffMax {
		return nil, fmt.Errorf("rebalance: link: %w: backoff from %v to %v", ErrConfig, config.BackoffInitial, config.BackoffMax)
	}
	l := &Link{backoff: newBackoff(config.BackoffInitial, config.BackoffMax, config.Seed), seekAtLeast: config.SeekAtLeast}
	if l.seekAtLeast <= 0 {
		l.seekAtLeast = l.backoff.max
	}
	return l, nil
}

// State returns the link's state.
func (l *Link) State() LinkState { return l.state }

// Coordinator returns the coordinator, and false when it is not known.
func (l *Link) Coordinator() (kafka.Broker, bool) { return l.broker, l.state == LinkStable }

// Step takes one input and returns what to do about it, in order. With an error the input had no consequence.
func (l *Link) Step(now time.Time, in LinkInput) ([]LinkEffect, error) {
	l.out = nil
	err := l.handle(now, in)
	return l.out, err
}

func (l *Link) handle(now time.Time, in LinkInput) error {
	switch in := in.(type) {
	case LinkStart:
		if l.state != LinkDown {
			return unexpected(in, l.state)
		}
		return l.move(LinkInitialized, kafka.Broker{}, nil)
	case Found:
		return l.found(now, in)
	case NotFound:
		l.notFound(now, in)
		return nil
	case Doubted:
		return l.doubted(now, in)
	case Need:
		return l.need(now, in)
	case Cancel:
		l.waiting = slices.DeleteFunc(l.waiting, func(n Need) bool { return n.ID == in.ID })
		return nil
	case LinkTick:
		l.tick(now)
		return nil
	case LinkStop:
		return l.stop()
	}
	return unexpected(in, l.state)
}

// move is the only place where the state changes.
func (l *Link) move(to LinkState, broker kafka.Broker, err error) error {
	if illegal := linkMoves.check(l.state, to); illegal != nil {
		return illegal
	}
	l.emit(LinkMoved{From: l.state, To: to, Broker: broker, Err: err})
	l.state = to
	l.searching, l.retryAt = 0, time.Time{}
	if to != LinkStable {
		l.broker, l.stableSince = kafka.Broker{}, time.Time{}
	}
	return nil
}

func (l *Link) emit(effects ...LinkEffect) { l.out = append(l.out, effects...) }

func (l *Link) find() {
	l.seq++
	l.searching, l.retryAt = l.seq, time.Time{}
	l.emit(Find{Seq: l.seq})
}

func (l *Link) found(now time.Time, in Found) error {
	if in.Seq == 0 || in.Seq != l.searching {
		return nil
	}
	if err := l.move(LinkStable, in.Broker, nil); err != nil {
		return err
	}
	l.broker, l.stableSince, l.lastErr = in.Broker, now, nil
	l.expire(now)
	for _, need := range l.waiting {
		l.emit(Ready{ID: need.ID, Broker: in.Broker})
	}
	l.waiting = nil
	return nil
}

func (l *Link) notFound(now time.Time, in NotFound) {
	if in.Seq == 0 || in.Seq != l.searching {
		return
	}
	l.lastErr = in.Err
	wait := l.backoff.next()
	if verdictOf(in.Err) != verdictSlow {
		wait = min(wait, l.seekAtLeast)
	}
	l.searching, l.retryAt = 0, now.Add(wait)
	l.expire(now)
}

func (l *Link) doubted(now time.Time, in Doubted) error {
	if l.state != LinkStable || in.Coordinator.ID != l.broker.ID || in.Coordinator.Addr != l.broker.Addr {
		return nil
	}
	calm := now.Sub(l.stableSince) >= l.backoff.max
	if err := l.move(LinkDiscovering, l.broker, in.Err); err != nil {
		return err
	}
	l.lastErr = in.Err
	if calm {
		l.backoff.reset()
	}
	// The search may find the same broker again, rightly so; one that is doubted time and again is asked for less often.
	if wait := min(l.backoff.soon(), l.seekAtLeast); wait > 0 {
		l.retryAt = now.Add(wait)
		return nil
	}
	l.find()
	return nil
}

func (l *Link) need(now time.Time, in Need) error {
	switch {
	case in.Deadline.IsZero():
		return fmt.Errorf("rebalance: link: %w: need %d has no deadline", ErrUnexpectedInput, in.ID)
	case slices.ContainsFunc(l.waiting, func(n Need) bool { return n.ID == in.ID }):
		return fmt.Errorf("rebalance: link: %w: need %d waits already", ErrUnexpectedInput, in.ID)
	}
	switch l.state {
	case LinkDown:
		l.emit(Expired{ID: in.ID, Err: fmt.Errorf("rebalance: %w", ErrLinkDown)})
		return nil
	case LinkStable:
		l.emit(Ready{ID: in.ID, Broker: l.broker})
		return nil
	case LinkInitialized:
		if err := l.move(LinkDiscovering, kafka.Broker{}, nil); err != nil {
			return err
		}
		l.find()
	case LinkDiscovering:
	}
	l.waiting = append(l.waiting, in)
	l.expire(now)
	return nil
}

// expire ends what waited too long.
func (l *Link) expire(now time.Time) {
	l.waiting = slices.DeleteFunc(l.waiting, func(n Need) bool {
		if now.Before(n.Deadline) {
			return false
		}
		err := fmt.Errorf("rebalance: %w", ErrNoCoordinator)
		if l.lastErr != nil {
			err = fmt.Errorf("%w: %w", err, l.lastErr)
		}
		l.emit(Expired{ID: n.ID, Err: err})
		return true
	})
}

func (l *Link) tick(now time.Time) {
	l.expire(now)
	if !l.retryAt.IsZero() && !now.Before(l.retryAt) {
		l.find()
	}
}

func (l *Link) stop() error {
	if l.state == LinkDown {
		return nil
	}
	if err := l.move(LinkDown, l.broker, nil); err != nil {
		return err
	}
	for _, need := range l.waiting {
		l.emit(Expired{ID: need.ID, Err: fmt.Errorf("rebalance: %w", ErrLinkDown)})
	}
	l.waiting, l.lastErr = nil, nil
	return nil
}

// Deadline returns when the link wants a [LinkTick], and false when it does not.
func (l *Link) Deadline() (time.Time, bool) {
	next := l.retryAt
	for _, need := range l.waiting {
		if next.IsZero() || need.Deadline.Before(next) {
			next = need.Deadline
		}
	}
	return next, !next.IsZero()
}

// Valid checks the link's invariants between two steps. A non-nil error wraps [ErrInvalid] and means a bug in this package.
func (l *Link) Valid() error {
	seen := make(map[uint64]bool, len(l.waiting))
	for _, need := range l.waiting {
		if need.Deadline.IsZero() || seen[need.ID] {
			return invalid("need %+v", need)
		}
		seen[need.ID] = true
	}
	switch l.state {
	case LinkDiscovering:
		if (l.searching == 0) == l.retryAt.IsZero() {
			return invalid("search %d and retry %v in %s", l.searching, l.retryAt, l.state)
		}
		if l.broker != (kafka.Broker{}) {
			return invalid("coordinator %s in %s", l.broker, l.state)
		}
		return nil
	case LinkDown, LinkInitialized:
		if l.broker != (kafka.Broker{}) || !l.stableSince.IsZero() {
			return invalid("coordinator %s in %s", l.broker, l.state)
		}
	case LinkStable:
		if l.stableSince.IsZero() {
			return invalid("no time in %s", l.state)
		}
	default:
		return invalid("state %s", l.state)
	}
	if len(l.waiting) > 0 || l.searching != 0 || !l.retryAt.IsZero() {
		return invalid("%d wait, search %d, retry %v in %s", len(l.waiting), l.searching, l.retryAt, l.state)
	}
	return nil
}
