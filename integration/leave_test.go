package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
)

// Until the coordinator hears of it, nobody gets the partitions of a member that has left: for a whole session.
func TestAMemberThatLeavesWhileItsCoordinatorMovesIsGoneAtOnce(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", newLedger().note("a")))
		m.joined(t)
		moved := b.Cluster().Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.LeaveGroup}, Group: "billing", Err: kerr.NotCoordinator, Count: 2,
		})
		began := time.Now()
		m.mustClose(t)
		require.EqualValues(t, 2, moved.Hits())
		require.Less(t, time.Since(began), 3*time.Second)
		require.Empty(t, b.Group(t, "billing").Members)
	}, kafkatest.Brokers(2))
}

func TestAMemberWithoutAClusterLeavesInAFewSeconds(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		b.CreateTopic(t, "orders", 2)
		l := newLedger()
		m := spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.note("a")))
		n := fill(t, b, "orders", 2, 5)
		m.allHandledIn(t, time.Minute, l, n)
		require.NoError(t, m.Commit(t.Context()))
		b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.LeaveGroup}, Group: "billing", Err: kerr.CoordinatorNotAvailable, Count: -1})
		began := time.Now()
		require.ErrorIs(t, m.Close(context.Background()), kafka.CoordinatorNotAvailable)
		require.Less(t, time.Since(began), 5*time.Second, "of the 30 s that a close has")
	})
}
