package sim

import (
	"slices"
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
	// epoch is the leader epoch of the last batch.
	epoch int32
	// from is where it was asked for, line the log that it came from; for the checker.
	from int64
	line *partitionLog
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
	// finished counts the records acknowledged under the epoch.
	finished uint64
	flushID  uint64
	placedSide
	// finalID is the flush before letting go; demands are those that users wait for.
	finalID uint64
	demands []demand
	// flushed is what the final commit ended with; answeredFlush is true once it did.
	answeredFlush bool

	surplus   *buffer.Surplus[chunk]
	fetchFrom int64
	wanting   *call
	reset     bool
	// latest: what is looked up is the end of the log; lookup is the look-up under way.
	latest   bool
	lookup   *call
	chunks   int
	intake   alarm
	failures int

	delivery *delivery
	up       bool
	again    []kafka.Record
	attempt  int
	backoff  alarm
	runner   *delivery // waits for the gate
	stopped  bool
	// lost is the mark that the group sets the moment that ownership is lost: this actor may hear of it late.
	lost bool

	// engine is nil under the partition order and before the position is known; busy is what the machine was told, gated
	// that the gate is ours, retries are the lanes that failed.
	engine      *engine
	busy, gated bool
	retries     []*laneRetry
	// paused is the user's pause, waiters the calls that wait for it.
	paused  bool
	waiters []*pauseWaiter
	mapSide
	actorSide
	seekSide
	positionSide

	// drainUntil is the earliest end of a drain asked for, finalTarget what the final commit was to reach; for the checker.
	drainUntil, finalTarget int64
	truth                   *truth
	// begun are the records of the engine's handlers that have no verdict, gone says that the group knows of the loss, full
	// that the window is closed; for the checker.
	begun      []begunRecord
	gone, full bool
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
	s.finalTarget, s.userAt = kafka.NoOffset, kafka.NoOffset
	s.startedAt, s.lastEpoch = kafka.NoOffset, kafka.NoLeaderEpoch
	s.paused = p.pauses.paused[s.part]
	s.box = p.newBox(s)
	s.alarm.box, s.intake.box, s.backoff.box = s.box, s.box, s.box
	s.respawn.box = s.box
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
		case s.w.rang(&s.respawn, a):
			s.actorRespawned()
		case !s.w.rang(&s.backoff, a):
		case s.engine != nil:
			s.retryDue()
		default:
			s.up = true
			s.pump()
		}
	case messageStartDecided:
		s.startDecided(m)
	case messageLeaderKnown:
		s.leaderKnown(m.payload.(kafka.TopicID))
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
		s.process.handlers.passSeat()
	case messageDrainWanted:
		s.w.check.drains(s)
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
		s.flushed(m)
	case messageHanded:
		s.handed(m.payload.(*delivery))
	case messageActorFailed:
		s.actorFailed(m.payload.(*delivery))
	case messageEngine:
		s.engineSignaled(m.payload.(*engine))
	case messagePauseChanged:
		s.pauseChanged(m.payload.(*pauseWaiter))
	case messageSeek:
		s.seekWanted(seekKind(m.seq), int(m.offset))
	case messageSkip:
		s.skipWanted(int(m.seq))
	case messageEngineLeft:
		s.engineLeft(m.payload.(*engine))
	case messageCommitWanted:
		s.commitWanted(m.at)
	case messagePlaceWanted:
		s.placeWanted(int64(m.seq), m.at, m.payload.(*placedAt))
	default:
		s.w.unknownMessage(s, m)
	}
}

// flushed takes the answer to a flush: the final one, or one that a user waits for.
func (s *partitionShell) flushed(m *message) {
	if i := slices.IndexFunc(s.demands, func(d demand) bool { return d.id == m.seq }); i >= 0 {
		s.w.check.demanded(s, s.demands[i], m.err)
		latest := s.demands[i].run == s.positionEpoch
		if call := s.demands[i].call; call != nil {
			s.w.check.placeAnswered(call, m.err)
		}
		s.demands = slices.Delete(s.demands, i, i+1)
		if latest {
			s.placeAnswered(m.err)
		}
		return
	}
	if m.seq == s.finalID && !s.answeredFlush {
		s.answeredFlush = true
		s.feed(rebalance.FinalCommitAnswered{Err: m.err})
	}
}

// feed steps the partition's machine and runs what it says.
func (s *partitionShell) feed(in rebalance.PartitionInput) {
	effects, err := s.machine.Step(s.process.now(), in)
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
			if s.engine != nil {
				s.engine.cancel()
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
	decided := m.payload.(*startDecision)
	s.line, s.unproven = decided.line, decided.anew && s.w.mutant != MutantUnprovenCommits
	switch d := decided.decision.(type) {
	case rebalance.StartAt:
		ours := s.adoptMap(decided)
		// Epoch 0 is also what clients write that do not know the epoch.
		if (d.LeaderEpoch > 0 || d.LeaderEpoch == 0 && ours) && s.w.mutant != MutantCommitEpochIgnored {
			s.lastEpoch = d.LeaderEpoch
		}
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
	s.tracker.StartEpoch(s.lastEpoch)
	s.truth = s.w.check.startFlow(s, offset)
	s.restart(offset)
	s.startEngine()
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
	if s.engine != nil {
		s.engine.stop()
	}
	if d := s.delivery; d != nil {
		d.halted = true
	}
}

// lose stops deliveries at once, before this actor has heard of the loss.
func (s *partitionShell) lose() {
	s.lost = true
	if d := s.delivery; d != nil {
		d.halted = true
	}
	if s.engine != nil {
		s.engine.stop()
	}
}

func (s *partitionShell) requestFinalCommit(deadline int64) {
	if s.tracker != nil && !s.orphaned {
		s.collect()
		if s.offer(); !s.unproven && !s.sought {
			s.finalTarget = s.committable()
		}
	}
	lazy := s.w.script.Strategy == StrategyDemand || s.w.script.Strategy == StrategyRecords
	if s.orphaned {
		s.feed(rebalance.FinalCommitAnswered{Err: errTopicRecreated})
		return
	}
	if s.w.mutant == MutantNoFinalCommit || s.w.mutant == MutantFlushAsksStrategy && lazy {
		s.feed(rebalance.FinalCommitAnswered{})
		return
	}
	s.flushID++
	s.finalID = s.flushID
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
	s.endEngine()
	s.w.post(s.process.group.box, message{kind: messagePartitionReleased, part: int32(s.part), epoch: uint64(s.epoch)})
}

// stop ends the actor. A handler that still runs keeps the gate closed.
func (s *partitionShell) stop() {
	s.stopped = true
	s.runner = nil
	s.endEngine()
	if s.gated { // of a user's actor, which is gone with this one
		s.process.leaveGate(s.part, s.epoch)
	}
	if d := s.delivery; d != nil {
		d.halted, d.ended, d.canceled = true, true, true
		s.process.handlers.wakeHeld(d)
	}
	s.answerPauses()
	s.w.kill(s.box)
	s.process.handlers.forget(s.box)
}

// collect takes over what the handler acknowledged.
func (s *partitionShell) collect() {
	if s.tracker != nil && s.engine != nil {
		s.engine.collect()
	}
	d := s.delivery
	if d == nil || s.tracker == nil || d.left {
		return
	}
	if s.w.script.AnyOrder {
		for i, acked := range d.acked {
			if acked {
				s.acknowledge(d.records[i].Offset)
			}
		}
	} else if d.low > 0 {
		s.finished += uint64(s.tracker.AckUpTo(d.records[d.low-1].Offset))
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
	if s.sought || s.orphaned || s.unproven || !s.machine.CanCommit() && s.w.mutant != MutantOfferAfterRelease {
		return
	}
	offset := s.finishedPoint()
	if s.held != nil && offset <= s.held.above {
		return
	}
	s.held = nil
	if s.w.mutant == MutantCommitPosition {
		offset = s.tracker.Position()
	}
	if s.w.mutant == MutantCommitHighest && s.tracker.FinishedBeyond() > 0 {
		m := s.tracker.Map()
		_, last := m.Run(m.Runs() - 1)
		offset = last + 1
	}
	beyond := 0
	if s.w.script.OffsetMap {
		beyond = s.tracker.FinishedBeyond()
	}
	if offset == s.offered && beyond == s.offeredBeyond {
		return
	}
	s.w.check.offers(s, offset)
	s.offered, s.offeredBeyond = offset, beyond
	s.w.post(s.process.committer.box, message{kind: messageOffered, payload: &commit.Offset{
		TopicPartition: tpOf(s.part), Epoch: s.epoch, PositionEpoch: s.positionEpoch, Offset: offset, LeaderEpoch: s.tracker.CommittableEpoch(),
		Finished: s.finished, Metadata: s.metadata(offset),
	}})
}

// pump does what can be done now: deliver, and ask for more.
func (s *partitionShell) pump() {
	s.deliverNext()
	s.want()
}
