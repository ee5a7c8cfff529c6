package kafkatest

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// clients makes and keeps the broker's own clients. They go past the gate.
type clients struct {
	broker *Broker

	mu     sync.Mutex
	closed bool
	open   map[*kgo.Client]struct{}
	// current serves Produce and AddPartitions.
	current *kgo.Client
	// topics is what current has seen of each topic. A client knows a topic for minutes, so it is replaced when the topic
	// was made anew or grew.
	topics map[string]topicState
}

type topicState struct {
	id         [16]byte
	partitions int
}

// add returns a new client.
func (c *clients) add(opts ...kgo.Opt) (*kgo.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addLocked(opts...)
}

func (c *clients) addLocked(opts ...kgo.Opt) (*kgo.Client, error) {
	if c.closed {
		return nil, ErrClosed
	}
	b := c.broker
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.addrs...), kgo.Dialer(b.network.dialInside), kgo.DisableClientMetrics(),
		kgo.ProducerBatchCompression(codec(b.settings.compression)), kgo.RecordPartitioner(partitioner())}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("kafkatest: %w", err)
	}
	c.open[client] = struct{}{}
	return client, nil
}

// remove closes a client.
func (c *clients) remove(client *kgo.Client) {
	c.mu.Lock()
	delete(c.open, client)
	c.mu.Unlock()
	client.Close()
}

// closeAll closes all clients and lets no new one be made. Calls that wait on one of them return.
func (c *clients) closeAll() {
	c.mu.Lock()
	c.closed = true
	open := slices.Collect(maps.Keys(c.open))
	clear(c.open)
	c.mu.Unlock()
	for _, client := range open {
		client.Close()
	}
}

// shared returns the client for everything but transactions.
func (c *clients) shared() (*kgo.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sharedLocked()
}

func (c *clients) sharedLocked() (*kgo.Client, error) {
	if c.closed {
		return nil, ErrClosed
	}
	if c.current == nil {
		client, err := c.addLocked()
		if err != nil {
			return nil, err
		}
		c.current = client
	}
	return c.current, nil
}

// producer returns a client that knows the topic as it is now. The broker must not be closed meanwhile.
func (c *clients) producer(topic string) (*kgo.Client, error) {
	info := c.broker.cluster.TopicInfo(topic)
	if info == nil {
		return nil, fmt.Errorf("kafkatest: produce to %q: %w", topic, kerr.UnknownTopicOrPartition)
	}
	now := topicState{id: info.TopicID, partitions: len(c.broker.cluster.PartitionInfos(topic))}
	c.mu.Lock()
	defer c.mu.Unlock()
	if seen, ok := c.topics[topic]; ok && seen != now {
		c.current = nil // the old one may be at work: it is closed with the broker
		clear(c.topics)
	}
	c.topics[topic] = now
	return c.sharedLocked()
}
