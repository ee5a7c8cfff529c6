// Package capability holds the right to change a consumer: keys over sets of partitions, each with one valid holder.
//
// # Picture
//
//	Mint.Grant ──> key of the committer          (root: covers partitions, each under one root only)
//	                 └─ Acquire ──> key of the operation
//	                                  └─ Acquire ──> key of the callback's own call, and so on
//
// Keys form a stack: only the top one is usable. Acquire takes a key and puts a fresh one on top in one atomic step, so
// two users of one key are never inside together; Return takes the top off, last in, first out.
//
// # Authority
//
// A [Mint] is owned by the group actor alone; its methods are not safe for concurrent use. Keys may be used from any
// goroutine. Nothing blocks: misuse fails at once with a [*MisuseError]. A key is told by its identity; a zero or copied
// Key is dead, and nobody but a Mint and Acquire makes a live one. A dead key stays dead for ever.
package capability

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Holder names who holds a key, for errors and checks, such as an actor's name. Two users of one name are told apart by
// the stack, not by the name.
type Holder string

// Why a use of a key was refused; a [MisuseError] wraps one of them.
var (
	// ErrRevoked means that the key is dead: revoked, returned, merged into another, or never made by a Mint.
	ErrRevoked = errors.New("key is dead")
	// ErrHeld means that somebody is inside a call with the key, or that a live key covers the partition already.
	ErrHeld = errors.New("key is in use")
	// ErrNotHolder means that the asker does not hold the key.
	ErrNotHolder = errors.New("asker is not the holder")
	// ErrOutOfOrder means that a key is returned while another one is still on top of it.
	ErrOutOfOrder = errors.New("a key on top was not returned")
	// ErrPassed means that the key was passed on: only who received it may act.
	ErrPassed = errors.New("key was handed on")
	// ErrNotAllowed means that the key is not for this operation in the state that the partitions are in.
	ErrNotAllowed = errors.New("not possible in this state")
	// ErrNotCovered means that the key does not cover the partition.
	ErrNotCovered = errors.New("key does not cover the partition")
)

// MisuseError says who was refused what, and why.
type MisuseError struct {
	// Op is the operation refused, such as "seek" or "return".
	Op string
	// Asker is who asked, Holder who holds the key, or the top of its stack; empty when nobody does.
	Asker, Holder Holder
	// HolderOp is the operation for which the top of the stack was acquired; empty for a granted key.
	HolderOp string
	// Partition is the partition concerned, the zero value when it is about the whole key.
	Partition kafka.TopicPartition
	// Since is since when the token is out that the holder has; the zero time for keys without one.
	Since time.Time
	// Forced is true when the holder is a callback of a rebalance.
	Forced bool
	// Rights is what the key may be used for, with ErrNotAllowed.
	Rights Rights
	// Reason is one of the sentinels.
	Reason error
}

// Error names operation, asker, holder, partition and reason.
func (e *MisuseError) Error() string {
	text := fmt.Sprintf("capability: %s by %q refused", e.Op, string(e.Asker))
	if e.Partition != (kafka.TopicPartition{}) {
		text += " for " + e.Partition.String()
	}
	text += ": " + e.Reason.Error()
	if e.Reason == ErrNotAllowed {
		text += " (" + e.Rights.String() + ")"
	}
	if e.Holder != "" {
		text += fmt.Sprintf(", held by %q", string(e.Holder))
		if e.HolderOp != "" {
			text += " for " + e.HolderOp
		}
	}
	return text
}

// Unwrap returns the reason.
func (e *MisuseError) Unwrap() error { return e.Reason }

// keyState is what a key is at one moment. It is never changed: a key moves on by swapping in another one, so each
// operation sees and changes all of it at once.
type keyState struct {
	dead bool
	// passed is true when the key was given on for good: who had it may not act any more, also when the receiver is done.
	passed bool
	holder Holder
	// above is the key on top of this one, nil for the top.
	above *Key
}

// deadState is that of keys that were revoked or never made: nobody holds them.
var deadState = &keyState{dead: true}

// family is what all keys of one stack have in common.
type family struct {
	mint   *Mint
	rights Rights
	// since is when a token was granted, forced whether that was a callback's.
	since  time.Time
	forced bool
	// covers is ordered. Only the mint changes it.
	covers atomic.Pointer[[]kafka.TopicPartition]
}

func (f *family) partitions() []kafka.TopicPartition { return *f.covers.Load() }

func (f *family) cover(partitions []kafka.TopicPartition) { f.covers.Store(&partitions) }

// Key is the right to act on a set of partitions. See the package comment.
//
// Invariants (checked by Mint.Valid): only the top of a stack is usable; a dead key has nothing live on top; each level
// covers what the level below covers.
type Key struct {
	// self tells an original from a copy.
	self   *Key
	family *family
	// below is the key this one lies on, nil for a root; before is the state in which that was acquired.
	below  *Key
	before *keyState
	// acquirer is who acquired this key and may take it back, op what for. Both are fixed.
	acquirer Holder
	op       string
	// state is nil for the first one: alive, held by the acquirer, nothing on top. Acquiring a key is to cost next to nothing.
	state atomic.Pointer[keyState]
	// under is the state of the key below as long as this one lies on it.
	under keyState
}

// load returns the key's state, and at which pointer it was seen, for the swap to the next one. Keys that are nil, zero or
// copied are dead.
func (k *Key) load() (s keyState, at *keyState) {
	if k == nil || k.self != k {
		return *deadState, deadState
	}
	at = k.state.Load()
	return k.seen(at), at
}

// seen returns what a state says.
func (k *Key) seen(at *keyState) keyState {
	if at == nil {
		return keyState{holder: k.acquirer}
	}
	return *at
}

// refuse builds the error for a use of k in state s.
func (k *Key) refuse(op string, by Holder, s keyState, reason error) error {
	e := &MisuseError{Op: op, Asker: by, Holder: s.holder, Reason: reason}
	if k == nil || s.dead {
		return e
	}
	e.Holder, e.HolderOp = k.top()
	e.Since = k.family.since
	return e
}

// top returns who holds the top of the stack above a key, and what for.
func (k *Key) top() (Holder, string) {
	s, _ := k.load()
	holder, op := s.holder, k.op
	for top := s.above; top != nil; {
		next, _ := top.load()
		if next.dead {
			break
		}
		holder, op = next.holder, top.op
		top = next.above
	}
	return holder, op
}

// usable returns the state if by may use the key now.
func (k *Key) usable(by Holder, op string) (s keyState, at *keyState, err error) {
	s, at = k.load()
	switch {
	case s.dead:
		err = k.refuse(op, by, s, ErrRevoked)
	case s.passed:
		err = k.refuse(op, by, s, ErrPassed)
	case s.above != nil:
		err = k.refuse(op, by, s, ErrHeld)
	case s.holder != by:
		err = k.refuse(op, by, s, ErrNotHolder)
	}
	return s, at, err
}

// Acquire takes the key for the operation op and returns a fresh one on top, held by the same holder. Until that is
// returned the key itself is unusable. Of several callers at once exactly one succeeds.
func (k *Key) Acquire(by Holder, op string) (*Key, error) {
	return k.push(by, op, by, op, false)
}

// Pass gives the key on for good: the receiver's key lies on top, and when it is returned this one is dead as well. From
// then on only the receiver may act.
func (k *Key) Pass(from, to Holder) (*Key, error) {
	if k == nil {
		return k.push(from, "hand", to, "", true)
	}
	return k.push(from, "hand", to, k.op, true)
}

// push puts a key for op, held by holder, on top.
func (k *Key) push(by Holder, asked string, holder Holder, op string, passed bool) (*Key, error) {
	for {
		s, at, err := k.usable(by, asked)
		if err != nil {
			return nil, err
		}
		top := &Key{
			family: k.family, below: k, before: at, acquirer: holder, op: op,
			under: keyState{holder: s.holder, passed: passed},
		}
		top.self, top.under.above = top, top
		if k.state.CompareAndSwap(at, &top.under) {
			return top, nil
		}
	}
}

// Hand gives the key from its holder to another. From then on only to may use it.
func (k *Key) Hand(from, to Holder) error {
	for {
		_, at, err := k.usable(from, "hand")
		if err != nil {
			return err
		}
		if k.state.CompareAndSwap(at, &keyState{holder: to}) {
			return nil
		}
	}
}

// Return gives the key back; it is dead afterwards and the key below is usable again, or dead if it was passed on. by is the
// holder, or who acquired the key: a caller of user code takes back what it handed to the callback. While somebody is still
// inside a call with the key, so that another lies on top, it fails with ErrOutOfOrder and nothing changes.
func (k *Key) Return(by Holder) error {
	for {
		s, at := k.load()
		switch {
		case s.dead:
			return k.refuse("return", by, s, ErrRevoked)
		case s.holder != by && (k.below == nil || k.acquirer != by):
			return k.refuse("return", by, s, ErrNotHolder)
		case s.passed:
			return k.refuse("return", by, s, ErrPassed)
		case s.above != nil:
			return k.refuse("return", by, s, ErrOutOfOrder)
		}
		if k.state.CompareAndSwap(at, deadState) {
			k.pop()
			return nil
		}
	}
}

// pop takes a key that has just died off the one below, and those that were passed on with it.
func (k *Key) pop() {
	for below := k.below; below != nil; k, below = below, below.below {
		// Between the two steps the key below still counts as in use: never are two inside. Nobody else takes k off, so the swap
		// can only be overtaken by a revocation.
		s, at := below.load()
		if s.dead || s.above != k {
			return
		}
		if !s.passed {
			below.state.CompareAndSwap(at, k.before)
			return
		}
		if !below.state.CompareAndSwap(at, deadState) {
			return
		}
	}
}

// Check reports whether by may perform op on those partitions with the key now: nil, or a *MisuseError.
func (k *Key) Check(by Holder, op string, partitions ...kafka.TopicPartition) error {
	s, _, err := k.usable(by, op)
	if err != nil || len(partitions) == 0 {
		return err
	}
	covers := k.family.partitions()
	for _, tp := range partitions {
		if _, covered := slices.BinarySearchFunc(covers, tp, kafka.TopicPartition.Compare); !covered {
			return &MisuseError{Op: op, Asker: by, Holder: s.holder, Partition: tp, Reason: ErrNotCovered}
		}
	}
	return nil
}

// Valid reports whether the key is usable by its holder: alive, with nothing on top, and not passed on.
func (k *Key) Valid() bool {
	s, _ := k.load()
	return !s.dead && s.above == nil
}

// Holder returns who holds the key, empty when it is dead.
func (k *Key) Holder() Holder {
	if s, _ := k.load(); !s.dead {
		return s.holder
	}
	return ""
}

// Rights returns what the key's stack may do, nothing when the key is dead.
func (k *Key) Rights() Rights {
	if s, _ := k.load(); s.dead {
		return 0
	}
	return k.family.rights
}

// Partitions returns the partitions covered, ordered; nil when the key is dead. The caller may keep it.
func (k *Key) Partitions() []kafka.TopicPartition {
	if s, _ := k.load(); s.dead {
		return nil
	}
	return slices.Clone(k.family.partitions())
}
