package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/commit"
	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

func TestParallel_EveryEngineAndHandlerKeepsOrderAndLosesNothing(t *testing.T) {
	for _, order := range []Order{OrderPartition, OrderKey, OrderNone} {
		for _, kind := range []string{"Record", "Batch", "Async", "Actor"} {
			t.Run(order.String()+"/"+kind, func(t *testing.T) {
				inTree(t, func(w *treeWorld) {
					l := newKeyLedger(order != OrderNone)
					w.c.topic("orders", 3, 200)
					reg := &w.settings.Registrations[0]
					reg.Record = nil
					if reg.Order = order; order == OrderKey {
						reg.KeyFunc = keyOfTest
					}
					reg.Workers = 8
					reg.Restart.MaxRestarts = 1000
					parallelKinds(l)[kind](reg)
					w.start()
					w.sleep(4 * time.Minute)
					for p := range int32(3) {
						assert.Equal(t, int64(200), w.c.committedAt(at(p)), "partition %d", p)
					}
					assert.Equal(t, 600, l.distinct())
					assert.Empty(t, l.wrong)
					if order != OrderPartition && kind != "Actor" {
						assert.Greater(t, l.most, 3, "several at once")
						assert.LessOrEqual(t, l.most, 600)
					}
				})
			})
		}
	}
}

func TestParallel_AFailingKeyHoldsOnlyItself(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 80)
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers, reg.KeyFunc = OrderKey, 4, keyOfTest
		w.settings.BlockedAfter = 10 * time.Second
		var mu sync.Mutex
		var done []int64
		healed := false
		reg.Record = func(_ context.Context, r *kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if r.Offset%keysInTest == 2 && !healed {
				return errors.New("poison")
			}
			done = append(done, r.Offset)
			return nil
		}
		w.start()
		w.sleep(20 * time.Second)
		mu.Lock()
		assert.Len(t, done, 80-12, "every other key is done")
		mu.Unlock()
		assert.Equal(t, int64(2), w.c.committedAt(at(0)), "the commit stands at the first that is not")
		blocked := eventsOf[event.CommitBlocked](w)
		if assert.NotEmpty(t, blocked) {
			assert.Equal(t, int64(2), blocked[0].Offset)
			assert.Equal(t, "backing_off", blocked[0].Handler)
			assert.NotZero(t, blocked[0].Lane)
			assert.Equal(t, 80-12-2, blocked[0].Finished)
		}
		paused := eventsOf[event.PartitionPaused](w)
		if assert.NotEmpty(t, paused) {
			assert.Equal(t, blocked[0].Lane, paused[0].Lane)
		}
		assert.Error(t, w.tree.Healthy(), "a key that is paused is not healthy")
		assert.Equal(t, "paused", w.tree.Stats().Partitions[0].Condition)
		assert.NotNil(t, w.tree.Stats().Partitions[0].Blocked)
		mu.Lock()
		healed = true
		mu.Unlock()
		w.sleep(2 * time.Minute)
		assert.Equal(t, int64(80), w.c.committedAt(at(0)))
		assert.Nil(t, w.tree.Stats().Partitions[0].Blocked)
		assert.NotEmpty(t, eventsOf[event.PartitionResumed](w))
		assert.NoError(t, w.tree.Healthy())
	})
}

func TestParallel_WorkersAreSharedByThePartitionsInTurn(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 3, 0)
		w.c.produce(at(0), 90)
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers = OrderNone, 2
		var mu sync.Mutex
		var done []int32
		reg.Record = func(_ context.Context, r *kafka.Record) error {
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			done = append(done, r.Partition)
			return nil
		}
		w.start()
		w.sleep(200 * time.Millisecond)
		w.c.produce(at(1), 5)
		w.c.produce(at(2), 5)
		mu.Lock()
		before := len(done)
		mu.Unlock()
		w.sleep(2 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		assert.Len(t, done, 100)
		turn := done[before:min(before+24, len(done))]
		assert.Equal(t, 5, count(turn, 1), "the others get their turns beside the hot one: %v", turn)
		assert.Equal(t, 5, count(turn, 2), "the others get their turns beside the hot one: %v", turn)
	})
}

func count(list []int32, value int32) (n int) {
	for _, v := range list {
		if v == value {
			n++
		}
	}
	return n
}

func TestParallel_TheWindowBoundsWhatIsInTransitAndReportsThatItIsFullOfFailures(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 500)
		w.settings.MaxInTransit, w.settings.ResumeBelow = 50, 25
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers = OrderNone, 4
		var mu sync.Mutex
		seen := map[int64]bool{}
		healed := false
		reg.Record = func(_ context.Context, r *kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			seen[r.Offset] = true
			if r.Offset == 10 && !healed {
				return errors.New("poison")
			}
			return nil
		}
		w.start()
		w.sleep(30 * time.Second)
		mu.Lock()
		assert.GreaterOrEqual(t, len(seen), 50)
		assert.LessOrEqual(t, len(seen), 60, "no more than MaxInTransit from the record that fails on")
		healed = true
		mu.Unlock()
		full := eventsOf[event.WindowFull](w)
		if assert.Len(t, full, 1, "reported once") {
			assert.Equal(t, int64(10), full[0].Offset)
		}
		assert.Contains(t, w.tree.Stats().Partitions[0].PauseReasons, "window")
		w.sleep(2 * time.Minute)
		assert.Equal(t, int64(500), w.c.committedAt(at(0)))
		assert.Empty(t, w.tree.Stats().Partitions[0].PauseReasons)
	})
}

func TestParallel_ARevocationWaitsForWhatRunsAndCommitsIt(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 40)
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers = OrderNone, 4
		var mu sync.Mutex
		begun, ended := 0, 0
		reg.Record = func(_ context.Context, r *kafka.Record) error {
			mu.Lock()
			begun++
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			ended++
			mu.Unlock()
			return nil
		}
		w.start()
		w.sleep(1500 * time.Millisecond)
		assert.NoError(t, w.tree.Close(context.Background()))
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, begun, ended)
		assert.Less(t, begun, 40, "what had not begun was left to the next owner")
		assert.Equal(t, int64(begun), w.c.committedAt(at(0)))
	})
}

func TestParallel_AnAckAfterTheEndIsStaleAndCounted(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		reg := &w.settings.Registrations[0]
		reg.Record = nil
		reg.Order, reg.Workers, reg.MaxRecords = OrderKey, 4, 5
		reg.KeyFunc = func(r *kafka.Record) []byte { return fmt.Append(nil, r.Offset) }
		var mu sync.Mutex
		var held []*RecordDelivery
		reg.Async = func(_ context.Context, d *RecordDelivery) {
			mu.Lock()
			defer mu.Unlock()
			held = append(held, d)
		}
		w.start()
		w.sleep(time.Second)
		mu.Lock()
		assert.Len(t, held, 10, "each of the ten keys has one delivery outstanding")
		kept := slices.Clone(held)
		mu.Unlock()
		slices.SortFunc(kept, func(a, b *RecordDelivery) int { return int(a.Offset() - b.Offset()) })
		for _, d := range []*RecordDelivery{kept[3], kept[0], kept[1]} {
			assert.NoError(t, d.Ack())
			assert.NoError(t, d.Ack(), "again is nothing")
			assert.NoError(t, d.Nack(errors.New("late")), "the verdict stays")
		}
		w.sleep(time.Second)
		assert.Equal(t, int64(2), w.c.committedAt(at(0)))
		assert.NoError(t, w.tree.Close(context.Background()), "the others are not finished, and nothing of them is committed")
		before := w.tree.Stats().StaleAcks
		assert.ErrorIs(t, kept[2].Ack(), ErrStale)
		assert.ErrorIs(t, kept[2].Ack(), ErrStale)
		assert.ErrorIs(t, kept[4].Nack(nil), ErrStale)
		assert.NoError(t, kept[0].Ack())
		assert.Equal(t, before+3, w.tree.Stats().StaleAcks)
		assert.Equal(t, uint64(7), w.tree.Stats().RepeatedAcks)
		assert.Equal(t, int64(2), w.c.committedAt(at(0)))
	})
}

func TestParallel_ConcurrencyBoundsPoolsAndPartitionsTogether(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 3, 60)
		w.c.topic("refunds", 3, 60)
		w.settings.Concurrency = 3
		var mu sync.Mutex
		now, most, done := 0, 0, 0
		handle := func(_ context.Context, r *kafka.Record) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			now--
			done++
			mu.Unlock()
			return nil
		}
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers, reg.Record = OrderNone, 10, handle
		other := *reg
		other.Topics, other.Order = []string{"refunds"}, OrderPartition
		w.settings.Registrations = append(w.settings.Registrations, other)
		w.start()
		w.sleep(5 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, 360, done)
		assert.Equal(t, 3, most)
	})
}

func TestBatch_MaxWaitFillsABatchAndNoLonger(t *testing.T) {
	for _, order := range []Order{OrderPartition, OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 0)
				reg := &w.settings.Registrations[0]
				reg.Order, reg.Workers, reg.MaxRecords, reg.MaxWait = order, 2, 10, time.Second
				var mu sync.Mutex
				var sizes []int
				var times []time.Duration
				begin := time.Now()
				reg.Record, reg.Batch = nil, func(_ context.Context, records []kafka.Record) error {
					mu.Lock()
					defer mu.Unlock()
					sizes = append(sizes, len(records))
					times = append(times, time.Since(begin).Round(100*time.Millisecond))
					return nil
				}
				w.start()
				w.sleep(2 * time.Second)
				for range 12 { // ten fill a batch at once, two wait
					w.c.produce(at(0), 1)
					w.sleep(20 * time.Millisecond)
				}
				w.sleep(3 * time.Second)
				mu.Lock()
				defer mu.Unlock()
				assert.Equal(t, []int{10, 2}, sizes)
				if assert.Len(t, times, 2) {
					assert.Equal(t, 2200*time.Millisecond, times[0])
					assert.Equal(t, 3200*time.Millisecond, times[1])
				}
				assert.Equal(t, int64(12), w.c.committedAt(at(0)))
			})
		})
	}
}

func TestParallel_ANewOwnershipWaitsForTheCallsOfTheOldOne(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 6)
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers, reg.KeyFunc = OrderKey, 8, keyOfTest
		l := newKeyLedger(true)
		release := make(chan struct{})
		var once sync.Once
		reg.Record = func(_ context.Context, r *kafka.Record) error {
			l.begin(r)
			defer l.end(r, true)
			if r.Offset == 3 {
				once.Do(func() { <-release })
			}
			return nil
		}
		w.start()
		w.sleep(time.Second)
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(30 * time.Second)
		assert.NotEmpty(t, eventsOf[event.HandlerAbandoned](w), "the old call is not waited for beyond the drain")
		visits := l.visits["orders-0@3"]
		assert.Equal(t, 1, visits, "nothing of the new ownership begins while a call of the old one runs")
		close(release)
		w.sleep(5 * time.Second)
		assert.Equal(t, 2, l.visits["orders-0@3"])
		assert.Empty(t, l.wrong)
		assert.Equal(t, int64(6), w.c.committedAt(at(0)))
		assert.NotEmpty(t, eventsOf[event.HandlerReturned](w))
	})
}

func TestParallel_AContextKnowsItsRecordAndAttempt(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers = OrderNone, 2
		var mu sync.Mutex
		attempts := map[int64][]int{}
		reg.Record = func(ctx context.Context, r *kafka.Record) error {
			d := DeliveryFrom(ctx)
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, r.Offset, d.Records()[0].Offset)
			assert.Equal(t, at(0), d.TopicPartition())
			attempts[r.Offset] = append(attempts[r.Offset], d.Attempt())
			if r.Offset == 2 && len(attempts[2]) < 3 {
				return errors.New("not yet")
			}
			return nil
		}
		w.start()
		w.sleep(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, []int{1, 2, 3}, attempts[2])
		assert.Equal(t, []int{1}, attempts[1])
		failed := eventsOf[event.HandlerFailed](w)
		if assert.Len(t, failed, 2) {
			assert.Equal(t, []int{1, 2}, []int{failed[0].Attempt, failed[1].Attempt})
		}
		assert.Equal(t, uint64(2), w.tree.Stats().Partitions[0].Restarts)
	})
}

func TestParallel_AKeyThatAlwaysFailsDoesNotHoldTheKeysOfItsBatch(t *testing.T) {
	for _, order := range []Order{OrderKey, OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 70)
				reg := &w.settings.Registrations[0]
				reg.Record, reg.Order, reg.Workers, reg.MaxRecords = nil, order, 2, 50
				if order == OrderKey {
					reg.KeyFunc = keyOfTest
				}
				reg.Restart.MaxRestarts = 2
				var mu sync.Mutex
				healed := false
				done := map[int64]bool{}
				reg.Batch = func(_ context.Context, records []kafka.Record) error {
					mu.Lock()
					defer mu.Unlock()
					for i := range records {
						if records[i].Offset == 0 && !healed { // the first record of the partition, at that
							return errors.New("poison")
						}
					}
					for i := range records {
						done[records[i].Offset] = true
					}
					return nil
				}
				w.start()
				w.sleep(time.Minute)
				mu.Lock()
				if order == OrderKey {
					assert.Len(t, done, 60, "all but the key that fails")
				} else {
					assert.Len(t, done, 69, "all but the record that fails")
				}
				healed = true
				mu.Unlock()
				assert.Error(t, w.tree.Healthy())
				paused := eventsOf[event.PartitionPaused](w)
				if assert.NotEmpty(t, paused) {
					assert.NotZero(t, paused[0].Lane, "a key is paused, not the partition")
				}
				w.sleep(10 * time.Minute)
				assert.Equal(t, int64(70), w.c.committedAt(at(0)))
				assert.NoError(t, w.tree.Healthy())
				assert.Equal(t, "flowing", w.tree.Stats().Partitions[0].Condition)
			})
		})
	}
}

func TestOffsetMap_WhatItSkipsIsInTransitAndStaysInsideTheWindow(t *testing.T) {
	for _, order := range []Order{OrderPartition, OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 60)
				w.c.batch = 3
				w.settings.OffsetMap = true
				w.settings.MaxInTransit, w.settings.ResumeBelow = 10, 5
				reg := &w.settings.Registrations[0]
				reg.Order, reg.Workers, reg.MaxRecords = order, 8, 10
				tracker := commit.NewTracker(0)
				records := make([]kafka.Record, 50)
				for i := range records {
					records[i] = kafka.Record{Offset: int64(i), LeaderEpoch: w.c.log(at(0)).epoch}
				}
				assert.NoError(t, tracker.Deliver(records))
				for offset := int64(1); offset < 50; offset++ {
					tracker.Ack(offset)
				}
				text, kept := commit.Metadata{Map: tracker.Map()}.Encode(0, commit.DefaultMetadataLimit)
				assert.True(t, kept)
				w.c.with(func() { w.c.committed[at(0)] = CommittedOffset{Metadata: text} })
				block := make(chan struct{})
				w.setHandle(func(_ context.Context, r *kafka.Record) error {
					if r.Offset == 0 {
						<-block
					}
					return nil
				})
				reg.Record = func(ctx context.Context, r *kafka.Record) error {
					if err := w.handle(ctx, r); err != nil {
						return err
					}
					w.note(at(0), r.Offset)
					return nil
				}
				w.start()
				w.sleep(5 * time.Second)
				assert.LessOrEqual(t, w.tree.Stats().Partitions[0].InTransit, 10)
				close(block)
				w.sleep(5 * time.Second)
				assert.Equal(t, append([]int64{0}, upTo(50, 60)...), distinct(w.offsets(at(0))), "what the map says is finished does not come again")
				assert.Equal(t, int64(60), w.c.committedAt(at(0)))
			})
		})
	}
}
