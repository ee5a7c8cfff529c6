// Package cluster is what the examples do on a Kafka cluster besides consuming: start one, create a topic, produce, and read offsets
// back, all with sarama.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/troupego/troupe/pkg/kafkatest"
)

// batchSize is how many records are produced at once.
const batchSize = 500

// topicLimit is how long a new topic may take until it can be used.
const topicLimit = 15 * time.Second

// Cluster is a connection to a cluster, for one topic.
type Cluster struct {
	client sarama.Client
	admin  sarama.ClusterAdmin
	topic  string
	// embedded is nil when the cluster is somebody else's.
	embedded *kafkatest.Broker
	brokers  []string
	before   map[int32]int64
}

// Open connects to the cluster that the brokers belong to, or to one that it starts in this process when there are none,
// and sees to it that the topic is there.
func Open(clientID string, brokers []string, topic string, partitions int) (c *Cluster, err error) {
	c = &Cluster{topic: topic, brokers: brokers}
	if len(brokers) == 0 {
		if c.embedded, err = kafkatest.StartBroker(); err != nil {
			return nil, err
		}
		c.brokers = c.embedded.Addrs()
	}
	if err = c.connect(clientID); err == nil {
		c.before, err = c.ensureTopic(partitions)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) connect(clientID string) (err error) {
	config := sarama.NewConfig()
	config.ClientID = clientID
	config.Version = sarama.V2_6_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	// An idempotent producer: a batch that is sent again is not written twice.
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	if c.client, err = sarama.NewClient(c.brokers, config); err == nil {
		c.admin, err = sarama.NewClusterAdminFromClient(c.client)
	}
	if err != nil {
		return fmt.Errorf("connect to %v: %w", c.brokers, err)
	}
	return nil
}

// Brokers are the addresses of the cluster.
func (c *Cluster) Brokers() []string { return c.brokers }

// Before returns the end offsets that the topic had when it was opened.
func (c *Cluster) Before() map[int32]int64 { return c.before }

// Close ends the connections, and the broker that Open started.
func (c *Cluster) Close() {
	switch {
	case c.admin != nil:
		_ = c.admin.Close() // along with its client
	case c.client != nil:
		_ = c.client.Close()
	}
	if c.embedded != nil {
		c.embedded.Close()
	}
}

// ensureTopic creates the topic when it is not there, waits until it can be used, and returns its end offsets.
func (c *Cluster) ensureTopic(partitions int) (ends map[int32]int64, err error) {
	replicas := int16(-1) // the cluster's default
	err = c.admin.CreateTopic(c.topic, &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: replicas}, false)
	if err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
		return nil, fmt.Errorf("create topic %q: %w", c.topic, err)
	}
	// The brokers learn of a new topic one after the other, and at first a leader may not know that it is one.
	deadline := time.Now().Add(topicLimit)
	for {
		if err = c.client.RefreshMetadata(c.topic); err == nil {
			if ends, err = c.EndOffsets(); err == nil {
				return ends, nil
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("topic %q is not ready: %w", c.topic, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// EndOffsets returns the offset that the next record of each partition gets.
func (c *Cluster) EndOffsets() (map[int32]int64, error) {
	partitions, err := c.client.Partitions(c.topic)
	if err != nil {
		return nil, fmt.Errorf("partitions of %q: %w", c.topic, err)
	}
	ends := make(map[int32]int64)
	for _, p := range partitions {
		if ends[p], err = c.client.GetOffset(c.topic, p, sarama.OffsetNewest); err != nil {
			return nil, fmt.Errorf("end of %s-%d: %w", c.topic, p, err)
		}
	}
	return ends, nil
}

// committed returns the group's offsets as the broker has them, -1 where there is none.
func (c *Cluster) committed(group string, partitions []int32) (map[int32]int64, error) {
	answer, err := c.admin.ListConsumerGroupOffsets(group, map[string][]int32{c.topic: partitions})
	if err == nil && answer.Err != sarama.ErrNoError {
		err = answer.Err
	}
	if err != nil {
		return nil, fmt.Errorf("committed offsets of %q: %w", group, err)
	}
	offsets := make(map[int32]int64)
	for _, p := range partitions {
		block := answer.GetBlock(c.topic, p)
		if block == nil {
			return nil, fmt.Errorf("committed offsets of %q: no answer for partition %d", group, p)
		}
		if block.Err != sarama.ErrNoError {
			return nil, fmt.Errorf("committed offset of %q in partition %d: %w", group, p, block.Err)
		}
		offsets[p] = block.Offset
	}
	return offsets, nil
}

// Consumed tells how far a group is with what was written since Open: how many records are below its committed offsets as
// the brokers have them, and how many above.
func (c *Cluster) Consumed(group string) (committed, lag int64, err error) {
	ends, err := c.EndOffsets()
	if err != nil {
		return 0, 0, err
	}
	offsets, err := c.committed(group, slices.Sorted(maps.Keys(ends)))
	if err != nil {
		return 0, 0, err
	}
	for partition, end := range ends {
		offset := max(offsets[partition], c.before[partition])
		committed += offset - c.before[partition]
		lag += end - offset
	}
	return committed, lag, nil
}

// RemoveMember has the coordinator throw a member out of its group, as if it had been silent for too long.
func (c *Cluster) RemoveMember(group, memberID string) error {
	coordinator, err := c.client.Coordinator(group)
	if err != nil {
		return fmt.Errorf("find the coordinator of %q: %w", group, err)
	}
	answer, err := coordinator.LeaveGroup(&sarama.LeaveGroupRequest{
		Version: 3, GroupId: group, Members: []sarama.MemberIdentity{{MemberId: memberID}},
	})
	switch {
	case err != nil:
	case answer.Err != sarama.ErrNoError:
		err = answer.Err
	case len(answer.Members) != 1:
		err = fmt.Errorf("the answer is about %d members", len(answer.Members))
	case answer.Members[0].Err != sarama.ErrNoError:
		err = answer.Members[0].Err
	}
	if err != nil {
		return fmt.Errorf("remove %q from %q: %w", memberID, group, err)
	}
	return nil
}

// Produce writes n records, made by number from 0, and returns how many the brokers have confirmed.
func (c *Cluster) Produce(ctx context.Context, n int, record func(number int) (key string, value []byte)) (produced int, err error) {
	producer, err := sarama.NewSyncProducerFromClient(c.client)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, producer.Close()) }()
	for produced < n {
		if ctx.Err() != nil {
			return produced, context.Cause(ctx)
		}
		batch := make([]*sarama.ProducerMessage, 0, batchSize)
		for number := produced; number < min(produced+batchSize, n); number++ {
			key, value := record(number)
			batch = append(batch, &sarama.ProducerMessage{Topic: c.topic, Key: sarama.StringEncoder(key), Value: sarama.ByteEncoder(value)})
		}
		if err := producer.SendMessages(batch); err != nil {
			return produced, fmt.Errorf("produce: %w", err)
		}
		produced += len(batch)
	}
	return produced, nil
}
