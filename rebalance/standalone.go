package rebalance

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/troupego/troupe/pkg/kafka"
)

// StandaloneConfig is what a [Standalone] consumer is assigned. NewStandalone checks it.
type StandaloneConfig struct {
	// Partitions are read one by one, each from where its position says.
	Partitions map[kafka.TopicPartition]StartPosition
	// Topics are read whole: every partition that they have, from where the position says, and every one that they get. A
	// topic is here or has partitions above, not both.
	Topics map[string]StartPosition
	// Ends says where the reading ends, of each of Partitions and, by kafka.WholeTopic, of each of Topics; nil for nowhere. With
	// it a topic has the partitions that it has when it is first seen.
	Ends map[kafka.TopicPartition]EndPosition
}

// Standalone is the assignment of a consumer without a group (Java: KafkaConsumer.assign). It stands in the place of a
// [Member]: the same inputs come in as far as they do not come from a group, and the same effects come out. It is not safe
// for concurrent use.
//
// What it is assigned is its own for as long as it lives: nothing is ever revoked but by Leave, and nothing is lost but with
// a topic that was made anew. A partition that does not exist is granted when it appears.
//
// With ends ([StandaloneConfig].Ends) it tells when all is read ([RangesRead]), or that this can never be ([RangeGone]): what is
// missing is then not waited for, and a topic that was made anew is not what was to be read.
//
// Invariants ([Standalone.Valid]): only what is assigned is owned, each partition under one epoch, in ASSIGNING, ASSIGNED and
// LEAVING alone; something starts exactly in ASSIGNING, and drains only in LEAVING.
type Standalone struct {
	config StandaloneConfig
	topics []string
	state  State
	held   holdings
	epoch  kafka.AssignmentEpoch
	// counts is how many partitions each topic had when it was last seen; one that was never seen has none.
	counts map[string]int32
	// anew are the topics that were made anew: no position from outside means anything in them. added are partitions that
	// appeared in a topic that was there.
	anew    map[string]bool
	added   map[kafka.TopicPartition]bool
	missing []kafka.TopicPartition
	// releaseBy is when partitions that were not released are declared lost.
	releaseBy time.Time
	leave     leaving
	// ranges is nil when the reading has no end.
	ranges *ranges

	out []Effect
}

// standaloneMoves are the legal changes of state of a consumer without a group. In JOINING it waits for the first answer
// about its topics; the other states are a member's, without what needs a group.
var standaloneMoves = moves[State]{
	StateUnjoined:  {StateJoining, StateLeaving},
	StateJoining:   {StateAssigning, StateLeaving},
	StateAssigning: {StateAssigned, StateLeaving},
	StateAssigned:  {StateAssigning, StateLeaving},
	StateLeaving:   {StateUnjoined},
}

// NewStandalone returns a consumer in UNJOINED.
func NewStandalone(config StandaloneConfig) (*Standalone, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	s := &Standalone{
		config: StandaloneConfig{Partitions: maps.Clone(config.Partitions), Topics: maps.Clone(config.Topics), Ends: maps.Clone(config.Ends)},
		counts: make(map[string]int32), anew: make(map[string]bool), added: make(map[kafka.TopicPartition]bool),
	}
	if config.Ends != nil {
		s.ranges = newRanges()
	}
	s.topics = slices.Collect(maps.Keys(config.Topics))
	for tp := range config.Partitions {
		s.topics = append(s.topics, tp.Topic)
	}
	slices.Sort(s.topics)
	s.topics = slices.Compact(s.topics)
	return s, nil
}

func (c *StandaloneConfig) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("rebalance: stand-alone: %w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	if len(c.Partitions) == 0 && len(c.Topics) == 0 {
		return bad("nothing is assigned")
	}
	for tp, start := range c.Partitions {
		if _, whole := c.Topics[tp.Topic]; tp.Topic == "" || tp.Partition < 0 || whole {
			return bad("%s is no partition, or its topic is assigned whole", tp)
		}
		if err := start.Validate(); err != nil {
			return fmt.Errorf("rebalance: stand-alone: %s: %w", tp, err)
		}
	}
	for topic, start := range c.Topics {
		if topic == "" {
			return bad("a topic's name is empty")
		}
		if err := start.Validate(); err != nil {
			return fmt.Errorf("rebalance: stand-alone: %s: %w", topic, err)
		}
	}
	return c.checkEnds()
}

// Successor returns a consumer in UNJOINED that takes over from s, which must not be stepped any more: it knows what s saw
// of the topics, and its epochs go on above those of s.
func (s *Standalone) Successor() *Standalone {
	return &Standalone{
		config: s.config, topics: s.topics, epoch: s.epoch, counts: s.counts, anew: s.anew, added: s.added, ranges: s.ranges.successor(),
	}
}

// Step takes one input and returns what to do about it, in order. With an error the effects returned are to be carried out
// all the same; the input had no further consequence.
func (s *Standalone) Step(now time.Time, in Input) ([]Effect, error) {
	s.out = nil
	err := s.handle(now, in)
	return s.out, err
}

func (s *Standalone) handle(now time.Time, in Input) error {
	switch in := in.(type) {
	case Start:
		if s.state != StateUnjoined {
			return unexpected(in, s.state)
		}
		return s.move(StateJoining, "start", nil)
	case TopicsChanged:
		return s.topicsChanged(in)
	case TopicRecreated:
		return s.topicRecreated(in)
	case RangeRead:
		return s.rangeRead(in)
	case PartitionStarted:
		return s.partitionStarted(in)
	case PartitionReleased:
		return s.partitionReleased(in)
	case Leave:
		return s.leaveAsked(now, in)
	case Tick:
		return s.tick(now)
	case JoinAnswered, TopicsKnown, SyncAnswered, HeartbeatAnswered, SessionExpired, CommitFenced, SubscriptionChanged, Rejoin, GiveUp,
		LeaveAnswered:
		// There is no group that could say so.
	}
	return unexpected(in, s.state)
}

// move is the only place where the state changes.
func (s *Standalone) move(to State, cause string, err error) error {
	if illegal := standaloneMoves.check(s.state, to); illegal != nil {
		return illegal
	}
	s.emit(Moved{From: s.state, To: to, Cause: cause, Err: err, Generation: kafka.NoGeneration})
	s.state = to
	return nil
}

func (s *Standalone) emit(effects ...Effect) { s.out = append(s.out, effects...) }

// State returns the consumer's state.
func (s *Standalone) State() State { return s.state }

// LastEpoch returns the last assignment epoch given out.
func (s *Standalone) LastEpoch() kafka.AssignmentEpoch { return s.epoch }

// Granted returns the partitions that are the consumer's: granted, neither released nor lost. Sorted.
func (s *Standalone) Granted() []Grant { return s.held.in(holdStarting, holdStarted, holdRevoking) }

// start returns a partition's position as it was assigned, and false when it was not.
func (s *Standalone) start(tp kafka.TopicPartition) (StartPosition, bool) {
	if start, ok := s.config.Partitions[tp]; ok {
		return start, true
	}
	start, ok := s.config.Topics[tp.Topic]
	return start, ok && tp.Partition >= 0
}

// topicsChanged grants what has appeared. A topic that is not there any more keeps its partitions, which wait for a leader:
// it may only be hidden, and made anew it is told of by its id.
func (s *Standalone) topicsChanged(in TopicsChanged) error {
	switch s.state {
	case StateJoining, StateAssigning, StateAssigned:
	case StateUnjoined, StateSyncing, StateRevoking, StateRevoked, StateLeaving, StateFatal:
		return nil
	}
	var grants []Grant
	held := s.held.epochs()
	for _, topic := range s.topics {
		info, there := in.Partitions[topic]
		if !there {
			continue
		}
		before, seen := s.counts[topic]
		if _, whole := s.config.Topics[topic]; whole && seen && s.ranges != nil {
			info.Partitions = min(info.Partitions, before) // as of the start
		}
		for partition := range info.Partitions {
			tp := kafka.TopicPartition{Topic: topic, Partition: partition}
			_, wanted := s.start(tp)
			if _, has := held[tp]; has || !wanted || s.ranges != nil && s.ranges.read[tp] {
				continue
			}
			if seen && partition >= before {
				s.added[tp] = true
			}
			s.epoch++
			grants = append(grants, Grant{TopicPartition: tp, Epoch: s.epoch})
			s.held.set(grants[len(grants)-1], holdStarting)
		}
		s.counts[topic] = max(before, info.Partitions) // a broker may be behind
	}
	s.missPartitions()
	if s.state == StateJoining || s.state == StateAssigned && len(grants) > 0 {
		if err := s.move(StateAssigning, fmt.Sprintf("%d partitions there", len(grants)), nil); err != nil {
			return err
		}
	}
	if len(grants) > 0 {
		s.emit(AssignPartitions{Grants: grants})
	}
	if err := s.assignedIfStarted(); err != nil {
		return err
	}
	s.lookForRanges(in)
	return nil
}

// missPartitions tells of partitions whose topic is there and does not have them, when they are others than before.
func (s *Standalone) missPartitions() {
	var missing []kafka.TopicPartition
	for tp := range s.config.Partitions {
		if count, seen := s.counts[tp.Topic]; seen && tp.Partition >= count {
			missing = append(missing, tp)
		}
	}
	slices.SortFunc(missing, kafka.TopicPartition.Compare)
	if slices.Equal(missing, s.missing) {
		return
	}
	s.missing = missing
	s.emit(MissPartitions{Partitions: slices.Clone(missing)})
}

func (s *Standalone) assignedIfStarted() error {
	if s.state != StateAssigning || s.held.count(holdStarting) > 0 {
		return nil
	}
	return s.move(StateAssigned, "all partitions started", nil)
}

func (s *Standalone) partitionStarted(in PartitionStarted) error {
	if phase, ok := s.held.phase(Grant(in)); !ok || phase != holdStarting {
		return nil // being given up, or told twice
	}
	s.held.set(Grant(in), holdStarted)
	return s.assignedIfStarted()
}

// topicRecreated gives up what is held of a topic that is another one now; the next look at the topics grants it anew. While
// leaving it is given up anyway.
func (s *Standalone) topicRecreated(in TopicRecreated) error {
	if s.state != StateAssigning && s.state != StateAssigned {
		return nil
	}
	if s.ranges != nil { // the log that was to be read is gone
		if s.unread(in.Topic) {
			s.rangeGone(kafka.WholeTopic(in.Topic), ErrTopicRecreated)
		}
		return nil
	}
	s.anew[in.Topic] = true
	delete(s.counts, in.Topic)
	var lost []Grant
	for _, grant := range s.Granted() {
		if grant.TopicPartition.Topic == in.Topic {
			s.held.set(grant, holdLost)
			lost = append(lost, grant)
		}
	}
	if len(lost) > 0 {
		s.emit(LosePartitions{Grants: lost, Cause: fmt.Errorf("rebalance: %w: %s", ErrTopicRecreated, in.Topic)})
	}
	return s.assignedIfStarted()
}

func (s *Standalone) partitionReleased(in PartitionReleased) error {
	grant := Grant(in)
	phase, ok := s.held.phase(grant)
	if !ok {
		return nil
	}
	if phase != holdRevoking && phase != holdLost {
		return fmt.Errorf("rebalance: %w: %s (epoch %d) released without being revoked", ErrUnexpectedInput, in.TopicPartition, in.Epoch)
	}
	s.held.drop(grant)
	if s.state == StateLeaving {
		return s.leaveOn()
	}
	return nil
}

// Deadline returns when the consumer wants a [Tick], and false when it does not.
func (s *Standalone) Deadline() (time.Time, bool) {
	if s.state != StateLeaving {
		return time.Time{}, false
	}
	if !s.releaseBy.IsZero() {
		return earlier(s.releaseBy, s.leave.deadline), true
	}
	return s.leave.deadline, true
}

func (s *Standalone) tick(now time.Time) error {
	at, ok := s.Deadline()
	if !ok || now.Before(at) {
		return nil
	}
	if now.Before(s.leave.deadline) {
		s.loseOverdue()
		return s.leaveOn()
	}
	undone := fmt.Errorf("rebalance: %w: %d partitions not released", ErrLeaveUnfinished, len(s.held.phases))
	s.leave.err = errors.Join(s.leave.err, undone)
	if grants := s.held.move(holdLost); len(grants) > 0 {
		s.emit(LosePartitions{Grants: grants, Cause: undone})
	}
	return s.left()
}

func (s *Standalone) leaveAsked(now time.Time, in Leave) error {
	in = boundedLeave(now, in)
	if s.state == StateLeaving { // an earlier deadline holds; a later one changes nothing
		if !in.Deadline.Before(s.leave.deadline) && !in.DrainUntil.Before(s.leave.drainUntil) {
			return nil
		}
		in.Deadline, in.DrainUntil = earlier(in.Deadline, s.leave.deadline), earlier(in.DrainUntil, s.leave.drainUntil)
	} else if err := s.move(StateLeaving, "leave", nil); err != nil {
		return err
	}
	s.leave.drainUntil, s.leave.deadline = in.DrainUntil, in.Deadline
	if grants := s.held.move(holdRevoking); len(grants) > 0 {
		// As when a member leaves, but what is kept back is for the callbacks and for those that do not let go by themselves.
		reserve := min(leaveReserve, in.Deadline.Sub(in.DrainUntil)/2)
		deadline := in.Deadline.Add(-reserve)
		s.releaseBy = deadline.Add(reserve / 2)
		s.emit(RevokePartitions{Grants: grants, DrainUntil: in.DrainUntil, Deadline: deadline, Closing: true})
	}
	return s.leaveOn()
}

// loseOverdue declares partitions lost that were not released in time.
func (s *Standalone) loseOverdue() {
	s.releaseBy = time.Time{}
	overdue := s.held.in(holdRevoking)
	if len(overdue) == 0 {
		return
	}
	err := fmt.Errorf("rebalance: %w: %d partitions, first %s (epoch %d)",
		ErrNotReleased, len(overdue), overdue[0].TopicPartition, overdue[0].Epoch)
	for _, grant := range overdue {
		s.held.set(grant, holdLost)
	}
	s.emit(Refused{Err: err}, LosePartitions{Grants: overdue, Cause: err})
}

// leaveOn ends the assignment when the last partition is released, a lost one included.
func (s *Standalone) leaveOn() error {
	if s.held.count(holdRevoking) == 0 {
		s.releaseBy = time.Time{}
	}
	if len(s.held.phases) > 0 {
		return nil
	}
	return s.left()
}

func (s *Standalone) left() error {
	err := s.leave.err
	s.held.clear()
	s.leave, s.releaseBy = leaving{}, time.Time{}
	if illegal := s.move(StateUnjoined, "left", err); illegal != nil {
		return illegal
	}
	s.emit(Left{Err: err})
	return nil
}
