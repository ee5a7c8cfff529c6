package integration

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/api"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// owners writes down from when until when each member has each partition: from before its first delivery, until after its
// last commit, or until it heard that the partition is lost.
type owners struct {
	mu    sync.Mutex
	terms []term
}

// term is one time that a member has a partition.
type term struct {
	tp     kafka.TopicPartition
	member string
	from   time.Time
	until  time.Time // zero while it goes on
	lost   bool
}

// lettingGo is how long a member takes to let a partition go after its last commit, so that whoever does not wait for that
// is seen also in virtual time.
const lettingGo = 50 * time.Millisecond

// callbacks make a member write into the list.
func (o *owners) callbacks(member string) api.Part {
	end := func(lost bool) func(context.Context, *api.Token, []kafka.TopicPartition) error {
		return func(_ context.Context, _ *api.Token, partitions []kafka.TopicPartition) error {
			if !lost {
				time.Sleep(lettingGo)
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			for i := range o.terms {
				if t := &o.terms[i]; t.member == member && t.until.IsZero() && slices.Contains(partitions, t.tp) {
					t.until, t.lost = time.Now(), lost
				}
			}
			return nil
		}
	}
	return api.WithCallbacks(api.Callbacks{
		OnAssigned: func(_ context.Context, _ *api.Token, partitions []kafka.TopicPartition) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			for _, tp := range partitions {
				o.terms = append(o.terms, term{tp: tp, member: member, from: time.Now()})
			}
			return nil
		},
		OnRevoked: end(false), OnLost: end(true),
	})
}

// of returns the terms of a partition in the order they began.
func (o *owners) of(tp kafka.TopicPartition) []term {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []term
	for _, t := range o.terms {
		if t.tp == tp {
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, func(a, b term) int { return a.from.Compare(b.from) })
	return out
}

// disjoint demands that no partition ever has two owners.
func (o *owners) disjoint(t *testing.T, partitions ...kafka.TopicPartition) {
	t.Helper()
	for _, tp := range partitions {
		terms := o.of(tp)
		assert.NotEmpty(t, terms, "%s never had an owner", tp)
		for i := 1; i < len(terms); i++ {
			before, now := terms[i-1], terms[i]
			assert.False(t, before.until.IsZero() || before.until.After(now.from), "%s has two owners: %s from %v until %v, %s from %v",
				tp, before.member, before.from, before.until, now.member, now.from)
		}
	}
}

// within demands of every record in a ledger that the member that handled it had the partition from begin to end.
func (o *owners) within(t *testing.T, l *ledger, partitions ...kafka.TopicPartition) {
	t.Helper()
	for _, tp := range partitions {
		terms := o.of(tp)
		for _, e := range l.of(tp) {
			assert.True(t, slices.ContainsFunc(terms, func(t term) bool {
				return t.member == e.member && !e.start.Before(t.from) && (t.until.IsZero() || !e.end.After(t.until))
			}), "%s@%d was handled by %s from %v to %v, who was not its owner: %+v", tp, e.offset, e.member, e.start, e.end, terms)
		}
	}
}

// steered gives every partition to the members whose client id has the prefix, while there are any, and else to all.
type steered struct {
	rebalance.Assignor
	favored string
}

// Name implements rebalance.Assignor.
func (s steered) Name() string { return "steered-" + s.Assignor.Name() }

// Assign implements rebalance.Assignor. Member ids begin with the client id.
func (s steered) Assign(members []rebalance.AssignorMember, topics map[string]rebalance.TopicInfo) map[string][]kafka.TopicPartition {
	favored := slices.DeleteFunc(slices.Clone(members), func(m rebalance.AssignorMember) bool { return !strings.HasPrefix(m.MemberID, s.favored) })
	if len(favored) == 0 {
		favored = members
	}
	plan := s.Assignor.Assign(favored, topics)
	if s.Protocol() == rebalance.Cooperative { // what another one has goes to nobody in this round
		for id, partitions := range plan {
			plan[id] = slices.DeleteFunc(partitions, func(tp kafka.TopicPartition) bool {
				return slices.ContainsFunc(members, func(m rebalance.AssignorMember) bool { return m.MemberID != id && slices.Contains(m.Owned, tp) })
			})
		}
	}
	return plan
}
