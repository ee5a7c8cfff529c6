package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Violation is a guarantee that did not hold.
type Violation struct {
	// Guarantee is its name in the design (G1 ...), or one of STATE (an illegal state or input of a machine), ID (a member id
	// was lost), SPIN (no time passes) and PROGRESS (the group did not settle once faults had stopped).
	// WOKEN and ENTERED: a process that woke did what it could have known to be too late. PAUSE: a record began while its
	// partition was paused. STRATEGY: offsets were sent that no strategy or flush asked for. KEPT: something happened to a partition
	// that its member keeps over a rebalance. HELD: a commit went out between JoinGroup and SyncGroup. CLAIM: a JoinGroup says
	// what is not so. STATIC: a static member left, or came back after another process took its place. LOG: records or commits
	// belong to a log that is another one by now. SEEK: something was stored below where a run of positions began. SKIP: a record
	// was skipped that was not open, or handled afterwards. PLACED: a commit over several partitions was done by halves. TOKEN: a
	// partition was under two tokens, or somebody had or used one without a right to.
	Guarantee string
	// Text says what happened.
	Text string
	// At is the virtual time, Step the number of steps done.
	At   time.Duration
	Step int
}

// String is the violation in one line.
func (v *Violation) String() string {
	return fmt.Sprintf("%s at %v, step %d: %s", v.Guarantee, v.At, v.Step, v.Text)
}

// Stats counts what happened in runs.
type Stats struct {
	Histories, Steps                                   int
	Virtual                                            time.Duration
	Records, Redelivered, Commits, RoundsFailed, Moves int
	Losses, Abandoned, Stale, Overlaps, Processes      int
	// Woken counts records that were begun, LateCommits rounds that were sent, when the coordinator had heard nothing for a
	// session: by a process that just woke, where the last look at the clock was before the freeze (a handler that is too
	// fast to look before each record, a round behind a look-up).
	Woken, LateCommits int
	// Maps counts offsets stored with an offset map, TooLarge those refused with it, Ignored the maps that were not believed,
	// Skipped the records not delivered since a map says that they are finished, Pauses the calls of Pause.
	Maps, TooLarge, Ignored, Skipped, Pauses int
	// Parallel counts records begun while another one of their partition was out, Parked the lanes that waited for another try,
	// Closed how often an engine's window closed, Demands the commits that users asked for and got.
	Parallel, Parked, Closed, Demands int
	// Placed counts the offsets that users committed by themselves.
	Placed int
	// Kept counts records that were begun while their member had a JoinGroup or SyncGroup under way, Inconsistent the JoinGroups
	// refused with INCONSISTENT_GROUP_PROTOCOL, Returned the static members that came back without a rebalance.
	Kept, Inconsistent, Returned int
	// Truncated counts fetches that told of a log that has lost its end, Recreated how often the topic was made anew, Stray the
	// offsets that were stored for what is gone by then.
	Truncated, Recreated, Stray int
	// Tokens, TokensRefused and TokensRevoked count the answers to who asked for a token, and those taken from their holders; Handed
	// those given on, Operations and OperationsRefused control calls, Seeks positions sought, Callbacks those of rebalances.
	Tokens, TokensRefused, TokensRevoked, Handed, Operations, OperationsRefused, Seeks, Callbacks int
	// SeeksForward counts the seeks beyond what was delivered, Passed the records that seeks passed over unfinished; Skips and SkipsRefused
	// the answers to Skip, PlacedTogether the commits over several partitions that were confirmed.
	SeeksForward, Passed, Skips, SkipsRefused, PlacedTogether int
	// Suspended counts what a process did whose clock had stood still, before its first answer.
	Suspended int
}

// Add adds another run's figures.
func (s *Stats) Add(o Stats) {
	s.Histories += o.Histories
	s.Steps += o.Steps
	s.Virtual += o.Virtual
	s.Records += o.Records
	s.Redelivered += o.Redelivered
	s.Commits += o.Commits
	s.RoundsFailed += o.RoundsFailed
	s.Moves += o.Moves
	s.Losses += o.Losses
	s.Abandoned += o.Abandoned
	s.Stale += o.Stale
	s.Overlaps += o.Overlaps
	s.Woken += o.Woken
	s.LateCommits += o.LateCommits
	s.Maps += o.Maps
	s.TooLarge += o.TooLarge
	s.Ignored += o.Ignored
	s.Skipped += o.Skipped
	s.Pauses += o.Pauses
	s.Parallel += o.Parallel
	s.Parked += o.Parked
	s.Closed += o.Closed
	s.Demands += o.Demands
	s.Placed += o.Placed
	s.Processes += o.Processes
	s.Kept += o.Kept
	s.Inconsistent += o.Inconsistent
	s.Returned += o.Returned
	s.Truncated += o.Truncated
	s.Recreated += o.Recreated
	s.Stray += o.Stray
	s.Suspended += o.Suspended
	s.Tokens += o.Tokens
	s.TokensRefused += o.TokensRefused
	s.TokensRevoked += o.TokensRevoked
	s.Handed += o.Handed
	s.Operations += o.Operations
	s.OperationsRefused += o.OperationsRefused
	s.Seeks += o.Seeks
	s.Callbacks += o.Callbacks
	s.SeeksForward += o.SeeksForward
	s.Passed += o.Passed
	s.Skips += o.Skips
	s.SkipsRefused += o.SkipsRefused
	s.PlacedTogether += o.PlacedTogether
}

// World is one run of a script.
type World struct {
	script Script
	mutant Mutant
	rng    *rand.Rand
	// extra decides what came to the scripts later, so that older ones run as they did.
	extra *rand.Rand
	// change decides what came later still: the protocols, the topic's changes, logs that lose their end under a running owner.
	change *rand.Rand
	// token decides what users do with tokens, control where they seek, what they skip, and what they commit together.
	token, control *rand.Rand

	// at is the virtual time since the beginning, now the same as an instant.
	at       int64
	now      time.Time
	timeline timeline
	runnable []*mailbox

	slots []*process
	// extras are processes whose slot another one took while they ran.
	extras []*process
	// offers is what the next process of each slot offers as assignors.
	offers      []offer
	nextProcess int
	coordinator *coordinator
	logs        []*partitionLog
	// topic is the topic, topicBefore what it was before it last changed, deleted what it was when it was deleted last, forever
	// says that it was deleted for good.
	topic, topicBefore, deleted topicState
	topicChanged                int64
	forever                     bool
	weather                     []weather
	active                      []Fault
	duplicate                   int
	faulty                      bool
	// closing is true once everything is handled and the consumers close, so that what waits for it is committed.
	closing bool
	// disturbedUntil is when the last fault ends that may cost somebody the membership.
	disturbedUntil int64

	check     checker
	stats     Stats
	steps     int
	sameTime  int
	violation *Violation
}

// Result is what a run ended with.
type Result struct {
	// Violation is nil when everything held.
	Violation *Violation
	Stats     Stats
}

// Run runs a script to its end.
func Run(script Script) Result {
	w := newWorld(script)
	w.runGuarded()
	w.stats.Histories, w.stats.Steps, w.stats.Virtual, w.stats.Processes = 1, w.steps, time.Duration(w.at), w.nextProcess
	return Result{Violation: w.violation, Stats: w.stats}
}

// runGuarded is run. What has been violated may make nonsense of the rest of its step, which is no violation of its own.
func (w *World) runGuarded() {
	defer func() {
		if w.violation != nil {
			_ = recover()
		}
	}()
	w.run()
}

func newWorld(script Script) *World {
	w := &World{
		script: script, mutant: script.Mutant, rng: rand.New(rand.NewPCG(script.Seed, 0xfeed)), now: epochStart, faulty: true,
		extra: rand.New(rand.NewPCG(script.Seed, 0xf10)), change: rand.New(rand.NewPCG(script.Seed, 0xc4a)),
		token: rand.New(rand.NewPCG(script.Seed, 0x70c)), control: rand.New(rand.NewPCG(script.Seed, 0x5ee)),
		topic: script.firstTopic(),
		slots: make([]*process, script.Members), weather: make([]weather, script.Members),
	}
	w.coordinator = newCoordinator(w)
	w.check = newChecker(w)
	for part := range script.Partitions {
		w.logs = append(w.logs, newLog(part, topicID))
		w.timeline.push(w.rng.Int64N(int64(script.Horizon)/4), eventProduce, int64(part), nil)
	}
	for slot := range script.Members {
		w.offers = append(w.offers, w.firstOffer())
		w.timeline.push(w.rng.Int64N(int64(script.Horizon)/8+1), eventRestartSlot, int64(slot), nil)
	}
	for i, fault := range script.Faults {
		if fault.At < script.Horizon {
			w.timeline.push(int64(fault.At), eventFault, int64(i), nil)
		}
	}
	w.timeline.push(int64(script.Horizon), eventFault, -1, nil)
	return w
}

// patience is how long the group may take to settle once faults have stopped.
func (w *World) patience() int64 {
	s := &w.script
	return int64(8*s.TokenTimeout + 3*s.Rebalance + 4*s.Session + 2*s.Request + s.Stuck + 60*time.Second + 2*s.StrategyEvery + 3*s.MetadataAge)
}

func (w *World) run() {
	limit := int64(w.script.Horizon) + w.patience()
	for w.violation == nil {
		if n := len(w.runnable); n > 0 {
			b := w.runnable[w.rng.IntN(n)]
			w.turn(b)
			continue
		}
		if !w.faulty && w.settled() {
			if w.closing || !w.script.lazy() {
				return
			}
			// Not before what the faults did to somebody's session has shown.
			if w.at > int64(w.script.Horizon+2*w.script.Session) {
				w.closeAll()
				limit = w.at + w.patience()
			}
		}
		if len(w.timeline.events) == 0 || w.timeline.events[0].at > limit {
			w.violate("PROGRESS", w.unsettled())
			return
		}
		event := w.timeline.pop()
		if event.at > w.at {
			w.at, w.now, w.sameTime = event.at, epochStart.Add(time.Duration(event.at)), 0
		}
		w.handle(&event)
	}
}

// turn lets an actor handle its next message.
func (w *World) turn(b *mailbox) {
	w.steps++
	if w.sameTime++; w.sameTime > 20000 {
		w.violate("SPIN", fmt.Sprintf("no time passes; %T is busy", b.owner))
		return
	}
	m := b.queue[b.head]
	b.queue[b.head] = message{}
	b.head++
	if b.empty() {
		b.queue, b.head = b.queue[:0], 0
		w.rest(b)
	}
	b.owner.receive(&m)
	if w.faulty && w.script.StallPermyriad > 0 && w.rng.IntN(10000) < w.script.StallPermyriad && !b.stalled {
		w.stall(b, time.Duration(w.rng.Int64N(int64(w.script.Stall)+1)))
	}
}

// stall holds an actor up.
func (w *World) stall(b *mailbox, wait time.Duration) {
	b.stalled = true
	w.rest(b)
	w.timeline.push(w.at+int64(wait), eventUnstall, 0, b)
}

// handle does what a timed event is for.
func (w *World) handle(event *timed) {
	switch event.kind { //nolint:exhaustive // messages to actors are no timed events
	case eventAlarm:
		w.due(event.payload.(*alarm), event.at)
	case eventArrive:
		w.arrive(event.payload.(*call))
	case eventCallFails:
		w.failed(event.payload.(*call))
	case eventPost:
		switch payload := event.payload.(type) {
		case *call:
			w.answered(payload)
		case *delivery:
			w.post(payload.shell.process.handlers.box, message{
				kind: messageHandlerStep, part: int32(event.number & 0xffffffff), seq: uint64(event.number >> 32), payload: payload,
			})
		case *handle:
			w.post(payload.engine.shell.process.handlers.box, message{kind: messageAcknowledges, payload: payload})
		case *engine:
			payload.rearm()
		case *fill:
			payload.engine.shell.process.handlers.offer(payload.engine)
		case *hookAnswer:
			w.hookAnswers(payload)
		}
	case eventSession:
		switch payload := event.payload.(type) {
		case *groupMember:
			w.coordinator.sessionDue(payload)
		case *pendingID:
			w.coordinator.pendingDue(payload)
		}
	case eventJoinTimer:
		w.coordinator.joinTimer(event.number)
	case eventSyncTimer:
		w.coordinator.syncTimer(event.number)
	case eventProduce:
		w.produce(int(event.number))
	case eventFault:
		w.fault(int(event.number))
	case eventFaultEnds:
		w.faultEnds(event.payload.(Fault))
	case eventUnstall:
		b := event.payload.(*mailbox)
		b.stalled = false
		w.wake(b)
	case eventForget:
		w.forgetOffsets(byte(event.number))
	case eventUser:
		event.payload.(*process).userActs(event.number)
	case eventToken:
		w.tokenDue(event.number, event.payload)
	case eventRestartSlot:
		w.restartSlot(int(event.number), event.payload)
	default:
		w.violate("STATE", fmt.Sprintf("timed event %d", event.kind))
	}
}

// restartSlot starts a process unless its slot has a newer one.
func (w *World) restartSlot(slot int, after any) {
	old := w.slots[slot]
	if after == nil && old == nil || after != nil && old == after.(*process) {
		w.start(slot)
	}
}

// twice reports whether an answer is to be handed over twice.
func (w *World) twice() bool { return w.once() == 1 }

// once is how many more times an answer is handed over.
func (w *World) once() int {
	if w.duplicate > 0 && w.rng.IntN(100) < w.duplicate {
		return 1
	}
	return 0
}

func (w *World) unknownMessage(owner any, m *message) {
	w.violate("STATE", fmt.Sprintf("%T got message %d", owner, m.kind))
}

// violate notes the first violation, and ends the run.
func (w *World) violate(guarantee, text string) {
	if w.violation == nil {
		w.violation = &Violation{Guarantee: guarantee, Text: text, At: time.Duration(w.at), Step: w.steps}
	}
}
