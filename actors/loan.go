package actors

import (
	"fmt"
	"maps"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
)

// Who can hold the consumer's key.
const (
	groupHolder     capability.Holder = "group"
	committerHolder capability.Holder = "committer"
)

// loan is the group's side of the consumer's key: it mints it over the partitions owned and lends it to the committer. When
// the set changes it recalls the key, changes it at home, and lends it again. Lost partitions are cut off at once, without
// asking the holder.
type loan struct {
	mint  *capability.Mint
	key   *capability.Key
	phase loanPhase
	// want is what the key should cover, have what it covers.
	want, have map[kafka.TopicPartition]struct{}
}

type loanPhase uint8

const (
	// loanHome: the group holds the key, or there is none.
	loanHome loanPhase = iota
	// loanLent: the committer holds it.
	loanLent
	// loanRecalled: the committer holds it and was asked for it.
	loanRecalled
)

func newLoan() *loan {
	return &loan{
		mint: capability.NewMint(),
		want: make(map[kafka.TopicPartition]struct{}), have: make(map[kafka.TopicPartition]struct{}),
	}
}

// broken kills the key because its holder died; the next settling mints another.
func (l *loan) broken() {
	if l.key != nil {
		l.mint.Revoke(l.key)
	}
	l.key, l.phase = nil, loanHome
	clear(l.have)
}

// adjust makes the key at home cover what it should.
func (l *loan) adjust() error {
	var gone, fresh []kafka.TopicPartition
	for tp := range l.have {
		if _, ok := l.want[tp]; !ok {
			gone = append(gone, tp)
		}
	}
	for tp := range l.want {
		if _, ok := l.have[tp]; !ok {
			fresh = append(fresh, tp)
		}
	}
	if len(gone) > 0 {
		if len(gone) == len(l.have) {
			l.mint.Revoke(l.key)
			l.key = nil
		} else {
			part, err := l.mint.Split(l.key, groupHolder, gone)
			if err != nil {
				return fmt.Errorf("split the key: %w", err)
			}
			l.mint.Revoke(part)
		}
	}
	if len(fresh) > 0 {
		key, err := l.mint.Grant(groupHolder, fresh...)
		if err != nil {
			return fmt.Errorf("mint a key: %w", err)
		}
		if l.key == nil {
			l.key = key
		} else if err := l.mint.Merge(l.key, key); err != nil {
			return fmt.Errorf("merge keys: %w", err)
		}
	}
	l.have = maps.Clone(l.want)
	return nil
}

// settleLoan brings the committer the key it should have.
func (g *group) settleLoan(ctx actor.Context) {
	l := g.loan
	committer := g.Lookup(committerKey)
	if committer == nil {
		return
	}
	changed := !maps.Equal(l.want, l.have)
	switch {
	case l.phase == loanLent && changed:
		l.phase = loanRecalled
		ctx.Send(committer, &keyRecalled{})
	case l.phase == loanHome:
		if changed {
			if err := l.adjust(); err != nil {
				panic(err)
			}
		}
		if l.key == nil {
			return
		}
		if err := l.key.Hand(groupHolder, committerHolder); err != nil {
			panic(err)
		}
		l.phase = loanLent
		ctx.Send(committer, &keyLent{key: l.key})
	}
}

func (g *group) keyReturned(ctx actor.Context, m *keyReturned) {
	if m.key != g.loan.key || g.loan.phase != loanRecalled {
		g.shared.staleMessage()
		return
	}
	g.loan.phase = loanHome
	g.settleLoan(ctx)
}

// cutOff kills the key over partitions that were lost, and mints one over the rest.
func (g *group) cutOff(ctx actor.Context, lost []kafka.TopicPartition) {
	for _, tp := range lost {
		delete(g.loan.want, tp)
	}
	g.loan.broken()
	g.settleLoan(ctx)
}

// newCommitRound releases a round for sending. It needs a valid key, held by the committer, over all the partitions.
func newCommitRound(key *capability.Key, round commit.Round) (*CommitRound, error) {
	r := &CommitRound{round: round, key: key}
	if err := r.authorized(); err != nil {
		return nil, err
	}
	return r, nil
}

// authorized checks the key again: a round may wait behind another request of the connection until its time is over.
func (r *CommitRound) authorized() error {
	partitions := make([]kafka.TopicPartition, len(r.round.Offsets))
	for i := range r.round.Offsets {
		partitions[i] = r.round.Offsets[i].TopicPartition
	}
	if r.key == nil {
		return fmt.Errorf("commit %v: %w", partitions, capability.ErrNotHolder)
	}
	return r.key.Check(committerHolder, "commit", partitions...)
}
