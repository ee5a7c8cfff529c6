package actors

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/supervisor"
)

func TestTree_APartitionActorThatDiesGoesOnFromTheCommitAndNobodyElseNotices(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 3, 40)
		var once sync.Once
		w.c.onDecode = func(tp kafka.TopicPartition, from int64) error {
			if tp == at(1) && from >= 20 {
				once.Do(func() { panic("decoder bug") })
			}
			return nil
		}
		w.start()
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(0, 40), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 40), distinct(w.offsets(at(1))), "nothing lost")
		assert.Equal(t, upTo(0, 40), w.offsets(at(2)))
		assert.Equal(t, int64(40), w.c.committedAt(at(1)))
		assert.Len(t, eventsOf[event.ActorRestarted](w), 1)
		assert.Equal(t, uint64(1), w.tree.Stats().Rebalances, "no rebalance")
		assert.NoError(t, w.tree.Healthy())
	})
}

func TestTree_ANewPartitionActorWaitsForTheOldHandler(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		release := make(chan struct{})
		var once sync.Once
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 3 {
				once.Do(func() { <-release })
			}
			return nil
		})
		w.start()
		w.sleep(time.Second)
		// The actor decodes while its handler is blocked only after it is told to; so kill it from outside.
		w.kill("partition-orders-0-1")
		w.sleep(10 * time.Second)
		assert.Equal(t, upTo(0, 3), w.offsets(at(0)), "the old handler still runs")
		assert.Len(t, w.tree.shared.gates.running(), 1)
		close(release)
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(0, 5), distinct(w.offsets(at(0))))
		assert.Equal(t, int64(5), w.c.committedAt(at(0)))
	})
}

// kill stops an actor of a role behind its supervisor's back, which is a failure of it.
func (w *treeWorld) kill(role string) {
	for _, a := range w.tree.shared.sys.alive() {
		if a.Role == role {
			w.tree.shared.sys.stop(w.tree.shared.sys.actorSystem.NewLocalPID(a.Name))
			return
		}
	}
	w.t.Errorf("no %s among %v", role, w.tree.shared.sys.alive())
}

func TestTree_ACommitterThatDiesLosesNoCommit(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 3, 20)
		w.c.panicOnce("OffsetCommit")
		w.start()
		w.sleep(5 * time.Second)
		for p := range int32(3) {
			assert.Equal(t, upTo(0, 20), w.offsets(at(p)))
			assert.Equal(t, int64(20), w.c.committedAt(at(p)))
		}
		assert.Equal(t, 1, w.restarted("committer"))
		assert.Equal(t, uint64(1), w.tree.Stats().Rebalances)
	})
}

func TestTree_ACommitterThatDiesDuringTheDrainStillAnswersTheFlush(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 20)
		w.setHandle(func(context.Context, *kafka.Record) error {
			time.Sleep(50 * time.Millisecond)
			return nil
		})
		w.start()
		w.sleep(500 * time.Millisecond)
		w.c.panicOnce("OffsetCommit")
		begun := time.Now()
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Less(t, time.Since(begun), 3*time.Second)
		for p := range int32(2) {
			assert.Equal(t, int64(len(w.offsets(at(p)))), w.c.committedAt(at(p)), "all that was done is committed")
		}
		assert.Equal(t, 1, w.restarted("committer"))
	})
}

func TestTree_ACommitterThatDiesWhileAskedForOffsetsIsAskedAgain(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 20)
		w.c.panicOnce("OffsetFetch")
		w.start()
		w.sleep(5 * time.Second)
		assert.Equal(t, "ASSIGNED", w.state())
		assert.Equal(t, upTo(0, 20), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 20), w.offsets(at(1)))
	})
}

func TestTree_AHeartbeatThatDiesIsAsGoodAsALostSession(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 20)
		w.start()
		w.sleep(500 * time.Millisecond)
		w.c.panicOnce("Heartbeat")
		w.sleep(5 * time.Second)
		assert.Equal(t, "ASSIGNED", w.state())
		assert.Equal(t, 1, w.restarted("heartbeat"))
		lost := eventsOf[event.PartitionsLost](w)
		assert.Len(t, lost, 1)
		w.c.produce(at(0), 5)
		w.sleep(time.Second)
		assert.Equal(t, upTo(0, 25), distinct(w.offsets(at(0))))
		assert.Equal(t, int64(25), w.c.committedAt(at(0)))
		assert.NoError(t, w.tree.Healthy())
	})
}

func TestTree_AFetcherThatDiesIsReplacedAndItsPartitionsGoOn(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(2)
		w.c.topic("orders", 4, 30)
		w.start()
		w.sleep(100 * time.Millisecond)
		w.c.panicOnce("Fetch")
		for p := range int32(4) {
			w.c.produce(at(p), 30)
		}
		w.sleep(5 * time.Second)
		for p := range int32(4) {
			assert.Equal(t, upTo(0, 60), w.offsets(at(p)), "each once, in order")
		}
		assert.Equal(t, 1, w.restarted("fetcher-1")+w.restarted("fetcher-2"))
		assert.Equal(t, uint64(1), w.tree.Stats().Rebalances)
	})
}

func TestTree_AFetcherThatDiesWhileMetadataIsRefreshedIsReplacedAllTheSame(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.settings.MetadataMaxAge = 10 * time.Millisecond
		w.start()
		w.sleep(100 * time.Millisecond)
		for range 3 {
			w.kill("fetcher-1")
			w.sleep(20 * time.Millisecond)
			w.c.produce(at(0), 10)
			w.c.produce(at(1), 10)
			w.sleep(3 * time.Second)
		}
		assert.Equal(t, upTo(0, 40), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 40), w.offsets(at(1)))
	})
}

// With metadata that is good for an hour nothing else would bring the fetcher back.
func TestTree_AFetcherBetweenTwoLivesIsNotTakenForIdle(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.settings.MetadataMaxAge = time.Hour
		w.start()
		w.sleep(6 * time.Second)
		var group string
		for _, a := range w.tree.shared.sys.alive() {
			if a.Role == "group" {
				group = a.Name
			}
		}
		w.kill("fetcher-1")
		w.sleep(10 * time.Millisecond)
		before := w.c.count("Metadata")
		w.tree.shared.sys.root.Send(w.tree.shared.sys.actorSystem.NewLocalPID(group), &brokerDoubted{})
		w.sleep(10 * time.Millisecond)
		assert.Equal(t, before+1, w.c.count("Metadata"))
		w.c.produce(at(0), 10)
		w.sleep(3 * time.Second)
		assert.Equal(t, upTo(0, 20), w.offsets(at(0)))
	})
}

// The new grant comes as fast as the network, which here takes no time, while the old actor has not let go.
func TestTree_APartitionGrantedAnewBeforeItLetGoLeavesNothingBehind(t *testing.T) {
	for range 20 {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 8, 10)
			w.start()
			w.sleep(500 * time.Millisecond)
			w.c.expel()
			w.sleep(5 * time.Second)
			partitions := 0
			for _, a := range w.tree.shared.sys.alive() {
				if strings.HasPrefix(a.Role, "partition") {
					partitions++
				}
			}
			assert.Equal(t, 8, partitions)
			begun := time.Now()
			assert.NoError(t, w.tree.Close(context.Background()))
			assert.Less(t, time.Since(begun), time.Second)
		})
	}
}

func TestTree_AGroupActorThatDiesComesBackAndOldHandlersKeepTheGate(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.settings.MetadataMaxAge = time.Second
		release := make(chan struct{})
		var once sync.Once
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 0 && r.Offset == 3 {
				once.Do(func() { <-release })
			}
			return nil
		})
		w.start()
		w.sleep(500 * time.Millisecond)
		w.c.panicOnce("Metadata")
		w.sleep(10 * time.Second)
		assert.Equal(t, 1, w.restarted("group"))
		assert.Equal(t, "ASSIGNED", w.state())
		assert.Equal(t, upTo(0, 3), w.offsets(at(0)), "the old handler still runs")
		w.c.produce(at(1), 5)
		w.sleep(time.Second)
		assert.Equal(t, upTo(0, 15), distinct(w.offsets(at(1))))
		close(release)
		w.sleep(2 * time.Second)
		assert.Equal(t, upTo(0, 10), distinct(w.offsets(at(0))))
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
		assert.NoError(t, w.tree.Healthy())
	})
}

func TestTree_AGroupActorThatDiesTooOftenEndsTheTree(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		w.settings.TreeRestart = supervisor.Policy{MaxRestarts: 2, OnSpent: supervisor.StopAll}.WithDefaults()
		w.c.hook("FindCoordinator", func(context.Context) error { panic("no way") })
		w.start()
		w.sleep(time.Minute)
		select {
		case <-w.tree.Done():
		default:
			t.Error("the tree still runs")
		}
		assert.ErrorIs(t, w.tree.Err(), ErrTreeFailed)
		assert.ErrorContains(t, w.tree.Err(), "no way")
		assert.Equal(t, 3, w.restarted("group"))
		assert.ErrorIs(t, w.tree.Close(context.Background()), ErrTreeFailed)
		assert.ErrorIs(t, w.tree.WaitJoined(context.Background()), ErrTreeFailed)
		closed := eventsOf[event.Closed](w)
		assert.Len(t, closed, 1)
		assert.ErrorIs(t, closed[0].Err, ErrTreeFailed)
	})
}

// Everything that can die dies, at any time; nothing is lost, nobody is inside twice, and in the end all is committed.
func TestTree_WhateverDiesNothingIsLost(t *testing.T) {
	for seed := range 12 {
		inTree(t, func(w *treeWorld) {
			w.c = newFakeCluster(2)
			w.c.topic("orders", 4, 0)
			w.settings.Seed = uint64(seed)
			w.settings.TreeRestart = supervisor.Policy{MaxRestarts: 1000, OnSpent: supervisor.StopAll}.WithDefaults()
			w.start()
			w.sleep(time.Second)
			roles := []string{"committer", "fetcher-1", "heartbeat", "fetcher-2", "partition", "group", "committer", "partition"}
			for i := range 16 {
				for p := range int32(4) {
					w.c.produce(at(p), 7)
				}
				w.sleep(time.Duration(1+(seed*37+i*101)%400) * time.Millisecond)
				want := roles[(seed+i)%len(roles)]
				for _, a := range w.tree.shared.sys.alive() {
					if strings.HasPrefix(a.Role, want) {
						w.tree.shared.sys.stop(w.tree.shared.sys.actorSystem.NewLocalPID(a.Name))
						break
					}
				}
			}
			w.sleep(90 * time.Second)
			assert.Equal(t, "ASSIGNED", w.state(), "seed %d", seed)
			for p := range int32(4) {
				assert.Equal(t, upTo(0, 112), distinct(w.offsets(at(p))), "seed %d", seed)
				assert.Equal(t, int64(112), w.c.committedAt(at(p)), "seed %d", seed)
			}
		})
	}
}

var errHandler = errors.New("handler says no")
