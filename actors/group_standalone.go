package actors

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// membership decides what this consumer owns: *rebalance.Member in a group, *rebalance.Standalone without one. The group
// actor steps it and runs its effects; what the effects do is the same for both.
type membership interface {
	Step(now time.Time, in rebalance.Input) ([]rebalance.Effect, error)
	Deadline() (time.Time, bool)
	State() rebalance.State
	LastEpoch() kafka.AssignmentEpoch
}

// newMembership returns the machine of this incarnation of the group actor.
func (g *group) newMembership() membership {
	if alone := g.shared.standalone; alone != nil {
		alone.machine = alone.machine.Successor()
		g.subscription = g.shared.handlers.Load().selection.Topics(nil)
		return alone.machine
	}
	return g.newMember()
}

// standalone is what a consumer without a group keeps beyond the life of its group actor: in a group, the coordinator would
// know it.
type standalone struct {
	// machine is the group actor's.
	machine *rebalance.Standalone

	mu sync.Mutex
	// progress is how far partitions had come when a group actor died.
	progress map[kafka.TopicPartition]progress
	// ends is where the reading of partitions ends, as far as it is known: it is found once.
	ends map[kafka.TopicPartition]int64
}

// progress is a partition's first offset that is not finished, with its leader epoch and the topic's incarnation.
type progress struct {
	offset      int64
	leaderEpoch int32
	topicID     kafka.TopicID
}

func newStandalone(config *rebalance.StandaloneConfig) *standalone {
	if config == nil {
		return nil
	}
	machine, err := rebalance.NewStandalone(*config)
	if err != nil {
		panic(err) // the settings are checked
	}
	return &standalone{machine: machine, progress: make(map[kafka.TopicPartition]progress), ends: make(map[kafka.TopicPartition]int64)}
}

// remember keeps how far partitions have come whose group actor is dead. Handlers that still run may finish more: that comes
// again, as in a group.
func (s *standalone) remember(cells []*cell) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range cells {
		if reached, begun := c.progress(); begun {
			s.progress[c.tp] = reached
		}
	}
}

func (s *standalone) remembered(tp kafka.TopicPartition) (progress, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, ok := s.progress[tp]
	return before, ok
}

// endAt notes where a partition's reading ends, end returns it.
func (s *standalone) endAt(tp kafka.TopicPartition, end int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends[tp] = end
}

func (s *standalone) end(tp kafka.TopicPartition) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.ends[tp]
	return end, ok
}

// progress returns how far the partition has come, and false when it has not begun under this epoch.
func (c *cell) progress() (progress, bool) {
	// Written in the other order: an epoch that is newer than the offset's says less, one that is older would look like a
	// truncation.
	reached := progress{offset: c.finished.Load()}
	reached.leaderEpoch = c.finishedEpoch.Load()
	if id := c.topicID.Load(); id != nil {
		reached.topicID = *id
	}
	return reached, reached.offset >= 0
}

// begin decides where a partition begins without a group. stored is the offset kept for it outside of Kafka, kafka.NoOffset
// for none.
func (g *group) begin(ctx actor.Context, tp kafka.TopicPartition, stored int64) {
	alone, p := g.shared.standalone, g.parts[tp]
	if p == nil {
		g.starts.remove(tp)
		return
	}
	known := rebalance.Reached{Stored: stored, Finished: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}
	before, begun := p.cell.progress() // its actor has failed
	if !begun {
		before, begun = alone.remembered(tp)
	}
	if begun {
		known.Finished, known.LeaderEpoch = before.offset, before.leaderEpoch
		t := g.metadata.topics[tp.Topic]
		known.Anew = t != nil && !t.ID.IsZero() && !before.topicID.IsZero() && t.ID != before.topicID
	}
	g.decided(ctx, tp, alone.machine.Begin(time.Now().UnixMilli(), tp, known), CommittedOffset{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch})
}

// missPartitions tells of assigned partitions that their topic does not have. They are looked for as missing topics are.
func (g *group) missPartitions(e rebalance.MissPartitions) {
	for _, tp := range e.Partitions {
		if slices.Contains(g.absent, tp) {
			continue
		}
		g.shared.observe(event.PartitionMissing{Member: g.shared.member(), TopicPartition: tp})
		g.shared.logger.Warn("partition is missing", zap.String("topic", tp.Topic), zap.Int32("partition", tp.Partition))
	}
	g.absent = e.Partitions
	g.shared.board.absentees(e.Partitions)
}

// rangeRead tells the membership of a partition that is read to its end.
func (g *group) rangeRead(ctx actor.Context, m *rangeRead) {
	if g.part(m.tp, m.epoch) != nil {
		g.feed(ctx, rebalance.RangeRead{TopicPartition: m.tp, Epoch: m.epoch, Undone: m.undone})
	}
}

// allRead ends the consumer: what it is for is done.
func (g *group) allRead(ctx actor.Context) {
	g.shared.logger.Info("all ranges are read")
	g.closeByItself(ctx, nil)
}

// trust keeps the session from ever being over: without a group there is no membership that could be lost.
func (s *session) trust() { s.until.Store(math.MaxInt64) }
