package actors

import (
	"errors"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// startQueue is the partitions whose starting position is not decided yet, and the question for committed offsets that is
// under way for them.
type startQueue struct {
	waiting map[kafka.TopicPartition]struct{}
	id      uint64
	asked   []kafka.TopicPartition
	answers map[kafka.TopicPartition]CommittedOffset
	// anew are topics with a commit of an incarnation that was deleted.
	anew map[string]bool
	// hook is asked in place of the committer when offsets are kept outside of Kafka.
	hook startHook
}

func (q *startQueue) add(tp kafka.TopicPartition) {
	if q.waiting == nil {
		q.waiting = make(map[kafka.TopicPartition]struct{})
	}
	q.waiting[tp] = struct{}{}
}

func (q *startQueue) remove(tp kafka.TopicPartition) { delete(q.waiting, tp) }

// requestStarts asks for the committed offsets of all partitions of the topics concerned: whether the group ever committed
// on a topic decides where a partition without a commit begins. A newer question replaces the one under way. With a start
// hook it is the hook that is asked.
func (g *group) requestStarts(ctx actor.Context) {
	q := &g.starts
	if len(q.waiting) == 0 {
		return
	}
	if g.shared.settings.Positions != nil {
		g.askPositions()
		return
	}
	if g.shared.standalone != nil {
		for tp := range q.waiting {
			g.begin(ctx, tp, kafka.NoOffset)
		}
		g.assignedCallback(ctx)
		return
	}
	counts := make(map[string]int)
	for tp := range q.waiting {
		if t := g.metadata.topics[tp.Topic]; t != nil && int(tp.Partition) < len(t.Partitions) {
			counts[tp.Topic] = len(t.Partitions)
		} else {
			g.refreshSoon() // granted by a leader that knows more than we do
		}
	}
	var ask []kafka.TopicPartition
	for topic, n := range counts {
		for i := range n {
			ask = append(ask, kafka.TopicPartition{Topic: topic, Partition: int32(i)})
		}
	}
	if len(ask) == 0 {
		return
	}
	slices.SortFunc(ask, kafka.TopicPartition.Compare)
	if slices.Equal(ask, q.asked) && len(q.answers) == 0 && q.id > 0 {
		return // the same question is under way
	}
	q.id++
	q.asked, q.answers, q.anew = ask, make(map[kafka.TopicPartition]CommittedOffset), make(map[string]bool)
	g.tell(ctx, committerKey, &offsetsWanted{id: q.id, partitions: ask})
}

func (g *group) offsetsFetched(ctx actor.Context, m *offsetsFetched) {
	q := &g.starts
	if m.id != q.id || q.answers == nil { // an answer may come in parts, and all that was asked for be decided by the first
		g.shared.staleMessage()
		return
	}
	for tp, answer := range m.offsets {
		if t := g.metadata.topics[tp.Topic]; t != nil && ofAnotherTopic(answer.Metadata, t.ID) {
			answer.Offset, answer.LeaderEpoch, answer.Metadata = kafka.NoOffset, kafka.NoLeaderEpoch, ""
			q.anew[tp.Topic] = true
		}
		q.answers[tp] = answer
	}
	byTopic := make(map[string]map[int32]rebalance.Committed)
	resets := make(map[string]rebalance.ResetPolicy)
	for tp := range q.waiting {
		answer, ok := q.answers[tp]
		p := g.parts[tp]
		if !ok || p == nil {
			continue
		}
		resets[tp.Topic] = p.registration.Reset
		if byTopic[tp.Topic] == nil {
			byTopic[tp.Topic] = make(map[int32]rebalance.Committed)
		}
		byTopic[tp.Topic][tp.Partition] = rebalance.Committed{Offset: answer.Offset, LeaderEpoch: answer.LeaderEpoch}
	}
	for topic, committed := range byTopic {
		decisions := rebalance.DecideStarts(time.Now().UnixMilli(), topic, committed, q.others(topic), resets[topic])
		for partition, decision := range decisions {
			tp := kafka.TopicPartition{Topic: topic, Partition: partition}
			g.decided(ctx, tp, decision, q.answers[tp])
		}
	}
	g.assignedCallback(ctx)
	if len(q.waiting) == 0 {
		q.asked, q.answers = nil, nil
	}
}

// others says what is known of the group's commits in the rest of a topic.
func (q *startQueue) others(topic string) rebalance.GroupCommits {
	if q.anew[topic] { // the group was here before the topic was made anew: everything in it is new to the group
		return rebalance.GroupCommitsSome
	}
	state := rebalance.GroupCommitsNone
	for _, tp := range q.asked {
		if tp.Topic != topic {
			continue
		}
		answer, ok := q.answers[tp]
		switch {
		case ok && answer.Offset >= 0:
			return rebalance.GroupCommitsSome
		case !ok:
			state = rebalance.GroupCommitsUnknown
		}
	}
	return state
}

// decided tells everybody where a partition starts. One that cannot be decided yet goes on waiting.
func (g *group) decided(ctx actor.Context, tp kafka.TopicPartition, decision rebalance.StartDecision, answer CommittedOffset) {
	if failed, ok := decision.(rebalance.StartFails); ok && errors.Is(failed.Err, rebalance.ErrCommitsUnknown) {
		return
	}
	g.starts.remove(tp)
	p := g.parts[tp]
	if p == nil {
		return
	}
	first := p.phase == partStarting
	p.phase = partRunning
	p.cell.committed.Store(answer.Offset)
	g.tell(ctx, committerKey, &partitionOpened{tp: tp, epoch: p.epoch, committed: answer.Offset, metadata: answer.Metadata, cell: p.cell})
	g.hold(ctx, p, first)
	g.tell(ctx, p.key, &startDecided{
		epoch: p.epoch, decision: decision, committed: answer.Offset, metadata: answer.Metadata, anew: g.starts.anew[tp.Topic],
	})
	g.decidedStart(ctx, p, first)
}

// hold keeps a partition that is about to start from delivering until OnAssigned has returned.
func (g *group) hold(ctx actor.Context, p *part, first bool) {
	if p.held = p.held || first && g.shared.settings.Callbacks.Assigned != nil; p.held {
		g.tell(ctx, p.key, &deliveryHeld{epoch: p.epoch, held: true})
	}
}

// decidedStart has OnAssigned called for a partition whose start is decided, or tells the member that it has started.
func (g *group) decidedStart(ctx actor.Context, p *part, first bool) {
	grant := rebalance.Grant{TopicPartition: p.tp, Epoch: p.epoch}
	switch {
	case first && p.held:
		g.callbacks.arrived = append(g.callbacks.arrived, grant)
	case first:
		g.feed(ctx, rebalance.PartitionStarted(grant))
	}
}

// ofAnotherTopic reports whether a commit's metadata marks it as another incarnation's of the topic. Offsets are committed by
// name, so one may land on a topic that was deleted and made anew meanwhile; whoever reads it there must not start from it.
// Foreign metadata says nothing, nor does a damaged mark.
func ofAnotherTopic(metadata string, id kafka.TopicID) bool {
	marked, _ := commit.ParseMetadata(commit.WithoutMap(metadata), kafka.NoOffset)
	return marked.OfAnotherTopic(id)
}
