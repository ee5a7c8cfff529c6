package sim

import "time"

// epochStart is the instant at which virtual time begins. It is not the zero time, which machines take for "none".
var epochStart = time.Time{}.Add(1000 * time.Hour)

// kind says what a message or a timed event is.
type kind uint8

const (
	// Timed events that the world itself handles.
	eventArrive      kind = iota + 1 // a request reaches the broker
	eventCallFails                   // the client learns that a call failed
	eventAlarm                       // an alarm is due
	eventFault                       // the next fault of the script
	eventFaultEnds                   // a fault with a duration is over
	eventSession                     // a member's session may be over
	eventJoinTimer                   // the coordinator stops waiting for members to join
	eventSyncTimer                   // the coordinator stops waiting for members to sync
	eventProduce                     // records are appended
	eventUnstall                     // an actor that was held up goes on
	eventPost                        // a message with a delay
	eventRestartSlot                 // a process starts in a slot
	eventUser                        // a user of a process acts
	eventForget                      // the coordinator forgets the offsets of a topic that is gone
	eventToken                       // a user of tokens acts

	// Messages to actors.
	messageRing // an alarm of the actor is due
	messageCallDone
	messageShutdown
	messageRejoin
	messageRefresh
	messageHeartbeatAnswered
	messageSessionLapsed
	messageMembershipDoubted
	messageLeaveAnswered
	messageCoordinatorDoubted
	messageOffsetsFetched
	messagePartitionReleased
	messageKeyReturned
	messageCoordinatorKnown
	messageGenerationEntered
	messageGenerationJoined
	messageGenerationLeft
	messageLeaveGroup
	messageKeyLent
	messageKeyRecalled
	messageOffsetsWanted
	messageOffered
	messageFlushWanted
	messagePartitionOpened
	messagePartitionFenced
	messageCommitsHeld
	messageStartDecided
	messageAck
	messageDelivered
	messageHandlerFailed
	messagePlaceFree
	messageDrainWanted
	messageOwnershipLost
	messageFlushed
	messageHandlerStep
	messageHandlerGoesOn
	messageWorker
	messageAcknowledges
	messageEngine
	messageHanded
	messageActorFailed
	messagePauseChanged
	messageCommitWanted
	messagePlaceWanted
	messagePlaced
	messageLeaderKnown
	messageLeaderDoubted
	messageTokenWanted
	messageTokenAnswered
	messageTokenLeft
	messageOperation
	messageOperated
	messageCallbackDone
	messageSeek
	messageSkip
	messagePositionLeft
	messageEngineLeft
)

// message is one message between actors. Which fields are used depends on the kind.
type message struct {
	kind    kind
	part    int32
	epoch   uint64
	seq     uint64
	gen     int32
	offset  int64
	at      int64
	err     error
	payload any
}

// receiver is an actor.
type receiver interface{ receive(m *message) }

// mailbox is an actor's queue. Messages are handled in the order in which they were sent; whose turn it is among the
// actors is the scheduler's choice.
type mailbox struct {
	owner   receiver
	process *process
	queue   []message
	head    int
	// place is the index in World.runnable, -1 when there is nothing to do or it may not be done.
	place   int
	stalled bool
	dead    bool
}

func (b *mailbox) empty() bool { return b.head == len(b.queue) }

// post puts a message into a mailbox.
func (w *World) post(b *mailbox, m message) {
	if b == nil || b.dead {
		return
	}
	if b.head > 0 && b.head == len(b.queue) {
		b.queue, b.head = b.queue[:0], 0
	}
	b.queue = append(b.queue, m)
	w.wake(b)
}

// wake makes an actor runnable when it has something to do and may do it.
func (w *World) wake(b *mailbox) {
	if b.place >= 0 || b.dead || b.stalled || b.empty() || b.process.frozen {
		return
	}
	b.place = len(w.runnable)
	w.runnable = append(w.runnable, b)
}

// rest takes an actor out of the runnable ones.
func (w *World) rest(b *mailbox) {
	if b.place < 0 {
		return
	}
	last := len(w.runnable) - 1
	moved := w.runnable[last]
	w.runnable[b.place], moved.place = moved, b.place
	w.runnable[last] = nil
	w.runnable, b.place = w.runnable[:last], -1
}

// kill ends an actor: what it has not handled is lost.
func (w *World) kill(b *mailbox) {
	w.rest(b)
	b.dead, b.queue, b.head = true, nil, 0
}

// timed is one event at a time. Events at the same time happen in the order in which they were planned.
type timed struct {
	at      int64
	seq     uint64
	kind    kind
	number  int64
	payload any
}

// timeline is a heap of timed events.
type timeline struct {
	events []timed
	seq    uint64
}

func (t *timeline) before(i, j int) bool {
	a, b := &t.events[i], &t.events[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (t *timeline) push(at int64, k kind, number int64, payload any) {
	t.seq++
	t.events = append(t.events, timed{at: at, seq: t.seq, kind: k, number: number, payload: payload})
	for i := len(t.events) - 1; i > 0; {
		parent := (i - 1) / 2
		if !t.before(i, parent) {
			break
		}
		t.events[i], t.events[parent] = t.events[parent], t.events[i]
		i = parent
	}
}

func (t *timeline) pop() timed {
	top := t.events[0]
	last := len(t.events) - 1
	t.events[0] = t.events[last]
	t.events[last] = timed{}
	t.events = t.events[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if t.before(child, least) {
				least = child
			}
		}
		if least == i {
			return top
		}
		t.events[i], t.events[least] = t.events[least], t.events[i]
		i = least
	}
}

// alarm is one timer of an actor, in the manner of a machine's Deadline.
type alarm struct {
	box *mailbox
	set bool
	// at is by the clock of the alarm's process.
	at int64
	// armed is the time of the event that is planned, 0 for none.
	armed int64
}

func (w *World) setAlarm(a *alarm, at time.Time, ok bool) {
	a.set = ok
	if !ok {
		return
	}
	a.at = int64(at.Sub(epochStart))
	w.arm(a)
}

// setAlarmIn sets an alarm some time from now.
func (w *World) setAlarmIn(a *alarm, wait time.Duration) {
	a.set, a.at = true, a.box.process.at()+int64(wait)
	w.arm(a)
}

func (w *World) arm(a *alarm) {
	due := max(a.at+a.box.process.behind, w.at)
	if a.armed == 0 || due < a.armed {
		a.armed = max(due, 1)
		w.timeline.push(a.armed, eventAlarm, 0, a)
	}
}

// due is called when an alarm's event comes up: it rings, or is planned anew when it was set to a later time meanwhile.
func (w *World) due(a *alarm, at int64) {
	if at != a.armed || a.box.dead {
		return
	}
	a.armed = 0
	switch {
	case !a.set:
	case a.at <= a.box.process.at():
		w.post(a.box, message{kind: messageRing, payload: a})
	default:
		w.arm(a)
	}
}

// rang reports whether the alarm is really due, and clears it.
func (w *World) rang(a, ring *alarm) bool {
	if a != ring || !a.set {
		return false
	}
	if a.at > a.box.process.at() {
		w.arm(a)
		return false
	}
	a.set = false
	return true
}
