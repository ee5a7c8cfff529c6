package buffer

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/troupego/troupe/pkg/kafka"
)

// lanesOf returns lanes with one record per key, which stands for itself; "-" is a nil key.
func lanesOf(t *testing.T, config LanesConfig, keys ...string) *Lanes {
	t.Helper()
	l := NewLanes(config)
	for i, key := range keys {
		bytes := []byte(key)
		if key == "-" {
			bytes = nil
		}
		if seq, ok := l.Push(&kafka.Record{Offset: int64(100 + i)}, bytes); !ok || seq != uint64(i) {
			t.Fatalf("pushed as %d, %t", seq, ok)
		}
	}
	t.Cleanup(func() {
		if err := l.Valid(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// play runs steps such as "push a", "claim 2 = 0 3", "heads 4 = 1 2", "done 3", "fail 0", "return 1", "unpark 0" and
// "collect = 0 1"; a step that ends with "!" must return false.
func play(t *testing.T, l *Lanes, steps ...string) {
	t.Helper()
	for _, step := range steps {
		command, want, _ := strings.Cut(step, " =")
		refused := strings.HasSuffix(command, "!")
		var verb string
		var n int
		_, _ = fmt.Sscanf(strings.TrimSuffix(command, "!"), "%s %d", &verb, &n)
		got, ok := "", !refused
		switch verb {
		case "push":
			_, ok = l.Push(&kafka.Record{Offset: int64(100 + l.next)}, []byte(strings.TrimPrefix(command, "push ")))
		case "claim":
			got = seqs(l.Claim(nil, n))
		case "heads":
			got = seqs(l.ClaimHeads(nil, n))
		case "collect":
			l.Collect(func(seq uint64, offset int64) {
				if offset != int64(100+seq) {
					t.Fatalf("%d was collected with the record at %d", seq, offset)
				}
				got += fmt.Sprintf(" %d", seq)
			})
		case "done":
			ok = l.Done(uint64(n))
		case "fail":
			ok = l.Fail(uint64(n))
		case "return":
			ok = l.Return(uint64(n))
		case "unpark":
			ok = l.Unpark(uint64(n))
		default:
			t.Fatalf("no step %q", step)
		}
		if ok == refused || got != want {
			t.Fatalf("%s: %t, got%s", step, ok, got)
		}
		if err := l.Valid(); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
	}
}

func seqs(claimed []Claimed) string {
	var b strings.Builder
	for _, c := range claimed {
		fmt.Fprintf(&b, " %d", c.Seq)
	}
	return b.String()
}

func TestLanesRules(t *testing.T) {
	ordered, unordered := LanesConfig{Capacity: 10, Ordered: true}, LanesConfig{Capacity: 10}
	for _, test := range []struct {
		rule   string
		config LanesConfig
		keys   string
		steps  []string
	}{
		{"records of a key never overlap", ordered, "a a b", []string{"claim 1 = 0", "claim 1 = 2", "claim 1 =", "done 0", "claim 1 = 1"}},
		{"the lowest head goes first", ordered, "a b a c", []string{"claim 1 = 0", "claim 1 = 1", "done 0", "claim 1 = 2", "claim 1 = 3"}},
		{"a claim stays within its lane", ordered, "a b a a", []string{"claim 2 = 0 2", "claim 9 = 1", "done 2", "claim 9 =", "done 0", "claim 9 = 3"}},
		{"no record is claimed for nothing", ordered, "a", []string{"claim 0 =", "heads 0 =", "claim -1 =", "claim 1 = 0"}},
		{"a batch has whole heads in offset order", ordered, "a b a b c", []string{"heads 3 = 0 1 2", "heads 9 = 4", "done 1", "heads 9 = 3"}},
		{"a batch does not come back for a lane", ordered, "a b a b", []string{"heads 1 = 0", "heads 9 = 1 3", "heads 9 ="}},
		{"a nil key is a class of its own", ordered, "- \"\" - \"\"", []string{"claim 1 = 0", "claim 1 = 1", "claim 1 =", "done 0", "claim 1 = 2"}},
		{"unordered records are lanes of their own", unordered, "a a a", []string{"claim 2 = 0", "claim 2 = 1", "done 1", "heads 9 = 2"}},
		{"a failed record parks its lane and comes first", ordered, "a a b", []string{"claim 1 = 0", "fail 0", "claim 1 = 2", "claim 1 =", "unpark 0", "claim 9 = 0 1"}},
		{"a lane is parked only when all its claims are settled", ordered, "a a a", []string{"claim 2 = 0 1", "fail 0", "unpark 0!", "done 1", "claim 9 =", "unpark 0", "claim 9 = 0 2"}},
		{"a parked lane goes by its lowest unfinished record", ordered, "a a a", []string{"claim 2 = 0 1", "fail 1", "done 0", "unpark 0!", "unpark 2!", "unpark 1", "unpark 1!", "claim 9 = 1 2"}},
		{"an unordered record is parked alone", unordered, "a a", []string{"claim 1 = 0", "fail 0", "claim 1 = 1", "claim 1 =", "unpark 0", "claim 1 = 0"}},
		{"returned records keep their places", ordered, "a a a b", []string{"claim 3 = 0 1 2", "return 2", "return 0", "claim 1 = 3", "done 1", "claim 9 = 0 2"}},
		{"each claim is settled once", ordered, "a b", []string{"done 0!", "claim 1 = 0", "done 1!", "done 7!", "return 0", "return 0!", "claim 1 = 0", "done 0", "done 0!", "fail 0!"}},
		{"a finished record is collected once and in order", ordered, "a b c d", []string{"heads 4 = 0 1 2 3", "done 3", "done 1", "collect = 1 3", "collect =", "done 2", "done 0", "collect = 0 2", "done 2!"}},
		{"a collected record in the middle of its lane is walked over", ordered, "a a a a", []string{"claim 3 = 0 1 2", "done 1", "done 2", "collect = 1 2", "return 0", "claim 2 = 0 3", "done 0", "collect = 0", "done 3", "collect = 3"}},
		{"a record may join behind a finished tail", ordered, "a a", []string{"claim 2 = 0 1", "done 1", "collect = 1", "push a", "return 0", "claim 1 = 0", "return 0", "claim 2 = 0 2", "done 0", "done 2", "collect = 0 2"}},
		{"a finished tail that was walked over is joined no more", ordered, "a a", []string{"claim 2 = 0 1", "done 1", "fail 0", "unpark 0", "claim 2 = 0", "push a", "done 0", "collect = 0 1", "claim 1 = 2"}},
		{"a record joins a parked lane", ordered, "a", []string{"claim 1 = 0", "fail 0", "push a", "claim 9 =", "unpark 0", "claim 9 = 0 1"}},
		{"a lane that is gone leaves nothing behind", ordered, "a", []string{"claim 1 = 0", "fail 0", "unpark 0", "claim 1 = 0", "done 0", "push a", "claim 1 = 1", "return 1", "claim 1 = 1"}},
	} {
		t.Run(test.rule, func(t *testing.T) {
			keys := strings.Fields(test.keys)
			for i := range keys {
				keys[i] = strings.Trim(keys[i], `"`)
			}
			play(t, lanesOf(t, test.config, keys...), test.steps...)
		})
	}
}

func TestLanesHoldNoMoreThanTheirCapacity(t *testing.T) {
	for _, capacity := range []int{-1, 0, 1, 2, 63, 64, 65, 130, 1000} {
		l := NewLanes(LanesConfig{Capacity: capacity, Ordered: true})
		most := max(capacity, 1)
		for round := range 3 {
			n := 0
			for ; l.Room() > 0; n++ {
				if _, ok := l.Push(&kafka.Record{}, fmt.Append(nil, n%7)); !ok {
					t.Fatalf("no push into room %d", l.Room())
				}
			}
			if _, ok := l.Push(&kafka.Record{}, nil); ok || n != most && round == 0 {
				t.Fatalf("%d of %d pushed, another one %t", n, capacity, ok)
			}
			// Half is finished, so that the ring goes round.
			for _, c := range l.ClaimHeads(nil, most/2+1) {
				if !l.Done(c.Seq) {
					t.Fatalf("%d not done", c.Seq)
				}
			}
			l.Collect(func(uint64, int64) {})
			if err := l.Valid(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestFinishedRecordsTakeRoomUntilTheyAreCollectedAndNothingIsBelow(t *testing.T) {
	l := lanesOf(t, LanesConfig{Capacity: 3, Ordered: true}, "a", "b", "c")
	play(t, l, "heads 3 = 0 1 2", "done 0", "done 2")
	if l.Room() != 0 || l.Low() != 0 {
		t.Fatalf("room %d, low %d", l.Room(), l.Low())
	}
	play(t, l, "collect = 0 2")
	if l.Room() != 1 || l.Low() != 1 {
		t.Fatalf("room %d, low %d", l.Room(), l.Low())
	}
	play(t, l, "done 1", "collect = 1")
	if l.Room() != 3 || l.Low() != 3 {
		t.Fatalf("room %d, low %d", l.Room(), l.Low())
	}
}

func TestAttemptsCountWhatWasBegun(t *testing.T) {
	l := lanesOf(t, LanesConfig{Capacity: 3, Ordered: true}, "a", "a")
	for _, step := range []struct {
		settle  func(uint64) bool
		attempt int
	}{{l.Return, 1}, {l.Fail, 1}, {l.Fail, 2}, {l.Return, 3}, {l.Done, 3}} {
		got := l.Claim(nil, 1)
		if len(got) != 1 || got[0].Attempt != step.attempt || !step.settle(0) {
			t.Fatalf("claimed %+v, want attempt %d", got, step.attempt)
		}
		l.Unpark(0)
	}
	if got := l.Claim(nil, 1); got[0].Attempt != 1 {
		t.Fatalf("the next record begins with attempt %d", got[0].Attempt)
	}
}

func TestHeadFindsTheParkedLaneOfARecord(t *testing.T) {
	l := lanesOf(t, LanesConfig{Capacity: 9, Ordered: true}, "a", "b", "a", "a")
	expect := func(seq, head uint64, parked, ok bool) {
		t.Helper()
		if gotHead, gotParked, gotOK := l.Head(seq); gotHead != head || gotParked != parked || gotOK != ok {
			t.Fatalf("head of %d: %d, %t, %t", seq, gotHead, gotParked, gotOK)
		}
	}
	play(t, l, "claim 2 = 0 2", "fail 2")
	expect(2, 0, false, true)
	expect(1, 1, false, true)
	play(t, l, "done 0")
	for _, seq := range []uint64{0, 2, 3} {
		expect(seq, 2, true, true)
	}
	expect(4, 0, false, false)
	play(t, l, "claim 1 = 1", "done 1")
	expect(1, 0, false, false)
	play(t, l, "collect = 0 1")
	expect(0, 0, false, false)
	unordered := lanesOf(t, LanesConfig{Capacity: 9}, "a", "a")
	play(t, unordered, "claim 1 = 0", "fail 0", "claim 1 = 1", "done 1")
	if head, parked, ok := unordered.Head(0); head != 0 || !parked || !ok {
		t.Fatalf("%d, %t, %t", head, parked, ok)
	}
	if _, _, ok := unordered.Head(1); ok {
		t.Fatal("the lane of a finished record is there")
	}
}

func TestLowestTellsWhereTheLowestUnfinishedRecordStands(t *testing.T) {
	l := lanesOf(t, LanesConfig{Capacity: 9, Ordered: true}, "a", "b", "a")
	expect := func(seq uint64, attempt int, state LaneState) (lane uint64) {
		t.Helper()
		got, ok := l.Lowest()
		if !ok || got.Seq != seq || got.Attempt != attempt || got.State != state || got.Record.Offset != int64(100+seq) {
			t.Fatalf("%+v, %t", got, ok)
		}
		return got.Lane
	}
	expect(0, 0, LaneWaiting)
	play(t, l, "claim 1 = 0")
	a := expect(0, 1, LaneClaimed)
	play(t, l, "fail 0")
	expect(0, 1, LaneParked)
	play(t, l, "unpark 0", "claim 1 = 0", "done 0", "collect = 0")
	if b := expect(1, 0, LaneWaiting); a == b {
		t.Fatal("two lanes have one number")
	}
	play(t, l, "heads 9 = 1 2", "done 1")
	if again := expect(2, 1, LaneClaimed); again != a {
		t.Fatal("the lane's number changed")
	}
	play(t, l, "done 2")
	if _, ok := l.Lowest(); ok {
		t.Fatal("all is finished")
	}
	for state, want := range map[LaneState]string{0: "waiting", 1: "claimed", 2: "parked", 3: "LaneState(3)"} {
		if state.String() != want {
			t.Fatalf("%v, want %s", state, want)
		}
	}
}

func TestDropForgetsWhatIsNotClaimedAndNoMore(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		l := lanesOf(t, LanesConfig{Capacity: 9, Ordered: ordered}, "a", "b", "c", "d", "e", "a")
		play(t, l, "claim 1 = 0", "fail 0", "claim 1 = 1", "claim 1 = 2", "claim 1 = 3", "claim 1 = 4", "done 1")
		if dropped := l.Drop(); dropped != 2 || l.Drop() != 0 {
			t.Fatalf("%d dropped, want the parked record and the waiting one", dropped)
		}
		if _, ok := l.Push(&kafka.Record{}, nil); ok || l.Room() != 0 || l.Ready()+l.Parked()+l.Waiting() != 0 || l.Claimed() != 3 {
			t.Fatalf("pushed %t, room %d, %d claimed", ok, l.Room(), l.Claimed())
		}
		if got, ok := l.Lowest(); !ok || got.Seq != 2 || got.State != LaneClaimed {
			t.Fatalf("lowest %+v, %t", got, ok)
		}
		play(t, l, "claim 1 =", "heads 9 =", "unpark 0!", "fail 2", "return 3", "done 4", "done 4!", "fail 3!", "collect = 1 4")
		if l.Low() != 0 || l.Claimed() != 0 {
			t.Fatalf("low %d passed a dropped record, %d claimed", l.Low(), l.Claimed())
		}
		if _, ok := l.Lowest(); ok {
			t.Fatal("a dropped record is the lowest")
		}
	}
	if NewLanes(LanesConfig{}).Drop() != 0 {
		t.Fatal("something was in empty lanes")
	}
}

// A handler owns its record and may write over the key; the caller may use the key's memory again.
func TestAKeyThatIsOverwrittenAfterThePushKeepsItsLane(t *testing.T) {
	l := NewLanes(LanesConfig{Capacity: 9, Ordered: true})
	key := []byte("a")
	for _, letter := range []byte("abab") {
		key[0] = letter
		l.Push(&kafka.Record{Offset: 100}, key)
	}
	key[0] = 'x'
	play(t, l, "claim 9 = 0 2", "claim 9 = 1 3", "done 2", "done 0")
}

func TestLanesOfEqualHashAreOneLane(t *testing.T) {
	l := NewLanes(LanesConfig{Capacity: 9, Ordered: true})
	l.hash = func([]byte) uint64 { return 7 }
	for _, key := range []string{"a", "b", "a"} {
		l.Push(&kafka.Record{}, []byte(key))
	}
	play(t, l, "claim 2 = 0 1", "claim 1 =", "done 0", "done 1", "claim 1 = 2")
}

// TestAWaitingRecordCostsAtMost64Bytes counts what is allocated for a full window of distinct keys, beside the records.
func TestAWaitingRecordCostsAtMost64Bytes(t *testing.T) {
	const most = 64
	word := unsafe.Sizeof(uint64(0)) * 8
	perSlot := float64(unsafe.Sizeof(laneSlot{})) + tableEntriesPerSlot*float64(unsafe.Sizeof(uint32(0))) +
		2*(1.0/8+1/float64(word)/8)
	if perSlot > 56.3 {
		t.Errorf("%.2f bytes per slot, the comment at Lanes says 56.3", perSlot)
	}
	for _, window := range []int{64, 1000, 10_000, 100_000} {
		l := NewLanes(LanesConfig{Capacity: window, Ordered: true})
		for i := range window {
			l.Push(&kafka.Record{}, fmt.Append(nil, i))
		}
		bytes := uintptr(cap(l.slots))*unsafe.Sizeof(laneSlot{}) + uintptr(cap(l.table))*unsafe.Sizeof(uint32(0))
		for _, set := range []slotBits{l.ready, l.fresh} {
			bytes += uintptr(cap(set.words)+cap(set.summary)) * unsafe.Sizeof(uint64(0))
		}
		if each := float64(bytes) / float64(window); l.Waiting() != window || each > most {
			t.Errorf("%.1f bytes for each of %d waiting records", each, window)
		}
	}
}

func TestFewRecordsInTransitTakeNoMemoryForTheWholeWindow(t *testing.T) {
	l := NewLanes(LanesConfig{Capacity: 10_000, Ordered: true})
	if len(l.slots) != 0 {
		t.Fatal("memory without a record")
	}
	for range 1000 {
		for range 100 {
			l.Push(&kafka.Record{}, []byte("a"))
		}
		for _, c := range l.Claim(nil, 100) {
			l.Done(c.Seq)
		}
		l.Collect(func(uint64, int64) {})
	}
	if len(l.slots) != 128 || l.Low() != 100_000 {
		t.Fatalf("%d slots, low %d", len(l.slots), l.Low())
	}
}

func TestCollectedRecordsAreNotKeptAlive(t *testing.T) {
	l := NewLanes(LanesConfig{Capacity: 10, Ordered: true})
	freed := make(chan uint64, 2)
	for i := range uint64(3) {
		record := &kafka.Record{Value: make([]byte, 100)}
		if i > 0 {
			runtime.AddCleanup(record, func(seq uint64) { freed <- seq }, i)
		}
		l.Push(record, []byte("a"))
	}
	claimed := l.Claim(nil, 2)
	l.Done(1)
	l.Collect(func(uint64, int64) {}) // record 0 below it is unfinished
	clear(claimed)
	l.Drop() // record 2
	got := []uint64{}
	for len(got) < 2 {
		runtime.GC()
		select {
		case seq := <-freed:
			got = append(got, seq)
		default:
			runtime.Gosched()
		}
	}
	if slices.Sort(got); !slices.Equal(got, []uint64{1, 2}) || l.Low() != 0 {
		t.Fatalf("freed %v", got)
	}
	runtime.KeepAlive(l)
}

func TestSlotBitsFindTheFirstOneGoingRound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	for _, size := range []int{64, 128, 4096, 4160, 20_032} {
		for _, members := range []int{0, 1, 2, 10, 1000} {
			set, has := newSlotBits(size), make([]bool, size)
			for range members {
				at := r.IntN(size)
				set.set(uint32(at))
				has[at] = true
			}
			for i := range 200 {
				from, gone := r.IntN(size), r.IntN(size)
				if i%4 == 0 {
					gone = max(slices.Index(has, true), 0)
				}
				set.clear(uint32(gone))
				has[gone] = false
				want := slices.Index(has[from:], true) + from
				if want < from {
					want = slices.Index(has, true)
				}
				got, ok := set.first(uint32(from))
				if ok != (want >= 0) || ok && int(got) != want {
					t.Fatalf("size %d, from %d: %d, %t, want %d", size, from, got, ok, want)
				}
			}
		}
	}
}
