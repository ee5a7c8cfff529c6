package actors

import (
	"context"
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// errForeignMetadata is why metadata is ignored that another program wrote.
var errForeignMetadata = errors.New("troupe: the metadata of the committed offset is not Troupe's")

// metadata is what goes along with a committed offset: which incarnation of the topic it is of, and, when it is wanted, what
// is finished beyond it.
func (p *partition) metadata(offset int64) string {
	if offset == p.startedAt && p.tracker.FinishedBeyond() == 0 && !p.finishedBefore.Empty() {
		return p.startedWith // nothing of what it says has come by yet
	}
	m := commit.Metadata{TopicID: p.intake.leader.topicID}
	if !p.shared.settings.OffsetMap || p.intake.rewind != nil || p.tracker.FinishedBeyond() == 0 && !p.mapAhead() {
		if p.markOf != m.TopicID {
			p.markOf = m.TopicID
			p.mark, _ = m.Encode(offset, commit.DefaultMetadataLimit)
		}
		return p.mark
	}
	m.Map = p.tracker.Map().Then(p.finishedBefore, p.tracker.Position())
	text, _ := m.Encode(offset, commit.DefaultMetadataLimit) // a map that does not fit is left out; the offset goes all the same
	return text
}

// mapAhead reports whether the map that this ownership started with says something of records that have not come by yet.
func (p *partition) mapAhead() bool {
	if p.finishedBefore.Empty() {
		return false
	}
	_, last := p.finishedBefore.Run(p.finishedBefore.Runs() - 1)
	return last >= p.tracker.Position()
}

// mapDue reports whether a map may be offered now though the offset has not moved: making one takes time, and it is not
// committed more often than this anyway.
func (p *partition) mapDue() bool {
	if p.mapAlarm.set {
		return false
	}
	p.mapAlarm.setAt(p.shared.sys, p.self, time.Now().Add(commit.DefaultMapSpacing), true)
	return true
}

// adoptMap takes over what the commit's metadata says of finished records. Whatever is not clearly ours and of this very
// commit is ignored: it could at most save duplicates. It reports whether the commit is one
// of ours, as its mark says, whatever its map is worth.
func (p *partition) adoptMap(m *startDecided) (ours bool) {
	if m.metadata == "" || m.committed < 0 {
		return false
	}
	parsed, err := commit.ParseMetadata(m.metadata, m.committed)
	ours = !parsed.TopicID.IsZero()
	if err != nil || parsed.Foreign {
		if err == nil {
			err = errForeignMetadata
		}
		p.shared.observe(event.MetadataIgnored{Member: p.shared.member(), TopicPartition: p.tp, Offset: m.committed, Err: err})
		p.shared.logger.Warn("metadata of the committed offset ignored", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
			zap.Int64("offset", m.committed), zap.Error(err))
		return ours
	}
	if p.shared.settings.OffsetMap {
		p.finishedBefore, p.startedAt, p.startedWith = parsed.Map, m.committed, m.metadata
	}
	return ours
}

// skipFinished acknowledges the records that the offset map says are finished, and returns the others.
func (p *partition) skipFinished(ctx actor.Context, records []kafka.Record) []kafka.Record {
	kept := records[:0]
	skipped := 0
	for i := range records {
		if p.finishedBefore.Finished(records[i].Offset, records[i].LeaderEpoch) {
			p.tracker.Ack(records[i].Offset)
			skipped++
			continue
		}
		kept = append(kept, records[i])
	}
	if skipped > 0 {
		p.cell.acked.Add(uint64(skipped))
		p.offer(ctx)
	}
	return kept
}

// look has the watch look at the committable offset, and reports one that stands still.
func (p *partition) look() {
	if p.tracker == nil || !p.machine.CanDeliver() {
		p.watchAlarm.stop()
		p.cell.blocked.Store(nil)
		return
	}
	finished := p.tracker.FinishedBeyond()
	if _, standing := p.watch.Blocked(); finished == 0 && !standing && !p.watchAlarm.set {
		return // the usual case, without a look at the clock
	}
	now := time.Now()
	blocked, told := p.watch.Observe(now, p.tracker.Committable(), finished, p.shared.board.rounds.Load())
	at, wanted := p.watch.Deadline()
	p.watchAlarm.setAt(p.shared.sys, p.self, at, wanted)
	if !told {
		if _, standing := p.watch.Blocked(); !standing {
			p.cell.blocked.Store(nil)
		}
		return
	}
	lane, attempt, how := p.heldUp()
	p.cell.blocked.Store(&BlockedCommit{
		Offset: blocked.Offset, Since: blocked.Since, Lane: lane, Handler: how, Attempt: attempt, Finished: finished,
	})
	p.shared.observe(event.CommitBlocked{
		Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, Offset: blocked.Offset, Lane: lane, Handler: how, Attempt: attempt,
		Age: blocked.Age, Rounds: blocked.Rounds, Finished: finished,
	})
	p.shared.logger.Warn("commit stands still", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Int64("offset", blocked.Offset), zap.String("handler", how), zap.Duration("age", blocked.Age), zap.Int("finished", finished))
}

// commitWanted: group -> partition: commit what is finished now. Answered through the waiter.
type commitWanted struct {
	silent
	waiter   *waiter
	deadline time.Time
}

func (p *partition) commitWanted(ctx actor.Context, m *commitWanted) {
	if p.tracker == nil || p.committer == nil || p.orphaned || !p.machine.CanCommit() {
		m.waiter.one(p.cell, nil) // nothing of it can be committed now, or it is being committed for good
		return
	}
	p.collect()
	p.mapAlarm.stop()
	p.offer(ctx)
	p.flushID++
	p.commits[p.flushID] = m.waiter
	ctx.Send(p.committer, &flushWanted{id: p.flushID, tp: p.tp, epoch: p.epoch, deadline: m.deadline, from: p.self})
}

// commitOperation commits what is finished.
type commitOperation struct {
	named    []kafka.TopicPartition
	deadline time.Time
	waiter   *waiter
}

func (o *commitOperation) word() string { return "commit" }

func (o *commitOperation) everything() bool { return len(o.named) == 0 }

func (o *commitOperation) run(ctx actor.Context, g *group, m *request) {
	parts, err := g.targets(o.word(), o.named)
	if unassigned, ok := errors.AsType[*UnassignedError](err); ok && len(unassigned.Partitions) == 0 {
		err = nil // there is nothing to commit
	}
	if err == nil {
		err = g.authorize(m, parts)
	}
	if err == nil {
		o.waiter = g.ask(ctx, parts, func(w *waiter) any { return &commitWanted{waiter: w, deadline: o.deadline} })
	}
	m.reply(err)
}

// Commit commits what is finished, of all partitions, and waits for the answer; see api.Consumer.Commit.
func (t *Tree) Commit(ctx context.Context, partitions []kafka.TopicPartition) error {
	return t.commit(ctx, nil, partitions)
}

func (t *Tree) commit(ctx context.Context, key *capability.Key, named []kafka.TopicPartition) error {
	deadline := time.Now().Add(t.shared.settings.CloseTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(goneEvery)) // the partitions answer by the deadline themselves
	defer cancel()
	op := &commitOperation{named: named, deadline: deadline}
	if err := t.do(ctx, key, op); err != nil {
		return err
	}
	return t.await(ctx, op.waiter)
}

// abandonHandler says that the handler is no longer waited for. Its gate stays closed until it returns.
func (p *partition) abandonHandler() {
	shared, tp, epoch := p.shared, p.tp, p.epoch
	member := shared.member()
	offset, age, running := shared.gates.abandon(tp, epoch, func() {
		shared.observe(event.HandlerReturned{Member: member, TopicPartition: tp, Epoch: epoch})
	})
	if running {
		if p.parallel != nil && offset == kafka.NoOffset { // what was handed out and not acknowledged: no call runs
			if low, ok := p.parallel.lowest(); ok {
				offset = low.Offset
			}
		}
		shared.observe(event.HandlerAbandoned{Member: member, TopicPartition: tp, Epoch: epoch, Offset: offset, Age: age})
		shared.logger.Warn("handler abandoned", zap.String("topic", tp.Topic), zap.Int32("partition", tp.Partition),
			zap.Int64("offset", offset), zap.Duration("age", age))
	}
}
