package stacksim

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

// process is one consumer: a member's place is taken by one after the other.
type process struct {
	w        *world
	name     string
	plan     *memberPlan
	place    int
	link     *link
	consumer *api.Consumer
	// ready is closed when consumer is set.
	ready chan struct{}

	// The following are under ledger.mu.
	dead bool // crashed: what it still does did not happen
	// closing is when Close was called, closed when it returned and with what.
	closing, closed time.Time
	closeErr        error
	died, abandoned time.Time
	paused          bool
	// resumed counts the calls of Resume: a Pause that returns after one holds nothing up.
	resumed    int
	owns       map[kafka.TopicPartition]ownership
	tenure     map[kafka.TopicPartition]int
	revokedIn  map[kafka.TopicPartition]kafka.Generation
	generation kafka.Generation
	// changing is true while somebody changes the subscription.
	changing atomic.Bool
	// tokens are all that anybody has had of it.
	tokens []*api.Token
}

func (p *process) String() string { return p.name }

func (w *world) spawn(place int) *process {
	m := &w.plan.members[place]
	w.spawned++
	p := &process{
		w: w, name: fmt.Sprintf("m%d.%d", place, w.spawned), plan: m, place: place, link: newLink(w.broker), ready: make(chan struct{}),
		owns: make(map[kafka.TopicPartition]ownership), tenure: make(map[kafka.TopicPartition]int), revokedIn: make(map[kafka.TopicPartition]kafka.Generation),
	}
	c := api.Config{
		Brokers: w.broker.Addrs(), GroupID: group, ClientID: p.name,
		SessionTimeout: sessionTimeout, HeartbeatInterval: heartbeat, RebalanceTimeout: rebalanceTimeout, DrainTimeout: drainTimeout,
		CloseTimeout: closeTimeout, TokenTimeout: tokenTimeout, RequestTimeout: requestTimeout, MetadataMaxAge: metadataMaxAge, FetchMaxWait: 2 * time.Second,
		Backoff: supervisor.Backoff{Initial: 50 * time.Millisecond, Max: time.Second}, ConnectTimeout: 2 * time.Second,
		Assignors: assignors(w.plan.lists[m.list]), CommitStrategy: m.commitStrategy(), OffsetMap: m.offsetMap,
		MaxInTransit: m.maxInTransit, MaxProcessingTime: m.limit, Concurrency: m.concurrency, MemoryBudget: 8 << 20, FetchMaxBytes: 1 << 20,
		Restart: supervisor.Policy{MaxRestarts: 1000, Backoff: supervisor.Backoff{Initial: 10 * time.Millisecond, Max: 200 * time.Millisecond}},
	}
	if m.smallBudget {
		c.Restart.MaxRestarts, c.Restart.ProbeInitial, c.Restart.ProbeMax = 2, time.Second, 3*time.Second
	}
	if w.plan.static {
		c.GroupInstanceID = fmt.Sprintf("i%d", place)
	}
	var err error
	p.consumer, err = api.Spawn(context.Background(), c, p.registration(w.topicNames()), api.WithDialer(p.link.Dial), api.WithPoison(),
		api.WithObserver(p.observe), api.WithObserverBuffer(1<<13), api.WithCallbacks(p.callbacks()))
	if err != nil {
		panic(err) // the plan is wrong
	}
	close(p.ready)
	w.processes = append(w.processes, p)
	w.ledger.note(p.name, "spawned", "")
	return p
}

func (p *process) observe(e event.Event) {
	l := p.w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.dead {
		return
	}
	l.noteLocked(p.name, e.Name(), e)
	l.events = append(l.events, eventSeen{l.seq, time.Now(), p, e})
}

// callbacks keep the books of what the process owns.
func (p *process) callbacks() api.Callbacks {
	return api.Callbacks{
		OnAssigned: p.callback("OnAssigned", assigning, owned), OnRevoking: p.callback("OnRevoking", revoking, revoking),
		OnRevoked: p.callback("OnRevoked", revoked, revoked), OnLost: p.callback("OnLost", lost, lost), Timeout: 2 * time.Second,
	}
}

func (p *process) callback(name string, before, after ownership) func(context.Context, *api.Token, []kafka.TopicPartition) error {
	return func(ctx context.Context, token *api.Token, partitions []kafka.TopicPartition) error {
		p.becomes(name, before, partitions)
		r := p.w.fate(name, p.name, partitions[0], int64(len(partitions)), p.w.callbacks.Add(1))
		if p.plan.badCallbacks {
			time.Sleep(between(r, 0, time.Second))
			if p.w.plan.tokens {
				p.inCallback(ctx, token, r)
			}
		}
		if after != before {
			p.becomes(name+" returns", after, partitions)
		}
		if p.plan.badCallbacks && chance(r, 30) {
			return errScripted
		}
		return ctx.Err()
	}
}

func (p *process) becomes(name string, state ownership, partitions []kafka.TopicPartition) {
	<-p.ready
	stats := p.consumer.Stats()
	generation := stats.Generation
	l := p.w.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.dead {
		return
	}
	if stats.MemberID != "" {
		p.w.members[stats.MemberID] = p
	}
	p.generation = max(p.generation, generation)
	l.noteLocked(p.name, name, fmt.Sprint(partitions, " generation ", generation))
	for _, tp := range partitions {
		was := p.owns[tp]
		if was == assigning && p.plan.badCallbacks {
			was = owned // nobody waits longer for a callback than it has time
		} else if state == owned && was != assigning {
			continue // it was given up while the callback ran on
		}
		switch state {
		case assigning:
			p.tenure[tp]++
			if was == owned || was == revoking {
				l.violatedLocked("CALLBACK", "%s is assigned %s, which is %v", p, tp, was)
			}
		case owned:
		case revoking:
			if was != owned {
				l.violatedLocked("CALLBACK", "%s is to revoke %s, which is %v", p, tp, was)
			}
		case revoked, lost, neverOwned:
			p.revokedIn[tp] = p.generation
			if was != owned && was != revoking {
				l.violatedLocked("CALLBACK", "%s has %v %s, which is %v", p, state, tp, was)
			}
			p.released(tp, state)
		}
		p.owns[tp] = state
		l.changes = append(l.changes, change{tp, time.Now()})
	}
}

// released looks for calls that run on although the partition was given up in order. The caller holds the ledger.
func (p *process) released(tp kafka.TopicPartition, state ownership) {
	if state != revoked {
		return
	}
	for _, e := range p.w.ledger.entries {
		if e.p == p && e.tp == tp && e.endSeq == 0 && !e.p.dead {
			p.w.overdue++
		}
	}
}

var errScripted = errors.New("scripted")

// fate is a source of randomness that depends on the seed and on what is asked for, not on when.
func (w *world) fate(what, who string, tp kafka.TopicPartition, offset int64, n int64) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s %s %d %d", what, who, tp, offset, n)
	return rand.New(rand.NewPCG(w.plan.seed, h.Sum64()))
}

// mood is how handlers are at the moment.
type mood struct {
	failing, sluggish, late atomic.Int32
}

// work is what a handler does with records: it takes its time, and then fails or does not.
func (p *process) work(ctx context.Context, entries []*entry, async bool) (err error, panics bool) { //nolint:revive // the panic is not an error
	w, first := p.w, entries[0]
	r := w.fate("work", p.plan.kind, first.tp, first.offset, int64(first.attempt))
	pause := between(r, 0, 15*time.Millisecond)
	if w.mood.sluggish.Load() > 0 && chance(r, 30) {
		pause = between(r, 100*time.Millisecond, 3*time.Second)
	}
	if async && w.mood.late.Load() > 0 && chance(r, 30) {
		pause = between(r, time.Second, 8*time.Second)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var canceled <-chan struct{}
	if p.plan.heeds {
		canceled = ctx.Done()
	}
	select {
	case <-timer.C:
	case <-canceled:
		return context.Cause(ctx), false
	case <-p.w.over:
	}
	for _, e := range entries {
		if gate := w.blocked(e); gate != nil {
			w.ledger.note(p.name, "blocked", e.spot)
			select {
			case <-gate:
			case <-canceled:
				return context.Cause(ctx), false
			}
			w.ledger.note(p.name, "unblocked", e.spot)
		}
	}
	percent := 2
	if w.mood.failing.Load() > 0 {
		percent = 30
	}
	for _, e := range entries {
		if e.attempt < 6 && chance(w.fate("fails", "", e.tp, e.offset, int64(e.attempt)), percent) {
			return errScripted, chance(r, 30)
		}
	}
	return nil, false
}

// finish notes how records ended and looks at their values before they are given back.
func (p *process) finish(ctx context.Context, entries []*entry, records []kafka.Record, err error, panics bool) {
	for i, e := range entries {
		if got := string(records[i].Value); got != e.value || !strings.HasPrefix(got, e.tp.String()+"/") || keyOf(&records[i]) != e.key {
			p.w.ledger.violated("RECORD", "%s has %q in the hands of %s, and began with %q", e.tp, got, p, e.value)
		}
	}
	p.w.ledger.close(entries, err == nil && !panics, panics, ctx.Err() != nil)
}

func (p *process) registration(topics []string) api.Registration {
	if p.plan.pattern {
		return register(p, everyTopic)
	}
	return register(p, topics)
}

// everyTopic is what a member with a pattern subscribes to.
var everyTopic = api.Matching("t[0-9]", "other").Except("other")

func register[T api.Topics](p *process, topics T) api.Registration {
	options := []api.HandlerOption{p.plan.engine(), api.MaxRecords(p.plan.maxRecords)}
	if p.plan.recycle {
		options = append(options, api.RecycleRecords())
	}
	switch p.plan.kind {
	case "batch":
		return api.HandleBatch(topics, p.batch, convert[api.BatchOption](options)...)
	case "async":
		return api.HandleAsync(topics, p.async, convert[api.AsyncOption](options)...)
	case "actor":
		produce := func(kafka.TopicPartition) actor.Actor { return &scriptedActor{p: p} }
		return api.HandleActor(topics, produce, convert[api.ActorOption](options)...)
	}
	return api.Handle(topics, p.record, convert[api.RecordOption](options)...)
}

func convert[T any](options []api.HandlerOption) (out []T) {
	for _, o := range options {
		out = append(out, any(o).(T))
	}
	return out
}

func (p *process) record(ctx context.Context, r *kafka.Record) error {
	d := actors.DeliveryFrom(ctx)
	return p.call(ctx, d, []kafka.Record{*r})
}

func (p *process) batch(ctx context.Context, records []kafka.Record) error {
	return p.call(ctx, actors.DeliveryFrom(ctx), records)
}

func (p *process) call(ctx context.Context, d *actors.Delivery, records []kafka.Record) error {
	entries := p.w.ledger.open(p, d.Epoch(), d.Attempt(), records)
	if entries == nil {
		return errScripted
	}
	err, panics := p.work(ctx, entries, false)
	p.finish(ctx, entries, records, err, panics)
	if panics {
		panic(err)
	}
	return err
}

func (p *process) async(ctx context.Context, d *actors.RecordDelivery) {
	records := []kafka.Record{*d.Record()}
	entries := p.w.ledger.open(p, d.Epoch(), d.Attempt(), records)
	if entries == nil {
		return
	}
	go func() {
		err, panics := p.work(ctx, entries, true)
		p.finish(ctx, entries, records, err, panics)
		if err != nil {
			_ = d.Nack(err)
			return
		}
		_ = d.Ack()
	}()
}

// scriptedActor has its records acknowledged one by one, in any order, by goroutines.
type scriptedActor struct{ p *process }

// Receive implements actor.Actor.
func (a *scriptedActor) Receive(ctx actor.Context) {
	d, ok := ctx.Message().(*actors.Deliver)
	if !ok {
		return
	}
	records := d.Records()
	entries := a.p.w.ledger.open(a.p, d.Epoch(), d.Attempt(), records)
	for i := range entries {
		e, record := entries[i:i+1], []kafka.Record{records[i]}
		go func() {
			err, panics := a.p.work(d.Context(), e, true)
			a.p.finish(d.Context(), e, record, err, panics)
			if err != nil {
				_ = d.Nack(e[0].offset, err)
				return
			}
			_ = d.Ack(e[0].offset)
		}()
	}
}
