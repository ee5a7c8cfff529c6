package actors

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// fakeCluster is a Kafka cluster behind the Network port: brokers, logs, and the coordinator of one group. Tests script
// what goes wrong in it with hooks, which are called without its lock, before the operation, and may sleep, block on the
// call's context, fail or panic.
type fakeCluster struct {
	mu      sync.Mutex
	changed chan struct{}

	brokers     map[int32]kafka.Broker
	coordinator int32
	topics      map[string]*fakeTopic
	// batch is the number of records of one batch, chunkBatches how many batches one answer has for a partition at most.
	batch, chunkBatches int
	// answerBytes is when an answer has no room for further partitions, 0 for never.
	answerBytes int
	// localStart is where what the brokers have on their own disks begins.
	localStart int64

	generation kafka.Generation
	// members has those that joined, and with false those that were only given an id (KIP-394).
	members     map[string]bool
	nextMember  int
	rebalancing bool
	// ghost is another member, which gets its share of each assignment and does nothing with it.
	ghost      bool
	assignment map[string][]byte
	committed  map[kafka.TopicPartition]CommittedOffset

	// onCall is asked before each call of that API; an error is the call's answer.
	onCall map[string]func(ctx context.Context) error
	// onCommit may change a round's answer, onFetch one partition's; onDecode is asked before each batch is decoded.
	onCommit func(ctx context.Context, round *CommitRound) (map[kafka.TopicPartition]error, error)
	onFetch  func(broker kafka.Broker, p FetchPartition) *FetchedPartition
	onDecode func(tp kafka.TopicPartition, from int64) error
	// onLookup is asked before the offsets of a request are looked up; an error is its answer.
	onLookup func(ctx context.Context, broker kafka.Broker, queries []OffsetQuery) error
	// frozen makes every call wait for the end of its context.
	frozen bool

	journal []string
	calls   map[string]int
}

type fakeTopic struct {
	id    kafka.TopicID
	parts []*fakeLog
}

// fakeLog is one partition: its records from start on, ascending, maybe with holes, and the offset after the last.
type fakeLog struct {
	leader, epoch int32
	start, end    int64
	offsets       []int64
	// every is how many milliseconds lie between the timestamps of two offsets, the first of which is at 0; 0 for none.
	every int64
}

func newFakeCluster(brokers int) *fakeCluster {
	c := &fakeCluster{
		changed: make(chan struct{}), brokers: make(map[int32]kafka.Broker), coordinator: 1, topics: make(map[string]*fakeTopic),
		batch: 5, chunkBatches: 2, members: make(map[string]bool), assignment: make(map[string][]byte),
		committed: make(map[kafka.TopicPartition]CommittedOffset), onCall: make(map[string]func(context.Context) error),
		calls: make(map[string]int),
	}
	for id := range int32(brokers) {
		c.brokers[id+1] = kafka.Broker{ID: id + 1, Addr: fmt.Sprintf("b%d:9092", id+1)}
	}
	return c
}

// with runs f under the lock and wakes whoever waits for a change.
func (c *fakeCluster) with(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// topic makes a topic whose partitions have n records each and are led by the brokers in turn.
func (c *fakeCluster) topic(name string, partitions, n int) {
	c.with(func() {
		t := &fakeTopic{id: kafka.TopicID{byte(len(c.topics) + 1), byte(c.generation + 1)}}
		for p := range partitions {
			l := &fakeLog{leader: int32(p%len(c.brokers)) + 1, epoch: 1}
			t.parts = append(t.parts, l)
			l.produce(n)
		}
		c.topics[name] = t
	})
}

func (l *fakeLog) produce(n int) {
	for range n {
		l.offsets = append(l.offsets, l.end)
		l.end++
	}
}

func (c *fakeCluster) produce(tp kafka.TopicPartition, n int) {
	c.with(func() { c.log(tp).produce(n) })
}

func (c *fakeCluster) log(tp kafka.TopicPartition) *fakeLog {
	t := c.topics[tp.Topic]
	if t == nil || int(tp.Partition) >= len(t.parts) {
		return nil
	}
	return t.parts[tp.Partition]
}

func (c *fakeCluster) note(format string, a ...any) {
	c.journal = append(c.journal, fmt.Sprintf(format, a...))
}

// lines returns the journal.
func (c *fakeCluster) lines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.journal)
}

func (c *fakeCluster) committedAt(tp kafka.TopicPartition) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.committed[tp]; ok {
		return at.Offset
	}
	return kafka.NoOffset
}

func (c *fakeCluster) count(api string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[api]
}

// hook sets what is asked before each call of an API; nil for nothing.
func (c *fakeCluster) hook(api string, f func(ctx context.Context) error) {
	c.with(func() { c.onCall[api] = f })
}

// panicOnce makes the next call of an API panic.
func (c *fakeCluster) panicOnce(api string) {
	var once sync.Once
	c.hook(api, func(context.Context) error {
		once.Do(func() { panic("injected into " + api) })
		return nil
	})
}

// enter is the beginning of each call.
func (c *fakeCluster) enter(ctx context.Context, api string) error {
	c.mu.Lock()
	c.calls[api]++
	hook, frozen := c.onCall[api], c.frozen
	c.mu.Unlock()
	if frozen {
		<-ctx.Done()
		return ctx.Err()
	}
	if hook != nil {
		if err := hook(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func coded(api string, code kafka.ErrorCode) error { return &kafka.RequestError{API: api, Err: code} }

// --- the coordinator

// rival lets the ghost in or out and starts a rebalance.
func (c *fakeCluster) rival(in bool) {
	c.with(func() { c.ghost, c.rebalancing = in, true })
}

// expel forgets all members, as after a session that expired.
func (c *fakeCluster) expel() {
	c.with(func() { clear(c.members); c.note("expelled") })
}

func (c *fakeCluster) check(api, member string, generation kafka.Generation, broker kafka.Broker) error {
	switch {
	case broker.ID != c.coordinator:
		return coded(api, kafka.NotCoordinator)
	case !c.members[member]:
		return coded(api, kafka.UnknownMemberID)
	case generation != c.generation:
		return coded(api, kafka.IllegalGeneration)
	}
	return nil
}

func (c *fakeCluster) join(broker kafka.Broker, req rebalance.JoinRequest) (rebalance.JoinResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case broker.ID != c.coordinator:
		return rebalance.JoinResponse{}, coded("JoinGroup", kafka.NotCoordinator)
	case req.MemberID == "":
		c.nextMember++
		id := fmt.Sprintf("member-%d", c.nextMember)
		c.members[id] = false
		return rebalance.JoinResponse{MemberID: id}, coded("JoinGroup", kafka.MemberIDRequired)
	}
	if _, known := c.members[req.MemberID]; !known {
		return rebalance.JoinResponse{}, coded("JoinGroup", kafka.UnknownMemberID)
	}
	c.members[req.MemberID] = true
	c.generation++
	c.rebalancing = false
	c.note("join %s generation %d", req.MemberID, c.generation)
	me := rebalance.JoinMember{MemberID: req.MemberID, Metadata: req.Protocols[0].Metadata}
	members := []rebalance.JoinMember{me}
	if c.ghost {
		members = append(members, rebalance.JoinMember{MemberID: "ghost", Metadata: ghostMetadata(me.Metadata)})
	}
	return rebalance.JoinResponse{
		Generation: c.generation, MemberID: req.MemberID, LeaderID: req.MemberID, Protocol: req.Protocols[0].Name, Members: members,
	}, nil
}

// ghostMetadata is the subscription of the ghost: that of the member, which owns what it owns alone.
func ghostMetadata(member []byte) []byte {
	s, err := rebalance.DecodeSubscription(member)
	if err != nil {
		panic(err)
	}
	s.Owned, s.UserData, s.Generation = nil, nil, kafka.NoGeneration
	data, err := rebalance.EncodeSubscription(s)
	if err != nil {
		panic(err)
	}
	return data
}

func (c *fakeCluster) sync(broker kafka.Broker, req rebalance.SyncRequest) (rebalance.SyncResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check("SyncGroup", req.MemberID, req.Generation, broker); err != nil {
		return rebalance.SyncResponse{}, err
	}
	if c.rebalancing {
		return rebalance.SyncResponse{}, coded("SyncGroup", kafka.RebalanceInProgress)
	}
	for _, a := range req.Assignments {
		c.assignment[a.MemberID] = a.Assignment
	}
	return rebalance.SyncResponse{Assignment: c.assignment[req.MemberID]}, nil
}

func (c *fakeCluster) heartbeat(broker kafka.Broker, req rebalance.HeartbeatRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.check("Heartbeat", req.MemberID, req.Generation, broker); err != nil {
		return err
	}
	if c.rebalancing {
		return coded("Heartbeat", kafka.RebalanceInProgress)
	}
	return nil
}

func (c *fakeCluster) leave(broker kafka.Broker, req rebalance.LeaveRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.members[req.MemberID]; !known {
		return coded("LeaveGroup", kafka.UnknownMemberID)
	}
	delete(c.members, req.MemberID)
	c.note("leave %s", req.MemberID)
	return nil
}

func (c *fakeCluster) commit(broker kafka.Broker, r *CommitRound) (map[kafka.TopicPartition]error, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	round := r.Round()
	results := make(map[kafka.TopicPartition]error, len(round.Offsets))
	err := c.check("OffsetCommit", round.MemberID, round.Generation, broker)
	for _, o := range round.Offsets {
		results[o.TopicPartition] = err
		if err == nil {
			c.committed[o.TopicPartition] = CommittedOffset{Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata}
			c.note("commit %s %d", o.TopicPartition, o.Offset)
		}
	}
	return results, nil
}

func (c *fakeCluster) fetchOffsets(req OffsetFetchRequest) map[kafka.TopicPartition]CommittedOffset {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[kafka.TopicPartition]CommittedOffset)
	for _, tp := range req.Partitions {
		committed, ok := c.committed[tp]
		if !ok {
			committed = CommittedOffset{Offset: kafka.NoOffset, LeaderEpoch: kafka.NoLeaderEpoch}
		}
		out[tp] = committed
	}
	return out
}
