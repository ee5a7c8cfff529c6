// Package cluster is what the examples do on a Kafka cluster besides consuming: create a topic, produce, and read offsets
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
}

// Connect connects to the cluster that the brokers belong to.
func Connect(clientID string, brokers []string, topic string) (*Cluster, error) {
	config := sarama.NewConfig()
	config.ClientID = clientID
	config.Version = sarama.V2_6_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	// An idempotent producer: a batch that is sent again is not written twice.
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	client, err := sarama.NewClient(brokers, config)
	if err != nil {
		return nil, fmt.Errorf("connect to %v: %w", brokers, err)
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %v: %w", brokers, err), client.Close())
	}
	return &Cluster{client: client, admin: admin, topic: topic}, nil
}

// Close ends the connections; the admin closes its client.
func (c *Cluster) Close() { _ = c.admin.Close() }

// EnsureTopic creates the topic when it is not there, waits until it can be used, and returns its end offsets.
func (c *Cluster) EnsureTopic(partitions int) (ends map[int32]int64, err error) {
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

// Consumed tells how far a group is with what was written since before, the end offsets of an earlier time: how many
// records are below its committed offsets as the brokers have them, and how many above.
func (c *Cluster) Consumed(group string, before map[int32]int64) (committed, lag int64, err error) {
	ends, err := c.EndOffsets()
	if err != nil {
		return 0, 0, err
	}
	offsets, err := c.committed(group, slices.Sorted(maps.Keys(ends)))
	if err != nil {
		return 0, 0, err
	}
	for partition, end := range ends {
		offset := max(offsets[partition], before[partition])
		committed += offset - before[partition]
		lag += end - offset
	}
	return committed, lag, nil
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
