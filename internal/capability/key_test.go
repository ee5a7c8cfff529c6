package capability

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

func tp(n int32) kafka.TopicPartition { return kafka.TopicPartition{Topic: "t", Partition: n} }

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// expectMisuse checks reason, asker and holder of a refusal.
func expectMisuse(t *testing.T, err error, reason error, asker, holder Holder) {
	t.Helper()
	var misuse *MisuseError
	if !errors.Is(err, reason) || !errors.As(err, &misuse) || misuse.Asker != asker || misuse.Holder != holder {
		t.Fatalf("%v: %#v; want %v, asker %q, holder %q", err, misuse, reason, asker, holder)
	}
}

func TestEachPartitionIsUnderOneLiveKey(t *testing.T) {
	m := NewMint()
	a := must[*Key](t)(m.Grant("committer", tp(2), tp(1), tp(1)))
	_, err := m.Grant("other", tp(0), tp(2))
	expectMisuse(t, err, ErrHeld, "other", "committer")
	var misuse *MisuseError
	if errors.As(err, &misuse); misuse.Partition != tp(2) {
		t.Fatalf("named %s", misuse.Partition)
	}
	if got := a.Partitions(); !slices.Equal(got, []kafka.TopicPartition{tp(1), tp(2)}) {
		t.Fatal(got)
	}
	if err := a.Return("committer"); err != nil {
		t.Fatal(err)
	}
	must[*Key](t)(m.Grant("other", tp(0), tp(2)))
	if m.Live() != 1 {
		t.Fatalf("%d live", m.Live())
	}
}

func TestTheKeyBelowIsUnusableUntilTheTopIsReturned(t *testing.T) {
	m := NewMint()
	root := must[*Key](t)(m.Grant("committer", tp(1)))
	top := must[*Key](t)(root.Acquire("committer", "seek"))
	_, err := root.Acquire("committer", "pause")
	expectMisuse(t, err, ErrHeld, "committer", "committer")
	expectMisuse(t, root.Check("committer", "pause"), ErrHeld, "committer", "committer")
	expectMisuse(t, root.Hand("committer", "x"), ErrHeld, "committer", "committer")
	expectMisuse(t, root.Return("committer"), ErrOutOfOrder, "committer", "committer")
	if root.Valid() || !top.Valid() {
		t.Fatal("the wrong key is usable")
	}
	if err := top.Return("committer"); err != nil {
		t.Fatal(err)
	}
	expectMisuse(t, top.Return("committer"), ErrRevoked, "committer", "")
	if !root.Valid() || top.Valid() {
		t.Fatal("the wrong key is usable")
	}
}

func TestNestedCallbacksPushOnTheCallbacksKey(t *testing.T) {
	m := NewMint()
	root := must[*Key](t)(m.Grant("committer", tp(1)))
	callback := must[*Key](t)(root.Acquire("committer", "on_revoked"))
	if err := callback.Hand("committer", "callback"); err != nil {
		t.Fatal(err)
	}
	call := must[*Key](t)(callback.Acquire("callback", "commit"))
	inner := must[*Key](t)(call.Acquire("callback", "on_committed"))
	if err := inner.Check("callback", "seek", tp(1)); err != nil {
		t.Fatal(err)
	}
	// The callback returns while somebody is still inside a call with its key.
	err := callback.Return("committer")
	expectMisuse(t, err, ErrOutOfOrder, "committer", "callback")
	var misuse *MisuseError
	if errors.As(err, &misuse); misuse.HolderOp != "on_committed" {
		t.Fatalf("%+v", misuse)
	}
	expectMisuse(t, call.Return("callback"), ErrOutOfOrder, "callback", "callback")
	for _, k := range []*Key{inner, call} {
		if err := k.Return("callback"); err != nil {
			t.Fatal(err)
		}
	}
	// Who acquired it takes it back, though it was handed on.
	if err := callback.Return("committer"); err != nil {
		t.Fatal(err)
	}
	if !root.Valid() {
		t.Fatal("the loan is not usable again")
	}
}

func TestWhoHandsAKeyOverMayNotActAnyMore(t *testing.T) {
	m := NewMint()
	root := must[*Key](t)(m.Grant("committer", tp(1)))
	if err := root.Hand("committer", "group"); err != nil {
		t.Fatal(err)
	}
	expectMisuse(t, root.Check("committer", "commit"), ErrNotHolder, "committer", "group")
	expectMisuse(t, root.Return("committer"), ErrNotHolder, "committer", "group")
	expectMisuse(t, root.Hand("committer", "committer"), ErrNotHolder, "committer", "group")
	if err := root.Check("group", "commit", tp(1)); err != nil {
		t.Fatal(err)
	}
	expectMisuse(t, root.Check("group", "commit", tp(1), tp(2)), ErrNotCovered, "group", "group")
}

func TestSplitLetsTheKeptOnesGoOnAndMergeJoinsThemAgain(t *testing.T) {
	m := NewMint()
	root := must[*Key](t)(m.Grant("committer", tp(1), tp(2), tp(3)))
	_, err := m.Split(root, "group", []kafka.TopicPartition{tp(2), tp(9)})
	expectMisuse(t, err, ErrNotCovered, "group", "committer")
	part := must[*Key](t)(m.Split(root, "group", []kafka.TopicPartition{tp(2)}))
	if err := root.Check("committer", "commit", tp(1), tp(3)); err != nil {
		t.Fatal(err)
	}
	expectMisuse(t, root.Check("committer", "commit", tp(2)), ErrNotCovered, "committer", "committer")
	expectMisuse(t, m.Merge(root, part), ErrNotHolder, "committer", "group")
	if err := part.Hand("group", "committer"); err != nil {
		t.Fatal(err)
	}
	inside := must[*Key](t)(root.Acquire("committer", "commit"))
	expectMisuse(t, m.Merge(root, part), ErrHeld, "committer", "committer")
	_, err = m.Split(root, "group", nil)
	expectMisuse(t, err, ErrHeld, "group", "committer")
	if err := inside.Return("committer"); err != nil {
		t.Fatal(err)
	}
	expectMisuse(t, m.Merge(root, root), ErrHeld, "committer", "committer")
	if err := m.Merge(root, part); err != nil {
		t.Fatal(err)
	}
	if part.Valid() || m.Live() != 1 {
		t.Fatal("the merged key lives on")
	}
	if err := root.Check("committer", "commit", tp(1), tp(2), tp(3)); err != nil {
		t.Fatal(err)
	}
}

func TestARevokedKeyStaysDeadWithAllOnTop(t *testing.T) {
	m := NewMint()
	root := must[*Key](t)(m.Grant("committer", tp(1)))
	top := must[*Key](t)(root.Acquire("committer", "callback"))
	inner := must[*Key](t)(top.Acquire("committer", "seek"))
	if !m.Revoke(top) || m.Revoke(top) {
		t.Fatal("a revocation tells whether the key was alive")
	}
	expectMisuse(t, inner.Check("committer", "seek"), ErrRevoked, "committer", "")
	expectMisuse(t, inner.Return("committer"), ErrRevoked, "committer", "")
	if !root.Valid() {
		t.Fatal("the key below is not usable again")
	}
	m.Revoke(root)
	fresh := must[*Key](t)(m.Grant("committer", tp(1)))
	_, err := root.Acquire("committer", "seek")
	expectMisuse(t, err, ErrRevoked, "committer", "")
	if !fresh.Valid() || m.Live() != 1 {
		t.Fatal("the fresh key is not alive")
	}
}

func TestForgedAndForeignKeysAreDead(t *testing.T) {
	m, other := NewMint(), NewMint()
	real := must[*Key](t)(m.Grant("a", tp(1)))
	copied := &Key{self: real.self, family: real.family, acquirer: "a"}
	copied.state.Store(&Key{sort: handed, acquirer: "a"})
	for name, k := range map[string]*Key{"nil": nil, "zero": {}, "copied": copied} {
		if k.Valid() || k.Partitions() != nil || k.Holder() != "" {
			t.Errorf("%s key is alive", name)
		}
		_, err := k.Acquire("a", "seek")
		expectMisuse(t, err, ErrRevoked, "a", "")
		expectMisuse(t, k.Return("a"), ErrRevoked, "a", "")
		_, err = m.Split(k, "a", nil)
		expectMisuse(t, err, ErrRevoked, "a", "")
		expectMisuse(t, m.Merge(real, k), ErrRevoked, "a", "")
	}
	if other.Revoke(real) {
		t.Error("a foreign mint revoked a key")
	}
	if _, err := other.Split(real, "b", nil); !errors.Is(err, ErrRevoked) {
		t.Error(err)
	}
}

func TestTwoUsersOfOneKeyAreNeverInsideTogether(t *testing.T) {
	m := NewMint()
	root := must[*Key](t)(m.Grant("user", tp(1)))
	var inside, entered, refused atomic.Int64
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			for range 400 {
				key, err := root.Acquire("user", "commit")
				if err != nil {
					if !errors.Is(err, ErrHeld) {
						t.Error(err)
					}
					refused.Add(1)
					continue
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d inside", n)
				}
				entered.Add(1)
				nested, err := key.Acquire("user", "nested")
				if err != nil {
					t.Error(err)
				} else if err := nested.Return("user"); err != nil {
					t.Error(err)
				}
				inside.Add(-1)
				if err := key.Return("user"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if entered.Load() == 0 || !root.Valid() || m.Valid() != nil {
		t.Fatalf("%d entered, %d refused, usable %t", entered.Load(), refused.Load(), root.Valid())
	}
	t.Logf("%d entered, %d refused", entered.Load(), refused.Load())
}

func TestTheMintMayActWhileKeysAreInUse(t *testing.T) {
	m := NewMint()
	root := must[*Key](t)(m.Grant("user", tp(1), tp(2)))
	var current atomic.Pointer[Key]
	current.Store(root)
	var stop atomic.Bool
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for !stop.Load() {
				key, err := current.Load().Acquire("user", "seek")
				if err != nil {
					continue
				}
				if err := key.Return("user"); err != nil && !errors.Is(err, ErrRevoked) {
					t.Error(err)
				}
			}
		})
	}
	for i := range 2000 {
		part, err := m.Split(current.Load(), "user", []kafka.TopicPartition{tp(2)})
		if err == nil {
			for err = ErrHeld; errors.Is(err, ErrHeld); {
				err = m.Merge(current.Load(), part)
			}
		}
		if err != nil && !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
		if i%10 == 0 {
			m.Revoke(current.Load())
			current.Store(must[*Key](t)(m.Grant("user", tp(1), tp(2))))
		}
		_ = m.Ledger()
	}
	stop.Store(true)
	group.Wait()
	if err := m.Valid(); err != nil || m.Live() != 1 {
		t.Fatal(err, m.Live())
	}
}

// TestWhatDiesWithAKeyIsDeadWhenItsRevocationReturns: also where somebody else ends a key of its stack at the same time.
func TestWhatDiesWithAKeyIsDeadWhenItsRevocationReturns(t *testing.T) {
	for range 3000 {
		m := NewMint()
		root := must[*Key](t)(m.Grant("user", tp(1)))
		within := must[*Key](t)(root.Acquire("user", "callback"))
		inner := must[*Key](t)(within.Acquire("user", "seek"))
		var group sync.WaitGroup
		group.Go(func() { _, _ = within.End("user") })
		m.Revoke(root)
		if inner.Valid() || within.Valid() || root.Valid() {
			t.Fatal("a key of a revoked stack is alive")
		}
		group.Wait()
	}
}

func BenchmarkAcquireReturn(b *testing.B) {
	b.ReportAllocs()
	root, err := NewMint().Grant("user", tp(1))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		key, err := root.Acquire("user", "commit")
		if err != nil {
			b.Fatal(err)
		}
		if err := key.Return("user"); err != nil {
			b.Fatal(err)
		}
	}
}
