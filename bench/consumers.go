package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
)

// Who is measured.
const (
	troupeBatch          = "troupe-batch"
	troupeRecord         = "troupe-record"
	troupeBatchRecycled  = "troupe-batch-recycled"
	troupeRecordRecycled = "troupe-record-recycled"
	troupeKeyOrder       = "troupe-key-order"
	saramaGroup          = "sarama"
	franzGo              = "franz-go"
	parallelConsumer     = "parallel-consumer"
	javaConsumer         = "java"
)

var consumerNames = []string{
	troupeBatch, troupeRecord, troupeBatchRecycled, troupeRecordRecycled, troupeKeyOrder, saramaGroup, franzGo, parallelConsumer,
	javaConsumer,
}

// takePart is who is measured in each mode.
var takePart = map[string][]string{
	modeThroughput: {troupeBatch, troupeRecord, troupeBatchRecycled, troupeRecordRecycled, saramaGroup, franzGo},
	modeLatency:    {troupeBatch, troupeRecord, saramaGroup, franzGo},
	modeSlow:       {troupeBatch, troupeRecord, troupeKeyOrder, saramaGroup, franzGo},
	modeIdle:       {troupeBatch, troupeRecord, saramaGroup, franzGo},
	modeKeyOrder:   {troupeRecord, parallelConsumer},
	modeNoop:       {troupeRecord, troupeRecordRecycled, troupeBatchRecycled, parallelConsumer},
	modeMemory:     {troupeBatch, troupeRecord, troupeRecordRecycled, saramaGroup, franzGo},
	modeRebalance:  {troupeRecord, saramaGroup, franzGo, javaConsumer},
	modePartitions: {troupeRecord, saramaGroup, franzGo},
	modeControl:    {troupeRecord, saramaGroup, franzGo},
}

// pollRecords is how many records franz-go is polled for.
const pollRecords = 500

// handleFunc is called with each record: one at a time for each partition, at the same time for different ones, and
// whenever it pleases in other orders than a partition's.
type handleFunc func(partition int32, value []byte)

// running is a consumer that was started.
type running struct {
	// failed has an error when the consumer cannot go on.
	failed chan error
	// stop commits what was handled, leaves the group, and waits for the end.
	stop func() error
	// controls are its control calls.
	controls []control
}

// start starts the task's consumer.
func start(ctx context.Context, t task, handle handleFunc) (*running, error) {
	switch {
	case t.Consumer == troupeBatch || t.Consumer == troupeBatchRecycled:
		return startTroupe(ctx, t, api.HandleBatch(t.Topic.Name, func(_ context.Context, records []kafka.Record) error {
			for i := range records {
				handle(records[i].Partition, records[i].Value)
			}
			return nil
		}, batchOptions(t)...))
	case slices.Contains([]string{troupeRecord, troupeRecordRecycled, troupeKeyOrder}, t.Consumer):
		return startTroupe(ctx, t, api.Handle(t.Topic.Name, func(_ context.Context, r *kafka.Record) error {
			handle(r.Partition, r.Value)
			return nil
		}, recordOptions(t)...))
	case t.Consumer == saramaGroup:
		return startSarama(ctx, t, handle)
	case t.Consumer == franzGo && (t.Mode == modeSlow || t.Mode == modeMemory):
		return startFranzPerPartition(ctx, t, handle)
	case t.Consumer == franzGo:
		return startFranz(ctx, t, handle)
	}
	return nil, fmt.Errorf("unknown consumer %q", t.Consumer)
}

// handlerOptions are what the task asks of Troupe's handler.
func handlerOptions(t task) []api.HandlerOption {
	var options []api.HandlerOption
	switch t.Order {
	case orderPartition:
		options = append(options, api.PartitionOrder())
	case orderKey:
		options = append(options, api.KeyOrder(t.Workers))
	case orderNone:
		options = append(options, api.Unordered(t.Workers))
	}
	if t.Consumer == troupeBatchRecycled || t.Consumer == troupeRecordRecycled {
		options = append(options, api.RecycleRecords())
	}
	return options
}

func recordOptions(t task) []api.RecordOption {
	var options []api.RecordOption
	for _, option := range handlerOptions(t) {
		options = append(options, option)
	}
	return options
}

func batchOptions(t task) []api.BatchOption {
	var options []api.BatchOption
	for _, option := range handlerOptions(t) {
		options = append(options, option)
	}
	return options
}

func startTroupe(ctx context.Context, t task, registration api.Registration) (*running, error) {
	config := api.Config{Brokers: t.Brokers, GroupID: t.Group, MemoryBudget: t.Budget, HeartbeatInterval: t.Heartbeat}
	if t.Mode == modeKeyOrder {
		config.MaxInTransit = int(t.Topic.Records) // so that the window bounds nothing
	}
	parts := []api.Part{registration}
	if t.requests != nil {
		parts = append(parts, api.WithDialer(t.requests.dial))
	}
	consumer, err := api.Spawn(ctx, config, parts...)
	if err != nil {
		return nil, err
	}
	r := &running{
		failed: make(chan error, 1), stop: func() error { return consumer.Close(ctx) }, controls: troupeControls(consumer, t.Topic.Name),
	}
	go func() {
		<-consumer.Done()
		if err := consumer.Err(); err != nil {
			r.failed <- err
		}
	}()
	return r, nil
}

// saramaHandler is a sarama.ConsumerGroupHandler.
type saramaHandler struct{ handle handleFunc }

func (saramaHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (saramaHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h saramaHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		h.handle(message.Partition, message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

func startSarama(ctx context.Context, t task, handle handleFunc) (*running, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_9_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	config.Consumer.Fetch.Default = 1 << 20
	if t.Mode == modeRebalance {
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
		config.Consumer.Group.Heartbeat.Interval = t.Heartbeat
	}
	if t.requests != nil {
		config.Net.Proxy.Enable, config.Net.Proxy.Dialer = true, t.requests
	}
	group, err := sarama.NewConsumerGroup(t.Brokers, t.Group, config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	r := &running{failed: make(chan error, 1), stop: func() error {
		cancel()
		<-ended
		return group.Close()
	}, controls: saramaControls(group, t.Topic.Name)}
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{t.Topic.Name}, saramaHandler{handle}); err != nil && ctx.Err() == nil {
				r.failed <- err
				return
			}
		}
	}()
	return r, nil
}

func startFranz(ctx context.Context, t task, handle handleFunc) (*running, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(t.Brokers...), kgo.ConsumerGroup(t.Group), kgo.ConsumeTopics(t.Topic.Name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.Balancers(kgo.RangeBalancer()),
	}
	if t.Mode == modeRebalance {
		options = append(options, kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.HeartbeatInterval(t.Heartbeat))
	}
	if t.requests != nil {
		options = append(options, kgo.Dialer(t.requests.dial))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	poll, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	r := &running{failed: make(chan error, 1), stop: func() error {
		cancel()
		<-ended
		// Autocommit leaves out the last poll, which only the next one would have called handled.
		err := client.CommitUncommittedOffsets(ctx)
		client.Close()
		return err
	}, controls: franzControls(client, t.Topic.Name)}
	go func() {
		defer close(ended)
		for {
			fetches := client.PollRecords(poll, pollRecords)
			if poll.Err() != nil {
				return
			}
			if err := fetches.Err(); err != nil {
				r.failed <- err
				return
			}
			fetches.EachPartition(func(p kgo.FetchTopicPartition) {
				for _, record := range p.Records {
					handle(p.Partition, record.Value)
				}
			})
		}
	}()
	return r, nil
}

// pollsQueued is how many polls wait for one partition's goroutine in franz-go's example.
const pollsQueued = 5

// startFranzPerPartition is the way of franz-go's example goroutine_per_partition_consuming: one loop polls, and a
// goroutine of each partition handles. Its stop does not wait for the goroutines: it is for runs that end in the middle.
func startFranzPerPartition(ctx context.Context, t task, handle handleFunc) (*running, error) {
	queues := make(map[int32]chan []*kgo.Record)
	client, err := kgo.NewClient(kgo.SeedBrokers(t.Brokers...), kgo.ConsumerGroup(t.Group), kgo.ConsumeTopics(t.Topic.Name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.Balancers(kgo.RangeBalancer()),
		kgo.AutoCommitMarks(), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, client *kgo.Client, assigned map[string][]int32) {
			for _, p := range assigned[t.Topic.Name] {
				queue := make(chan []*kgo.Record, pollsQueued)
				queues[p] = queue
				go func() {
					for records := range queue {
						for _, record := range records {
							handle(p, record.Value)
						}
						client.MarkCommitRecords(records...)
					}
				}()
			}
		}))
	if err != nil {
		return nil, err
	}
	r := &running{failed: make(chan error, 1), stop: func() error { return errors.New("it cannot be stopped") }}
	go func() {
		for {
			fetches := client.PollRecords(ctx, 10_000)
			if err := fetches.Err(); err != nil {
				r.failed <- err
				return
			}
			fetches.EachPartition(func(p kgo.FetchTopicPartition) { queues[p.Partition] <- p.Records })
			client.AllowRebalance()
		}
	}()
	return r, nil
}
