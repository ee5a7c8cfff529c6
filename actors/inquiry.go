package actors

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

// inquiry is one call's question for offsets: of partitions' leaders, or of the group's coordinator. It decides of whom is asked
// what, what is asked again and when the call has its answer; the inquirer asks. Time is passed in.
type inquiry struct {
	word string
	// committed asks the coordinator for committed offsets, else the leaders are asked for offsets by time.
	committed bool
	backoff   supervisor.Backoff
	// request is the call. since numbers the last metadata request before it came: only what was asked later may say that
	// something does not exist, or what all of a topic is.
	request *request
	since   uint64
	// crashes counts the inquirers that died with it.
	crashes int

	// open has what is not answered yet, whole topics as such until their partitions are known.
	open    map[kafka.TopicPartition]*inquiryItem
	offsets map[kafka.TopicPartition]OffsetAnswer
	commits map[kafka.TopicPartition]CommittedOffset
	unknown []kafka.TopicPartition
	failed  []error
	// trouble is why something was asked again last, for whoever stops waiting.
	trouble atomic.Pointer[QuestionError]
}

// inquiryItem is one partition, or one whole topic, that is not answered yet.
type inquiryItem struct {
	inquiry   *inquiry
	tp        kafka.TopicPartition
	timestamp int64
	// asked is true while a request with it is under way.
	asked bool
	// failures are those so far; before due it is not asked again. missed counts the metadata answers in a row without it.
	failures int
	due      time.Time
	missed   int
}

// newInquiry asks for each partition's offset at a timestamp, or for what is committed.
func newInquiry(word string, backoff supervisor.Backoff, m *request, asked map[kafka.TopicPartition]int64) *inquiry {
	q := &inquiry{
		word: word, backoff: backoff, request: m, open: make(map[kafka.TopicPartition]*inquiryItem),
		offsets: make(map[kafka.TopicPartition]OffsetAnswer), commits: make(map[kafka.TopicPartition]CommittedOffset),
	}
	for tp, timestamp := range asked {
		q.open[tp] = &inquiryItem{inquiry: q, tp: tp, timestamp: timestamp}
	}
	return q
}

// topics returns what it is about.
func (q *inquiry) topics() []string {
	names := make(map[string]struct{})
	for tp := range q.open {
		names[tp.Topic] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}

// begin is called by each inquirer that takes the inquiry over: what was under way died with the one before.
func (q *inquiry) begin(metadataAsked uint64) {
	q.since = metadataAsked
	for _, item := range q.open {
		item.asked, item.missed = false, 0
	}
}

// outcome returns the call's answer once there is one. A failure that no further try can mend ends it.
func (q *inquiry) outcome() (done bool, err error) {
	var errs []error
	if len(q.unknown) > 0 {
		slices.SortFunc(q.unknown, kafka.TopicPartition.Compare)
		errs = append(errs, &UnknownPartitionError{Operation: q.word, Partitions: q.unknown})
	}
	errs = append(errs, q.failed...)
	return len(errs) > 0 || len(q.open) == 0, errors.Join(errs...)
}

// found takes an answer over.
func (i *inquiryItem) found(offset OffsetAnswer, committed CommittedOffset) {
	q := i.inquiry
	delete(q.open, i.tp)
	if q.committed {
		q.commits[i.tp] = committed
	} else {
		q.offsets[i.tp] = offset
	}
}

// failedWith judges a failure: it ends the inquiry, or the item is asked again later.
func (i *inquiryItem) failedWith(now time.Time, err error) {
	q := i.inquiry
	i.asked = false
	failure := &QuestionError{Operation: q.word, TopicPartition: i.tp, Err: err}
	if final(err) {
		delete(q.open, i.tp)
		q.failed = append(q.failed, failure)
		return
	}
	i.failures++
	i.due = now.Add(min(q.backoff.Initial<<min(i.failures-1, 16), q.backoff.Max))
	q.trouble.Store(failure)
}

// missing takes a metadata answer that does not have the partition. A broker that just started, or a topic that was just made,
// may say so once.
func (i *inquiryItem) missing(now time.Time, err error) {
	if i.missed++; i.missed < goneAfter {
		i.failedWith(now, err)
		return
	}
	delete(i.inquiry.open, i.tp)
	i.inquiry.unknown = append(i.inquiry.unknown, i.tp)
}

// described takes a metadata answer over, asked with that number: whole topics become their partitions, what does not exist is
// counted.
func (q *inquiry) described(now time.Time, number uint64, topics map[string]TopicMetadata) {
	if number <= q.since {
		return
	}
	for _, item := range slices.Collect(maps.Values(q.open)) {
		t, ok := topics[item.tp.Topic]
		switch {
		case item.asked || !ok || now.Before(item.due):
		case t.Err != nil && !errors.Is(t.Err, kafka.UnknownTopicOrPartition):
			item.failedWith(now, t.Err)
		case len(t.Partitions) == 0 || int(item.tp.Partition) >= len(t.Partitions):
			item.missing(now, kafka.UnknownTopicOrPartition)
		case item.tp.Partition == kafka.AnyPartition:
			delete(q.open, item.tp)
			q.expand(item, len(t.Partitions))
		default:
			item.missed = 0
		}
	}
}

// expand asks for each partition of a topic; one that is named itself keeps its own question.
func (q *inquiry) expand(whole *inquiryItem, partitions int) {
	for partition := range int32(partitions) {
		tp := kafka.TopicPartition{Topic: whole.tp.Topic, Partition: partition}
		_, named := q.open[tp]
		_, answered := q.offsets[tp]
		_, committed := q.commits[tp]
		if !named && !answered && !committed {
			q.open[tp] = &inquiryItem{inquiry: q, tp: tp, timestamp: whole.timestamp}
		}
	}
}

// inquiryView is what is known of the cluster. A topic in doubt is asked for again before it is used.
type inquiryView struct {
	brokers map[int32]kafka.Broker
	topics  map[string]TopicMetadata
	doubted map[string]bool
}

func newInquiryView() inquiryView {
	return inquiryView{brokers: make(map[int32]kafka.Broker), topics: make(map[string]TopicMetadata), doubted: make(map[string]bool)}
}

// learn takes over what somebody else knows; what is in doubt here may be as old there.
func (v *inquiryView) learn(brokers map[int32]kafka.Broker, topics map[string]TopicMetadata) {
	for id, broker := range brokers {
		if _, known := v.brokers[id]; !known {
			v.brokers[id] = broker
		}
	}
	for name, t := range topics {
		if !v.doubted[name] {
			v.take(name, t)
		}
	}
}

// answered takes over an answer to a question of our own.
func (v *inquiryView) answered(m *ClusterMetadata) {
	v.brokers = maps.Clone(m.Brokers)
	for name, t := range m.Topics {
		delete(v.doubted, name)
		if t.Err != nil || len(t.Partitions) == 0 {
			delete(v.topics, name)
			continue
		}
		v.take(name, t)
	}
}

func (v *inquiryView) take(name string, t TopicMetadata) {
	if old := v.topics[name]; old.ID == t.ID {
		keepNewerLeaders(old.Partitions, t.Partitions)
	}
	v.topics[name] = t
}

// partition returns what is known of a partition, and false when it has to be asked for.
func (v *inquiryView) partition(tp kafka.TopicPartition) (PartitionMetadata, bool) {
	t, known := v.topics[tp.Topic]
	if !known || v.doubted[tp.Topic] || tp.Partition < 0 || int(tp.Partition) >= len(t.Partitions) {
		return PartitionMetadata{}, false
	}
	return t.Partitions[tp.Partition], true
}

// inquiryPlan is what is to be asked now.
type inquiryPlan struct {
	// topics are those whose metadata is needed.
	topics []string
	// leaders has the items by the broker to ask, committed those for the coordinator.
	leaders   map[int32][]*inquiryItem
	committed []*inquiryItem
	// next is when to look again because something waits for its time; zero for nothing.
	next time.Time
}

// plan decides what is to be asked. A partition whose leader is not known is as one that failed.
func (v *inquiryView) plan(now time.Time, open []*inquiry) *inquiryPlan {
	plan := &inquiryPlan{leaders: make(map[int32][]*inquiryItem)}
	topics := make(map[string]struct{})
	var leaderless []*inquiryItem
	for _, q := range open {
		for _, item := range q.open {
			partition, known := v.partition(item.tp)
			_, reachable := v.brokers[partition.Leader]
			switch {
			case item.asked || now.Before(item.due):
			case !known:
				topics[item.tp.Topic] = struct{}{}
			case q.committed:
				plan.committed = append(plan.committed, item)
			case !reachable:
				leaderless = append(leaderless, item)
			default:
				plan.leaders[partition.Leader] = append(plan.leaders[partition.Leader], item)
			}
		}
	}
	for _, item := range leaderless {
		item.failedWith(now, kafka.LeaderNotAvailable)
		v.doubted[item.tp.Topic] = true
	}
	for _, q := range open {
		for _, item := range q.open {
			if !item.asked && now.Before(item.due) && (plan.next.IsZero() || item.due.Before(plan.next)) {
				plan.next = item.due
			}
		}
	}
	plan.topics = slices.Sorted(maps.Keys(topics))
	return plan
}

// batch returns the queries of one request and the items that each answers. A request has each partition once: of those asked
// for at different times the others wait for the next one.
func (v *inquiryView) batch(items []*inquiryItem) ([]OffsetQuery, map[kafka.TopicPartition][]*inquiryItem) {
	var queries []OffsetQuery
	asked := make(map[kafka.TopicPartition][]*inquiryItem)
	for _, item := range items {
		before := asked[item.tp]
		if len(before) > 0 && before[0].timestamp != item.timestamp {
			continue
		}
		if len(before) == 0 {
			partition, _ := v.partition(item.tp)
			queries = append(queries, OffsetQuery{TopicPartition: item.tp, LeaderEpoch: partition.LeaderEpoch, Timestamp: item.timestamp})
		}
		asked[item.tp] = append(before, item)
		item.asked = true
	}
	return queries, asked
}

// final reports whether no further try can mend a failure: the brokers refuse it with a code that is not Kafka's for "later".
func final(err error) bool {
	if code, coded := errors.AsType[kafka.ErrorCode](err); coded {
		return !code.Retriable()
	}
	_, version := errors.AsType[*kafka.VersionError](err)
	return version
}

// QuestionError means that a question about one partition could not be answered: by a broker's refusal that no further try can
// mend, such as a missing right, or, beside the error of a context that has ended, by what stood in the way last.
type QuestionError struct {
	// Operation is what was asked for, such as "end offsets".
	Operation string
	// TopicPartition is what it was about; kafka.AnyPartition stands for its topic.
	TopicPartition kafka.TopicPartition
	// Err is the cause. errors.Is finds the broker's kafka.ErrorCode inside.
	Err error
}

// Error names operation, partition and cause.
func (e *QuestionError) Error() string {
	return fmt.Sprintf("troupe: %s of %s: %v", e.Operation, partitionName(e.TopicPartition), e.Err)
}

// Unwrap returns the cause.
func (e *QuestionError) Unwrap() error { return e.Err }

// UnknownPartitionError means that a call named partitions or topics that do not exist, or that this user may not see. It wraps
// kafka.UnknownTopicOrPartition.
type UnknownPartitionError struct {
	// Operation is what was asked for, such as "end offsets".
	Operation string
	// Partitions are those that do not exist, in order; kafka.AnyPartition stands for a topic.
	Partitions []kafka.TopicPartition
}

// Error names operation and partitions.
func (e *UnknownPartitionError) Error() string {
	names := make([]string, len(e.Partitions))
	for i, tp := range e.Partitions {
		names[i] = partitionName(tp)
	}
	return fmt.Sprintf("troupe: %s: %v: %s", e.Operation, kafka.UnknownTopicOrPartition, strings.Join(names, ", "))
}

// Unwrap returns kafka.UnknownTopicOrPartition.
func (e *UnknownPartitionError) Unwrap() error { return kafka.UnknownTopicOrPartition }

func partitionName(tp kafka.TopicPartition) string {
	if tp.Partition == kafka.AnyPartition {
		return "topic " + tp.Topic
	}
	return tp.String()
}
