package actors

import (
	"errors"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// errPositionReset ends what was delivered before the position was set back.
var errPositionReset = errors.New("troupe: the position was set back")

// truncated goes back to where the logs agree (KIP-320).
func (p *partition) truncated(ctx actor.Context, end EpochEnd) {
	p.intake.lastEpoch = end.Epoch
	p.misplaced(errPositionReset)
	p.reposition(ctx, min(end.EndOffset, p.intake.fetchFrom), "truncated", nil)
}

// reposition goes on at another offset than expected.
func (p *partition) reposition(ctx actor.Context, offset int64, reason string, err error) {
	in := &p.intake
	if p.tracker != nil && offset < in.fetchFrom {
		offset = min(offset, p.tracker.Position()) // what was fetched and not delivered is asked for again
	}
	p.shared.observe(event.PositionReset{
		Member: p.shared.member(), TopicPartition: p.tp, From: in.fetchFrom, To: offset, Reason: reason, Err: err,
	})
	level := zap.WarnLevel
	switch reason {
	case rebalance.ReasonNoCommit, rebalance.ReasonNewPartition, rebalance.ReasonAssigned:
		level = zap.InfoLevel // how every consumer starts
	case rebalance.ReasonBeyondEnd:
		level = zap.ErrorLevel // what was there is gone, or the offset is another log's
	}
	p.shared.logger.Log(level, "position reset", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Int64("from", in.fetchFrom), zap.Int64("to", offset), zap.String("reason", reason))
	if p.machine.State() == rebalance.PartitionAssigning {
		p.feed(ctx, rebalance.PositionKnown{Offset: offset})
		return
	}
	if offset >= in.fetchFrom && !in.surplus.Empty() {
		in.fetchFrom = offset // what was fetched before the log lost it is delivered all the same
		p.pump(ctx)
		return
	}
	p.dropSurplus()
	if offset >= p.tracker.Position() {
		p.tracker.AdvanceIn(offset, in.lastEpoch)
		in.restart(offset)
		p.offer(ctx)
		p.pump(ctx)
		return
	}
	in.rewind = &offset
	p.forgetPlaced(offset)
	p.rewound()
	p.offer(ctx)
	if p.parallel != nil {
		p.parallel.stop()
	}
	p.haltDelivery(ctx) // what was not begun may be gone from the log
	p.rewindNow(ctx)
	p.pump(ctx)
}

// rewindNow starts a new run of positions below the present one, once nothing is outstanding: the log is shorter than what
// was read of it. What lies below and failed, or never began, comes again with it.
func (p *partition) rewindNow(ctx actor.Context) {
	in := &p.intake
	if in.rewind == nil || !p.machine.CanDeliver() || p.handler.delivery != nil || p.busy {
		return
	}
	p.collect()
	offset := min(*in.rewind, p.tracker.Committable())
	in.rewind = nil
	releaseLeases(p.handler.leases, true)
	p.handler.again, p.handler.leases = nil, p.handler.leases[:0]
	p.finishedBefore = commit.OffsetMap{}
	p.endEngine(errPositionReset)
	p.tracker = commit.NewTracker(offset)
	p.tracker.StartEpoch(in.lastEpoch)
	p.startEngine()
	in.restart(offset)
	p.rewound()
	p.forgetPlaced(offset)
	p.cell.committed.Store(kafka.NoOffset)
	p.offer(ctx)
}

// forgetPlaced forgets what the user committed above an offset, and lets what lies there be committed as soon as more is
// finished.
func (p *partition) forgetPlaced(offset int64) {
	if p.placed != nil && p.placed.offset.Offset > offset {
		p.placed = nil // what is offered in the new position epoch takes its place
	}
	if p.userAt > offset {
		p.userAt = kafka.NoOffset
	}
	if p.held == nil {
		return
	}
	if p.held.above = offset; p.held.offset >= offset {
		p.held = nil
	}
}

// rewound begins a new position epoch: lower offsets may be committed again.
func (p *partition) rewound() {
	p.positionEpoch++
	p.cell.positionEpoch.Store(p.positionEpoch)
	p.offered = kafka.NoOffset
}
