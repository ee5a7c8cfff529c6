//go:build unix

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/troupego/troupe/integration/launch"
)

const (
	chaosPartitions = 12
	// chaosFor is how long faults are begun where TROUPE_CHAOS does not say.
	chaosFor       = time.Minute
	chaosSession   = 8 * time.Second
	chaosRebalance = 20 * time.Second
	chaosRequest   = 5 * time.Second
	// stableLimit is how soon after a fault, and after its end, everything must be well again: one dead member holds its
	// partitions for a session, one that does not come holds a rebalance, and the rest is for brokers and a busy machine.
	stableLimit = chaosSession + chaosRebalance + 15*time.Second
	// stableEvery is how often that is looked for, and describeLimit how long one look may take.
	stableEvery   = 100 * time.Millisecond
	describeLimit = 3 * time.Second
)

// chaos is a cluster of three nodes, producers that never pause, and a group of members inside and outside of this process.
type chaos struct {
	*nodes
	seed     uint64
	random   *rand.Rand // of the schedule alone
	producer *chaosProducer
	commits  *commitLog
	slots    []*slot
	// lives are all incarnations of all slots, also the dead ones.
	lives  []*incarnation
	faults []*fault
	// deck has what is still to come before any fault comes again.
	deck   []*fault
	report chaosReport
}

// chaosReport is the test's last line.
type chaosReport struct {
	Seed  uint64 `json:"seed"`
	Kafka string `json:"kafka"`
	// Seconds is how long faults went on.
	Seconds int `json:"seconds"`
	// Faults counts them by kind.
	Faults map[string]int `json:"faults"`
	// Produced are the acknowledged records.
	Produced int `json:"produced"`
	// Handled is how many records were finished at least once, Duplicates how many times more.
	Handled    int `json:"handled"`
	Duplicates int `json:"duplicates"`
	Lost       int `json:"lost"`
	// Overlaps are records that were in a handler of a member that had been put out of the group when the next owner began;
	// nothing else may overlap.
	Overlaps int `json:"overlaps"`
	// LostMemberships is how often a member was told that it had been put out, or assumed it.
	LostMemberships int `json:"lost_memberships"`
	Commits         int `json:"commits"`
	// LongestToStable is by kind, in milliseconds, from the fault or from its end.
	LongestToStable map[string]int64 `json:"longest_to_stable_ms"`
}

// Faults come one after the other, each healed before the next, and all the time records are produced. A seed fixes which
// faults come and whom they hit, not what comes of it.
func TestChaosLosesNothingAndEveryFaultHeals(t *testing.T) {
	t.Parallel()
	duration := chaosDuration(t)
	c := startChaos(t)
	t.Logf("%v of faults with TROUPE_CHAOS_SEED=%d", duration, c.seed)
	c.stable(t, "start")
	began := time.Now()
	for {
		fault := c.draw(duration - time.Since(began))
		if fault == nil {
			break
		}
		c.strike(t, fault)
	}
	c.report.Seconds = int(time.Since(began).Seconds())
	c.finish(t)
	line, err := json.Marshal(c.report)
	require.NoError(t, err)
	t.Logf("chaos: %s", line)
}

// chaosDuration is how long faults are begun.
func chaosDuration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("TROUPE_CHAOS")
	if text == "" {
		return chaosFor
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "TROUPE_CHAOS is a duration such as 30m")
	require.Positive(t, d, "TROUPE_CHAOS")
	return d
}

// chaosSeed is what decides the schedule; a fresh one unless TROUPE_CHAOS_SEED names one.
func chaosSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("TROUPE_CHAOS_SEED")
	if text == "" {
		return newChaosSeed()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, "TROUPE_CHAOS_SEED is a number, 0 for a fresh one")
	if seed == 0 {
		return newChaosSeed()
	}
	return seed
}

func newChaosSeed() uint64 { return 1 + rand.Uint64N(1e9) }

func startChaos(t *testing.T) *chaos {
	t.Helper()
	seed := chaosSeed(t)
	binary := buildWorker(t)
	cluster := launch.ForTest(t, launch.Options{Nodes: 3, Properties: map[string]string{
		// Nodes that come back get their partitions, and the group, soon.
		"leader.imbalance.check.interval.seconds": "5",
		// A follower of a node that froze is not long without a leader.
		"replica.socket.timeout.ms": "3000",
	}})
	admin := newAdmin(t, cluster.Brokers(), nil, impatient()...)
	s := newStage(t, binary, cluster.Brokers(), admin, chaosPartitions, "-session-timeout", chaosSession.String(),
		"-rebalance-timeout", chaosRebalance.String(), "-request-timeout", chaosRequest.String(), "-metadata-age", "5s")
	c := &chaos{
		nodes: &nodes{stage: s, cluster: cluster}, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), faults: chaosFaults(),
		report: chaosReport{Seed: seed, Kafka: cluster.Version(), Faults: make(map[string]int), LongestToStable: make(map[string]int64)},
	}
	c.commits = readCommits(t, s)
	c.producer = produceChaos(t, s)
	c.slots = chaosSlots()
	for _, slot := range c.slots {
		c.join(t, slot)
	}
	return c
}

// impatient are options of clients that must not be what takes long when a node dies or freezes.
func impatient() []kgo.Opt {
	return []kgo.Opt{
		kgo.MetadataMinAge(200 * time.Millisecond), kgo.RequestTimeoutOverhead(2 * time.Second),
		kgo.ProduceRequestTimeout(2 * time.Second), kgo.DialTimeout(2 * time.Second),
	}
}

// strike lets one fault happen, waits for what heals it, and demands that all is well again.
func (c *chaos) strike(t *testing.T, f *fault) {
	t.Helper()
	c.report.Faults[f.kind]++
	began := time.Now()
	f.strike(c, t, f)
	took := time.Since(began)
	f.takes = max(f.takes, took)
	t.Logf("%s is over after %v", f.kind, took.Round(time.Millisecond))
}

// stable waits until every partition is owned exactly once by a group of all members, or of all but those left out, each of
// them works, and the commit of each partition is beyond all that was acknowledged to the producers up to now. The limit
// counts from when the brokers take records of every partition again, which is up to them.
func (c *chaos) stable(t *testing.T, kind string, without ...*slot) {
	t.Helper()
	began, ends := time.Now(), c.producer.ends()
	members := slices.DeleteFunc(slices.Clone(c.slots), func(s *slot) bool { return slices.Contains(without, s) })
	written := began
	for {
		missing := c.missing(t, members, began, ends)
		if missing == "" {
			break
		}
		if c.producer.blocked(ends) && time.Since(began) < nodeLimit {
			written = time.Now()
		}
		if time.Since(written) > stableLimit {
			c.tell(t)
			t.Fatalf("seed %d: %s: not stable within %v after brokers took records for the last partition (after %v): %s", c.seed, kind,
				stableLimit, written.Sub(began), missing)
		}
		pause(stableEvery)
	}
	took := time.Since(began)
	c.report.LongestToStable[kind] = max(c.report.LongestToStable[kind], took.Milliseconds())
	t.Logf("%s: stable with %d members after %v, of which every partition could be written to after %v", kind, len(members),
		took.Round(time.Millisecond), written.Sub(began).Round(time.Millisecond))
}

// missing says what is not well yet; nothing when all is.
func (c *chaos) missing(t *testing.T, members []*slot, since time.Time, ends []int64) string {
	t.Helper()
	for p, committed := range c.commits.latest() {
		if committed <= ends[p] {
			return fmt.Sprintf("partition %d is committed up to %d, not beyond %d", p, committed, ends[p])
		}
	}
	// A group may be stable with a dead member, and a new one not have come yet.
	for _, slot := range members {
		if !slot.current.worksSince(t, since) {
			return fmt.Sprintf("%s does not work yet", slot.current.name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), describeLimit)
	defer cancel()
	// A client keeps to a coordinator that has died, so it is told whom to ask.
	node, err := c.cluster.Coordinator(ctx, c.group)
	if err != nil {
		return err.Error()
	}
	view, err := describeGroup(ctx, c.admin.client.Broker(node.ID()), c.group)
	if err != nil {
		return fmt.Sprintf("the group cannot be described: %v", err)
	}
	owners := make(map[int32]int)
	for _, partitions := range view.Members {
		for _, tp := range partitions {
			owners[tp.Partition]++
		}
	}
	if view.State != "Stable" || len(view.Members) != len(members) || len(owners) != int(c.partitions) {
		return fmt.Sprintf("not a stable group of %d members with %d partitions: %+v", len(members), c.partitions, view)
	}
	for p, n := range owners {
		if n != 1 {
			return fmt.Sprintf("partition %d has %d owners: %+v", p, n, view)
		}
	}
	return ""
}

// finish lets the group handle the rest, ends its members, and checks what all of them did.
func (c *chaos) finish(t *testing.T) {
	t.Helper()
	c.stable(t, "end")
	c.producer.stop()
	ends := c.ends(t)
	if !waitFor(stableLimit, func() bool { return assert.ObjectsAreEqual(ends, c.commits.latest()) }) {
		c.tell(t)
		t.Fatalf("seed %d: committed %v, the log ends at %v", c.seed, c.commits.latest(), ends)
	}
	for _, slot := range c.slots {
		c.close(t, slot.current)
	}
	assert.Equal(t, ends, c.committed(t), "committed")
	c.commits.stop()
	l := newChaosLedger(&c.report, c.producer.keys)
	for _, life := range c.lives {
		all, lost := life.handlings(t)
		l.add(life, all, lost)
	}
	for p, end := range ends {
		l.check(int32(p), c.commits.of(int32(p)), end)
	}
	for _, wrong := range l.wrong {
		t.Errorf("seed %d: %s", c.seed, wrong)
	}
	if n := c.producer.failed; n > 0 {
		t.Logf("%d records were not acknowledged", n)
	}
	assert.Greater(t, c.report.Produced, c.report.Seconds*chaosPartitions, "too few records for a test")
}

// tell logs what members inside this process know, and the nodes. The other members' logs are shown by their stage.
func (c *chaos) tell(t *testing.T) {
	t.Helper()
	for _, slot := range c.slots {
		if consumer := slot.current.consumer; consumer != nil {
			t.Logf("%s: %+v\n\t%s", slot.current.name, consumer.Stats(), &slot.current.events)
		}
	}
	t.Logf("acknowledged ends %v, committed %v, faults so far %v", c.producer.ends(), c.commits.latest(), c.report.Faults)
	for _, node := range c.cluster.Nodes() {
		if !node.Running() || node.Frozen() {
			t.Logf("node %d is away", node.ID())
			continue
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), describeLimit)
		resp, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, c.admin.client.Broker(node.ID()))
		cancel()
		if err != nil {
			t.Logf("node %d: %v", node.ID(), err)
			continue
		}
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				t.Logf("node %d: %s-%d is led by %d (epoch %d), in sync %v", node.ID(), *topic.Topic, p.Partition, p.Leader, p.LeaderEpoch, p.ISR)
			}
		}
	}
}
