package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// brokers is the number of brokers that can be coordinator.
const brokers = 3

// errCut is what a client sees of a connection that broke, errTimeout of an answer that did not come.
var (
	errCut     = errors.New("connection broke")
	errTimeout = errors.New("no answer in time")
)

// api is a request's kind.
type api uint8

const (
	apiJoin api = iota
	apiSync
	apiHeartbeat
	apiLeave
	apiCommit
	apiOffsetFetch
	apiFind
	apiMetadata
	apiFetch
	apiListOffsets
)

func (a api) toCoordinator() bool { return a <= apiOffsetFetch }

// call is one request on its way, with its answer later. The client gets exactly one outcome.
type call struct {
	api     api
	process *process
	box     *mailbox
	broker  int
	// deadline is when the client stops waiting; done is true once it has its outcome.
	deadline int64
	done     bool
	// loseAnswer says that the answer will not arrive.
	loseAnswer bool
	// notSent says that it never went out.
	notSent bool

	// What is asked.
	seq              uint64
	member, instance string
	gen              kafka.Generation
	join             rebalance.JoinRequest
	sync             rebalance.SyncRequest
	round            *commit.Round
	key              *capability.Key
	at               int64
	part             int
	epoch            kafka.AssignmentEpoch
	offset           int64
	topicID          kafka.TopicID
	lastEpoch        int32
	// latest: ListOffsets asks for the end of the log, not for its start.
	latest bool
	// proves is true of a fetch that does not wait at the end: its answer shows that the topic's id is the present one.
	proves bool
	sentAt time.Time

	// What is answered.
	err     error
	joined  rebalance.JoinResponse
	synced  rebalance.SyncResponse
	results map[kafka.TopicPartition]error
	offsets []int64
	texts   []string
	marks   []commitMark
	topic   topicState
	line    *partitionLog
	// diverging is where the log and what the client has read part, nil when they do not.
	diverging *epochEnd
	records   []kafka.Record
	next      int64
	found     int
	executed  bool
}

// weather is what the network does to one slot's requests.
type weather struct {
	cut                bool
	loss, slow, errors int
}

// send puts a request on its way. The client waits for limit at most.
func (w *World) send(c *call, limit time.Duration) {
	c.deadline = w.at + int64(limit)
	now := &w.weather[c.process.slot]
	if now.cut {
		w.failLater(c)
		return
	}
	if now.loss > 0 && w.rng.IntN(100) < now.loss {
		if w.rng.IntN(2) == 0 {
			w.failLater(c)
			return
		}
		c.loseAnswer = true
	}
	arrives := w.at + w.delay(c.process.slot)
	w.timeline.push(arrives, eventArrive, 0, c)
	if c.api == apiJoin || c.api == apiSync || arrives >= c.deadline {
		w.timeline.push(c.deadline, eventCallFails, 0, c)
	}
}

// delay is how long one way takes.
func (w *World) delay(slot int) int64 {
	wait := int64(20*time.Microsecond) + w.rng.Int64N(int64(w.script.Delay))
	if slow := w.weather[slot].slow; slow > 1 {
		wait *= int64(slow)
	}
	return wait
}

// failLater tells the client of a broken connection: soon, or only when it stops waiting.
func (w *World) failLater(c *call) {
	at := c.deadline
	if w.rng.IntN(3) > 0 {
		at = min(at, w.at+w.rng.Int64N(int64(500*time.Millisecond)))
	}
	w.timeline.push(max(at, w.at+1), eventCallFails, 0, c)
}

// arrive executes a request. A commit whose connection was given up is gone with it; everything else may still be
// executed long after its client stopped waiting.
func (w *World) arrive(c *call) {
	if c.api == apiCommit && (c.done || c.process.struck) {
		return
	}
	w.steps++
	c.executed = true
	if c.api.toCoordinator() {
		w.coordinator.serve(c)
		return
	}
	switch c.api {
	case apiFind:
		if w.coordinator.downUntil > w.at {
			c.err = kafka.CoordinatorNotAvailable
		}
		c.found = w.coordinator.announced
		w.reply(c)
	case apiMetadata:
		c.topic = w.seenTopic()
		w.reply(c)
	case apiFetch:
		w.fetch(c)
	case apiListOffsets: // by name: it is the present topic that answers
		l := w.logs[c.part]
		if c.part >= w.topic.count {
			c.err = kafka.UnknownTopicOrPartition
		}
		c.offset, c.line, c.lastEpoch = l.start, l, l.epochAt(l.start)
		if c.latest {
			c.offset, c.lastEpoch = l.end, l.epochAt(l.end-1)
		}
		w.reply(c)
	case apiJoin, apiSync, apiHeartbeat, apiLeave, apiCommit, apiOffsetFetch:
	}
}

// reply sends the answer that was written into the call.
func (w *World) reply(c *call) {
	if c.done || c.process.dead {
		return
	}
	if c.loseAnswer {
		w.failLater(c)
		return
	}
	at := w.at + w.delay(c.process.slot)
	if at >= c.deadline && c.api != apiFetch {
		w.timeline.push(max(c.deadline, w.at+1), eventCallFails, 0, c)
		return
	}
	w.timeline.push(at, eventPost, 0, c)
}

// answered brings an answer to the client.
func (w *World) answered(c *call) {
	if c.done {
		return
	}
	if w.weather[c.process.slot].cut {
		w.timeline.push(max(c.deadline, w.at+1), eventCallFails, 0, c)
		return
	}
	w.finish(c)
}

// failed tells the client that there is no answer.
func (w *World) failed(c *call) {
	if c.done {
		return
	}
	err := errCut
	if w.at >= c.deadline {
		err = errTimeout
	}
	c.err = &kafka.RequestError{API: "request", Broker: brokerOf(c.broker), Unanswered: true, Err: err}
	w.finish(c)
}

func (w *World) finish(c *call) {
	c.done = true
	w.post(c.box, message{kind: messageCallDone, payload: c})
}

// abandon closes a client's connection under a call: it will not hear of it any more.
func abandon(c *call) {
	if c != nil {
		c.done = true
	}
}

// brokerNames are the brokers as the machines know them.
var brokerNames = func() (out [brokers]kafka.Broker) {
	for i := range out {
		out[i] = kafka.Broker{ID: int32(i), Addr: fmt.Sprintf("broker-%d:9092", i)}
	}
	return out
}()

func brokerOf(i int) kafka.Broker { return brokerNames[i] }
