package actors

import (
	"time"

	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// For what a partition that cannot be read on waits; see event.PartitionStuck.
const (
	waitsForStart  = "start"
	waitsForLeader = "leader"
	waitsForOffset = "offset"
	waitsForFetch  = "fetch"
)

// unanswered notes that a fetch failed which was sent, or answered, at that time.
func (in *intake) unanswered(since time.Time, err error) {
	if in.unreadErr = err; in.unread.IsZero() {
		in.unread = since
	}
}

// waitsFor is whom the partition waits for in order to be read, and since when if that is known; the empty string when it can
// be read, or another event tells why it is not.
func (p *partition) waitsFor() (whom string, since time.Time) {
	in := &p.intake
	state := p.machine.State()
	switch {
	case state != rebalance.PartitionAssigning && state != rebalance.PartitionAssigned, p.orphaned, in.stuck, in.failed, p.paused, p.limit.Reached(in.fetchFrom):
		return "", time.Time{}
	case state == rebalance.PartitionAssigning && !p.lookingUp():
		return waitsForStart, time.Time{}
	case in.fetcher == nil:
		return waitsForLeader, time.Time{}
	case p.lookingUp():
		return waitsForOffset, time.Time{}
	case !in.unread.IsZero() && (in.wanting || in.alarm.set): // else it has enough, and asks nobody
		return waitsForFetch, in.unread
	}
	return "", time.Time{}
}

// lookForStall reports a partition that cannot be read on. It comes after every message, so nearly always without a look at
// the clock.
func (p *partition) lookForStall() {
	whom, since := p.waitsFor()
	if whom == "" && !p.stall.Waits() {
		return
	}
	in := &p.intake
	age, report := p.stall.Observe(time.Now(), whom != "", since, in.fetchFrom)
	at, wanted := p.stall.Deadline()
	p.stallAlarm.setAt(p.shared.sys, p.self, at, wanted)
	since, standing := p.stall.Standing()
	if !standing {
		p.cell.stuck.Store(nil)
		return
	}
	if before := p.cell.stuck.Load(); before == nil || before.Waiting != whom || report {
		p.cell.stuck.Store(&StuckPartition{Offset: in.fetchFrom, Since: since, Waiting: whom, Err: in.unreadErr})
	}
	if !report {
		return
	}
	leader := kafka.Broker{ID: -1}
	if in.fetcher != nil {
		leader = in.leader.broker
	}
	p.shared.observe(event.PartitionStuck{
		Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, Offset: in.fetchFrom, Waiting: whom, Leader: leader, Age: age,
		Err: in.unreadErr,
	})
	p.shared.logger.Warn("partition cannot be read on", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
		zap.Int64("offset", in.fetchFrom), zap.String("waiting", whom), zap.Duration("age", age), zap.Error(in.unreadErr))
}
