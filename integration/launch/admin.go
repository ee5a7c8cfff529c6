package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Everything here goes to the nodes' own plaintext listener, where everything is allowed, and is bounded by its context
// alone: what is not there yet is waited for. "Every node that can answer" is each one that runs and is not frozen, one
// that is still starting included.

// addresses are where helpers may ask: the nodes that can answer, or the outside brokers.
func (c *Cluster) addresses() []string {
	if c.External() {
		return c.Brokers()
	}
	var addresses []string
	for _, node := range c.serving() {
		addresses = append(addresses, node.plan.own().address())
	}
	return addresses
}

// errNoNode heads the reasons for which no node has answered.
var errNoNode = errors.New("no node answers")

// askAny returns the first answer any node gives.
func (c *Cluster) askAny(ctx context.Context, request kmsg.Request) (kmsg.Response, error) {
	errs := []error{errNoNode}
	for _, address := range c.addresses() {
		answer, err := askAt(ctx, address, request)
		if err == nil {
			return answer, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// askAt asks one node on a connection of its own.
func askAt(ctx context.Context, address string, request kmsg.Request) (kmsg.Response, error) {
	p, err := newProbe(ctx, address)
	if err != nil {
		return nil, err
	}
	defer p.close()
	return p.ask(ctx, request)
}

// awaitEverywhere polls until what every serving node answers satisfies the check.
func (c *Cluster) awaitEverywhere(ctx context.Context, request kmsg.Request, check func(kmsg.Response) error) error {
	return poll(ctx, func() error {
		addresses := c.addresses()
		if len(addresses) == 0 {
			return errNoNode
		}
		for _, address := range addresses {
			answer, err := askAt(ctx, address, request)
			if err == nil {
				err = check(answer)
			}
			if err != nil {
				return fmt.Errorf("at %s: %w", address, err)
			}
		}
		return nil
	})
}

// node finds one of ours; nil if there is none of that id.
func (c *Cluster) node(id int32) *Node {
	if id < 1 || int(id) > len(c.nodes) {
		return nil
	}
	return c.nodes[id-1]
}

// errOutside is the answer to questions about nodes of a cluster that has none of ours.
var errOutside = errors.New("launch: the cluster was not started here and has no nodes to name")

// Coordinator returns the node that coordinates a group, when all nodes that answer agree. An answer that names a node
// which does not run, as brokers give for some seconds after a kill, or a frozen one, is not taken: the new coordinator
// is waited for.
func (c *Cluster) Coordinator(ctx context.Context, group string) (*Node, error) {
	request := kmsg.NewPtrFindCoordinatorRequest()
	request.Version, request.CoordinatorKey = versionFindCoordinator, group
	node, err := c.findNode(ctx, request, func(answer kmsg.Response) (int32, error) {
		coordinator := answer.(*kmsg.FindCoordinatorResponse)
		return coordinator.NodeID, kerr.ErrorForCode(coordinator.ErrorCode)
	})
	if err != nil {
		return nil, fmt.Errorf("launch: coordinator of group %s: %w", group, err)
	}
	return node, nil
}

// Leader returns the node that leads a partition, with the same patience as Coordinator.
func (c *Cluster) Leader(ctx context.Context, topic string, partition int32) (*Node, error) {
	node, err := c.findNode(ctx, metadataRequest(topic), func(answer kmsg.Response) (int32, error) {
		for _, t := range answer.(*kmsg.MetadataResponse).Topics {
			if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
				return 0, err
			}
			for _, p := range t.Partitions {
				if p.Partition == partition {
					return p.Leader, kerr.ErrorForCode(p.ErrorCode)
				}
			}
		}
		return 0, errors.New("no such partition in Metadata")
	})
	if err != nil {
		return nil, fmt.Errorf("launch: leader of %s/%d: %w", topic, partition, err)
	}
	return node, nil
}

// findNode polls until all nodes that answer name the same one and that one serves. A node that was just thawed may
// still name itself.
func (c *Cluster) findNode(ctx context.Context, request kmsg.Request, named func(kmsg.Response) (int32, error)) (*Node, error) {
	if c.External() {
		return nil, errOutside
	}
	var found *Node
	err := poll(ctx, func() error {
		found = nil
		errs := []error{errNoNode}
		for _, address := range c.addresses() {
			answer, err := askAt(ctx, address, request)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			id, err := named(answer)
			if err != nil {
				return fmt.Errorf("at %s: %w", address, err)
			}
			node := c.node(id)
			if node == nil || !node.serving() {
				return fmt.Errorf("at %s: it is node %d, which does not serve", address, id)
			}
			if found != nil && found != node {
				return fmt.Errorf("at %s: it is node %d, others say %d", address, id, found.ID())
			}
			found = node
		}
		if found == nil {
			return errors.Join(errs...)
		}
		return nil
	})
	return found, err
}

func metadataRequest(topics ...string) *kmsg.MetadataRequest {
	request := kmsg.NewPtrMetadataRequest()
	request.Version = versionMetadata
	for _, name := range topics { // none is nil, which means all
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		request.Topics = append(request.Topics, topic)
	}
	return request
}

// Topic is a topic to be created.
type Topic struct {
	Name string
	// Partitions, 1 if zero.
	Partitions int
	// Replication factor; zero: one replica per node, three at most.
	Replication int
	// Replicas instead of the two above: the node ids of each partition's replicas, the preferred leader first.
	Replicas [][]int32
	// Configs of the topic, such as "retention.ms".
	Configs map[string]string
}

func (t Topic) request() kmsg.CreateTopicsRequestTopic {
	request := kmsg.NewCreateTopicsRequestTopic()
	request.Topic, request.NumPartitions, request.ReplicationFactor = t.Name, int32(max(1, t.Partitions)), int16(t.Replication)
	if t.Replication == 0 {
		request.ReplicationFactor = -1 // default.replication.factor
	}
	if len(t.Replicas) > 0 {
		request.NumPartitions, request.ReplicationFactor = -1, -1
	}
	for i, replicas := range t.Replicas {
		assignment := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		assignment.Partition, assignment.Replicas = int32(i), replicas
		request.ReplicaAssignment = append(request.ReplicaAssignment, assignment)
	}
	for name, value := range t.Configs {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = name, &value
		request.Configs = append(request.Configs, config)
	}
	return request
}

// CreateTopics creates topics and returns when every node that can answer knows every partition and its leader.
func (c *Cluster) CreateTopics(ctx context.Context, topics ...Topic) error {
	if len(topics) == 0 {
		return nil
	}
	var names []string
	for _, topic := range topics {
		names = append(names, topic.Name)
		if err := c.createTopic(ctx, topic); err != nil {
			return fmt.Errorf("launch: create topic %s: %w", topic.Name, err)
		}
	}
	err := c.awaitEverywhere(ctx, metadataRequest(names...), func(answer kmsg.Response) error {
		return eachPartition(answer, func(partition kmsg.MetadataResponseTopicPartition) error {
			if partition.Leader < 0 {
				return errors.New("no leader")
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("launch: await topics %q: %w", names, err)
	}
	return nil
}

func (c *Cluster) createTopic(ctx context.Context, topic Topic) error {
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Version, request.TimeoutMillis = versionCreateTopics, int32(answerTimeout.Milliseconds())
	request.Topics = []kmsg.CreateTopicsRequestTopic{topic.request()}
	lost := false // an answer: the topic may be there already
	return poll(ctx, func() error {
		answer, err := c.askAny(ctx, request)
		if err != nil {
			lost = true
			return err
		}
		for _, created := range answer.(*kmsg.CreateTopicsResponse).Topics {
			err := answered(created.ErrorCode, created.ErrorMessage)
			switch {
			case lost && errors.Is(err, kerr.TopicAlreadyExists):
			case kerr.IsRetriable(err):
				lost = true
				return err
			case err != nil:
				return finalError{err}
			}
		}
		return nil
	})
}

// DeleteTopics deletes topics and returns when no node that can answer knows them any more.
func (c *Cluster) DeleteTopics(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		return nil
	}
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.Version, request.TimeoutMillis, request.TopicNames = versionDeleteTopics, int32(answerTimeout.Milliseconds()), names
	err := poll(ctx, func() error {
		answer, err := c.askAny(ctx, request)
		if err != nil {
			return err
		}
		for _, deleted := range answer.(*kmsg.DeleteTopicsResponse).Topics {
			if err := kerr.ErrorForCode(deleted.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = c.awaitEverywhere(ctx, metadataRequest(names...), func(answer kmsg.Response) error {
			for _, topic := range answer.(*kmsg.MetadataResponse).Topics {
				if err := kerr.ErrorForCode(topic.ErrorCode); !errors.Is(err, kerr.UnknownTopicOrPartition) {
					return fmt.Errorf("still known: %w", err)
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("launch: delete topics %q: %w", names, err)
	}
	return nil
}

// AwaitInSync returns when every replica of the topics' partitions is in sync, as every node that can answer sees it.
// Without names it is about every topic, the internal ones too. Between two kills this is what keeps a topic with a
// minimum of in-sync replicas writable.
func (c *Cluster) AwaitInSync(ctx context.Context, topics ...string) error {
	err := c.awaitEverywhere(ctx, metadataRequest(topics...), func(answer kmsg.Response) error {
		return eachPartition(answer, func(partition kmsg.MetadataResponseTopicPartition) error {
			if len(partition.ISR) < len(partition.Replicas) {
				return fmt.Errorf("%v of %v in sync", partition.ISR, partition.Replicas)
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("launch: replicas in sync: %w", err)
	}
	return nil
}

func eachPartition(answer kmsg.Response, check func(kmsg.MetadataResponseTopicPartition) error) error {
	for _, topic := range answer.(*kmsg.MetadataResponse).Topics {
		name := ""
		if topic.Topic != nil {
			name = *topic.Topic
		}
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return fmt.Errorf("topic %s: %w", name, err)
		}
		for _, partition := range topic.Partitions {
			if err := errors.Join(kerr.ErrorForCode(partition.ErrorCode), check(partition)); err != nil {
				return fmt.Errorf("%s/%d: %w", name, partition.Partition, err)
			}
		}
	}
	return nil
}

// hostPort joins an address as brokers give it.
func hostPort(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }
