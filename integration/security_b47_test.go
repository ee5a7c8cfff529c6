package integration

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/integration/launch"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// noticed is how soon an operator must hear of what only people can mend.
const noticed = 5 * time.Second

// dials counts connections.
type dials struct{ n atomic.Int64 }

func (d *dials) option() api.Option {
	return api.WithDialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.n.Add(1)
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, addr)
	})
}

// newUser makes a user of this test's own, who logs in by SCRAM.
func newUser(t *testing.T, cluster *launch.Cluster, password string) launch.User {
	t.Helper()
	user := launch.User{Name: unique(t, "user"), Password: password}
	require.NoError(t, cluster.SetSCRAM(requestContext(t), user))
	return user
}

// securedBroker is a cluster by SASL_SSL, without a login for it.
func securedBroker(t *testing.T, cluster *launch.Cluster) *kafkaBroker {
	t.Helper()
	return &kafkaBroker{cluster: cluster, listener: launch.ListenerSASLSSL, admin: newAdmin(t, cluster.Brokers(), nil)}
}

// trouble returns the errors of every event about something that failed at a broker.
func trouble(m *member) []error {
	var out []error
	for _, e := range told[event.ConnectFailed](m) {
		out = append(out, e.Err)
	}
	for _, e := range told[event.FetchFailed](m) {
		out = append(out, e.Err)
	}
	for _, e := range told[event.CommitFailed](m) {
		out = append(out, e.Err)
	}
	for _, e := range told[event.Refused](m) {
		out = append(out, e.Err)
	}
	for _, e := range told[event.TopicMissing](m) {
		out = append(out, e.Err)
	}
	return out
}

// hears waits until an event carries an error.
func (m *member) hears(t *testing.T, want error) {
	t.Helper()
	eventually(t, noticed, "an event about "+want.Error(), func() bool {
		for _, err := range trouble(m) {
			if errors.Is(err, want) {
				return true
			}
		}
		return false
	})
}

func committedUpTo(t *testing.T, b broker, group, topic string) func() bool {
	return func() bool {
		committed := b.Committed(t, group)
		for tp, end := range b.EndOffsets(t, topic) {
			if end > 0 && committed[tp] != end {
				return false
			}
		}
		return true
	}
}

// Sessions of three seconds, rights that come and go, a password that becomes right: one member goes through all of it.
func TestB47_SessionsEndAndRightsComeAndGo(t *testing.T) {
	t.Parallel()
	cluster := realKafka.guarded(t)
	b := securedBroker(t, cluster)
	user := newUser(t, cluster, "b47-secret")
	orders, clicks, group, l := unique(t, "orders"), unique(t, "clicks"), unique(t, "group"), newLedger()
	b.CreateTopic(t, orders, 3)
	b.CreateTopic(t, clicks, 1)
	require.NoError(t, cluster.Allow(requestContext(t),
		append(launch.ConsumerACLs(user.Name, group, orders), launch.ConsumerACLs(user.Name, group, clicks)...)...))

	var d dials
	way := login(cluster, b.listener, launch.MechanismSCRAM512, user)
	m := spawn(t, config(b, group), way, d.option(), api.Handle(orders, l.note("a")), api.Handle(clicks, l.note("a")))
	m.joined(t)
	n := fill(t, b, orders, 2, 10)
	m.allHandledIn(t, patience, l, n)
	joined := m.Stats()

	n += sessionsEnd(t, b, m, l, &d, orders)
	n += groupDenied(t, b, m, l, user, group, orders)
	n += topicDenied(t, b, m, l, user, group, orders, clicks)

	require.Equal(t, joined.Generation, m.Stats().Generation, "no rebalance in all of it")
	require.Equal(t, joined.MemberID, m.Stats().MemberID)
	require.Equal(t, joined.Rebalances, m.Stats().Rebalances)
	require.Empty(t, told[event.PartitionsLost](m))
	m.mustClose(t)
	require.Equal(t, n, l.distinct())
	require.Empty(t, l.repeated())
	l.inOrder(t, tps(orders, 0, 1, 2)...)
	require.True(t, committedUpTo(t, b, group, orders)())
	require.True(t, committedUpTo(t, b, group, clicks)())
}

// sessionsEnd lets more than three sessions end while two partitions work and two are idle.
func sessionsEnd(t *testing.T, b *kafkaBroker, m *member, l *ledger, d *dials, orders string) int {
	t.Helper()
	const sessions = 4
	before, handled := d.n.Load(), l.distinct()
	n := 0
	until := time.Now().Add(sessions * reauthMillis * time.Millisecond)
	for time.Now().Before(until) {
		n += fill(t, b, orders, 2, 1)
		pause(200 * time.Millisecond)
	}
	// Heartbeats and commits, metadata, and the connections of the fetcher log in anew each time.
	require.GreaterOrEqual(t, d.n.Load()-before, int64(3*sessions), "connections made")
	require.Empty(t, trouble(m), "nobody hears of it")
	// The partition that was idle through it all.
	b.Produce(t, orders, kafka.Record{Partition: 2, Value: []byte("2/0")})
	eventually(t, 3*time.Second, "records of idle partitions come at once", func() bool { return l.distinct() == handled+n+1 })
	return n + 1
}

// groupDenied takes the right to the group away for less than a session.
func groupDenied(t *testing.T, b *kafkaBroker, m *member, l *ledger, user launch.User, group, orders string) int {
	t.Helper()
	deny := launch.GroupACL(user.Name, group, kmsg.ACLOperationRead)
	require.NoError(t, b.cluster.Deny(requestContext(t), deny))
	m.hears(t, kafka.GroupAuthorizationFailed)

	grantAgain(t, b.cluster, deny)
	handled := l.distinct()
	n := fill(t, b, orders, 3, 5)
	m.allHandledIn(t, patience, l, handled+n)
	eventually(t, patience, "commits go through again", committedUpTo(t, b, group, orders))
	return n
}

// grantAgain takes a denial back. Remove takes back what was allowed, too.
func grantAgain(t *testing.T, cluster *launch.Cluster, right launch.ACL) {
	t.Helper()
	require.NoError(t, cluster.Remove(requestContext(t), right))
	require.NoError(t, cluster.Allow(requestContext(t), right))
}

// topicDenied takes the right to one of two topics away.
func topicDenied(t *testing.T, b *kafkaBroker, m *member, l *ledger, user launch.User, group, orders, clicks string) int {
	t.Helper()
	deny := launch.TopicACL(user.Name, clicks, kmsg.ACLOperationRead)
	require.NoError(t, b.cluster.Deny(requestContext(t), deny))
	m.hears(t, kafka.TopicAuthorizationFailed)
	hidden := fill(t, b, clicks, 1, 5)
	before, handled := len(told[event.FetchFailed](m)), l.distinct()
	n := fill(t, b, orders, 3, 5)
	eventually(t, 3*time.Second, "the other topic keeps on", func() bool { return l.distinct() == handled+n })
	eventually(t, 3*time.Second, "and is committed", committedUpTo(t, b, group, orders))
	pause(2 * time.Second)
	require.LessOrEqual(t, len(told[event.FetchFailed](m))-before, 12, "tries in some seconds, a second apart in the end")
	for _, e := range told[event.FetchFailed](m) {
		require.Equal(t, clicks, e.TopicPartition.Topic)
		require.ErrorIs(t, e.Err, kafka.TopicAuthorizationFailed)
	}
	grantAgain(t, b.cluster, deny)
	m.allHandledIn(t, patience, l, handled+n+hidden)
	eventually(t, patience, "commits go through again", committedUpTo(t, b, group, clicks))
	return n + hidden
}

func TestB47_AWrongPasswordFailsFastAndHealsWhenItIsRight(t *testing.T) {
	t.Parallel()
	cluster := realKafka.guarded(t)
	b := securedBroker(t, cluster)
	user := newUser(t, cluster, "b47-first")
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	n := fill(t, b, topic, 2, 5)
	require.NoError(t, cluster.Allow(requestContext(t), launch.ConsumerACLs(user.Name, group, topic)...))

	var d dials
	began := time.Now()
	wrong := launch.User{Name: user.Name, Password: "b47-second"}
	m := spawn(t, config(b, group), login(cluster, b.listener, launch.MechanismSCRAM512, wrong), d.option(), api.Handle(topic, l.note("a")))
	ctx, cancel := context.WithTimeout(t.Context(), noticed)
	defer cancel()
	err := m.WaitJoined(ctx)
	require.ErrorIs(t, err, kafka.SaslAuthenticationFailed)
	require.Less(t, time.Since(began), noticed)
	refused, ok := errors.AsType[*kafka.AuthError](err)
	require.True(t, ok)
	require.Equal(t, launch.MechanismSCRAM512, refused.Mechanism)
	m.hears(t, kafka.SaslAuthenticationFailed)
	require.ErrorIs(t, m.Healthy(), kafka.SaslAuthenticationFailed)
	pause(noticed - time.Since(began))
	require.LessOrEqual(t, d.n.Load(), int64(6), "logins in five seconds")

	require.NoError(t, cluster.SetSCRAM(requestContext(t), wrong))
	m.joined(t)
	m.allHandledIn(t, patience, l, n)
	m.mustClose(t)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

func TestB47_AMemberWithoutRightsGetsInWhenTheyAreGranted(t *testing.T) {
	t.Parallel()
	cluster := realKafka.guarded(t)
	b := securedBroker(t, cluster)
	user := newUser(t, cluster, "b47-secret")
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	n := fill(t, b, topic, 2, 5)
	var d dials
	m := spawn(t, config(b, group), login(cluster, b.listener, launch.MechanismSCRAM512, user), d.option(), api.Handle(topic, l.note("a")))
	ctx, cancel := context.WithTimeout(t.Context(), noticed)
	defer cancel()
	require.ErrorIs(t, m.WaitJoined(ctx), kafka.GroupAuthorizationFailed)
	m.hears(t, kafka.GroupAuthorizationFailed)
	tellsOf(t, m, noticed, func(e event.TopicMissing) bool {
		return e.Topic == topic && errors.Is(e.Err, kafka.TopicAuthorizationFailed)
	})
	pause(3 * time.Second)
	require.LessOrEqual(t, len(told[event.ConnectFailed](m)), 14, "tries, a second apart in the end")
	require.NoError(t, cluster.Allow(requestContext(t), launch.GroupACL(user.Name, group, kmsg.ACLOperationRead)))
	m.joined(t)
	require.Empty(t, m.owned(), "the topic is still hidden")
	require.NoError(t, cluster.Allow(requestContext(t), launch.TopicACL(user.Name, topic, kmsg.ACLOperationRead)))
	m.allHandledIn(t, patience, l, n)

	// A topic that is hidden for a while does not move.
	generation := m.Stats().Generation
	hide := launch.TopicACL(user.Name, topic, kmsg.ACLOperationDescribe)
	require.NoError(t, cluster.Deny(requestContext(t), hide))
	eventually(t, noticed, "it is hidden again", func() bool { return len(told[event.TopicMissing](m)) >= 2 })
	pause(3 * time.Second)
	require.NoError(t, cluster.Remove(requestContext(t), hide))
	n += fill(t, b, topic, 2, 5)
	m.allHandledIn(t, patience, l, n)
	require.Equal(t, generation, m.Stats().Generation)
	m.mustClose(t)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}

// A JoinGroup that waits for longer than the session of its connection keeps the member's place: SyncGroup goes out on a
// connection that is logged in anew.
func TestB47_AJoinThatOutlastsItsSession(t *testing.T) {
	t.Parallel()
	b := realKafka.secured(t)
	topic, group, l := unique(t, "topic"), unique(t, "group"), newLedger()
	b.CreateTopic(t, topic, 2)
	n := fill(t, b, topic, 2, 1)
	entered, release := make(chan struct{}, 2), make(chan struct{})
	c := config(b, group)
	c.Assignors = []rebalance.Assignor{rebalance.Range()} // the slow one joins when it has let go
	slow := spawn(t, c, api.Handle(topic, l.watch("slow", func(ctx context.Context, _ *kafka.Record) error {
		select {
		case entered <- struct{}{}:
		default: // nobody asks any more
		}
		<-release // the drain waits for it
		return nil
	})))
	receive(t, entered)
	receive(t, entered)
	var d dials
	began := time.Now()
	late := spawn(t, c, d.option(), api.Handle(topic, l.note("late")))
	eventually(t, patience, "the group waits", func() bool { return b.Group(t, group).State == "PreparingRebalance" })
	pause(2*reauthMillis*time.Millisecond - time.Since(began))
	close(release)
	late.joined(t)
	require.Greater(t, time.Since(began), 2*reauthMillis*time.Millisecond)
	slow.joined(t)
	eventually(t, patience, "both have a partition", func() bool { return len(late.owned()) == 1 && len(slow.owned()) == 1 })
	require.EqualValues(t, 2, late.Stats().Generation, "one rebalance was enough")
	require.EqualValues(t, 2, slow.Stats().Generation)
	require.Empty(t, trouble(late))
	require.Empty(t, trouble(slow))
	n += fill(t, b, topic, 2, 5)
	late.allHandledIn(t, patience, l, n)
	late.mustClose(t)
	slow.mustClose(t)
	require.Empty(t, l.repeated())
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, group))
}
