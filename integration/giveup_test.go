package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/actors"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

// B21, second half: a handler that exceeds MaxProcessingTime makes its member give up and say so, the other member takes the
// partition at once, the late acknowledgment is dropped, and the member is back by itself when the handler ends.
func TestB21_ALimitMakesTheMemberGiveUpSayItAndComeBack(t *testing.T) {
	for name, assignor := range map[string]rebalance.Assignor{"Eager": rebalance.Range(), "Cooperative": rebalance.CooperativeSticky()} {
		for kind, instance := range map[string]string{"Dynamic": "", "Static": "till-"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				story(t, func(t *testing.T, b *embeddedBroker) {
					c := plain(b)
					c.SessionTimeout, c.Assignors = 6*time.Second, []rebalance.Assignor{assignor}
					took := givesUp(t, b, c, instance, 20*time.Second, api.WithDialer(b.Dial))
					assert.Less(t, took, c.SessionTimeout, "the other member need not wait for the session's end")
				}, kafkatest.MinSessionTimeout(time.Second))
			})
		}
	}
}

// givesUpAndComesBack is the same by the clock of the machine.
func givesUpAndComesBack(t *testing.T, b broker) {
	givesUp(t, b, config(b, unique(t, "group")), "", 5*time.Second)
}

// givesUpAndComesBackStatic is for static members, whose place nobody would get before the session's end.
func givesUpAndComesBackStatic(t *testing.T, b broker) {
	c := config(b, unique(t, "group"))
	c.Assignors = []rebalance.Assignor{rebalance.Range()}
	givesUp(t, b, c, "till-", 5*time.Second)
}

// givesUp has one of two members hang in a handler, with a limit of 3 s, for hang longer than the other one needs. It returns
// how long the other one waited for the partition.
func givesUp(t *testing.T, b broker, c api.Config, instance string, hang time.Duration, parts ...api.Part) (took time.Duration) {
	topic := unique(t, "orders")
	b.CreateTopic(t, topic, 2)
	c.MaxProcessingTime, c.DrainTimeout = 3*time.Second, 5*time.Second
	l := newLedger()
	release, late := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	var cause error
	members := make([]*member, 2)
	for i, name := range []string{"one", "two"} {
		if instance != "" {
			c.GroupInstanceID = instance + name
		}
		members[i] = spawn(t, c, append(parts, api.Handle(topic, l.watch(name, func(ctx context.Context, r *kafka.Record) error {
			if name == "one" && r.Offset == 3 {
				once.Do(func() {
					<-release
					cause = context.Cause(ctx)
					late <- actors.DeliveryFrom(ctx).AckAll()
				})
			}
			return nil
		})))...)
	}
	one, two := members[0], members[1]
	settled(t, 2, one, two)
	mine := one.owned()[0]
	n := fill(t, b, topic, 2, 10)
	overdue := tellsOf(t, one, patience, func(event.ProcessingOverdue) bool { return true })
	told := time.Now()
	require.Equal(t, mine, overdue.TopicPartition)
	require.EqualValues(t, 3, overdue.Offset)
	eventually(t, patience, "the other member takes the partition", func() bool { return len(two.owned()) == 2 })
	took = time.Since(told)
	eventually(t, patience, "every record is handled", func() bool { return b.Committed(t, c.GroupID)[mine] == 10 })
	pause(hang)
	require.Equal(t, rebalance.StateUnjoined.String(), one.Stats().State)
	require.Len(t, one.Stats().GaveUp, 1)
	err := one.Healthy()
	require.ErrorIs(t, err, actors.ErrOverdue)
	require.ErrorContains(t, err, "handler of "+mine.String()+" offset 3 has run for")

	close(release)
	require.ErrorIs(t, receive(t, late), actors.ErrStale)
	settled(t, 2, one, two)
	require.ErrorIs(t, cause, actors.ErrOverdue)
	require.EqualValues(t, 2, one.Stats().StaleAcks, "its acknowledgment and its return")
	require.NoError(t, one.Healthy())
	n += fill(t, b, topic, 2, 10)
	one.allHandledIn(t, patience, l, n)
	one.mustClose(t)
	two.mustClose(t)
	require.Equal(t, b.EndOffsets(t, topic), b.Committed(t, c.GroupID))
	require.Equal(t, []spot{{mine, 3}}, l.repeated(), "what was finished before was committed before")
	return took
}
