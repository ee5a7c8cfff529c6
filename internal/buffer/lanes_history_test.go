package buffer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// lanesHistory is one run of Lanes beside its twin.
type lanesHistory struct {
	lanes   *Lanes
	twin    *lanesTwin
	hash    lanesHash
	keys    int
	choose  func(n int) int
	claimed []uint64
}

// newLanesHistory begins a run; choose returns a number from 0 to n-1.
func newLanesHistory(choose func(n int) int) *lanesHistory {
	h := &lanesHistory{choose: choose, hash: lanesHashes[choose(len(lanesHashes))]}
	config := LanesConfig{
		Capacity: []int{1, 2, 5, 20, 63, 64, 65, 100, 150, 300}[choose(10)],
		Ordered:  choose(4) != 0,
	}
	h.keys = []int{1, 2, 5, 20, 1 << 20}[choose(5)]
	h.lanes = NewLanes(config)
	if h.hash.hash != nil {
		h.lanes.hash = h.hash.hash
	}
	h.twin = &lanesTwin{capacity: config.Capacity, failed: map[string]bool{}}
	return h
}

func (h *lanesHistory) push() error {
	seq := uint64(len(h.twin.records))
	key := fmt.Append(nil, h.choose(h.keys))
	if h.choose(10) == 0 {
		key = nil
	}
	record := &kafka.Record{Offset: int64(seq)}
	got, ok := h.lanes.Push(record, key)
	if room := !h.twin.dropped && seq-h.twin.low() < uint64(h.twin.capacity); ok != room || ok && got != seq {
		return fmt.Errorf("pushed as %d, %t, want %d, %t", got, ok, seq, room)
	}
	if !ok {
		return nil
	}
	class := fmt.Sprintf("%t %s", key == nil, key)
	if !h.lanes.ordered {
		class = fmt.Sprint(seq)
	} else if h.hash.hash != nil {
		class = fmt.Sprint(h.lanes.hashOf(key))
	}
	h.twin.records = append(h.twin.records, &twinRecord{seq: seq, class: class, record: record})
	return nil
}

func (h *lanesHistory) claim(most int, heads bool) error {
	before := slices.Clone(h.claimed)
	var got, want []Claimed
	if heads {
		got, want = h.lanes.ClaimHeads([]Claimed{{}}, most)[1:], h.twin.claim(most, len(h.twin.records))
	} else {
		got, want = h.lanes.Claim([]Claimed{{}}, most)[1:], h.twin.claim(most, 1)
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("claimed %v, want %v", got, want)
	}
	for _, c := range got {
		h.claimed = append(h.claimed, c.Seq)
	}
	// Whatever the twin thinks: nothing of the class was claimed already, and nothing below is left out.
	for _, c := range got {
		for _, r := range h.twin.records[:c.Seq] {
			if r.class == h.twin.records[c.Seq].class && !r.finished && !slices.Contains(h.claimed[len(before):], r.seq) {
				return fmt.Errorf("%d was claimed before %d of the same lane, or beside it", c.Seq, r.seq)
			}
		}
	}
	return nil
}

func (h *lanesHistory) settle(seq uint64, how int) error {
	settle := []func(uint64) bool{h.lanes.Done, h.lanes.Fail, h.lanes.Return}[how]
	if got, want := settle(seq), h.twin.settle(seq, how); got != want {
		return fmt.Errorf("settling %d: %t, want %t", seq, got, want)
	}
	h.claimed = slices.DeleteFunc(h.claimed, func(c uint64) bool { return c == seq })
	return nil
}

func (h *lanesHistory) unpark(seq uint64) error {
	if got, want := h.lanes.Unpark(seq), h.twin.unpark(seq); got != want {
		return fmt.Errorf("unparking %d: %t, want %t", seq, got, want)
	}
	return nil
}

func (h *lanesHistory) collect() error {
	var err error
	next := uint64(0)
	h.lanes.Collect(func(seq uint64, offset int64) {
		r := h.twin.records[seq]
		if seq < next || r.record.Offset != offset || !r.finished || r.collected {
			err = fmt.Errorf("collected %d after %d: %+v", seq, next, *r)
		}
		r.collected = true
		next = seq + 1
	})
	for _, r := range h.twin.records {
		if r.finished && !r.collected {
			return fmt.Errorf("%d was not collected", r.seq)
		}
	}
	return err
}

// step does one thing with both and compares what is seen of them.
func (h *lanesHistory) step() (err error) {
	seq := uint64(h.choose(len(h.twin.records) + 2))
	if len(h.claimed) > 0 && h.choose(20) != 0 {
		seq = h.claimed[h.choose(len(h.claimed))]
	}
	switch h.choose(18) {
	case 0, 1, 2, 3:
		for range h.choose(12) {
			if err == nil {
				err = h.push()
			}
		}
	case 4, 5:
		err = h.claim(h.choose(6)-1, false)
	case 6, 7:
		err = h.claim(h.choose(30)-1, true)
	case 8, 9, 10:
		err = h.settle(seq, settleDone)
	case 11:
		// Many at once, so that the window moves.
		for _, c := range slices.Clone(h.claimed) {
			if err == nil && h.choose(8) != 0 {
				err = h.settle(c, settleDone)
			}
		}
	case 12:
		err = h.settle(seq, settleFail)
	case 13:
		err = h.settle(seq, settleReturn)
	case 14:
		if _, parked := h.twin.lanes(); len(parked) > 0 && h.choose(4) != 0 {
			seq = parked[h.choose(len(parked))][0].seq
		}
		err = h.unpark(seq)
	case 15:
		if h.choose(60) == 0 {
			if got, want := h.lanes.Drop(), h.twin.drop(); got != want {
				return fmt.Errorf("%d dropped, want %d", got, want)
			}
		}
		err = h.collect()
	case 16:
		seq = uint64(h.choose(len(h.twin.records) + 2))
		if got, want := h.lanes.Skip(seq), h.twin.skip(seq); got != want {
			return fmt.Errorf("skipping %d: %t, want %t", seq, got, want)
		}
	case 17:
		got, ok := h.lanes.ByOffset(int64(seq))
		want, there := h.twin.byOffset(int64(seq))
		if got.Lane = 0; got != want || ok != there || h.lanes.IsClaimed(seq) != (there && want.State == LaneClaimed) {
			return fmt.Errorf("offset %d: %+v, %t, want %+v, %t", seq, got, ok, want, there)
		}
	}
	if err != nil {
		return err
	}
	if err := h.lanes.Valid(); err != nil {
		return err
	}
	return h.compare(seq)
}

func (h *lanesHistory) compare(seq uint64) error {
	w, l := h.twin, h.lanes
	ready, parked := w.lanes()
	waiting, claimed, lowest := 0, 0, Lowest{}
	var wantClaims, gotClaims [][2]int64
	isParked := map[*twinRecord]bool{}
	for _, r := range slices.Concat(parked...) {
		isParked[r] = true
	}
	for _, r := range slices.Backward(w.records) {
		if !r.unfinished() {
			continue
		}
		lowest = Lowest{Seq: r.seq, Offset: r.record.Offset, Record: r.record, Attempt: r.attempt}
		switch {
		case r.claimed:
			claimed++
			wantClaims = append(wantClaims, [2]int64{r.record.Offset, int64(r.attempt)})
			lowest.State = LaneClaimed
		case isParked[r]:
			lowest.State = LaneParked
			waiting++
		default:
			waiting++
		}
	}
	got := fmt.Sprint(l.Low(), l.Ready(), l.ReadyRecords(), l.Parked(), l.ParkedRecords(), l.Waiting(), l.Claimed())
	want := fmt.Sprint(w.low(), len(ready), len(slices.Concat(ready...)), len(parked), len(slices.Concat(parked...)), waiting, claimed)
	if got != want {
		return fmt.Errorf("low, ready, parked, waiting and claimed are %s, want %s", got, want)
	}
	l.EachClaimed(func(offset int64, attempt int) { gotClaims = append(gotClaims, [2]int64{offset, int64(attempt)}) })
	if slices.Reverse(wantClaims); !slices.Equal(gotClaims, wantClaims) {
		return fmt.Errorf("claimed are %v, want %v", gotClaims, wantClaims)
	}
	gotLowest, ok := l.Lowest()
	if gotLowest.Lane = 0; gotLowest != lowest || ok != (waiting+claimed > 0) {
		return fmt.Errorf("lowest %+v, %t, want %+v", gotLowest, ok, lowest)
	}
	gotHead, gotParked, ok := l.Head(seq)
	var wantHead uint64
	var wantParked, wantOK bool
	if seq < uint64(len(w.records)) && seq >= w.low() {
		if lane, _ := w.lane(w.records[seq].class); len(lane) > 0 {
			wantHead, wantParked, wantOK = lane[0].seq, isParked[lane[0]], true
		}
	}
	if gotHead != wantHead || gotParked != wantParked || ok != wantOK {
		return fmt.Errorf("head of %d: %d, %t, %t, want %d, %t, %t", seq, gotHead, gotParked, ok, wantHead, wantParked, wantOK)
	}
	return nil
}

// finish brings everything to its end.
func (h *lanesHistory) finish() error {
	for h.lanes.Waiting()+h.lanes.Claimed() > 0 {
		if err := h.claim(1000, true); err != nil {
			return err
		}
		for _, seq := range slices.Clone(h.claimed) {
			if err := h.settle(seq, settleDone); err != nil {
				return err
			}
		}
		_, parked := h.twin.lanes()
		for _, lane := range parked {
			if err := h.unpark(lane[0].seq); err != nil {
				return err
			}
		}
	}
	if err := h.collect(); err != nil {
		return err
	}
	if err := h.lanes.Valid(); err != nil {
		return err
	}
	if low := h.lanes.Low(); !h.twin.dropped && low != uint64(len(h.twin.records)) {
		return fmt.Errorf("low %d of %d", low, len(h.twin.records))
	}
	return h.compare(h.lanes.Low())
}

func TestLanesDoAsTheirTwin(t *testing.T) {
	histories := uint64(300)
	if testing.Short() {
		histories = 100
	}
	for seed := range histories {
		r := rand.New(rand.NewPCG(seed, 7))
		h := newLanesHistory(r.IntN)
		for step := range 200 {
			if err := h.step(); err != nil {
				t.Fatalf("seed %d, hash %q, step %d: %v", seed, h.hash.name, step, err)
			}
		}
		if err := h.finish(); err != nil {
			t.Fatalf("seed %d, hash %q, at the end: %v", seed, h.hash.name, err)
		}
	}
}

func FuzzLanes(f *testing.F) {
	for seed := range uint64(12) {
		script := make([]byte, 400)
		r := rand.New(rand.NewPCG(seed, 8))
		for i := range script {
			script[i] = byte(r.Uint32())
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		script = script[:min(len(script), 2000)]
		h := newLanesHistory(func(n int) int {
			if len(script) == 0 {
				return 0
			}
			chosen := int(script[0]) % n
			script = script[1:]
			return chosen
		})
		for len(script) > 0 {
			if err := h.step(); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.finish(); err != nil {
			t.Fatal(err)
		}
	})
}
