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

// sort says what a Key is in whose state it stands.
type sort uint8

const (
	// onTop: a key that lies on top.
	onTop sort = iota
	// passedOn: the same, and the key below was given on for good.
	passedOn
	// handed: no key, but a note that acquirer holds it now.
	handed
	// dead: no key, but the note of a death; before is what lay on top, so that whoever kills a stack sees all of it.
	dead
)

// deadKey is the state of keys that died with nothing on top, or were never made.
var deadKey = &Key{sort: dead}

// keyState is what a state says.
type keyState struct {
	dead bool
	// passed is true when the key was given on for good: who had it may not act any more, also when the receiver is done.
	passed bool
	holder Holder
	// above is the key on top of this one, nil for the top; of a dead one it died with it.
	above *Key
}

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
	below, before *Key
	// acquirer is who acquired this key and may take it back, op what for. Both are fixed.
	acquirer Holder
	op       string
	// state is nil for the first one: alive, held by the acquirer, nothing on top. Any other is told by its sort. It moves on by
	// a swap, so that each operation sees and changes all of it at once. That the key on top is itself the state below it makes
	// acquiring one cost one small allocation.
	state atomic.Pointer[Key]
	// sort is fixed as well; it is here to fill a word that is there anyway.
	sort sort
}

// real reports whether it is a key that a Mint or Acquire made: not nil, zero or a copy.
func (k *Key) real() bool { return k != nil && k.self == k }

// load returns the key's state, and at which pointer it was seen, for the swap to the next one. Keys that are not real are
// dead.
func (k *Key) load() (s keyState, at *Key) {
	if !k.real() {
		return keyState{dead: true}, deadKey
	}
	at = k.state.Load()
	return k.seen(at), at
}

// seen returns what a state says.
func (k *Key) seen(at *Key) keyState {
	switch {
	case at == nil:
		return keyState{holder: k.acquirer}
	case at.sort == dead:
		return keyState{dead: true, above: at.before, passed: at.before != nil && at.before.sort == passedOn}
	case at.sort == handed:
		return keyState{holder: at.acquirer}
	}
	return keyState{holder: k.seen(at.before).holder, above: at, passed: at.sort == passedOn}
}

// refuse builds the error for a use of k in state s.
func (k *Key) refuse(op string, by Holder, s keyState, reason error) error {
	e := &MisuseError{Op: op, Asker: by, Holder: s.holder, Reason: reason}
	if k == nil || s.dead {
		return e
	}
	e.Holder, e.HolderOp = k.top()
	e.Since, e.Forced = k.family.since, k.family.forced
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
func (k *Key) usable(by Holder, op string) (at *Key, err error) {
	if !k.real() {
		return nil, k.refuse(op, by, keyState{dead: true}, ErrRevoked)
	}
	at = k.state.Load()
	if at == nil && k.acquirer == by {
		return at, nil
	}
	return at, k.unusable(by, op, k.seen(at))
}

// unusable returns why by may not use the key in a state, nil if it may.
func (k *Key) unusable(by Holder, op string, s keyState) error {
	switch {
	case s.dead:
		return k.refuse(op, by, s, ErrRevoked)
	case s.passed:
		return k.refuse(op, by, s, ErrPassed)
	case s.above != nil:
		return k.refuse(op, by, s, ErrHeld)
	case s.holder != by:
		return k.refuse(op, by, s, ErrNotHolder)
	}
	return nil
}

// Acquire takes the key for the operation op and returns a fresh one on top, held by the same holder. Until that is
// returned the key itself is unusable. Of several callers at once exactly one succeeds.
func (k *Key) Acquire(by Holder, op string) (*Key, error) {
	return k.push(by, op, by, op, onTop)
}

// Pass gives the key on for good: the receiver's key lies on top, and when it is returned this one is dead as well, and the one
// below it, if there is one, usable again. From then on only the receiver may act.
func (k *Key) Pass(from, to Holder) (*Key, error) {
	if k == nil {
		return k.push(from, "hand", to, "", passedOn)
	}
	return k.push(from, "hand", to, k.op, passedOn)
}

// push puts a key for op, held by holder, on top.
func (k *Key) push(by Holder, asked string, holder Holder, op string, as sort) (*Key, error) {
	for {
		at, err := k.usable(by, asked)
		if err != nil {
			return nil, err
		}
		top := &Key{family: k.family, below: k, before: at, acquirer: holder, op: op, sort: as}
		top.self = top
		if k.state.CompareAndSwap(at, top) {
			return top, nil
		}
	}
}

// Hand gives the key from its holder to another. From then on only to may use it.
func (k *Key) Hand(from, to Holder) error {
	for {
		at, err := k.usable(from, "hand")
		if err != nil {
			return err
		}
		if k.state.CompareAndSwap(at, &Key{sort: handed, acquirer: to}) {
			return nil
		}
	}
}

// Return gives the key back; it is dead afterwards and the key below is usable again, or dead if it was passed on. by is the
// holder, or who acquired the key: a caller of user code takes back what it handed to the callback. While somebody is still
// inside a call with the key, so that another lies on top, it fails with ErrOutOfOrder and nothing changes.
func (k *Key) Return(by Holder) error {
	if k.real() && k.acquirer == by && k.state.CompareAndSwap(nil, deadKey) {
		k.pop()
		return nil
	}
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
		if k.state.CompareAndSwap(at, deadKey) {
			k.pop()
			return nil
		}
	}
}

// pop takes a key that has just died off the one below, and kills those below that were passed on. Until then the key below
// counts as in use: never are two inside. Only a revocation can come first, and then there is nothing left to do.
func (k *Key) pop() {
	for below := k.below; below != nil; k, below = below, below.below {
		if k.sort != passedOn {
			below.state.CompareAndSwap(k, k.before)
			return
		}
		if !below.state.CompareAndSwap(k, deadKey) {
			return
		}
	}
}

// Check reports whether by may perform op on those partitions with the key now: nil, or a *MisuseError.
func (k *Key) Check(by Holder, op string, partitions ...kafka.TopicPartition) error {
	if _, err := k.usable(by, op); err != nil || len(partitions) == 0 {
		return err
	}
	covers := k.family.partitions()
	for _, tp := range partitions {
		if _, covered := slices.BinarySearchFunc(covers, tp, kafka.TopicPartition.Compare); !covered {
			return &MisuseError{Op: op, Asker: by, Holder: by, HolderOp: k.op, Since: k.family.since, Partition: tp, Reason: ErrNotCovered}
		}
	}
	return nil
}

// Valid reports whether the key is usable by its holder: alive, with nothing on top, and not passed on.
func (k *Key) Valid() bool {
	s, _ := k.load()
	return !s.dead && s.above == nil
}

// alive reports whether the key is not dead.
func (k *Key) alive() bool {
	s, _ := k.load()
	return !s.dead
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
