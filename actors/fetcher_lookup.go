package actors

import (
	"context"
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
)

// lookups are a fetcher's questions for offsets, by a connection made on demand: those that come up together go out
// together.
type lookups struct {
	client   LookupClient
	work     *worker
	waiting  []*offsetLookup
	asked    []*offsetLookup
	alarm    alarm
	failures int
}

// lookupDone: the look-up worker -> fetcher.
type lookupDone struct {
	silent
	answers map[kafka.TopicPartition]OffsetAnswer
	err     error
}

// add queues a question; a newer one of the same partition replaces it.
func (l *lookups) add(m *offsetLookup) {
	l.forget(m.query.TopicPartition)
	l.waiting = append(l.waiting, m)
}

func (l *lookups) forget(tp kafka.TopicPartition) {
	kept := l.waiting[:0]
	for _, m := range l.waiting {
		if m.query.TopicPartition != tp {
			kept = append(kept, m)
		}
	}
	l.waiting = kept
}

func (f *fetcher) lookupNext() {
	l := &f.lookup
	if len(l.asked) > 0 || len(l.waiting) == 0 || l.alarm.set {
		return
	}
	l.asked, l.waiting = l.waiting, nil
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
			if f.routes[q.query.TopicPartition].epoch == q.epoch {
				l.waiting = append(l.waiting, q)
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
