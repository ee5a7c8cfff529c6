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

// selection returns who wants which topics. The settings were checked, so every pattern has a meaning.
func (s *Settings) selection() *rebalance.Selection {
	rules := make([]rebalance.TopicRule, len(s.Registrations))
	for i := range s.Registrations {
		r := &s.Registrations[i]
		rules[i] = rebalance.TopicRule{Names: r.Topics, Allow: r.Allow, Deny: r.Deny}
	}
	selection, err := rebalance.NewSelection(rules)
	if err != nil {
		panic(err)
	}
	return selection
}

// registration returns who handles a topic, nil for nobody.
func (s *shared) registration(topic string) *Registration {
	if i, ok := s.selection.Rule(topic); ok {
		return &s.settings.Registrations[i]
	}
	return nil
}

// firstTopics returns what the member asks for at first: nothing is known while patterns wait for the first metadata.
func (g *group) firstTopics() []string {
	g.subscription = g.shared.selection.Topics(nil)
	if g.shared.selection.HasPatterns() {
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
	var listed, gone []string
	for name, topic := range g.metadata.topics {
		switch {
		case topic.Internal:
		case topic.missed < goneAfter && (topic.missed == 0 || slices.Contains(g.subscription, name)):
			listed = append(listed, name)
		default:
			gone = append(gone, name)
		}
	}
	before := g.subscription
	g.subscription = g.shared.selection.Topics(listed)
	g.forgetTopics(gone)
	if first := g.metadata.answered.IsZero(); !first && slices.Equal(g.subscription, before) {
		return
	}
	changed := event.SubscriptionChanged{
		Member: g.shared.member(), Topics: slices.Clone(g.subscription),
		Added: without(g.subscription, before), Removed: without(before, g.subscription),
	}
	g.shared.board.subscribed(changed.Topics)
	g.shared.observe(changed)
	g.shared.logger.Info("subscription changed", zap.Int("topics", len(changed.Topics)),
		zap.Strings("added", changed.Added), zap.Strings("removed", changed.Removed))
	g.feed(ctx, rebalance.SubscriptionChanged{Topics: changed.Topics, Gone: gone})
}

// forgetTopics drops what is known of topics that are gone and that nobody asks for any more: there is no end to the names that
// come and go.
func (g *group) forgetTopics(gone []string) {
	wanted := make(map[string]bool)
	for _, name := range g.watched() {
		wanted[name] = true
	}
	for tp := range g.parts {
		wanted[tp.Topic] = true
	}
	for _, name := range gone {
		if !wanted[name] && !g.metadata.topics[name].known() {
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
