package actors

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// ofTheGroup are the APIs that only a group has.
var ofTheGroup = []string{"FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetFetch", "OffsetCommit"}

// inStandalone is inTree for a consumer without a group that is assigned all of "orders", unless f says otherwise. Nothing of
// a group may ever be asked.
func inStandalone(t *testing.T, start rebalance.StartPosition, f func(w *treeWorld)) {
	t.Helper()
	inTree(t, func(w *treeWorld) {
		w.settings.GroupID, w.settings.Assignors, w.settings.Strategy = "", nil, commit.Manual()
		w.settings.Standalone = &rebalance.StandaloneConfig{Topics: map[string]rebalance.StartPosition{"orders": start}}
		f(w)
		for _, api := range ofTheGroup {
			assert.Zero(t, w.c.count(api), api)
		}
	})
}

func (w *treeWorld) assignOnly(starts map[kafka.TopicPartition]rebalance.StartPosition) {
	w.settings.Standalone = &rebalance.StandaloneConfig{Partitions: starts}
}

func TestStandalone_EachPartitionStartsWhereItWasAssigned(t *testing.T) {
	inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
		w.c.topic("orders", 5, 20)
		w.assignOnly(map[kafka.TopicPartition]rebalance.StartPosition{
			at(0): {}, at(1): rebalance.StartBy(rebalance.ResetLatest), at(3): rebalance.StartAtOffset(15), at(4): rebalance.StartAtOffset(500),
		})
		w.start()
		assert.NoError(t, w.tree.WaitJoined(context.Background()))
		assert.NoError(t, w.tree.Healthy())
		w.sleep(time.Second)
		w.c.produce(at(1), 3)
		w.sleep(time.Second)
		assert.Equal(t, upTo(0, 20), w.offsets(at(0)))
		assert.Equal(t, upTo(20, 23), w.offsets(at(1)))
		assert.Empty(t, w.offsets(at(2)), "it is not assigned")
		assert.Equal(t, upTo(15, 20), w.offsets(at(3)))
		assert.Equal(t, upTo(0, 20), w.offsets(at(4)), "out of range: by the reset policy")
		reasons := make(map[kafka.TopicPartition]string)
		for _, e := range eventsOf[event.PositionReset](w) {
			reasons[e.TopicPartition] = e.Reason
		}
		assert.Equal(t, map[kafka.TopicPartition]string{
			at(0): rebalance.ReasonAssigned, at(1): rebalance.ReasonAssigned, at(4): rebalance.ReasonBeyondEnd,
		}, reasons)
		stats := w.tree.Stats()
		assert.Equal(t, "ASSIGNED DOWN", stats.State+" "+stats.Coordinator)
		assert.Len(t, stats.Partitions, 4)
		assert.Zero(t, stats.Rebalances)
		assert.NoError(t, w.tree.Commit(context.Background(), nil), "there is nothing to commit to")
		assert.ErrorIs(t, w.tree.CommitOffsets(context.Background(), []kafka.OffsetAndMetadata{{TopicPartition: at(0)}}), ErrNoGroup)
		assert.ErrorIs(t, w.tree.Rejoin(context.Background(), "test"), ErrNoGroup)
		assert.Equal(t, []string{"orders"}, stats.Subscription)
		started := time.Now()
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Less(t, time.Since(started), time.Second)
		assert.ErrorIs(t, w.tree.WaitJoined(context.Background()), ErrClosing)
	})
}

func TestStandalone_WhatAppearsIsReadFromItsBeginning(t *testing.T) {
	inStandalone(t, rebalance.StartBy(rebalance.ResetLatest), func(w *treeWorld) {
		w.settings.MetadataMaxAge = 5 * time.Second
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(2 * time.Second)
		w.c.with(func() {
			w.c.topics["orders"].parts = append(w.c.topics["orders"].parts, &fakeLog{leader: 1, epoch: 1})
		})
		w.c.produce(at(1), 7)
		w.sleep(10 * time.Second)
		assert.Empty(t, w.offsets(at(0)))
		assert.Equal(t, upTo(0, 7), w.offsets(at(1)))
		assert.Equal(t, "ASSIGNED", w.state())
	})
}

func TestStandalone_AMissingTopicAndAMissingPartitionAreWaitedForAndSaid(t *testing.T) {
	inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
		w.assignOnly(map[kafka.TopicPartition]rebalance.StartPosition{at(0): {}, at(2): rebalance.StartBy(rebalance.ResetLatest)})
		w.start()
		assert.NoError(t, w.tree.WaitJoined(context.Background()))
		w.sleep(10 * time.Second)
		assert.Equal(t, []string{"orders"}, w.tree.Stats().MissingTopics)
		assert.Len(t, eventsOf[event.TopicMissing](w), 1)
		w.c.topic("orders", 2, 10)
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(0, 10), w.offsets(at(0)))
		assert.Equal(t, []kafka.TopicPartition{at(2)}, w.tree.Stats().MissingPartitions)
		w.kill(groupKey)
		w.sleep(5 * time.Second)
		assert.Equal(t, []kafka.TopicPartition{at(2)}, w.tree.Stats().MissingPartitions)
		if missing := eventsOf[event.PartitionMissing](w); assert.Len(t, missing, 2, "once by each group actor") {
			assert.Equal(t, at(2), missing[0].TopicPartition)
		}
		w.c.with(func() {
			topic := w.c.topics["orders"]
			topic.parts = append(topic.parts, &fakeLog{leader: 1, epoch: 1})
			topic.parts[2].produce(4)
		})
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(0, 4), w.offsets(at(2)), "what was written while it was missed")
		assert.Empty(t, w.tree.Stats().MissingPartitions)
		assert.Empty(t, w.offsets(at(1)))
	})
}

func TestStandalone_ATopicMadeAnewIsReadFromItsBeginning(t *testing.T) {
	inStandalone(t, rebalance.StartAtOffset(6), func(w *treeWorld) {
		w.settings.MetadataMaxAge = 5 * time.Second
		stored := map[kafka.TopicPartition]int64{at(0): 8}
		w.settings.Positions = func(context.Context, []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
			return stored, nil
		}
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(2 * time.Second)
		assert.Equal(t, upTo(8, 10), w.offsets(at(0)), "what is stored wins")
		assert.Equal(t, upTo(6, 10), w.offsets(at(1)))
		w.c.with(func() { w.c.generation++ })
		w.c.topic("orders", 2, 12)
		w.sleep(10 * time.Second)
		assert.Equal(t, append(upTo(8, 10), upTo(0, 12)...), w.offsets(at(0)), "what is stored is of the topic that is gone")
		assert.Equal(t, append(upTo(6, 10), upTo(0, 12)...), w.offsets(at(1)))
		lost := eventsOf[event.PartitionsLost](w)
		if assert.Len(t, lost, 1) {
			assert.ErrorIs(t, lost[0].Err, rebalance.ErrTopicRecreated)
		}
		assert.Equal(t, "ASSIGNED", w.state())
		assert.NoError(t, w.tree.Healthy())
	})
}

// TestStandalone_WhateverDiesNothingIsLostAndNothingStartsOver: without a group nobody else knows how far it had come, and a
// start at the end would skip what was written meanwhile.
func TestStandalone_WhateverDiesNothingIsLostAndNothingStartsOver(t *testing.T) {
	for _, role := range []string{"partition-orders-0-1", "fetcher-1", committerKey, groupKey} {
		t.Run(role, func(t *testing.T) {
			inStandalone(t, rebalance.StartBy(rebalance.ResetLatest), func(w *treeWorld) {
				w.c.topic("orders", 2, 10)
				w.start()
				w.sleep(time.Second)
				w.c.produce(at(0), 20)
				w.sleep(time.Second)
				stuck := make(chan struct{})
				var once sync.Once
				w.setHandle(func(ctx context.Context, r *kafka.Record) error {
					if r.Offset == 33 {
						once.Do(func() { <-stuck })
					}
					return nil
				})
				w.c.produce(at(0), 8) // 30 to 37
				w.sleep(time.Second)
				w.kill(role)
				w.c.produce(at(0), 2)
				w.sleep(5 * time.Second)
				close(stuck)
				w.sleep(5 * time.Second)
				assert.Equal(t, upTo(10, 40), distinct(w.offsets(at(0))), "nothing lost, nothing of before")
				assert.LessOrEqual(t, len(w.offsets(at(0))), 30+5, "but for one delivery, what was finished does not come again")
				assert.Equal(t, 1, w.restarted(w.roleOf(role)))
				w.c.produce(at(1), 3)
				w.sleep(time.Second)
				assert.Equal(t, upTo(10, 13), w.offsets(at(1)))
				assert.NoError(t, w.tree.Healthy())
			})
		})
	}
}

func (w *treeWorld) roleOf(key string) string {
	for _, e := range eventsOf[event.ActorRestarted](w) {
		if e.Actor == key {
			return key
		}
	}
	return fmt.Sprintf("no restart of %s", key)
}

func TestStandalone_AGroupActorThatDiesDoesNotTakeATopicMadeAnewForTheOldOne(t *testing.T) {
	inStandalone(t, rebalance.StartAtOffset(3), func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.start()
		w.sleep(time.Second)
		w.c.with(func() { w.c.generation++ })
		w.c.topic("orders", 1, 12)
		w.kill(groupKey)
		w.sleep(5 * time.Second)
		assert.Equal(t, append(upTo(3, 10), upTo(0, 12)...), w.offsets(at(0)))
	})
}

func TestStandalone_ATruncatedLogSetsThePositionBack(t *testing.T) {
	inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		w.start()
		w.sleep(time.Second)
		w.diverge(at(0), 12)
		w.c.produce(at(0), 3)
		w.sleep(5 * time.Second)
		assert.Equal(t, append(upTo(0, 20), upTo(12, 15)...), w.offsets(at(0)))
	})
}

func TestStandalone_AFailingHandlerIsSupervisedAndMayEndTheConsumer(t *testing.T) {
	inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		restart := supervisor.Policy{MaxRestarts: 2, OnSpent: supervisor.StopAll, Backoff: supervisor.Backoff{Initial: 100 * time.Millisecond}}
		w.settings.Registrations[0].Restart = restart.WithDefaults()
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.TopicPartition() == at(1) && r.Offset == 4 {
				return errTest
			}
			return nil
		})
		w.start()
		w.sleep(30 * time.Second)
		failure, ok := errors.AsType[*HandlerError](w.tree.Err())
		if assert.True(t, ok, "%v", w.tree.Err()) {
			assert.Equal(t, int64(4), failure.Offset)
		}
		assert.Equal(t, upTo(0, 10), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 4), distinct(w.offsets(at(1))))
	})
}

func TestStandalone_WithoutBrokersItSaysWhyAndEndsInTime(t *testing.T) {
	inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		var down atomic.Bool
		down.Store(true)
		w.c.hook("Metadata", func(context.Context) error {
			if down.Load() {
				return errTest
			}
			return nil
		})
		w.start()
		assert.ErrorIs(t, w.tree.WaitJoined(context.Background()), errTest)
		assert.ErrorIs(t, w.tree.Healthy(), errTest)
		assert.Equal(t, "JOINING", w.state())
		down.Store(false)
		w.sleep(5 * time.Second)
		assert.NoError(t, w.tree.WaitJoined(context.Background()))
		assert.NoError(t, w.tree.Healthy())
		down.Store(true)
		w.sleep(2 * time.Minute)
		assert.ErrorIs(t, w.tree.Healthy(), errTest, "brokers that are gone later")
		started := time.Now()
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Less(t, time.Since(started), time.Second)
	})
}

func TestStandalone_PauseCallbacksAndALongSilenceWorkAsInAGroup(t *testing.T) {
	inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		var told []string
		tell := func(what string) PartitionsFunc {
			return func(_ context.Context, _ *Token, partitions []kafka.TopicPartition) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				told = append(told, fmt.Sprint(what, partitions))
				return nil
			}
		}
		w.settings.Callbacks = Callbacks{
			Assigned: tell("assigned"), Revoking: tell("revoking"), Revoked: tell("revoked"), Lost: tell("lost"), Timeout: time.Second,
		}
		w.start()
		w.sleep(time.Second)
		assert.NoError(t, w.tree.Pause(context.Background(), []kafka.TopicPartition{at(1)}))
		w.sleep(time.Hour) // no session could have lasted that long
		w.c.produce(at(0), 5)
		w.c.produce(at(1), 5)
		w.sleep(time.Second)
		assert.Equal(t, upTo(0, 15), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 10), w.offsets(at(1)))
		assert.NoError(t, w.tree.Resume(context.Background(), nil))
		w.sleep(time.Second)
		assert.Equal(t, upTo(0, 15), w.offsets(at(1)))
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Equal(t, []string{"assigned[orders-0 orders-1]", "revoking[orders-0 orders-1]", "revoked[orders-0 orders-1]"}, told)
	})
}

func TestStandalone_ACloseDrainsAndIsBounded(t *testing.T) {
	inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
		w.c.topic("orders", 2, 3)
		release := make(chan struct{})
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			switch {
			case r.TopicPartition() == at(0):
				time.Sleep(3 * time.Second)
			case r.Offset == 1:
				<-release
			}
			return nil
		})
		w.start()
		w.sleep(time.Second)
		started := time.Now()
		err := w.tree.Close(context.Background())
		assert.LessOrEqual(t, time.Since(started), 20*time.Second)
		failed, ok := errors.AsType[*CloseError](err)
		if assert.True(t, ok, "%v", err) && assert.Len(t, failed.Running, 1) {
			assert.Equal(t, at(1), failed.Running[0].TopicPartition)
			assert.Empty(t, failed.Uncommitted, "nothing is ever committed")
		}
		assert.Equal(t, upTo(0, 1), w.offsets(at(0)), "the record in the handler was finished")
		close(release)
	})
}
