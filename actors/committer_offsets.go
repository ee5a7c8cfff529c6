package actors

import (
	"context"
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
)

// offsetLookups is the committer's question for committed offsets: one at a time, repeated for the partitions that failed
// until each has its answer or a newer question comes.
type offsetLookups struct {
	id       uint64
	open     []kafka.TopicPartition
	alarm    alarm
	busy     bool
	sentTo   kafka.Broker
	failures int
}

// offsetsRead: the committer's worker -> committer.
type offsetsRead struct {
	silent
	id          uint64
	coordinator kafka.Broker
	asked       []kafka.TopicPartition
	offsets     map[kafka.TopicPartition]CommittedOffset
	err         error
}

func (l *offsetLookups) begin(m *offsetsWanted) {
	l.id, l.open, l.failures = m.id, m.partitions, 0
	l.alarm.stop()
}

// lookupNext asks for what is open. Commits go on meanwhile: both share the connection in turn.
func (c *committer) lookupNext() {
	l := &c.lookup
	if l.busy || l.alarm.set || len(l.open) == 0 || !c.stable {
		return
	}
	l.busy, l.sentTo = true, c.coordinator
	id, asked, coordinator := l.id, l.open, c.coordinator
	request := OffsetFetchRequest{GroupID: c.shared.settings.GroupID, MemberID: c.memberID, Generation: c.generation, Partitions: asked}
	c.reads.do(func(call context.Context) any {
		offsets, err := c.reader.FetchOffsets(call, coordinator, request)
		return &offsetsRead{id: id, coordinator: coordinator, asked: asked, offsets: offsets, err: err}
	})
}

func (c *committer) offsetsRead(ctx actor.Context, m *offsetsRead) {
	l := &c.lookup
	l.busy = false
	if m.id != l.id {
		c.lookupNext()
		return
	}
	answer := &offsetsFetched{id: m.id, offsets: make(map[kafka.TopicPartition]CommittedOffset), failed: make(map[kafka.TopicPartition]error)}
	l.open = nil
	for _, tp := range m.asked {
		committed, err := m.of(tp)
		if err == nil {
			answer.offsets[tp] = committed
			continue
		}
		answer.failed[tp] = err
		l.open = append(l.open, tp)
	}
	ctx.Send(c.group, answer)
	if len(l.open) == 0 {
		return
	}
	l.failures++
	delay := min(c.shared.settings.Backoff.Initial<<min(l.failures-1, 16), c.shared.settings.Backoff.Max)
	err := answer.failed[l.open[0]]
	if !l.quiet(err) {
		c.shared.trouble("committed offsets of "+l.open[0].String(), err, delay)
	}
	if m.err != nil {
		ctx.Send(c.group, &coordinatorDoubted{broker: m.coordinator, err: m.err})
	}
	l.alarm.setAt(c.shared.sys, c.self, time.Now().Add(delay), true)
}

// of returns what the answer says of one partition: its committed offset, or why it has to be asked for again.
func (m *offsetsRead) of(tp kafka.TopicPartition) (CommittedOffset, error) {
	committed, ok := m.offsets[tp]
	switch {
	case m.err != nil:
		return CommittedOffset{}, m.err
	case !ok:
		return CommittedOffset{}, errNotAnswered
	}
	return committed, committed.Err
}

// quiet reports whether a failure is not worth a word. A transaction that is still open on these offsets is waited for
// (KIP-447); one that stays open is trouble.
func (l *offsetLookups) quiet(err error) bool {
	return errors.Is(err, kafka.UnstableOffsetCommit) && l.failures <= unstableQuiet
}

// unstableQuiet is for how many tries an open transaction is waited for without a word.
const unstableQuiet = 6

var errNotAnswered = errors.New("troupe: the broker did not answer for this partition")
