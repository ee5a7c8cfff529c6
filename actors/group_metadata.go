package actors

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

const (
	// goneAfter is how many answers in a row must miss a topic before it is taken as gone: a broker that just started may
	// not know it yet.
	goneAfter = 3
	// urgentMax bounds the time between two refreshes while something is missing.
	urgentMax = 2 * time.Second
	// patienceAtLeast is the shortest time that a broker is given to name the coordinator or to describe topics.
	patienceAtLeast = time.Second
	// patienceDoublings bounds how often that time is doubled; RequestTimeout bounds it as well.
	patienceDoublings = 8
	// calmAfter is how long without an urgent refresh it takes for the next one to go out at once.
	calmAfter = 5 * time.Second
)

// metadataView is what the group knows of the cluster, and the worker that asks.
type metadataView struct {
	shared *shared
	client MetadataClient
	work   *worker
	alarm  alarm

	brokers map[int32]kafka.Broker
	topics  map[string]*topicView
	// led are the topics of the whole group's subscriptions, watched by its leader.
	led     []string
	queries []metadataQuery
	busy    bool
	again   bool

	failures   int
	urgency    int
	lastUrgent time.Time
	// all asks for every topic of the cluster, since patterns choose among them. answered is the time of the last answer.
	all      bool
	answered time.Time
}

type topicView struct {
	TopicMetadata
	// missed counts the answers in a row that did not have the topic.
	missed int
}

func (t *topicView) known() bool { return len(t.Partitions) > 0 && t.missed < goneAfter }

type metadataQuery struct {
	seq    uint64
	topics []string
}

func newMetadataView(s *shared, self *actor.PID) *metadataView {
	return &metadataView{
		shared: s, client: s.network.Metadata(), work: newWorker(s.sys, self, &s.workers), all: s.handlers.Load().selection.HasPatterns(),
		brokers: make(map[int32]kafka.Broker), topics: make(map[string]*topicView),
	}
}

func (v *metadataView) stop() {
	v.alarm.stop()
	v.work.stop()
	v.client.Close()
}

// watch sets what the leader of a group watches beside the member's own topics.
func (v *metadataView) watch(leader bool, topics []string) {
	v.led = nil
	if leader {
		v.led = slices.Clone(topics)
	}
}

// patience is how long a broker is given for what every broker knows by heart. One that does not answer soon is frozen, and
// must not use up the session: after a sixth of it the connection is given up and the next broker is asked. Each failure in a
// row doubles the time, for an answer may also be late because it is large.
func (s *shared) patience(failures int) time.Duration {
	return max(s.settings.SessionTimeout/6, patienceAtLeast) << min(failures, patienceDoublings)
}

// find asks for the coordinator.
func (v *metadataView) find(seq uint64) {
	group, limit := v.shared.settings.GroupID, v.shared.patience(0)
	v.work.do(func(ctx context.Context) any {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		broker, err := v.client.FindCoordinator(ctx, group)
		return &coordinatorAnswered{seq: seq, broker: broker, err: err}
	})
}

// query asks for the partition counts that a group leader needs.
func (v *metadataView) query(seq uint64, topics, watched []string) {
	v.queries = append(v.queries, metadataQuery{seq: seq, topics: topics})
	v.refresh(watched)
}

// refresh asks for the topics watched and those of open queries; while one request is under way, once more after it.
func (v *metadataView) refresh(watched []string) {
	if v.busy {
		v.again = true
		return
	}
	topics := append([]string{}, watched...)
	for _, q := range v.queries {
		topics = append(topics, q.topics...)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	v.busy, v.again = true, false
	all, limit := v.all, v.shared.patience(v.failures) // a search for the coordinator waits behind this, as one worker asks one broker at a time
	v.work.do(func(ctx context.Context) any {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		metadata, err := askMetadata(ctx, v.client, topics, all)
		return &metadataAnswered{metadata: metadata, err: err}
	})
}

// urgent returns how long to wait before the next refresh that something missing or doubted asks for: nothing after a calm
// time, then more and more.
func (v *metadataView) urgent(now time.Time) time.Duration {
	if now.Sub(v.lastUrgent) > calmAfter {
		v.urgency = 0
	}
	v.lastUrgent = now
	delay := time.Duration(0)
	if v.urgency > 0 {
		delay = min(50*time.Millisecond<<min(v.urgency, 10), urgentMax)
	}
	v.urgency++
	return delay
}

func (v *metadataView) infos() map[string]rebalance.TopicInfo {
	out := make(map[string]rebalance.TopicInfo, len(v.topics))
	for name, t := range v.topics {
		if t.known() {
			out[name] = rebalance.TopicInfo{ID: t.ID, Partitions: int32(len(t.Partitions)), Racks: v.racks(t.Partitions)}
		}
	}
	return out
}

// absent returns the topics that the brokers say they do not have, or never showed.
func (v *metadataView) absent() map[string]error {
	var out map[string]error
	for name, t := range v.topics {
		gone := errors.Is(t.Err, kafka.UnknownTopicOrPartition) || errors.Is(t.Err, kafka.InvalidTopicException) || hidden(t.Err) && len(t.Partitions) == 0
		if t.missed == 0 || !gone {
			continue
		}
		if out == nil {
			out = make(map[string]error)
		}
		out[name] = t.Err
	}
	return out
}

// racks returns where each partition's replicas are (KIP-881), nil when the brokers have no racks.
func (v *metadataView) racks(partitions []PartitionMetadata) [][]string {
	known := false
	for _, b := range v.brokers {
		known = known || b.Rack != ""
	}
	if !known {
		return nil
	}
	out := make([][]string, len(partitions))
	for i := range partitions {
		for _, id := range partitions[i].Replicas {
			if rack := v.brokers[id].Rack; rack != "" {
				out[i] = append(out[i], rack)
			}
		}
	}
	return out
}

// leader returns a partition's leader and whether there is one that can be reached.
func (v *metadataView) leader(tp kafka.TopicPartition) (PartitionMetadata, kafka.Broker, bool) {
	t := v.topics[tp.Topic]
	if t == nil || int(tp.Partition) >= len(t.Partitions) {
		return PartitionMetadata{Leader: -1}, kafka.Broker{}, false
	}
	p := t.Partitions[tp.Partition]
	broker, ok := v.brokers[p.Leader]
	return p, broker, ok && p.Leader >= 0
}

// watched are the topics whose metadata is kept fresh: also those that are not subscribed to any more, while partitions of
// them are owned.
func (g *group) watched() []string {
	out := slices.Concat(g.subscription, g.metadata.led)
	for tp := range g.parts {
		if _, subscribed := slices.BinarySearch(g.subscription, tp.Topic); !subscribed {
			out = append(out, tp.Topic)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// refreshSoon asks for a refresh because something is missing or doubted.
func (g *group) refreshSoon() {
	v := g.metadata
	if v.busy {
		v.again = true
		return
	}
	at := time.Now().Add(v.urgent(time.Now()))
	if !v.alarm.set || at.Before(v.alarm.at) {
		v.alarm.setAt(g.shared.sys, g.self, at, true)
	}
}

func (g *group) metadataAnswered(ctx actor.Context, m *metadataAnswered) {
	v := g.metadata
	v.busy = false
	if m.err != nil {
		g.metadataFailed(ctx, m.err)
		return
	}
	v.failures = 0
	g.shared.board.clusterReached()
	g.praise(time.Now())
	g.mergeMetadata(m.metadata)
	var anew []string           // topics owned here that were made anew
	for _, p := range g.parts { // before a rebalance begins: a partition must know that its topic is another one now
		before := p.route.topicID
		g.route(ctx, p)
		if !before.IsZero() && !p.route.topicID.IsZero() && before != p.route.topicID {
			anew = append(anew, p.tp.Topic)
		}
	}
	slices.Sort(anew)
	for _, topic := range slices.Compact(anew) {
		// The group's leader may be a client that does not look at ids, and a cooperative one would let us keep what is gone.
		g.feed(ctx, rebalance.TopicRecreated{Topic: topic})
	}
	g.resubscribe(ctx)
	v.answered = time.Now()
	infos := v.infos()
	queries := v.queries
	v.queries = nil
	for _, q := range queries {
		g.feed(ctx, rebalance.TopicsKnown{Seq: q.seq, Partitions: infos})
	}
	g.feed(ctx, rebalance.TopicsChanged{Partitions: infos, Absent: v.absent()})
	if g.member.State() == rebalance.StateAssigned { // during a rebalance nothing is owned, and much comes back
		g.stopIdleFetchers(ctx)
	}
	g.requestStarts(ctx)
	g.nextRefresh()
}

// nextRefresh sets the time of the next look: soon while a topic or a leader is missing, else at the metadata's age.
func (g *group) nextRefresh() {
	v := g.metadata
	if v.again {
		v.refresh(g.watched())
		return
	}
	missing := g.leaderMissing() || len(g.absent) > 0
	for _, name := range g.subscription {
		t := v.topics[name]
		missing = missing || t == nil || t.Err != nil
	}
	now := time.Now()
	at := now.Add(g.shared.settings.MetadataMaxAge)
	if missing {
		at = now.Add(max(v.urgent(now), g.shared.settings.Backoff.Initial))
	}
	v.alarm.setAt(g.shared.sys, g.self, at, true)
}

// leaderMissing reports whether a partition owned has no leader that can be reached.
func (g *group) leaderMissing() bool {
	for tp := range g.parts {
		if _, _, ok := g.metadata.leader(tp); !ok {
			return true
		}
	}
	return false
}

func (g *group) metadataFailed(ctx actor.Context, err error) {
	v := g.metadata
	if errors.Is(err, context.Canceled) {
		return
	}
	v.failures++
	backoff := g.shared.settings.Backoff
	delay := min(backoff.Initial<<min(v.failures-1, 16), backoff.Max)
	g.shared.board.troubled(err)
	g.shared.trouble("metadata", err, delay)
	queries := v.queries
	v.queries = nil
	for _, q := range queries {
		g.feed(ctx, rebalance.TopicsKnown{Seq: q.seq, Err: err})
	}
	v.again = false
	v.alarm.setAt(g.shared.sys, g.self, time.Now().Add(delay), true)
}

// mergeMetadata takes an answer over and tells of subscribed topics that went, came or grew.
func (g *group) mergeMetadata(m *ClusterMetadata) {
	v := g.metadata
	v.brokers = m.Brokers
	defer g.publishMissing()
	for name, fresh := range m.Topics {
		if !g.concerns(name, &fresh) { // patterns choose among all of the cluster's
			continue
		}
		old := v.topics[name]
		if old == nil {
			old = &topicView{}
			v.topics[name] = old
		}
		_, subscribed := slices.BinarySearch(g.subscription, name)
		before, firstMiss := int32(len(old.Partitions)), old.missed == 0
		if fresh.Err != nil || len(fresh.Partitions) == 0 {
			old.Err = fresh.Err
			if !hidden(fresh.Err) || old.missed < goneAfter-1 {
				old.missed++
			}
			if subscribed && firstMiss {
				g.shared.logger.Warn("topic is missing", zap.String("topic", name), zap.Error(fresh.Err))
				g.shared.observe(event.TopicMissing{Member: g.shared.member(), Topic: name, Err: fresh.Err})
			}
			continue
		}
		// A topic made anew starts its leader epochs anew, too; within one incarnation an older view never replaces a newer.
		if old.ID == fresh.ID {
			keepNewerLeaders(old.Partitions, fresh.Partitions)
		}
		count := int32(len(fresh.Partitions))
		if subscribed && (!firstMiss || (before != 0 && before != count)) {
			g.shared.observe(event.TopicChanged{Member: g.shared.member(), Topic: name, OldCount: before, NewCount: count})
		}
		*old = topicView{TopicMetadata: fresh}
	}
}

// hidden reports whether a topic is not shown for lack of a right. That does not make it gone: its partitions stay where
// they are, so that taking the right away for a while moves nothing.
func hidden(err error) bool { return errors.Is(err, kafka.TopicAuthorizationFailed) }

// publishMissing tells Stats which subscribed topics are not there.
func (g *group) publishMissing() {
	var missing []string
	for _, name := range g.subscription {
		if t := g.metadata.topics[name]; t != nil && t.missed > 0 {
			missing = append(missing, name)
		}
	}
	g.shared.board.missing(missing)
}

func keepNewerLeaders(old, fresh []PartitionMetadata) {
	for i := range min(len(old), len(fresh)) {
		if old[i].LeaderEpoch > fresh[i].LeaderEpoch && fresh[i].LeaderEpoch >= 0 {
			fresh[i] = old[i]
		}
	}
}
