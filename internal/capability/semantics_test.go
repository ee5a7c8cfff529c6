package capability

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// noon is when desks of tests are opened.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func partitions(numbers ...int32) []kafka.TopicPartition {
	out := make([]kafka.TopicPartition, len(numbers))
	for i, n := range numbers {
		out[i] = tp(n)
	}
	return out
}

// opened returns a desk that owns those partitions.
func opened(t *testing.T, numbers ...int32) *Desk {
	t.Helper()
	d := NewDesk()
	feed(t, d, noon, Owned{Partitions: partitions(numbers...)})
	return d
}

// feed steps a desk, and checks that it is valid afterwards.
func feed(t *testing.T, d *Desk, now time.Time, in DeskInput) []DeskEffect {
	t.Helper()
	effects := d.Step(now, in)
	if err := d.Valid(); err != nil {
		t.Fatal(err)
	}
	return effects
}

// granted returns the key that an input brought to that number, nil if it brought none.
func granted(effects []DeskEffect, id uint64) *Key {
	for _, effect := range effects {
		if g, ok := effect.(Granted); ok && g.ID == id {
			return g.Key
		}
	}
	return nil
}

// refusal returns why a number was refused, nil if it was not.
func refusal(effects []DeskEffect, id uint64) error {
	for _, effect := range effects {
		if r, ok := effect.(Refused); ok && r.ID == id {
			return r.Err
		}
	}
	return nil
}

// revoked returns the tokens that were revoked.
func revoked(effects []DeskEffect) (out []Revoked) {
	for _, effect := range effects {
		if r, ok := effect.(Revoked); ok {
			out = append(out, r)
		}
	}
	return out
}

// token asks for a token that has to be granted.
func token(t *testing.T, d *Desk, asked Asked) *Key {
	t.Helper()
	key := granted(feed(t, d, noon, asked), asked.ID)
	if key == nil {
		t.Fatalf("%s got no token", asked.Holder)
	}
	return key
}

func TestSemantics1_ACallbackMayCallAgainAlsoFromACallbackInsideThatCall(t *testing.T) {
	d := opened(t, 1)
	callback := token(t, d, Asked{ID: 1, Holder: "OnRevoking", Op: "rebalance", How: Force, Rights: RightsOwned, Partitions: partitions(1)})
	stack := []*Key{callback}
	for _, op := range []string{"commit", "OnCommitted", "seek", "OnSeek", "pause"} {
		top := must[*Key](t)(stack[len(stack)-1].Acquire("OnRevoking", op))
		if err := d.Authorize(top, MayCommit, op, partitions(1)); err != nil {
			t.Fatal(err)
		}
		stack = append(stack, top)
	}
	for i := len(stack) - 1; i > 0; i-- {
		expectMisuse(t, stack[i-1].Return("OnRevoking"), ErrOutOfOrder, "OnRevoking", "OnRevoking")
		if err := d.Authorize(stack[i-1], MayCommit, "commit", partitions(1)); !errors.Is(err, ErrHeld) {
			t.Fatal("a key below the top was usable:", err)
		}
		if err := stack[i].Return("OnRevoking"); err != nil {
			t.Fatal(err)
		}
	}
	if len(feed(t, d, noon, Ended{ID: 1})) > 0 || callback.Valid() {
		t.Fatal("the callback's token did not end with it")
	}
}

func TestSemantics2_WhoHasNoLiveTokenIsRefusedAtOnceAndToldByWhom(t *testing.T) {
	d := opened(t, 1, 2)
	since := noon.Add(time.Second)
	key := granted(feed(t, d, since, Asked{ID: 1, Holder: "user", Op: "repair", Rights: RightsOwned, Partitions: partitions(1)}), 1)
	must[*Key](t)(key.Acquire("user", "seek"))
	refusals := map[string]error{
		"without a token": d.Free("pause", "consumer", partitions(2, 1)),
		"another asks":    refusal(feed(t, d, noon, Asked{ID: 2, Holder: "consumer", Op: "pause", All: true}), 2),
	}
	for name, err := range refusals {
		var misuse *MisuseError
		if !errors.As(err, &misuse) || misuse.Op != "pause" || misuse.Asker != "consumer" || misuse.Holder != "user" || misuse.HolderOp != "seek" ||
			misuse.Since != since || misuse.Partition != tp(1) || misuse.Forced || !errors.Is(err, ErrHeld) {
			t.Errorf("%s: %#v", name, err)
		}
	}
	if err := d.Free("pause", "consumer", partitions(2)); err != nil {
		t.Error("code without tokens is hindered where nobody has one:", err)
	}
}

func TestSemantics3_HandingItOnKillsTheGiversAtOnceAndForEver(t *testing.T) {
	d := opened(t, 1)
	giver := token(t, d, Asked{ID: 1, Holder: "giver", Rights: RightsOwned, All: true})
	receiver := must[*Key](t)(giver.Pass("giver", "receiver"))
	use := func() {
		t.Helper()
		_, err := giver.Acquire("giver", "seek")
		if !errors.Is(err, ErrPassed) && !errors.Is(err, ErrRevoked) {
			t.Fatal("the giver got in:", err)
		}
		if _, err := giver.Pass("giver", "other"); err == nil {
			t.Fatal("given twice")
		}
		if err := giver.Return("giver"); err == nil {
			t.Fatal("the giver returned what is not his")
		}
		if giver.Valid() || d.Authorize(giver, MaySeek, "seek", partitions(1)) == nil {
			t.Fatal("the giver's is alive")
		}
	}
	use()
	if !giver.Passed() || d.Authorize(receiver, MaySeek, "seek", partitions(1)) != nil || d.Ledger()[0].Holder != "receiver" {
		t.Fatal("the receiver's is not alive")
	}
	third := must[*Key](t)(receiver.Pass("receiver", "third"))
	use()
	if err := third.Return("third"); err != nil {
		t.Fatal(err)
	}
	use()
	if giver.Passed() || receiver.Valid() || len(d.Ledger()) != 0 {
		t.Fatal("something lives on")
	}
	token(t, d, Asked{ID: 2, Holder: "next", All: true})
	// A receiver that ends before it has taken the token: it is returned, and that is no misuse.
	d = opened(t, 1)
	must[*Key](t)(token(t, d, Asked{ID: 1, Holder: "giver", All: true}).Pass("giver", "dead actor"))
	if effects := feed(t, d, noon, Ended{ID: 1}); len(effects) > 0 {
		t.Fatal(effects)
	}
	token(t, d, Asked{ID: 2, Holder: "next", All: true})
}

func TestSemantics4_TwoUsersOfOneTokenAreNeverInsideTogether(t *testing.T) {
	d := opened(t, 1)
	key := token(t, d, Asked{ID: 1, Holder: "user", Rights: RightsOwned, All: true})
	var inside, entered atomic.Int64
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			for done := 0; done < 200; {
				call, err := key.Acquire("user", "seek")
				if err != nil {
					if !errors.Is(err, ErrHeld) {
						t.Error(err)
						return
					}
					done++
					continue
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d inside", n)
				}
				entered.Add(1)
				inside.Add(-1)
				if err := call.Return("user"); err != nil {
					t.Error(err)
				}
				done++
			}
		})
	}
	group.Wait()
	if entered.Load() == 0 || !key.Valid() || d.Valid() != nil {
		t.Fatal(entered.Load(), key.Valid(), d.Valid())
	}
}

func TestSemantics5_ACallbackThatReturnsWhileAnotherOperatesIsToldWhoWasInside(t *testing.T) {
	d := opened(t, 1, 2)
	callback := token(t, d, Asked{ID: 1, Holder: "OnAssigned", Op: "rebalance", How: Force, Rights: RightsAssigned, Partitions: partitions(1)})
	call := must[*Key](t)(callback.Acquire("OnAssigned", "seek"))
	nested := must[*Key](t)(call.Acquire("OnAssigned", "commit"))
	over := revoked(feed(t, d, noon, Ended{ID: 1}))
	want := []Level{{Holder: "OnAssigned", Op: "seek"}, {Holder: "OnAssigned", Op: "commit"}}
	if len(over) != 1 || !errors.Is(over[0].Cause, ErrInside) || !slices.Equal(over[0].Inside, want) || !slices.Equal(over[0].Grant.Partitions, partitions(1)) {
		t.Fatalf("%+v", over)
	}
	for _, key := range []*Key{callback, call, nested} {
		if key.Valid() || d.Authorize(key, MaySeek, "seek", partitions(1)) == nil {
			t.Fatal("who was inside may go on")
		}
		expectMisuse(t, key.Return("OnAssigned"), ErrRevoked, "OnAssigned", "")
	}
	token(t, d, Asked{ID: 2, Holder: "next", All: true})
	// Inside of a call it is End that tells, and the key below is usable again.
	outer := must[*Key](t)(NewMint().Grant("user", tp(1)))
	within := must[*Key](t)(outer.Acquire("user", "callback"))
	must[*Key](t)(within.Acquire("user", "pause"))
	expect, err := within.End("other")
	expectMisuse(t, err, ErrNotHolder, "other", "user")
	if expect != nil || within.Holder() == "" {
		t.Fatal("a stranger ended it")
	}
	if inside, err := within.End("user"); err != nil || !slices.Equal(inside, []Level{{Holder: "user", Op: "pause"}}) || !outer.Valid() {
		t.Fatal(inside, err, outer.Valid())
	}
	_, err = within.End("user")
	expectMisuse(t, err, ErrRevoked, "user", "")
}

func TestSemantics6_AHolderThatDiesOrIsOverdueLosesItAndTheDeadOneStaysDead(t *testing.T) {
	died := errors.New("panic")
	for name, end := range map[string]struct {
		in    DeskInput
		cause error
	}{"dies": {Ended{ID: 1, Cause: died}, died}, "is overdue": {DeskTick{}, ErrOverdue}} {
		d := opened(t, 1, 2)
		until := noon.Add(time.Minute)
		key := token(t, d, Asked{ID: 1, Holder: "user", Op: "repair", Partitions: partitions(1, 2), Rights: RightsOwned, Until: until})
		passed := must[*Key](t)(key.Pass("user", "helper"))
		call := must[*Key](t)(passed.Acquire("helper", "seek"))
		if at, ok := d.Deadline(); !ok || at != until {
			t.Fatal(at, ok)
		}
		if early := feed(t, d, until.Add(-1), DeskTick{}); len(early) > 0 {
			t.Fatal(early)
		}
		feed(t, d, noon, Asked{ID: 2, Holder: "next", How: Wait, All: true, Rights: RightsOwned})
		effects := feed(t, d, until, end.in)
		over, fresh := revoked(effects), granted(effects, 2)
		if len(over) != 1 || !errors.Is(over[0].Cause, end.cause) || !slices.Equal(over[0].Inside, []Level{{Holder: "helper", Op: "seek"}}) || fresh == nil {
			t.Fatalf("%s: %+v", name, effects)
		}
		for range 3 {
			for _, dead := range []*Key{key, passed, call} {
				if dead.Valid() || dead.Holder() != "" || dead.Partitions() != nil || dead.Rights() != 0 || d.Authorize(dead, 0, "position", nil) == nil {
					t.Fatalf("%s: a dead token lives", name)
				}
			}
			if err := fresh.Return("next"); err != nil {
				t.Fatal(err)
			}
			fresh = token(t, d, Asked{ID: 3, Holder: "next", All: true})
		}
	}
}

func TestSemantics7_TheTokenAllowsWhatTheStateOfItsPartitionsDoes(t *testing.T) {
	all := []Rights{MayPause, MaySeek, MayCommit, MaySkip}
	for _, state := range []struct {
		name   string
		rights Rights
		may    []Rights
	}{
		{"owned", RightsOwned, all},
		{"ASSIGNING", RightsAssigning, []Rights{MayPause, MaySeek}},
		{"ASSIGNED", RightsAssigned, []Rights{MayPause, MaySeek, MayCommit}},
		{"REVOKING", RightsRevoking, []Rights{MayCommit}},
		{"REVOKED or lost", RightsGone, nil},
	} {
		d := opened(t, 1)
		key := token(t, d, Asked{ID: 1, Holder: "callback", How: Force, Rights: state.rights, Partitions: partitions(1)})
		for _, right := range all {
			err := d.Authorize(key, right, "operation", partitions(1))
			if may := slices.Contains(state.may, right); may != (err == nil) || !may && !errors.Is(err, ErrNotAllowed) {
				t.Errorf("%s, %s: %v", state.name, right, err)
			}
		}
		if err := d.Authorize(key, 0, "position", partitions(1)); err != nil {
			t.Errorf("%s: reading is refused: %v", state.name, err)
		}
		if key.Rights() != state.rights {
			t.Errorf("%s: %s", state.name, key.Rights())
		}
	}
}
