package actors

import (
	"context"
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// errNoCoordinator is what a heartbeat, a commit or a leave fails with while the coordinator is not known.
var errNoCoordinator = errors.New("troupe: coordinator not known")

// heartbeat keeps the member's session alive, with a connection and a clock of its own: nothing that handlers, fetches or
// commits do can hold it up. It also sends LeaveGroup.
type heartbeat struct {
	shared *shared
	self   *actor.PID
	group  *actor.PID

	pulse       *rebalance.Pulse
	alarm       alarm
	client      HeartbeatClient
	work        *worker
	coordinator kafka.Broker
	stable      bool
	memberID    string
	generation  kafka.Generation
}

// heartbeatDone: the heartbeat's worker -> heartbeat.
type heartbeatDone struct {
	silent
	generation  kafka.Generation
	coordinator kafka.Broker
	sentAt      time.Time
	err         error
}

// leaveDone: the heartbeat's worker -> heartbeat.
type leaveDone struct {
	silent
	seq         uint64
	coordinator kafka.Broker
	err         error
}

func newHeartbeat(s *shared) *heartbeat {
	return &heartbeat{shared: s, generation: kafka.NoGeneration}
}

// Receive implements actor.Actor.
func (h *heartbeat) Receive(ctx actor.Context) { h.receive(ctx, ctx.Message()) }

func (h *heartbeat) receive(ctx actor.Context, message any) {
	switch m := message.(type) {
	case *actor.Started:
		h.self, h.group = ctx.Self(), ctx.Parent()
		h.client = h.shared.network.Heartbeat()
		h.work = newWorker(h.shared.sys, h.self, &h.shared.workers)
		pulse, err := rebalance.NewPulse(rebalance.PulseConfig{
			HeartbeatInterval: h.shared.settings.HeartbeatInterval, SessionTimeout: h.shared.settings.SessionTimeout,
		})
		if err != nil {
			panic(err)
		}
		h.pulse = pulse
	case *actor.Stopping:
		h.alarm.stop()
		h.work.stop()
		h.client.Close()
	case *workDone:
		h.receive(ctx, m.worker.finished(m))
	case *alarmRang:
		if h.alarm.rang(m) {
			h.feed(ctx, rebalance.PulseTick{})
		}
	case *coordinatorKnown:
		h.coordinator, h.stable = m.broker, m.stable
		if m.stable {
			h.feed(ctx, rebalance.PulseNudge{})
		}
	case *generationEntered:
		h.memberID, h.generation = m.memberID, m.generation
		h.shared.session.begin(m.since)
		h.feed(ctx, rebalance.PulseEnter{Generation: m.generation, Early: m.early})
		// At once: in a process that was frozen, the answer that brought the generation may have waited for long.
		h.feed(ctx, rebalance.PulseNudge{})
	case *generationJoined:
		if h.generation != kafka.NoGeneration {
			h.memberID, h.generation = m.memberID, m.generation
			h.feed(ctx, rebalance.PulseJoin{Generation: m.generation})
		}
	case *generationLeft:
		h.generation = kafka.NoGeneration
		h.feed(ctx, rebalance.PulseLeave{})
	case *heartbeatDone:
		h.answered(ctx, m)
	case *leaveGroup:
		h.leave(ctx, m)
	case *leaveDone:
		if m.err != nil {
			ctx.Send(h.group, &coordinatorDoubted{broker: m.coordinator, err: m.err})
		}
		ctx.Send(h.group, &leaveAnswered{seq: m.seq, err: m.err})
	}
}

func (h *heartbeat) feed(ctx actor.Context, in rebalance.PulseInput) {
	effects, err := h.pulse.Step(time.Now(), in)
	if err != nil {
		panic(err)
	}
	for _, effect := range effects {
		switch e := effect.(type) {
		case rebalance.SendHeartbeat:
			h.send(e)
		case rebalance.SessionLapsed:
			h.shared.session.lapse()
			ctx.Send(h.group, &sessionLapsed{generation: e.Generation})
		}
	}
	at, ok := h.pulse.Deadline()
	h.alarm.setAt(h.shared.sys, h.self, at, ok)
}

func (h *heartbeat) send(e rebalance.SendHeartbeat) {
	settings := &h.shared.settings
	request := rebalance.HeartbeatRequest{
		GroupID: settings.GroupID, MemberID: h.memberID, GroupInstanceID: settings.GroupInstanceID, Generation: e.Generation,
	}
	coordinator, stable := h.coordinator, h.stable
	h.work.do(func(c context.Context) any {
		done := &heartbeatDone{generation: e.Generation, coordinator: coordinator, sentAt: e.SentAt, err: errNoCoordinator}
		if stable {
			c, cancel := context.WithDeadline(c, e.Deadline)
			defer cancel()
			done.err = h.client.Heartbeat(c, coordinator, request)
		}
		return done
	})
}

func (h *heartbeat) answered(ctx actor.Context, m *heartbeatDone) {
	if m.err == nil {
		h.shared.board.beat(m.sentAt)
	} else if !errors.Is(m.err, errNoCoordinator) {
		ctx.Send(h.group, &coordinatorDoubted{broker: m.coordinator, err: m.err})
	}
	h.feed(ctx, rebalance.PulseAnswered{SentAt: m.sentAt, Err: m.err})
	if m.generation == h.generation && (m.err == nil || errors.Is(m.err, kafka.RebalanceInProgress)) {
		h.shared.session.alive(m.sentAt)
	}
	if m.generation == h.generation && !errors.Is(m.err, errNoCoordinator) {
		ctx.Send(h.group, &heartbeatAnswered{generation: m.generation, err: m.err})
	}
}

// leave sends LeaveGroup. A heartbeat that is still under way is cut off: nobody needs its answer any more.
func (h *heartbeat) leave(ctx actor.Context, m *leaveGroup) {
	if !h.stable {
		ctx.Send(h.group, &leaveAnswered{seq: m.seq, err: errNoCoordinator})
		return
	}
	h.feed(ctx, rebalance.PulseLeave{})
	h.generation = kafka.NoGeneration
	coordinator := h.coordinator
	h.work.abort()
	h.work.do(func(c context.Context) any {
		return &leaveDone{seq: m.seq, coordinator: coordinator, err: h.client.Leave(c, coordinator, m.request)}
	})
}
