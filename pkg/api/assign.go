package api

import (
	"errors"
	"fmt"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// Assignment is one partition that is read without a group, and where it begins.
type Assignment struct {
	Partition kafka.TopicPartition
	// Start is rebalance.StartAtOffset, or rebalance.StartBy a policy: ResetEarliest, ResetLatest, ResetAt a time, or
	// ResetByDuration back from now. Default: the beginning.
	Start rebalance.StartPosition
}

// assignPart is what [Assign] and [AssignTopic] return.
type assignPart struct {
	partitions []Assignment
	topic      *topicAssignment
}

// topicAssignment is a topic that is read whole, partitionAssignment one partition; end is nil where it is read on for ever.
type topicAssignment struct {
	topic string
	start rebalance.StartPosition
	end   *rebalance.EndPosition
}

type partitionAssignment struct {
	Assignment
	end *rebalance.EndPosition
}

// assigned is what all of a consumer's Assign and AssignTopic, or ReadRange, add up to; ranges and others count them.
type assigned struct {
	partitions     []partitionAssignment
	topics         []topicAssignment
	ranges, others int
}

// Assign has the consumer read partitions on its own, without a group: with Config.GroupID empty. Several of it, and of
// [AssignTopic], add up; each partition is in one. Its topics are those of the registrations. (Java: KafkaConsumer.assign and
// seek.)
//
//	api.Spawn(ctx, api.Config{Brokers: brokers},
//		api.Handle("orders", audit),
//		api.Assign(api.Assignment{
//			Partition: kafka.TopicPartition{Topic: "orders", Partition: 3},
//			Start:     rebalance.StartBy(rebalance.ResetAt(since.UnixMilli())),
//		}),
//	)
//
// Handlers, engines, retries, leader changes, truncation and resets are those of a member. What is different:
//
//   - Nobody shares: two consumers that assign the same partition both read it, and nothing is ever revoked but by Close.
//   - Nothing is committed to Kafka: every start begins at Start. To go on where the work was, keep offsets of your own and
//     have [WithPositions] return them: an offset that is stored wins over Start. Within the life of one consumer nothing
//     starts over, whatever fails in it, and [Consumer.Commit] returns nil at once.
//   - A partition that does not exist is waited for, with an event (event.PartitionMissing, event.TopicMissing). One that
//     appears in a topic that was there is read from its beginning, since all of it was written meanwhile, unless Start is an
//     offset. So is a topic that was deleted and made anew.
//   - Config.Reset, or [ResetTo], says where to go on when the log does not have a position any more, Start included.
func Assign(partitions ...Assignment) Part {
	return assignPart{partitions: append([]Assignment{}, partitions...)}
}

// AssignTopic is [Assign] for all partitions of a topic, those included that it gets later, which are read from their
// beginning. start says where the others begin, and is no offset.
func AssignTopic(topic string, start rebalance.StartPosition) Part {
	return assignPart{topic: &topicAssignment{topic: topic, start: start}}
}

// String returns the name of the function that made it.
func (a assignPart) String() string {
	if a.topic != nil {
		return "AssignTopic"
	}
	return "Assign"
}

func (a assignPart) addTo(p *parts) {
	if p.assigned == nil {
		p.assigned = new(assigned)
	}
	p.assigned.others++
	for _, one := range a.partitions {
		p.assigned.partitions = append(p.assigned.partitions, partitionAssignment{Assignment: one})
	}
	if a.topic != nil {
		p.assigned.topics = append(p.assigned.topics, *a.topic)
	}
}

// ungrouped returns c without what only a group has a use for, and a problem for each of those that is set.
func (c Config) ungrouped() (Config, []Problem) {
	const nothing = "nothing beside Assign: it has a meaning in a group only"
	rules := []rule{
		{"GroupID", c.GroupID, c.GroupID == "", "empty beside Assign, or no Assign: a consumer is in a group or reads what it is assigned"},
		{"GroupInstanceID", c.GroupInstanceID, c.GroupInstanceID == "", nothing},
		{"SessionTimeout", c.SessionTimeout, c.SessionTimeout == 0, nothing},
		{"HeartbeatInterval", c.HeartbeatInterval, c.HeartbeatInterval == 0, nothing},
		{"RebalanceTimeout", c.RebalanceTimeout, c.RebalanceTimeout == 0, nothing},
		{"DrainTimeout", c.DrainTimeout, c.DrainTimeout == 0, nothing + "; CloseTimeout bounds the drain of Close"},
		{"MaxProcessingTime", c.MaxProcessingTime, c.MaxProcessingTime == 0, nothing + ": there is nobody to take over"},
		{"Assignors", len(c.Assignors), len(c.Assignors) == 0, nothing},
		{"CommitStrategy", nil, c.CommitStrategy == nil || commit.IsManual(c.CommitStrategy),
			"nil or commit.Manual() beside Assign: without a group nothing is committed"},
		{"OffsetMap", c.OffsetMap, !c.OffsetMap, nothing},
	}
	c.GroupID, c.GroupInstanceID = "", ""
	c.SessionTimeout, c.HeartbeatInterval, c.RebalanceTimeout, c.DrainTimeout, c.MaxProcessingTime = 0, 0, 0, 0, 0
	c.Assignors, c.CommitStrategy, c.OffsetMap = nil, commit.Manual(), false
	return c, broken(rules)
}

// standalone returns what the tree takes, and all that is wrong with what is assigned to the registrations.
func (a *assigned) standalone(p *parts) (*rebalance.StandaloneConfig, []Problem) {
	config := &rebalance.StandaloneConfig{
		Partitions: make(map[kafka.TopicPartition]rebalance.StartPosition), Topics: make(map[string]rebalance.StartPosition),
	}
	var problems []Problem
	if a.ranges > 0 {
		config.Ends = make(map[kafka.TopicPartition]rebalance.EndPosition)
		if a.others > 0 {
			problems = append(problems, Problem{Field: "ReadRange", Want: "Assign or ReadRange, not both: one never ends, the other does"})
		}
	}
	if len(a.partitions)+len(a.topics) == 0 {
		problems = append(problems, Problem{Field: "Assign", Want: "at least one partition"})
	}
	handled := make(map[string]bool)
	for i := range p.registrations {
		for _, topic := range p.registrations[i].topics {
			handled[topic] = true
		}
	}
	used := make(map[string]bool)
	check := func(field, startField, topic string, start rebalance.StartPosition, end *rebalance.EndPosition) []Problem {
		problems := broken(append([]rule{
			{field, topic, isTopicName(topic), topicNameWant},
			{field, topic, !isTopicName(topic) || handled[topic] || used[topic], "a topic that a registration handles"},
			startRule(startField, start, p.positions != nil),
		}, endRules(field, start, end)...))
		used[topic] = true
		return problems
	}
	for _, t := range a.topics {
		field := fmt.Sprintf("AssignTopic(%s)", shortQuote(t.topic))
		startField := field + ".Start"
		if t.end != nil {
			field = rangeField(kafka.WholeTopic(t.topic))
			startField = field + ".From"
			config.Ends[kafka.WholeTopic(t.topic)] = *t.end
		}
		_, twice := config.Topics[t.topic]
		_, atOffset := t.start.Offset()
		problems = append(problems, check(field, startField, t.topic, t.start, t.end)...)
		problems = append(problems, broken([]rule{
			{field, nil, !twice, "each topic once"},
			{startField, t.start, !atOffset, "a policy (rebalance.StartBy); an offset is one partition's, see Assign"},
			{field + ".To", t.end, t.end == nil || !isOffset(*t.end), "a time or the end; an offset is one partition's"},
		})...)
		config.Topics[t.topic] = t.start
	}
	for i, one := range a.partitions {
		field, tp := fmt.Sprintf("Assign[%d]", i), one.Partition
		startField := field + ".Start"
		if one.end != nil {
			field = rangeField(tp)
			startField = field + ".From"
			config.Ends[tp] = *one.end
		}
		_, twice := config.Partitions[tp]
		_, whole := config.Topics[tp.Topic]
		problems = append(problems, check(field, startField, tp.Topic, one.Start, one.end)...)
		problems = append(problems, broken([]rule{
			{field, tp.Partition, tp.Partition >= 0, "a partition of at least 0"},
			{field, tp.String(), !twice, "each partition once"},
			{field, tp.String(), !whole, "a topic whole or some of its partitions, not both"},
		})...)
		config.Partitions[tp] = one.Start
	}
	for i := range p.registrations {
		r := &p.registrations[i]
		if r.pattern != nil {
			problems = append(problems, r.problem("topics", r.pattern.String(), "names of topics beside Assign: patterns are for groups"))
		}
		for _, topic := range r.topics {
			if !used[topic] && isTopicName(topic) {
				problems = append(problems, r.problem("topics", shortQuote(topic), "a topic that Assign, AssignTopic or ReadRange has"))
			}
		}
	}
	return config, problems
}

// startRule is that of a start position. ResetNone starts nothing without stored offsets.
func startRule(field string, start rebalance.StartPosition, stored bool) rule {
	if wrong, ok := errors.AsType[*rebalance.StartPositionError](start.Validate()); ok {
		return rule{field: field, value: start, want: wrong.Want}
	}
	return rule{field, start, stored || start != rebalance.StartBy(rebalance.ResetNone), "a position, or WithPositions beside ResetNone"}
}
