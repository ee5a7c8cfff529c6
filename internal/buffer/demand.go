package buffer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// Defaults of [DemandConfig].
const (
	DefaultLanes                = 2
	DefaultMaxWait              = 500 * time.Millisecond
	DefaultShortWait            = 20 * time.Millisecond
	DefaultEmptyBackoffInitial  = 10 * time.Millisecond
	DefaultEmptyBackoffMax      = 100 * time.Millisecond
	DefaultBrokerBackoffInitial = 100 * time.Millisecond
	DefaultBrokerBackoffMax     = time.Second
)

// DemandConfig configures [Demand]. Zero fields mean their defaults.
type DemandConfig struct {
	// Lanes is the number of connections to the broker. Default DefaultLanes.
	Lanes int
	// MaxWait is how long the broker may wait for data when no partition waits behind the fetch (fetch.max.wait.ms),
	// ShortWait when one does. ShortWait is at most MaxWait.
	MaxWait, ShortWait time.Duration
	// EmptyBackoffInitial and EmptyBackoffMax bound the wait of a partition whose answer was empty and came at once. It
	// doubles with each one and is forgotten with data.
	EmptyBackoffInitial, EmptyBackoffMax time.Duration
	// BrokerBackoffInitial and BrokerBackoffMax bound the wait after a failed fetch, ± 20 %. It doubles with each one.
	BrokerBackoffInitial, BrokerBackoffMax time.Duration
	// Seed feeds the jitter.
	Seed uint64
}

// Want is one credit: the partition has room and asks once for data from Offset on. It is used up by data or an error,
// not by an empty answer.
type Want struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	TopicID        kafka.TopicID
	// Offset is the first offset wanted.
	Offset int64
	// LeaderEpoch is that of the metadata in use, LastFetchedEpoch that of the last record read; kafka.NoLeaderEpoch when
	// unknown.
	LeaderEpoch      int32
	LastFetchedEpoch int32
	// MaxBytes is the most that is wanted, in bytes, and what the want counts against the budget.
	MaxBytes int32
	// ToEnd says that the partition is read to an end: it is also told when there is nothing.
	ToEnd bool
}

// FetchPlan is one fetch to send.
type FetchPlan struct {
	// Wants are in the order to ask in: what was served longest ago comes first. It is never empty.
	Wants []Want
	// MaxWait is how long the broker may wait for data.
	MaxWait time.Duration
}

// Got is one partition's part of an answer.
type Got struct {
	TopicPartition kafka.TopicPartition
	Epoch          kafka.AssignmentEpoch
	// Bytes is the size of its data, 0 for none.
	Bytes int
	// Failed says that the partition has an error of its own, or anything else its owner must decide on before it may be
	// asked for again.
	Failed bool
}

// noLane is the lane of an entry that is not in flight.
const noLane = -1

// entry is one assigned partition.
type entry struct {
	want Want
	// wanting says that want waits to be sent; sent is the want in flight on lane.
	wanting bool
	lane    int
	sent    Want
	// canceled says that the want in flight must not come back, removed that the partition is not assigned any more or
	// under a newer entry.
	canceled bool
	removed  bool
	// until is the end of the wait after empty answers, wait how long it was.
	until time.Time
	wait  time.Duration
}

// flight is what one lane carries.
type flight struct {
	busy    bool
	maxWait time.Duration
	entries []*entry
}

// Demand plans the fetches of one broker over its few connections, the lanes: one fetch at a time on each. It keeps which
// assigned partitions want data, which are in flight, and who waits.
//
// A want goes out on a free lane at once. A fetch that leaves partitions out while no other lane is free waits only
// ShortWait at the broker, so that whoever gets room meanwhile does not wait behind a parked fetch.
//
// Invariants (checked by Valid): a partition is in flight on at most one lane, which carries it; order has every assigned
// partition once.
type Demand struct {
	config  DemandConfig
	random  *rand.Rand
	entries map[kafka.TopicPartition]*entry
	// order is who comes first: those served go to its end.
	order []*entry
	lanes []flight

	failures       int
	brokerUntil    time.Time
	throttledUntil time.Time
	stale          uint64
}

// NewDemand returns a demand without partitions.
func NewDemand(config DemandConfig) *Demand {
	defaultTo := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	if config.Lanes <= 0 {
		config.Lanes = DefaultLanes
	}
	defaultTo(&config.MaxWait, DefaultMaxWait)
	defaultTo(&config.ShortWait, DefaultShortWait)
	defaultTo(&config.EmptyBackoffInitial, DefaultEmptyBackoffInitial)
	defaultTo(&config.EmptyBackoffMax, DefaultEmptyBackoffMax)
	defaultTo(&config.BrokerBackoffInitial, DefaultBrokerBackoffInitial)
	defaultTo(&config.BrokerBackoffMax, DefaultBrokerBackoffMax)
	config.ShortWait = min(config.ShortWait, config.MaxWait)
	return &Demand{
		config:  config,
		random:  rand.New(rand.NewPCG(config.Seed, 0xfe7c4)),
		entries: map[kafka.TopicPartition]*entry{},
		lanes:   make([]flight, config.Lanes),
	}
}

// Assign adds a partition that is fetched from this broker. A newer epoch replaces an older one, whose fetch in flight is
// then stale; an epoch not above the present one is ignored.
func (d *Demand) Assign(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) {
	if old := d.entries[tp]; old != nil {
		if epoch <= old.want.Epoch {
			if epoch < old.want.Epoch {
				d.stale++
			}
			return
		}
		d.remove(tp, old)
	}
	e := &entry{want: Want{TopicPartition: tp, Epoch: epoch}, lane: noLane}
	d.entries[tp] = e
	d.order = append(d.order, e)
}

// Unassign removes a partition: it moved to another broker or away. What is in flight for it is stale.
func (d *Demand) Unassign(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) {
	if e := d.find(tp, epoch); e != nil {
		d.remove(tp, e)
	}
}

func (d *Demand) remove(tp kafka.TopicPartition, e *entry) {
	delete(d.entries, tp)
	e.removed = true
	d.order = slices.DeleteFunc(d.order, func(other *entry) bool { return other == e })
}

// find returns the entry of that epoch; anything else is stale and counted.
func (d *Demand) find(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) *entry {
	if e := d.entries[tp]; e != nil && e.want.Epoch == epoch {
		return e
	}
	d.stale++
	return nil
}

// Want says that a partition has room. A newer want replaces one that was not sent; while one is in flight the newer one
// goes out after its answer.
func (d *Demand) Want(w Want) {
	if e := d.find(w.TopicPartition, w.Epoch); e != nil {
		e.want, e.wanting, e.canceled = w, true, e.lane != noLane
	}
}

// Cancel takes a partition's want back, one in flight included.
func (d *Demand) Cancel(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) {
	if e := d.find(tp, epoch); e != nil {
		e.wanting, e.canceled = false, e.lane != noLane
	}
}

// Throttled says that the broker mutes its connections until then.
func (d *Demand) Throttled(until time.Time) {
	d.throttledUntil = later(d.throttledUntil, until)
}

// Plan returns the next fetch for a lane, counted from 0, and marks its wants as in flight; ok is false when the lane is
// busy, nothing may be asked for now, or the lane does not exist. budget is how many bytes may be asked for: the sum of
// MaxBytes stays within it, but one partition passes always, so do not call it without any budget.
func (d *Demand) Plan(now time.Time, lane, budget int) (plan FetchPlan, ok bool) {
	if lane < 0 || lane >= len(d.lanes) || d.lanes[lane].busy || now.Before(d.blockedUntil()) {
		return FetchPlan{}, false
	}
	ready := 0
	for _, e := range d.order {
		if e.ready(now) {
			ready++
		}
	}
	if ready == 0 {
		return FetchPlan{}, false // most calls, so nothing is set aside before it
	}
	var sum int64
	rest := make([]*entry, 0, len(d.order))
	planned := make([]*entry, 0, ready)
	plan.Wants = make([]Want, 0, ready)
	full := false
	for _, e := range d.order {
		// The first that does not fit ends the fetch: a smaller one behind it must not overtake it for ever.
		if !e.ready(now) || full {
			rest = append(rest, e)
			continue
		}
		if len(planned) > 0 && sum+int64(e.want.MaxBytes) > int64(budget) {
			full = true
			rest = append(rest, e)
			continue
		}
		sum += int64(e.want.MaxBytes)
		planned = append(planned, e)
		plan.Wants = append(plan.Wants, e.want)
	}
	for _, e := range planned {
		e.sent, e.lane, e.wanting, e.canceled = e.want, lane, false, false
	}
	d.order = append(rest, planned...)
	d.lanes[lane] = flight{busy: true, maxWait: d.config.MaxWait, entries: planned}
	if d.leavesOut() {
		d.lanes[lane].maxWait = d.config.ShortWait
	}
	plan.MaxWait = d.lanes[lane].maxWait
	return plan, true
}

// ready reports whether the entry may be asked for now.
func (e *entry) ready(now time.Time) bool {
	return e.wanting && e.lane == noLane && !now.Before(e.until)
}

// leavesOut reports whether a partition would have to wait behind the fetches in flight: it is on none of them, and no
// lane is left for it.
func (d *Demand) leavesOut() bool {
	return !d.free() && slices.ContainsFunc(d.order, func(e *entry) bool { return e.lane == noLane })
}

func (d *Demand) free() bool {
	return slices.ContainsFunc(d.lanes, func(f flight) bool { return !f.busy })
}

// land frees a lane and returns its entries that are still current.
func (d *Demand) land(lane int) (carried flight, current []*entry) {
	if lane < 0 || lane >= len(d.lanes) || !d.lanes[lane].busy {
		d.stale++
		return flight{}, nil
	}
	carried = d.lanes[lane]
	d.lanes[lane] = flight{}
	for _, e := range carried.entries {
		if e.removed {
			d.stale++
			continue
		}
		e.lane = noLane
		current = append(current, e)
	}
	return carried, current
}

// revive makes the want that was in flight wait to be sent again, unless it was taken back or a newer one is there.
func (e *entry) revive() {
	if !e.wanting && !e.canceled {
		e.want, e.wanting = e.sent, true
	}
	e.canceled = false
}

// Answered says that the fetch on a lane was answered after took. Data and errors use up the want. Partitions without
// either, or not in got, are asked for again; when nothing at all came and it came at once (within half of the wait
// asked for), they back off first.
func (d *Demand) Answered(now time.Time, lane int, took time.Duration, got []Got) {
	carried, current := d.land(lane)
	if !carried.busy {
		return
	}
	d.failures, d.brokerUntil = 0, time.Time{}
	byPartition := make(map[kafka.TopicPartition]Got, len(got))
	empty := true
	for _, g := range got {
		if g.Bytes > 0 || g.Failed {
			byPartition[g.TopicPartition] = g
			empty = false
		}
	}
	atOnce := empty && took < carried.maxWait/2
	rest := make([]*entry, 0, len(d.order))
	var served []*entry
	for _, e := range current {
		g, has := byPartition[e.sent.TopicPartition]
		switch {
		case has && g.Epoch == e.sent.Epoch:
			e.canceled = false
			if !g.Failed {
				e.until, e.wait = time.Time{}, 0
			}
			served = append(served, e)
		case has:
			d.stale++
			e.revive()
		default:
			e.revive()
			if atOnce {
				e.wait = min(max(2*e.wait, d.config.EmptyBackoffInitial), d.config.EmptyBackoffMax)
				e.until = now.Add(e.wait)
			}
		}
	}
	if len(served) == 0 {
		return
	}
	// Whoever got something goes behind all that got nothing, so that no partition fills every answer.
	behind := make(map[*entry]struct{}, len(served))
	for _, e := range served {
		behind[e] = struct{}{}
	}
	for _, e := range d.order {
		if _, has := behind[e]; !has {
			rest = append(rest, e)
		}
	}
	d.order = append(rest, served...)
}

// Failed says that the fetch on a lane failed as a whole: its wants wait to be sent again, after a backoff for the broker.
func (d *Demand) Failed(now time.Time, lane int) {
	carried, current := d.land(lane)
	if !carried.busy {
		return
	}
	for _, e := range current {
		e.revive()
	}
	d.failures++
	wait := d.config.BrokerBackoffInitial
	for i := 1; i < d.failures && wait < d.config.BrokerBackoffMax; i++ {
		wait *= 2
	}
	wait = min(wait, d.config.BrokerBackoffMax)
	d.brokerUntil = later(d.brokerUntil, now.Add(time.Duration(float64(wait)*(0.8+0.4*d.random.Float64()))))
}

// blockedUntil is when the broker may be asked again.
func (d *Demand) blockedUntil() time.Time { return later(d.brokerUntil, d.throttledUntil) }

// Deadline returns when Plan may have something for a free lane; the zero time, or one in the past, means now. ok is false
// while no lane is free or nothing is wanted.
func (d *Demand) Deadline() (at time.Time, ok bool) {
	if !d.free() {
		return time.Time{}, false
	}
	for _, e := range d.order {
		if e.wanting && e.lane == noLane && (!ok || e.until.Before(at)) {
			at, ok = e.until, true
		}
	}
	if !ok {
		return time.Time{}, false
	}
	return later(at, d.blockedUntil()), true
}

// Lanes returns the number of lanes.
func (d *Demand) Lanes() int { return len(d.lanes) }

// Busy reports whether a lane carries a fetch.
func (d *Demand) Busy(lane int) bool { return lane >= 0 && lane < len(d.lanes) && d.lanes[lane].busy }

// Assigned returns the number of partitions assigned.
func (d *Demand) Assigned() int { return len(d.entries) }

// Wanting returns the number of partitions whose want is not in flight.
func (d *Demand) Wanting() int {
	n := 0
	for _, e := range d.order {
		if e.wanting && e.lane == noLane {
			n++
		}
	}
	return n
}

// Stale returns how many inputs and parts of answers were ignored because they belong to another epoch or lane.
func (d *Demand) Stale() uint64 { return d.stale }

// Valid checks the invariants named at the type.
func (d *Demand) Valid() error {
	if len(d.order) != len(d.entries) {
		return fmt.Errorf("buffer: %d in order, %d assigned", len(d.order), len(d.entries))
	}
	for _, e := range d.order {
		if d.entries[e.want.TopicPartition] != e {
			return fmt.Errorf("buffer: %s is in order and not assigned", e.want.TopicPartition)
		}
		for i := range d.lanes {
			if carries := slices.Contains(d.lanes[i].entries, e); carries != (i == e.lane) {
				return fmt.Errorf("buffer: lane %d carries %s: %t, says lane %d", i, e.want.TopicPartition, carries, e.lane)
			}
		}
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
