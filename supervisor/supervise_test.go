package supervisor

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"
)

func TestSupervisor_FailedChildIsRespawnedAfterTheBackoffAndSiblingsNeverNotice(t *testing.T) {
	bubble(t, func(w *tree) {
		w.startKid("a", exact())
		w.startKid("b", exact())
		w.send("a", boom{})
		w.sleep(5 * time.Second)
		w.send("a", boom{})
		w.sleep(5 * time.Second)
		assert.Equal(t, []string{
			"0s a/1 stopped",
			"0s a failed (boom on supervisor.boom): Restart after 1s",
			"1s a respawned (1)",
			"5s a/2 stopped",
			"5s a failed (boom on supervisor.boom): Restart after 2s",
			"7s a respawned (2)",
		}, w.lines())
	})
}

func TestSupervisor_UnexpectedStopCountsAsFailure(t *testing.T) {
	bubble(t, func(w *tree) {
		w.startKid("a", exact())
		w.send("a", goodbye{})
		w.sleep(2 * time.Second)
		assert.Equal(t, []string{
			"0s a/1 stopped",
			"0s a failed (supervisor: child stopped unexpectedly on <nil>): Restart after 1s",
			"1s a respawned (1)",
		}, w.lines())
	})
}

func TestSupervisor_StopAndPanicInOneTurnIsOneFailure(t *testing.T) {
	bubble(t, func(w *tree) {
		w.startKid("a", exact())
		w.send("a", byeBoom{})
		w.sleep(2 * time.Second)
		assert.Equal(t, []string{
			"0s a/1 stopped",
			"0s a failed (bye on supervisor.byeBoom): Restart after 1s",
			"1s a respawned (1)",
		}, w.lines())
	})
}

func TestSupervisor_PlannedStopIsReportedAndNotRespawned(t *testing.T) {
	bubble(t, func(w *tree) {
		w.startKid("a", exact())
		w.do(func(ctx actor.Context, p *parent) {
			assert.True(t, p.Stop(ctx, "a"), "ChildStopped will follow")
			assert.True(t, p.Stop(ctx, "a"), "also when told twice")
			assert.Nil(t, p.Lookup("a"), "a child about to stop takes no messages")
			_, err := p.Start(ctx, w.spec("a", exact()))
			assert.ErrorIs(t, err, ErrDuplicateKey)
		})
		w.sleep(time.Minute)
		w.do(func(ctx actor.Context, p *parent) {
			assert.Empty(t, p.Keys())
			assert.False(t, p.Stop(ctx, "a"), "nothing to wait for")
		})
		assert.Equal(t, []string{"0s a/1 stopped", "0s a was stopped (<nil>)"}, w.lines())
	})
}

func TestSupervisor_FailureBeforeThePlannedStopIsNotSilent(t *testing.T) {
	bubble(t, func(w *tree) {
		w.startKid("a", exact())
		w.send("a", slowStop{})
		w.send("a", boom{})
		w.sleep(time.Second / 2) // it is still in Stopped
		w.do(func(ctx actor.Context, p *parent) { assert.True(t, p.Stop(ctx, "a")) })
		w.sleep(time.Minute)
		assert.Equal(t, []string{"1s a/1 stopped", "1s a was stopped (boom)"}, w.lines())
	})
}

func TestSupervisor_StopBetweenTwoIncarnationsForgetsTheChild(t *testing.T) {
	bubble(t, func(w *tree) {
		w.startKid("a", exact())
		w.send("a", boom{})
		w.do(func(ctx actor.Context, p *parent) {
			assert.Equal(t, []string{"a"}, p.Keys())
			assert.Nil(t, p.Lookup("a"))
			assert.False(t, p.Stop(ctx, "a"))
			assert.Empty(t, p.Keys())
			_, err := p.Start(ctx, w.spec("a", exact()))
			assert.NoError(t, err, "the key is free")
		})
		w.sleep(time.Minute)
		assert.Equal(t, []string{
			"0s a/1 stopped", "0s a failed (boom on supervisor.boom): Restart after 1s",
		}, w.lines())
	})
}

func TestSupervisor_SpentBudgetPausesAndProbesUntilTheFirstSuccess(t *testing.T) {
	bubble(t, func(w *tree) {
		policy := exact()
		policy.MaxRestarts = NoRestarts
		w.startKid("a", policy)
		w.send("a", boom{})
		w.sleep(4 * time.Second)
		w.send("a", boom{})
		w.sleep(8 * time.Second)
		w.do(func(_ actor.Context, p *parent) {
			assert.True(t, p.Succeed("a", time.Now()))
			assert.False(t, p.Succeed("a", time.Now()), "ended once")
			assert.False(t, p.Succeed("nobody", time.Now()))
		})
		w.send("a", boom{})
		assert.Equal(t, []string{
			"0s a/1 stopped",
			"0s a failed (boom on supervisor.boom): Probe after 4s",
			"0s a budget spent (boom): Probe",
			"4s a respawned (1)",
			"4s a/2 stopped",
			"4s a failed (boom on supervisor.boom): Probe after 8s",
			"12s a respawned (2)",
			"12s a/3 stopped",
			"12s a failed (boom on supervisor.boom): Probe after 4s",
			"12s a budget spent (boom): Probe",
		}, w.lines())
	})
}

func TestSupervisor_SpentBudgetWithStopAllForgetsTheChild(t *testing.T) {
	bubble(t, func(w *tree) {
		w.startKid("a", Policy{MaxRestarts: NoRestarts, OnSpent: StopAll})
		w.send("a", boom{})
		w.sleep(time.Hour)
		w.do(func(_ actor.Context, p *parent) { assert.Empty(t, p.Keys()) })
		assert.Equal(t, []string{
			"0s a/1 stopped",
			"0s a failed (boom on supervisor.boom): Stop after 0s",
			"0s a budget spent (boom): Stop",
		}, w.lines())
	})
}

func TestSupervisor_UnknownChildrenAreStoppedAndLeftToTheParent(t *testing.T) {
	bubble(t, func(w *tree) {
		w.do(func(ctx actor.Context, p *parent) {
			stranger := w.spec("stranger", Policy{}).Spawn(ctx)
			ctx.Send(stranger, boom{})
		})
		w.sleep(time.Minute)
		assert.Equal(t, []string{"0s stranger/1 stopped"}, w.lines())
	})
}

// T6: a respawn while the parent is stopping makes a child that never gets Stop, and the parent hangs.
func TestT6_NothingIsRespawnedWhileTheParentIsStopping(t *testing.T) {
	t.Run("child fails while the parent stops", func(t *testing.T) {
		bubble(t, func(w *tree) {
			noDelay := exact()
			noDelay.Backoff.Initial = NoDelay
			w.startKid("a", noDelay)
			w.startKid("b", noDelay)
			w.do(func(ctx actor.Context, p *parent) {
				ctx.Send(p.Lookup("a"), napIn{time.Second})
				ctx.Send(p.Lookup("a"), boom{}) // never handled: Stop goes first
				ctx.Send(p.Lookup("b"), byeBoom{})
				ctx.Stop(ctx.Self())
			})
			w.sleep(2 * time.Second)
			w.stopParent()
			w.mu.Lock()
			defer w.mu.Unlock()
			assert.Equal(t, map[string]int{"a": 1, "b": 1}, w.spawned)
		})
	})
	t.Run("respawn timer is running when the parent stops", func(t *testing.T) {
		bubble(t, func(w *tree) {
			w.startKid("a", exact())
			w.send("a", boom{})
			dead := 0
			w.system.EventStream.Subscribe(func(e any) {
				if _, ok := e.(*actor.DeadLetterEvent); ok {
					dead++
				}
			})
			w.stopParent() // a minute: the timer would have fired
			assert.Zero(t, dead, "the timer was stopped")
			w.mu.Lock()
			defer w.mu.Unlock()
			assert.Equal(t, 1, w.spawned["a"])
		})
	})
	t.Run("respawn message is in the mailbox when the parent begins to stop its children", func(t *testing.T) {
		bubble(t, func(w *tree) {
			w.startKid("a", exact())
			w.startKid("b", exact())
			w.send("a", boom{})
			w.do(func(ctx actor.Context, p *parent) {
				time.Sleep(2 * time.Second) // the timer fires in it
				p.Stopping()
				assert.Equal(t, []string{"b"}, p.Keys())
				_, err := p.Start(ctx, w.spec("c", exact()))
				assert.ErrorIs(t, err, ErrStopping)
				assert.True(t, p.Stop(ctx, "b"))
			})
			w.sleep(time.Minute)
			assert.Equal(t, []string{
				"0s a/1 stopped", "0s a failed (boom on supervisor.boom): Restart after 1s",
				"2s b/1 stopped", "2s b was stopped (<nil>)",
			}, w.lines())
		})
	})
}

// T8: a tick of an old incarnation, or of a timer that was stopped too late, reaches whoever has the PID now.
func TestT8_StaleRespawnsAreDropped(t *testing.T) {
	bubble(t, func(w *tree) {
		w.startKid("a", exact())
		w.send("a", boom{})
		var stale *respawn
		w.do(func(ctx actor.Context, p *parent) {
			stale = &respawn{owner: p.Supervisor, key: "a", awaited: p.children["a"].awaited}
			p.Stop(ctx, "a")
			_, err := p.Start(ctx, w.spec("a", exact()))
			assert.NoError(t, err)
		})
		w.system.Root.Send(w.parent, stale)
		w.system.Root.Send(w.parent, &respawn{owner: New(1), key: "a"})
		synctest.Wait()
		w.send("a", boom{})
		w.system.Root.Send(w.parent, stale)
		synctest.Wait()
		var used *respawn
		w.do(func(_ actor.Context, p *parent) {
			used = &respawn{owner: p.Supervisor, key: "a", awaited: p.children["a"].awaited}
		})
		w.sleep(time.Second)
		w.system.Root.Send(w.parent, used)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		assert.Equal(t, 3, w.spawned["a"])
	})
}

func TestSupervisor_TheFirstFailureIsTheCause(t *testing.T) {
	bubble(t, func(w *tree) {
		w.startKid("a", exact())
		w.do(func(ctx actor.Context, p *parent) {
			pid, self := p.Lookup("a"), ctx.(actor.Supervisor)
			p.HandleFailure(w.system, self, pid, nil, "first", actor.WrapEnvelope("m"))
			p.HandleFailure(w.system, self, pid, nil, "second", nil)
		})
		assert.Equal(t, []string{"0s a/1 stopped", "0s a failed (first on string): Restart after 1s"}, w.lines())
	})
}

// T13: the name is free before the predecessor's Stopped handler has run, so a successor could overlap with it.
func TestT13_SuccessorWaitsForThePredecessorsLastHandler(t *testing.T) {
	bubble(t, func(w *tree) {
		noDelay := exact()
		noDelay.Backoff.Initial = NoDelay
		w.startKid("a", noDelay)
		w.send("a", slowStop{})
		w.send("a", boom{}) // Stopped takes a second; kid reports an overlap
		w.do(func(_ actor.Context, p *parent) { assert.Nil(t, p.Lookup("a"), "a failed child takes no messages") })
		w.sleep(2 * time.Second)
		assert.Equal(t, []string{
			"1s a/1 stopped",
			"1s a failed (boom on supervisor.boom): Restart after 0s",
			"1s a respawned (1)",
		}, w.lines())
	})
}

// Random lives of a tree: incarnations never overlap (kid checks), every child that should live does in the end, and the
// parent can always stop (bubble checks).
func TestSupervisor_RandomLives(t *testing.T) {
	for seed := range uint64(30) {
		bubble(t, func(w *tree) {
			r := rand.New(rand.NewPCG(seed, 2))
			policy := exact()
			policy.ProbeMax = 5 * time.Second
			if r.IntN(2) == 0 {
				policy.Backoff.Initial = NoDelay
			}
			keys := []string{"a", "b", "c"}
			wanted := map[string]bool{}
			for range 80 {
				key := keys[r.IntN(len(keys))]
				switch r.IntN(8) {
				case 0, 1:
					w.do(func(ctx actor.Context, p *parent) {
						if !slices.Contains(p.Keys(), key) {
							_, err := p.Start(ctx, w.spec(key, policy))
							assert.NoError(t, err)
							wanted[key] = true
						}
					})
				case 2:
					w.do(func(ctx actor.Context, p *parent) {
						p.Stop(ctx, key)
						wanted[key] = false
					})
				case 3:
					w.send(key, goodbye{})
				case 4:
					w.send(key, byeBoom{})
				case 5:
					w.send(key, slowStop{})
				case 6:
					w.do(func(_ actor.Context, p *parent) { p.Succeed(key, time.Now()) })
				default:
					w.send(key, boom{})
				}
				w.sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
			}
			w.sleep(time.Minute)
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, key := range keys {
				want := 0
				if wanted[key] {
					want = 1
				}
				assert.Equal(t, want, w.alive[key], "seed %d, key %s, journal %q", seed, key, w.journal)
			}
		})
	}
}

func TestSupervisor_RenewSpawnsTheSuccessorNowWithAFullBudget(t *testing.T) {
	bubble(t, func(w *tree) {
		policy := exact()
		policy.MaxRestarts = NoRestarts
		w.startKid("a", policy)
		w.send("a", boom{})
		w.sleep(time.Second)
		w.do(func(ctx actor.Context, p *parent) {
			p.Renew(ctx, "a")
			p.Renew(ctx, "nobody")
		})
		w.sleep(time.Minute)
		w.do(func(ctx actor.Context, p *parent) { p.Renew(ctx, "a") }) // nothing waits
		w.send("a", boom{})
		assert.Equal(t, []string{
			"0s a/1 stopped",
			"0s a failed (boom on supervisor.boom): Probe after 4s",
			"0s a budget spent (boom): Probe",
			"1s a respawned (1)",
			"1m1s a/2 stopped",
			"1m1s a failed (boom on supervisor.boom): Probe after 4s",
			"1m1s a budget spent (boom): Probe",
		}, w.lines())
	})
}
