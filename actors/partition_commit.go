package actors

import (
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// errForeignMetadata is why metadata is ignored that another program wrote.
var errForeignMetadata = errors.New("troupe: the metadata of the committed offset is not Troupe's")

// metadata is what goes along with a committed offset: which incarnation of the topic it is of, and, when it is wanted, what
// is finished beyond it.
func (p *partition) metadata(offset int64) string {
	m := commit.Metadata{TopicID: p.intake.leader.topicID}
	if offset == p.userAt {
		m.User = p.userText
	}
	setBack := offset < p.tracker.Committable() // what is finished beyond it is to come again
	if offset == p.startedAt && !setBack && p.tracker.FinishedBeyond() == 0 && !p.finishedBefore.Empty() && m.User == p.startedUser {
		return p.startedWith // nothing of what it says has come by yet
	}
	if !p.shared.settings.OffsetMap || setBack || p.intake.rewind != nil || p.tracker.FinishedBeyond() == 0 && !p.mapAhead() {
		if m.User != "" {
			text, _ := m.Encode(offset, commit.DefaultMetadataLimit)
			return text
		}
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
	p.userAt, p.userText, p.startedUser = m.committed, parsed.User, parsed.User
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

func (p *partition) requestFinalCommit(ctx actor.Context, deadline time.Time) {
	if p.drain.consulted {
		p.finalBy = deadline
		return
	}
	if p.orphaned {
		p.feed(ctx, rebalance.FinalCommitAnswered{Err: errTopicRecreated})
		return
	}
	p.flushBy = deadline
	if p.tracker != nil {
		p.collect()
		p.mapAlarm.stop()
		p.offer(ctx)
	}
	p.flush(ctx)
}

// callbackReturned sends the final commit that OnRevoking held back.
func (p *partition) callbackReturned(ctx actor.Context) {
	p.drain.consulted = false
	if !p.finalBy.IsZero() && p.machine.CanCommit() {
		p.requestFinalCommit(ctx, p.finalBy)
	}
}

func (p *partition) flush(ctx actor.Context) {
	if p.committer == nil || p.flushBy.IsZero() {
		return
	}
	p.flushID++
	if p.finalID = p.flushID; p.tracker != nil {
		p.finalAt = p.committable()
	}
	ctx.Send(p.committer, &flushWanted{id: p.finalID, tp: p.tp, epoch: p.epoch, deadline: p.flushBy, from: p.self})
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
