package capability

import (
	"fmt"
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// Mint makes and revokes keys. It is owned by the group actor alone and not safe for concurrent use, but keys may be used
// from any goroutine meanwhile.
//
// Invariant (checked by Valid): each partition is under at most one live root.
type Mint struct {
	// roots are the granted keys; those that died by Return are dropped at the next look.
	roots []*Key
}

// NewMint returns a mint without keys.
func NewMint() *Mint { return &Mint{} }

// prune drops dead roots.
func (m *Mint) prune() {
	m.roots = slices.DeleteFunc(m.roots, func(k *Key) bool {
		s, _ := k.load()
		return s.dead
	})
}

// Grant mints a key over those partitions, none of them twice, for holder. It fails with ErrHeld, naming the partition and
// its holder, if one of them is under a live key. Without partitions the key covers nothing; others can be merged into it.
func (m *Mint) Grant(holder Holder, partitions ...kafka.TopicPartition) (*Key, error) {
	m.prune()
	covered := ordered(partitions)
	for _, root := range m.roots {
		s, _ := root.load()
		for _, tp := range root.family.partitions() {
			if _, taken := slices.BinarySearchFunc(covered, tp, kafka.TopicPartition.Compare); taken {
				return nil, &MisuseError{Op: "grant", Asker: holder, Holder: s.holder, Partition: tp, Reason: ErrHeld}
			}
		}
	}
	return m.mint(holder, covered), nil
}

func (m *Mint) mint(holder Holder, partitions []kafka.TopicPartition) *Key {
	k := &Key{family: &family{mint: m}, acquirer: holder}
	k.self = k
	k.family.cover(partitions)
	m.roots = append(m.roots, k)
	return k
}

// own reports whether the key is this mint's.
func (m *Mint) own(key *Key) bool { return key.family.mint == m }

// ordered returns a sorted copy without repetitions.
func ordered(partitions []kafka.TopicPartition) []kafka.TopicPartition {
	out := slices.Clone(partitions)
	slices.SortFunc(out, kafka.TopicPartition.Compare)
	return slices.Compact(out)
}

// root returns the state of a live root of this mint with nothing on top.
func (m *Mint) root(key *Key, op string, by Holder) (s keyState, at *Key, err error) {
	s, at = key.load()
	switch {
	case s.dead || !m.own(key) || key.below != nil:
		err = key.refuse(op, by, s, ErrRevoked)
	case s.above != nil:
		err = key.refuse(op, by, s, ErrHeld)
	}
	return s, at, err
}

// Split takes partitions out of a granted key into a key of their own for holder; key, its holder and the rest stay as
// they are. It fails with ErrHeld while somebody is inside a call with key, with ErrNotCovered for a partition that key
// does not cover, and then changes nothing.
func (m *Mint) Split(key *Key, holder Holder, partitions []kafka.TopicPartition) (part *Key, err error) {
	s, _, err := m.root(key, "split", holder)
	if err != nil {
		return nil, err
	}
	moving := ordered(partitions)
	covers := key.family.partitions()
	for _, tp := range moving {
		if _, covered := slices.BinarySearchFunc(covers, tp, kafka.TopicPartition.Compare); !covered {
			return nil, &MisuseError{Op: "split", Asker: holder, Holder: s.holder, Partition: tp, Reason: ErrNotCovered}
		}
	}
	key.family.cover(without(covers, moving))
	return m.mint(holder, moving), nil
}

// without returns the partitions that are not among others, which is ordered.
func without(partitions, others []kafka.TopicPartition) []kafka.TopicPartition {
	return slices.DeleteFunc(slices.Clone(partitions), func(tp kafka.TopicPartition) bool {
		_, found := slices.BinarySearchFunc(others, tp, kafka.TopicPartition.Compare)
		return found
	})
}

// Withdraw takes partitions out of every key, also while somebody is inside a call: whoever acts on them from here on is
// refused.
func (m *Mint) Withdraw(partitions ...kafka.TopicPartition) {
	m.prune()
	gone := ordered(partitions)
	for _, root := range m.roots {
		root.family.cover(without(root.family.partitions(), gone))
	}
}

// Merge moves all partitions of b into a and ends b. Both must be granted keys of the same holder with nothing on top.
// It fails with ErrHeld, ErrNotHolder or ErrRevoked and then changes nothing.
func (m *Mint) Merge(a, b *Key) error {
	const op = "merge"
	if a == b {
		s, _ := a.load()
		return a.refuse(op, s.holder, s, ErrHeld)
	}
	for {
		s, _, err := m.root(a, op, a.Holder())
		if err != nil {
			return err
		}
		t, at, err := m.root(b, op, s.holder)
		if err != nil {
			return err
		}
		if s.holder != t.holder {
			return b.refuse(op, s.holder, t, ErrNotHolder)
		}
		// b ends first, so that no partition is under both.
		if b.state.CompareAndSwap(at, deadKey) {
			a.family.cover(ordered(append(slices.Clone(a.family.partitions()), b.family.partitions()...)))
			m.prune()
			return nil
		}
	}
}

// Revoke ends a key for ever, with everything on top of it. The key below, if there is one, becomes usable again. It
// reports whether the key was alive.
func (m *Mint) Revoke(key *Key) bool {
	alive, _ := m.Confiscate(key)
	return alive
}

// Confiscate is Revoke, and tells of the operations that were under way with the key, the lowest first: what was acquired on
// top of it and not returned.
func (m *Mint) Confiscate(key *Key) (alive bool, inside []Level) {
	if !key.real() || !m.own(key) {
		return false, nil
	}
	alive, inside = key.confiscate()
	if alive {
		key.pop()
	}
	m.prune()
	return alive, inside
}

// Live returns the number of live granted keys.
func (m *Mint) Live() int {
	m.prune()
	return len(m.roots)
}

// Entry is one granted key in a [Mint.Ledger].
type Entry struct {
	// Partitions are those it covers, ordered.
	Partitions []kafka.TopicPartition
	// Stack is the holders from the granted key, which has no Op, to the top, which alone is usable.
	Stack []Level
}

// Level is one key of a stack.
type Level struct {
	// Holder holds it.
	Holder Holder
	// Op is what it was acquired for.
	Op string
}

// Ledger returns the live granted keys with their stacks, in the order of granting. Keys in use elsewhere may move on
// while it is written.
func (m *Mint) Ledger() []Entry {
	m.prune()
	var ledger []Entry
	for _, root := range m.roots {
		entry := Entry{Partitions: root.Partitions()}
		for k := root; k != nil; {
			s, _ := k.load()
			if s.dead {
				break
			}
			entry.Stack = append(entry.Stack, Level{Holder: s.holder, Op: k.op})
			k = s.above
		}
		if len(entry.Stack) > 0 {
			ledger = append(ledger, entry)
		}
	}
	return ledger
}

// Valid checks the invariants of the mint and its keys. It is exact only while no key is in use by another goroutine.
func (m *Mint) Valid() error {
	m.prune()
	owner := map[kafka.TopicPartition]Holder{}
	for _, root := range m.roots {
		s, _ := root.load()
		for _, tp := range root.family.partitions() {
			if other, taken := owner[tp]; taken {
				return fmt.Errorf("capability: %s is under keys of %q and %q", tp, other, s.holder)
			}
			owner[tp] = s.holder
		}
		for k := root; ; {
			s, _ := k.load()
			if s.dead {
				return fmt.Errorf("capability: a dead key of %q lies in a live stack", s.holder)
			}
			if s.above == nil {
				break
			}
			if above, _ := s.above.load(); s.above.below != k || s.above.family != root.family {
				return fmt.Errorf("capability: the key of %q for %s does not fit the one below", above.holder, s.above.op)
			}
			k = s.above
		}
	}
	return nil
}
