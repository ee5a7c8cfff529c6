package capability

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// naiveKey is a key of the naive twin: a stack of holders that one thread looks at.
type naiveKey struct {
	key        *Key
	holder     Holder
	acquirer   Holder
	below      *naiveKey
	above      *naiveKey
	dead       bool
	passed     bool
	partitions []kafka.TopicPartition // of a root; levels above look down
}

func (n *naiveKey) root() *naiveKey {
	for n.below != nil {
		n = n.below
	}
	return n
}

// kill ends a key with all on top. Those below that were passed on die as well; the one below them is on top again.
func (n *naiveKey) kill() (inside int) {
	for k := n; k != nil; k = k.above {
		if k.dead = true; k != n && !k.below.passed {
			inside++
		}
	}
	below := n.below
	for ; below != nil && below.passed; below = below.below {
		below.dead = true
	}
	if below != nil {
		below.above = nil
	}
	return inside
}

func (n *naiveKey) use(by Holder) error {
	switch {
	case n.dead:
		return ErrRevoked
	case n.passed:
		return ErrPassed
	case n.above != nil:
		return ErrHeld
	case n.holder != by:
		return ErrNotHolder
	}
	return nil
}

// naiveMint runs the same operations as a Mint and says what each must answer.
type naiveMint struct {
	mint *Mint
	keys []*naiveKey
}

func (n *naiveMint) operate(r chooser) (name string, got, want error) {
	holders := []Holder{"a", "b", "c"}
	by, to := holders[r.IntN(3)], holders[r.IntN(3)]
	partition := tp(int32(r.IntN(5)))
	if len(n.keys) == 0 || r.IntN(8) == 0 {
		for _, k := range n.keys {
			if !k.dead && k.below == nil && slices.Contains(k.partitions, partition) {
				want = ErrHeld
			}
		}
		key, err := n.mint.Grant(by, partition)
		if err == nil {
			n.keys = append(n.keys, &naiveKey{key: key, holder: by, acquirer: by, partitions: []kafka.TopicPartition{partition}})
		}
		return "grant", err, want
	}
	k := n.keys[len(n.keys)-1-min(r.IntN(len(n.keys)), 12)]
	switch r.IntN(10) {
	case 0, 1:
		want = k.use(by)
		key, err := k.key.Acquire(by, "op")
		if err == nil {
			top := &naiveKey{key: key, holder: by, acquirer: by, below: k}
			k.above = top
			n.keys = append(n.keys, top)
		}
		return "acquire", err, want
	case 2:
		want, got = k.use(by), k.key.Hand(by, to)
		if want == nil {
			k.holder = to
		}
		return "hand", got, want
	case 3, 4:
		switch {
		case k.dead:
			want = ErrRevoked
		case k.holder != by && (k.below == nil || k.acquirer != by):
			want = ErrNotHolder
		case k.passed:
			want = ErrPassed
		case k.above != nil:
			want = ErrOutOfOrder
		default:
			k.kill()
		}
		return "return", k.key.Return(by), want
	case 5:
		if want = k.use(by); want == nil && !slices.Contains(k.root().partitions, partition) {
			want = ErrNotCovered
		}
		return "check", k.key.Check(by, "op", partition), want
	case 6:
		if r.IntN(4) > 0 {
			return n.split(k, by, partition)
		}
		return n.end(r, k, by, partition)
	case 7, 8:
		want = k.use(by)
		key, err := k.key.Pass(by, to)
		if err == nil {
			top := &naiveKey{key: key, holder: to, acquirer: to, below: k}
			k.above, k.passed = top, true
			n.keys = append(n.keys, top)
		}
		return "pass", err, want
	default:
		return n.merge(k, n.keys[r.IntN(len(n.keys))])
	}
}

// end ends a key from above, or takes a partition out of all.
func (n *naiveMint) end(r chooser, k *naiveKey, by Holder, partition kafka.TopicPartition) (name string, got, want error) {
	dead := k.dead
	switch r.IntN(3) {
	case 0:
		n.mint.Withdraw(partition)
		for _, k := range n.keys {
			k.partitions = slices.DeleteFunc(k.partitions, func(p kafka.TopicPartition) bool { return p == partition })
		}
		return "withdraw", nil, nil
	case 1:
		switch {
		case dead:
			want = ErrRevoked
		case k.acquirer != by:
			want = ErrNotHolder
		}
		inside, err := k.key.End(by)
		if err == nil {
			if calls := k.kill(); calls != len(inside) {
				return "end", fmt.Errorf("%v were inside, the twin says %d", inside, calls), nil
			}
		}
		return "end", err, want
	}
	alive, inside := n.mint.Confiscate(k.key)
	calls := 0
	if !dead {
		calls = k.kill()
	}
	if alive == dead || calls != len(inside) {
		return "confiscate", fmt.Errorf("alive %t, inside %v; the twin says dead %t, inside %d", alive, inside, dead, calls), nil
	}
	return "confiscate", nil, nil
}

func (n *naiveMint) split(k *naiveKey, by Holder, partition kafka.TopicPartition) (name string, got, want error) {
	switch {
	case k.dead || k.below != nil:
		want = ErrRevoked
	case k.above != nil:
		want = ErrHeld
	case !slices.Contains(k.partitions, partition):
		want = ErrNotCovered
	}
	part, err := n.mint.Split(k.key, by, []kafka.TopicPartition{partition})
	if err == nil {
		k.partitions = slices.DeleteFunc(k.partitions, func(p kafka.TopicPartition) bool { return p == partition })
		n.keys = append(n.keys, &naiveKey{key: part, holder: by, acquirer: by, partitions: []kafka.TopicPartition{partition}})
	}
	return "split", err, want
}

func (n *naiveMint) merge(a, b *naiveKey) (name string, got, want error) {
	for _, k := range []*naiveKey{a, b} {
		switch {
		case want != nil || a == b:
		case k.dead || k.below != nil:
			want = ErrRevoked
		case k.above != nil:
			want = ErrHeld
		}
	}
	switch {
	case a == b:
		want = ErrHeld
	case want == nil && a.holder != b.holder:
		want = ErrNotHolder
	}
	got = n.mint.Merge(a.key, b.key)
	if got == nil {
		a.partitions = append(a.partitions, b.partitions...)
		b.dead, b.partitions = true, nil
	}
	return "merge", got, want
}

// chooser decides what comes next in a history.
type chooser interface{ IntN(n int) int }

// bytesChooser decides by the bytes of a fuzzer, and then by zeros.
type bytesChooser struct{ data []byte }

func (b *bytesChooser) IntN(n int) int {
	if len(b.data) == 0 {
		return 0
	}
	next := int(b.data[0])
	b.data = b.data[1:]
	return next % n
}

// agree runs a history of keys, and compares each answer and every key ever made with the twin.
func agree(t *testing.T, r chooser, steps int) {
	t.Helper()
	twin := &naiveMint{mint: NewMint()}
	for i := range steps {
		name, got, want := twin.operate(r)
		if (got == nil) != (want == nil) || want != nil && !errors.Is(got, want) {
			t.Fatalf("step %d: %s: %v, want %v", i, name, got, want)
		}
		if err := twin.mint.Valid(); err != nil {
			t.Fatalf("step %d: %s: %v", i, name, err)
		}
		live := 0
		for _, k := range twin.keys {
			if !k.dead && k.below == nil {
				live++
			}
			usable := !k.dead && k.above == nil
			holder, covers := k.holder, k.root().partitions
			if k.dead {
				holder, covers = "", nil
			}
			if k.key.Valid() != usable || k.key.Holder() != holder || k.key.Passed() != (!k.dead && k.passed) {
				t.Fatalf("step %d: %s: a key is usable: %t, want %t, held by %q, want %q", i, name, k.key.Valid(), usable, k.key.Holder(), holder)
			}
			for _, p := range covers {
				if usable && k.key.Check(holder, "op", p) != nil {
					t.Fatalf("step %d: %s: %s is not covered", i, name, p)
				}
			}
			if len(k.key.Partitions()) != len(covers) {
				t.Fatalf("step %d: %s: covers %v, want %v", i, name, k.key.Partitions(), covers)
			}
		}
		if twin.mint.Live() != live || len(twin.mint.Ledger()) != live {
			t.Fatalf("step %d: %d live, want %d", i, twin.mint.Live(), live)
		}
	}
}

func TestKeysAgreeWithTheirNaiveTwin(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 3))
		if agree(t, r, 400); t.Failed() {
			t.Logf("seed %d", seed)
		}
	}
}

// FuzzKeys lets the fuzzer choose the history.
func FuzzKeys(f *testing.F) {
	f.Add([]byte("grant, acquire, pass, return"))
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), 600)]
		agree(t, &bytesChooser{data}, len(data)/2)
	})
}
