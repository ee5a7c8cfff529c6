package rebalance

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// subscriptionChanged takes over what the member is to ask for. A topic more is a reason to rebalance, and so is one less
// that exists; one that is gone is not: the group's leader sees that, and one rebalance for it is enough.
func (m *Member) subscriptionChanged(now time.Time, in SubscriptionChanged) error {
	topics := slices.Compact(slices.Sorted(slices.Values(in.Topics)))
	if topics == nil {
		topics = []string{}
	}
	if _, err := EncodeSubscription(Subscription{Topics: topics, Rack: m.config.Rack}); err != nil {
		return fmt.Errorf("rebalance: subscription: %w", err)
	}
	before := m.config.Topics
	m.config.Topics = topics
	if m.state == StateUnjoined && m.unsubscribed {
		m.unsubscribed = false
		return m.start(now, Start{})
	}
	added, dropped := without(topics, before), without(without(before, topics), in.Gone)
	switch {
	case len(added) > 0:
		return m.rebalanceOrRemember(now, subscriptionCause("subscribed to", added))
	case len(dropped) > 0:
		return m.rebalanceOrRemember(now, subscriptionCause("no longer subscribed to", dropped))
	}
	return nil
}

// without returns what of topics is not in others.
func without(topics, others []string) []string {
	return slices.DeleteFunc(slices.Clone(topics), func(topic string) bool { return slices.Contains(others, topic) })
}

// subscriptionCause names some of the topics, so that a reason stays short in the brokers' logs.
func subscriptionCause(what string, topics []string) string {
	const most = 3
	cause := what + " " + strings.Join(topics[:min(len(topics), most)], ", ")
	if more := len(topics) - most; more > 0 {
		cause += fmt.Sprintf(" and %d more", more)
	}
	return cause
}
