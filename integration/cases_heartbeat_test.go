package integration

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
)

// ciena/afkak#102 and others: on quiet topics heartbeats wait behind a long poll, and the idle member is put out.
func TestB28_HeartbeatsNeverWaitBehindALongPoll(t *testing.T) {
	t.Run("Embedded", func(t *testing.T) {
		story(t, func(t *testing.T, b *embeddedBroker) { longPolls(t, b, b.Dial, 10*time.Minute) })
	})
	t.Run("Kafka", func(t *testing.T) {
		t.Parallel() // with all that takes its time on a real Kafka
		longPolls(t, realKafka.broker(t), directDial, time.Minute)
	})
}

func longPolls(t *testing.T, b broker, dial func(context.Context, string, string) (net.Conn, error), quiet time.Duration) {
	// most is what a heartbeat may take, on top of what a request of the same size takes that nothing can be queued ahead of,
	// at the same time: a machine that does much else delays both. One that waited behind a poll would take seconds.
	const most = 200 * time.Millisecond
	topic, group := unique(t, "topic"), unique(t, "group")
	b.CreateTopic(t, topic, 3)
	c := config(b, group)
	c.SessionTimeout, c.HeartbeatInterval = 6*time.Second, 500*time.Millisecond
	c.FetchMaxWait, c.FetchMinBytes, c.MetadataMaxAge = 5*time.Second, 1<<20, 5*time.Minute
	member, alone := &wireTap{dial: dial}, &wireTap{dial: dial}
	l := newLedger()
	m := spawn(t, c, api.WithDialer(member.Dial), api.Handle(topic, l.note("a")))
	settled(t, 3, m)
	pings, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()...), kgo.Dialer(alone.Dial), kgo.DisableClientMetrics())
	require.NoError(t, err)
	t.Cleanup(pings.Close)
	generation, began := m.Stats().Generation, time.Now()
	for time.Since(began) < quiet {
		require.NoError(t, pings.Ping(requestContext(t)))
		pause(c.HeartbeatInterval)
	}
	beats, polls := member.of(kmsg.Heartbeat), member.of(kmsg.Fetch)
	beat, ping := percentile(beats, 0.99), percentile(alone.of(kmsg.Metadata), 0.99)
	t.Logf("%s: %d heartbeats in %v, 99 %% within %v, the median %v; requests of their own connection: %v, %v; fetches %v",
		b.Version(), len(beats), quiet, beat, percentile(beats, 0.5), ping, percentile(alone.of(kmsg.Metadata), 0.5), percentile(polls, 0.5))
	assert.Greater(t, len(alone.of(kmsg.Metadata)), len(beats)/2, "requests to compare with")
	assert.Greater(t, len(beats), int(quiet/c.HeartbeatInterval)*3/4, "heartbeats")
	assert.Less(t, beat, most+ping)
	assert.Greater(t, percentile(polls, 0.5), 4*time.Second, "the fetches are long polls")
	assert.NotContains(t, member.together(kmsg.Heartbeat), kmsg.Fetch.Name())
	assert.NotContains(t, member.together(kmsg.Heartbeat), kmsg.JoinGroup.Name())
	assert.NotContains(t, member.together(kmsg.OffsetCommit), kmsg.Fetch.Name())
	require.Equal(t, generation, m.Stats().Generation)
	require.EqualValues(t, 1, m.Stats().Rebalances)
	require.Empty(t, told[event.PartitionsLost](m))
	require.NoError(t, m.Healthy())
	n := fill(t, b, topic, 3, 10)
	eventually(t, patience, "what comes is handled", func() bool { return l.distinct() == n })
	m.mustClose(t)
}
