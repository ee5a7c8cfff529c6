package actors

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// ErrSought is why a handler's context ended whose partition was sought to another position: the record is not wanted any
// more, and its acknowledgment is stale. A Seek that waits for its look-up ends with it when another one takes its place.
var ErrSought = errors.New("troupe: another position was sought")

// sought is a position that was asked for. The cell keeps it until an offset of its position epoch is committed, so that a
// partition actor that dies before goes on there and not at the committed offset of the old position.
type sought struct {
	to     rebalance.StartPosition
	waiter *waiter
	// atOnce is true when nobody waits for the look-up.
	atOnce bool
	// before is one that this takes the place of, until the partition has heard of this: it may never hear of that.
	before *sought
	// run is the position epoch that it began, 0 before the partition has heard of it. known is true once the offset is: from
	// then on the cell has how far the partition has come.
	run   atomic.Uint32
	known atomic.Bool
}

// seekWanted: group -> partition: give the old position up and go on there. Answered through the waiter. held is true while the
// partition may not start: it only finds out where.
type seekWanted struct {
	silent
	sought *sought
	held   bool
}

// positionLeft: partition -> committer: nothing of an older position epoch is committed any more.
type positionLeft struct {
	silent
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch
	run   uint32
}

// seekOperation has partitions go on at another position.
type seekOperation struct {
	to     rebalance.StartPosition
	named  []kafka.TopicPartition
	atOnce bool
	waiter *waiter
}

func (o *seekOperation) word() string { return "seek" }

func (o *seekOperation) everything() bool { return len(o.named) == 0 }

func (o *seekOperation) run(ctx actor.Context, g *group, m *request) {
	parts, err := g.targets(o.word(), o.named)
	if err == nil {
		parts, err = g.staying(o.word(), o.named, parts)
	}
	if err == nil {
		err = g.authorize(m, parts)
	}
	if err != nil {
		m.reply(err)
		return
	}
	o.waiter = waitFor(parts, func(c *cell) error {
		return &UnassignedError{Operation: o.word(), Partitions: []kafka.TopicPartition{c.tp}, State: g.shared.board.memberState()}
	})
	for _, p := range parts {
		g.seek(ctx, p, &sought{to: o.to, waiter: o.waiter, atOnce: o.atOnce})
	}
	g.assignedCallback(ctx)
	m.reply(nil)
}

// staying leaves out the partitions that are being given up, and refuses them where they were named or nothing else is left.
func (g *group) staying(op string, named []kafka.TopicPartition, parts []*part) ([]*part, error) {
	exact := make(map[kafka.TopicPartition]bool, len(named))
	for _, tp := range named {
		exact[tp] = true
	}
	var stay []*part
	var refused error
	for _, p := range parts {
		switch {
		case p.phase != partLeaving:
			stay = append(stay, p)
		case refused == nil || exact[p.tp]:
			refused = leavingError(op, p.tp, rebalance.PartitionRevoking)
			if exact[p.tp] {
				return nil, refused
			}
		}
	}
	if len(stay) == 0 {
		return nil, refused
	}
	return stay, nil
}

func leavingError(op string, tp kafka.TopicPartition, state rebalance.PartitionState) error {
	return &StateError{Operation: op, TopicPartition: tp, State: state.String(), Want: "it is being given up; call again when it is owned anew"}
}

// seek passes a position on to its partition. One whose start is not decided yet begins there; one that has no actor at the
// moment finds it in its cell.
func (g *group) seek(ctx actor.Context, p *part, s *sought) {
	s.before = p.cell.sought.Load()
	p.cell.sought.Store(s)
	if s.atOnce && g.Lookup(p.key) == nil {
		s.waiter.one(p.cell, nil)
	}
	if p.phase == partStarting || p.phase == partRestarting {
		g.beginSought(ctx, p)
		return
	}
	g.tell(ctx, p.key, &seekWanted{sought: s})
}

// beginSought starts a partition at the position that was sought, in place of the committed offset. Before OnAssigned has
// returned it only finds the offset out.
func (g *group) beginSought(ctx actor.Context, p *part) {
	s := p.cell.sought.Load()
	if !p.told {
		g.tell(ctx, p.key, &seekWanted{sought: s, held: true})
		return
	}
	g.starts.remove(p.tp)
	first := p.phase == partStarting
	p.phase = partRunning
	p.cell.committed.Store(kafka.NoOffset)
	g.tell(ctx, committerKey, &partitionOpened{tp: p.tp, epoch: p.epoch, committed: kafka.NoOffset, cell: p.cell})
	g.hold(ctx, p, first)
	g.tell(ctx, p.key, &seekWanted{sought: s})
	g.decidedStart(ctx, p, first)
}

// decideStart has a partition's start decided, now that it may start: where it was sought, else as requestStarts finds out.
func (g *group) decideStart(ctx actor.Context, p *part) {
	if p.cell.sought.Load() != nil {
		g.beginSought(ctx, p)
		return
	}
	g.starts.add(p.tp)
}

// Seek has partitions go on at another position, all of them when none is named; see api.Consumer.Seek.
func (t *Tree) Seek(ctx context.Context, to rebalance.StartPosition, partitions []kafka.TopicPartition) error {
	return t.seek(ctx, nil, to, partitions)
}

func (t *Tree) seek(ctx context.Context, key *capability.Key, to rebalance.StartPosition, named []kafka.TopicPartition) error {
	if err := seekable(to); err != nil {
		return err
	}
	op := &seekOperation{to: to, named: named, atOnce: t.InHandler(ctx)}
	ctx, end := t.beyondItself(ctx)
	defer end()
	if err := t.do(ctx, key, op); err != nil {
		return err
	}
	return t.await(ctx, op.waiter)
}

// seekable refuses what is no position.
func seekable(to rebalance.StartPosition) error {
	if err := to.Validate(); err != nil {
		return fmt.Errorf("troupe: seek: %w", err)
	}
	if policy, ok := to.Policy(); ok && policy == rebalance.ResetNone {
		return fmt.Errorf("troupe: seek: %w", &rebalance.StartPositionError{
			Position: to, Want: "StartAtOffset, or StartBy with ResetEarliest, ResetLatest, ResetAt or ResetByDuration",
		})
	}
	return nil
}
