package actors

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/rebalance"
)

// SubscriptionChange is what is to become of the registrations of a running consumer. It is checked already.
type SubscriptionChange struct {
	// Added come after those there are.
	Added []Registration
	// Topics are names to let go. A registration that has no name left, and no expressions, is forgotten.
	Topics []string
	// Patterns are the registrations to forget as a whole, by their index among those there are.
	Patterns []int
}

func (c *SubscriptionChange) empty() bool {
	return len(c.Added) == 0 && len(c.Topics) == 0 && len(c.Patterns) == 0
}

// errSubscriptionMoved means that the registrations are not those any more that a change was made from.
var errSubscriptionMoved = errors.New("troupe: the subscription was changed meanwhile")

// subscribeOperation puts next in the place of from.
type subscribeOperation struct {
	from, next *handlers
	shared     *shared
}

// ChangeSubscription has decide say what is to become of the registrations, and returns when the member has taken it over, or
// with decide's error. It decides anew when somebody else was faster. See api.Consumer.Subscribe.
func (t *Tree) ChangeSubscription(ctx context.Context, decide func(current []Registration) (SubscriptionChange, error)) error {
	if t.shared.standalone != nil {
		return ErrNoGroup
	}
	for {
		from := t.shared.handlers.Load()
		change, err := decide(from.list())
		if err != nil {
			return err
		}
		next := from
		if !change.empty() {
			next = from.without(change.Topics, change.Patterns).with(t.shared, change.Added)
		}
		err = t.do(ctx, nil, &subscribeOperation{from: from, next: next, shared: t.shared})
		if !errors.Is(err, errSubscriptionMoved) {
			return err
		}
	}
}

func (o *subscribeOperation) word() string { return "change the subscription" }

// interrupted: what was taken over is the next group's as well; what was not is decided anew.
func (o *subscribeOperation) interrupted() error {
	if o.shared.handlers.Load() == o.next {
		return nil
	}
	return errSubscriptionMoved
}

func (o *subscribeOperation) run(ctx actor.Context, g *group, m *request) {
	switch {
	case g.ended():
		m.reply(ErrClosing)
		return
	case g.shared.handlers.Load() != o.from:
		m.reply(errSubscriptionMoved)
		return
	case o.next != o.from:
		g.takeOver(ctx, o.next)
	}
	m.reply(nil)
}

// takeOver puts other handlers in the place of those there were. The partitions whose handler is another one now, or none, are
// let go by a rebalance; all others are handled on.
func (g *group) takeOver(ctx actor.Context, next *handlers) {
	old := g.shared.handlers.Swap(next)
	v := g.metadata
	v.all = next.selection.HasPatterns()
	before := g.subscription
	listed, _ := g.listed()
	g.subscription = next.selection.Topics(listed)
	letGo := make(map[string]bool)
	for _, topic := range before {
		letGo[topic] = old.entry(topic).registration != next.entry(topic).registration
	}
	for tp, p := range g.parts {
		letGo[tp.Topic] = letGo[tp.Topic] || p.registration != next.entry(tp.Topic).registration
	}
	maps.DeleteFunc(letGo, func(_ string, gone bool) bool { return !gone })
	if !slices.Equal(before, g.subscription) {
		g.tellSubscription(before)
	}
	if g.unasked = g.unasked && v.all; !g.unasked { // else it asks for everything at once when the topics are known
		g.feed(ctx, rebalance.SubscriptionChanged{Topics: slices.Clone(g.subscription), LetGo: slices.Sorted(maps.Keys(letGo))})
	}
	g.forgetTopics(without(before, g.subscription))
	g.publishMissing()
	v.refresh(g.watched())
}
