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
	// Reason is one of the sentinels above.
	Reason error
}

// Error names operation, asker, holder, partition and reason.
func (e *MisuseError) Error() string {
	text := fmt.Sprintf("capability: %s by %q refused", e.Op, string(e.Asker))
	if e.Partition != (kafka.TopicPartition{}) {
		text += " for " + e.Partition.String()
	}
	text += ": " + e.Reason.Error()
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
	dead   bool
	holder Holder
	// above is the key on top of this one, nil for the top.
	above *Key
	// partitions is ordered and shared by a stack; only a root's may change.
	partitions []kafka.TopicPartition
}

// Key is the right to act on a set of partitions. See the package comment.
//
// Invariants (checked by Mint.Valid): only the top of a stack is usable; a dead key has nothing live on top; each level
// covers what the level below covers.
type Key struct {
	// self tells an original from a copy.
	self *Key
	mint *Mint
	// below is the key this one lies on, nil for a root.
	below *Key
	// acquirer is who acquired this key and may take it back, op what for. Both are fixed.
	acquirer Holder
	op       string
	state    atomic.Pointer[keyState]
}

// load returns the key's state; dead for keys that are nil, zero or copied.
func (k *Key) load() *keyState {
	if k == nil || k.self != k {
		return &keyState{dead: true}
	}
	return k.state.Load()
}

// refuse builds the error for a use of k in state s.
func (k *Key) refuse(op string, by Holder, s *keyState, reason error) error {
	e := &MisuseError{Op: op, Asker: by, Holder: s.holder, Reason: reason}
	if k != nil && !s.dead {
		e.HolderOp = k.op
	}
	for top := s.above; top != nil; {
		next := top.load()
		if next.dead {
			break
		}
		e.Holder, e.HolderOp = next.holder, top.op
		top = next.above
	}
	return e
}

// usable returns the state if by may use the key now.
func (k *Key) usable(by Holder, op string) (*keyState, error) {
	s := k.load()
	switch {
	case s.dead:
		return nil, k.refuse(op, by, s, ErrRevoked)
	case s.above != nil:
		return nil, k.refuse(op, by, s, ErrHeld)
	case s.holder != by:
		return nil, k.refuse(op, by, s, ErrNotHolder)
	}
	return s, nil
}

// Acquire takes the key for the operation op and returns a fresh one on top, held by the same holder. Until that is
// returned the key itself is unusable. Of several callers at once exactly one succeeds.
func (k *Key) Acquire(by Holder, op string) (*Key, error) {
	for {
		s, err := k.usable(by, op)
		if err != nil {
			return nil, err
		}
		top := &Key{mint: k.mint, below: k, acquirer: by, op: op}
		top.self = top
		top.state.Store(&keyState{holder: by, partitions: s.partitions})
		if k.state.CompareAndSwap(s, &keyState{holder: s.holder, above: top, partitions: s.partitions}) {
			return top, nil
		}
	}
}

// Hand gives the key from its holder to another. From then on only to may use it.
func (k *Key) Hand(from, to Holder) error {
	for {
		s, err := k.usable(from, "hand")
		if err != nil {
			return err
		}
		if k.state.CompareAndSwap(s, &keyState{holder: to, partitions: s.partitions}) {
			return nil
		}
	}
}

// Return gives the key back; it is dead afterwards and the key below is usable again. by is the holder, or who acquired
// the key: a caller of user code takes back what it handed to the callback. While somebody is still inside a call with
// the key, so that another lies on top, it fails with ErrOutOfOrder and nothing changes.
func (k *Key) Return(by Holder) error {
	for {
		s := k.load()
		switch {
		case s.dead:
			return k.refuse("return", by, s, ErrRevoked)
		case s.holder != by && (k.below == nil || k.acquirer != by):
			return k.refuse("return", by, s, ErrNotHolder)
		case s.above != nil:
			return k.refuse("return", by, s, ErrOutOfOrder)
		}
		if k.state.CompareAndSwap(s, &keyState{dead: true, holder: s.holder, partitions: s.partitions}) {
			break
		}
	}
	if k.below == nil {
		return nil
	}
	// Between the two steps the key below still counts as in use: never are two inside. Nobody else takes k off, so the
	// swap can only be overtaken by a revocation, which ends the loop.
	for {
		s := k.below.load()
		if s.dead || s.above != k {
			return nil
		}
		if k.below.state.CompareAndSwap(s, &keyState{holder: s.holder, partitions: s.partitions}) {
			return nil
		}
	}
}

// Check reports whether by may perform op on those partitions with the key now: nil, or a *MisuseError.
func (k *Key) Check(by Holder, op string, partitions ...kafka.TopicPartition) error {
	s, err := k.usable(by, op)
	if err != nil {
		return err
	}
	for _, tp := range partitions {
		if _, covered := slices.BinarySearchFunc(s.partitions, tp, kafka.TopicPartition.Compare); !covered {
			return &MisuseError{Op: op, Asker: by, Holder: s.holder, Partition: tp, Reason: ErrNotCovered}
		}
	}
	return nil
}

// Valid reports whether the key is usable by its holder: alive, with nothing on top.
func (k *Key) Valid() bool {
	s := k.load()
	return !s.dead && s.above == nil
}

// Holder returns who holds the key, empty when it is dead.
func (k *Key) Holder() Holder {
	if s := k.load(); !s.dead {
		return s.holder
	}
	return ""
}

// Partitions returns the partitions covered, ordered; nil when the key is dead. The caller may keep it.
func (k *Key) Partitions() []kafka.TopicPartition {
	if s := k.load(); !s.dead {
		return slices.Clone(s.partitions)
	}
	return nil
}
