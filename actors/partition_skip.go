package actors

import (
	"slices"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// skipWanted finishes a record without its handler, loudly.
func (p *partition) skipWanted(ctx actor.Context, m *skipWanted) {
	attempt, err := p.skip(ctx, m.offset)
	if err != nil {
		m.waiter.one(p.cell, err)
		return
	}
	p.cell.skipped.Add(1)
	p.shared.observe(event.RecordSkipped{
		Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, Offset: m.offset, Reason: m.reason, Attempt: attempt,
	})
	p.shared.logger.Warn("record skipped", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Int64("offset", m.offset), zap.Int("attempt", attempt), zap.String("reason", m.reason))
	p.publish() // before who waits looks there
	m.waiter.one(p.cell, nil)
}

// skip finishes a record and returns how often it was delivered.
func (p *partition) skip(ctx actor.Context, offset int64) (attempt int, err error) {
	switch state := p.machine.State(); {
	case state >= rebalance.PartitionRevoking:
		return 0, leavingError("skip", p.tp, state)
	case p.tracker == nil || p.seek != nil:
		return 0, skipRefused(p.tp, offset, commit.StandsAhead, kafka.NoOffset)
	}
	if p.collect() > 0 {
		p.offer(ctx)
	}
	standing := p.tracker.Look(offset)
	found := standing == commit.StandsOpen
	if found {
		if p.parallel != nil {
			attempt, found = p.skipInEngine(offset)
		} else {
			attempt, found = p.skipInOrder(ctx, offset)
		}
	}
	if !found {
		return 0, skipRefused(p.tp, offset, standing, p.tracker.Position())
	}
	if p.tracker.Ack(offset) == commit.Acked {
		p.cell.acked.Add(1)
	}
	p.collect()
	p.settleMemory()
	if p.parallel != nil {
		p.retryAlarm()
		if p.parallel.working() { // what was waited for with the record begins: a drain waits for that
			p.work(ctx)
		}
	} else if d := p.handler.delivery; d != nil && (d.byActor || d.returned) && d.settledAll() {
		p.settled(ctx, d)
	}
	p.offer(ctx)
	p.pump(ctx)
	return attempt, nil
}

// skipInOrder takes a record out of what the handler has, or of what waits for its next try.
func (p *partition) skipInOrder(ctx actor.Context, offset int64) (attempt int, ok bool) {
	h := &p.handler
	if d := h.delivery; d != nil && !d.left.Load() {
		if i, has := d.index(offset); has {
			p.skipAtWork(ctx, d, i)
			return d.attempt, true
		}
	}
	at := slices.IndexFunc(h.again, func(r kafka.Record) bool { return r.Offset == offset })
	if at < 0 {
		return 0, false
	}
	attempt = h.attempt - 1
	first := at == 0 || p.registration.Record == nil // a function per record failed at the first one, anything else at any
	h.again = append(slices.Clone(h.again[:at]), h.again[at+1:]...)
	if first && (h.alarm.set || !h.up || h.paused) {
		h.alarm.stop()
		p.afresh(ctx)
		if p.registration.Record != nil {
			h.attempt = 1
		}
	}
	if len(h.again) == 0 {
		h.fill.stop()
		releaseLeases(h.leases, true)
		h.leases, h.filling = h.leases[:0], false
		if h.delivery == nil {
			p.intake.delivering = 0
		}
	}
	return attempt, true
}

// skipAtWork gives a record of the outstanding delivery its verdict. The delivery's context ends if the handler is at work on
// the record; then, and if the handler has not come to it, nothing further of the delivery begins: the rest comes again.
func (p *partition) skipAtWork(ctx actor.Context, d *Delivery, i int) {
	d.cut = true
	d.skip(i)
	d.halt()
	begun := d.begun.Load()
	if current := int(d.current.Load()); begun && (!d.perRecord && !d.async || d.perRecord && current == i || d.async && current >= i) {
		d.cancel(ErrSkipped)
	}
	if !begun {
		p.haltDelivery(ctx)
	}
}

// skipInEngine takes a record out of the engine.
func (p *partition) skipInEngine(offset int64) (attempt int, ok bool) {
	for _, d := range p.open {
		if i, has := d.index(offset); has && d.openAt(i) {
			p.parallel.skippedInDelivery(d.claims[i].Seq)
			d.skip(i)
			d.cancel(ErrSkipped)
			return d.claims[i].Attempt, true
		}
	}
	return p.parallel.skip(offset)
}
