package actors

import (
	"context"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/rebalance"
)

// firstTopics returns what the member asks for at first: nothing is known while patterns wait for the first metadata.
func (g *group) firstTopics() []string {
	selection := g.shared.handlers.Load().selection
	g.subscription = selection.Topics(nil)
	if g.unasked = selection.HasPatterns(); g.unasked {
		return nil
	}
	return g.subscription
}

// askMetadata asks for the topics named, or for all that there are and then, by name, for those of topics that are not among
// them: only so a topic that may not be seen differs from one that is gone.
func askMetadata(ctx context.Context, client MetadataClient, topics []string, all bool) (*ClusterMetadata, error) {
	if !all {
		return client.Metadata(ctx, topics)
	}
	metadata, err := client.Metadata(ctx, nil)
	if err != nil {
		return nil, err
	}
	missing := slices.DeleteFunc(slices.Clone(topics), func(name string) bool { _, listed := metadata.Topics[name]; return listed })
	if len(missing) == 0 {
		return metadata, nil
	}
	rest, err := client.Metadata(ctx, missing)
	if err != nil {
		return nil, err
	}
	for name, topic := range rest.Topics {
		metadata.Topics[name] = topic
	}
	return metadata, nil
}

// concerns reports whether a topic of an answer about all of them is of interest. The brokers' own topics are, when they
// are named, and match no pattern.
func (g *group) concerns(name string, topic *TopicMetadata) bool {
	if _, known := g.metadata.topics[name]; known {
		return true
	}
	if _, subscribed := slices.BinarySearch(g.subscription, name); subscribed || slices.Contains(g.metadata.led, name) {
		return true
	}
	if slices.ContainsFunc(g.metadata.queries, func(q metadataQuery) bool { return slices.Contains(q.topics, name) }) {
		return true
	}
	return !topic.Internal && g.shared.registration(name) != nil
}

// resubscribe lets the patterns choose among the topics there are. A topic stays chosen until it is taken as gone.
func (g *group) resubscribe(ctx actor.Context) {
	if !g.metadata.all {
		return
	}
	listed, gone := g.listed()
	before := g.subscription
	g.subscription = g.shared.handlers.Load().selection.Topics(listed)
	g.forgetTopics(slices.DeleteFunc(slices.Clone(gone), func(name string) bool { return g.metadata.topics[name].known() }))
	if first := g.metadata.answered.IsZero(); !first && slices.Equal(g.subscription, before) {
		return
	}
	g.tellSubscription(before)
	g.unasked = false
	g.feed(ctx, rebalance.SubscriptionChanged{Topics: slices.Clone(g.subscription), Gone: gone})
}

// listed returns the topics that patterns choose among, and those that are gone.
func (g *group) listed() (listed, gone []string) {
	for name, topic := range g.metadata.topics {
		switch {
		case topic.Internal:
		case topic.missed < goneAfter && (topic.missed == 0 || slices.Contains(g.subscription, name)):
			listed = append(listed, name)
		default:
			gone = append(gone, name)
		}
	}
	return listed, gone
}

// tellSubscription tells everybody but the member what is subscribed to now.
func (g *group) tellSubscription(before []string) {
	changed := event.SubscriptionChanged{
		Member: g.shared.member(), Topics: slices.Clone(g.subscription),
		Added: without(g.subscription, before), Removed: without(before, g.subscription),
	}
	g.shared.board.subscribed(changed.Topics)
	g.shared.observe(changed)
	g.shared.logger.Info("subscription changed", zap.Int("topics", len(changed.Topics)),
		zap.Strings("added", changed.Added), zap.Strings("removed", changed.Removed))
}

// forgetTopics drops what is known of topics that nobody asks for any more: there is no end to the names that come and go.
func (g *group) forgetTopics(names []string) {
	watched := g.watched()
	for _, name := range names {
		if _, wanted := slices.BinarySearch(watched, name); !wanted {
			delete(g.metadata.topics, name)
		}
	}
}

// freshEnough is how old metadata may be for a JoinGroup that patterns go into.
const freshEnough = time.Second

// freshen looks for topics when a rebalance begins: what another member found and joined again for is found here as well
// before the rebalance is over, and all ask for it in the next one, not each in one of its own.
func (g *group) freshen(to rebalance.State) {
	if v := g.metadata; v.all && to == rebalance.StateJoining && time.Since(v.answered) > freshEnough {
		v.refresh(g.watched())
	}
}

// without returns what of topics is not in others; both are in order.
func without(topics, others []string) []string {
	return slices.DeleteFunc(slices.Clone(topics), func(name string) bool { _, found := slices.BinarySearch(others, name); return found })
}
