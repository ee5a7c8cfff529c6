package capability

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func TestDesk_WhoWaitsIsServedInTheOrderOfAskingAndNobodyOvertakes(t *testing.T) {
	d := opened(t, 1, 2, 3)
	first := token(t, d, Asked{ID: 1, Holder: "first", Partitions: partitions(1)})
	feed(t, d, noon, Asked{ID: 2, Holder: "second", Op: "both", How: Wait, Partitions: partitions(1, 2)})
	feed(t, d, noon, Asked{ID: 3, Holder: "third", How: Wait, Partitions: partitions(2)})
	feed(t, d, noon, Asked{ID: 4, Holder: "fourth", How: Wait, All: true})
	if len(d.queue) != 3 {
		t.Fatalf("%d wait", len(d.queue))
	}
	// Partition 2 is under no token, but somebody waits for it; 3 is wanted by who wants all.
	for _, n := range []int32{2, 3} {
		err := refusal(feed(t, d, noon, Asked{ID: 5, Holder: "impatient", Op: "seek", Partitions: partitions(n)}), 5)
		holder := map[int32]Holder{2: "second", 3: "fourth"}[n]
		expectMisuse(t, err, ErrHeld, "impatient", holder)
	}
	if err := first.Return("first"); err != nil {
		t.Fatal(err)
	}
	effects := feed(t, d, noon, Ended{ID: 1})
	if granted(effects, 2) == nil || len(effects) != 1 {
		t.Fatal(effects)
	}
	effects = feed(t, d, noon, Ended{ID: 2})
	if granted(effects, 3) == nil || len(effects) != 1 {
		t.Fatal(effects)
	}
	effects = feed(t, d, noon, Ended{ID: 3})
	if key := granted(effects, 4); key == nil || !slices.Equal(key.Partitions(), partitions(1, 2, 3)) {
		t.Fatal(effects)
	}
}

func TestDesk_WhoHasNothingInCommonDoesNotWaitForAnother(t *testing.T) {
	d := opened(t, 1, 2)
	token(t, d, Asked{ID: 1, Holder: "first", Partitions: partitions(1)})
	feed(t, d, noon, Asked{ID: 2, Holder: "second", How: Wait, Partitions: partitions(1)})
	token(t, d, Asked{ID: 3, Holder: "third", How: Wait, Partitions: partitions(2)})
}

func TestDesk_WhoWaitsNoLongerIsForgotten(t *testing.T) {
	d := opened(t, 1)
	token(t, d, Asked{ID: 1, Holder: "first", All: true})
	feed(t, d, noon, Asked{ID: 2, Holder: "second", How: Wait, All: true})
	feed(t, d, noon, Asked{ID: 3, Holder: "third", How: Wait, All: true})
	if effects := feed(t, d, noon, Ended{ID: 2, Cause: errors.New("gave up")}); len(effects) > 0 || len(d.queue) != 1 {
		t.Fatal(effects, len(d.queue))
	}
	if effects := feed(t, d, noon, Ended{ID: 1}); granted(effects, 3) == nil || len(effects) != 1 {
		t.Fatal(effects)
	}
}

func TestDesk_NobodyWaitsLongerThanHisOwnTime(t *testing.T) {
	d := opened(t, 1)
	token(t, d, Asked{ID: 1, Holder: "first", Op: "repair", All: true})
	until := noon.Add(time.Second)
	feed(t, d, noon, Asked{ID: 2, Holder: "second", How: Wait, All: true, Until: until})
	if at, ok := d.Deadline(); !ok || at != until {
		t.Fatal(at, ok)
	}
	effects := feed(t, d, until, DeskTick{})
	expectMisuse(t, refusal(effects, 2), ErrOverdue, "second", "first")
	if _, ok := d.Deadline(); ok || len(effects) != 1 || len(d.queue) != 0 {
		t.Fatal(effects)
	}
	// Also when the time is over at asking.
	feed(t, d, noon, Ended{ID: 1})
	for _, how := range []How{Try, Wait} {
		expectMisuse(t, refusal(feed(t, d, until, Asked{ID: 3, Holder: "late", How: how, All: true, Until: until}), 3), ErrOverdue, "late", "")
	}
}

func TestDesk_TheTimeOfATokenCountsFromItsGrant(t *testing.T) {
	d := opened(t, 1)
	first := token(t, d, Asked{ID: 1, Holder: "first", All: true, For: time.Minute})
	feed(t, d, noon, Asked{ID: 2, Holder: "second", How: Wait, All: true, For: time.Minute, Until: noon.Add(time.Hour)})
	feed(t, d, noon, Asked{ID: 3, Holder: "third", How: Wait, All: true, For: time.Minute, Until: noon.Add(90 * time.Second)})
	effects := feed(t, d, noon.Add(time.Minute), DeskTick{})
	if over := revoked(effects); len(over) != 1 || over[0].Grant.ID != 1 || first.Valid() || granted(effects, 2) == nil {
		t.Fatal(effects)
	}
	if at, _ := d.Deadline(); at != noon.Add(90*time.Second) {
		t.Fatal("the third waits until", at)
	}
	feed(t, d, noon.Add(80*time.Second), Ended{ID: 2})
	if at, _ := d.Deadline(); at != noon.Add(90*time.Second) {
		t.Fatal("the third has it until", at)
	}
}

func TestDesk_ForceTakesPartitionsAwayAtOnceAlsoInsideACall(t *testing.T) {
	d := opened(t, 1, 2)
	user := token(t, d, Asked{ID: 1, Holder: "user", Op: "repair", Rights: RightsOwned, All: true})
	call := must[*Key](t)(user.Acquire("user", "seek"))
	feed(t, d, noon, Asked{ID: 2, Holder: "patient", How: Wait, Partitions: partitions(1)})
	feed(t, d, noon, Gone{Partitions: partitions(1)})
	callback := token(t, d, Asked{ID: 3, Holder: "OnRevoking", Op: "rebalance", How: Force, Rights: RightsRevoking, Partitions: partitions(1)})
	if err := d.Authorize(call, MaySeek, "seek", partitions(1)); !errors.Is(err, ErrNotCovered) {
		t.Fatal(err)
	}
	if err := d.Authorize(call, MaySeek, "seek", partitions(2)); err != nil {
		t.Fatal("the rest is not the user's any more:", err)
	}
	if err := d.Authorize(callback, MayCommit, "commit", partitions(1)); err != nil || !callback.Forced() || callback.Since() != noon {
		t.Fatal(err, callback.Forced(), callback.Since())
	}
	var misuse *MisuseError
	if err := d.Free("seek", "consumer", partitions(1)); !errors.As(err, &misuse) || !misuse.Forced || misuse.Holder != "OnRevoking" {
		t.Fatalf("%#v", misuse)
	}
	// Another callback takes it from the first.
	token(t, d, Asked{ID: 4, Holder: "OnLost", How: Force, Partitions: partitions(1)})
	if err := d.Authorize(callback, MayCommit, "commit", partitions(1)); !errors.Is(err, ErrNotCovered) {
		t.Fatal(err)
	}
	// All by force is what is owned.
	everything := token(t, d, Asked{ID: 5, Holder: "all", How: Force, All: true})
	if !slices.Equal(everything.Partitions(), partitions(2)) || len(call.Partitions()) > 0 {
		t.Fatal(everything.Partitions(), call.Partitions())
	}
}

func TestDesk_WhatIsNotOwnedIsUnderNoTokenButByForce(t *testing.T) {
	d := opened(t, 1, 2)
	user := token(t, d, Asked{ID: 1, Holder: "user", Partitions: partitions(1, 2)})
	feed(t, d, noon, Asked{ID: 2, Holder: "one", How: Wait, Partitions: partitions(1)})
	feed(t, d, noon, Asked{ID: 3, Holder: "two", How: Wait, Partitions: partitions(1, 2)})
	feed(t, d, noon, Asked{ID: 4, Holder: "all", How: Wait, All: true})
	effects := feed(t, d, noon, Gone{Partitions: partitions(1)})
	expectMisuse(t, refusal(effects, 2), ErrNothing, "one", "")
	if len(effects) != 1 || !slices.Equal(user.Partitions(), partitions(2)) || !slices.Equal(d.Ledger()[0].Partitions, partitions(2)) {
		t.Fatal(effects, user.Partitions())
	}
	for _, how := range []How{Try, Wait} {
		err := refusal(feed(t, d, noon, Asked{ID: 5, Holder: "late", How: how, Partitions: partitions(2, 1)}), 5)
		expectMisuse(t, err, ErrNothing, "late", "")
		var misuse *MisuseError
		if errors.As(err, &misuse); misuse.Partition != tp(1) {
			t.Fatal(misuse.Partition)
		}
	}
	if key := granted(feed(t, d, noon, Ended{ID: 1}), 3); !slices.Equal(key.Partitions(), partitions(2)) {
		t.Fatal("who waits for both gets what is left:", key.Partitions())
	}
	feed(t, d, noon, Gone{Partitions: partitions(2)})
	if len(d.queue) != 0 {
		t.Fatal("somebody waits for nothing")
	}
	// It may be taken by force, and asked for again when it is owned again.
	token(t, d, Asked{ID: 6, Holder: "OnLost", How: Force, Partitions: partitions(1)})
	feed(t, d, noon, Owned{Partitions: partitions(1)})
	feed(t, d, noon, Ended{ID: 6})
	token(t, d, Asked{ID: 7, Holder: "user", Partitions: partitions(1)})
}

func TestDesk_ATokenThatWasReturnedIsNotToldToBeOverdue(t *testing.T) {
	for _, in := range []DeskInput{DeskTick{}, Ended{ID: 1}, Ended{ID: 1, Cause: errors.New("died")}} {
		d := opened(t, 1)
		key := token(t, d, Asked{ID: 1, Holder: "user", All: true, Until: noon.Add(time.Second)})
		feed(t, d, noon, Asked{ID: 2, Holder: "patient", How: Wait, All: true})
		passed := must[*Key](t)(key.Pass("user", "helper"))
		if err := passed.Return("helper"); err != nil {
			t.Fatal(err)
		}
		if len(d.Ledger()) > 0 {
			t.Fatal("it is out still")
		}
		if effects := feed(t, d, noon.Add(time.Minute), in); len(effects) != 1 || granted(effects, 2) == nil {
			t.Fatalf("%T: %v", in, effects)
		}
	}
}

func TestDesk_CloseEndsEverythingAndAnswersWhoWaits(t *testing.T) {
	d := opened(t, 1)
	key := token(t, d, Asked{ID: 1, Holder: "user", All: true})
	call := must[*Key](t)(key.Acquire("user", "seek"))
	feed(t, d, noon, Asked{ID: 2, Holder: "patient", How: Wait, All: true})
	effects := d.Close()
	expectMisuse(t, refusal(effects, 2), ErrClosed, "patient", "")
	if len(effects) != 1 || key.Holder() != "" || call.Valid() || len(d.Ledger()) > 0 || len(d.queue) > 0 || d.Valid() != nil {
		t.Fatal(effects, d.Ledger(), d.Valid())
	}
	expectMisuse(t, refusal(feed(t, d, noon, Asked{ID: 3, Holder: "late", All: true}), 3), ErrNothing, "late", "")
}

func TestDesk_KeysOfAnotherAreNone(t *testing.T) {
	d, other := opened(t, 1), opened(t, 1)
	key := token(t, other, Asked{ID: 1, Holder: "user", Rights: RightsOwned, All: true})
	for name, k := range map[string]*Key{"nil": nil, "zero": {}, "another desk's": key} {
		if err := d.Authorize(k, 0, "position", nil); !errors.Is(err, ErrRevoked) {
			t.Errorf("%s: %v", name, err)
		}
		if k.Passed() || k.Rights() != 0 && name != "another desk's" || name == "zero" && (k.Forced() || !k.Since().IsZero()) {
			t.Errorf("%s is alive", name)
		}
		if _, err := k.Pass("user", "other"); name != "another desk's" && !errors.Is(err, ErrRevoked) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := k.End("user"); name != "another desk's" && !errors.Is(err, ErrRevoked) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if RightsGone.String() != "none" || RightsRevoking.String() != "commit" {
		t.Error(RightsGone, RightsRevoking)
	}
}
