package actors

import (
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// rangeSide is where the partition's reading ends, without a group; see rebalance.StandaloneConfig.Ends.
type rangeSide struct {
	// limit is where, once that is known.
	limit buffer.Limit
	// search is the look-up of it that is under way, searchedAt the position that a second look is about, kafka.NoOffset in the
	// first one; waiting is the start that waits for it.
	search     *rebalance.EndSearch
	searchedAt int64
	waiting    *startDecided
	// waitingSeek is a seek that came meanwhile and decides the start.
	waitingSeek *seekWanted
	// read is true when the group was told that all is read and finished.
	read bool
}

// awaitsEnd reports whether the partition must know where its reading ends before it may begin, and sees to it.
func (p *partition) awaitsEnd(ctx actor.Context, m *startDecided) bool {
	end, ends := p.shared.settings.Standalone.End(p.tp)
	if _, failed := m.decision.(rebalance.StartFails); !ends || failed {
		return false
	}
	if known, ok := p.shared.standalone.end(p.tp); ok { // an actor before this one has found it
		p.limit = buffer.LimitAt(known)
		p.cell.limit.Store(known)
		return false
	}
	p.waiting, p.search, p.searchedAt = m, end.Search(), kafka.NoOffset
	p.lookUp(ctx)
	return true
}

// lookingUp reports whether an offset is looked up without which it cannot go on.
func (p *partition) lookingUp() bool { return p.intake.reset != nil || p.search != nil }

// endFound takes an answer to the question for the end.
func (p *partition) endFound(ctx actor.Context, answer OffsetAnswer) {
	asked := p.search.Timestamp()
	switch {
	case asked == rebalance.TimestampEarliestLocal && errors.Is(answer.Err, kafka.UnsupportedVersion):
		answer.Err = nil // a broker without tiers: all that it has is local
	case asked == rebalance.TimestampLatest && answer.Err == nil && answer.Offset < 0:
		answer.Err = rebalance.ErrNoOffset
	}
	if answer.Err != nil {
		p.lookUpFailed(ctx, answer.Err)
		return
	}
	p.intake.failures = 0
	if p.searchedAt != kafka.NoOffset && p.searchedAt != p.intake.fetchFrom { // something came after all
		p.search = nil
		p.pump(ctx)
		return
	}
	end, done := p.search.Answered(answer.Offset)
	if !done {
		p.lookUp(ctx)
		return
	}
	p.search = nil
	if p.intake.displaced <= 1 {
		p.intake.unread, p.intake.unreadErr = time.Time{}, nil
	}
	p.endAt(end)
	if m := p.waitingSeek; m != nil {
		p.waitingSeek = nil
		p.seekWanted(ctx, m)
		return
	}
	if m := p.waiting; m != nil {
		p.waiting = nil
		p.begin(ctx, m)
		return
	}
	p.pump(ctx)
}

// endAt fixes the end, for the actors after this one as well.
func (p *partition) endAt(end int64) {
	if end == p.limit.End() {
		return
	}
	wanted, _ := p.shared.settings.Standalone.End(p.tp)
	before := p.limit.End()
	p.limit = buffer.LimitAt(end)
	p.cell.limit.Store(end)
	p.shared.standalone.endAt(p.tp, end)
	p.shared.observe(event.RangeEndSet{Member: p.shared.member(), TopicPartition: p.tp, Wanted: wanted.String(), Before: before, End: end})
	p.shared.logger.Info("range end set", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Stringer("wanted", wanted), zap.Int64("before", before), zap.Int64("end", end))
}

// foundNothing is told of a fetch without any data, for no partition: it was not another one that took the room. Below the end
// there is either nothing left, or the log has become shorter; nobody must wait there.
func (p *partition) foundNothing(ctx actor.Context, logEnd int64) {
	in := &p.intake
	if p.limit.End() == kafka.NoOffset || p.limit.Reached(in.fetchFrom) || p.lookingUp() || in.rewind != nil || in.stuck || in.alarm.set || logEnd < 0 {
		return
	}
	p.search, p.searchedAt = rebalance.SearchAgain(p.limit.End(), in.fetchFrom, logEnd), in.fetchFrom
	p.lookUp(ctx)
}

// lookForEnd tells the group when the range is read and finished. It comes after every message.
func (p *partition) lookForEnd(ctx actor.Context) {
	if p.read || p.tracker == nil || !p.limit.Reached(p.tracker.Committable()) ||
		p.intake.rewind != nil || p.seek != nil || p.handler.held || !p.machine.CanDeliver() {
		return
	}
	p.read = true
	p.shared.observe(event.RangeRead{Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, End: p.limit.End()})
	ctx.Send(p.group, &rangeRead{tp: p.tp, epoch: p.epoch})
}

// holdsSeek reports whether a seek waits until it is known where the reading ends. Else what was read is to be read again.
func (p *partition) holdsSeek(ctx actor.Context, m *seekWanted) bool {
	end, ends := p.shared.settings.Standalone.End(p.tp)
	if !ends || p.machine.State() >= rebalance.PartitionRevoking {
		return false
	}
	known, ok := p.shared.standalone.end(p.tp)
	if !ok {
		if p.waitingSeek = m; p.search == nil {
			p.search, p.searchedAt = end.Search(), kafka.NoOffset
			p.lookUp(ctx)
		}
		return true
	}
	p.limit = buffer.LimitAt(known)
	p.cell.limit.Store(known)
	p.search, p.waiting = nil, nil // what was empty there says nothing of the new position
	if p.read {
		p.read = false
		ctx.Send(p.group, &rangeRead{tp: p.tp, epoch: p.epoch, undone: true})
	}
	return false
}

// cannotEnd ends a consumer whose range only a person can have read on: nothing would ever end it.
func (p *partition) cannotEnd(err error) {
	if _, ends := p.shared.settings.Standalone.End(p.tp); !ends {
		return
	}
	if _, said := errors.AsType[*rebalance.RangeError](err); !said {
		err = &rebalance.RangeError{TopicPartition: p.tp, Err: err}
	}
	p.shared.sys.root.Send(p.group, &consumerFailed{err: err})
}
