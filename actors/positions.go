package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// positionsTimeout is how long one call of the start hook has; it is told of when it takes longer.
const positionsTimeout = 30 * time.Second

// positionsPurpose is what event.ConnectFailed says of trouble with the start hook.
const positionsPurpose = "start positions"

// errPositionsOverdue means that the start hook did not return when its context ended.
var errPositionsOverdue = errors.New("troupe: the positions function has not returned although its context has ended")

// startHook is the start queue's side of Settings.Positions: the user's function is asked by a worker, one question at a
// time, until it has an answer. Nobody but the partitions that wait to start waits for it.
type startHook struct {
	// work is made by the first question. What it runs is the user's code, which need not return: nobody waits for it.
	work    *worker
	running workerCount
	// asked has the epochs of the partitions that the question under way is about, nil while there is none; id numbers it.
	id    uint64
	asked map[kafka.TopicPartition]kafka.AssignmentEpoch
	// alarm is when the question under way is overdue, or when the next one is due after failures in a row.
	alarm    alarm
	failures int
}

// positionsAnswered: the start hook's worker -> group.
type positionsAnswered struct {
	silent
	id      uint64
	offsets map[kafka.TopicPartition]int64
	err     error
}

func (h *startHook) stop() {
	h.alarm.stop()
	if h.work != nil {
		h.work.stop()
	}
}

// askPositions asks the start hook for the partitions that wait, unless a question is under way or was refused just now.
func (g *group) askPositions() {
	h := &g.starts.hook
	if h.asked != nil || h.alarm.set {
		return
	}
	asked := make(map[kafka.TopicPartition]kafka.AssignmentEpoch)
	var partitions []kafka.TopicPartition
	for tp := range g.starts.waiting {
		if p := g.parts[tp]; p != nil {
			asked[tp] = p.epoch
			partitions = append(partitions, tp)
		}
	}
	if len(partitions) == 0 {
		return
	}
	slices.SortFunc(partitions, kafka.TopicPartition.Compare)
	if h.work == nil {
		h.work = newWorker(g.shared.sys, g.self, &h.running)
	}
	h.id++
	h.asked = asked
	h.alarm.setAt(g.shared.sys, g.self, time.Now().Add(positionsTimeout), true)
	id, positions := h.id, g.shared.settings.Positions
	h.work.do(func(ctx context.Context) any {
		ctx, cancel := context.WithTimeout(ctx, positionsTimeout)
		defer cancel()
		offsets, err := callPositions(ctx, positions, partitions)
		return &positionsAnswered{id: id, offsets: offsets, err: err}
	})
}

// callPositions calls the user's function, contains its panics, and copies what was asked for out of its answer.
func callPositions(ctx context.Context, positions PositionsFunc, partitions []kafka.TopicPartition) (offsets map[kafka.TopicPartition]int64, err error) {
	defer func() {
		if v := recover(); v != nil {
			offsets, err = nil, fmt.Errorf("troupe: the positions function panicked: %v", v)
		}
	}()
	answer, err := positions(ctx, slices.Clone(partitions))
	if err != nil {
		return nil, err
	}
	offsets = make(map[kafka.TopicPartition]int64, len(partitions))
	for _, tp := range partitions {
		if offset, ok := answer[tp]; ok {
			offsets[tp] = offset
		}
	}
	return offsets, nil
}

// positionsAnswered starts the partitions of the answer that are still owned under the epoch that was asked for.
func (g *group) positionsAnswered(ctx actor.Context, m *positionsAnswered) {
	h := &g.starts.hook
	if m.id != h.id || h.asked == nil {
		g.shared.staleMessage()
		return
	}
	asked := h.asked
	h.asked = nil
	h.alarm.stop()
	if m.err != nil {
		h.failures++
		backoff := g.shared.settings.Backoff
		delay := min(backoff.Initial<<min(h.failures-1, 16), backoff.Max)
		g.positionsTrouble(m.err, delay)
		h.alarm.setAt(g.shared.sys, g.self, time.Now().Add(delay), true)
		return
	}
	h.failures = 0
	for tp, epoch := range asked {
		if _, waiting := g.starts.waiting[tp]; !waiting || g.parts[tp] == nil || g.parts[tp].epoch != epoch {
			continue
		}
		offset, ok := m.offsets[tp]
		if ok && offset < 0 {
			g.refused(fmt.Errorf("troupe: the positions function returned offset %d for %s", offset, tp))
		}
		if !ok || offset < 0 {
			offset = kafka.NoOffset
		}
		if g.shared.standalone != nil {
			g.begin(ctx, tp, offset)
			continue
		}
		// Each by itself: that another one has an offset says nothing of how old this partition is.
		decisions := rebalance.DecideStarts(time.Now().UnixMilli(), tp.Topic,
			map[int32]rebalance.Committed{tp.Partition: {Offset: offset, LeaderEpoch: kafka.NoLeaderEpoch}},
			rebalance.GroupCommitsNone, g.parts[tp].registration.Reset)
		g.decided(ctx, tp, decisions[tp.Partition], CommittedOffset{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch})
	}
	g.assignedCallback(ctx)
	g.askPositions() // those that came meanwhile
}

// positionsAlarm asks again after a failure, or tells of a call that does not return.
func (g *group) positionsAlarm() {
	h := &g.starts.hook
	if h.asked == nil {
		g.askPositions()
		return
	}
	g.positionsTrouble(errPositionsOverdue, 0)
	h.alarm.setAt(g.shared.sys, g.self, time.Now().Add(positionsTimeout), true)
}

func (g *group) positionsTrouble(err error, retryIn time.Duration) {
	g.shared.board.troubled(err)
	g.shared.observe(event.ConnectFailed{Member: g.shared.member(), Purpose: positionsPurpose, Err: err, RetryIn: retryIn})
	g.shared.logger.Warn("start positions are not known", zap.Error(err), zap.Duration("retry_in", retryIn))
}
