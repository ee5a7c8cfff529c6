package actors

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
)

// engine is what a partition's actor shares with those who work on its records under OrderKey and OrderNone: the lanes and
// a lock around them. The actor fills it and collects what is finished; workers claim and settle. It lives as long as one
// run of positions of one epoch; handles of an older engine are stale.
type engine struct {
	shared *shared
	reg    *Registration
	tp     kafka.TopicPartition
	epoch  kafka.AssignmentEpoch
	pool   *pool
	// notify tells the actor that there is something to take.
	notify func()
	ctx    context.Context
	cancel context.CancelCauseFunc
	// queued is true while the engine stands in its pool's line.
	queued atomic.Bool
	// stopped is set for good when the flow stops, paused while the user's pause holds. Neither lets a record begin.
	stopped, paused atomic.Bool

	// busy is len(calls), for a look without the lock.
	busy atomic.Int32

	mu    sync.Mutex
	lanes *buffer.Lanes
	calls []*poolWorker
	// full is true while nothing more can come: a batch that is not full does not wait then.
	full bool
	// most is how many records of one lane are claimed at a time: one where the handler takes its time, more where it is fast.
	most int
	// failures are those that the actor has not taken, refused the records whose lanes are not settled.
	failures []laneFailure
	refused  map[uint64]refusal
	// skipped are records that were skipped while a call had them, until it has returned; contexts those of records that
	// asynchronous handlers have and whose context they looked at.
	skipped  map[uint64]struct{}
	contexts map[uint64]*claimContext
	slabs    []engineSlab
	// ended makes every further acknowledgment stale. onIdle runs once, when it is set and no call runs.
	ended  bool
	onIdle func()
	// signaled is true while the actor was told and has not come. The others let one cause each tell it, once: armed finished
	// records, hungry a lack of records, active that nothing goes on any more, leaving that the last call has returned since a
	// pause, eager that there is something for the user's actor.
	signaled, armed, hungry, active, leaving, eager bool
	// fresh counts the records finished since the actor came, wanted how few waiting ones make it hungry.
	fresh, wanted int
	// fillBy is when a batch that is not full is given out all the same, with its timer.
	fillBy    time.Time
	fillTimer *time.Timer
	// lingers is true while a timer runs that settles what long claims have finished.
	lingers bool
}

// call is one call of a handler that runs.
type call struct {
	offset atomic.Int64
	since  time.Time
}

// laneFailure is a record that failed: the lowest one not finished of its lane.
type laneFailure struct {
	seq     uint64
	lane    uint64
	attempt int
	err     *HandlerError
}

// engineSlab is memory that is free when every record up to seq is finished: bytes of the budget, and the leases of slabs
// that are recycled.
type engineSlab struct {
	seq    uint64
	bytes  int64
	leases []*buffer.Lease
	// spoiled is true when a handler may read a record of it that is finished: it was skipped in the handler's hands.
	spoiled bool
}

// engineBacklog is how many records the engine wants waiting for each worker before it asks for more.
const engineBacklog = 4

func newEngine(s *shared, config partitionConfig, notify func()) *engine {
	reg := config.registration
	e := &engine{
		shared: s, reg: reg, tp: config.tp, epoch: config.epoch, pool: config.pool, notify: notify, armed: true, hungry: true, most: 1,
		lanes: buffer.NewLanes(buffer.LanesConfig{Capacity: s.settings.MaxInTransit, Ordered: reg.Order == OrderKey}),
	}
	e.wanted = min(s.settings.MaxInTransit/2, max(engineBacklog*reg.Workers, 2*reg.MaxRecords))
	base, cancel := context.WithCancelCause(context.Background())
	e.ctx, e.cancel = base, cancel
	return e
}

// push adds records, with their keys where the order goes by key; the engine has room for them. slab is what is free when
// they are finished.
func (e *engine) push(records []kafka.Record, keys [][]byte, slab engineSlab) {
	e.mu.Lock()
	for i := range records {
		var key []byte
		if keys != nil {
			key = keys[i]
		}
		seq, ok := e.lanes.Push(&records[i], key)
		if !ok {
			panic(fmt.Sprintf("engine of %s has no room for offset %d", e.tp, records[i].Offset))
		}
		slab.seq = seq
	}
	if slab.bytes > 0 || len(slab.leases) > 0 {
		e.slabs = append(e.slabs, slab)
	}
	e.hungry, e.active = true, true
	offer := e.claimable(time.Now())
	e.mu.Unlock()
	if offer && e.reg.Actor == nil {
		e.pool.offer(e)
	}
}

// claimable reports whether a claim would get something. A batch that is not full waits for MaxWait.
func (e *engine) claimable(now time.Time) bool {
	if e.stopped.Load() || e.paused.Load() || e.ended || e.lanes.Ready() == 0 {
		return false
	}
	if e.reg.MaxWait == 0 || e.full || e.lanes.ReadyRecords() >= e.reg.MaxRecords {
		return true
	}
	if e.fillBy.IsZero() {
		e.fillBy = now.Add(e.reg.MaxWait)
		e.fillTimer = time.AfterFunc(e.reg.MaxWait, func() { e.pool.offer(e) })
	}
	return !now.Before(e.fillBy)
}

// claim takes what is next, and whether there is more for others. The caller holds mu.
func (e *engine) claim(into []buffer.Claimed) (claimed []buffer.Claimed, more bool) {
	now := time.Time{}
	if e.reg.MaxWait > 0 {
		now = time.Now()
	}
	if !e.claimable(now) {
		return into, false
	}
	switch {
	case e.reg.Batch != nil, e.reg.Actor != nil:
		into = e.lanes.ClaimHeads(into, e.reg.MaxRecords)
	case e.reg.Async != nil:
		into = e.lanes.Claim(into, e.reg.MaxRecords)
	default:
		into = e.lanes.Claim(into, e.most)
	}
	if !e.fillBy.IsZero() {
		e.fillTimer.Stop()
		e.fillBy = time.Time{}
	}
	return into, e.claimable(now)
}

// tell decides whether the actor has to come. The caller holds mu and calls notify after giving it back when it is true.
func (e *engine) tell() bool {
	if e.signaled || e.ended {
		return false
	}
	idle := e.lanes.Claimed() == 0 && e.lanes.Ready() == 0
	switch {
	case len(e.failures) > 0, e.armed && e.fresh > 0:
	case e.active && idle:
		e.active = false
	case e.leaving && len(e.calls) == 0:
		e.leaving = false
	case e.hungry && e.lanes.Waiting() < e.wanted:
		e.hungry = false
	case e.eager && e.lanes.Ready() > 0:
		e.eager = false
	default:
		return false
	}
	e.signaled = true
	return true
}

// engineState is what the actor learns when it comes.
type engineState struct {
	fresh int
	// freed is the bytes of slabs that nobody needs any more.
	freed    int64
	failures []laneFailure
	// busy is true while something is worked on, or could be claimed.
	busy   bool
	parked int
	room   int
}

// collect moves what is finished into the tracker and says how things stand.
func (e *engine) collect(tracker *commit.Tracker, finished func(seq uint64)) engineState {
	e.mu.Lock()
	defer e.mu.Unlock()
	state := engineState{failures: e.failures}
	state.fresh, state.freed = e.moveFinished(tracker, finished)
	e.failures, e.signaled, e.fresh = nil, false, 0
	e.armed = false
	state.busy = e.lanes.Claimed() > 0 || (e.lanes.Ready() > 0 && !e.stopped.Load())
	state.parked, state.room = e.lanes.Parked(), e.lanes.Room()
	return state
}

// working reports whether something is worked on, or could be claimed.
func (e *engine) working() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lanes.Claimed() > 0 || (e.lanes.Ready() > 0 && !e.stopped.Load())
}

// finished is collect without the rest: for the last commit, and before a failure is judged.
func (e *engine) finished(tracker *commit.Tracker, finished func(seq uint64)) (fresh int, freed int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.moveFinished(tracker, finished)
}

// moveFinished moves what is finished into the tracker, and gives back slabs that nobody needs. The caller holds mu.
func (e *engine) moveFinished(tracker *commit.Tracker, finished func(seq uint64)) (fresh int, freed int64) {
	e.settleBegun()
	e.lanes.Collect(func(seq uint64, offset int64) {
		if tracker.Ack(offset) == commit.Acked {
			fresh++
		}
		finished(seq)
	})
	low := e.lanes.Low()
	done := 0
	for ; done < len(e.slabs) && e.slabs[done].seq < low; done++ {
		freed += e.slabs[done].bytes
		releaseLeases(e.slabs[done].leases, !e.slabs[done].spoiled)
	}
	e.slabs = slices.Delete(e.slabs, 0, done)
	return fresh, freed
}

// rearm lets finished records tell the actor again.
func (e *engine) rearm() {
	e.mu.Lock()
	e.armed = true
	told := e.tell()
	e.mu.Unlock()
	if told {
		e.notify()
	}
}

// room is how many records may be pushed.
func (e *engine) room() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lanes.Room()
}

// unpark lets lanes that failed be tried again.
func (e *engine) unpark(seqs []uint64) {
	e.mu.Lock()
	for _, seq := range seqs {
		e.lanes.Unpark(seq)
	}
	e.active = true
	offer := e.claimable(time.Now())
	e.mu.Unlock()
	if offer && e.reg.Actor == nil {
		e.pool.offer(e)
	}
}

// filled says whether more records can come before something is finished.
func (e *engine) filled(full bool) {
	if e.reg.MaxWait == 0 {
		return
	}
	e.mu.Lock()
	e.full = full
	offer := e.claimable(time.Now())
	e.mu.Unlock()
	if offer {
		e.pool.offer(e)
	}
}

// pause lets nothing begin until resume. It returns the number of calls that run.
func (e *engine) pause() int {
	e.paused.Store(true)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaving = len(e.calls) > 0
	return len(e.calls)
}

func (e *engine) resume() {
	e.mu.Lock()
	e.paused.Store(false)
	offer := e.claimable(time.Now())
	e.mu.Unlock()
	if offer && e.reg.Actor == nil {
		e.pool.offer(e)
	}
}

// stop ends the flow: what waits is dropped, what runs may finish and be collected.
func (e *engine) stop() {
	e.stopped.Store(true)
	e.mu.Lock()
	for _, seq := range slices.Sorted(maps.Keys(e.refused)) {
		r := e.refused[seq]
		e.failures = append(e.failures, laneFailure{seq: seq, lane: e.lanes.Lane(seq), attempt: r.attempt, err: r.err})
	}
	clear(e.refused)
	e.lanes.Drop()
	if e.fillTimer != nil {
		e.fillTimer.Stop()
	}
	told := e.tell()
	e.mu.Unlock()
	if told {
		e.notify()
	}
}

// end makes every later acknowledgment stale and ends the context with cause. idle runs as soon as no call runs any more,
// which may be at once.
func (e *engine) end(cause error, idle func()) {
	e.stopped.Store(true)
	e.cancel(cause)
	e.mu.Lock()
	first := !e.ended
	e.ended = true
	if first {
		e.lanes.Drop()
		e.slabs = nil // somebody may still read
		e.onIdle = idle
		if e.fillTimer != nil {
			e.fillTimer.Stop()
		}
	}
	e.left()
}

// left gives mu back, and runs onIdle when its time has come.
func (e *engine) left() {
	var idle func()
	if e.ended && len(e.calls) == 0 {
		idle, e.onIdle = e.onIdle, nil
	}
	e.mu.Unlock()
	if idle != nil {
		idle()
	}
}

// refusal is a record that failed while others of its lane are not settled.
type refusal struct {
	attempt int
	err     *HandlerError
}

// settleOne is an acknowledgment, or a refusal when failure is not nil, of one record by an asynchronous handler or a
// user's actor. It is stale when the engine has ended, which the caller counts.
func (e *engine) settleOne(seq uint64, attempt int, failure *HandlerError) error {
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		return ErrStale
	}
	if failure != nil {
		e.fail(seq, attempt, failure)
	} else {
		e.done(seq)
	}
	told, offer := e.tell(), e.reg.Actor == nil && e.claimable(time.Time{})
	e.mu.Unlock()
	if told {
		e.notify()
	}
	if offer {
		e.pool.offer(e)
	}
	return nil
}

// done finishes a record. The caller holds mu.
func (e *engine) done(seq uint64) {
	delete(e.contexts, seq)
	if e.lanes.Done(seq) {
		e.fresh++
		delete(e.refused, seq)
		delete(e.skipped, seq)
		e.report(seq, refusal{})
	}
}

// fail notes a record's failure. The caller holds mu.
func (e *engine) fail(seq uint64, attempt int, err *HandlerError) {
	if _, skipped := e.skipped[seq]; skipped {
		e.done(seq)
		return
	}
	delete(e.contexts, seq)
	lane := e.lanes.Lane(seq)
	if e.lanes.Fail(seq) {
		if e.stopped.Load() { // there is nothing left to wait for
			e.failures = append(e.failures, laneFailure{seq: seq, lane: lane, attempt: attempt, err: err})
			return
		}
		if e.refused == nil {
			e.refused = make(map[uint64]refusal)
		}
		e.refused[seq] = refusal{attempt: attempt, err: err}
		e.report(seq, e.refused[seq])
	}
}

// giveBack returns a record that was claimed and not begun. The caller holds mu.
func (e *engine) giveBack(seq uint64) {
	if e.lanes.Return(seq) {
		e.report(seq, refusal{})
	}
}

// report tells the actor of a lane that is parked now: every record of it that was out is settled, and one has failed.
func (e *engine) report(seq uint64, last refusal) {
	if len(e.refused) == 0 {
		return
	}
	head, parked, ok := e.lanes.Head(seq)
	if !ok || !parked {
		return
	}
	if r, refused := e.refused[head]; refused {
		last = r
		delete(e.refused, head)
	}
	if last.err != nil {
		e.failures = append(e.failures, laneFailure{seq: head, lane: e.lanes.Lane(head), attempt: last.attempt, err: last.err})
	}
}

// oldest is the call that runs for the longest time.
func (e *engine) oldest() (offset int64, since time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	offset = kafka.NoOffset
	for _, w := range e.calls {
		if c := &w.call; since.IsZero() || c.since.Before(since) {
			offset, since = c.offset.Load(), c.since
		}
	}
	return offset, since
}

// currentOffset is what the gate reports as being worked on.
func (e *engine) currentOffset() int64 {
	offset, _ := e.oldest()
	return offset
}

// lowest describes the record that holds the commit up.
func (e *engine) lowest() (buffer.Lowest, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lanes.Lowest()
}
