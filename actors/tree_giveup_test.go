package actors

import (
	"context"
	"fmt"
	"strings"
	"sync"
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
					assert.ErrorContains(t, err, "member is UNJOINED for 1m")
					assert.ErrorContains(t, err, ": troupe: gave up: handler of orders-0 offset 5 has run for 1m")
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

// Under key order the other keys of the partition have the whole drain, and their context is not ended because of one.
func TestGiveUp_OtherKeysOfThePartitionDrainAndCommit(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers, reg.KeyFunc = OrderKey, 5, keyOfTest
		reg.Restart.Backoff = supervisor.Backoff{Initial: 2 * time.Second, Max: 2 * time.Second, Factor: 2}
		defer func() { w.broken = nil }() // several keys at once
		h := newHanging("0@5")
		var ended error
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Partition == 0 && r.Offset == 2 {
				if DeliveryFrom(ctx).Attempt() == 1 {
					return errTest
				}
				time.Sleep(2900 * time.Millisecond)
				ended = ctx.Err()
			}
			return h.handle(ctx, r)
		})
		w.start()
		w.sleep(4500 * time.Millisecond)
		assert.Len(t, eventsOf[event.ProcessingOverdue](w), 1)
		assert.Equal(t, "LEAVING", w.state())
		w.sleep(1500 * time.Millisecond)
		assert.Equal(t, "UNJOINED", w.state(), "the drain ends when the others have ended")
		assert.NoError(t, ended)
		assert.Equal(t, int64(5), w.c.committedAt(at(0)))
		close(h.release)
		w.sleep(5 * time.Second)
		w.allDone()
		assert.ErrorIs(t, h.causes[0], ErrOverdue)
	})
}

func TestGiveUp_WhileTheMemberWaitsForItsPlaceItIsToldOnce(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		w.settings.Assignors = []rebalance.Assignor{rebalance.CooperativeSticky()}
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(2 * time.Second)
		w.c.hook("JoinGroup", func(ctx context.Context) error {
			select {
			case <-time.After(20 * time.Second):
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(2 * time.Second)
		assert.Equal(t, "JOINING", w.state())
		assert.Len(t, eventsOf[event.ProcessingOverdue](w), 1)
		w.sleep(6 * time.Second)
		assert.Equal(t, "UNJOINED", w.state(), "half of the drain is the most that it waits")
		assert.Len(t, eventsOf[event.ProcessingOverdue](w), 1)
		assert.Equal(t, 1, linesWith(w.c.lines(), "leave "))
		assert.Equal(t, int64(5), w.c.committedAt(at(0)))
		w.c.hook("JoinGroup", nil)
		close(h.release)
		w.sleep(5 * time.Second)
		w.allDone()
	})
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
