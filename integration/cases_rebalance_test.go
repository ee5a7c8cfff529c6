package integration

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// Cases about what happens in the midst of a rebalance.

// slowLine is a way to the network on which each answer takes a while, so that every state of a rebalance lasts.
type slowLine struct {
	dial  dialFunc
	delay time.Duration
}

// Dial has the shape that api.WithDialer takes.
func (s slowLine) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := s.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &slowConn{Conn: conn, delay: s.delay}, nil
}

type slowConn struct {
	net.Conn
	delay time.Duration
	asked bool // written to since the last read; a client's connection is used by one goroutine
}

func (c *slowConn) Write(p []byte) (int, error) {
	c.asked = true
	return c.Conn.Write(p)
}

func (c *slowConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.asked {
		c.asked = false
		time.Sleep(c.delay)
	}
	return n, err
}

// twmb/franz-go#1200 and others: a stop waits for the rebalance, which waits for the program that wants to stop.
func TestB18_ACloseInAnyStateOfARebalanceEnds(t *testing.T) {
	const rounds = 200
	random := rand.New(rand.NewPCG(18, 18))
	closedIn := make(map[string]int)
	for i := range rounds {
		assignor := []rebalance.Assignor{rebalance.Range(), rebalance.CooperativeSticky()}[i%2]
		delay := time.Duration(random.Int64N(int64(900 * time.Millisecond)))
		story(t, func(t *testing.T, b *embeddedBroker) { closedIn[closeAfter(t, b, assignor, delay)]++ })
		if t.Failed() {
			t.Fatalf("round %d: %s, closed after %v", i, assignor.Name(), delay)
		}
	}
	t.Logf("closed in %v", closedIn)
	for _, state := range []rebalance.State{
		rebalance.StateJoining, rebalance.StateSyncing, rebalance.StateAssigning, rebalance.StateAssigned, rebalance.StateRevoking,
	} {
		assert.GreaterOrEqual(t, closedIn[state.String()], 5, "closed in %v", state)
	}
}

// closeAfter closes a member some time after another one has joined, and says in which state it was.
func closeAfter(t *testing.T, b *embeddedBroker, assignor rebalance.Assignor, delay time.Duration) (state string) {
	t.Helper()
	b.CreateTopic(t, "orders", 4)
	fill(t, b, "orders", 4, 5)
	blocked := func(ctx context.Context, _ *kafka.Record) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	c := config(b, "billing")
	c.DrainTimeout, c.Assignors = 200*time.Millisecond, []rebalance.Assignor{assignor}
	line := slowLine{b.Dial, 50 * time.Millisecond}
	one := spawn(t, c, api.WithDialer(line.Dial), api.Handle("orders", blocked))
	one.joined(t)
	two := spawn(t, c, api.WithDialer(line.Dial), api.Handle("orders", blocked))
	time.Sleep(delay)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	state = one.Stats().State
	closed := make(chan error, 1)
	started := time.Now()
	go func() { closed <- one.Close(ctx) }()
	assert.NoError(t, <-closed, "closed in %s", state)
	assert.NoError(t, two.Close(ctx), "the other one")
	assert.Less(t, time.Since(started), 5*time.Second+100*time.Millisecond)
	assert.True(t, within(time.Second, one.Done()))
	noConsumerIsLeft(t)
	return state
}

// platformatic/kafka#370 and others: commits that are refused because of a rebalance start the next one, and so on.
func TestB24_CommitsThatARebalanceRefusesStartNoOther(t *testing.T) {
	for _, assignor := range []rebalance.Assignor{rebalance.Range(), rebalance.CooperativeSticky()} {
		t.Run(assignor.Name(), func(t *testing.T) {
			story(t, func(t *testing.T, b *embeddedBroker) { commitsInARebalance(t, b, assignor) })
		})
	}
}

// groupCalls has the requests of one api of a group's members, by their ids.
type groupCalls struct {
	mu    sync.Mutex
	calls map[string][]time.Time
}

// tapGroup watches an api of which each request names the member.
func tapGroup(b *embeddedBroker, group string, key kmsg.Key) *groupCalls {
	g := &groupCalls{calls: make(map[string][]time.Time)}
	b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{key}, Group: group, Observe: true, Count: -1, When: func(req kmsg.Request) bool {
		id := ""
		switch req := req.(type) {
		case *kmsg.JoinGroupRequest:
			id = req.MemberID
		case *kmsg.SyncGroupRequest:
			id = req.MemberID
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.calls[id] = append(g.calls[id], time.Now())
		return true
	}})
	return g
}

func (g *groupCalls) of(memberID string) []time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls[memberID])
}

// all is how many there were.
func (g *groupCalls) all() (count int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, calls := range g.calls {
		count += len(calls)
	}
	return count
}

func commitsInARebalance(t *testing.T, b *embeddedBroker, assignor rebalance.Assignor) {
	const partitions, joinHeld = 10, 2 * time.Second
	b.CreateTopic(t, "orders", partitions)
	commits, joins, syncs := tap(b, "billing", "orders"), tapGroup(b, "billing", kmsg.JoinGroup), tapGroup(b, "billing", kmsg.SyncGroup)
	l := newLedger()
	join := func(name string) *member {
		c := plain(b)
		c.ClientID, c.CommitStrategy, c.Assignors = name, commit.Every(20*time.Millisecond), []rebalance.Assignor{assignor}
		return spawn(t, c, api.WithDialer(b.Dial), api.Handle("orders", l.watch(name, func(context.Context, *kafka.Record) error {
			time.Sleep(5 * time.Millisecond)
			return nil
		}), api.MaxRecords(20)))
	}
	members := []*member{join("one"), join("two"), join("three"), join("four")}
	settled(t, partitions, members...)
	stop := stream(t, b, "orders", partitions)
	defer stop()
	time.Sleep(2 * time.Second)

	// Each generation since then, also one that ends before all are in it, has one JoinGroup of each member.
	before, firstGeneration := make(map[*member]int), members[0].Stats().Generation
	for _, m := range members {
		before[m] = len(joins.of(m.Stats().MemberID))
	}
	// When the fifth comes the others have to wait for the fourth.
	var once sync.Once
	held := make(chan struct{})
	b.Cluster().ControlKey(kmsg.JoinGroup.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		if strings.HasPrefix(req.(*kmsg.JoinGroupRequest).MemberID, "four-") {
			once.Do(func() {
				b.Cluster().SleepControl(func() {
					close(held)
					time.Sleep(joinHeld)
				})
			})
		}
		return nil, nil, false
	})
	members = append(members, join("five"))
	<-held
	settled(t, partitions, members...)
	rests := func() {
		t.Helper()
		since := time.Now()
		time.Sleep(10 * time.Second)
		generation := members[0].Stats().Generation
		for i, m := range members {
			stats := m.Stats()
			require.Equal(t, generation, stats.Generation, "it has come to rest")
			require.Equal(t, int(generation-firstGeneration), len(joins.of(stats.MemberID))-before[m], "JoinGroup of member %d", i)
			require.True(t, slices.ContainsFunc(commits.list(), func(c tappedCommit) bool {
				return c.member == stats.MemberID && c.generation == int32(generation) && c.when.After(since)
			}), "member %d commits in the new generation", i)
		}
	}
	rests()
	for _, c := range commits.list() {
		joined, synced := lastBefore(joins.of(c.member), c.when), lastBefore(syncs.of(c.member), c.when.Add(1))
		require.False(t, joined.After(synced), "%s commits while it joins: JoinGroup at %v, SyncGroup at %v, commit at %v", c.member, joined, synced, c.when)
	}

	// A coordinator that says so in a stable group, and to every commit, is taken at its word once at most.
	generation := members[0].Stats().Generation
	refused := b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Group: "billing", Err: kerr.RebalanceInProgress, Count: -1})
	time.Sleep(joinHeld)
	require.Positive(t, refused.Hits())
	require.Less(t, refused.Hits(), 200, "the coordinator is not hammered")
	refused.Remove()
	settled(t, partitions, members...)
	rests()
	require.LessOrEqual(t, members[0].Stats().Generation, generation+1)
	n := stop()
	eventually(t, time.Minute, "every record handled", func() bool { return l.distinct() == n })
	for _, m := range members {
		m.mustClose(t)
		require.Empty(t, told[event.PartitionsLost](m))
	}
	l.noOverlap(t)
	require.Empty(t, l.repeated())
	commits.orderly(t)
	require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
}

// lastBefore returns the last of the times before another one, zero for none.
func lastBefore(times []time.Time, end time.Time) (last time.Time) {
	for _, at := range times {
		if at.Before(end) {
			last = at
		}
	}
	return last
}

// B24: what is committed while the group rebalances starts no further rebalance; each member joins once.
func TestB24_CommitsDuringARebalanceStartNoOther(t *testing.T) {
	story(t, func(t *testing.T, b *embeddedBroker) {
		const partitions = 6
		b.CreateTopic(t, "orders", partitions)
		commits := tap(b, "billing", "orders")
		l := newLedger()
		join := func(name string) *member {
			return spawn(t, plain(b), api.WithDialer(b.Dial), api.Handle("orders", l.watch(name, func(context.Context, *kafka.Record) error {
				time.Sleep(20 * time.Millisecond)
				return nil
			}), api.MaxRecords(100)))
		}
		one, two := join("one"), join("two")
		settled(t, partitions, one, two)
		n := fill(t, b, "orders", partitions, 1000)
		joins := b.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Group: "billing", Observe: true, Count: -1})
		three := join("three")
		settled(t, partitions, one, two, three)
		time.Sleep(10 * time.Second)
		require.Equal(t, 7, joins.Hits(), "two rounds for each member, and one for the new one's id")
		eventually(t, 2*time.Minute, "every record handled", func() bool { return l.distinct() == n })
		for _, m := range []*member{one, two, three} {
			m.mustClose(t)
			require.Empty(t, told[event.PartitionsLost](m))
		}
		require.Empty(t, l.repeated())
		l.noOverlap(t)
		commits.orderly(t)
		require.Equal(t, b.EndOffsets(t, "orders"), b.Committed(t, "billing"))
	})
}
