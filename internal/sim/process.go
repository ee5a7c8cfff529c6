package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// errNoCoordinator is what a heartbeat or a leave fails with while the coordinator is not known.
var errNoCoordinator = errors.New("coordinator not known")

// process is one consumer: a tree of actors in one operating system process.
type process struct {
	w            *World
	slot, number int
	instance     string
	// offer is what it offers as assignors.
	offer        offer
	dead, frozen bool
	// struck: a disaster took the process and what it had on the wire.
	struck bool
	// ended is true after Left or Failed: nothing of it runs but handlers that have not returned.
	ended bool
	// closeBy is the deadline of Close, 0 before it, closeAsked when it began.
	closeBy, closeAsked int64
	// replace says that a new process starts when this one has ended.
	replace bool
	// seenAlive is when the coordinator last had a sign of life, wokeAt when the process last came back from a freeze.
	seenAlive, wokeAt int64
	// suspended says that the clock stands still while the process is frozen, as when the machine under it is suspended; behind is
	// how far that has put it behind by now, frozeAt when it was frozen last.
	suspended bool
	// resumedAt is when it was woken last from a suspension.
	behind, frozeAt, resumedAt int64

	boxes     []*mailbox
	group     *groupShell
	heartbeat *heartbeatShell
	committer *committerShell
	handlers  *handlerPool
	session   session
	pauses    pauseRegister
	users     *tokenUsers
	// gates keep G2; they outlive partitions. truths are the checker's.
	gates  []gate
	truths []*truth
	// positions are where partitions were left, for a mutant.
	positions []int64
}

// gate is a partition's place for one handler.
type gate struct {
	taken   bool
	epoch   kafka.AssignmentEpoch
	waiting *partitionShell
}

// start makes a process in a slot and lets its member join.
func (w *World) start(slot int) *process {
	w.nextProcess++
	p := &process{w: w, slot: slot, number: w.nextProcess, seenAlive: -1, session: session{w: w}, offer: w.offers[slot]}
	p.session.process = p
	if w.script.Static {
		p.instance = fmt.Sprintf("instance-%d", slot)
	}
	n := w.script.Partitions
	p.gates, p.positions = make([]gate, n), make([]int64, n)
	p.pauses = pauseRegister{paused: make([]bool, n), calls: make([]int, n), known: make([]bool, n)}
	for i := range p.positions {
		p.positions[i] = kafka.NoOffset
	}
	p.handlers = &handlerPool{w: w, process: p}
	p.handlers.box = p.newBox(p.handlers)
	p.group = newGroupShell(p)
	p.heartbeat = newHeartbeatShell(p)
	p.committer = newCommitterShell(p)
	p.group.newTokens()
	w.slots[slot] = p
	p.userSoon(userCommits)
	p.userSoon(userPauses)
	p.userSoon(userPlaces)
	p.userSoon(userControls)
	p.tokenSoon()
	p.group.feedLink(rebalance.LinkStart{})
	if w.script.changing() {
		p.group.refreshTopic()
	}
	p.group.feed(rebalance.Start{})
	return p
}

func (p *process) newBox(owner receiver) *mailbox {
	if len(p.boxes) > 24 {
		p.boxes = slices.DeleteFunc(p.boxes, func(b *mailbox) bool { return b.dead })
	}
	b := &mailbox{owner: owner, process: p, place: -1}
	p.boxes = append(p.boxes, b)
	return b
}

// crash ends a process as kill -9 does: handlers too, in the middle of their record.
func (p *process) crash() {
	if p.dead {
		return
	}
	p.dead = true
	for _, b := range p.boxes {
		p.w.kill(b)
	}
	p.w.check.crashed(p)
}

// at is the time by the process's clock, now the same as an instant.
func (p *process) at() int64 { return p.w.at - p.behind }

func (p *process) now() time.Time { return p.w.now.Add(-time.Duration(p.behind)) }

// freeze stops a process; time goes on without it.
func (p *process) freeze() {
	if p.dead || p.frozen {
		return
	}
	p.frozen, p.frozeAt = true, p.w.at
	for _, b := range p.boxes {
		p.w.rest(b)
	}
}

func (p *process) thaw() {
	if p.dead || !p.frozen {
		return
	}
	p.frozen = false
	p.wokeAt = p.w.at
	if p.suspended {
		p.behind += p.w.at - p.frozeAt
		p.resumedAt = p.w.at
	}
	if p.w.mutant == MutantWakeTrusted {
		p.session.until = p.at() + int64(p.w.script.Session)
	}
	for _, b := range p.boxes {
		p.w.wake(b)
	}
}

// finish ends the tree after Left or Failed. Handlers that have not returned go on until they do.
func (p *process) finish() {
	p.ended = true
	p.group.closeDesk()
	for _, v := range append(p.group.leaving, p.group.parts...) {
		if v != nil {
			v.shell.stop()
		}
	}
	for _, b := range p.boxes {
		if b != p.handlers.box {
			p.w.kill(b)
		}
	}
	if p.replace {
		p.w.timeline.push(p.w.at+p.w.rng.Int64N(int64(p.w.script.Session)), eventRestartSlot, int64(p.slot), p)
	}
}

// enterGate takes a partition's place for a handler; a waiter is told when it is free.
func (p *process) enterGate(part int, epoch kafka.AssignmentEpoch, waiter *partitionShell) bool {
	g := &p.gates[part]
	if p.w.mutant != MutantNoGate && g.taken {
		g.waiting = waiter
		return false
	}
	g.taken, g.epoch = true, epoch
	return true
}

func (p *process) leaveGate(part int, epoch kafka.AssignmentEpoch) {
	g := &p.gates[part]
	if !g.taken || g.epoch != epoch {
		return
	}
	waiting := g.waiting
	*g = gate{}
	if waiting != nil {
		p.w.post(waiting.box, message{kind: messagePlaceFree})
	}
}

// heartbeatShell is actors/heartbeat.go: it keeps the session alive and sends LeaveGroup.
type heartbeatShell struct {
	w       *World
	process *process
	box     *mailbox
	pulse   *rebalance.Pulse
	alarm   alarm
	broker  int
	stable  bool
	member  string
	gen     kafka.Generation
	busy    *call
	queue   []*call
	// enteredAt, and whether a heartbeat was sent and answered since, are for the checker.
	enteredAt       int64
	asked, answered bool
}

func newHeartbeatShell(p *process) *heartbeatShell {
	pulse, err := rebalance.NewPulse(rebalance.PulseConfig{
		HeartbeatInterval: p.w.script.Heartbeat, SessionTimeout: p.w.script.Session,
	})
	if err != nil {
		panic(err)
	}
	h := &heartbeatShell{w: p.w, process: p, pulse: pulse, gen: kafka.NoGeneration}
	h.box = p.newBox(h)
	h.alarm.box = h.box
	return h
}

func (h *heartbeatShell) receive(m *message) {
	switch m.kind { //nolint:exhaustive // the other messages are not for this actor
	case messageRing:
		if h.w.rang(&h.alarm, m.payload.(*alarm)) {
			h.feed(rebalance.PulseTick{})
		}
	case messageCoordinatorKnown:
		h.broker, h.stable = int(m.seq), m.offset == 1
		if h.stable {
			h.feed(rebalance.PulseNudge{})
		}
	case messageGenerationEntered:
		h.member, h.gen = m.payload.(string), kafka.Generation(m.gen)
		h.enteredAt, h.asked, h.answered = h.w.at, false, false
		h.process.session.begin(m.at)
		h.feed(rebalance.PulseEnter{Generation: h.gen, Early: m.offset == 1})
		if h.w.mutant != MutantNoNudge {
			h.feed(rebalance.PulseNudge{})
		}
	case messageGenerationJoined:
		if h.gen != kafka.NoGeneration {
			h.member, h.gen = m.payload.(string), kafka.Generation(m.gen)
			h.feed(rebalance.PulseJoin{Generation: h.gen})
		}
	case messageGenerationLeft:
		h.gen = kafka.NoGeneration
		h.feed(rebalance.PulseLeave{})
	case messageLeaveGroup:
		h.leave(m.payload.(*call))
	case messageCallDone:
		h.done(m.payload.(*call))
	default:
		h.w.unknownMessage(h, m)
	}
}

func (h *heartbeatShell) feed(in rebalance.PulseInput) {
	effects, err := h.pulse.Step(h.process.now(), in)
	h.w.check.machine(err)
	h.w.check.machine(h.pulse.Valid())
	for _, effect := range effects {
		switch e := effect.(type) {
		case rebalance.SendHeartbeat:
			h.asked = true
			h.do(&call{
				api: apiHeartbeat, process: h.process, box: h.box, member: h.member, instance: h.process.instance,
				gen: e.Generation, sentAt: e.SentAt, deadline: int64(e.Deadline.Sub(epochStart)), broker: h.broker,
			})
		case rebalance.SessionLapsed:
			h.process.session.lapse()
			h.w.post(h.process.group.box, message{kind: messageSessionLapsed, gen: int32(e.Generation)})
		}
	}
	at, ok := h.pulse.Deadline()
	h.w.setAlarm(&h.alarm, at, ok)
}

// do makes one call after the other.
func (h *heartbeatShell) do(c *call) {
	h.queue = append(h.queue, c)
	h.next()
}

func (h *heartbeatShell) next() {
	if h.busy != nil || len(h.queue) == 0 {
		return
	}
	c := h.queue[0]
	h.queue = h.queue[1:]
	h.busy = c
	draining := h.process.group.member.State() == rebalance.StateRevoking
	if !h.stable || draining && h.w.mutant == MutantNoHeartbeatInDrain {
		c.err = errNoCoordinator
		h.w.finish(c)
		return
	}
	limit := h.w.script.Request
	if c.api == apiHeartbeat {
		limit = max(1, time.Duration(c.deadline-h.process.at()))
	}
	h.w.send(c, limit)
}

func (h *heartbeatShell) done(c *call) {
	if c != h.busy {
		return
	}
	h.busy = nil
	defer h.next()
	group := h.process.group.box
	if c.err != nil && c.err != errNoCoordinator {
		h.w.post(group, message{kind: messageCoordinatorDoubted, seq: uint64(c.broker), err: c.err})
	}
	if c.api == apiLeave {
		h.w.post(group, message{kind: messageLeaveAnswered, seq: c.seq, err: c.err})
		return
	}
	if _, coded := errors.AsType[kafka.ErrorCode](c.err); c.gen == h.gen && (c.err == nil || coded) {
		h.answered = true
	}
	h.feed(rebalance.PulseAnswered{SentAt: c.sentAt, Err: c.err})
	if h.w.twice() {
		h.feed(rebalance.PulseAnswered{SentAt: c.sentAt, Err: c.err})
	}
	if c.gen == h.gen && (c.err == nil || errors.Is(c.err, kafka.RebalanceInProgress)) {
		h.process.session.alive(c.sentAt)
	}
	if c.gen == h.gen && c.err != errNoCoordinator {
		h.w.post(group, message{kind: messageHeartbeatAnswered, gen: int32(c.gen), err: c.err})
	}
}

// leave sends LeaveGroup; a heartbeat under way is cut off.
func (h *heartbeatShell) leave(c *call) {
	if !h.stable {
		h.w.post(h.process.group.box, message{kind: messageLeaveAnswered, seq: c.seq, err: errNoCoordinator})
		return
	}
	h.feed(rebalance.PulseLeave{})
	h.gen = kafka.NoGeneration
	h.queue = nil
	if h.busy != nil {
		abandon(h.busy)
		old := h.busy
		h.busy = nil
		old.err = errCut
		h.feed(rebalance.PulseAnswered{SentAt: old.sentAt, Err: old.err})
	}
	c.box, c.broker = h.box, h.broker
	h.do(c)
}
