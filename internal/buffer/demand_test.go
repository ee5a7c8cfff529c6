package buffer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

var start = time.Unix(1_000_000, 0)

func tp(n int) kafka.TopicPartition { return kafka.TopicPartition{Topic: "t", Partition: int32(n)} }

func want(n int) Want {
	return Want{TopicPartition: tp(n), Epoch: 1, Offset: int64(100 * n), MaxBytes: 10}
}

// demand returns one with partitions 0..n-1 assigned, the first wanting of them wanting.
func demand(t *testing.T, n, wanting int) *Demand {
	t.Helper()
	d := NewDemand(DemandConfig{})
	for i := range n {
		d.Assign(tp(i), 1)
	}
	for i := range wanting {
		d.Want(want(i))
	}
	t.Cleanup(func() {
		if err := d.Valid(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// expectPlan plans and compares partitions, in order, and the wait; no partitions means no plan.
func expectPlan(t *testing.T, d *Demand, now time.Time, lane, budget int, wait time.Duration, partitions ...int) {
	t.Helper()
	plan, ok := d.Plan(now, lane, budget)
	got, wanted := "", ""
	for _, w := range plan.Wants {
		got += w.TopicPartition.String() + " "
	}
	for _, n := range partitions {
		wanted += tp(n).String() + " "
	}
	if ok != (len(partitions) > 0) || got != wanted || plan.MaxWait != wait {
		t.Fatalf("plan %t %swait %v, want %swait %v", ok, got, plan.MaxWait, wanted, wait)
	}
	if err := d.Valid(); err != nil {
		t.Fatal(err)
	}
}

func data(n int) Got { return Got{TopicPartition: tp(n), Epoch: 1, Bytes: 5} }

func TestAWantGoesOutOnAFreeLaneAtOnceAndOnce(t *testing.T) {
	d := demand(t, 3, 2)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0, 1) // a lane is free for partition 2
	expectPlan(t, d, start, 1, 1000, 0)
	if _, ok := d.Deadline(); ok {
		t.Fatal("a deadline though nothing is wanted")
	}
	d.Want(want(2))
	if at, ok := d.Deadline(); !ok || at.After(start) {
		t.Fatal("a want on a free lane is due at once")
	}
	expectPlan(t, d, start, 0, 1000, 0) // busy
	expectPlan(t, d, start, 1, 1000, DefaultMaxWait, 2)
}

func TestAFetchThatLeavesOutPartitionsWithoutAnotherLaneIsShort(t *testing.T) {
	d := demand(t, 3, 1)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0)
	d.Want(want(1))
	expectPlan(t, d, start, 1, 1000, DefaultShortWait, 1) // partition 2 would wait behind both
	d.Answered(start, 1, DefaultShortWait, nil)
	d.Want(want(2))
	expectPlan(t, d, start, 1, 1000, DefaultMaxWait, 2, 1)
}

func TestWithoutRoomInTheBudgetTheFirstOnesGo(t *testing.T) {
	d := demand(t, 4, 4)
	expectPlan(t, d, start, 0, 25, DefaultMaxWait, 0, 1)
	expectPlan(t, d, start, 1, 5, DefaultShortWait, 2) // one passes always
	d.Answered(start, 0, time.Second, nil)
	expectPlan(t, d, start, 0, 20, DefaultShortWait, 3, 0) // who was left out comes first; now 1 waits
}

func TestWhoGotDataGoesLast(t *testing.T) {
	d := demand(t, 3, 3)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0, 1, 2)
	d.Answered(start, 0, 0, []Got{data(0), data(1)})
	d.Want(want(0))
	d.Want(want(1))
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 2, 0, 1)
}

func TestEmptyAnswersAtOnceBackOffAndDataResetsIt(t *testing.T) {
	d := demand(t, 2, 2)
	now := start
	for _, wait := range []time.Duration{10, 20, 40, 80, 100, 100} {
		expectPlan(t, d, now, 0, 1000, DefaultMaxWait, 0, 1)
		d.Answered(now, 0, time.Millisecond, nil)
		expectPlan(t, d, now.Add(wait*time.Millisecond-1), 0, 1000, 0)
		now = now.Add(wait * time.Millisecond)
		if at, ok := d.Deadline(); !ok || !at.Equal(now) {
			t.Fatalf("deadline %v, want %v", at, now)
		}
	}
	expectPlan(t, d, now, 0, 1000, DefaultMaxWait, 0, 1)
	d.Answered(now, 0, time.Millisecond, []Got{data(0)}) // partition 1 is not what made it come at once
	d.Want(want(0))
	expectPlan(t, d, now, 0, 1000, DefaultMaxWait, 1, 0)
	d.Answered(now, 0, time.Millisecond, nil)
	expectPlan(t, d, now.Add(10*time.Millisecond), 0, 1000, DefaultMaxWait, 0) // 0 begins anew, 1 waits on
}

func TestAnEmptyAnswerThatWaitedIsAskedAgainAtOnce(t *testing.T) {
	d := demand(t, 1, 1)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0)
	d.Answered(start, 0, DefaultMaxWait/2, nil)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0)
}

func TestDataAndErrorsUseUpTheWant(t *testing.T) {
	d := demand(t, 2, 2)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0, 1)
	d.Answered(start, 0, 0, []Got{data(0), {TopicPartition: tp(1), Epoch: 1, Failed: true}})
	if _, ok := d.Plan(start.Add(time.Hour), 0, 1000); ok || d.Wanting() != 0 {
		t.Fatal("a used-up want came back")
	}
}

func TestACancelledWantDoesNotComeBackAndANewerOneReplacesIt(t *testing.T) {
	d := demand(t, 2, 2)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0, 1)
	d.Cancel(tp(0), 1)
	newer := want(1)
	newer.Offset = 7
	d.Want(newer)
	d.Failed(start, 0)
	plan, ok := d.Plan(start.Add(time.Second), 0, 1000)
	if !ok || len(plan.Wants) != 1 || plan.Wants[0] != newer {
		t.Fatalf("%+v", plan)
	}
}

func TestAFailedFetchReturnsItsWantsAfterABackoff(t *testing.T) {
	d := demand(t, 2, 2)
	now := start
	for _, wait := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		expectPlan(t, d, now, 0, 1000, DefaultMaxWait, 0, 1)
		d.Failed(now, 0)
		at, ok := d.Deadline()
		if in := at.Sub(now); !ok || in < wait*800*time.Microsecond || in > wait*1200*time.Microsecond {
			t.Fatalf("deadline in %v, want about %v", in, wait*time.Millisecond)
		}
		expectPlan(t, d, at.Add(-1), 1, 1000, 0)
		now = at
	}
	expectPlan(t, d, now, 0, 1000, DefaultMaxWait, 0, 1)
	d.Answered(now, 0, time.Second, nil)
	expectPlan(t, d, now, 0, 1000, DefaultMaxWait, 0, 1)
}

func TestThrottlingBlocksAllLanes(t *testing.T) {
	d := demand(t, 1, 1)
	d.Throttled(start.Add(time.Second))
	d.Throttled(start)
	expectPlan(t, d, start.Add(time.Second-1), 0, 1000, 0)
	if at, ok := d.Deadline(); !ok || !at.Equal(start.Add(time.Second)) {
		t.Fatal(at, ok)
	}
	expectPlan(t, d, start.Add(time.Second), 1, 1000, DefaultMaxWait, 0)
}

func TestStaleEpochsAreIgnoredAndCounted(t *testing.T) {
	d := demand(t, 1, 1)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0)
	d.Assign(tp(0), 5)
	for _, stale := range []func(){
		func() { d.Want(want(0)) },
		func() { d.Cancel(tp(0), 1) },
		func() { d.Unassign(tp(0), 1) },
		func() { d.Assign(tp(0), 4) },
		func() { d.Answered(start, 0, 0, []Got{data(0)}) },
		func() { d.Answered(start, 0, 0, nil) },
		func() { d.Failed(start, 1) },
	} {
		before := d.Stale()
		if stale(); d.Stale() != before+1 {
			t.Fatalf("counted %d", d.Stale()-before)
		}
	}
	if d.Wanting() != 0 || d.Assigned() != 1 {
		t.Fatal("something stale had an effect")
	}
}

func TestAPartitionThatLeftAndCameBackIsAskedForAgain(t *testing.T) {
	d := demand(t, 1, 1)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0)
	d.Unassign(tp(0), 1)
	d.Assign(tp(0), 1)
	d.Want(want(0))
	expectPlan(t, d, start, 1, 1000, DefaultMaxWait, 0)
	d.Answered(start, 0, time.Second, []Got{data(0)}) // of the first stay
	if d.Busy(0) || !d.Busy(1) {
		t.Fatal("the wrong lane is free")
	}
	expectPlan(t, d, start, 0, 1000, 0)
	d.Answered(start, 1, time.Second, nil)
	expectPlan(t, d, start, 0, 1000, DefaultMaxWait, 0)
}

func TestEveryWantingPartitionGetsItsTurn(t *testing.T) {
	for seed := range uint64(200) {
		if err := demandHistory(rand.New(rand.NewPCG(seed, 4))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// demandHistory runs a random history and checks every plan: the budget holds, nothing is in flight twice, the wait
// follows the rule, and a partition that wants is passed over for lack of bytes at most as often as there are others.
func demandHistory(r *rand.Rand) error {
	n := 1 + r.IntN(8)
	d := NewDemand(DemandConfig{Seed: r.Uint64()})
	passedOver := map[kafka.TopicPartition]int{}
	inFlight := map[kafka.TopicPartition]int{}
	plans := map[int]FetchPlan{}
	for i := range n {
		d.Assign(tp(i), 1)
	}
	now := start
	for range 600 {
		switch lane := r.IntN(2); r.IntN(6) {
		case 0:
			w := want(r.IntN(n))
			w.MaxBytes = int32(1 + r.IntN(100))
			if inFlight[w.TopicPartition] == 0 {
				d.Want(w)
			}
		case 1:
			now = now.Add(time.Duration(r.IntN(100)) * time.Millisecond)
		case 2, 3:
			ample := r.IntN(2) == 0
			budget := 1 + r.IntN(200)
			if ample {
				budget = 1 << 20
			}
			plan, ok := d.Plan(now, lane, budget)
			if !ok {
				break
			}
			sum := 0
			for _, w := range plan.Wants {
				if inFlight[w.TopicPartition]++; inFlight[w.TopicPartition] > 1 {
					return fmt.Errorf("%s is in flight twice", w.TopicPartition)
				}
				sum += int(w.MaxBytes)
				delete(passedOver, w.TopicPartition)
			}
			if sum > budget && len(plan.Wants) > 1 {
				return fmt.Errorf("%d bytes of %d", sum, budget)
			}
			for _, e := range d.order {
				if !e.ready(now) {
					continue
				}
				if passedOver[e.want.TopicPartition]++; ample || passedOver[e.want.TopicPartition] > n {
					return fmt.Errorf("%s passed over %d times", e.want.TopicPartition, passedOver[e.want.TopicPartition])
				}
			}
			covered := len(inFlight) == n
			if short := plan.MaxWait == DefaultShortWait; short != (!covered && d.Busy(1-lane)) {
				return fmt.Errorf("wait %v, all covered %t, other lane busy %t", plan.MaxWait, covered, d.Busy(1-lane))
			}
			plans[lane] = plan
		default:
			plan, busy := plans[lane]
			if !busy {
				break
			}
			delete(plans, lane)
			for _, w := range plan.Wants {
				delete(inFlight, w.TopicPartition)
			}
			if r.IntN(5) == 0 {
				d.Failed(now, lane)
				break
			}
			var got []Got
			for _, w := range plan.Wants {
				if r.IntN(3) == 0 {
					got = append(got, Got{TopicPartition: w.TopicPartition, Epoch: w.Epoch, Bytes: r.IntN(2), Failed: r.IntN(9) == 0})
				}
			}
			d.Answered(now, lane, time.Duration(r.IntN(600))*time.Millisecond, got)
		}
		if err := d.Valid(); err != nil {
			return err
		}
	}
	if d.Stale() != 0 {
		return fmt.Errorf("%d stale", d.Stale())
	}
	return nil
}

func BenchmarkPlanAnswered100Partitions(b *testing.B) {
	b.ReportAllocs()
	d := NewDemand(DemandConfig{})
	for i := range 100 {
		d.Assign(tp(i), 1)
		d.Want(want(i))
	}
	for b.Loop() {
		if _, ok := d.Plan(start, 0, 1<<20); !ok {
			b.Fatal("no plan")
		}
		d.Answered(start, 0, time.Second, nil)
	}
}
