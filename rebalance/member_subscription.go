package rebalance

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// subscriptionChanged takes over what the member is to ask for. A topic more is a reason to rebalance, and so is one less
// that exists; one that is gone is not: the group's leader sees that, and one rebalance for it is enough. What is let go is
// revoked now, or when the rebalance under way has come to its end. (Java: ConsumerCoordinator.onJoinPrepare.)
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
	m.letGo = slices.Compact(slices.Sorted(slices.Values(slices.Concat(m.letGo, in.LetGo))))
	held := m.held.unwant(in.LetGo)
	added, dropped := without(topics, before), without(without(before, topics), in.Gone)
	switch {
	case len(added) > 0:
		return m.rebalanceOrRemember(now, subscriptionCause("subscribed to", added))
	case len(dropped) > 0:
		return m.rebalanceOrRemember(now, subscriptionCause("no longer subscribed to", dropped))
	case held, m.placeAsked() && len(in.LetGo) > 0:
		return m.rebalanceOrRemember(now, subscriptionCause("subscribed anew to", in.LetGo))
	}
	return nil
}

// placeAsked reports whether a JoinGroup or SyncGroup is under way, whose answer may give what is let go.
func (m *Member) placeAsked() bool { return m.state == StateJoining || m.state == StateSyncing }

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
