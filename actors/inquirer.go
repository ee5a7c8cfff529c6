package actors

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/pkg/kafka"
)

// inquirerIdle is for how long the inquirer keeps its connections when nobody asks anything.
const inquirerIdle = 30 * time.Second

// inquirer answers the calls that only ask: for offsets of partitions' leaders and for committed ones. It has connections of its
// own, made on demand, one for each broker, for the coordinator and for metadata, so that a broker that is slow or frozen holds up
// neither the member nor another broker's answer. Whom to ask decides an inquiry; see there.
type inquirer struct {
	shared *shared
	self   *actor.PID
	alarm  alarm

	open []*inquiry
	view inquiryView
	// brokers are the leaders' connections by broker id.
	brokers map[int32]*inquiryLane

	// metadata and reads are nil while nobody needs them. asks numbers the metadata requests.
	metadata *inquiryMetadata
	asks     uint64
	reads    *inquiryReads
	// coordinator is whom to ask for committed offsets, nil while it is not known.
	coordinator *kafka.Broker
}

// inquiryLane is the connection to one broker.
type inquiryLane struct {
	broker kafka.Broker
	client LookupClient
	work   *worker
	// asked is what the request under way is about, nil for none.
	asked map[kafka.TopicPartition][]*inquiryItem
}

// inquiryMetadata is the connection that leaders and the coordinator are asked for on.
type inquiryMetadata struct {
	client MetadataClient
	work   *worker
	// describing and finding are true while such a request is under way.
	describing, finding bool
	failures            int
	due                 time.Time
}

// inquiryReads is the connection to the coordinator.
type inquiryReads struct {
	client OffsetsClient
	work   *worker
	busy   bool
}

// inquiryDescribed, inquiryFound, inquiryAnswered and inquiryRead: a worker of the inquirer -> inquirer.
type inquiryDescribed struct {
	silent
	from     *inquiryMetadata
	number   uint64
	topics   []string
	metadata *ClusterMetadata
	err      error
}

type inquiryFound struct {
	silent
	from   *inquiryMetadata
	broker kafka.Broker
	err    error
}

type inquiryAnswered struct {
	silent
	lane    *inquiryLane
	answers map[kafka.TopicPartition]OffsetAnswer
	err     error
}

type inquiryRead struct {
	silent
	from        *inquiryReads
	coordinator kafka.Broker
	asked       map[kafka.TopicPartition][]*inquiryItem
	offsets     map[kafka.TopicPartition]CommittedOffset
	err         error
}

func newInquirer(s *shared) *inquirer {
	return &inquirer{shared: s, view: newInquiryView(), brokers: make(map[int32]*inquiryLane)}
}

// Receive implements actor.Actor.
func (i *inquirer) Receive(ctx actor.Context) {
	i.receive(ctx, ctx.Message())
}

func (i *inquirer) receive(ctx actor.Context, message any) {
	switch m := message.(type) {
	case *actor.Started:
		i.self = ctx.Self()
		return
	case *actor.Stopping:
		i.alarm.stop()
		i.hangUp()
		return
	case *workDone:
		i.receive(ctx, m.worker.finished(m))
		return
	case *alarmRang:
		if !i.alarm.rang(m) {
			return
		}
		if i.settle(); len(i.open) == 0 {
			i.hangUp()
			return
		}
	case *inquiryAsked:
		i.asked(m)
	case *inquiryDescribed:
		i.described(m)
	case *inquiryFound:
		i.found(m)
	case *inquiryAnswered:
		i.answered(m)
	case *inquiryRead:
		i.read(m)
	default: // Stopped among them: nothing may begin any more
		return
	}
	i.pump()
}

func (i *inquirer) asked(m *inquiryAsked) {
	m.inquiry.begin(i.asks)
	i.open = append(i.open, m.inquiry)
	i.view.learn(m.brokers, m.topics)
	if i.coordinator == nil {
		i.coordinator = m.coordinator
	}
}

// hangUp closes every connection. What is under way on them ends, and is nobody's.
func (i *inquirer) hangUp() {
	for id, lane := range i.brokers {
		lane.work.stop()
		lane.client.Close()
		delete(i.brokers, id)
	}
	if i.metadata != nil {
		i.metadata.work.stop()
		i.metadata.client.Close()
		i.metadata = nil
	}
	if i.reads != nil {
		i.reads.work.stop()
		i.reads.client.Close()
		i.reads = nil
	}
	i.view, i.coordinator = newInquiryView(), nil
}

// settle answers the calls that have their answer and forgets those that nobody waits for any more.
func (i *inquirer) settle() {
	i.open = slices.DeleteFunc(i.open, func(q *inquiry) bool {
		if q.request.answered.Load() {
			return true
		}
		done, err := q.outcome()
		if done {
			q.request.reply(err)
		}
		return done
	})
}

// pump asks for whatever can be asked for now.
func (i *inquirer) pump() {
	i.settle()
	now := time.Now()
	plan := i.view.plan(now, i.open)
	next := plan.next
	if len(i.open) == 0 {
		next = now.Add(inquirerIdle)
	}
	if at := i.askMetadata(now, plan.topics, len(plan.committed) > 0); !at.IsZero() && (next.IsZero() || at.Before(next)) {
		next = at
	}
	i.readNext(plan.committed)
	for id, items := range plan.leaders {
		i.lookUp(i.view.brokers[id], items)
	}
	i.alarm.setAt(i.shared.sys, i.self, next, !next.IsZero())
}

// askMetadata asks who leads the partitions of topics, and who coordinates the group. It returns when it may be tried again.
func (i *inquirer) askMetadata(now time.Time, topics []string, coordinator bool) time.Time {
	coordinator = coordinator && i.coordinator == nil
	if len(topics) == 0 && !coordinator {
		return time.Time{}
	}
	m := i.anybody()
	if now.Before(m.due) {
		return m.due
	}
	limit := i.shared.patience(m.failures)
	if len(topics) > 0 && !m.describing {
		m.describing = true
		i.asks++
		number := i.asks
		m.work.do(func(call context.Context) any {
			call, cancel := context.WithTimeout(call, limit)
			defer cancel()
			metadata, err := m.client.Metadata(call, topics)
			return &inquiryDescribed{from: m, number: number, topics: topics, metadata: metadata, err: err}
		})
	}
	if coordinator && !m.finding {
		m.finding = true
		group := i.shared.settings.GroupID
		m.work.do(func(call context.Context) any {
			call, cancel := context.WithTimeout(call, limit)
			defer cancel()
			broker, err := m.client.FindCoordinator(call, group)
			return &inquiryFound{from: m, broker: broker, err: err}
		})
	}
	return time.Time{}
}

// anybody returns the connection to whichever broker knows the cluster.
func (i *inquirer) anybody() *inquiryMetadata {
	if i.metadata == nil {
		i.metadata = &inquiryMetadata{client: i.shared.network.Metadata(), work: newWorker(i.shared.sys, i.self, &i.shared.workers)}
	}
	return i.metadata
}

func (i *inquirer) described(m *inquiryDescribed) {
	if m.from != i.metadata {
		return
	}
	m.from.describing = false
	now := time.Now()
	if m.err != nil {
		i.nobodyAnswered(now, m.err, func(item *inquiryItem) bool {
			return slices.Contains(m.topics, item.tp.Topic)
		})
		return
	}
	m.from.failures = 0
	i.view.answered(m.metadata)
	for _, q := range i.open {
		q.described(now, m.number, m.metadata.Topics)
	}
}

func (i *inquirer) found(m *inquiryFound) {
	if m.from != i.metadata {
		return
	}
	m.from.finding = false
	if m.err != nil {
		i.nobodyAnswered(time.Now(), m.err, func(item *inquiryItem) bool { return item.inquiry.committed })
		return
	}
	m.from.failures = 0
	i.coordinator = &m.broker
}

// nobodyAnswered has the metadata asked for again later, unless no further try can mend it. It is told of to those who wait for it.
func (i *inquirer) nobodyAnswered(now time.Time, err error, about func(*inquiryItem) bool) {
	m := i.metadata
	m.failures++
	delay := i.delay(m.failures)
	m.due = now.Add(delay)
	i.shared.trouble("metadata for a question", err, delay)
	for _, q := range i.open {
		for _, item := range slices.Collect(maps.Values(q.open)) {
			if !item.asked && about(item) {
				item.failedWith(now, err)
			}
		}
	}
}

func (i *inquirer) delay(failures int) time.Duration {
	backoff := i.shared.settings.Backoff
	return min(backoff.Initial<<min(failures-1, 16), backoff.Max)
}

// lookUp asks a leader for offsets. While it is asked already, the rest waits, and goes out together.
func (i *inquirer) lookUp(broker kafka.Broker, items []*inquiryItem) {
	lane := i.brokers[broker.ID]
	if lane != nil && lane.broker != broker { // the broker has another address
		lane.work.stop()
		lane.client.Close()
		i.lookedUp(lane, nil, errBrokerMoved)
		lane = nil
	}
	if lane == nil {
		lane = &inquiryLane{broker: broker, client: i.shared.network.Lookup(broker), work: newWorker(i.shared.sys, i.self, &i.shared.workers)}
		i.brokers[broker.ID] = lane
	}
	if lane.asked != nil {
		return
	}
	var queries []OffsetQuery
	queries, lane.asked = i.view.batch(items)
	isolation := i.shared.settings.Isolation
	lane.work.do(func(call context.Context) any {
		answers, err := lane.client.ListOffsets(call, isolation, queries)
		return &inquiryAnswered{lane: lane, answers: answers, err: err}
	})
}

// errBrokerMoved ends a request to where a broker is not any more.
var errBrokerMoved = errors.New("troupe: the broker has another address")

func (i *inquirer) answered(m *inquiryAnswered) {
	if i.brokers[m.lane.broker.ID] != m.lane {
		return
	}
	if m.err != nil {
		i.unreachable(m.lane.broker, m.err)
	}
	i.lookedUp(m.lane, m.answers, m.err)
}

func (i *inquirer) lookedUp(lane *inquiryLane, answers map[kafka.TopicPartition]OffsetAnswer, err error) {
	asked := lane.asked
	lane.asked = nil
	now := time.Now()
	for tp, items := range asked {
		answer, ok := answers[tp]
		switch {
		case err != nil:
			answer.Err = err
		case !ok:
			answer.Err = errNotAnswered
		}
		for _, item := range items {
			if answer.Err == nil {
				item.found(answer, CommittedOffset{})
				continue
			}
			i.view.doubted[tp.Topic] = true
			item.failedWith(now, answer.Err)
		}
	}
}

// unreachable tells of a broker that gave no answer, and has the others asked who leads in its place.
func (i *inquirer) unreachable(broker kafka.Broker, err error) {
	if _, coded := errors.AsType[kafka.ErrorCode](err); coded {
		return
	}
	i.shared.trouble("a question to "+broker.String(), err, i.shared.settings.Backoff.Initial)
	i.anybody().client.Avoid(broker)
}

// readNext asks the coordinator for committed offsets.
func (i *inquirer) readNext(items []*inquiryItem) {
	if len(items) == 0 || i.coordinator == nil {
		return
	}
	if i.reads == nil {
		i.reads = &inquiryReads{client: i.shared.network.Offsets(), work: newWorker(i.shared.sys, i.self, &i.shared.workers)}
	}
	from := i.reads
	if from.busy {
		return
	}
	from.busy = true
	asked := make(map[kafka.TopicPartition][]*inquiryItem)
	for _, item := range items {
		item.asked = true
		asked[item.tp] = append(asked[item.tp], item)
	}
	coordinator := *i.coordinator
	request := OffsetFetchRequest{
		GroupID: i.shared.settings.GroupID, Generation: kafka.NoGeneration, Partitions: slices.SortedFunc(maps.Keys(asked), kafka.TopicPartition.Compare),
	}
	from.work.do(func(call context.Context) any {
		offsets, err := from.client.FetchOffsets(call, coordinator, request)
		return &inquiryRead{from: from, coordinator: coordinator, asked: asked, offsets: offsets, err: err}
	})
}

func (i *inquirer) read(m *inquiryRead) {
	if m.from != i.reads {
		return
	}
	m.from.busy = false
	if m.err != nil {
		i.unreachable(m.coordinator, m.err)
	}
	now := time.Now()
	for tp, items := range m.asked {
		committed := m.of(tp)
		if putsCoordinatorInDoubt(committed.Err) {
			i.coordinator = nil
		}
		for _, item := range items {
			if committed.Err == nil {
				item.found(OffsetAnswer{}, committed)
			} else {
				item.failedWith(now, committed.Err)
			}
		}
	}
}

// of returns what the coordinator says of a partition. A group that nobody has joined or committed for yet has no offsets: some
// coordinators have an error of its own for that, which says as much.
func (m *inquiryRead) of(tp kafka.TopicPartition) CommittedOffset {
	committed, ok := m.offsets[tp]
	switch {
	case errors.Is(m.err, kafka.GroupIDNotFound):
		return CommittedOffset{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}
	case m.err != nil:
		committed.Err = m.err
	case !ok:
		committed.Err = errNotAnswered
	}
	return committed
}
