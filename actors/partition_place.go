package actors

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// commitWanted: group -> partition: commit what is finished now. Answered through the waiter.
type commitWanted struct {
	silent
	waiter   *waiter
	deadline time.Time
}

func (p *partition) commitWanted(ctx actor.Context, m *commitWanted) {
	if p.tracker == nil || p.committer == nil || p.orphaned || !p.machine.CanCommit() {
		m.waiter.one(p.cell, nil) // nothing of it can be committed now, or it is being committed for good
		return
	}
	if p.collect(); p.held != nil { // the user asks for what is finished after all
		p.held, p.offered = nil, kafka.NoOffset
	}
	p.mapAlarm.stop()
	p.offer(ctx)
	p.flushID++
	p.commits[p.flushID] = m.waiter
	ctx.Send(p.committer, &flushWanted{id: p.flushID, tp: p.tp, epoch: p.epoch, deadline: m.deadline, from: p.self})
}

// placing is one call of CommitOffsets: what of it goes out goes out together.
type placing struct {
	// left counts the partitions that have not come to the committer, nor refused.
	left atomic.Int64
	// id is the committer's.
	id uint64
}

// placeWanted: group -> partition: commit the offset that is yours among these. Answered through the waiter.
type placeWanted struct {
	silent
	waiter   *waiter
	offsets  map[kafka.TopicPartition]kafka.OffsetAndMetadata
	call     *placing
	deadline time.Time
}

// placement is what the user has committed of a partition: below, or as of, what was finished then.
type placement struct {
	offset int64
	// above is the finished point then: until it has moved, nothing else is committed.
	above int64
}

// userCommits is the partition's side of the offsets that the user commits.
type userCommits struct {
	// held is a placement that keeps automatic commits back, nil for none.
	held *placement
	// placed is the last message to the committer, until it is answered: another committer is sent it again.
	placed *offsetPlaced
	// userText is what the user gave along with userAt. It goes with every commit of that very offset, and with no other.
	userAt   int64
	userText string
	// startedUser is what the commit had beside it that this ownership started with.
	startedUser string
}

// finishedPoint is below what everything is finished, and still in the log.
func (p *partition) finishedPoint() int64 {
	offset := p.tracker.Committable()
	if rewind := p.intake.rewind; rewind != nil { // what lies above is gone from the log, however finished it is
		offset = min(offset, *rewind)
	}
	return offset
}

// committable is what would be committed now if this was the end.
func (p *partition) committable() int64 {
	offset := p.finishedPoint()
	if p.held != nil && offset <= p.held.above {
		offset = min(offset, p.held.offset)
	}
	return offset
}

// placeable checks an offset of the user's.
func (p *partition) placeable(asked kafka.OffsetAndMetadata) error {
	state := &StateError{Operation: offsetsWord, TopicPartition: p.tp, State: p.machine.State().String()}
	switch {
	case p.orphaned:
		return fmt.Errorf("troupe: %s %s: %w", offsetsWord, p.tp, errTopicRecreated)
	case !p.machine.CanCommit() || p.tracker == nil:
		state.Want = "one that is assigned, has its start and was not given up"
		return state
	case p.seek != nil: // nothing of the new position is finished, and what was of the old one does not count any more
		state.State, state.Want = "SEEKING", "the position that was sought must be found out: commit again when Seek has returned"
		return state
	case p.intake.unproven:
		state.Want = "it must be known which incarnation of the topic its offsets are of: try again once it is read"
		return state
	}
	if highest := p.finishedPoint(); asked.Offset > highest {
		return &OffsetError{
			TopicPartition: p.tp, Offset: asked.Offset, Field: "Offset", Highest: highest,
			Want: fmt.Sprintf("at most %d: the record there is not acknowledged, or not delivered", highest),
		}
	}
	return nil
}

// placeWanted has the committer commit an offset of the user's, in a position epoch of its own.
func (p *partition) placeWanted(ctx actor.Context, m *placeWanted) {
	asked := m.offsets[p.tp]
	p.collect()
	if p.tracker != nil {
		p.offer(ctx)
	}
	if err := p.placeable(asked); err != nil {
		m.call.left.Add(-1)
		m.waiter.one(p.cell, err)
		return
	}
	committed, finished := p.cell.committed.Load(), p.finishedPoint()
	p.rewound()
	p.held, p.userAt, p.userText = nil, asked.Offset, asked.Metadata
	if asked.Offset < finished {
		p.held = &placement{offset: asked.Offset, above: finished}
		p.cell.finished.Store(p.committable())
	}
	if asked.Offset < committed {
		p.shared.observe(event.CommitSetBack{Member: p.shared.member(), TopicPartition: p.tp, Epoch: p.epoch, From: committed, To: asked.Offset})
		p.shared.logger.Info("commit set back", zap.String("topic", p.tp.Topic), zap.Int32("partition", p.tp.Partition),
			zap.Int64("from", committed), zap.Int64("to", asked.Offset))
	}
	p.flushID++
	p.commits[p.flushID] = m.waiter
	p.placed = &offsetPlaced{
		id: p.flushID, deadline: m.deadline, from: p.self, cell: p.cell, call: m.call,
		offset: commit.Offset{ // the leader epoch of what was finished above it shows a truncation below it as well
			TopicPartition: p.tp, Epoch: p.epoch, PositionEpoch: p.positionEpoch, Offset: asked.Offset, LeaderEpoch: p.tracker.CommittableEpoch(),
			Finished: p.cell.acked.Load(), Metadata: p.metadata(asked.Offset),
		},
	}
	p.sendPlaced(ctx)
	p.offer(ctx)
}

// sendPlaced sends the placed offset, before anything that is offered after it.
func (p *partition) sendPlaced(ctx actor.Context) {
	if p.committer != nil && p.placed != nil {
		p.cell.unplaced.Add(1)
		ctx.Send(p.committer, p.placed)
	}
}

// placedAnswered: what was given up because of its metadata holds nothing back.
func (p *partition) placedAnswered(ctx actor.Context, err error) {
	p.placed = nil
	if errors.Is(err, commit.ErrMetadataTooLarge) {
		p.held, p.userAt, p.offered = nil, kafka.NoOffset, kafka.NoOffset
		p.offer(ctx)
	}
}

// offsetsOperation commits offsets of the user's.
type offsetsOperation struct {
	offsets  map[kafka.TopicPartition]kafka.OffsetAndMetadata
	named    []kafka.TopicPartition
	deadline time.Time
	waiter   *waiter
}

const offsetsWord = "commit offsets"

func newOffsetsOperation(offsets []kafka.OffsetAndMetadata, deadline time.Time) *offsetsOperation {
	o := &offsetsOperation{offsets: make(map[kafka.TopicPartition]kafka.OffsetAndMetadata, len(offsets)), deadline: deadline}
	for _, offset := range offsets {
		o.offsets[offset.TopicPartition] = offset
		o.named = append(o.named, offset.TopicPartition)
	}
	return o
}

func (o *offsetsOperation) word() string { return offsetsWord }

func (o *offsetsOperation) awaited() *waiter { return o.waiter }

func (o *offsetsOperation) run(ctx actor.Context, g *group, m *request) {
	parts, err := g.targets(o.word(), o.named)
	if err == nil {
		err = g.authorize(m, parts)
	}
	for _, p := range parts {
		if err == nil && g.Lookup(p.key) == nil {
			err = &StateError{Operation: o.word(), TopicPartition: p.tp, State: "RESTARTING", Want: "its actor failed and comes back: try again"}
		}
	}
	if err == nil {
		call := &placing{}
		call.left.Store(int64(len(parts)))
		gone := func(c *cell) error {
			return &StateError{Operation: o.word(), TopicPartition: c.tp, State: "REVOKED", Want: "it was given up meanwhile: whoever owns it now may commit"}
		}
		o.waiter = g.ask(ctx, parts, gone, func(w *waiter) any {
			return &placeWanted{waiter: w, offsets: o.offsets, call: call, deadline: o.deadline}
		})
		o.waiter.whole = true
	}
	m.reply(err)
}

// checkOffsets refuses what can be seen to be wrong without a look at the partitions, all of it at once.
func checkOffsets(offsets []kafka.OffsetAndMetadata) error {
	var errs []error
	for i, offset := range offsets {
		refuse := func(field, want string) {
			errs = append(errs, &OffsetError{
				TopicPartition: offset.TopicPartition, Offset: offset.Offset, Field: field, Highest: kafka.NoOffset, Want: want,
			})
		}
		if offset.TopicPartition.Partition < 0 {
			refuse("TopicPartition", "one partition, of 0 or more")
		}
		if slices.ContainsFunc(offsets[:i], func(o kafka.OffsetAndMetadata) bool { return o.TopicPartition == offset.TopicPartition }) {
			refuse("TopicPartition", "each partition once")
		}
		if offset.Offset < 0 {
			refuse("Offset", "0 or more")
		}
		if size := commit.UserBytes(offset.Metadata); size > commit.MaxUserBytes {
			refuse("Metadata", fmt.Sprintf("at most %d bytes once escaped, not %d", commit.MaxUserBytes, size))
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}
