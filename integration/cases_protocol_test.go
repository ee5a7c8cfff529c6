package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/pkg/kafkatest"
	"github.com/troupego/troupe/rebalance"
)

// Cases about members that do not speak of the group in one way: eager beside cooperative ones (twmb/franz-go#686 and
// others), and those that claim what they do not have any more.

// joining starts members into one group, whose handlers write into one ledger and whose partitions into one list of owners.
type joining struct {
	b          *embeddedBroker
	partitions int32
	ledger     *ledger
	owners     *owners
	all        []*member
	// holes cut each member off.
	holes map[*member]*blackhole
}

func newJoining(t *testing.T, b *embeddedBroker, partitions int32) *joining {
	t.Helper()
	b.CreateTopic(t, "orders", partitions)
	return &joining{b: b, partitions: partitions, ledger: newLedger(), owners: &owners{}, holes: make(map[*member]*blackhole)}
}

func (j *joining) join(t *testing.T, name string, c api.Config, assignors ...rebalance.Assignor) *member {
	t.Helper()
	c.ClientID, c.Assignors = name, assignors
	hole := &blackhole{dial: j.b.Dial}
	m := spawn(t, c, api.WithDialer(hole.Dial), j.owners.callbacks(name), api.Handle("orders", j.ledger.watch(name, func(context.Context, *kafka.Record) error {
		time.Sleep(2 * time.Millisecond)
		return nil
	}), api.MaxRecords(20)))
	j.all, j.holes[m] = append(j.all, m), hole
	return m
}

func (j *joining) tps() (out []kafka.TopicPartition) {
	for p := range j.partitions {
		out = append(out, at("orders", p))
	}
	return out
}

// ends closes the members that are left and demands what holds for every group: no record is lost, no partition ever had
// two owners, nobody handled what was not his.
func (j *joining) ends(t *testing.T, n int) {
	t.Helper()
	eventually(t, time.Minute, "every record handled", func() bool { return j.ledger.distinct() == n })
	for _, m := range j.all {
		m.mustClose(t)
	}
	ends := j.b.EndOffsets(t, "orders")
	j.ledger.allHandled(t, ends)
	j.ledger.noOverlap(t)
	j.owners.disjoint(t, j.tps()...)
	j.owners.within(t, j.ledger, j.tps()...)
	require.Equal(t, ends, j.b.Committed(t, "billing"))
}

func TestB26_EagerAndCooperativeMembersShareAGroupAndEachPartitionHasOneOwner(t *testing.T) {
	eager := []rebalance.Assignor{rebalance.Range()}
	both := []rebalance.Assignor{rebalance.CooperativeSticky(), rebalance.Range()}
	cooperative := []rebalance.Assignor{rebalance.CooperativeSticky()}
	for name, tt := range map[string]struct {
		members []([]rebalance.Assignor)
		// agreed is the protocol of the whole group, and of those that are left when the first member has gone.
		agreed, then string
		// killed is true when the first member does not leave but vanishes.
		killed bool
	}{
		"TheEagerOneLeads":             {[][]rebalance.Assignor{eager, both}, "range", "cooperative-sticky", false},
		"TheCooperativeOneLeads":       {[][]rebalance.Assignor{both, eager}, "range", "range", false},
		"OneEagerAmongThree":           {[][]rebalance.Assignor{eager, both, both}, "range", "cooperative-sticky", false},
		"OneThatIsCooperativeOnly":     {[][]rebalance.Assignor{both, both, cooperative}, "cooperative-sticky", "cooperative-sticky", false},
		"TheEagerOneVanishes":          {[][]rebalance.Assignor{eager, both, both}, "range", "cooperative-sticky", true},
		"TheCooperativeOnlyOneGoesOut": {[][]rebalance.Assignor{cooperative, both, both}, "cooperative-sticky", "cooperative-sticky", true},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) {
				j := newJoining(t, b, 6)
				stop := stream(t, b, "orders", j.partitions)
				defer stop()
				c := plain(b)
				c.SessionTimeout = 6 * time.Second
				var members []*member
				for i, assignors := range tt.members {
					members = append(members, j.join(t, fmt.Sprintf("member-%d", i), c, assignors...))
					settled(t, int(j.partitions), members...)
				}
				require.Equal(t, tt.agreed, b.protocol(t, "billing"))
				time.Sleep(5 * time.Second)
				first, left := members[0], members[1:]
				gone := time.Now()
				if tt.killed {
					j.holes[first].on.Store(true)
					j.all = left
				} else {
					first.mustClose(t)
				}
				settled(t, int(j.partitions), left...)
				limit := 5 * time.Second
				if tt.killed {
					limit += c.SessionTimeout
				}
				eventually(t, limit-time.Since(gone), "what is left consumes every partition", func() bool {
					for _, tp := range j.tps() {
						terms := j.owners.of(tp)
						now := terms[len(terms)-1]
						entries := j.ledger.of(tp)
						if now.member == "member-0" || entries[len(entries)-1].member != now.member {
							return false
						}
					}
					return true
				})
				require.Equal(t, tt.then, b.protocol(t, "billing"))
				n, rebalances := stop(), left[0].Stats().Rebalances
				time.Sleep(time.Minute)
				require.Equal(t, rebalances, left[0].Stats().Rebalances, "the rounds have come to rest")
				j.ends(t, n)
			}, kafkatest.MinSessionTimeout(time.Second))
		})
	}
}

// A member that was put out comes back and claims what it had, in whatever words of an older or a wrong client.
func TestB26_AMemberThatClaimsWhatItLostGetsNothingThatIsAnothers(t *testing.T) {
	for name, tt := range map[string]struct {
		version int16
		// generation is what the claim says, by what it was when the member was put out and what it is now.
		generation func(then, now kafka.Generation) kafka.Generation
	}{
		"OfItsOldGeneration": {3, func(then, _ kafka.Generation) kafka.Generation { return then }},
		"OfThePresentOne":    {3, func(_, now kafka.Generation) kafka.Generation { return now }},
		"OfOneToCome":        {2, func(_, now kafka.Generation) kafka.Generation { return now + 100 }},
		"WithoutAGeneration": {1, func(kafka.Generation, kafka.Generation) kafka.Generation { return kafka.NoGeneration }},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) {
				j := newJoining(t, b, 6)
				stop := stream(t, b, "orders", j.partitions)
				defer stop()
				c := plain(b)
				c.SessionTimeout = 6 * time.Second
				one, two := j.join(t, "one", c, rebalance.CooperativeSticky()), j.join(t, "two", c, rebalance.CooperativeSticky())
				settled(t, int(j.partitions), one, two)
				mine, then := one.owned(), one.Stats().Generation
				require.Len(t, mine, 3)
				claims := claim(b, "one", func() rebalance.Subscription {
					return rebalance.Subscription{Owned: mine, Generation: tt.generation(then, two.Stats().Generation)}
				}, tt.version)
				j.holes[one].on.Store(true)
				tellsOf(t, one, 10*time.Second, func(event.PartitionsLost) bool { return true })
				eventually(t, 15*time.Second, "it was put out", func() bool { return len(two.owned()) == int(j.partitions) })
				j.holes[one].on.Store(false)
				eventually(t, 30*time.Second, "it is back with what it is given", func() bool {
					return claims.made() > 0 && len(one.owned()) == 3 && len(two.owned()) == 3
				})
				settled(t, int(j.partitions), one, two)
				claims.stop()
				n, rebalances := stop(), two.Stats().Rebalances
				require.LessOrEqual(t, rebalances, uint64(8), "rounds in all")
				time.Sleep(time.Minute)
				require.Equal(t, rebalances, two.Stats().Rebalances, "the rounds have come to rest")
				t.Logf("%d claims, %d generations", claims.made(), rebalances)
				j.ends(t, n)
			}, kafkatest.MinSessionTimeout(time.Second))
		})
	}
}

// claims counts the subscriptions that were changed on their way.
type claims struct {
	mu      sync.Mutex
	count   int
	stopped bool
}

func (c *claims) made() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

func (c *claims) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
}

// claim rewrites what a client's members say of themselves when they join without owning anything.
func claim(b *embeddedBroker, client string, what func() rebalance.Subscription, version int16) *claims {
	c := &claims{}
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Group: "billing", Observe: true, Count: -1, When: func(req kmsg.Request) bool {
		join := req.(*kmsg.JoinGroupRequest)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.stopped || !strings.HasPrefix(join.MemberID, client+"-") {
			return false
		}
		for i := range join.Protocols {
			own, err := rebalance.DecodeSubscription(join.Protocols[i].Metadata)
			if err != nil || len(own.Owned) > 0 {
				return false
			}
			claimed := what()
			claimed.Topics = own.Topics
			if join.Protocols[i].Metadata, err = rebalance.EncodeSubscriptionVersion(claimed, version); err != nil {
				panic(err)
			}
		}
		c.count++
		return true
	}})
	return c
}

// The same with members of other clients, which know only range.
func TestB26_AnEagerMemberOfAnotherClientSharesAGroupWithMembersThatOfferBoth(t *testing.T) {
	everywhere(t, func(t *testing.T, b broker) {
		g := &mixedGroup{dialect: dialects[0], b: b, topic: unique(t, "topic"), group: unique(t, "group"), ledger: newLedger()}
		b.CreateTopic(t, g.topic, mixedPartitions)
		eventually(t, patience, "the topic shows up", func() bool { return len(b.EndOffsets(t, g.topic)) == mixedPartitions })
		stop := stream(t, b, g.topic, mixedPartitions)
		defer stop()
		leaveFranz := g.joinFranz(t, "franz-go")
		g.settles(t, 1)
		c := config(b, g.group)
		c.Assignors = []rebalance.Assignor{rebalance.CooperativeSticky(), rebalance.Range()}
		one := spawn(t, c, api.Handle(g.topic, g.ledger.watch("troupe", func(context.Context, *kafka.Record) error {
			pause(mixedWork)
			return nil
		})))
		g.settles(t, 2)
		leaveSarama := g.joinSarama(t, "sarama")
		g.settles(t, 3)
		require.Equal(t, "range", protocolOf(t, b, g.group))
		leaveFranz()
		g.settles(t, 2)
		leaveSarama()
		settled(t, mixedPartitions, one)
		g.settles(t, 1)
		require.Equal(t, "cooperative-sticky", protocolOf(t, b, g.group))
		n := stop()
		eventually(t, patience, "every record handled", func() bool { return g.ledger.distinct() == n })
		allCommitted(t, b, g.topic, g.group)
		one.mustClose(t)
		g.ledger.allHandled(t, b.EndOffsets(t, g.topic))
		g.ledger.noOverlap(t)
		assert.Empty(t, told[event.PartitionsLost](one))
	})
}
