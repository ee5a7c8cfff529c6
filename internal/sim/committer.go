package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
)

// committerShell is actors/committer*.go: commit rounds, one at a time, and the questions for committed offsets.
type committerShell struct {
	w       *World
	process *process
	box     *mailbox

	rounds *commit.Rounds
	alarm  alarm
	broker int
	stable bool
	member string
	gen    kafka.Generation
	// fenced is the last epoch of each partition that the committer was told to be over; for the checker.
	fenced []kafka.AssignmentEpoch
	oldGen kafka.Generation
	// held is true from when the committer was told of a JoinGroup until the group is in a generation again, or out; for the checker.
	held bool
	// lanes is what was confirmed of each partition; for the checker.
	lanes []laneCommits

	key    *capability.Key
	unsent *commit.Round
	answer *call

	flushes map[uint64]flushOwner
	nextID  uint64

	// busy and queue are the connection's one worker.
	busy  *call
	queue []*call

	lookupID      uint64
	lookupOpen    []bool
	lookupBusy    bool
	lookupAlarm   alarm
	lookupFailure int
}

// flushOwner is who asked for a flush.
type flushOwner struct {
	shell *partitionShell
	id    uint64
}

func newCommitterShell(p *process) *committerShell {
	c := &committerShell{
		w: p.w, process: p, gen: kafka.NoGeneration, oldGen: kafka.NoGeneration, flushes: map[uint64]flushOwner{},
		rounds: commit.NewRounds(commit.RoundsConfig{
			GroupID: "group", GroupInstanceID: p.instance, BackoffInitial: backoffInitial, BackoffMax: backoffMax, Seed: p.w.rng.Uint64(),
			Strategy: p.w.strategy(),
		}),
	}
	c.box, c.fenced = p.newBox(c), make([]kafka.AssignmentEpoch, p.w.script.Partitions)
	c.lanes = make([]laneCommits, p.w.script.Partitions)
	c.lookupOpen = make([]bool, p.w.script.Partitions)
	c.alarm.box, c.lookupAlarm.box = c.box, c.box
	return c
}

func (c *committerShell) receive(m *message) {
	switch m.kind { //nolint:exhaustive // the other messages are not for this actor
	case messageRing:
		switch a := m.payload.(*alarm); {
		case c.w.rang(&c.alarm, a):
			c.feed(commit.Tick{})
		case c.w.rang(&c.lookupAlarm, a):
			c.lookupNext()
		}
	case messageCoordinatorKnown:
		c.broker, c.stable = int(m.seq), m.offset == 1
		c.sendUnsent()
		c.lookupNext()
	case messageCallDone:
		c.done(m.payload.(*call))
	case messagePlaceFree:
		c.sendUnsent()
	case messageKeyLent:
		c.key = m.payload.(*capability.Key)
		c.sendUnsent()
		c.applyAnswer()
	case messageKeyRecalled:
		c.giveBack()
	case messageOffsetsWanted:
		c.lookupID, c.lookupFailure = m.seq, 0
		for part := range c.lookupOpen {
			c.lookupOpen[part] = true
		}
		c.lookupAlarm.set = false
		c.lookupNext()
	case messageOffered:
		offered := m.payload.(*commit.Offset)
		c.heard(int(offered.TopicPartition.Partition), offered.Epoch, offered.PositionEpoch)
		c.feed(commit.Offered{Offset: *offered})
	case messagePlaced:
		c.place(m)
	case messagePositionLeft:
		c.heard(int(m.part), kafka.AssignmentEpoch(m.epoch), uint32(m.seq))
		c.feed(commit.Rewound{TopicPartition: tpOf(int(m.part)), Epoch: kafka.AssignmentEpoch(m.epoch), PositionEpoch: uint32(m.seq)})
		c.sendUnsent()
	case messageFlushWanted:
		c.nextID++
		c.flushes[c.nextID] = flushOwner{shell: m.payload.(*partitionShell), id: m.seq}
		c.feed(commit.Flush{
			ID: c.nextID, TopicPartition: tpOf(int(m.part)), Epoch: kafka.AssignmentEpoch(m.epoch),
			Deadline: epochStart.Add(time.Duration(m.at)),
		})
	case messagePartitionOpened:
		c.lanes[m.part] = laneCommits{epoch: kafka.AssignmentEpoch(m.epoch), committed: m.offset, opened: c.w.at}
		c.feed(commit.Assigned{
			TopicPartition: tpOf(int(m.part)), Epoch: kafka.AssignmentEpoch(m.epoch), Committed: m.offset, Metadata: m.payload.(string),
		})
	case messagePartitionFenced:
		c.fenced[m.part] = max(c.fenced[m.part], kafka.AssignmentEpoch(m.epoch))
		c.feed(commit.Fenced{TopicPartition: tpOf(int(m.part)), Epoch: kafka.AssignmentEpoch(m.epoch)})
		if c.unsent != nil && c.w.mutant != MutantFencedSent && slices.ContainsFunc(c.unsent.Offsets, func(o commit.Offset) bool {
			return o.TopicPartition == tpOf(int(m.part)) && o.Epoch <= kafka.AssignmentEpoch(m.epoch)
		}) {
			c.dropUnsent(commit.ErrEpochClosed)
		}
		c.sendUnsent()
	case messageCommitsHeld:
		c.held = true
		c.feed(commit.Held{})
	case messageGenerationEntered:
		c.held = false
		c.member, c.oldGen, c.gen = m.payload.(string), c.gen, kafka.Generation(m.gen)
		c.dropUnsent(commit.ErrDeparted)
		c.feed(commit.Entered{Generation: c.gen, MemberID: c.member})
	case messageGenerationLeft:
		c.held = false
		c.gen = kafka.NoGeneration
		c.feed(commit.Departed{Cause: m.err})
		c.dropUnsent(commit.ErrDeparted)
	default:
		c.w.unknownMessage(c, m)
	}
}

func (c *committerShell) feed(in commit.Input) {
	effects, err := c.rounds.Step(c.process.now(), in)
	c.w.check.machine(err)
	c.w.check.machine(c.rounds.Valid())
	for _, effect := range effects {
		switch e := effect.(type) {
		case commit.SendRound:
			if c.unsent != nil || c.busy != nil && c.busy.api == apiCommit || c.answer != nil {
				c.w.violate("G8", "a second round while one is in flight")
			}
			c.w.check.sending(c, &e.Round)
			c.w.check.together(c, &e.Round)
			c.unsent = &e.Round
			c.sendUnsent()
		case commit.Committed:
			c.w.check.confirmed(c, &e.Offset)
		case commit.Flushed:
			owner := c.flushes[e.ID]
			delete(c.flushes, e.ID)
			c.w.post(owner.shell.box, message{kind: messageFlushed, seq: owner.id, err: e.Err})
		case commit.RoundFailed:
			c.w.stats.RoundsFailed++
			for tp, err := range e.Partitions {
				c.lanes[tp.Partition].shortened = errors.Is(err, kafka.OffsetMetadataTooLarge)
			}
		case commit.StrategyFailed:
			c.w.check.machine(e.Err)
		case commit.MembershipDoubted:
			c.w.post(c.process.group.box, message{kind: messageMembershipDoubted, gen: int32(e.Generation), err: e.Err})
		case commit.CoordinatorDoubted:
			c.w.post(c.process.group.box, message{kind: messageCoordinatorDoubted, seq: uint64(c.broker), err: e.Err})
		}
	}
	at, ok := c.rounds.Deadline()
	c.w.setAlarm(&c.alarm, at, ok)
}

// sendUnsent sends the round that waits, as soon as key, coordinator and session allow it.
func (c *committerShell) sendUnsent() {
	if c.unsent == nil || !c.stable || !c.rounds.Open() && c.w.mutant != MutantSentWhileHeld {
		return
	}
	if c.key == nil && c.w.mutant != MutantNoKeyCheck && c.w.mutant != MutantCommitAfterFence {
		return
	}
	if !c.process.session.enter(c.box) {
		return
	}
	c.w.check.letGo(c, c.unsent)
	round := *c.unsent
	c.unsent = nil
	if err := c.authorize(c.key, &round); err != nil {
		c.notSent(&round, err)
		return
	}
	if c.w.mutant == MutantOldGeneration {
		round.Generation = c.oldGen
	}
	c.do(&call{api: apiCommit, process: c.process, box: c.box, broker: c.broker, round: &round, key: c.key, at: c.w.at})
}

// authorize asks the key, as CommitRound.authorized does.
func (c *committerShell) authorize(key *capability.Key, round *commit.Round) error {
	if c.w.mutant == MutantNoKeyCheck || c.w.mutant == MutantCommitAfterFence {
		return nil
	}
	partitions := make([]kafka.TopicPartition, len(round.Offsets))
	for i := range round.Offsets {
		partitions[i] = round.Offsets[i].TopicPartition
	}
	return key.Check(committerHolder, "commit", partitions...)
}

func (c *committerShell) dropUnsent(why error) {
	if c.unsent != nil {
		round := *c.unsent
		c.unsent = nil
		c.notSent(&round, why)
	}
}

// notSent answers a round that never went out: its offsets go into the next one.
func (c *committerShell) notSent(round *commit.Round, why error) {
	c.feed(commit.Answered{ID: round.ID, Err: notSentError(why), NotSent: true})
}

func notSentError(why error) error { return fmt.Errorf("%w: not sent: %w", commit.ErrUnanswered, why) }

// do makes one call after the other: commits and look-ups share the connection.
func (c *committerShell) do(request *call) {
	c.queue = append(c.queue, request)
	c.next()
}

func (c *committerShell) next() {
	if c.busy != nil || len(c.queue) == 0 {
		return
	}
	request := c.queue[0]
	c.queue = c.queue[1:]
	if request.api == apiCommit {
		// The round may have waited behind a look-up while the partitions were lost: its key is asked when it goes out.
		if err := c.authorize(request.key, request.round); err != nil && c.w.mutant != MutantKeyAskedOnce {
			request.err, request.notSent = notSentError(err), true
			c.busy = request
			c.w.finish(request)
			return
		}
		c.w.check.committing(c, request)
	}
	c.busy = request
	c.w.send(request, c.w.script.Request)
}

func (c *committerShell) done(request *call) {
	if request != c.busy {
		return
	}
	c.busy = nil
	c.next()
	if request.api == apiOffsetFetch {
		c.offsetsRead(request)
		return
	}
	c.answer = request
	c.applyAnswer()
}

// applyAnswer takes a round's outcome, which needs the key as well.
func (c *committerShell) applyAnswer() {
	if c.answer == nil || c.key == nil && c.w.mutant != MutantNoKeyCheck && c.w.mutant != MutantCommitAfterFence {
		return
	}
	request := c.answer
	c.answer = nil
	for range 1 + c.w.once() {
		c.feed(commit.Answered{ID: request.round.ID, Results: request.results, Err: request.err, NotSent: request.notSent})
	}
}

// giveBack returns the key at once. A round in flight goes on without it.
func (c *committerShell) giveBack() {
	if c.key == nil {
		return
	}
	key := c.key
	c.key = nil
	if err := key.Hand(committerHolder, groupHolder); err != nil && !errors.Is(err, capability.ErrRevoked) {
		c.w.check.machine(err)
	}
	c.w.post(c.process.group.box, message{kind: messageKeyReturned, payload: key})
}

// notAnswered is in an OffsetFetch answer for a partition that is not in it.
const notAnswered = -2

// lookupNext asks for the committed offsets that are open. Commits go on meanwhile: both share the connection in turn.
func (c *committerShell) lookupNext() {
	if c.lookupBusy || c.lookupAlarm.set || !slices.Contains(c.lookupOpen, true) || !c.stable {
		return
	}
	c.lookupBusy = true
	c.do(&call{api: apiOffsetFetch, process: c.process, box: c.box, broker: c.broker, seq: c.lookupID})
}

func (c *committerShell) offsetsRead(request *call) {
	c.lookupBusy = false
	if request.seq != c.lookupID {
		c.lookupNext()
		return
	}
	if request.err == nil {
		for part, offset := range request.offsets {
			if !c.lookupOpen[part] {
				request.offsets[part] = notAnswered // not asked
			} else if offset != notAnswered {
				c.lookupOpen[part] = false
			}
		}
		for range 1 + c.w.once() {
			c.w.post(c.process.group.box, message{kind: messageOffsetsFetched, seq: request.seq, payload: request})
		}
		if !slices.Contains(c.lookupOpen, true) {
			return
		}
	} else {
		c.w.post(c.process.group.box, message{kind: messageCoordinatorDoubted, seq: uint64(request.broker), err: request.err})
	}
	c.lookupFailure++
	c.w.setAlarmIn(&c.lookupAlarm, min(backoffInitial<<min(c.lookupFailure-1, 16), backoffMax))
}
