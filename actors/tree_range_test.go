package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// inRange is inStandalone for a consumer that reads all of "orders" up to an end.
func inRange(t *testing.T, end rebalance.EndPosition, f func(w *treeWorld)) {
	t.Helper()
	inStandalone(t, rebalance.StartPosition{}, func(w *treeWorld) {
		w.settings.Standalone.Ends = map[kafka.TopicPartition]rebalance.EndPosition{kafka.WholeTopic("orders"): end}
		f(w)
	})
}

// rangeOf replaces what is read by ranges of single partitions.
func (w *treeWorld) rangeOf(partition int32, from rebalance.StartPosition, to rebalance.EndPosition) {
	if w.settings.Standalone.Partitions == nil {
		w.settings.Standalone = &rebalance.StandaloneConfig{
			Partitions: make(map[kafka.TopicPartition]rebalance.StartPosition), Ends: make(map[kafka.TopicPartition]rebalance.EndPosition),
		}
	}
	w.settings.Standalone.Partitions[at(partition)], w.settings.Standalone.Ends[at(partition)] = from, to
}

// ended reports whether the tree has ended within d, and demands how.
func (w *treeWorld) ended(d time.Duration, check func(err error)) {
	w.t.Helper()
	w.sleep(d)
	select {
	case <-w.tree.Done():
		check(w.tree.Err())
		assert.NoError(w.t, w.tree.shared.standalone.machine.Valid())
	default:
		stats := w.tree.Stats()
		assert.Fail(w.t, "the consumer has not ended", "%s %+v", stats.State, stats.Partitions)
	}
}

func (w *treeWorld) endedCleanly(d time.Duration) {
	w.t.Helper()
	w.ended(d, func(err error) { assert.NoError(w.t, err) })
	assert.NoError(w.t, w.tree.Close(context.Background()))
	assert.Empty(w.t, eventsOf[event.PartitionsLost](w))
}

func TestRange_ItEndsByItselfWhenAllIsReadAndNoRecordBeyondIsDelivered(t *testing.T) {
	inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
		w.c.topic("orders", 1, 0)
		w.rangeOf(0, rebalance.StartPosition{}, rebalance.EndOfLog())
		w.rangeOf(1, rebalance.StartAtOffset(3), rebalance.EndAtOffset(12)) // in the middle of a batch
		w.rangeOf(2, rebalance.StartAtOffset(8), rebalance.EndAtOffset(8))
		w.rangeOf(3, rebalance.StartPosition{}, rebalance.EndAtOffset(500))
		w.rangeOf(5, rebalance.StartAtOffset(400), rebalance.EndAtOffset(500))
		w.c.topic("orders", 7, 20)
		w.start()
		w.endedCleanly(5 * time.Second)
		assert.Equal(t, upTo(0, 20), w.offsets(at(0)))
		assert.Equal(t, upTo(3, 12), w.offsets(at(1)))
		assert.Empty(t, w.offsets(at(2)))
		assert.Equal(t, upTo(0, 20), w.offsets(at(3)), "an offset that is not there yet is not waited for")
		assert.Empty(t, w.offsets(at(4)), "it is not assigned")
		assert.Empty(t, w.offsets(at(5)))
		ends := make(map[kafka.TopicPartition]int64)
		for _, e := range eventsOf[event.RangeEndSet](w) {
			ends[e.TopicPartition] = e.End
			assert.Equal(t, kafka.NoOffset, e.Before)
		}
		assert.Equal(t, map[kafka.TopicPartition]int64{at(0): 20, at(1): 12, at(2): 8, at(3): 20, at(5): 20}, ends)
		assert.Len(t, eventsOf[event.RangeRead](w), 5)
		assert.Empty(t, eventsOf[event.PositionReset](w)[2:], "two begin at the beginning, and nothing was out of range")
	})
}

func TestRange_ALiveTopicDoesNotKeepItAlive(t *testing.T) {
	inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
		w.settings.MetadataMaxAge = time.Second
		w.c.topic("orders", 2, 50)
		w.setHandle(func(context.Context, *kafka.Record) error {
			w.c.produce(at(0), 2)
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		w.start()
		w.sleep(time.Second)
		w.c.with(func() { w.c.topics["orders"].parts = append(w.c.topics["orders"].parts, &fakeLog{leader: 1, epoch: 1}) })
		w.c.produce(at(2), 5)
		stats := w.tree.Stats()
		assert.Equal(t, int64(50), stats.Partitions[0].End)
		w.endedCleanly(10 * time.Second)
		assert.Equal(t, upTo(0, 50), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 50), w.offsets(at(1)))
		assert.Empty(t, w.offsets(at(2)), "it came later")
	})
}

// Compaction, retention and deletion may have taken anything before, at and behind the end.
func TestRange_HolesNeverHangIt(t *testing.T) {
	drop := func(from, to int64) func(l *fakeLog) {
		return func(l *fakeLog) {
			l.offsets = slices.DeleteFunc(l.offsets, func(o int64) bool { return o >= from && o < to })
		}
	}
	cut := func(start int64) func(l *fakeLog) {
		return func(l *fakeLog) {
			l.start = start
			drop(0, start)(l)
		}
	}
	for name, c := range map[string]struct {
		from rebalance.StartPosition
		to   rebalance.EndPosition
		hole func(l *fakeLog)
		want []int64
	}{
		"up to the end of the log":       {rebalance.StartPosition{}, rebalance.EndOfLog(), drop(12, 20), upTo(0, 12)},
		"around an end":                  {rebalance.StartPosition{}, rebalance.EndAtOffset(14), drop(12, 17), upTo(0, 12)},
		"all of it":                      {rebalance.StartPosition{}, rebalance.EndOfLog(), drop(0, 20), nil},
		"all behind the start":           {rebalance.StartAtOffset(5), rebalance.EndAtOffset(15), drop(5, 20), nil},
		"the log begins at its end":      {rebalance.StartPosition{}, rebalance.EndOfLog(), cut(20), nil},
		"from an offset that is gone":    {rebalance.StartAtOffset(3), rebalance.EndAtOffset(12), cut(8), upTo(8, 12)},
		"the log begins beyond the end":  {rebalance.StartAtOffset(3), rebalance.EndAtOffset(12), cut(15), nil},
		"the log begins there":           {rebalance.StartAtOffset(3), rebalance.EndAtOffset(12), cut(12), nil},
		"from the beginning beyond that": {rebalance.StartPosition{}, rebalance.EndAtOffset(12), cut(15), nil},
		"an end before everything":       {rebalance.StartPosition{}, rebalance.EndAtOffset(0), drop(0, 0), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inRange(t, c.to, func(w *treeWorld) {
				w.c.topic("orders", 1, 20)
				w.c.with(func() { c.hole(w.c.log(at(0))) })
				w.rangeOf(0, c.from, c.to)
				w.start()
				w.endedCleanly(5 * time.Second)
				assert.Equal(t, c.want, w.offsets(at(0)))
			})
		})
	}
}

// A partition that is read to its last record must not end because another one's records fill the answers.
func TestRange_AnEmptyPartOfAFullAnswerProvesNothing(t *testing.T) {
	inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
		w.c.topic("orders", 2, 40)
		w.c.answerBytes = 1
		w.c.topics["orders"].parts[0].produce(1000)
		w.start()
		w.endedCleanly(time.Minute)
		assert.Equal(t, upTo(0, 1040), w.offsets(at(0)))
		assert.Equal(t, upTo(0, 40), w.offsets(at(1)))
	})
}

// The answer of a remote tier that took too long has no records either.
func TestRange_WhatLiesInARemoteTierIsWaitedFor(t *testing.T) {
	inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
		w.c.topic("orders", 1, 20)
		slow := time.Now().Add(30 * time.Second)
		w.c.onFetch = func(kafka.Broker, FetchPartition) *FetchedPartition {
			if time.Now().After(slow) {
				return nil
			}
			return &FetchedPartition{HighWatermark: 20, LastStableOffset: 20, PreferredReadReplica: -1, Chunk: Chunk{NextOffset: kafka.NoOffset}}
		}
		w.c.with(func() { w.c.localStart = 15 })
		w.start()
		w.sleep(20 * time.Second)
		assert.Less(t, w.c.count("ListOffsets"), 150, "it is asked about no more often than it is fetched")
		w.endedCleanly(20 * time.Second)
		assert.Equal(t, upTo(0, 20), w.offsets(at(0)))
	})
}

// Where nothing is left before the end a follower cannot be asked, and the leader sends the reader back to it.
func TestRange_AHoleAtTheEndIsFoundWhileAFollowerIsRead(t *testing.T) {
	inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
		w.c = newFakeCluster(2)
		w.c.topic("orders", 1, 20)
		w.c.with(func() { w.c.log(at(0)).offsets = upTo(0, 12) })
		w.c.onFetch = func(broker kafka.Broker, _ FetchPartition) *FetchedPartition {
			if broker.ID == 1 {
				return &FetchedPartition{
					HighWatermark: 20, LastStableOffset: 20, PreferredReadReplica: 2, Chunk: Chunk{NextOffset: kafka.NoOffset},
				}
			}
			w.c.mu.Lock()
			defer w.c.mu.Unlock()
			w.c.log(at(0)).leader = 2 // readPartition serves whoever leads
			return nil
		}
		w.c.hook("ListOffsets", func(context.Context) error {
			w.c.with(func() { w.c.log(at(0)).leader = 1 })
			return nil
		})
		w.c.hook("Metadata", func(context.Context) error {
			w.c.with(func() { w.c.log(at(0)).leader = 1 })
			return nil
		})
		w.start()
		w.endedCleanly(10 * time.Second)
		assert.Equal(t, upTo(0, 12), w.offsets(at(0)))
		assert.Empty(t, eventsOf[event.FetchFailed](w), "nobody was asked who cannot know")
	})
}

func TestRange_EveryHandlerAndEngineEndsIt(t *testing.T) {
	for name, set := range map[string]func(w *treeWorld, r *Registration){
		"record": func(*treeWorld, *Registration) {},
		"batch": func(w *treeWorld, r *Registration) {
			r.Record, r.MaxWait = nil, time.Hour // what is left at the end is not waited for
			r.Batch = func(_ context.Context, records []kafka.Record) error {
				for i := range records {
					w.note(records[i].TopicPartition(), records[i].Offset)
				}
				return nil
			}
		},
		"async": func(w *treeWorld, r *Registration) {
			r.Record = nil
			r.Async = func(_ context.Context, d *RecordDelivery) {
				time.AfterFunc(time.Second, func() {
					w.note(d.Record().TopicPartition(), d.Record().Offset)
					_ = d.Ack()
				})
			}
		},
		"actor": func(w *treeWorld, r *Registration) {
			r.Record = nil
			r.Actor = func(kafka.TopicPartition) actor.Actor {
				return actor.ReceiveFunc(func(ctx actor.Context) {
					if m, ok := ctx.Message().(*Deliver); ok {
						for i := range m.Delivery.Records() {
							w.note(m.Delivery.TopicPartition(), m.Delivery.Records()[i].Offset)
						}
						_ = m.Delivery.AckAll() // a late one is for the next delivery
					}
				})
			}
		},
	} {
		for _, order := range []Order{OrderPartition, OrderKey, OrderNone} {
			t.Run(fmt.Sprint(name, " ", order), func(t *testing.T) {
				inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
					r := &w.settings.Registrations[0]
					r.Order, r.Workers = order, 4
					r.KeyFunc = func(record *kafka.Record) []byte { return []byte{byte(record.Offset % 3)} }
					if r.Record != nil && order != OrderPartition {
						r.Record = func(_ context.Context, record *kafka.Record) error {
							w.note(record.TopicPartition(), record.Offset)
							return nil
						}
					}
					set(w, r)
					w.c.topic("orders", 3, 33)
					w.c.with(func() { w.c.topics["orders"].parts[2] = &fakeLog{leader: 1, epoch: 1} })
					w.start()
					w.endedCleanly(2 * time.Minute)
					for p := range int32(2) {
						assert.Equal(t, upTo(0, 33), distinct(w.offsets(at(p))))
						assert.Len(t, w.offsets(at(p)), 33)
					}
				})
			})
		}
	}
}

func TestRange_AFailingHandlerIsTriedAgainAndAPauseIsWaitedFor(t *testing.T) {
	inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
		restart := supervisor.Policy{MaxRestarts: 2, OnSpent: supervisor.PauseAndProbe, Backoff: supervisor.Backoff{Initial: 100 * time.Millisecond}}
		w.settings.Registrations[0].Restart = restart.WithDefaults()
		w.c.topic("orders", 2, 10)
		mended := time.Now().Add(5 * time.Minute)
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.TopicPartition() == at(0) && r.Offset == 9 && time.Now().Before(mended) {
				return errTest
			}
			return nil
		})
		w.start()
		w.sleep(time.Second)
		assert.NoError(t, w.tree.Pause(context.Background(), []kafka.TopicPartition{at(1)}))
		w.sleep(4 * time.Minute)
		assert.Equal(t, "ASSIGNED", w.state(), "a record is not finished")
		stats := w.tree.Stats()
		assert.Equal(t, "paused", stats.Partitions[0].Condition)
		assert.Equal(t, "read", stats.Partitions[1].Condition)
		assert.NoError(t, w.tree.Resume(context.Background(), nil))
		w.endedCleanly(10 * time.Minute)
		assert.Equal(t, upTo(0, 10), w.offsets(at(0)))
	})
}

func TestRange_WhatDoesNotExistOrIsGoneEndsItWithATypedError(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(w *treeWorld)
		then func(w *treeWorld)
		want error
		of   kafka.TopicPartition
	}{
		"a topic": {func(*treeWorld) {}, nil, rebalance.ErrNoPartition, kafka.WholeTopic("orders")},
		"a partition": {func(w *treeWorld) {
			w.c.topic("orders", 2, 10)
			w.rangeOf(0, rebalance.StartPosition{}, rebalance.EndOfLog())
			w.rangeOf(4, rebalance.StartPosition{}, rebalance.EndOfLog())
		}, nil, rebalance.ErrNoPartition, at(4)},
		"a topic that is deleted": {
			func(w *treeWorld) { w.c.topic("orders", 2, 100) },
			func(w *treeWorld) { w.c.with(func() { delete(w.c.topics, "orders") }) }, kafka.UnknownTopicOrPartition, kafka.WholeTopic("orders"),
		},
		"a topic that is made anew": {
			func(w *treeWorld) { w.c.topic("orders", 2, 100) },
			func(w *treeWorld) { w.c.with(func() { w.c.generation++ }); w.c.topic("orders", 2, 100) }, rebalance.ErrTopicRecreated, kafka.WholeTopic("orders"),
		},
		"and the group actor dies before it is seen": {
			func(w *treeWorld) { w.c.topic("orders", 1, 100) },
			func(w *treeWorld) {
				w.c.with(func() { w.c.generation++ })
				w.c.topic("orders", 1, 100)
				w.kill(groupKey)
			}, rebalance.ErrTopicRecreated, at(0),
		},
		"a position under no reset": {
			func(w *treeWorld) {
				w.settings.Registrations[0].Reset = rebalance.ResetNone
				w.c.topic("orders", 1, 100)
				w.c.with(func() { w.c.log(at(0)).start = 50 })
				w.rangeOf(0, rebalance.StartAtOffset(3), rebalance.EndOfLog())
			}, nil, rebalance.ErrNoOffset, at(0),
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
				w.settings.MetadataMaxAge = 5 * time.Second
				c.set(w)
				w.setHandle(func(context.Context, *kafka.Record) error { time.Sleep(100 * time.Millisecond); return nil })
				w.start()
				w.sleep(time.Second)
				if c.then != nil {
					c.then(w)
				}
				w.ended(40*time.Second, func(err error) {
					gone, ok := errors.AsType[*rebalance.RangeError](err)
					if assert.True(t, ok, "%v", err) {
						assert.ErrorIs(t, gone, c.want)
						assert.Equal(t, c.of, gone.TopicPartition)
					}
				})
				assert.ErrorIs(t, w.tree.Close(context.Background()), c.want)
			})
		})
	}
}

func TestRange_ALogThatLostItsEndEndsTheRangeThere(t *testing.T) {
	for name, read := range map[string]int64{"before it was read": 5, "after a part of it was read": 18, "exactly where it was read to": 12} {
		t.Run(name, func(t *testing.T) {
			inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
				w.c.topic("orders", 1, 30)
				w.settings.Registrations[0].MaxRecords = 1
				stop := read
				w.c.batch, w.c.chunkBatches = 1, 1
				held := make(chan struct{})
				w.c.onFetch = func(_ kafka.Broker, p FetchPartition) *FetchedPartition {
					if p.Offset >= stop {
						<-held
					}
					return nil
				}
				w.start()
				w.sleep(time.Second)
				w.c.with(func() {
					stop = 1000
					l := w.c.log(at(0))
					l.offsets, l.end, l.epoch = l.offsets[:12], 12, 2
				})
				close(held)
				w.endedCleanly(20 * time.Second)
				assert.Equal(t, upTo(0, 12), distinct(w.offsets(at(0)))[:12])
				ends := eventsOf[event.RangeEndSet](w)
				assert.LessOrEqual(t, ends[len(ends)-1].End, int64(12))
			})
		})
	}
}

// Everything that can die dies while a topic that goes on is read; the end stays where it was, and nothing is lost.
func TestRange_WhateverDiesAtAnyTimeTheEndStaysAndNothingIsLost(t *testing.T) {
	for _, role := range []string{"partition-orders-0-1", "fetcher-1", committerKey, groupKey} {
		for step := range 12 {
			t.Run(fmt.Sprint(role, " ", step), func(t *testing.T) {
				inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
					w.c.topic("orders", 2, 30)
					for _, api := range []string{"Metadata", "ListOffsets", "Fetch"} {
						w.c.hook(api, func(context.Context) error { time.Sleep(10 * time.Millisecond); return nil })
					}
					w.setHandle(func(_ context.Context, r *kafka.Record) error {
						w.c.produce(r.TopicPartition(), 1)
						time.Sleep(10 * time.Millisecond)
						return nil
					})
					w.start()
					w.sleep(time.Duration(35*step+1) * time.Millisecond)
					select {
					case <-w.tree.Done():
					default:
						if slices.ContainsFunc(w.tree.shared.sys.alive(), func(a LiveActor) bool { return a.Role == role }) {
							w.kill(role)
						}
					}
					w.endedCleanly(30 * time.Second)
					ends := make(map[kafka.TopicPartition]int64)
					for _, e := range eventsOf[event.RangeEndSet](w) {
						assert.Zero(t, ends[e.TopicPartition], "found once")
						ends[e.TopicPartition] = e.End
					}
					for p := range int32(2) {
						assert.Equal(t, upTo(0, ends[at(p)]), distinct(w.offsets(at(p))))
					}
				})
			})
		}
	}
}

func TestRange_ASeekMovesThePositionAndNotTheEnd(t *testing.T) {
	inRange(t, rebalance.EndOfLog(), func(w *treeWorld) {
		w.c.topic("orders", 3, 20)
		seek := func(p int32, offset int64) {
			assert.NoError(t, w.tree.Seek(context.Background(), rebalance.StartAtOffset(offset), []kafka.TopicPartition{at(p)}))
		}
		blocked := make(chan struct{})
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.TopicPartition() == at(0) && r.Offset == 19 {
				<-blocked
			}
			return nil
		})
		slow := true
		w.c.hook("ListOffsets", func(context.Context) error {
			if slow {
				time.Sleep(time.Second)
			}
			return nil
		})
		w.start()
		w.sleep(100 * time.Millisecond)
		seek(2, 15) // while its end is looked for
		w.sleep(5 * time.Second)
		slow = false
		w.c.produce(at(1), 10)
		assert.Len(t, eventsOf[event.RangeRead](w), 2)
		assert.Equal(t, upTo(15, 20), w.offsets(at(2)))
		seek(1, 12) // one that is read
		w.sleep(time.Second)
		assert.Equal(t, append(upTo(0, 20), upTo(12, 20)...), w.offsets(at(1)))
		seek(2, 500)
		w.sleep(time.Second)
		assert.Len(t, eventsOf[event.RangeRead](w), 4, "both are read again")
		close(blocked)
		w.endedCleanly(5 * time.Second)
		assert.Equal(t, upTo(0, 20), w.offsets(at(0)))
	})
}

func TestRange_ACloseBeforeTheEndIsACloseAndStoredPositionsGoOn(t *testing.T) {
	inRange(t, rebalance.EndAtOffset(40), func(w *treeWorld) {
		w.rangeOf(0, rebalance.StartAtOffset(10), rebalance.EndAtOffset(40))
		w.rangeOf(1, rebalance.StartAtOffset(10), rebalance.EndAtOffset(40))
		w.settings.Positions = func(context.Context, []kafka.TopicPartition) (map[kafka.TopicPartition]int64, error) {
			return map[kafka.TopicPartition]int64{at(0): 25, at(1): 41}, nil
		}
		w.c.topic("orders", 2, 50)
		w.setHandle(func(context.Context, *kafka.Record) error { time.Sleep(time.Second); return nil })
		w.start()
		w.sleep(5500 * time.Millisecond)
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.NoError(t, w.tree.Err())
		assert.Equal(t, upTo(25, 31), w.offsets(at(0)))
		assert.Empty(t, w.offsets(at(1)), "nothing is left to read")
		assert.Len(t, eventsOf[event.RangeRead](w), 1)
	})
}
