package actors

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// committer sends commit rounds, one at a time, and reads committed offsets. It holds the consumer's key as a standing
// loan: a round can only be built with it.
type committer struct {
	shared *shared
	self   *actor.PID
	group  *actor.PID

	rounds *commit.Rounds
	alarm  alarm
	client OffsetsClient
	work   *worker
	// reads and reader are the look-ups' own: a commit must not wait behind one that is not answered.
	reads       *worker
	reader      OffsetsClient
	coordinator kafka.Broker
	stable      bool
	memberID    string
	generation  kafka.Generation

	key *capability.Key
	// unsent is the round that waits for the key or the coordinator; answer the outcome that waits for the key.
	unsent *commit.Round
	answer *commitDone
	// inFlight ends the request of the round that was sent to sentTo; nil when there is none.
	inFlight context.CancelFunc
	sentTo   kafka.Broker
	// asked is the coordinator whose answer is being applied.
	asked kafka.Broker

	cells   map[kafka.TopicPartition]*cell
	flushes map[uint64]flushOwner
	nextID  uint64
	lookup  offsetLookups
}

// flushOwner is who asked for a flush, and under which id of its own.
type flushOwner struct {
	pid *actor.PID
	id  uint64
}

// commitDone: the committer's worker -> committer.
type commitDone struct {
	silent
	answered    commit.Answered
	coordinator kafka.Broker
}

func newCommitter(s *shared) *committer {
	return &committer{
		shared: s, generation: kafka.NoGeneration,
		cells: make(map[kafka.TopicPartition]*cell), flushes: make(map[uint64]flushOwner),
		rounds: commit.NewRounds(commit.RoundsConfig{
			GroupID: s.settings.GroupID, GroupInstanceID: s.settings.GroupInstanceID, Spacing: commitSpacing,
			Strategy:       s.settings.Strategy,
			BackoffInitial: s.settings.Backoff.Initial, BackoffMax: s.settings.Backoff.Max, Seed: s.settings.Seed,
		}),
	}
}

// commitSpacing is the least time between two rounds that nothing urgent asked for.
const commitSpacing = 200 * time.Millisecond

// Receive implements actor.Actor.
func (c *committer) Receive(ctx actor.Context) { c.receive(ctx, ctx.Message()) }

func (c *committer) receive(ctx actor.Context, message any) {
	switch m := message.(type) {
	case *actor.Started:
		c.self, c.group = ctx.Self(), ctx.Parent()
		c.client = c.shared.network.Offsets()
		c.work = newWorker(c.shared.sys, c.self, &c.shared.workers)
		c.reader = c.shared.network.Offsets()
		c.reads = newWorker(c.shared.sys, c.self, &c.shared.workers)
	case *actor.Stopping:
		c.alarm.stop()
		c.lookup.alarm.stop()
		c.work.stop()
		if c.inFlight != nil {
			c.inFlight()
		}
		c.client.Close()
		c.reads.stop()
		c.reader.Close()
	case *workDone:
		c.receive(ctx, m.worker.finished(m))
	case *alarmRang:
		switch {
		case c.alarm.rang(m):
			c.feed(ctx, commit.Tick{})
		case c.lookup.alarm.rang(m):
			c.lookupNext()
		}
	case *coordinatorKnown:
		c.coordinator, c.stable = m.broker, m.stable
		if c.inFlight != nil && m.stable && m.broker != c.sentTo {
			c.inFlight() // who was the coordinator may be frozen and never answer
		}
		if c.lookup.busy && m.stable && m.broker != c.lookup.sentTo {
			c.reads.abort()
		}
		c.sendUnsent(ctx)
		c.lookupNext()
	case *commitDone:
		c.answered(ctx, m)
	case *placeFree:
		c.sendUnsent(ctx)
	case *keyLent:
		c.key = m.key
		c.sendUnsent(ctx)
		c.applyAnswer(ctx)
	case *keyRecalled:
		c.giveBack(ctx)
	case *offsetsWanted:
		c.lookup.begin(m)
		c.lookupNext()
	case *offsetsRead:
		c.offsetsRead(ctx, m)
	default:
		c.receiveProgress(ctx, message)
	}
}

// receiveProgress is what partitions and the group tell of offsets and ownership.
func (c *committer) receiveProgress(ctx actor.Context, message any) {
	switch m := message.(type) {
	case *offsetOffered:
		c.take(ctx, m.cell)
	case *offsetPlaced:
		c.place(ctx, m)
	case *flushWanted:
		c.nextID++
		c.flushes[c.nextID] = flushOwner{pid: m.from, id: m.id}
		c.feed(ctx, commit.Flush{ID: c.nextID, TopicPartition: m.tp, Epoch: m.epoch, Deadline: m.deadline})
	case *positionLeft:
		c.feed(ctx, commit.Rewound{TopicPartition: m.tp, Epoch: m.epoch, PositionEpoch: m.run})
		c.sendUnsent(ctx)
	case *partitionOpened:
		c.cells[m.tp] = m.cell
		c.feed(ctx, commit.Assigned{TopicPartition: m.tp, Epoch: m.epoch, Committed: m.committed, Metadata: m.metadata})
	case *partitionFenced:
		if cell := c.cells[m.tp]; cell != nil && cell.epoch == m.epoch {
			delete(c.cells, m.tp)
		}
		c.feed(ctx, commit.Fenced{TopicPartition: m.tp, Epoch: m.epoch})
		if c.unsent != nil && hasEpoch(c.unsent, m.tp, m.epoch) { // the key may cover the partition still, as when its topic was made anew
			c.dropUnsent(ctx, commit.ErrEpochClosed)
		}
		c.sendUnsent(ctx)
	case *commitsHeld:
		c.feed(ctx, commit.Held{})
	case *generationEntered:
		c.memberID, c.generation = m.memberID, m.generation
		c.dropUnsent(ctx, commit.ErrDeparted)
		c.feed(ctx, commit.Entered{Generation: m.generation, MemberID: m.memberID})
	case *generationLeft:
		c.generation = kafka.NoGeneration
		c.feed(ctx, commit.Departed{Cause: m.cause})
		c.dropUnsent(ctx, commit.ErrDeparted)
	}
}

// take takes what a partition offers, unless it has placed something that comes first.
func (c *committer) take(ctx actor.Context, cell *cell) {
	offset := cell.offer.Swap(nil)
	switch {
	case offset == nil:
	case cell.unplaced.Load() > 0:
		cell.offer.CompareAndSwap(nil, offset) // a newer one may be there
	default:
		c.feed(ctx, commit.Offered{Offset: *offset})
	}
}

// place commits an offset of the user's, together with the others of the same call.
func (c *committer) place(ctx actor.Context, m *offsetPlaced) {
	c.nextID++
	c.flushes[c.nextID] = flushOwner{pid: m.from, id: m.id}
	if m.call.id == 0 {
		m.call.id = c.nextID
	}
	c.feed(ctx, commit.Place{ID: c.nextID, Offset: m.offset, Deadline: m.deadline, Call: m.call.id, Last: m.call.left.Add(-1) <= 0})
	m.cell.unplaced.Add(-1)
	c.take(ctx, m.cell)
}

func (c *committer) feed(ctx actor.Context, in commit.Input) {
	effects, err := c.rounds.Step(time.Now(), in)
	if err != nil {
		c.shared.observe(event.Refused{Member: c.shared.member(), Err: err})
		c.shared.logger.Warn("commit input refused", zap.Error(err))
	}
	for _, effect := range effects {
		c.run(ctx, effect)
	}
	at, ok := c.rounds.Deadline()
	c.alarm.setAt(c.shared.sys, c.self, at, ok)
}

func (c *committer) run(ctx actor.Context, effect commit.Effect) {
	switch e := effect.(type) {
	case commit.SendRound:
		c.shared.board.rounds.Add(1)
		c.unsent = &e.Round
		c.sendUnsent(ctx)
	case commit.Committed:
		if cell := c.cells[e.Offset.TopicPartition]; cell != nil && cell.epoch == e.Offset.Epoch {
			if cell.positionEpoch.Load() == e.Offset.PositionEpoch {
				cell.committed.Store(e.Offset.Offset)
			}
			if s := cell.sought.Load(); s != nil && s.run.Load() > 0 && e.Offset.PositionEpoch >= s.run.Load() {
				cell.sought.CompareAndSwap(s, nil)
			}
		}
	case commit.Flushed:
		owner := c.flushes[e.ID]
		delete(c.flushes, e.ID)
		e.ID = owner.id
		ctx.Send(owner.pid, &flushed{result: e})
	case commit.RoundFailed:
		c.roundFailed(e)
	case commit.MembershipDoubted:
		ctx.Send(c.group, &membershipDoubted{generation: e.Generation, err: e.Err})
	case commit.StrategyFailed:
		c.shared.observe(event.StrategyFailed{Member: c.shared.member(), Strategy: e.Name, Err: e.Err})
		c.shared.logger.Error("commit strategy panicked", zap.String("strategy", e.Name), zap.Error(e.Err))
	case commit.CoordinatorDoubted:
		ctx.Send(c.group, &coordinatorDoubted{broker: c.asked, err: e.Err})
	}
}

func (c *committer) roundFailed(e commit.RoundFailed) {
	if _, keyGone := errors.AsType[*capability.MisuseError](e.Err); keyGone || errors.Is(e.Err, commit.ErrEpochClosed) {
		return // it was never sent: the key was recalled meanwhile, and its offsets go into the next round
	}
	partitions := slices.SortedFunc(maps.Keys(e.Partitions), kafka.TopicPartition.Compare)
	err := e.Err
	for _, tp := range partitions {
		if err != nil {
			break
		}
		err = e.Partitions[tp]
	}
	var retryIn time.Duration
	if !e.RetryAt.IsZero() {
		retryIn = time.Until(e.RetryAt)
	}
	c.shared.observe(event.CommitFailed{
		Member: c.shared.member(), Partitions: partitions, Err: err, Attempt: e.Attempt, RetryIn: retryIn,
	})
	c.shared.logger.Warn("commit not confirmed", zap.Int("partitions", len(partitions)), zap.Int("attempt", e.Attempt), zap.Error(err))
}

// sendUnsent sends the round that waits, as soon as key, coordinator and session allow it. One that waited until a JoinGroup was
// sent is dropped with the generation it was made in. With a key that does not cover it, ownership has changed and the round
// fails at once, to be built anew.
func (c *committer) sendUnsent(ctx actor.Context) {
	if c.unsent == nil || c.key == nil || !c.stable || !c.rounds.Open() || !c.shared.session.enter(c.self) {
		return
	}
	round := *c.unsent
	c.unsent = nil
	left := c.positionsLeft(round)
	authorized, err := newCommitRound(c.key, round)
	if err == nil && left() {
		err = errPositionLeft
	}
	if err != nil {
		c.feed(ctx, notSent(round, err))
		return
	}
	coordinator := c.coordinator
	ended, end := context.WithCancel(context.Background())
	c.inFlight, c.sentTo = end, coordinator
	c.work.do(func(call context.Context) any {
		call, cancel := context.WithCancel(call)
		defer cancel()
		defer context.AfterFunc(ended, cancel)()
		err := authorized.authorized()
		if err == nil && left() {
			err = errPositionLeft
		}
		if err != nil {
			return &commitDone{answered: notSent(round, err), coordinator: coordinator}
		}
		results, err := c.client.Commit(call, coordinator, authorized)
		return &commitDone{answered: commit.Answered{ID: round.ID, Results: results, Err: err}, coordinator: coordinator}
	})
}

// errPositionLeft is why a round does not go out.
var errPositionLeft = fmt.Errorf("%w: the position was set elsewhere", commit.ErrEpochClosed)

// positionsLeft returns a function, for any goroutine, that reports whether a partition of the round has left the position
// epoch that its offset is of.
func (c *committer) positionsLeft(round commit.Round) func() bool {
	type run struct {
		now  *atomic.Uint32
		sent uint32
	}
	var runs []run
	for i := range round.Offsets {
		offset := &round.Offsets[i]
		if cell := c.cells[offset.TopicPartition]; cell != nil && cell.epoch == offset.Epoch {
			runs = append(runs, run{cell.positionEpoch, offset.PositionEpoch})
		}
	}
	return func() bool {
		return slices.ContainsFunc(runs, func(r run) bool { return r.now.Load() > r.sent })
	}
}

// hasEpoch reports whether a round has an offset of a partition under that epoch, or an older one.
func hasEpoch(round *commit.Round, tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) bool {
	return slices.ContainsFunc(round.Offsets, func(o commit.Offset) bool { return o.TopicPartition == tp && o.Epoch <= epoch })
}

// notSent answers a round that never went out: its offsets go into the next one.
func notSent(round commit.Round, why error) commit.Answered {
	return commit.Answered{ID: round.ID, Err: fmt.Errorf("%w: not sent: %w", commit.ErrUnanswered, why), NotSent: true}
}

// dropUnsent fails the round that waits: its membership is over.
func (c *committer) dropUnsent(ctx actor.Context, why error) {
	if c.unsent != nil {
		round := *c.unsent
		c.unsent = nil
		c.feed(ctx, notSent(round, why))
	}
}

// answered applies a round's outcome, which needs the key as well: while it is recalled the outcome waits.
func (c *committer) answered(ctx actor.Context, m *commitDone) {
	c.answer = m
	if c.inFlight != nil {
		c.inFlight()
		c.inFlight = nil
	}
	c.applyAnswer(ctx)
}

func (c *committer) applyAnswer(ctx actor.Context) {
	if c.answer == nil || c.key == nil {
		return
	}
	done := c.answer
	c.answer, c.asked = nil, done.coordinator
	c.feed(ctx, done.answered)
}

// giveBack returns the key at once. A round in flight goes on without it.
func (c *committer) giveBack(ctx actor.Context) {
	if c.key == nil {
		return
	}
	key := c.key
	c.key = nil
	if err := key.Hand(committerHolder, groupHolder); err != nil && !errors.Is(err, capability.ErrRevoked) {
		panic(err)
	}
	ctx.Send(c.group, &keyReturned{key: key})
}
