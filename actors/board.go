package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// board is where the actors publish what Stats, Healthy and WaitJoined read. Readers never wait for an actor.
type board struct {
	acks          ackCounts
	staleMessages atomic.Uint64
	// rounds counts the commit rounds sent.
	rounds atomic.Uint64

	// standalone is true without a group: Healthy then goes by metadata in place of heartbeats.
	standalone bool

	mu            sync.Mutex
	groupID       string
	memberID      string
	generation    kafka.Generation
	state         rebalance.State
	link          rebalance.LinkState
	leader        bool
	lastHeartbeat time.Time
	// lastSign is the last sign of life in the group: a heartbeat that was answered, or the SyncGroup of the generation.
	lastSign      time.Time
	rebalances    uint64
	lastEpoch     kafka.AssignmentEpoch
	cells         map[kafka.TopicPartition]*cell
	missingTopics []string
	absent        []kafka.TopicPartition
	subscription  []string
	ledger        []capability.Grant
	joined        bool
	// trouble is why the member cannot join; troubles numbers them, told is the last one that WaitJoined returned.
	trouble        error
	troubles, told uint64
	// attempt is the last request of a rebalance that failed, until the rebalance ends; waiting is since when the member has had no
	// settled place in the group, zero while it has one.
	attempt error
	waiting time.Time
	changed chan struct{}
}

// ackCounts counts acknowledgments that changed nothing.
type ackCounts struct{ stale, repeated, foreign atomic.Uint64 }

func newBoard(groupID string) *board {
	return &board{groupID: groupID, generation: kafka.NoGeneration, cells: make(map[kafka.TopicPartition]*cell), changed: make(chan struct{})}
}

// condition is why a partition's records flow or do not.
type condition int32

const (
	conditionWaiting condition = iota
	conditionFlowing
	conditionWindowFull
	conditionBackingOff
	conditionPaused
	conditionFailed
	conditionUserPaused
	conditionRead
)

// String returns the word that PartitionStats documents.
func (c condition) String() string {
	return [...]string{"waiting", "flowing", "window_full", "backing_off", "paused", "failed", "user_paused", "read"}[c]
}

// cell is one partition's place on the board; its partition actor and the committer write it.
type cell struct {
	tp    kafka.TopicPartition
	epoch kafka.AssignmentEpoch

	state     atomic.Int32
	condition atomic.Int32
	position  atomic.Int64
	finished  atomic.Int64
	committed atomic.Int64
	// finishedEpoch is the leader epoch of finished, topicID the incarnation of the topic, nil before it is known.
	finishedEpoch atomic.Int32
	topicID       atomic.Pointer[kafka.TopicID]
	end           atomic.Int64
	// limit is where the reading ends.
	limit       atomic.Int64
	inTransit   atomic.Int64
	delivered   atomic.Uint64
	acked       atomic.Uint64
	redelivered atomic.Uint64
	restarts    atomic.Uint64
	skipped     atomic.Uint64
	delivery    atomic.Pointer[Delivery]
	engine      atomic.Pointer[engine]
	// pid is the partition actor, nil before it has started; reasons are why nothing more is delivered now.
	pid     atomic.Pointer[actor.PID]
	reasons atomic.Uint32
	// blocked is what the watch says, nil while the commit moves.
	blocked atomic.Pointer[BlockedCommit]
	// stuck is what the partition says, nil while it can be read.
	stuck atomic.Pointer[StuckPartition]
	// offer is the latest offset offered that the committer has not taken.
	offer atomic.Pointer[commit.Offset]
	// unplaced counts the offsetPlaced that are on their way to the committer: what is offered after them must not go before.
	unplaced atomic.Int32
	// offered is the message that says so.
	offered offsetOffered
	// confirmed is set when the final commit was, and nothing was finished after it was asked for.
	confirmed atomic.Bool
	// lost is set by the group the moment that ownership is lost: the partition may be busy and hear of it late.
	lost atomic.Bool
	// sought is the position that was asked for last, nil once an offset of its position epoch is committed.
	sought atomic.Pointer[sought]
	// left is the engine of the position before, while calls of it run.
	left atomic.Pointer[engine]
	// positionEpoch lies outside of the cell for a round that is under way, which is not to keep a partition that is gone. It outlives the partition actor's incarnations, as the committer's view of the epoch does.
	positionEpoch *atomic.Uint32
}

func newCell(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) *cell {
	c := &cell{tp: tp, epoch: epoch, positionEpoch: new(atomic.Uint32)}
	c.offered.cell = c
	c.finishedEpoch.Store(kafka.NoLeaderEpoch)
	for _, offset := range []*atomic.Int64{&c.position, &c.finished, &c.committed, &c.end, &c.limit} {
		offset.Store(kafka.NoOffset)
	}
	return c
}

// currentOffset is what the gate reports as being worked on.
func (c *cell) currentOffset() int64 {
	if d := c.delivery.Load(); d != nil {
		return d.currentOffset()
	}
	offset, _ := c.oldest()
	return offset
}

// oldest is the call of an engine that runs for the longest time; those of a position that was left come first.
func (c *cell) oldest() (offset int64, since time.Time) {
	for _, e := range [...]*engine{c.left.Load(), c.engine.Load()} {
		if e == nil {
			continue
		}
		if offset, since = e.oldest(); !since.IsZero() {
			return offset, since
		}
	}
	return kafka.NoOffset, time.Time{}
}

// lose stops deliveries at once, before the partition has heard that it is lost.
func (c *cell) lose() {
	c.lost.Store(true)
	if d := c.delivery.Load(); d != nil {
		d.halt()
	}
	if e := c.engine.Load(); e != nil {
		e.stop()
	}
}

func (c *cell) stats() PartitionStats {
	s := PartitionStats{
		TopicPartition: c.tp, Epoch: c.epoch,
		State:     rebalance.PartitionState(c.state.Load()).String(),
		Condition: condition(c.condition.Load()).String(),
		Position:  c.position.Load(), Committed: c.committed.Load(), InTransit: int(c.inTransit.Load()),
		Delivered: c.delivered.Load(), Acked: c.acked.Load(), Redelivered: c.redelivered.Load(),
		Restarts: c.restarts.Load(), Skipped: c.skipped.Load(), HandlerOffset: kafka.NoOffset, End: c.limit.Load(),
	}
	if end := c.end.Load(); end >= 0 && s.Position >= 0 {
		s.Lag, s.LagKnown = max(end-s.Position, 0), true
	}
	if d := c.delivery.Load(); d != nil {
		s.HandlerSince, s.HandlerOffset = d.started, d.currentOffset()
	} else {
		s.HandlerOffset, s.HandlerSince = c.oldest()
	}
	s.PauseReasons = pauseReasons(c.reasons.Load())
	s.Blocked, s.Stuck = c.blocked.Load(), c.stuck.Load()
	return s
}

// memberState is the member's state.
func (b *board) memberState() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state.String()
}

// change runs an update and wakes whoever waits for one.
func (b *board) change(update func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	update()
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *board) moved(to rebalance.State, generation kafka.Generation, memberID string) {
	b.change(func() {
		b.state, b.generation, b.memberID = to, generation, memberID
		switch {
		case b.placed():
			b.waiting = time.Time{}
		case b.waiting.IsZero():
			b.waiting = time.Now()
		}
		if to == rebalance.StateAssigned {
			b.joined, b.trouble, b.attempt = true, nil, nil
		}
	})
}

func (b *board) linked(state rebalance.LinkState) {
	b.change(func() {
		b.link = state
		if state == rebalance.LinkStable {
			b.trouble = nil
		}
	})
}

// entered notes a generation, and when its SyncGroup was sent.
func (b *board) entered(leader bool, sent time.Time) {
	b.change(func() {
		b.leader, b.lastSign = leader, sent
		b.rebalances++
	})
}

// troubled keeps the latest reason why the member cannot join; WaitJoined returns it.
func (b *board) troubled(err error) {
	b.change(func() {
		b.trouble = err
		b.troubles++
	})
}

// attempted notes a request of a rebalance that failed. Other than a trouble it is not forgotten when the coordinator is found
// again: it is the group that does not answer.
func (b *board) attempted(err error) {
	b.troubled(err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempt = err
}

// clusterReached forgets why a consumer without a group could not reach its brokers. In a group it is the coordinator that
// has to be reached.
func (b *board) clusterReached() {
	if !b.standalone {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trouble = nil
}

func (b *board) absentees(partitions []kafka.TopicPartition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.absent = partitions
}

func (b *board) missing(topics []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.missingTopics = topics
}

func (b *board) subscribed(topics []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscription = topics
}

// tokens notes who has a token.
func (b *board) tokens(ledger []capability.Grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ledger = ledger
}

func (b *board) hasJoined() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.joined
}

// beat notes the last answered heartbeat by the time it was sent.
func (b *board) beat(sent time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastHeartbeat, b.lastSign = sent, sent
}

func (b *board) add(c *cell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cells[c.tp] = c
}

func (b *board) remove(tp kafka.TopicPartition, epoch kafka.AssignmentEpoch) {
	b.change(func() {
		if c := b.cells[tp]; c != nil && c.epoch == epoch {
			delete(b.cells, tp)
		}
	})
}

// changes returns what is closed when something has changed: the member's state, which partitions there are, or where one begins.
func (b *board) changes() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// owned lists the partitions owned now.
func (b *board) owned() []*cell {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sortedCells()
}

func (b *board) sortedCells() []*cell {
	out := make([]*cell, 0, len(b.cells))
	for _, c := range b.cells {
		out = append(out, c)
	}
	slices.SortFunc(out, func(x, y *cell) int { return x.tp.Compare(y.tp) })
	return out
}

// stats takes the snapshot, without what other registers know.
func (b *board) stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Stats{
		GroupID: b.groupID, MemberID: b.memberID, Generation: b.generation, State: b.state.String(), Coordinator: b.link.String(),
		Leader: b.leader, LastHeartbeat: b.lastHeartbeat, Rebalances: b.rebalances,
		StaleAcks: b.acks.stale.Load(), RepeatedAcks: b.acks.repeated.Load(), ForeignAcks: b.acks.foreign.Load(),
		StaleMessages: b.staleMessages.Load(), MissingTopics: slices.Clone(b.missingTopics),
		MissingPartitions: slices.Clone(b.absent),
		Subscription:      slices.Clone(b.subscription),
	}
	for _, g := range b.ledger {
		s.Tokens = append(s.Tokens, TokenStats{Holder: string(g.Holder), Operation: g.Op, Since: g.Since, Partitions: slices.Clone(g.Partitions)})
	}
	for _, c := range b.sortedCells() {
		s.Partitions = append(s.Partitions, c.stats())
	}
	return s
}

// uncommitted lists the partitions with finished work that was not confirmed.
func (b *board) uncommitted() []UncommittedPartition {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []UncommittedPartition
	for _, c := range b.sortedCells() {
		if finished, committed := c.finished.Load(), c.committed.Load(); finished > committed {
			out = append(out, UncommittedPartition{TopicPartition: c.tp, Committed: committed, Pending: finished})
		}
	}
	return out
}

// ErrNotHealthy is wrapped by every error of Healthy.
var ErrNotHealthy = errors.New("troupe: consumer is not healthy")

// placed reports whether the member has its place in a generation. The caller holds mu.
func (b *board) placed() bool {
	return b.state == rebalance.StateAssigned || b.state == rebalance.StateAssigning || b.state == rebalance.StateRevoking
}

// unplaced says what the member is doing instead, for how long, and what has failed. The caller holds mu.
func (b *board) unplaced(now time.Time) error {
	err := fmt.Errorf("%w: member is %v", ErrNotHealthy, b.state)
	if !b.waiting.IsZero() {
		err = fmt.Errorf("%w for %v", err, now.Sub(b.waiting).Round(time.Millisecond))
	}
	why := b.trouble
	if why == nil {
		why = b.attempt
	}
	if why == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, why)
}

// healthy says what is wrong, nil for nothing.
func (b *board) healthy(now time.Time, session time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	silent := !b.lastSign.IsZero() && now.Sub(b.lastSign) > session
	if !b.placed() && (silent || !b.rebalancing()) {
		return b.unplaced(now)
	}
	if b.standalone && b.trouble != nil {
		return fmt.Errorf("%w: %w", ErrNotHealthy, b.trouble)
	}
	if silent {
		return fmt.Errorf("%w: no heartbeat was answered for %v", ErrNotHealthy, now.Sub(b.lastSign).Round(time.Millisecond))
	}
	for _, c := range b.sortedCells() {
		if how := condition(c.condition.Load()); how == conditionPaused || how == conditionFailed {
			return fmt.Errorf("%w: %s is %v at offset %d", ErrNotHealthy, c.tp, how, c.finished.Load())
		}
		if stuck := c.stuck.Load(); stuck != nil {
			err := fmt.Errorf("%w: %s cannot be read on at offset %d for %v: waiting for %s", ErrNotHealthy, c.tp, stuck.Offset,
				now.Sub(stuck.Since).Round(time.Millisecond), stuck.Waiting)
			if stuck.Err != nil {
				err = fmt.Errorf("%w: %w", err, stuck.Err)
			}
			return err
		}
	}
	return nil
}

// rebalancing reports whether the member joins again in a group that it has not lost. Whoever restarted it for that would add
// a rebalance to the rebalance. It is given a session, as its heartbeats are.
func (b *board) rebalancing() bool {
	again := b.state == rebalance.StateJoining || b.state == rebalance.StateSyncing || b.state == rebalance.StateRevoked
	return again && b.generation != kafka.NoGeneration && b.trouble == nil && !b.lastSign.IsZero()
}

// waitJoined waits for the first ASSIGNED. It returns the reason when joining is not possible for now, each reason once.
func (b *board) waitJoined(ctx context.Context, done <-chan struct{}, ended func() error) error {
	for {
		select {
		case <-done:
			if err := ended(); err != nil {
				return err
			}
			return ErrClosing
		default:
		}
		b.mu.Lock()
		joined, trouble, changed := b.joined, b.trouble, b.changed
		fresh := trouble != nil && b.troubles != b.told
		if fresh && !joined {
			b.told = b.troubles
		}
		b.mu.Unlock()
		switch {
		case joined:
			return nil
		case fresh:
			return trouble
		}
		select {
		case <-changed:
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("troupe: waiting to join: %w", endOf(ctx))
		}
	}
}

// ownNothing empties the board after the group actor died with everything it owned.
func (b *board) ownNothing() {
	b.change(func() {
		b.generation, b.state, b.leader = kafka.NoGeneration, rebalance.StateUnjoined, false
		b.cells, b.absent = make(map[kafka.TopicPartition]*cell), nil
	})
}

// granted keeps the last assignment epoch, so that epochs go on rising when the group actor is replaced.
func (b *board) granted(last kafka.AssignmentEpoch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastEpoch = last
}

// identity is what a new group actor goes on with: the member id, so that the old member does not hold up the group, and
// the last epoch.
func (b *board) identity() (memberID string, last kafka.AssignmentEpoch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.memberID, b.lastEpoch
}
