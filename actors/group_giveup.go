package actors

import (
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/rebalance"
)

// giveUpReserve is what a give-up has after the drain: for the final commit and for LeaveGroup.
const giveUpReserve = 5 * time.Second

// lookInDrain is how often a partition that has something in time beside what is overdue is looked at while it drains.
const lookInDrain = 100 * time.Millisecond

// firstJoin has the member join, unless the group actor before this one gave up.
func (g *group) firstJoin(ctx actor.Context) {
	g.shared.gates.tellGroup(g.self)
	g.watchWork()
	if g.shared.gates.returned() {
		g.feed(ctx, rebalance.Start{})
	}
}

// watchWork sets when what is worked on is looked at next. Without MaxProcessingTime nobody looks.
func (g *group) watchWork() {
	limit := g.shared.settings.MaxProcessingTime
	wait := limit / overdueLooks
	for _, p := range g.parts {
		if p.overdue != nil && !p.hurried {
			wait = min(wait, lookInDrain)
		}
	}
	g.workAlarm.setAt(g.shared.sys, g.self, time.Now().Add(wait), limit > 0 && !g.closing && !g.finishing)
}

// lookForOverdue looks at what the handlers work on, and gives everything up when one takes too long: Kafka's group protocol
// lets another member have a partition only when this one leaves, as the Java client does by max.poll.interval.ms. A
// partition that is being given up already has its drain to bound it.
func (g *group) lookForOverdue(ctx actor.Context) {
	defer g.watchWork()
	if g.closing || g.finishing {
		return
	}
	now, limit := time.Now(), g.shared.settings.MaxProcessingTime
	var overdue []work
	for _, p := range g.parts {
		switch {
		case p.hurried:
		case p.overdue != nil:
			p.watch.look(now, limit, p.cell)
			g.hurry(ctx, p, now)
		case p.phase != partLeaving:
			if oldest, late := p.watch.look(now, limit, p.cell); late {
				overdue = append(overdue, oldest)
			}
		}
	}
	// Handlers of an earlier ownership, or of a partition actor that died, that keep a partition of this one waiting.
	for _, blocking := range g.shared.gates.blocking(now.Add(-limit)) {
		if p := g.parts[blocking.tp]; p != nil && p.phase != partLeaving && p.overdue == nil {
			overdue = append(overdue, blocking)
		}
	}
	if len(overdue) > 0 {
		g.giveUp(ctx, now, overdue)
	}
}

// giveUp says which handlers take too long, stops their partitions, and has the member leave for a while.
func (g *group) giveUp(ctx actor.Context, now time.Time, overdue []work) {
	settings := &g.shared.settings
	for _, w := range overdue {
		cause := &OverdueError{TopicPartition: w.tp, Offset: w.offset, Age: now.Sub(w.since), Limit: settings.MaxProcessingTime}
		g.shared.observe(event.ProcessingOverdue{
			Member: g.shared.member(), TopicPartition: w.tp, Epoch: w.epoch, Offset: w.offset, Since: w.since, Limit: cause.Limit,
		})
		g.shared.logger.Error("handler takes too long: the member gives everything up until it returns", zap.String("topic", w.tp.Topic),
			zap.Int32("partition", w.tp.Partition), zap.Int64("offset", w.offset), zap.Duration("age", cause.Age), zap.Duration("limit", cause.Limit))
		g.shared.gates.giveUp(w)
		p := g.parts[w.tp]
		p.overdue = cause
		if pid := g.Lookup(p.key); pid != nil {
			ctx.Send(pid, &processingOverdue{epoch: p.epoch, cause: cause})
		}
		g.hurry(ctx, p, now)
	}
	drainUntil := now.Add(settings.DrainTimeout)
	g.feed(ctx, rebalance.GiveUp{
		DrainUntil: drainUntil, Deadline: drainUntil.Add(giveUpReserve),
		Reason: fmt.Sprintf("the handler of %s offset %d exceeds MaxProcessingTime", overdue[0].tp, overdue[0].offset),
	})
}

// hurry ends the drain of a partition in which nothing is at work any more but what is overdue.
func (g *group) hurry(ctx actor.Context, p *part, now time.Time) {
	if !p.watch.alone(now, g.shared.settings.MaxProcessingTime) {
		return
	}
	if pid := g.Lookup(p.key); pid != nil {
		ctx.Send(pid, &processingOverdue{epoch: p.epoch, cause: p.overdue, alone: true})
	}
	p.hurried = true
}

// awaitGivenUp has the member stay out until the handler of a partition that it gives up has returned, should it still run.
func (g *group) awaitGivenUp(p *part) {
	if g.shared.settings.MaxProcessingTime > 0 && !g.closing && g.member.State() == rebalance.StateLeaving {
		g.shared.gates.awaitReturn(p.tp, p.epoch)
	}
}

// gaveUp is called when the member is out of the group.
func (g *group) gaveUp(ctx actor.Context, err error) {
	if err != nil {
		g.refused(fmt.Errorf("giving up: %w", err))
	}
	g.comeBack(ctx)
}

// comeBack has the member join, unless it is in the group, or a handler that it gave up has not returned.
func (g *group) comeBack(ctx actor.Context) {
	if g.closing || g.finishing || g.member.State() != rebalance.StateUnjoined || !g.shared.gates.returned() {
		return
	}
	g.feed(ctx, rebalance.Start{Reason: "back after a handler exceeded MaxProcessingTime"})
}
