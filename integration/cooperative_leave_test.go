package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// A member that is stopped while another one joins has no generation to commit with until the group has its next one.
func TestAMemberClosedWhileItJoinsAgainCommitsAllThatItHandled(t *testing.T) {
	for name, order := range map[string]api.HandlerOption{"partition": api.PartitionOrder(), "key": api.KeyOrder(4)} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) {
				const partitions, each = 4, 40
				b.CreateTopic(t, "orders", partitions)
				l := newLedger()
				member := func(name string, work time.Duration) *member {
					return spawn(t, config(b, "billing"), api.WithDialer(b.Dial), api.Handle("orders", l.watch(name, func(context.Context, *kafka.Record) error {
						pause(work)
						return nil
					}), order))
				}
				one := member("one", 300*time.Millisecond)
				two := member("two", 10*time.Millisecond)
				eventually(t, time.Minute, "two partitions each", func() bool { return len(one.owned()) == 2 && len(two.owned()) == 2 })
				total := fill(t, b, "orders", partitions, each)
				pause(time.Second)
				// Counted by events: the state itself may last no time at all, when one is the last to notice the rebalance.
				joins := func() (n int) {
					for _, moved := range told[event.MemberMoved](one) {
						if moved.To == rebalance.StateJoining.String() {
							n++
						}
					}
					return n
				}
				before := joins()
				three := member("three", 10*time.Millisecond)
				eventually(t, time.Minute, "one joins again", func() bool { return joins() > before })
				assert.NoError(t, one.Close(context.Background()))
				assert.Empty(t, told[event.PartitionsLost](one))
				assert.Empty(t, told[event.HandlerAbandoned](one))
				three.allHandledIn(t, time.Minute, l, total)
				require.Empty(t, l.repeated(), "nothing that one had finished is handled again")
				l.noOverlap(t)
				two.mustClose(t)
				three.mustClose(t)
			})
		})
	}
}
