package sim

import (
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/buffer"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// topic is the only topic.
const topic = "t"

// partitionNames are the partitions' names, made once.
var partitionNames = func() (out [16]kafka.TopicPartition) {
	for i := range out {
		out[i] = kafka.TopicPartition{Topic: topic, Partition: int32(i)}
	}
	return out
}()

func tpOf(part int) kafka.TopicPartition { return partitionNames[part] }

// maxChunks is how many fetch answers a partition keeps.
const maxChunks = 2

// chunk is one fetch answer.
type chunk struct {
	records []kafka.Record
	next    int64
}

// partitionShell is actors/partition*.go: one partition under one assignment epoch.
type partitionShell struct {
	w       *World
	process *process
	box     *mailbox
	part    int
	epoch   kafka.AssignmentEpoch

	machine *rebalance.Partition
	alarm   alarm
	tracker *commit.Tracker
	window  *commit.Window
	offered int64
	flushID uint64
	// flushed is what the final commit ended with; answeredFlush is true once it did.
	answeredFlush bool

	surplus   *buffer.Surplus[chunk]
	fetchFrom int64
	wanting   *call
	reset     bool
	chunks    int
	intake    alarm
	failures  int

	delivery *delivery
	up       bool
	again    []kafka.Record
	attempt  int
	backoff  alarm
	runner   *delivery // waits for the gate
	stopped  bool

	// drainUntil is the earliest end of a drain asked for, finalTarget what the final commit was to reach; for the checker.
	drainUntil, finalTarget int64
	truth                   *truth
}

func newPartitionShell(p *process, grant rebalance.Grant) *partitionShell {
	window, err := commit.NewWindow(p.w.script.MaxInTransit, p.w.script.ResumeBelow)
	if err != nil {
		panic(err)
	}
	s := &partitionShell{
		w: p.w, process: p, part: int(grant.TopicPartition.Partition), epoch: grant.Epoch, machine: rebalance.NewPartition(grant),
		window: window, offered: kafka.NoOffset, fetchFrom: kafka.NoOffset, up: true,
	}
	s.box = p.newBox(s)
	s.alarm.box, s.intake.box, s.backoff.box = s.box, s.box, s.box
	return s
}

func (s *partitionShell) receive(m *message) {
	switch m.kind { //nolint:exhaustive // the other messages are not for this actor
	case messageRing:
		switch a := m.payload.(*alarm); {
		case s.w.rang(&s.alarm, a):
			s.feed(rebalance.PartitionTick{})
		case s.w.rang(&s.intake, a):
			s.intakeRetry()
		case s.w.rang(&s.backoff, a):
			s.up = true
			s.pump()
		}
	case messageStartDecided:
		s.startDecided(m)
	case messageCallDone:
		s.called(m.payload.(*call))
	case messageAck:
		s.acknowledged(m.payload.(*delivery))
	case messageDelivered:
		s.delivered(m.payload.(*delivery))
	case messageHandlerFailed:
		s.handlerFailed(m.payload.(*delivery))
	case messagePlaceFree:
		if d := s.runner; d != nil {
			s.runner = nil
			s.run(d)
		}
		s.pump()
	case messageDrainWanted:
		if s.drainUntil == 0 || m.at < s.drainUntil {
			s.drainUntil = m.at
		}
		s.feed(rebalance.DrainRequested{
			DrainUntil: epochStart.Add(time.Duration(m.at)), Deadline: epochStart.Add(time.Duration(m.offset)),
		})
		if s.w.mutant == MutantNoDrain && s.machine.State() == rebalance.PartitionRevoking {
			s.feed(rebalance.DeliveryEnded{})
		}
	case messageOwnershipLost:
		s.feed(rebalance.OwnershipLost{Cause: m.err})
	case messageFlushed:
		if m.seq == s.flushID && !s.answeredFlush {
			s.answeredFlush = true
			s.feed(rebalance.FinalCommitAnswered{Err: m.err})
		}
	default:
		s.w.unknownMessage(s, m)
	}
}

// feed steps the partition's machine and runs what it says.
func (s *partitionShell) feed(in rebalance.PartitionInput) {
	effects, err := s.machine.Step(s.w.now, in)
	s.w.check.machine(err)
	s.w.check.machine(s.machine.Valid())
	for _, effect := range effects {
		switch e := effect.(type) {
		case rebalance.StartFlow:
			s.startFlow(e.Offset)
		case rebalance.StopFlow:
			s.stopFlow()
		case rebalance.CancelHandler:
			if d := s.delivery; d != nil && !d.canceled {
				d.canceled = true
				s.process.handlers.cancel(d)
			}
		case rebalance.RequestFinalCommit:
			s.requestFinalCommit(int64(e.Deadline.Sub(epochStart)))
		case rebalance.AbandonHandler:
			s.w.stats.Abandoned++
		case rebalance.Release:
			s.release(e)
		case rebalance.PartitionMoved:
		}
	}
	at, ok := s.machine.Deadline()
	s.w.setAlarm(&s.alarm, at, ok)
}

func (s *partitionShell) startDecided(m *message) {
	if s.machine.State() != rebalance.PartitionAssigning {
		return
	}
	switch d := m.payload.(type) {
	case rebalance.StartAt:
		offset := d.Offset
		if kept := s.process.positions[s.part]; s.w.mutant == MutantKeepPosition && kept != kafka.NoOffset {
			offset = kept
		}
		s.feed(rebalance.PositionKnown{Offset: offset})
	case rebalance.StartFromReset:
		s.reset = true
		s.lookUp()
	case rebalance.StartFails:
		s.w.violate("STATE", "start failed: "+d.Err.Error())
	case rebalance.AskLeader:
	}
}

func (s *partitionShell) startFlow(offset int64) {
	s.tracker = commit.NewTracker(offset)
	s.truth = s.w.check.startFlow(s, offset)
	s.restart(offset)
	s.offer()
	s.pump()
}

// restart empties the intake and goes on at offset.
func (s *partitionShell) restart(offset int64) {
	s.fetchFrom, s.chunks = offset, 0
	abandon(s.wanting)
	s.wanting = nil
	s.surplus = buffer.NewSurplus[chunk](offset, nil)
}

func (s *partitionShell) stopFlow() {
	s.intake.set, s.backoff.set = false, false
	s.surplus.Drop()
	abandon(s.wanting)
	s.wanting = nil
	if d := s.delivery; d != nil {
		d.halted = true
	}
}

func (s *partitionShell) requestFinalCommit(deadline int64) {
	if s.tracker != nil {
		s.collect()
		s.offer()
		s.finalTarget = s.tracker.Committable()
	}
	if s.w.mutant == MutantNoFinalCommit {
		s.feed(rebalance.FinalCommitAnswered{})
		return
	}
	s.flushID++
	s.w.post(s.process.committer.box, message{
		kind: messageFlushWanted, seq: s.flushID, part: int32(s.part), epoch: uint64(s.epoch), at: deadline, payload: s,
	})
}

func (s *partitionShell) release(e rebalance.Release) {
	if d := s.delivery; d != nil {
		d.ended = true
		d.canceled = true
		s.process.handlers.cancel(d)
	}
	if s.tracker != nil {
		s.process.positions[s.part] = s.tracker.Position()
	}
	s.w.check.released(s, e)
	s.w.post(s.process.group.box, message{kind: messagePartitionReleased, part: int32(s.part), epoch: uint64(s.epoch)})
}

// stop ends the actor. A handler that still runs keeps the gate closed.
func (s *partitionShell) stop() {
	s.stopped = true
	s.runner = nil
	if d := s.delivery; d != nil {
		d.halted, d.ended, d.canceled = true, true, true
		s.process.handlers.wakeHeld(d)
	}
	s.w.kill(s.box)
}

// collect takes over what the handler acknowledged.
func (s *partitionShell) collect() {
	d := s.delivery
	if d == nil || s.tracker == nil {
		return
	}
	if s.w.script.AnyOrder {
		for i, acked := range d.acked {
			if acked {
				s.tracker.Ack(d.records[i].Offset)
			}
		}
	} else if d.low > 0 {
		s.tracker.AckUpTo(d.records[d.low-1].Offset)
	}
	if s.w.mutant == MutantAckTwice {
		if next, ok := s.tracker.NextUnacked(0); ok && d.low > 0 {
			s.tracker.Ack(next)
		}
	}
	s.w.check.machine(s.tracker.Valid())
}

// offer tells the committer that the contiguous point moved.
func (s *partitionShell) offer() {
	if !s.machine.CanCommit() && s.w.mutant != MutantOfferAfterRelease {
		return
	}
	offset := s.tracker.Committable()
	if s.w.mutant == MutantCommitPosition {
		offset = s.tracker.Position()
	}
	if offset == s.offered {
		return
	}
	s.offered = offset
	s.w.post(s.process.committer.box, message{
		kind: messageOffered, part: int32(s.part), epoch: uint64(s.epoch), offset: offset, gen: s.tracker.CommittableEpoch(),
	})
}

// pump does what can be done now: deliver, and ask for more.
func (s *partitionShell) pump() {
	s.deliverNext()
	s.want()
}

func (s *partitionShell) want() {
	if !s.machine.CanDeliver() || s.wanting != nil || s.intake.set || s.reset || s.chunks >= maxChunks {
		return
	}
	s.wanting = &call{api: apiFetch, process: s.process, box: s.box, part: s.part, epoch: s.epoch, offset: s.fetchFrom}
	s.w.send(s.wanting, s.w.script.Request)
}

// called takes the outcome of a fetch or of a look-up.
func (s *partitionShell) called(c *call) {
	if c.api == apiListOffsets {
		if !s.reset {
			return
		}
		if c.err != nil {
			s.retryIntake()
			return
		}
		s.reset, s.failures = false, 0
		s.reposition(c.offset)
		return
	}
	if c != s.wanting {
		return
	}
	s.wanting = nil
	switch {
	case !s.machine.CanDeliver():
	case c.err == nil:
		s.failures = 0
		s.surplus.Push(chunk{records: c.records, next: c.next}, len(c.records))
		s.chunks++
		s.fetchFrom = c.next
		s.pump()
	case c.err == kafka.OffsetOutOfRange:
		s.reset = true
		s.lookUp()
	default:
		s.retryIntake()
	}
}

func (s *partitionShell) lookUp() {
	s.w.send(&call{api: apiListOffsets, process: s.process, box: s.box, part: s.part}, s.w.script.Request)
}

func (s *partitionShell) retryIntake() {
	s.failures++
	s.w.setAlarmIn(&s.intake, min(backoffInitial<<min(s.failures-1, 16), backoffMax))
}

func (s *partitionShell) intakeRetry() {
	if s.reset {
		s.lookUp()
		return
	}
	s.pump()
}

// reposition goes on at another offset than expected.
func (s *partitionShell) reposition(offset int64) {
	switch s.machine.State() {
	case rebalance.PartitionAssigning:
		s.feed(rebalance.PositionKnown{Offset: offset})
		return
	case rebalance.PartitionAssigned:
	case rebalance.PartitionRevoking, rebalance.PartitionRevoked:
		return
	}
	s.surplus.Drop()
	s.chunks = 0
	if offset < s.tracker.Position() {
		offset = s.tracker.Position() // the log did not shrink; records in transit end by their acknowledgment
	}
	s.tracker.DropBelow(offset)
	s.w.check.skipped(s, offset)
	s.restart(offset)
	s.offer()
	s.pump()
}

// take returns up to limit records to deliver.
func (s *partitionShell) take(limit int) []kafka.Record {
	for limit > 0 {
		records, _, _ := s.surplus.Take(limit)
		if len(records) > 0 {
			s.w.check.machine(s.tracker.Deliver(records))
			s.tracker.Advance(s.surplus.Position())
			s.offer()
			return records
		}
		c, ok := s.surplus.Front()
		if !ok {
			return nil
		}
		s.w.check.machine(s.surplus.Decoded(c.records, c.next, len(c.records), len(c.records), nil))
		s.surplus.Finish()
		s.chunks--
		if len(c.records) == 0 {
			s.tracker.Advance(s.surplus.Position())
			s.offer()
		}
	}
	return nil
}
