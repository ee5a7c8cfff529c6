package actors

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/troupego/troupe/supervisor"
)

var errSpawnTest = errors.New("disk on fire")

// spawnParent is a parent with a supervisor, as the tree has them.
type spawnParent struct {
	*supervisor.Supervisor
	outcomes []supervisor.Outcome
}

func (p *spawnParent) Receive(ctx actor.Context) {
	outcomes, handled := p.Supervisor.Receive(ctx)
	p.outcomes = append(p.outcomes, outcomes...)
	if f, ok := ctx.Message().(spawnTurn); ok && !handled {
		f(ctx)
	}
}

// spawnSupervised starts a supervised child of the world's system and returns its parent actor with its PID.
func spawnSupervised(w *spawnWorld, policy supervisor.Policy, spawn func(ctx actor.Context) *actor.PID) (*spawnParent, *actor.PID) {
	p := &spawnParent{Supervisor: supervisor.New(1)}
	pid := w.sys.spawnRoot("supervised", func() actor.Actor { return p })
	w.do(pid, func(ctx actor.Context) {
		if _, err := p.Start(ctx, supervisor.ChildSpec{Key: "kid", Policy: policy, Spawn: spawn}); err != nil {
			w.t.Error(err)
		}
	})
	return p, pid
}

func stopSpawned(w *spawnWorld, pid *actor.PID) {
	w.sys.stop(pid)
	time.Sleep(time.Minute)
	synctest.Wait()
}

func TestSpawn_PanicIsLoggedOnceWithItsStackAndReachesTheParentTyped(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		policy := supervisor.Policy{Backoff: supervisor.Backoff{Initial: supervisor.NoDelay}}
		p, pid := spawnSupervised(w, policy, func(ctx actor.Context) *actor.PID {
			return w.safe(ctx, "kid", spawnScriptOn[string](func(actor.Context) { panic(errSpawnTest) }))
		})
		w.do(pid, func(ctx actor.Context) { ctx.Send(p.Lookup("kid"), "go") })
		require.Len(t, p.outcomes, 2)
		failed := p.outcomes[0].(supervisor.ChildFailed)
		assert.Equal(t, "go", failed.Message)
		var reason *PanicError
		require.ErrorAs(t, failed.Reason.(error), &reason)
		assert.ErrorIs(t, reason, errSpawnTest)
		assert.Equal(t, "kid panicked: disk on fire", reason.Error())
		assert.Contains(t, string(reason.Stack), "spawn_test.go")

		entries := w.logs.FilterLevelExact(zapcore.ErrorLevel).All()
		require.Len(t, entries, 1)
		fields := entries[0].ContextMap()
		assert.Equal(t, "kid", fields["role"])
		assert.Equal(t, "disk on fire", fields["panic"])
		assert.Equal(t, "string", fields["message_type"])
		assert.Contains(t, fields["stack"], "spawn_test.go")

		respawned := p.outcomes[1].(supervisor.ChildRespawned)
		assert.NotEqual(t, failed.PID.Id, respawned.PID.Id, "every incarnation has a name of its own (T13)")
		stopSpawned(w, pid)
	})
}

func TestT6_SupervisedChildThatFailsWhileItsParentStopsIsNotRespawned(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		policy := supervisor.Policy{Backoff: supervisor.Backoff{Initial: supervisor.NoDelay}}
		p, pid := spawnSupervised(w, policy, func(ctx actor.Context) *actor.PID {
			return w.safe(ctx, "kid", spawnScriptOn[string](func(actor.Context) {
				time.Sleep(time.Second)
				panic("boom")
			}))
		})
		w.do(pid, func(ctx actor.Context) { ctx.Send(p.Lookup("kid"), "go") })
		stopSpawned(w, pid)
		assert.Len(t, w.sys.alive(), 1, "only the other root is left")
		require.Len(t, p.outcomes, 1)
		assert.ErrorContains(t, p.outcomes[0].(supervisor.ChildStopped).Reason.(error), "boom")
	})
}

func TestSpawnUser_ProducerThatPanicsIsTheChildsFailure(t *testing.T) {
	for name, producer := range map[string]func() actor.Actor{
		"panic": func() actor.Actor { panic(errSpawnTest) },
		"nil":   func() actor.Actor { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			spawnBubble(t, func(w *spawnWorld) {
				policy := supervisor.Policy{MaxRestarts: supervisor.NoRestarts, OnSpent: supervisor.StopAll}
				p, pid := spawnSupervised(w, policy, func(ctx actor.Context) *actor.PID {
					return w.sys.spawnUser(ctx, "user", nil, producer)
				})
				require.Len(t, p.outcomes, 2)
				err := p.outcomes[0].(supervisor.ChildFailed).Reason.(error)
				if name == "nil" {
					assert.ErrorIs(t, err, errNilActor)
				} else {
					assert.ErrorIs(t, err, errSpawnTest)
				}
				assert.Len(t, w.sys.alive(), 2, "both roots live on")
				stopSpawned(w, pid)
			})
		})
	}
}

func TestSpawnUser_SupervisesItsOwnChildrenAsProtoactorDoes(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		var user, kid *actor.PID
		w.do(w.parent, func(ctx actor.Context) {
			user = w.sys.spawnUser(ctx, "user", nil, func() actor.Actor { return w.actor("user", nil) })
		})
		w.do(user, func(ctx actor.Context) {
			kid = w.raw(ctx, "kid", spawnScriptOn[string](func(actor.Context) { panic("boom") }))
		})
		w.lines()
		w.sys.root.Send(kid, "go")
		synctest.Wait()
		assert.Equal(t, []string{"kid string", "kid *actor.Restarting", "kid *actor.Started"}, w.lines())
	})
}

func TestSpawnChild_ChildrenOfAnActorWithoutAStrategyAreStopped(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		kid := w.spawnKid(w.safe, spawnScriptOn[string](func(actor.Context) { panic("boom") }))
		w.sys.root.Send(kid, "go")
		synctest.Wait()
		assert.Equal(t, []string{"kid string", "kid *actor.Stopping", "kid *actor.Stopped", "parent *actor.Terminated"}, w.lines())
	})
}

// brokenStrategy panics when it is to decide on a failed child.
type brokenStrategy struct{ actor.Actor }

func (brokenStrategy) HandleFailure(*actor.ActorSystem, actor.Supervisor, *actor.PID, *actor.RestartStatistics, any, any) {
	panic("undecided")
}

func TestSpawn_ChildIsStoppedWhenTheStrategyPanics(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		middle := w.spawnKid(func(ctx actor.Context, name string, script spawnScript) *actor.PID {
			return w.sys.spawnChild(ctx, name, func() actor.Actor { return brokenStrategy{w.actor(name, script)} })
		}, nil)
		w.do(middle, func(ctx actor.Context) {
			ctx.Send(w.safe(ctx, "grandkid", spawnScriptOn[string](func(actor.Context) { panic("boom") })), "go")
		})
		assert.Equal(t, []string{
			"grandkid *actor.Started", "grandkid string", "grandkid *actor.Stopping", "grandkid *actor.Stopped", "kid *actor.Terminated",
		}, w.lines())
	})
}

// witness is a root that wants to know why it failed.
type witness struct {
	actor.Actor
	w *spawnWorld
}

func (a witness) panicked(err *PanicError) { a.w.note("witness: %v", err) }

func TestSpawnRoot_FailureStopsItAndItLearnsWhy(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		pid := w.sys.spawnRoot("witness", func() actor.Actor {
			return witness{w.actor("root", spawnScriptOn[string](func(actor.Context) { panic("boom") })), w}
		})
		w.sys.root.Send(pid, "go")
		synctest.Wait()
		assert.Equal(t, []string{
			"root *actor.Started", "root string", "witness: witness panicked: boom", "root *actor.Stopping", "root *actor.Stopped",
		}, w.lines())
	})
}

func TestSpawn_GoexitIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // not spawnBubble: nothing can stop such an actor
		defer time.Sleep(2 * deadLetterThrottle)
		w := &spawnWorld{t: t}
		logger, logs := bridgeLogger()
		w.sys = newSystem(logger, nil)
		defer w.sys.shutdown()
		pid := w.sys.spawnRoot("exit", func() actor.Actor {
			return w.actor("exit", spawnScriptOn[string](func(actor.Context) { runtime.Goexit() }))
		})
		w.sys.root.Send(pid, "go")
		synctest.Wait()
		stopSpawned(w, pid)
		assert.Equal(t, 1, logs.FilterMessage("actor called runtime.Goexit and is wedged for ever").Len())
		assert.Len(t, w.sys.alive(), 1, "and Close names it")
	})
}

func TestSystem_AliveNamesStateMessageAgeAndQueue(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		kid := w.spawnKid(w.safe, spawnScriptOn[string](func(actor.Context) { time.Sleep(5 * time.Second) }))
		for range 3 {
			w.sys.root.Send(kid, "work")
		}
		time.Sleep(2 * time.Second)
		w.sys.stop(kid)
		alive := w.sys.alive()
		require.Len(t, alive, 2)
		assert.Equal(t, LiveActor{Name: w.parent.Id, Role: "parent"}, alive[0])
		assert.Equal(t, LiveActor{Name: kid.Id, Role: "kid", Message: "string", Age: 2 * time.Second, Queued: 2}, alive[1])
		assert.Equal(t, kid.Id+" (running, in string for 2s, 2 queued)", w.sys.aliveRoles()[1])
		time.Sleep(4 * time.Second)
		synctest.Wait()
		assert.Equal(t, []string{w.parent.Id + " (running, idle, 0 queued)"}, w.sys.aliveRoles())
	})
}

func TestSystem_AliveTellsWhoIsStopping(t *testing.T) {
	spawnBubble(t, func(w *spawnWorld) {
		kid := w.spawnKid(w.safe, spawnScriptOn[*actor.Stopping](func(actor.Context) { time.Sleep(time.Second) }))
		w.sys.stop(kid)
		synctest.Wait()
		assert.Equal(t, kid.Id+" (stopping, in *actor.Stopping for 0s, 0 queued)", w.sys.aliveRoles()[1])
		time.Sleep(2 * time.Second)
	})
}

func TestSystem_ShutdownIsOnceAndLeavesTheUsersSystemAlone(t *testing.T) {
	ours := newSystem(nil, nil)
	ours.shutdown()
	ours.shutdown()
	assert.True(t, ours.actorSystem.IsStopped())

	theirs := newSystem(nil, nil).actorSystem
	newSystem(nil, theirs).shutdown()
	assert.False(t, theirs.IsStopped())
}

func TestSystem_TwoConsumersOnOneActorSystemNeverShareAName(t *testing.T) {
	one := newSystem(nil, nil)
	two := newSystem(nil, one.actorSystem)
	assert.NotEqual(t, one.uniqueName("root"), two.uniqueName("root"))
}

// Every actor of the library goes through the safe wrapper.
func TestOnlySpawnMakesProps(t *testing.T) {
	var found []string
	for _, dir := range []string{"actors", "supervisor", "pkg/api", "internal", "rebalance", "commit"} {
		root := filepath.Join("..", dir)
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if selector, ok := node.(*ast.SelectorExpr); ok && strings.HasPrefix(selector.Sel.Name, "PropsFrom") {
					found = append(found, filepath.ToSlash(path))
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	assert.Equal(t, []string{"../actors/spawn.go"}, found)
}
