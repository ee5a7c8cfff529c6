package stacksim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// world is a history as it runs. Its own methods are called by the bubble's main goroutine alone, but for those that
// handlers, callbacks and the broker call.
type world struct {
	plan      *plan
	random    *rand.Rand
	broker    *kafkatest.Broker
	ledger    *ledger
	wire      wire
	mood      mood
	processes []*process
	spawned   int
	callbacks atomic.Int64
	// heard is when each member id was heard of last, under ledger.mu.
	heard map[string]time.Time
	// members says which process a member id is, as the callbacks tell, under ledger.mu.
	members map[string]*process
	// over is closed when everything is healed: nobody takes their time any more.
	over chan struct{}
	// ends are faults that pass, in the order they were begun.
	ends []ending
	// late are the spans in which a request that its client gave up may still be executed.
	late      []span
	blocks    []*block
	blockMu   sync.Mutex
	producing sync.WaitGroup
	// controlling are those who control members by hand.
	controlling sync.WaitGroup
	produced    atomic.Int64
	// overdue counts records still inside as their partition was revoked.
	overdue int
	result  *result
	log     map[spot]logged
	visits  map[visit]bool
	// finished has when a record was finished first in an ownership.
	finished map[finish]int
}

type span struct{ from, until time.Time }

type ending struct {
	at  time.Time
	end func()
}

// block holds the next record of a partition inside its handler.
type block struct {
	tp     kafka.TopicPartition
	taken  bool
	begun  time.Time
	ended  time.Time
	p      *process
	gate   chan struct{}
	record spot
}

// result is what a history came to.
type result struct {
	seed       uint64
	violations []string
	trace      string
	plan       string
	counts     counts
	settled    time.Duration
	virtual    time.Duration
}

type counts struct {
	processes, records, deliveries, repeated, commits, failures, rebalances, lost, overlaps, late, beside, overdue, abandoned, ghosts, gaveUp, tokens, moves int
}

func newWorld(p *plan, broker *kafkatest.Broker) *world {
	return &world{
		plan: p, broker: broker, ledger: newLedger(), random: rand.New(rand.NewPCG(p.seed, 1)), over: make(chan struct{}),
		heard: make(map[string]time.Time), members: make(map[string]*process),
		result: &result{seed: p.seed},
	}
}

// run is a whole history. It must be called in a bubble.
func run(p *plan) *result {
	options := []kafkatest.Option{kafkatest.InMemory(), kafkatest.Brokers(p.brokers), kafkatest.MinSessionTimeout(time.Second)}
	for _, t := range p.topics {
		options = append(options, kafkatest.Topic(t.name, t.partitions))
	}
	broker, err := kafkatest.StartBroker(options...)
	if err != nil {
		panic(err)
	}
	w := newWorld(p, broker)
	broker.Cluster().Control(w.control)
	for i := range p.members {
		w.spawn(i)
	}
	ctx, stop := context.WithCancel(context.Background())
	for i := range p.topics {
		w.producing.Go(func() { w.produce(ctx, i) })
	}
	w.play()
	stop()
	w.heal()
	w.producing.Wait()
	w.controlling.Wait()
	w.settle()
	w.closeAll()
	w.readLog()
	broker.Close()
	w.check()
	w.result.virtual = time.Since(w.ledger.begun)
	w.result.violations = w.ledger.broken
	w.result.plan = p.String()
	if len(w.ledger.broken) > 0 {
		w.result.trace = w.ledger.trace()
	}
	time.Sleep(time.Second) // lets the last timers of the actor systems end, as a bubble wants
	return w.result
}

func (w *world) topicNames() (names []string) {
	for _, t := range w.plan.topics {
		names = append(names, t.name)
	}
	return names
}

// play does the plan's actions at their times.
func (w *world) play() {
	for _, a := range w.plan.actions {
		w.until(w.ledger.begun.Add(a.at))
		w.ledger.note("FAULT", "begins", a)
		w.act(a)
	}
	w.until(w.ledger.begun.Add(w.plan.length))
}

// until waits for a time and ends the faults that pass before it.
func (w *world) until(at time.Time) {
	for {
		first := -1
		for i, e := range w.ends {
			if !e.at.After(at) && (first < 0 || e.at.Before(w.ends[first].at)) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		e := w.ends[first]
		w.ends = append(w.ends[:first], w.ends[first+1:]...)
		time.Sleep(time.Until(e.at))
		e.end()
	}
	time.Sleep(time.Until(at))
}

// during lets end be called when the action is over.
func (w *world) during(a action, end func()) {
	w.ends = append(w.ends, ending{time.Now().Add(a.lasts), func() {
		w.ledger.note("FAULT", "ends", a)
		end()
	}})
}

// lately says that requests may be executed that their clients have given up.
func (w *world) lately(a action, after time.Duration) {
	w.late = append(w.late, span{time.Now(), time.Now().Add(a.lasts + after)})
}

func (w *world) act(a action) {
	switch a.kind {
	case actJoin, actLeave, actCrash, actRejoin:
		w.actMember(a)
		return
	case actSeek, actSkip, actSetBack, actUnsubscribe, actAbandon:
		if p := w.at(a.member); p != nil {
			w.actControl(p, a)
		}
		return
	case actBlock, actFail, actSluggish, actLateAcks, actPause, actCommit, actToken:
		w.actHandlers(a)
		return
	}
	cluster := w.broker.Cluster()
	switch a.kind {
	case actCut:
		w.lately(a, time.Second)
		w.broker.Cut()
	case actFreeze, actFreezeAll:
		w.lately(a, requestTimeout)
		var nodes []int32
		if a.kind == actFreeze {
			nodes = []int32{a.node}
		}
		w.broker.Freeze(nodes...)
		w.during(a, func() { w.broker.Thaw(nodes...) })
	case actSlow:
		w.lately(a, a.delay+requestTimeout)
		rule := w.wire.add(a)
		w.during(a, func() { w.wire.remove(rule) })
	case actSilence, actDrop:
		rule := w.wire.add(a)
		w.during(a, func() { w.wire.remove(rule) })
	case actWrong:
		f := kfake.Fault{Keys: []kmsg.Key{a.key}, Err: a.err, Count: a.count}
		switch a.key {
		case kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat, kmsg.OffsetCommit, kmsg.OffsetFetch, kmsg.FindCoordinator, kmsg.LeaveGroup:
			f.Group = group
		}
		handle := cluster.Fault(f)
		w.during(a, handle.Remove)
	case actRehash:
		cluster.RehashCoordinators()
	case actMoveLeader:
		_ = cluster.MoveTopicPartition(w.plan.topics[a.topic].name, a.partition, a.node)
	case actBlackhole, actRefuse:
		if p := w.at(a.member); p != nil {
			w.lately(a, time.Second)
			p.link.set(a.kind == actBlackhole, a.kind == actRefuse)
			w.during(a, func() {
				if !w.isDead(p) {
					p.link.set(false, false)
				}
			})
		}
	case actGrow:
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.broker.AddPartitions(ctx, w.plan.topics[a.topic].name, 1); err != nil {
			w.ledger.note("FAULT", "not grown", err)
		}
	}
}

func (w *world) actMember(a action) {
	p := w.at(a.member)
	switch {
	case a.kind == actJoin && p == nil && (w.plan.calm == "" || w.allClosed()): // a second process of an instance fences the first
		w.spawn(a.member)
	case a.kind == actLeave && p != nil:
		w.closeProcess(p)
	case a.kind == actRejoin && p != nil:
		go w.rejoin(p)
	case a.kind == actCrash && p != nil:
		p.link.set(true, true)
		w.ledger.mu.Lock()
		p.dead, p.died = true, time.Now()
		w.ledger.noteLocked(p.name, "crashed", "")
		w.ledger.mu.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		go func() { _ = p.consumer.Close(ctx) }()
	}
}

func (w *world) actHandlers(a action) {
	p := w.at(a.member)
	counter := map[string]*atomic.Int32{actFail: &w.mood.failing, actSluggish: &w.mood.sluggish, actLateAcks: &w.mood.late}[a.kind]
	switch {
	case counter != nil:
		counter.Add(1)
		w.during(a, func() { counter.Add(-1) })
	case a.kind == actBlock:
		a.lasts = max(a.lasts, 5*time.Second)
		b := &block{tp: kafka.TopicPartition{Topic: w.plan.topics[a.topic].name, Partition: a.partition}, gate: make(chan struct{})}
		w.blockMu.Lock()
		w.blocks = append(w.blocks, b)
		w.blockMu.Unlock()
		w.during(a, func() { w.unblock(b) })
	case p == nil:
	case a.kind == actCommit:
		go w.commitNow(p)
	case a.kind == actToken:
		go w.useToken(p, a)
	case a.kind == actPause:
		w.ledger.mu.Lock()
		resumed := p.resumed
		w.ledger.mu.Unlock()
		paused := make(chan struct{})
		go func() {
			defer close(paused)
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			err := p.consumer.Pause(ctx)
			w.ledger.mu.Lock()
			p.paused = p.paused || err == nil && p.pauses() && p.resumed == resumed && !w.plan.tokens
			w.ledger.noteLocked(p.name, "paused", err)
			w.ledger.mu.Unlock()
		}()
		w.during(a, func() {
			<-paused // or it might come after the Resume
			w.resume(p)
		})
	}
}

// pauses reports whether nothing may begin after Pause has returned.
func (p *process) pauses() bool { return p.plan.kind == "record" || p.plan.kind == "batch" }

func (w *world) resume(p *process) {
	w.ledger.mu.Lock()
	p.paused = false
	p.resumed++
	w.ledger.mu.Unlock()
	if err := w.tryResume(p); err != nil {
		w.ledger.note(p.name, "not resumed", err)
		if _, held := errors.AsType[*actors.HeldError](err); held {
			go func() { // until nobody has a token
				for held {
					time.Sleep(tokenTimeout / 8)
					_, held = errors.AsType[*actors.HeldError](w.tryResume(p))
				}
			}()
		}
	}
}

func (w *world) tryResume(p *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return p.consumer.Resume(ctx)
}

func (w *world) commitNow(p *process) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	w.ledger.note(p.name, "Commit", p.consumer.Commit(ctx))
}

func (w *world) rejoin(p *process) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	w.ledger.note(p.name, "Rejoin", p.consumer.Rejoin(ctx, "the history asks for it"))
}

func (w *world) unblock(b *block) {
	w.blockMu.Lock()
	defer w.blockMu.Unlock()
	if b.ended.IsZero() {
		b.taken, b.ended = true, time.Now()
		close(b.gate)
	}
}

// blocked returns what a record has to wait for.
func (w *world) blocked(e *entry) chan struct{} {
	w.blockMu.Lock()
	defer w.blockMu.Unlock()
	for _, b := range w.blocks {
		if b.tp == e.tp && !b.taken {
			b.taken, b.p, b.begun, b.record = true, e.p, time.Now(), e.spot
			return b.gate
		}
	}
	return nil
}

// at is the process in a member's place, nil when there is none.
func (w *world) at(place int) *process {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	for _, p := range w.processes {
		if p.place == place && p.closing.IsZero() && !p.dead {
			return p
		}
	}
	return nil
}

// allClosed reports whether every Close has returned.
func (w *world) allClosed() bool {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return !slices.ContainsFunc(w.processes, func(p *process) bool { return !p.closing.IsZero() && p.closed.IsZero() })
}

func (w *world) isDead(p *process) bool {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return p.dead
}

func (w *world) closeProcess(p *process) { w.endProcess(p, "Close", p.consumer.Close) }

// endProcess calls Close, or Abandon.
func (w *world) endProcess(p *process, what string, end func(context.Context) error) {
	w.ledger.mu.Lock()
	p.closing = time.Now()
	w.ledger.noteLocked(p.name, what, "")
	w.ledger.mu.Unlock()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err := end(ctx)
		w.ledger.mu.Lock()
		defer w.ledger.mu.Unlock()
		p.closed, p.closeErr = time.Now(), err
		w.ledger.noteLocked(p.name, "closed", err)
		if took := p.closed.Sub(p.closing); took > closeTimeout+time.Second {
			w.ledger.violatedLocked("G8", "%s of %s took %v", what, p, took)
		}
	}()
}

// produce writes to a topic until ctx ends, some of it in transactions, some of which are aborted.
func (w *world) produce(ctx context.Context, topic int) {
	r, name := rand.New(rand.NewPCG(w.plan.seed, uint64(100+topic))), w.plan.topics[topic].name
	for ctx.Err() == nil {
		var records []kafka.Record
		for range 1 + r.IntN(6) {
			records = append(records, w.newRecord(r, name, r.Int32N(w.plan.topics[topic].partitions)))
		}
		within, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		var err error
		if chance(r, w.plan.transactions) {
			err = w.transaction(within, r, name, records)
		} else {
			err = w.broker.Produce(within, name, records...)
		}
		cancel()
		if err != nil {
			w.ledger.note("PRODUCE", "failed", err)
		}
		time.Sleep(between(r, w.plan.pace/2, 2*w.plan.pace))
	}
}

func (w *world) transaction(ctx context.Context, r *rand.Rand, topic string, records []kafka.Record) error {
	tx, err := w.broker.BeginTransaction()
	if err != nil {
		return err
	}
	err = tx.Produce(ctx, topic, records...)
	time.Sleep(between(r, 0, 300*time.Millisecond))
	if err != nil || chance(r, 30) {
		return tx.Abort(ctx)
	}
	return tx.Commit(ctx)
}

func (w *world) newRecord(r *rand.Rand, topic string, partition int32) kafka.Record {
	n := w.produced.Add(1)
	record := kafka.Record{Partition: partition, Value: fmt.Appendf(nil, "%s/%d", kafka.TopicPartition{Topic: topic, Partition: partition}, n)}
	if key := r.IntN(6); key > 0 {
		record.Key = []byte{'k', byte('0' + key)}
	}
	record.Value = append(record.Value, strings.Repeat(".", r.IntN(40))...)
	return record
}
