package actors

import (
	"slices"

	"github.com/troupego/troupe/rebalance"
)

// handlers says who handles which topics. It never changes: what is subscribed to or let go at run time makes another one,
// which the group actor alone puts in its place. A partition keeps the registration that it was granted under.
type handlers struct {
	entries   []handlerEntry
	selection *rebalance.Selection
}

// handlerEntry is one registration, which is known by its address, and the names that it still has.
type handlerEntry struct {
	registration *Registration
	topics       []string
	// pool has its workers under OrderKey and OrderNone; nil under OrderPartition. It ends with its last partition.
	pool *pool
}

// newHandlers makes the first one. The registrations were checked, so every pattern has a meaning.
func newHandlers(s *shared, registrations []Registration) *handlers {
	return (&handlers{}).with(s, registrations)
}

func handlersOf(entries []handlerEntry) *handlers {
	rules := make([]rebalance.TopicRule, len(entries))
	for i, e := range entries {
		rules[i] = rebalance.TopicRule{Names: e.topics, Allow: e.registration.Allow, Deny: e.registration.Deny}
	}
	selection, err := rebalance.NewSelection(rules)
	if err != nil {
		panic(err)
	}
	return &handlers{entries: entries, selection: selection}
}

// with returns the same and more.
func (h *handlers) with(s *shared, more []Registration) *handlers {
	entries := slices.Clone(h.entries)
	for i := range more {
		registration := more[i]
		e := handlerEntry{registration: &registration, topics: registration.Topics}
		if registration.Order != OrderPartition {
			e.pool = newPool(s, &registration)
		}
		entries = append(entries, e)
	}
	return handlersOf(entries)
}

// without returns the same without topics, by their names, and without the patterns of some registrations. A registration
// that has nothing left is forgotten.
func (h *handlers) without(topics []string, patterns []int) *handlers {
	var entries []handlerEntry
	for i, e := range h.entries {
		whole := slices.Contains(patterns, i)
		e.topics = slices.DeleteFunc(slices.Clone(e.topics), func(topic string) bool { return whole || slices.Contains(topics, topic) })
		if len(e.topics) > 0 || len(e.registration.Allow) > 0 && !whole {
			entries = append(entries, e)
		}
	}
	return handlersOf(entries)
}

// list returns the registrations as they are now.
func (h *handlers) list() []Registration {
	out := make([]Registration, len(h.entries))
	for i, e := range h.entries {
		out[i] = *e.registration
		out[i].Topics = slices.Clone(e.topics)
	}
	return out
}

// entry returns who handles a topic; its registration is nil for nobody.
func (h *handlers) entry(topic string) handlerEntry {
	if i, ok := h.selection.Rule(topic); ok {
		return h.entries[i]
	}
	return handlerEntry{}
}

// registration returns who handles a topic, nil for nobody.
func (s *shared) registration(topic string) *Registration {
	return s.handlers.Load().entry(topic).registration
}
