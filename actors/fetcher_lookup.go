package actors

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
)

// lookups are a fetcher's questions for offsets, by a connection made on demand: those that come up together go out
// together.
type lookups struct {
	client   LookupClient
	work     *worker
	waiting  map[kafka.TopicPartition]*offsetLookup
	asked    []*offsetLookup
	alarm    alarm
	failures int
	// unheard are the partitions that were routed here and have neither asked nor wanted anything. They are worth waiting for
	// while one after the other is heard of, but not beyond patience.
	unheard   map[kafka.TopicPartition]struct{}
	lastHeard time.Time
	patience  time.Time
}

// lookupDone: the look-up worker -> fetcher.
type lookupDone struct {
	silent
	answers map[kafka.TopicPartition]OffsetAnswer
	err     error
}

// lookupGather is how long a first question waits for those of the member's other partitions. A busy machine takes its time
// to start thousands: it waits on while each lookupGap at least one more of them is heard of, up to lookupPatience after they
// came.
const (
	lookupGather   = 5 * time.Millisecond
	lookupGap      = 100 * time.Millisecond
	lookupPatience = 2 * time.Second
)

// expect notes a partition that is new here and may have a question.
func (l *lookups) expect(tp kafka.TopicPartition) {
	if l.unheard == nil {
		l.unheard = make(map[kafka.TopicPartition]struct{})
	}
	if len(l.unheard) == 0 { // however many come after it, nobody waits longer
		l.patience = time.Now().Add(lookupPatience)
	}
	l.unheard[tp] = struct{}{}
}

// heard notes that a partition has asked, or needs not.
func (l *lookups) heard(tp kafka.TopicPartition) {
	if _, ok := l.unheard[tp]; ok {
		delete(l.unheard, tp)
		l.lastHeard = time.Now()
	}
}

// add queues a question; a newer one of the same partition replaces it.
func (l *lookups) add(m *offsetLookup) {
	if l.waiting == nil {
		l.waiting = make(map[kafka.TopicPartition]*offsetLookup)
	}
	l.waiting[m.query.TopicPartition] = m
}

func (l *lookups) forget(tp kafka.TopicPartition) {
	delete(l.waiting, tp)
	delete(l.unheard, tp)
}

// lookupSoon sets the time of the next look-up: a member that starts asks for all its partitions within a moment, and a
// broker is asked once for all of them.
func (f *fetcher) lookupSoon() {
	if l := &f.lookup; !l.alarm.set && len(l.asked) == 0 {
		l.alarm.setAt(f.shared.sys, f.self, time.Now().Add(lookupGather), true)
	}
}

func (f *fetcher) lookupNext() {
	l := &f.lookup
	if len(l.asked) > 0 || len(l.waiting) == 0 || l.alarm.set {
		return
	}
	if now := time.Now(); len(l.unheard) > 0 && now.Before(l.patience) && now.Sub(l.lastHeard) < lookupGap {
		l.alarm.setAt(f.shared.sys, f.self, now.Add(lookupGather), true)
		return
	}
	l.asked = slices.Collect(maps.Values(l.waiting))
	clear(l.waiting)
	queries := make([]OffsetQuery, len(l.asked))
	for i, m := range l.asked {
		queries[i] = m.query
	}
	client, isolation := l.client, f.shared.settings.Isolation
	l.work.do(func(call context.Context) any {
		answers, err := client.ListOffsets(call, isolation, queries)
		return &lookupDone{answers: answers, err: err}
	})
}

// lookedUp passes the answers on. When the broker could not be asked at all, the questions are asked again; each
// partition's own failure is for the partition to judge.
func (f *fetcher) lookedUp(ctx actor.Context, m *lookupDone) {
	l := &f.lookup
	asked := l.asked
	l.asked = nil
	if m.err != nil {
		if errors.Is(m.err, context.Canceled) {
			return
		}
		l.failures++
		delay := min(f.shared.settings.Backoff.Initial<<min(l.failures-1, 16), f.shared.settings.Backoff.Max)
		f.shared.trouble("offset look-up at "+f.broker.String(), m.err, delay)
		ctx.Send(f.group, &brokerDoubted{broker: f.broker, err: m.err})
		for _, q := range asked {
			_, newer := l.waiting[q.query.TopicPartition]
			if f.routes[q.query.TopicPartition].epoch == q.epoch && !newer {
				l.add(q)
			}
		}
		l.alarm.setAt(f.shared.sys, f.self, time.Now().Add(delay), true)
		return
	}
	l.failures = 0
	for _, q := range asked {
		answer, ok := m.answers[q.query.TopicPartition]
		if !ok {
			answer.Err = errNotAnswered
		}
		ctx.Send(q.from, &offsetFound{id: q.id, epoch: q.epoch, answer: answer})
	}
	f.lookupNext()
}
