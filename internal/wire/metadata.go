package wire

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/kafka"
)

// mostPartitions bounds a topic's partitions in an answer, so that a wrong number cannot make us allocate for it.
const mostPartitions = 1 << 20

// leastAttempt is the shortest time worth spending on connecting to one of several brokers.
const leastAttempt = 250 * time.Millisecond

// errTooManyPartitions is the error of a topic whose partition numbers make no sense.
var errTooManyPartitions = errors.New("partition number out of range")

// metadataClient talks to any broker. It stays with one that answers and goes round the others when it fails.
type metadataClient struct {
	*client
	// known are the brokers that metadata named, by address in order of node id.
	known []kafka.Broker
	// next is the place in the round at which the next search begins.
	next int
	// avoided are the addresses that a search tries last, until one finds a broker; under client.mu.
	avoided []string
}

// Avoid implements actors.MetadataClient. Of a connection to a bootstrap server nobody knows to which broker it leads, so it
// is given up in any case.
func (c *metadataClient) Avoid(broker kafka.Broker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.avoided = append(c.avoided[:0], broker.Addr)
	if c.raw == nil || c.to.ID >= 0 && c.to.ID != broker.ID && c.to.Addr != broker.Addr {
		return
	}
	c.avoided = append(c.avoided, c.to.Addr)
	_ = c.raw.Close()
}

// Metadata describes the topics named, every topic when topics is nil.
func (c *metadataClient) Metadata(ctx context.Context, topics []string) (*actors.ClusterMetadata, error) {
	a, err := c.any(ctx, question{
		api:   apiMetadata,
		limit: c.network.cfg.RequestTimeout,
		build: func(int16) kmsg.Request {
			req := kmsg.NewPtrMetadataRequest()
			if topics == nil {
				return req // without a list it asks for every topic
			}
			req.Topics = make([]kmsg.MetadataRequestTopic, len(topics))
			for i := range topics {
				req.Topics[i] = kmsg.NewMetadataRequestTopic()
				req.Topics[i].Topic = &topics[i]
			}
			return req
		},
	})
	if err != nil {
		return nil, err
	}
	resp := a.resp.(*kmsg.MetadataResponse)
	if err := a.failed(apiMetadata, resp.ErrorCode); err != nil {
		return nil, err
	}
	out := readMetadata(resp, topics)
	c.learn(out.Brokers)
	c.network.origins.named(a.broker, out.Brokers)
	return out, nil
}

// readMetadata brings an answer into the port's form.
func readMetadata(resp *kmsg.MetadataResponse, topics []string) *actors.ClusterMetadata {
	out := &actors.ClusterMetadata{
		Brokers: make(map[int32]kafka.Broker, len(resp.Brokers)),
		Topics:  make(map[string]actors.TopicMetadata, len(topics)),
	}
	if resp.ClusterID != nil {
		out.ClusterID = *resp.ClusterID
	}
	for _, b := range resp.Brokers {
		out.Brokers[b.NodeID] = brokerOf(b.NodeID, b.Host, b.Port, b.Rack)
	}
	for _, topic := range topics {
		out.Topics[topic] = actors.TopicMetadata{Err: kafka.UnknownTopicOrPartition}
	}
	for i := range resp.Topics {
		t := &resp.Topics[i]
		if t.Topic == nil {
			continue
		}
		if _, asked := out.Topics[*t.Topic]; asked || topics == nil {
			out.Topics[*t.Topic] = readTopic(t)
		}
	}
	return out
}

// readTopic puts each partition at the index of its number.
func readTopic(t *kmsg.MetadataResponseTopic) actors.TopicMetadata {
	out := actors.TopicMetadata{Err: kafka.ErrorFromCode(t.ErrorCode), ID: t.TopicID, Internal: t.IsInternal}
	count := 0
	for i := range t.Partitions {
		number := t.Partitions[i].Partition
		if number < 0 || number >= mostPartitions {
			out.Err = errTooManyPartitions
			return out
		}
		count = max(count, int(number)+1)
	}
	out.Partitions = make([]actors.PartitionMetadata, count)
	for i := range out.Partitions {
		out.Partitions[i] = actors.PartitionMetadata{Leader: -1, LeaderEpoch: kafka.NoLeaderEpoch, Err: kafka.LeaderNotAvailable}
	}
	for i := range t.Partitions {
		p := &t.Partitions[i]
		out.Partitions[p.Partition] = actors.PartitionMetadata{Leader: p.Leader, LeaderEpoch: p.LeaderEpoch,
			Replicas: p.Replicas, Err: kafka.ErrorFromCode(p.ErrorCode)}
	}
	return out
}

// brokerOf makes a broker of what answers say about one.
func brokerOf(id int32, host string, port int32, rack *string) kafka.Broker {
	b := kafka.Broker{ID: id, Addr: net.JoinHostPort(host, strconv.Itoa(int(port)))}
	if rack != nil {
		b.Rack = *rack
	}
	return b
}

// learn keeps the brokers of an answer for later searches. An answer without any changes nothing.
func (c *metadataClient) learn(brokers map[int32]kafka.Broker) {
	if len(brokers) == 0 {
		return
	}
	c.known = c.known[:0]
	for _, b := range brokers {
		c.known = append(c.known, b)
	}
	slices.SortFunc(c.known, func(a, b kafka.Broker) int { return int(a.ID) - int(b.ID) })
}

// round returns whom to try: the bootstrap servers first, then those metadata named, each address once.
func (c *metadataClient) round() []kafka.Broker {
	out := make([]kafka.Broker, 0, len(c.network.cfg.Brokers)+len(c.known))
	add := func(b kafka.Broker) {
		if !slices.ContainsFunc(out, func(o kafka.Broker) bool { return o.Addr == b.Addr }) {
			out = append(out, b)
		}
	}
	for _, addr := range c.network.cfg.Brokers {
		bootstrap := kafka.Broker{ID: -1, Addr: addr}
		if i := slices.IndexFunc(c.known, func(b kafka.Broker) bool { return b.Addr == addr }); i >= 0 {
			bootstrap = c.known[i]
		}
		add(bootstrap)
	}
	for _, b := range c.known {
		add(b)
	}
	return out
}

// any makes a request at the broker in use, or at the first of the round that can be connected to.
func (c *metadataClient) any(ctx context.Context, q question) (answer, error) {
	if c.link != nil && c.serves(c.link.broker.Addr) {
		a, err := c.ask(ctx, q)
		var broken *transportError
		if err == nil || !errors.As(err, &broken) || ctx.Err() != nil || c.life.Err() != nil {
			return a, err
		}
		// These requests change nothing, so another broker may be asked instead.
	}
	if err := c.search(ctx); err != nil {
		return answer{}, err
	}
	return c.ask(ctx, q)
}

// search connects to the first broker of the round that can be. The whole search takes at most ConnectTimeout, of which
// each attempt gets half of what is left and the last one all: brokers that hang must not use up the others' time. The
// next search begins where this one ended, so each broker is in turn given the most time; those to avoid come last.
func (c *metadataClient) search(ctx context.Context) error {
	round := c.round()
	order := c.order(round)
	deadline := time.Now().Add(c.network.cfg.ConnectTimeout)
	var failed searchError
	for i, place := range order {
		left := time.Until(deadline)
		limit := left
		if i < len(order)-1 {
			limit = max(left/2, min(left, leastAttempt))
		}
		if limit <= 0 {
			break
		}
		c.next = (place + 1) % len(round)
		err := c.connect(ctx, round[place], limit)
		if err == nil {
			c.next = place // it works: begin with it next time
			c.mu.Lock()
			c.avoided = nil
			c.mu.Unlock()
			return nil
		}
		failed = append(failed, err)
		var code kafka.ErrorCode
		if errors.As(err, &code) || ctx.Err() != nil || c.life.Err() != nil {
			return err // refused by a broker that understood us, or ended by us: no use in asking another
		}
	}
	return failed.connectError(round)
}

// order returns the places of the round in the order of a search.
func (c *metadataClient) order(round []kafka.Broker) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	order, last := make([]int, 0, len(round)), []int(nil)
	for i := range round {
		place := (c.next + i) % len(round)
		if slices.Contains(c.avoided, round[place].Addr) {
			last = append(last, place)
			continue
		}
		order = append(order, place)
	}
	return append(order, last...)
}

// searchError is every failed attempt of a search.
type searchError []error

// connectError sums the attempts up: as one error of the address when there was one broker to try.
func (e searchError) connectError(round []kafka.Broker) error {
	addrs := make([]string, len(round))
	for i, b := range round {
		addrs[i] = b.Addr
	}
	out := &kafka.ConnectError{Addr: strings.Join(addrs, ","), Phase: phaseDial, Err: e}
	for _, err := range e {
		// The furthest an attempt came says most about what is wrong.
		var attempt *kafka.ConnectError
		if errors.As(err, &attempt) && attempt.Phase != phaseDial {
			out.Phase = attempt.Phase
		}
	}
	return out
}

// Error lists the attempts.
func (e searchError) Error() string {
	var b strings.Builder
	b.WriteString(kafka.ErrNoBroker.Error())
	for _, err := range e {
		b.WriteString("; ")
		var attempt *kafka.ConnectError
		if errors.As(err, &attempt) {
			if err = attempt.Err; len(e) > 1 {
				b.WriteString(attempt.Addr)
				if attempt.Source != "" {
					b.WriteString(" (" + attempt.Source + ")")
				}
				b.WriteString(": " + attempt.Phase + ": ")
			}
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap returns kafka.ErrNoBroker and the attempts.
func (e searchError) Unwrap() []error { return append([]error{kafka.ErrNoBroker}, e...) }
