package rebalance

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/troupego/troupe/pkg/kafka"
)

// subscriptionVersion is the version of the consumer protocol's subscription that we write.
const subscriptionVersion = 3

// Subscription is what a member tells the group leader with its JoinGroup (ConsumerProtocolSubscription).
type Subscription struct {
	// Version is as decoded; [EncodeSubscription] writes version 3 whatever it is.
	Version int16
	// Topics are the topics the member asks for.
	Topics []string
	// UserData is the assignor's own, nil for none.
	UserData []byte
	// Owned are the partitions the member still holds (version 1 and up); empty under an eager assignor.
	Owned []kafka.TopicPartition
	// Generation is the generation in which Owned was given (version 2 and up), [kafka.NoGeneration] when unknown.
	Generation kafka.Generation
	// Rack is where the member runs (version 3 and up), empty when unknown.
	Rack string
}

// EncodeSubscription writes version 3. It fails when a string does not fit the format.
func EncodeSubscription(s Subscription) ([]byte, error) {
	return EncodeSubscriptionVersion(s, subscriptionVersion)
}

// EncodeSubscriptionVersion writes a version from 0 to 3 as an older member does, without the fields it does not have. It
// fails on other versions and when a string does not fit the format.
func EncodeSubscriptionVersion(s Subscription, version int16) ([]byte, error) {
	if version < 0 || version > subscriptionVersion {
		return nil, fmt.Errorf("rebalance: no version %d of a subscription", version)
	}
	out := binary.BigEndian.AppendUint16(nil, uint16(version))
	out = appendInt32(out, int32(len(s.Topics)))
	var err error
	for _, topic := range s.Topics {
		if out, err = appendString(out, topic, "topic"); err != nil {
			return nil, err
		}
	}
	out = appendBytes(out, s.UserData)
	if version >= 1 {
		if out, err = appendPartitions(out, s.Owned); err != nil {
			return nil, err
		}
	}
	if version >= 2 {
		out = appendInt32(out, int32(s.Generation))
	}
	if version < 3 {
		return out, nil
	}
	if s.Rack == "" {
		return binary.BigEndian.AppendUint16(out, 0xffff), nil
	}
	return appendString(out, s.Rack, "rack")
}

// DecodeSubscription reads any version. Fields that the bytes end before, and fields that the version does not have, are
// left at "unknown"; bytes after the last known field are ignored, so a newer member does not break the leader.
func DecodeSubscription(data []byte) (Subscription, error) {
	d := decoder{rest: data}
	s := Subscription{Version: d.int16("version"), Generation: kafka.NoGeneration}
	if n := d.count(2, "topics"); n > 0 {
		s.Topics = make([]string, 0, n)
		for range n {
			s.Topics = append(s.Topics, d.string("topic"))
		}
	}
	if len(d.rest) > 0 {
		s.UserData = d.bytes("user data")
	}
	if s.Version >= 1 && len(d.rest) > 0 {
		s.Owned = d.partitions("owned partitions")
	}
	if s.Version >= 2 && len(d.rest) > 0 {
		s.Generation = kafka.Generation(d.int32("generation"))
	}
	if s.Version >= 3 && len(d.rest) > 0 {
		s.Rack = d.nullableString("rack")
	}
	if d.err != nil {
		return Subscription{}, fmt.Errorf("rebalance: subscription: %w", d.err)
	}
	return s, nil
}

// appendPartitions writes partitions grouped by topic, sorted.
func appendPartitions(out []byte, partitions []kafka.TopicPartition) ([]byte, error) {
	sorted := slices.Clone(partitions)
	slices.SortFunc(sorted, kafka.TopicPartition.Compare)
	topics := 0
	for i, tp := range sorted {
		if i == 0 || tp.Topic != sorted[i-1].Topic {
			topics++
		}
	}
	out = appendInt32(out, int32(topics))
	for len(sorted) > 0 {
		topic, n := sorted[0].Topic, 0
		for n < len(sorted) && sorted[n].Topic == topic {
			n++
		}
		var err error
		if out, err = appendString(out, topic, "topic"); err != nil {
			return nil, err
		}
		out = appendInt32(out, int32(n))
		for _, tp := range sorted[:n] {
			out = appendInt32(out, tp.Partition)
		}
		sorted = sorted[n:]
	}
	return out, nil
}

// partitions reads partitions grouped by topic.
func (d *decoder) partitions(what string) []kafka.TopicPartition {
	var out []kafka.TopicPartition
	for range d.count(6, what) {
		topic := d.string(what)
		n := d.count(4, what)
		out = slices.Grow(out, n)
		for range n {
			out = append(out, kafka.TopicPartition{Topic: topic, Partition: d.int32(what)})
		}
	}
	if d.err != nil {
		return nil
	}
	return out
}
