package actors

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/troupego/troupe/internal/buffer"
)

// pool is the workers of one registration under OrderKey or OrderNone, shared by all its partitions: goroutines that are
// there while there is work. Partitions that have some stand in a line; each turn is one claim, then the partition goes to
// the end of the line. A pool outlives the group actor, as user code may.
type pool struct {
	shared *shared
	reg    *Registration
	limit  int

	mu      sync.Mutex
	running int
	line    []*engine
	// waiting is len(line), for a look without the lock.
	waiting atomic.Int32
	// seats counts the deliveries that users' actors hold, which need no worker.
	seats *slots
}

func newPool(s *shared, reg *Registration) *pool {
	return &pool{shared: s, reg: reg, limit: reg.Workers, seats: newSlots(s.sys, reg.Workers)}
}

// offer says that a partition has work. It costs little when the partition stands in the line already.
func (p *pool) offer(e *engine) {
	if e.queued.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !e.queued.Load() {
		e.queued.Store(true)
		p.line = append(p.line, e)
		p.waiting.Add(1)
	}
	p.hire()
}

// hire starts a worker when one is allowed and could get a slot. The caller holds mu.
func (p *pool) hire() {
	if len(p.line) > 0 && p.running < p.limit && p.shared.slots.mayEnter(p) {
		p.running++
		go p.work()
	}
}

// wake implements slotWaiter: a slot of the member may be free.
func (p *pool) wake() {
	p.mu.Lock()
	hired := len(p.line) > 0 && p.running < p.limit
	if hired {
		p.running++
		go p.work()
	}
	p.mu.Unlock()
	if !hired {
		p.shared.slots.pass(p) // nothing to use the turn for; whoever is next must not wait for it
	}
}

// nextAmong is how many partitions from the head of the line are compared for a turn.
const nextAmong = 64

// next takes out of the line the partition with the fewest calls running, of several the one that has waited longest: one
// whose handler takes its time would otherwise come to hold every worker. Without a partition the worker ends, which is
// counted here.
func (p *pool) next() *engine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.line) == 0 {
		p.running--
		return nil
	}
	best, fewest := 0, p.line[0].busy.Load()
	for i := 1; i < min(len(p.line), nextAmong) && fewest > 0; i++ {
		if busy := p.line[i].busy.Load(); busy < fewest {
			best, fewest = i, busy
		}
	}
	e := p.line[best]
	p.line = slices.Delete(p.line, best, best+1)
	e.queued.Store(false)
	p.waiting.Add(-1)
	return e
}

// leave ends a worker that did not get a slot, or whose handler ended its goroutine. The partition goes back to where it
// was.
func (p *pool) leave(e *engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	if e != nil && !e.queued.Load() {
		e.queued.Store(true)
		p.line = append([]*engine{e}, p.line...)
		p.waiting.Add(1)
	}
	p.hire() // who was to come back for the line may have been told while it was empty, or while this worker still counted
}

// contended reports whether another partition waits for a turn, or somebody for a slot.
func (p *pool) contended(e *engine) bool {
	waiting := p.waiting.Load()
	return waiting > 1 || (waiting == 1 && !e.queued.Load()) || p.shared.slots.contended()
}

// work is a worker: it serves one partition after the other.
func (p *pool) work() {
	w := &poolWorker{}
	for {
		e := p.next()
		if e == nil {
			p.shared.slots.pass(p)
			return
		}
		if !p.shared.slots.enterAs(p) {
			p.leave(e)
			return
		}
		if p.waiting.Load() > 0 { // it was woken for one slot; there may be more of them
			p.mu.Lock()
			p.hire()
			p.mu.Unlock()
		}
		if !p.serve(e, w) {
			return
		}
	}
}

// serve gives a partition its turn. It returns only when the handler did; when a handler ends its goroutine instead, the
// deferred half cleans up behind it.
func (p *pool) serve(e *engine, w *poolWorker) (served bool) {
	defer func() {
		if served {
			return
		}
		e.goexit(w)
		p.shared.slots.leave()
		p.leave(nil)
		p.offer(e)
	}()
	for e.take(w) {
		e.handle(w)
		if p.contended(e) {
			break
		}
	}
	e.settle(w)
	p.shared.slots.leave()
	return true
}

// poolWorker is what a worker carries from one claim to the next.
type poolWorker struct {
	claimed []buffer.Claimed
	// done is how many of the claimed records are finished; failure is what ended the claim at the next one.
	done    int
	failure *HandlerError
	// settled is how many of the finished ones have their verdict already. The engine's mu guards it.
	settled int
	call    call
	pace    pacer
	// ctx is the context of the call that runs or comes next. cut ends the claim before the next record, because one of it was
	// skipped; canceled, which mu guards as well, is true when that was the one at work.
	ctx      atomic.Pointer[claimContext]
	cut      atomic.Bool
	canceled bool
	// busy is true while a claim is not settled.
	busy bool
	// handle is the asynchronous handler's for the record that it was called with last.
	handle *RecordDelivery
}
