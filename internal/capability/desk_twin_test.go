package capability

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// happening is one event in the life of a desk: an input, or what a holder does with token id by itself.
type happening struct {
	in DeskInput
	// what is "enter", "leave", "pass" or "return", when in is nil.
	what string
	id   uint64
	at   int
}

// naiveToken is one that was asked for, over a set of partitions as bits.
type naiveToken struct {
	Asked
	wants, covers uint
	until         int
	out, waiting  bool
	// calls is for each level of the stack above the granted key whether it is a call; the others were passed on.
	calls []bool
}

// naiveDesk is made anew from all that happened, for each answer. It asks of every partition who has it.
type naiveDesk struct {
	owned  uint
	tokens []*naiveToken
	said   []string
}

func numbers(set uint) (out []int32) {
	for n := range int32(8) {
		if set&(1<<n) != 0 {
			out = append(out, n)
		}
	}
	return out
}

func (n *naiveDesk) wants(x *naiveToken) uint {
	if x.All {
		return n.owned
	}
	return x.wants
}

func (n *naiveDesk) say(format string, args ...any) {
	n.said = append(n.said, fmt.Sprintf(format, args...))
}

// taken is what is under tokens.
func (n *naiveDesk) taken() (set uint) {
	for _, x := range n.tokens {
		if x.out {
			set |= x.covers
		}
	}
	return set
}

func (n *naiveDesk) withdraw(set uint) {
	for _, x := range n.tokens {
		x.covers &^= set
	}
}

func (n *naiveDesk) grant(x *naiveToken, at int) {
	x.out, x.waiting, x.covers = true, false, n.wants(x)
	x.until = seconds(x.Until)
	if end := at + int(x.For/time.Second); x.For > 0 && (x.until < 0 || end < x.until) {
		x.until = end
	}
	n.say("granted %d %v", x.ID, numbers(x.covers))
}

// seconds is a time as the histories count it, -1 for none.
func seconds(at time.Time) int {
	if at.IsZero() {
		return -1
	}
	return int(at.Sub(noon) / time.Second)
}

// decide answers a token that is asked for, if it can be: before has what those want who asked before.
func (n *naiveDesk) decide(x *naiveToken, before uint, at int) (decided bool) {
	wants, until := n.wants(x), seconds(x.Until)
	switch {
	case wants == 0:
		n.say("refused %d %v", x.ID, ErrNothing)
	case until >= 0 && at >= until:
		n.say("refused %d %v", x.ID, ErrOverdue)
	case wants&(n.taken()|before) != 0:
		return false
	default:
		n.grant(x, at)
	}
	x.waiting = false
	return true
}

func (n *naiveDesk) end(x *naiveToken, cause error) {
	if !x.out {
		return
	}
	inside := 0
	for _, call := range x.calls {
		if call {
			inside++
		}
	}
	if x.out = false; cause == nil && inside > 0 {
		cause = ErrInside
	}
	if cause != nil {
		n.say("revoked %d %v %v inside %d", x.ID, numbers(x.covers), cause, inside)
	}
}

func (n *naiveDesk) find(id uint64) *naiveToken {
	if i := slices.IndexFunc(n.tokens, func(x *naiveToken) bool { return x.ID == id }); i >= 0 {
		return n.tokens[i]
	}
	return &naiveToken{}
}

// asked is an Asked.
func (n *naiveDesk) asked(in Asked, at int) {
	x := &naiveToken{Asked: in}
	for _, p := range in.Partitions {
		x.wants |= 1 << p.Partition
	}
	waiting := uint(0)
	for _, other := range n.tokens {
		if other.waiting {
			waiting |= n.wants(other)
		}
	}
	n.tokens = append(n.tokens, x)
	switch {
	case in.How == Force:
		n.withdraw(n.wants(x))
		n.grant(x, at)
	case !in.All && x.wants&^n.owned != 0:
		n.say("refused %d %v", x.ID, ErrNothing)
	case in.How == Wait:
		x.waiting = true
	case !n.decide(x, waiting, at):
		n.say("refused %d %v", x.ID, ErrHeld)
	}
}

// happens takes one event. What it says of all but the last is nobody's.
func (n *naiveDesk) happens(h happening) {
	n.said = nil
	x := n.find(h.id)
	switch in := h.in.(type) {
	case nil:
		switch {
		case !x.out:
		case h.what == "return":
			x.out = false
		case h.what == "leave":
			x.calls = x.calls[:len(x.calls)-1]
		default:
			x.calls = append(x.calls, h.what == "enter")
		}
		return
	case Asked:
		n.asked(in, h.at)
	case Ended:
		x := n.find(in.ID)
		x.waiting = false
		n.end(x, in.Cause)
	case Owned:
		for _, p := range in.Partitions {
			n.owned |= 1 << p.Partition
		}
	case Gone:
		for _, p := range in.Partitions {
			n.owned &^= 1 << p.Partition
			for _, x := range n.tokens {
				x.covers &^= 1 << p.Partition
				x.wants &^= 1 << p.Partition
			}
		}
	case DeskTick:
		for _, x := range n.tokens {
			if x.out && x.until >= 0 && h.at >= x.until {
				n.end(x, ErrOverdue)
			}
		}
	}
	before := uint(0)
	for _, x := range n.tokens {
		if x.waiting && !n.decide(x, before, h.at) {
			before |= n.wants(x)
		}
	}
}

// words says what a desk answered, as the twin does.
func words(effects []DeskEffect) (out []string) {
	ns := func(in []string) string { return "[" + strings.Join(in, " ") + "]" }
	for _, effect := range effects {
		switch e := effect.(type) {
		case Granted:
			var covers []string
			for _, p := range e.Key.Partitions() {
				covers = append(covers, fmt.Sprint(p.Partition))
			}
			out = append(out, fmt.Sprintf("granted %d %s", e.ID, ns(covers)))
		case Refused:
			out = append(out, fmt.Sprintf("refused %d %v", e.ID, errors.Unwrap(e.Err)))
		case Revoked:
			var covers []string
			for _, p := range e.Grant.Partitions {
				covers = append(covers, fmt.Sprint(p.Partition))
			}
			out = append(out, fmt.Sprintf("revoked %d %s %v inside %d", e.Grant.ID, ns(covers), e.Cause, len(e.Inside)))
		}
	}
	return out
}

var errDied = errors.New("died")

// deskHistory is a desk in use: the keys of each token, the lowest first, and all that happened.
type deskHistory struct {
	desk     *Desk
	keys     map[uint64][]*Key
	ids      uint64
	at       int
	happened []happening
}

// choose draws what happens next.
func (y *deskHistory) choose(r chooser) happening {
	y.at += r.IntN(3)
	some := partitions(numbers(uint(r.IntN(16)))...)
	id := max(y.ids, 1) - uint64(r.IntN(int(min(max(y.ids, 1), 6))))
	h := happening{at: y.at, id: id}
	switch r.IntN(12) {
	case 0, 1, 2:
		y.ids++
		asked := Asked{
			ID: y.ids, Holder: Holder(fmt.Sprint("holder ", y.ids)), Op: "op", How: How(min(r.IntN(5), 3)+1) % 3, Rights: RightsOwned,
			Partitions: some, All: r.IntN(3) == 0,
		}
		if asked.All {
			asked.Partitions = nil
		}
		if r.IntN(3) == 0 {
			asked.Until = noon.Add(time.Duration(y.at+r.IntN(20)) * time.Second)
		}
		asked.For = time.Duration(r.IntN(3)*4) * time.Second
		h.in = asked
	case 3:
		h.in = Ended{ID: id}
		if r.IntN(2) == 0 {
			h.in = Ended{ID: id, Cause: errDied}
		}
	case 4, 5:
		h.in = Owned{Partitions: some}
	case 6:
		h.in = Gone{Partitions: some}
	case 7:
		h.in = DeskTick{}
	case 8, 9:
		h.what = "enter"
	case 10:
		h.what = "pass"
	default:
		h.what = "leave"
		if keys := y.keys[id]; len(keys) > 0 && keys[len(keys)-1].op == "op" {
			h.what = "return"
		}
	}
	return h
}

// acts lets a holder do something with the token by itself.
func (y *deskHistory) acts(t *testing.T, h happening, out bool) {
	t.Helper()
	keys := y.keys[h.id]
	if len(keys) == 0 {
		return
	}
	top := keys[len(keys)-1]
	by := top.acquirer
	var next *Key
	var err error
	switch h.what {
	case "enter":
		next, err = top.Acquire(by, "call")
	case "pass":
		next, err = top.Pass(by, by+"'")
	default:
		if err = top.Return(by); err == nil {
			y.keys[h.id] = keys[:len(keys)-1]
		}
	}
	if next != nil {
		y.keys[h.id] = append(keys, next)
	}
	if (err == nil) != out {
		t.Fatalf("%s with token %d: %v, out %t", h.what, h.id, err, out)
	}
}

// agreeDesk runs a history of a desk and compares it with its twin.
func agreeDesk(t *testing.T, r chooser, steps int) {
	t.Helper()
	y := &deskHistory{desk: NewDesk(), keys: map[uint64][]*Key{}}
	for step := range steps {
		h := y.choose(r)
		twin := &naiveDesk{}
		for _, before := range y.happened {
			twin.happens(before)
		}
		if h.in == nil {
			if top := y.keys[h.id]; h.what == "pass" && (len(top) == 0 || top[len(top)-1].op != "op") {
				continue // what was acquired for a call is not given on here
			}
			y.acts(t, h, twin.find(h.id).out)
		}
		y.happened = append(y.happened, h)
		twin.happens(h)
		var said []string
		if h.in != nil {
			effects := y.desk.Step(noon.Add(time.Duration(h.at)*time.Second), h.in)
			for _, effect := range effects {
				if g, ok := effect.(Granted); ok {
					y.keys[g.ID] = []*Key{g.Key}
				}
			}
			said = words(effects)
			if err := y.desk.Valid(); err != nil {
				t.Fatalf("step %d, %+v: %v", step, h, err)
			}
		}
		if _, tick := h.in.(DeskTick); tick {
			slices.Sort(said)
			slices.Sort(twin.said)
		}
		if !slices.Equal(said, twin.said) {
			t.Fatalf("step %d, %+v: the desk says %q, the twin %q", step, h, said, twin.said)
		}
		y.compare(t, twin)
	}
}

// compare looks at every key ever granted, partition by partition.
func (y *deskHistory) compare(t *testing.T, twin *naiveDesk) {
	t.Helper()
	out := 0
	for id, keys := range y.keys {
		x := twin.find(id)
		if x.out {
			out++
		}
		for i, key := range keys {
			for n := range int32(4) {
				want := x.out && i == len(keys)-1 && x.covers&(1<<n) != 0
				if got := y.desk.Authorize(key, MaySeek, "seek", partitions(n)) == nil; got != want {
					t.Fatalf("token %d, level %d, partition %d: authorized %t, want %t", id, i, n, got, want)
				}
			}
		}
	}
	for n := range int32(4) {
		if free := y.desk.Free("seek", "consumer", partitions(n)) == nil; free != (twin.taken()&(1<<n) == 0) {
			t.Fatalf("partition %d is free: %t", n, free)
		}
	}
	if got := len(y.desk.Ledger()); got != out {
		t.Fatalf("%d in the ledger, want %d", got, out)
	}
}

func TestTheDeskAgreesWithItsNaiveTwin(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 4))
		t.Run(fmt.Sprint(seed), func(t *testing.T) { agreeDesk(t, r, 90) })
	}
}

// FuzzDesk lets the fuzzer choose the history.
func FuzzDesk(f *testing.F) {
	f.Add([]byte("\x00\x0f\x00\x04\x00\x03\x00\x00\x02\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		data = data[:min(len(data), 600)]
		agreeDesk(t, &bytesChooser{data}, len(data)/5)
	})
}
