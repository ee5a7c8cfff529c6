package stacksim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/rebalance"
)

// The times of every member, short so that a history is. A session is longer than a rebalance may take, because kfake, other
// than Kafka, puts out members that wait for their SyncGroup when their session ends, and then miscounts those that join, so
// that rebalances of the group end by their timeout, or, as each JoinGroup sets that anew, never.
const (
	sessionTimeout   = 10 * time.Second
	heartbeat        = time.Second
	rebalanceTimeout = 9 * time.Second
	drainTimeout     = 3 * time.Second
	requestTimeout   = 4 * time.Second
	closeTimeout     = 15 * time.Second
	metadataMaxAge   = 5 * time.Second
	longestHandler   = 25 * time.Second
	// settleTimeout is T: how long a healed history may take until it is stable and caught up.
	settleTimeout = 3*rebalanceTimeout + 4*sessionTimeout + 2*requestTimeout + longestHandler + time.Minute
)

const group = "sim"

// plan is all that a seed decides.
type plan struct {
	seed    uint64
	brokers int
	topics  []topicPlan
	members []memberPlan
	// lists are the assignors of the members; any two lists have one in common.
	lists  [][]string
	length time.Duration
	// calm is a history without faults of the network or the group, in which G5, G6 and G7 hold to the letter: of handlers
	// alone, of blocked ones alone, or of members that come and go alone.
	calm string
	// mutant is a fault that no checker may miss; empty in every history but those that show so.
	mutant string
	// transactions is how many of a hundred batches are transactions.
	transactions int
	// static gives every place a group.instance.id.
	static bool
	// tokens is true when somebody asks for them.
	tokens  bool
	pace    time.Duration
	actions []action
}

type topicPlan struct {
	name       string
	partitions int32
}

// memberPlan is one member's nature. Every process that takes the member's place has it.
type memberPlan struct {
	order        string
	workers      int
	kind         string
	maxRecords   int
	maxInTransit int
	concurrency  int
	offsetMap    bool
	recycle      bool
	strategy     string
	list         int
	heeds        bool
	smallBudget  bool
	badCallbacks bool
	pattern      bool
	// limit is MaxProcessingTime.
	limit time.Duration
}

// action is one thing that happens.
type action struct {
	at, lasts time.Duration
	kind      string
	member    int
	node      int32
	topic     int
	partition int32
	key       kmsg.Key
	err       *kerr.Error
	count     int
	delay     time.Duration
}

func (a action) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s", a.at, a.kind)
	if a.lasts > 0 {
		fmt.Fprintf(&b, " for %v", a.lasts)
	}
	switch a.kind {
	case actWrong:
		fmt.Fprintf(&b, " %s: %s, %d times", a.key.Name(), a.err.Message, a.count)
	case actSilence, actDrop:
		fmt.Fprintf(&b, " %s, %d times", a.key.Name(), a.count)
	case actSlow:
		fmt.Fprintf(&b, " %s by %v", a.key.Name(), a.delay)
	case actFreeze, actMoveLeader:
		fmt.Fprintf(&b, " node %d topic %d partition %d", a.node, a.topic, a.partition)
	case actBlock:
		fmt.Fprintf(&b, " topic %d partition %d", a.topic, a.partition)
	default:
		fmt.Fprintf(&b, " member %d topic %d", a.member, a.topic)
	}
	return b.String()
}

// The kinds of actions.
const (
	actCut        = "cut"        // all connections break
	actFreeze     = "freeze"     // a node hangs
	actFreezeAll  = "freeze-all" // all nodes hang
	actSlow       = "slow"       // answers of one API come late
	actWrong      = "wrong"      // answers of one API are an error
	actSilence    = "silence"    // requests of one API get no answer
	actDrop       = "drop"       // requests of one API break their connection
	actRehash     = "rehash"     // the coordinator moves
	actMoveLeader = "move-leader"
	actBlackhole  = "blackhole" // a member's bytes vanish
	actRefuse     = "refuse"    // a member's connections break, and no new ones come about
	actJoin       = "join"
	actLeave      = "leave"
	actCrash      = "crash"
	actBlock      = "block" // the next record of a partition is not returned from
	actFail       = "fail"  // handlers fail
	actSluggish   = "sluggish"
	actLateAcks   = "late-acks"
	actPause      = "pause"
	actCommit     = "commit"
	actGrow       = "grow"
	actRejoin     = "rejoin" // a member asks for a rebalance
)

// harmless actions cost nobody the membership.
var harmless = []string{actBlock, actFail, actSluggish, actLateAcks, actPause, actCommit}

var membership = []string{actJoin, actLeave, actCrash, actGrow, actRejoin, actJoin, actLeave}

var disasters = []string{
	actCut, actFreeze, actFreezeAll, actSlow, actWrong, actWrong, actWrong, actSilence, actDrop, actRehash, actMoveLeader,
	actBlackhole, actRefuse,
}

// wrongs are the errors that a broker may give, and that a member must survive.
var wrongs = []struct {
	key    kmsg.Key
	errors []*kerr.Error
}{
	{kmsg.JoinGroup, []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.UnknownMemberID, kerr.RebalanceInProgress, kerr.UnknownServerError}},
	{kmsg.SyncGroup, []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration}},
	{kmsg.Heartbeat, []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.CoordinatorNotAvailable}},
	{kmsg.OffsetCommit, []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RequestTimedOut, kerr.UnknownTopicOrPartition, kerr.UnknownServerError}},
	{kmsg.OffsetFetch, []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.UnstableOffsetCommit, kerr.UnknownServerError}},
	{kmsg.FindCoordinator, []*kerr.Error{kerr.CoordinatorNotAvailable, kerr.UnknownServerError}},
	{kmsg.Fetch, []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownLeaderEpoch, kerr.FencedLeaderEpoch, kerr.UnknownTopicOrPartition, kerr.ReplicaNotAvailable, kerr.KafkaStorageError, kerr.UnknownServerError, kerr.OffsetNotAvailable}},
	{kmsg.ListOffsets, []*kerr.Error{kerr.NotLeaderForPartition, kerr.UnknownLeaderEpoch, kerr.UnknownTopicOrPartition, kerr.RequestTimedOut}},
	{kmsg.Metadata, []*kerr.Error{kerr.LeaderNotAvailable, kerr.UnknownServerError}},
	{kmsg.LeaveGroup, []*kerr.Error{kerr.NotCoordinator, kerr.CoordinatorNotAvailable, kerr.UnknownMemberID}},
}

var assignorLists = [][][]string{
	{{"range"}}, {{"roundrobin"}}, {{"sticky"}}, {{"cooperative-sticky"}}, {{"cooperative-sticky"}}, {{"cooperative-sticky"}},
	{{"cooperative-sticky", "range"}, {"range"}}, {{"sticky", "roundrobin"}, {"roundrobin", "range", "sticky"}},
	{{"cooperative-sticky", "sticky"}},
}

func assignors(names []string) (out []rebalance.Assignor) {
	for _, known := range []rebalance.Assignor{rebalance.Range(), rebalance.RoundRobin(), rebalance.Sticky(), rebalance.CooperativeSticky()} {
		if slices.Contains(names, known.Name()) {
			out = append(out, known)
		}
	}
	slices.SortFunc(out, func(a, b rebalance.Assignor) int {
		return slices.Index(names, a.Name()) - slices.Index(names, b.Name())
	})
	return out
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func chance(r *rand.Rand, percent int) bool { return r.IntN(100) < percent }

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return (low + time.Duration(r.Int64N(int64(high-low)+1))).Truncate(time.Millisecond)
}

// newPlan is the plan of a seed.
func newPlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 0x7360))
	p := &plan{
		seed: seed, brokers: 1 + r.IntN(3), length: between(r, 20*time.Second, 60*time.Second),
		lists: pick(r, assignorLists...), transactions: pick(r, 0, 10, 50), pace: pick[time.Duration](r, 100, 250, 500) * time.Millisecond,
	}
	for i := range 1 + r.IntN(2) {
		p.topics = append(p.topics, topicPlan{fmt.Sprintf("t%d", i), int32(1 + r.IntN(8/(i+1)))})
	}
	for range 1 + r.IntN(4) {
		p.members = append(p.members, newMemberPlan(r, len(p.lists)))
	}
	if chance(r, 20) {
		p.calm = pick(r, calmHandlers, calmBlocks, calmMoves)
	}
	if *onlyCalm != "" {
		p.calm = *onlyCalm
	}
	p.static = chance(r, 15)
	kinds := p.kinds(r)
	for range 2 + r.IntN(11) {
		a := p.newAction(r, pick(r, kinds...))
		if a.kind == actGrow && p.static {
			// A static leader that comes back is told to skip the assignment (KIP-814), and takes what it sees first for what
			// the plan was made over: a partition that was added meanwhile has no owner until the next rebalance.
			continue
		}
		p.actions = append(p.actions, a)
	}
	if p.calm == "" {
		for i := range p.members {
			if chance(r, 30) {
				p.members[i].limit = pick[time.Duration](r, 1, 2, 5) * time.Second
				p.actions = append(p.actions, p.newAction(r, actBlock), p.newAction(r, actBlock)) // so that it is exceeded
			}
		}
	}
	if chance(r, 50) && (p.calm == "" || p.calm == calmMoves) { // much at once
		from, density := between(r, 0, p.length/2), pick[time.Duration](r, 3, 8, 30)
		for i := range p.actions {
			p.actions[i].at = min(from+p.actions[i].at/density, p.length)
		}
	}
	p.addTokens()
	p.addControls()
	slices.SortStableFunc(p.actions, func(a, b action) int { return int(a.at - b.at) })
	return p
}

// The sorts of calm histories.
const (
	calmHandlers = "handlers"
	calmBlocks   = "blocks"
	calmMoves    = "moves"
)

// kinds are the kinds of actions that a history has.
func (p *plan) kinds(r *rand.Rand) (kinds []string) {
	if p.calm != "" {
		for i := range p.members {
			// What is finished beyond the commit is finished for whoever reads the map.
			p.members[i].smallBudget, p.members[i].offsetMap = false, true
		}
	}
	switch p.calm {
	case calmHandlers:
		return harmless
	case calmMoves:
		return []string{actJoin, actLeave, actJoin, actLeave, actGrow, actRejoin, actCommit}
	case calmBlocks:
		for i := range p.members { // nothing that lets a member's partitions share what is blocked
			p.members[i].concurrency, p.members[i].workers = 0, 16 // more workers than there can be blocks
		}
		return []string{actBlock, actBlock, actCommit}
	}
	// Of each sort some, so that a history often has few kinds of faults, and what one does alone is seen.
	for _, sort := range [][]string{harmless, membership, disasters} {
		for _, kind := range sort {
			if chance(r, 40) {
				kinds = append(kinds, kind)
			}
		}
	}
	return append(kinds, pick(r, disasters...))
}

func newMemberPlan(r *rand.Rand, lists int) memberPlan {
	m := memberPlan{
		order: pick(r, "partition", "partition", "key", "none"), workers: pick(r, 1, 2, 4, 8), kind: pick(r, "record", "record", "batch", "async", "actor"),
		maxInTransit: pick(r, 5, 20, 100, 1000), concurrency: pick(r, 0, 0, 0, 1, 2), offsetMap: chance(r, 40), recycle: chance(r, 40),
		strategy: pick(r, "opportunistic", "opportunistic", "every", "records", "demand"), list: r.IntN(lists), heeds: chance(r, 60),
		smallBudget: chance(r, 15), badCallbacks: chance(r, 15), pattern: chance(r, 40),
	}
	m.maxRecords = min(pick(r, 1, 3, 10, 50), m.maxInTransit)
	return m
}

func (p *plan) newAction(r *rand.Rand, kind string) action {
	a := action{
		at: between(r, 0, p.length), kind: kind, member: r.IntN(len(p.members)), node: int32(r.IntN(p.brokers)), topic: r.IntN(len(p.topics)),
		lasts: pick(r, between(r, 100*time.Millisecond, 2*time.Second), between(r, time.Second, 20*time.Second), between(r, 6*time.Second, 25*time.Second)), count: 1 + r.IntN(6),
		delay: pick(r, between(r, 10*time.Millisecond, 500*time.Millisecond), between(r, time.Second, 8*time.Second)),
	}
	a.partition = r.Int32N(p.topics[a.topic].partitions)
	w := pick(r, wrongs...)
	a.key, a.err = w.key, pick(r, w.errors...)
	switch kind {
	case actCut, actRehash, actMoveLeader, actJoin, actLeave, actCrash, actCommit, actGrow, actRejoin:
		a.lasts = 0
	case actSlow, actSilence, actDrop:
		a.key = pick(r, kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat, kmsg.OffsetCommit, kmsg.OffsetFetch, kmsg.Fetch, kmsg.ListOffsets, kmsg.FindCoordinator, kmsg.Metadata, kmsg.LeaveGroup)
		if a.key == kmsg.OffsetCommit {
			// A commit that its member has given up and that is executed after a newer one moves the stored offset back, within a
			// generation, and nothing in Kafka's protocol is against it: the last one must not come so late.
			a.delay = min(a.delay, requestTimeout/2)
		}
	}
	if p.calm == calmBlocks || p.calm == calmHandlers { // once the members have joined
		a.at = 12*time.Second + a.at/2
	}
	return a
}

func (m *memberPlan) commitStrategy() commit.Strategy {
	switch m.strategy {
	case "every":
		return commit.Every(2 * time.Second)
	case "records":
		return commit.EveryRecords(7)
	case "demand":
		return commit.OnDemand()
	}
	return commit.Opportunistic()
}

// engine is the order of the member's handlers.
func (m *memberPlan) engine() api.HandlerOption {
	switch m.order {
	case "key":
		return api.KeyOrder(m.workers)
	case "none":
		return api.Unordered(m.workers)
	}
	return api.PartitionOrder()
}

// String is the plan for people.
func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d brokers, topics %v, assignors %v, %v, calm %q, static %v, %d%% transactions, a batch every %v\n", p.seed, p.brokers, p.topics, p.lists, p.length, p.calm, p.static, p.transactions, p.pace)
	for i, m := range p.members {
		fmt.Fprintf(&b, "member %d: %+v\n", i, m)
	}
	for _, a := range p.actions {
		fmt.Fprintf(&b, "action %v\n", a)
	}
	return b.String()
}
