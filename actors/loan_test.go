package actors

import (
	"errors"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
	"go.uber.org/zap"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/internal/capability"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

func roundOf(partitions ...int32) commit.Round {
	r := commit.Round{ID: 1, GroupID: "billing"}
	for _, p := range partitions {
		r.Offsets = append(r.Offsets, commit.Offset{TopicPartition: at(p), Epoch: 1, Offset: 5})
	}
	return r
}

func TestCommitRound_IsOnlyMadeWithAValidKeyHeldByTheCommitterOverAllItsPartitions(t *testing.T) {
	mint := capability.NewMint()
	grant := func(holder capability.Holder, partitions ...kafka.TopicPartition) *capability.Key {
		key, err := mint.Grant(holder, partitions...)
		assert.NoError(t, err)
		return key
	}
	key := grant(committerHolder, at(0), at(1))
	round, err := newCommitRound(key, roundOf(0, 1))
	assert.NoError(t, err)
	assert.Equal(t, roundOf(0, 1), round.Round())

	home := grant(groupHolder, at(2))
	busy := grant(committerHolder, at(3))
	_, err = busy.Acquire(committerHolder, "seek")
	assert.NoError(t, err)
	dead := grant(committerHolder, at(4))
	mint.Revoke(dead)
	for name, c := range map[string]struct {
		key   *capability.Key
		round commit.Round
		want  error
	}{
		"no key":               {nil, roundOf(0), capability.ErrNotHolder},
		"a key made by hand":   {&capability.Key{}, roundOf(0), capability.ErrRevoked},
		"another's key":        {home, roundOf(2), capability.ErrNotHolder},
		"a partition too many": {key, roundOf(0, 1, 2), capability.ErrNotCovered},
		"a key in use":         {busy, roundOf(3), capability.ErrHeld},
		"a dead key":           {dead, roundOf(4), capability.ErrRevoked},
		"no partition, no key": {nil, roundOf(), capability.ErrNotHolder},
	} {
		round, err := newCommitRound(c.key, c.round)
		assert.ErrorIs(t, err, c.want, name)
		assert.Nil(t, round, name)
	}
	mint.Revoke(key)
	_, err = newCommitRound(key, roundOf(0))
	var misuse *capability.MisuseError
	assert.True(t, errors.As(err, &misuse), "revoked while lent")
}

func TestLoan_TheKeyFollowsWhatIsOwned(t *testing.T) {
	l := newLoan()
	want := func(partitions ...int32) {
		clear(l.want)
		for _, p := range partitions {
			l.want[at(p)] = struct{}{}
		}
		assert.NoError(t, l.adjust())
		assert.NoError(t, l.mint.Valid())
		if len(partitions) == 0 {
			assert.Nil(t, l.key)
			assert.Zero(t, l.mint.Live())
			return
		}
		var covered []int32
		for _, tp := range l.key.Partitions() {
			covered = append(covered, tp.Partition)
		}
		assert.Equal(t, partitions, covered)
		assert.Equal(t, 1, l.mint.Live(), "one key over all")
	}
	want(0, 1, 2)
	first := l.key
	want(0, 2, 3)
	assert.Same(t, first, l.key, "what stays keeps its key")
	want(5)
	assert.False(t, first.Valid() && first.Holder() == committerHolder)
	want()
	want(0)
	old := l.key
	l.broken()
	assert.False(t, old.Valid())
	want(0, 1)
	assert.NotSame(t, old, l.key)
	_, err := newCommitRound(old, roundOf(0))
	assert.ErrorIs(t, err, capability.ErrRevoked, "a dead key stays dead")
}

// probedRoot is a root whose group actor is looked at after each of its messages.
type probedRoot struct {
	*root
	look func(*group)
}

func (r *probedRoot) Receive(ctx actor.Context) {
	if _, started := ctx.Message().(*actor.Started); !started {
		r.root.Receive(ctx)
		return
	}
	_, err := r.Start(ctx, supervisor.ChildSpec{Key: groupKey, Role: "group", Policy: r.shared.settings.TreeRestart,
		Spawn: func(ctx actor.Context) *actor.PID {
			return r.shared.sys.spawnChild(ctx, "group", func() actor.Actor { return &probedGroup{newGroup(r.shared), r.look} })
		}})
	if err != nil {
		panic(err)
	}
}

type probedGroup struct {
	*group
	look func(*group)
}

func (g *probedGroup) Receive(ctx actor.Context) {
	g.group.Receive(ctx)
	if _, stopped := ctx.Message().(*actor.Stopped); !stopped {
		g.look(g.group)
	}
}

// startProbed is start with a look at the group after each of its messages.
func (w *treeWorld) startProbed(look func(*group)) {
	sys := newSystem(nil, nil)
	s := &shared{
		settings: w.settings, network: w.c, logger: zap.NewNop(), observe: w.observe, sys: sys, gates: newGates(sys),
		slots: newSlots(sys, w.settings.Concurrency), memory: newMemory(sys, w.settings.MemoryBudget), board: newBoard(w.settings.GroupID),
		session: newSession(sys, w.settings.SessionTimeout),
	}
	s.handlers.Store(newHandlers(s, w.settings.Registrations))
	w.tree = &Tree{shared: s, closed: make(chan struct{}), done: make(chan struct{})}
	w.tree.mu.Lock()
	defer w.tree.mu.Unlock()
	w.tree.rootPID = sys.spawnRoot("root", func() actor.Actor { return &probedRoot{newRoot(s, w.tree.ended), look} })
}

func TestTree_AtEveryMomentEachPartitionIsUnderOneKeyWithOneHolder(t *testing.T) {
	for seed := range 4 {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 4, 0)
			w.settings.Seed = uint64(seed)
			w.settings.TreeRestart.MaxRestarts = 100
			looks, lent := 0, 0
			w.startProbed(func(g *group) {
				looks++
				if err := g.loan.mint.Valid(); err != nil {
					t.Error(err)
				}
				if g.loan.mint.Live() > 1 {
					t.Errorf("%d keys: %v", g.loan.mint.Live(), g.loan.mint.Ledger())
				}
				for _, entry := range g.loan.mint.Ledger() {
					if len(entry.Stack) != 1 {
						t.Errorf("stack %v", entry.Stack)
					}
					if entry.Stack[0].Holder == committerHolder {
						lent++
					}
				}
				for tp, p := range g.parts {
					if _, wanted := g.loan.want[tp]; !wanted && p.phase != partLeaving {
						t.Errorf("%s is owned and under no key", tp)
					}
				}
			})
			for i := range 24 {
				for p := range int32(4) {
					w.c.produce(at(p), 5)
				}
				w.sleep(time.Duration(100+(seed*77+i*331)%900) * time.Millisecond)
				switch (seed + i) % 6 {
				case 0:
					w.c.expel()
				case 2, 3:
					w.c.rival(i%4 == 0)
				case 4:
					w.kill("committer")
				}
			}
			w.c.rival(false)
			w.sleep(30 * time.Second)
			for p := range int32(4) {
				assert.Equal(t, int64(120), w.c.committedAt(at(p)))
			}
			assert.Greater(t, lent, looks/4)
		})
	}
}
