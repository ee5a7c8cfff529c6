package integration

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/kafka"
)

// admin asks a cluster by franz-go's client.
type admin struct {
	client *kgo.Client
	// opts are those of a client for transactions.
	opts []kgo.Opt
}

func newAdmin(t *testing.T, addrs []string, dial func(context.Context, string, string) (net.Conn, error), opts ...kgo.Opt) admin {
	t.Helper()
	opts = append(opts, kgo.SeedBrokers(addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.UnknownTopicRetries(-1)) // a busy broker may take its time to know a topic that it has just created
	if dial != nil {
		opts = append(opts, kgo.Dialer(dial))
	}
	// Idempotent writes would take what is produced after a purge (AddPartitions) for what was there before.
	client, err := kgo.NewClient(append(slices.Clone(opts), kgo.DisableIdempotentWrite())...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return admin{client: client, opts: opts}
}

// checked turns a code in an answer into a failed test.
func checked(t *testing.T, err error, code int16) {
	t.Helper()
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(code))
}

// CreateTopic implements broker.
func (a admin) CreateTopic(t *testing.T, topic string, partitions int32) {
	t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(requestTimeout.Milliseconds())
	want := kmsg.NewCreateTopicsRequestTopic()
	want.Topic, want.NumPartitions, want.ReplicationFactor = topic, partitions, -1
	req.Topics = append(req.Topics, want)
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	checked(t, err, resp.Topics[0].ErrorCode)
}

// DeleteTopic implements broker.
func (a admin) DeleteTopic(t *testing.T, topic string) {
	t.Helper()
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = int32(requestTimeout.Milliseconds())
	req.TopicNames = []string{topic} // up to version 5, Topics after it
	named := kmsg.NewDeleteTopicsRequestTopic()
	named.Topic = &topic
	req.Topics = append(req.Topics, named)
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	checked(t, err, resp.Topics[0].ErrorCode)
	a.client.PurgeTopicsFromClient(topic)
}

// AddPartitions implements broker.
func (a admin) AddPartitions(t *testing.T, topic string, added int) {
	t.Helper()
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis = int32(requestTimeout.Milliseconds())
	want := kmsg.NewCreatePartitionsRequestTopic()
	count := len(a.metadata(t, topic)[0].Partitions) + added
	want.Topic, want.Count = topic, int32(count)
	req.Topics = append(req.Topics, want)
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	checked(t, err, resp.Topics[0].ErrorCode)
	eventually(t, patience, "the partitions show up", func() bool { return len(a.metadata(t, topic)[0].Partitions) == count })
	a.client.PurgeTopicsFromClient(topic) // it would refuse the new partitions until its next refresh
}

// Produce implements broker.
func (a admin) Produce(t *testing.T, topic string, records ...kafka.Record) {
	t.Helper()
	require.NoError(t, a.TryProduce(requestContext(t), topic, records...))
}

// TryProduce implements broker.
func (a admin) TryProduce(ctx context.Context, topic string, records ...kafka.Record) error {
	return a.client.ProduceSync(ctx, toKgo(topic, records)...).FirstErr()
}

func toKgo(topic string, records []kafka.Record) []*kgo.Record {
	out := make([]*kgo.Record, len(records))
	for i, r := range records {
		out[i] = &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
		if r.TimestampMillis != 0 {
			out[i].Timestamp = r.Timestamp()
		}
	}
	return out
}

// transactionalIDs numbers the producers of transactions.
var transactionalIDs atomic.Int64

// Transaction implements broker.
func (a admin) Transaction(t *testing.T, topic string, records ...kafka.Record) {
	t.Helper()
	id := "integration-" + strconv.FormatInt(transactionalIDs.Add(1), 10)
	producer, err := kgo.NewClient(append(slices.Clone(a.opts), kgo.TransactionalID(id))...)
	require.NoError(t, err)
	defer producer.Close()
	require.NoError(t, producer.BeginTransaction())
	ctx := requestContext(t)
	require.NoError(t, producer.ProduceSync(ctx, toKgo(topic, records)...).FirstErr())
	require.NoError(t, producer.EndTransaction(ctx, kgo.TryCommit))
}

// DeleteRecords implements broker.
func (a admin) DeleteRecords(t *testing.T, topic string, partition int32, before int64) {
	t.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = int32(requestTimeout.Milliseconds())
	wantTopic, want := kmsg.NewDeleteRecordsRequestTopic(), kmsg.NewDeleteRecordsRequestTopicPartition()
	want.Partition, want.Offset = partition, before
	wantTopic.Topic, wantTopic.Partitions = topic, append(wantTopic.Partitions, want)
	req.Topics = append(req.Topics, wantTopic)
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	checked(t, err, resp.Topics[0].Partitions[0].ErrorCode)
}

// Commit implements broker.
func (a admin) Commit(t *testing.T, group string, tp kafka.TopicPartition, offset int64, metadata ...string) {
	t.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = group, -1
	wantTopic, want := kmsg.NewOffsetCommitRequestTopic(), kmsg.NewOffsetCommitRequestTopicPartition()
	want.Partition, want.Offset = tp.Partition, offset
	if len(metadata) > 0 {
		want.Metadata = &metadata[0]
	}
	wantTopic.Topic, wantTopic.Partitions = tp.Topic, append(wantTopic.Partitions, want)
	for id := range a.ids(t, tp.Topic) {
		wantTopic.TopicID = id
	}
	req.Topics = append(req.Topics, wantTopic)
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	checked(t, err, resp.Topics[0].Partitions[0].ErrorCode)
}

// metadata returns the topics named, or all of them.
func (a admin) metadata(t *testing.T, topics ...string) []kmsg.MetadataResponseTopic {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	for _, topic := range topics {
		want := kmsg.NewMetadataRequestTopic()
		want.Topic = kmsg.StringPtr(topic)
		req.Topics = append(req.Topics, want)
	}
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	return resp.Topics
}

func (a admin) ids(t *testing.T, topics ...string) map[[16]byte]string {
	t.Helper()
	ids := make(map[[16]byte]string)
	for _, topic := range a.metadata(t, topics...) {
		if topic.Topic != nil {
			ids[topic.TopicID] = *topic.Topic
		}
	}
	return ids
}

// Committed implements broker.
func (a admin) Committed(t *testing.T, group string) map[kafka.TopicPartition]int64 {
	t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	want := kmsg.NewOffsetFetchRequestGroup()
	want.Group = group
	req.Groups = append(req.Groups, want)
	req.Group, req.RequireStable = group, true
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	require.Len(t, resp.Groups, 1)
	checked(t, err, resp.Groups[0].ErrorCode)
	committed := make(map[kafka.TopicPartition]int64)
	var names map[[16]byte]string
	for _, topic := range resp.Groups[0].Topics {
		name := topic.Topic
		if name == "" {
			if names == nil {
				names = a.ids(t)
			}
			name = names[topic.TopicID]
		}
		for _, p := range topic.Partitions {
			if p.Offset >= 0 {
				committed[kafka.TopicPartition{Topic: name, Partition: p.Partition}] = p.Offset
			}
		}
	}
	return committed
}

// EndOffsets implements broker.
func (a admin) EndOffsets(t *testing.T, topic string) map[kafka.TopicPartition]int64 {
	t.Helper()
	metadata := a.metadata(t, topic)
	require.Len(t, metadata, 1)
	req := kmsg.NewPtrListOffsetsRequest()
	wantTopic := kmsg.NewListOffsetsRequestTopic()
	wantTopic.Topic = topic
	for _, p := range metadata[0].Partitions {
		want := kmsg.NewListOffsetsRequestTopicPartition()
		want.Partition, want.Timestamp = p.Partition, -1
		wantTopic.Partitions = append(wantTopic.Partitions, want)
	}
	req.Topics = append(req.Topics, wantTopic)
	resp, err := req.RequestWith(requestContext(t), a.client)
	require.NoError(t, err)
	ends := make(map[kafka.TopicPartition]int64)
	for _, answer := range resp.Topics {
		for _, p := range answer.Partitions {
			checked(t, err, p.ErrorCode)
			ends[kafka.TopicPartition{Topic: topic, Partition: p.Partition}] = p.Offset
		}
	}
	return ends
}

// Group implements broker.
func (a admin) Group(t *testing.T, group string) groupView {
	t.Helper()
	view, err := describeGroup(requestContext(t), a.client, group)
	require.NoError(t, err)
	return view
}

// describeGroup is Group for when brokers may be away. It asks a client, or one of its brokers.
func describeGroup(ctx context.Context, from kmsg.Requestor, group string) (groupView, error) {
	view := groupView{Members: make(map[string][]kafka.TopicPartition)}
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = append(req.Groups, group)
	resp, err := req.RequestWith(ctx, from)
	if err != nil {
		return view, err
	}
	if len(resp.Groups) != 1 {
		return view, fmt.Errorf("%d groups described, not 1", len(resp.Groups))
	}
	view.State = resp.Groups[0].State
	for _, m := range resp.Groups[0].Members {
		view.Members[m.MemberID] = nil
		var assignment kmsg.ConsumerMemberAssignment
		if assignment.ReadFrom(m.MemberAssignment) != nil {
			continue // none yet
		}
		for _, topic := range assignment.Topics {
			for _, p := range topic.Partitions {
				view.Members[m.MemberID] = append(view.Members[m.MemberID], kafka.TopicPartition{Topic: topic.Topic, Partition: p})
			}
		}
	}
	return view, nil
}
