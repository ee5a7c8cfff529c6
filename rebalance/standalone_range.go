package rebalance

import (
	"fmt"

	"github.com/troupego/troupe/pkg/kafka"
)

// goneAfter is how many looks in a row must miss a topic or partition of a range before it is taken as gone: a broker that
// just started may not know it yet, and one that is behind does not.
const goneAfter = 3

// ranges is what a consumer without a group keeps when its reading ends ([StandaloneConfig].Ends).
type ranges struct {
	// read are the partitions whose range is read and finished.
	read map[kafka.TopicPartition]bool
	// missed counts the looks in a row that missed a topic, or a partition of it.
	missed map[string]int
	// over is true when RangesRead or RangeGone was told.
	over bool
}

func newRanges() *ranges {
	return &ranges{read: make(map[kafka.TopicPartition]bool), missed: make(map[string]int)}
}

// successor keeps what is read; the rest is told anew.
func (r *ranges) successor() *ranges {
	if r == nil {
		return nil
	}
	return &ranges{read: r.read, missed: make(map[string]int)}
}

func (c *StandaloneConfig) checkEnds() error {
	if c.Ends == nil {
		return nil
	}
	check := func(tp kafka.TopicPartition, start StartPosition) error {
		end, ok := c.Ends[tp]
		if !ok {
			return fmt.Errorf("rebalance: stand-alone: %w: %s has no end", ErrConfig, tp)
		}
		if err := end.Validate(start); err != nil {
			return fmt.Errorf("rebalance: stand-alone: %s: %w", tp, err)
		}
		return nil
	}
	for tp, start := range c.Partitions {
		if err := check(tp, start); err != nil {
			return err
		}
	}
	for topic, start := range c.Topics {
		if err := check(kafka.WholeTopic(topic), start); err != nil {
			return err
		}
	}
	if len(c.Ends) != len(c.Partitions)+len(c.Topics) {
		return fmt.Errorf("rebalance: stand-alone: %w: an end of what is not assigned", ErrConfig)
	}
	return nil
}

// End returns where a partition's reading ends, and false when it never does, which is so for nil, in a group.
func (c *StandaloneConfig) End(tp kafka.TopicPartition) (EndPosition, bool) {
	if c == nil {
		return EndPosition{}, false
	}
	if end, ok := c.Ends[tp]; ok {
		return end, true
	}
	end, ok := c.Ends[kafka.WholeTopic(tp.Topic)]
	return end, ok
}

// unread reports whether something of a topic is not read to its end.
func (s *Standalone) unread(topic string) bool {
	if _, whole := s.config.Topics[topic]; whole {
		count, seen := s.counts[topic]
		for partition := range count {
			if !s.ranges.read[kafka.TopicPartition{Topic: topic, Partition: partition}] {
				return true
			}
		}
		return !seen
	}
	for tp := range s.config.Partitions {
		if tp.Topic == topic && !s.ranges.read[tp] {
			return true
		}
	}
	return false
}

// rangeRead notes a partition whose range is finished.
func (s *Standalone) rangeRead(in RangeRead) error {
	if s.ranges == nil {
		return unexpected(in, s.state)
	}
	if _, held := s.held.phase(Grant{TopicPartition: in.TopicPartition, Epoch: in.Epoch}); !held {
		return nil // of an ownership that has ended
	}
	if in.Undone {
		delete(s.ranges.read, in.TopicPartition)
		return nil
	}
	s.ranges.read[in.TopicPartition] = true
	s.endRanges()
	return nil
}

// lookForRanges counts how often in a row something was missed that is to be read, and ends what cannot be read to its end.
func (s *Standalone) lookForRanges(in TopicsChanged) {
	if s.ranges == nil {
		return
	}
	for _, topic := range s.topics {
		absent := in.Absent[topic]
		_, there := in.Partitions[topic]
		missing := kafka.WholeTopic(topic)
		for _, tp := range s.missing {
			if tp.Topic == topic {
				missing = tp
				break
			}
		}
		switch {
		case absent != nil:
		case missing.Partition >= 0 && there:
		case there:
			s.ranges.missed[topic] = 0
			continue
		default:
			continue // the brokers cannot say
		}
		if !s.unread(topic) {
			continue
		}
		if s.ranges.missed[topic]++; s.ranges.missed[topic] < goneAfter {
			continue
		}
		err := ErrNoPartition
		if absent != nil {
			err = fmt.Errorf("%w: %w", ErrNoPartition, absent)
		}
		s.rangeGone(missing, err)
		return
	}
	s.endRanges()
}

// rangeGone tells that the consumer cannot do what it is for.
func (s *Standalone) rangeGone(tp kafka.TopicPartition, err error) {
	if s.ranges.over || s.state == StateLeaving {
		return
	}
	s.ranges.over = true
	s.emit(RangeGone{Err: &RangeError{TopicPartition: tp, Err: err}})
}

// endRanges tells that everything is read, when it is.
func (s *Standalone) endRanges() {
	if s.ranges.over || s.state != StateAssigning && s.state != StateAssigned {
		return
	}
	for _, topic := range s.topics {
		if s.unread(topic) {
			return
		}
	}
	s.ranges.over = true
	s.emit(RangesRead{})
}
