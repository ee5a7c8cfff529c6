package actors

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
	"github.com/troupego/troupe/supervisor"
)

// hanging is a handler that hangs at some records until it is released, the first time each.
type hanging struct {
	mu      sync.Mutex
	held    map[string]bool
	causes  []error
	release chan struct{}
}

func newHanging(records ...string) *hanging {
	h := &hanging{held: make(map[string]bool), release: make(chan struct{})}
	for _, r := range records {
		h.held[r] = true
	}
	return h
}

// visit hangs, whatever becomes of ctx, at a record that is named "partition@offset".
func (h *hanging) visit(ctx context.Context, tp kafka.TopicPartition, offset int64) {
	name := fmt.Sprintf("%d@%d", tp.Partition, offset)
	h.mu.Lock()
	hold := h.held[name]
	delete(h.held, name)
	h.mu.Unlock()
	if hold {
		<-h.release
		h.mu.Lock()
		h.causes = append(h.causes, context.Cause(ctx))
		h.mu.Unlock()
	}
}

func (h *hanging) handle(ctx context.Context, r *kafka.Record) error {
	h.visit(ctx, r.TopicPartition(), r.Offset)
	return nil
}

// inLimitedTree is inTree with a limit of 3 s and a topic of two partitions with ten records each.
func inLimitedTree(t *testing.T, f func(w *treeWorld)) {
	t.Helper()
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.settings.MaxProcessingTime = 3 * time.Second
		f(w)
	})
}

// linesWith is how many lines of the journal begin so.
func linesWith(lines []string, prefix string) (n int) {
	for _, line := range lines {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

func (w *treeWorld) allDone() {
	w.t.Helper()
	for p := range int32(2) {
		assert.Equal(w.t, upTo(0, 10), distinct(w.offsets(at(p))), "partition %d", p)
		assert.Equal(w.t, int64(10), w.c.committedAt(at(p)), "partition %d", p)
	}
	assert.NoError(w.t, w.tree.Healthy())
	assert.Empty(w.t, w.tree.Stats().GaveUp)
}

func TestGiveUp_AHandlerThatTakesTooLongCostsTheMembershipUntilItReturns(t *testing.T) {
	for name, assignor := range map[string]rebalance.Assignor{"eager": rebalance.Range(), "cooperative": rebalance.CooperativeSticky()} {
		for _, instance := range []string{"", "till-1"} {
			t.Run(name+instance, func(t *testing.T) {
				inLimitedTree(t, func(w *treeWorld) {
					w.settings.Assignors, w.settings.GroupInstanceID = []rebalance.Assignor{assignor}, instance
					h := newHanging("0@5")
					w.setHandle(h.handle)
					w.start()
					w.sleep(3 * time.Second)
					assert.Empty(t, eventsOf[event.ProcessingOverdue](w), "never sooner")
					assert.NoError(t, w.tree.Healthy())
					w.sleep(2 * time.Second)
					overdue := eventsOf[event.ProcessingOverdue](w)
					if assert.Len(t, overdue, 1) {
						assert.Equal(t, event.ProcessingOverdue{
							Member: overdue[0].Member, TopicPartition: at(0), Epoch: overdue[0].Epoch, Offset: 5, Since: overdue[0].Since, Limit: 3 * time.Second,
						}, overdue[0])
					}
					assert.Equal(t, "UNJOINED", w.state())
					lines := w.c.lines()
					assert.Equal(t, 1, linesWith(lines, "leave "), "%v", lines)
					assert.Greater(t, index(lines, "leave member-1"), index(lines, "commit orders-0 5"), "what is finished is committed first")
					assert.Equal(t, int64(5), w.c.committedAt(at(0)))
					assert.Equal(t, int64(10), w.c.committedAt(at(1)))
					assert.Len(t, eventsOf[event.HandlerAbandoned](w), 1)

					w.sleep(time.Minute) // far beyond the session
					err := w.tree.Healthy()
					assert.ErrorIs(t, err, ErrNotHealthy)
					assert.ErrorIs(t, err, ErrOverdue)
					assert.ErrorContains(t, err, "member is UNJOINED: troupe: gave up: handler of orders-0 offset 5 has run for 1m")
					gaveUp := w.tree.Stats().GaveUp
					if assert.Len(t, gaveUp, 1) {
						assert.Equal(t, int64(5), gaveUp[0].Offset)
						assert.Equal(t, at(0), gaveUp[0].TopicPartition)
					}
					assert.Equal(t, upTo(0, 5), w.offsets(at(0)))

					close(h.release)
					w.sleep(3 * time.Second)
					w.allDone()
					assert.Equal(t, append(upTo(0, 6), upTo(5, 10)...), w.offsets(at(0)), "what was finished too late comes again")
					if assert.Len(t, h.causes, 1) {
						assert.ErrorIs(t, h.causes[0], ErrOverdue)
					}
					assert.Equal(t, 2, linesWith(w.c.lines(), "join "))
				})
			})
		}
	}
}

func TestGiveUp_OtherPartitionsDrainAndCommit(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		h := newHanging("0@5")
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Partition == 1 && r.Offset == 9 {
				time.Sleep(time.Second)
			}
			return h.handle(ctx, r)
		})
		w.c.with(func() { w.c.log(at(1)).end, w.c.log(at(1)).offsets = 9, w.c.log(at(1)).offsets[:9] })
		w.start()
		w.sleep(2500 * time.Millisecond)
		w.c.produce(at(1), 1)
		w.sleep(3 * time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		assert.Equal(t, int64(10), w.c.committedAt(at(1)), "it was at work when the member gave up")
		assert.Equal(t, upTo(0, 10), w.offsets(at(1)))
		assert.Less(t, index(w.c.lines(), "commit orders-1 10"), index(w.c.lines(), "leave member-1"))
		close(h.release)
		w.sleep(3 * time.Second)
		w.allDone()
		assert.Equal(t, upTo(0, 10), w.offsets(at(1)), "nothing twice")
	})
}

func TestGiveUp_TheLimitIsForOneRecordAndNotForRetriesOrTurns(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		w.settings.Concurrency = 1
		w.settings.Registrations[0].Restart.Backoff = supervisor.Backoff{Initial: 20 * time.Second, Max: 20 * time.Second, Factor: 2}
		failed := false
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 0 && r.Offset == 5 && !failed {
				failed = true
				return errTest
			}
			time.Sleep(2900 * time.Millisecond) // five of them in a delivery, the other partition's before the own
			return nil
		})
		w.start()
		w.sleep(3 * time.Minute)
		assert.Empty(t, eventsOf[event.ProcessingOverdue](w))
		assert.Equal(t, uint64(1), w.tree.Stats().Rebalances)
		w.allDone()
	})
}

// overdueKinds are the kinds of handlers, each of which hangs at records by h in its own way. A kind that returns says so.
func overdueKinds(w *treeWorld, h *hanging) map[string]func(*Registration) {
	return map[string]func(*Registration){
		"Record": func(*Registration) { w.setHandle(h.handle) },
		"Batch": func(reg *Registration) {
			reg.Record, reg.Batch = nil, func(ctx context.Context, records []kafka.Record) error {
				for i := range records {
					h.visit(ctx, records[i].TopicPartition(), records[i].Offset)
				}
				for i := range records {
					w.note(records[i].TopicPartition(), records[i].Offset)
				}
				return nil
			}
		},
		"Async": func(reg *Registration) {
			reg.Record, reg.Async = nil, func(ctx context.Context, d *RecordDelivery) {
				go func() {
					h.visit(ctx, d.TopicPartition(), d.Offset())
					if d.Ack() == nil {
						w.note(d.TopicPartition(), d.Offset())
					}
				}()
			}
		},
		"Actor": func(reg *Registration) {
			reg.Record, reg.Actor = nil, func(kafka.TopicPartition) actor.Actor {
				return actor.ReceiveFunc(func(ctx actor.Context) {
					d, ok := ctx.Message().(*Deliver)
					if !ok {
						return
					}
					go func() {
						for _, r := range d.Records() {
							h.visit(d.Context(), d.TopicPartition(), r.Offset)
							if d.Ack(r.Offset) == nil {
								w.note(d.TopicPartition(), r.Offset)
							}
						}
					}()
				})
			}
		},
	}
}

func TestGiveUp_EveryKindOfHandlerInEveryOrder(t *testing.T) {
	for _, order := range []Order{OrderPartition, OrderKey, OrderNone} {
		for _, kind := range []string{"Record", "Batch", "Async", "Actor"} {
			t.Run(fmt.Sprintf("%v/%s", order, kind), func(t *testing.T) {
				inLimitedTree(t, func(w *treeWorld) {
					h := newHanging("0@5")
					reg := &w.settings.Registrations[0]
					reg.Order, reg.Workers = order, 3
					if order == OrderKey {
						reg.KeyFunc = keyOfTest
					}
					if order != OrderPartition {
						defer func() { w.broken = nil }() // several at once is what these orders are for
					}
					overdueKinds(w, h)[kind](reg)
					w.start()
					w.sleep(2900 * time.Millisecond)
					assert.Empty(t, eventsOf[event.ProcessingOverdue](w))
					w.sleep(2 * time.Second)
					overdue := eventsOf[event.ProcessingOverdue](w)
					if assert.Len(t, overdue, 1) {
						assert.Equal(t, at(0), overdue[0].TopicPartition)
						if kind != "Batch" {
							assert.Equal(t, int64(5), overdue[0].Offset)
						}
					}
					assert.Equal(t, 1, linesWith(w.c.lines(), "leave "))
					if kind == "Async" || kind == "Actor" { // nothing runs: the function has returned, the actor is stopped
						w.sleep(time.Second)
						w.allDone()
						assert.Zero(t, w.tree.Stats().StaleAcks)
					} else {
						assert.Equal(t, "UNJOINED", w.state())
						assert.Len(t, w.tree.Stats().GaveUp, 1)
					}
					committed := w.c.committedAt(at(0))
					close(h.release)
					w.sleep(5 * time.Second)
					w.allDone()
					assert.GreaterOrEqual(t, w.c.committedAt(at(0)), committed)
					assert.Len(t, eventsOf[event.ProcessingOverdue](w), 1)
					if order != OrderPartition || kind == "Async" || kind == "Actor" {
						assert.NotZero(t, w.tree.Stats().StaleAcks, "the late acknowledgment is counted")
					}
					if assert.Len(t, h.causes, 1) {
						assert.ErrorIs(t, h.causes[0], ErrOverdue)
					}
				})
			})
		}
	}
}

func TestGiveUp_ASecondHandlerKeepsTheMemberOutAsWell(t *testing.T) {
	for name, after := range map[string]time.Duration{"together": 0, "in the drain": 2500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inLimitedTree(t, func(w *treeWorld) {
				w.settings.DrainTimeout = 5 * time.Second
				first, second := newHanging("0@5"), newHanging("1@10")
				w.setHandle(func(ctx context.Context, r *kafka.Record) error {
					first.visit(ctx, r.TopicPartition(), r.Offset)
					return second.handle(ctx, r)
				})
				w.start()
				w.sleep(after)
				w.c.produce(at(1), 1)
				w.sleep(20 * time.Second)
				assert.Equal(t, "UNJOINED", w.state(), "the drain is bounded")
				assert.Len(t, w.tree.Stats().GaveUp, 2)
				close(first.release)
				w.sleep(20 * time.Second)
				assert.Equal(t, "UNJOINED", w.state())
				assert.Len(t, w.tree.Stats().GaveUp, 1)
				assert.ErrorContains(t, w.tree.Healthy(), "handler of orders-1 offset 10")
				close(second.release)
				w.sleep(5 * time.Second)
				assert.Equal(t, upTo(0, 10), distinct(w.offsets(at(0))))
				assert.Equal(t, upTo(0, 11), distinct(w.offsets(at(1))))
				assert.Equal(t, int64(11), w.c.committedAt(at(1)))
				assert.NoError(t, w.tree.Healthy())
			})
		})
	}
}

func TestGiveUp_AHandlerThatNeverReturnsDoesNotHoldUpAClose(t *testing.T) {
	for name, wait := range map[string]time.Duration{
		"before": 3 * time.Second, "while it drains": 3600 * time.Millisecond, "while it rests": time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			inLimitedTree(t, func(w *treeWorld) {
				h, draining := newHanging("0@5"), newHanging("1@9")
				w.setHandle(func(ctx context.Context, r *kafka.Record) error {
					draining.visit(ctx, r.TopicPartition(), r.Offset)
					return h.handle(ctx, r)
				})
				w.start()
				w.sleep(wait)
				closing, took, err := w.closeIn(5 * time.Second)
				assert.LessOrEqual(t, took, 5*time.Second)
				if assert.NotNil(t, closing, "%v", err) {
					assert.Len(t, closing.Running, 2)
				}
				assert.Equal(t, int64(5), w.c.committedAt(at(0)))
				assert.Equal(t, int64(9), w.c.committedAt(at(1)))
				assert.Equal(t, 1, linesWith(w.c.lines(), "leave "))
				w.idle()
				close(h.release)
				close(draining.release)
				w.sleep(time.Minute)
				assert.Equal(t, 1, linesWith(w.c.lines(), "join "), "a closed member does not come back")
			})
		})
	}
}

func TestGiveUp_AConsumerThatFailsMeanwhileDoesNotComeBack(t *testing.T) {
	for name, wait := range map[string]time.Duration{"while it drains": 4 * time.Second, "while it rests": time.Minute} {
		t.Run(name, func(t *testing.T) {
			inLimitedTree(t, func(w *treeWorld) {
				h, draining := newHanging("0@5"), newHanging("1@10")
				w.setHandle(func(ctx context.Context, r *kafka.Record) error {
					draining.visit(ctx, r.TopicPartition(), r.Offset)
					return h.handle(ctx, r)
				})
				w.start()
				w.sleep(2 * time.Second)
				w.c.produce(at(1), 1)
				w.sleep(wait - 2*time.Second)
				for _, a := range w.tree.shared.sys.alive() {
					if a.Role == "group" {
						w.tree.shared.sys.root.Send(w.tree.shared.sys.actorSystem.NewLocalPID(a.Name), &consumerFailed{err: errTest})
					}
				}
				w.sleep(w.settings.CloseTimeout)
				<-w.tree.Done()
				assert.ErrorIs(t, w.tree.Err(), errTest)
				close(h.release)
				close(draining.release)
				w.sleep(time.Minute)
				assert.Equal(t, 1, linesWith(w.c.lines(), "leave "))
				assert.Equal(t, 1, linesWith(w.c.lines(), "join "))
				assert.Equal(t, int64(5), w.c.committedAt(at(0)))
			})
		})
	}
}

func TestGiveUp_ALossMeanwhileIsNoStall(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		h, draining := newHanging("0@5"), newHanging("1@9")
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			draining.visit(ctx, r.TopicPartition(), r.Offset)
			return h.handle(ctx, r)
		})
		w.settings.MaxProcessingTime = 6 * time.Second
		w.start()
		w.sleep(500 * time.Millisecond)
		close(draining.release) // partition 1 has nothing more to do
		w.sleep(5 * time.Second)
		draining = newHanging("1@10")
		w.c.produce(at(1), 1)
		w.sleep(1500 * time.Millisecond)
		assert.Equal(t, "LEAVING", w.state())
		w.c.expel()
		w.sleep(3 * time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		assert.Len(t, eventsOf[event.PartitionsLost](w), 1)
		assert.Len(t, w.tree.Stats().GaveUp, 2)
		close(h.release)
		close(draining.release)
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(0, 11), distinct(w.offsets(at(1))))
		assert.Equal(t, int64(11), w.c.committedAt(at(1)))
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
		assert.NoError(t, w.tree.Healthy())
	})
}

func TestGiveUp_ACoordinatorThatMovesMeanwhileHearsOfIt(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(3)
		w.c.topic("orders", 2, 10)
		w.settings.MaxProcessingTime = 3 * time.Second
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.c.hook("LeaveGroup", func(context.Context) error {
			if w.c.count("LeaveGroup") < 3 {
				w.c.with(func() { w.c.coordinator = 2 })
				return coded("LeaveGroup", kafka.NotCoordinator)
			}
			return nil
		})
		w.start()
		w.sleep(8 * time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		assert.Equal(t, 1, linesWith(w.c.lines(), "leave "), "others need not wait for the session's end")
		close(h.release)
		w.sleep(5 * time.Second)
		w.allDone()
	})
}

func TestGiveUp_WithoutACoordinatorItIsBoundedAndTheIDIsKept(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(2500 * time.Millisecond)
		w.c.with(func() { w.c.coordinator = 0 })
		w.sleep(30 * time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		w.c.with(func() { w.c.coordinator = 1 })
		close(h.release)
		w.sleep(5 * time.Second)
		w.allDone()
		assert.Equal(t, 2, linesWith(w.c.lines(), "join member-1 "), "the group need not wait for the old one: %v", w.c.lines())
	})
}

func TestGiveUp_AGroupActorThatDiesMeanwhileStaysOut(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		w.settings.MetadataMaxAge = 10 * time.Second
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(7 * time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		w.c.panicOnce("Metadata")
		w.sleep(time.Minute)
		assert.Equal(t, 1, w.restarted("group"))
		assert.Equal(t, 1, linesWith(w.c.lines(), "join "))
		assert.ErrorIs(t, w.tree.Healthy(), ErrOverdue)
		close(h.release)
		w.sleep(3 * time.Second)
		w.allDone()
	})
}

// A handler of an earlier ownership keeps the partition's gate: the member that owns the partition again can do nothing with
// it, and gives it up as well.
func TestGiveUp_AHandlerThatOutlivedItsOwnershipCountsWhenItHoldsUpTheNext(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		w.settings.DrainTimeout = time.Second
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(500 * time.Millisecond)
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(3 * time.Second)
		assert.Empty(t, eventsOf[event.ProcessingOverdue](w), "the new ownership waits, not for long yet")
		assert.Equal(t, "ASSIGNED", w.state())
		w.sleep(4 * time.Second)
		overdue := eventsOf[event.ProcessingOverdue](w)
		if assert.Len(t, overdue, 1) {
			assert.Equal(t, int64(5), overdue[0].Offset)
			assert.Equal(t, kafka.AssignmentEpoch(1), overdue[0].Epoch)
		}
		assert.Equal(t, "UNJOINED", w.state())
		close(h.release)
		w.sleep(5 * time.Second)
		w.allDone()
	})
}

func TestGiveUp_WithoutTheLimitNothingIsGivenUp(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(time.Hour)
		assert.Equal(t, uint64(1), w.tree.Stats().Rebalances)
		assert.NoError(t, w.tree.Healthy())
		assert.Empty(t, w.tree.Stats().GaveUp)
		close(h.release)
		w.sleep(time.Second)
		w.allDone()
	})
}

// Handlers that hang at any time, rebalances and losses at any time: nothing is lost, nobody is inside twice, and the member
// is back in the end.
func TestGiveUp_AtAnyMomentNothingIsLost(t *testing.T) {
	for seed := range 16 {
		inTree(t, func(w *treeWorld) {
			w.c.topic("orders", 4, 0)
			w.settings.Seed, w.settings.MaxProcessingTime, w.settings.DrainTimeout = uint64(seed), 2*time.Second, time.Duration(1+seed%4)*time.Second
			if seed%2 == 0 {
				w.settings.Assignors = []rebalance.Assignor{rebalance.CooperativeSticky()}
			}
			var calls atomic.Int64
			w.setHandle(func(context.Context, *kafka.Record) error {
				if n := calls.Add(1); (n*7+int64(seed))%61 == 0 {
					time.Sleep(time.Duration(1000+(n*977)%9000) * time.Millisecond)
				}
				return nil
			})
			w.start()
			for i := range 12 {
				for p := range int32(4) {
					w.c.produce(at(p), 9)
				}
				w.sleep(time.Duration(50+(seed*531+i*977)%2500) * time.Millisecond)
				switch {
				case (seed+i)%7 == 0:
					w.c.expel()
				case (seed+i)%3 == 0:
					w.c.rival(i%2 == 0)
				}
			}
			w.c.rival(false)
			w.sleep(4 * time.Minute)
			assert.Equal(t, "ASSIGNED", w.state(), "seed %d", seed)
			assert.NotEmpty(t, eventsOf[event.ProcessingOverdue](w), "seed %d", seed)
			for p := range int32(4) {
				assert.Equal(t, upTo(0, 108), distinct(w.offsets(at(p))), "seed %d partition %d", seed, p)
				assert.Equal(t, int64(108), w.c.committedAt(at(p)), "seed %d partition %d", seed, p)
			}
			assert.False(t, slices.ContainsFunc(eventsOf[event.Refused](w), func(e event.Refused) bool {
				return strings.Contains(e.Err.Error(), "illegal") || strings.Contains(e.Err.Error(), "unexpected")
			}), "seed %d", seed)
		})
	}
}
