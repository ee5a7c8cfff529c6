package integration

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// A leader may not have the position that it named itself, or name one end of an epoch after the other: each answer sent the
// next request at once, and a member that read nothing was healthy.
func TestAPositionThatIsRefusedAgainAndAgainIsAskedForLessAndLessOftenAndTold(t *testing.T) {
	for name, refuse := range map[string]func(*kmsg.FetchResponseTopicPartition){
		"OutOfRange": func(p *kmsg.FetchResponseTopicPartition) { p.ErrorCode = kerr.OffsetOutOfRange.Code },
		"Diverging":  func(p *kmsg.FetchResponseTopicPartition) { p.DivergingEpoch.Epoch, p.DivergingEpoch.EndOffset = 0, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) { refusedPosition(t, b, refuse) })
		})
	}
}

func refusedPosition(t *testing.T, b *embeddedBroker, refuse func(*kmsg.FetchResponseTopicPartition)) {
	b.CreateTopic(t, "orders", 1)
	var refusing atomic.Bool
	var refused atomic.Int64
	refusing.Store(true)
	b.Cluster().ControlKey(kmsg.Fetch.Int16(), func(raw kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		req := raw.(*kmsg.FetchRequest)
		if !refusing.Load() || len(req.Topics) == 0 {
			return nil, nil, false
		}
		refused.Add(1)
		resp, topic, p := req.ResponseKind().(*kmsg.FetchResponse), kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		topic.Topic, topic.TopicID, p.Partition = req.Topics[0].Topic, req.Topics[0].TopicID, req.Topics[0].Partitions[0].Partition
		refuse(&p)
		topic.Partitions = append(topic.Partitions, p)
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
	l := newLedger()
	m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
	m.joined(t)
	time.Sleep(5 * time.Minute)
	require.Less(t, refused.Load(), int64(50), "every 10 s in the end")
	stuck := tellsOf(t, m, time.Second, func(e event.PartitionStuck) bool { return e.TopicPartition == at("orders", 0) })
	require.GreaterOrEqual(t, stuck.Age, time.Minute)
	require.ErrorIs(t, m.Healthy(), actors.ErrNotHealthy)

	refusing.Store(false)
	b.Produce(t, "orders", kafka.Record{Value: []byte("at last")})
	m.allHandledIn(t, 15*time.Second, l, 1)
	require.NoError(t, m.Healthy())
	m.mustClose(t)
	require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
}
