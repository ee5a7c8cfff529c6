package actors

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// subscribe adds a handler of records of topics that notes them.
func (w *treeWorld) subscribe(record RecordHandler, topics ...string) error {
	return w.tree.ChangeSubscription(context.Background(), func([]Registration) (SubscriptionChange, error) {
		return SubscriptionChange{Added: []Registration{w.like(record, topics...)}}, nil
	})
}

// like is the world's own registration for other topics.
func (w *treeWorld) like(record RecordHandler, topics ...string) Registration {
	r := w.settings.Registrations[0]
	r.Topics, r.Allow, r.Deny, r.Record = topics, nil, nil, record
	return r
}

func (w *treeWorld) unsubscribe(topics ...string) error {
	return w.tree.ChangeSubscription(context.Background(), func(current []Registration) (SubscriptionChange, error) {
		var change SubscriptionChange
		for _, topic := range topics {
			for i := range current {
				if slices.Contains(current[i].Topics, topic) {
					change.Topics = append(change.Topics, topic)
				} else if slices.Contains(current[i].Allow, topic) {
					change.Patterns = append(change.Patterns, i)
				}
			}
		}
		return change, nil
	})
}

func on(topic string, partition int32) kafka.TopicPartition {
	return kafka.TopicPartition{Topic: topic, Partition: partition}
}

// inBoth runs a test under an eager and under a cooperative assignor.
func inBoth(t *testing.T, test func(w *treeWorld, cooperative bool)) {
	for _, assignor := range []rebalance.Assignor{rebalance.Range(), rebalance.CooperativeSticky()} {
		t.Run(assignor.Name(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.settings.Assignors = []rebalance.Assignor{assignor}
				test(w, assignor.Protocol() == rebalance.Cooperative)
			})
		})
	}
}

func TestTree_ATopicSubscribedAtRunTimeIsHandledAndTheOthersGoOn(t *testing.T) {
	inBoth(t, func(w *treeWorld, cooperative bool) {
		w.c.topic("orders", 2, 10)
		w.c.topic("refunds", 2, 10)
		w.start()
		w.sleep(2 * time.Second)
		before := w.tree.Stats().Partitions
		assert.NoError(w.t, w.subscribe(w.record, "refunds", "not there"))
		assert.Equal(w.t, []string{"not there", "orders", "refunds"}, w.tree.Stats().Subscription)
		w.sleep(5 * time.Second)
		assert.Equal(w.t, []string{"not there"}, w.tree.Stats().MissingTopics)
		for i := range int32(2) {
			assert.Equal(w.t, upTo(0, 10), w.offsets(at(i)))
			assert.Equal(w.t, upTo(0, 10), w.offsets(on("refunds", i)))
			if cooperative {
				assert.Equal(w.t, before[i].Epoch, w.tree.Stats().Partitions[i].Epoch, "handled on")
			}
		}
		changes := eventsOf[event.SubscriptionChanged](w)
		if assert.Len(w.t, changes, 1) {
			assert.Equal(w.t, []string{"not there", "refunds"}, changes[0].Added)
		}
		w.kill("group")
		w.sleep(time.Minute)
		assert.Len(w.t, w.tree.Stats().Partitions, 4, "the next group actor has it as well")
		assert.NoError(w.t, w.tree.Healthy())
	})
}

func TestTree_ATopicLetGoIsDrainedCommittedAndMayHaveAnotherHandler(t *testing.T) {
	inBoth(t, func(w *treeWorld, cooperative bool) {
		w.c.topic("orders", 1, 10)
		w.c.topic("refunds", 1, 10)
		w.settings.Registrations[0].Topics = []string{"orders", "refunds"}
		release := make(chan struct{})
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Topic == "refunds" && r.Offset == 4 {
				<-release
			}
			return nil
		})
		w.start()
		w.sleep(2 * time.Second)
		kept := w.tree.Stats().Partitions[0].Epoch
		assert.NoError(w.t, w.unsubscribe("refunds"))
		var mu sync.Mutex
		var second []int64
		assert.NoError(w.t, w.subscribe(func(_ context.Context, r *kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			defer w.enter(r.TopicPartition(), r.Offset)()
			second = append(second, r.Offset)
			return nil
		}, "refunds"))
		w.sleep(2 * time.Second)
		assert.Equal(w.t, upTo(0, 4), w.offsets(on("refunds", 0)), "it drains")
		w.c.produce(at(0), 5)
		if w.sleep(time.Second); cooperative {
			assert.Equal(w.t, upTo(0, 15), w.offsets(at(0)), "the other topic does not wait for the drain")
		}
		close(release)
		w.sleep(5 * time.Second)
		assert.Equal(w.t, upTo(0, 5), w.offsets(on("refunds", 0)))
		mu.Lock()
		assert.Equal(w.t, upTo(5, 10), second, "goes on at what was committed")
		mu.Unlock()
		if cooperative {
			assert.Equal(w.t, kept, w.tree.Stats().Partitions[0].Epoch)
		}
		assert.Equal(w.t, int64(10), w.c.committedAt(on("refunds", 0)))
	})
}

func TestTree_WithoutTopicsTheMemberStaysInTheGroup(t *testing.T) {
	inBoth(t, func(w *treeWorld, _ bool) {
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(2 * time.Second)
		assert.NoError(w.t, w.unsubscribe("orders"))
		w.sleep(30 * time.Second)
		stats := w.tree.Stats()
		assert.Equal(w.t, "ASSIGNED", stats.State)
		assert.Empty(w.t, stats.Partitions)
		assert.Empty(w.t, stats.Subscription)
		assert.NoError(w.t, w.tree.Healthy())
		assert.ErrorIs(w.t, w.tree.Pause(context.Background(), []kafka.TopicPartition{at(0)}), ErrNotSubscribed)
		w.kill("group")
		w.sleep(time.Minute)
		assert.Equal(w.t, "ASSIGNED", w.state())
		w.c.produce(at(0), 5)
		assert.NoError(w.t, w.subscribe(w.record, "orders"))
		w.sleep(5 * time.Second)
		assert.Equal(w.t, upTo(0, 15), w.offsets(at(0)))
	})
}

func TestTree_ANameTakesATopicOverFromAPatternAndGivesItBack(t *testing.T) {
	inBoth(t, func(w *treeWorld, cooperative bool) {
		w.c.topic("orders", 1, 5)
		w.c.topic("other", 1, 5)
		w.settings.Registrations[0].Topics, w.settings.Registrations[0].Allow = nil, []string{"o.*"}
		w.start()
		w.sleep(2 * time.Second)
		kept := w.tree.Stats().Partitions[0].Epoch
		var mu sync.Mutex
		var named []int64
		assert.NoError(w.t, w.subscribe(func(_ context.Context, r *kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			named = append(named, r.Offset)
			return nil
		}, "other"))
		w.c.produce(on("other", 0), 5)
		w.sleep(5 * time.Second)
		mu.Lock()
		assert.Equal(w.t, upTo(5, 10), named)
		mu.Unlock()
		assert.NoError(w.t, w.unsubscribe("other"))
		w.c.produce(on("other", 0), 5)
		w.sleep(5 * time.Second)
		assert.Equal(w.t, slices.Concat(upTo(0, 5), upTo(10, 15)), w.offsets(on("other", 0)))
		if cooperative {
			assert.Equal(w.t, kept, w.tree.Stats().Partitions[0].Epoch)
		}
		assert.NoError(w.t, w.unsubscribe("o.*"))
		w.sleep(5 * time.Second)
		assert.Empty(w.t, w.tree.Stats().Partitions)
		assert.NoError(w.t, w.tree.ChangeSubscription(context.Background(), func(current []Registration) (SubscriptionChange, error) {
			assert.Empty(w.t, current)
			pattern := w.like(w.record)
			pattern.Allow = []string{"ord.*"}
			return SubscriptionChange{Added: []Registration{pattern}}, nil
		}))
		w.c.produce(at(0), 5)
		w.sleep(5 * time.Second)
		assert.Equal(w.t, []string{"orders"}, w.tree.Stats().Subscription)
		assert.Equal(w.t, upTo(0, 10), w.offsets(at(0)))
	})
}

func TestTree_ASubscriptionMayChangeInEveryState(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		w.c.topic("refunds", 1, 5)
		w.c.with(func() { w.c.coordinator = 0 })
		w.start()
		assert.NoError(t, w.subscribe(w.record, "refunds"), "before the first join")
		w.sleep(3 * time.Second)
		assert.NoError(t, w.unsubscribe("orders"), "without a coordinator")
		w.c.with(func() { w.c.coordinator = 1 })
		w.sleep(5 * time.Second)
		assert.Equal(t, []string{"refunds"}, w.tree.Stats().Subscription)
		assert.Equal(t, upTo(0, 5), w.offsets(on("refunds", 0)))
		assert.Empty(t, w.offsets(at(0)))

		answers := make(chan error, 10)
		for i := range cap(answers) { // some while the group is there, some with its death in their way
			go func() { answers <- w.subscribe(w.record, fmt.Sprint("t", i)) }()
		}
		w.kill("group")
		go func() { answers <- w.subscribe(w.record, "orders") }()
		for range cap(answers) + 1 {
			assert.NoError(t, <-answers)
		}
		w.sleep(time.Minute)
		assert.Len(t, w.tree.Stats().Subscription, 12)
		assert.Len(t, w.tree.Stats().Partitions, 2)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		err := w.tree.ChangeSubscription(ended, func([]Registration) (SubscriptionChange, error) { return SubscriptionChange{}, nil })
		if err != nil { // it may be answered before it looks at the context
			assert.ErrorIs(t, err, context.Canceled)
		}
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.ErrorIs(t, w.subscribe(w.record, "late"), ErrClosing)
	})
}

func TestTree_APatternSubscribedWhileTheFirstLookIsAwaitedLosesNoName(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		w.c.topic("refunds", 1, 5)
		w.c.topic("named", 1, 5)
		w.settings.Registrations[0].Topics, w.settings.Registrations[0].Allow = nil, []string{"or.*"}
		var first sync.Once
		w.c.hook("Metadata", func(context.Context) error {
			first.Do(func() { time.Sleep(time.Second) })
			return nil
		})
		w.start()
		w.sleep(100 * time.Millisecond)
		assert.NoError(t, w.subscribe(w.record, "named"))
		w.sleep(5 * time.Second)
		assert.Equal(t, []string{"named", "orders"}, w.tree.Stats().Subscription)
		assert.Equal(t, 1, linesWith(w.c.lines(), "join "), "one rebalance for all")
		assert.Equal(t, upTo(0, 5), w.offsets(on("named", 0)))
	})
}

func TestTree_AMemberThatRestsTakesASubscriptionOverAndComesBackWithIt(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		w.c.topic("refunds", 1, 5)
		h := newHanging("0@5")
		w.setHandle(h.handle)
		w.start()
		w.sleep(time.Minute)
		assert.Equal(t, "UNJOINED", w.state(), "it rests")
		joins := linesWith(w.c.lines(), "join ")
		assert.NoError(t, w.subscribe(w.record, "refunds"))
		w.sleep(5 * time.Second)
		assert.Equal(t, joins, linesWith(w.c.lines(), "join "), "nothing of it makes it join")
		close(h.release)
		w.sleep(5 * time.Second)
		assert.Equal(t, upTo(0, 5), w.offsets(on("refunds", 0)))
		w.allDone()
	})
}

func TestTree_WithoutAGroupThereIsNoSubscriptionToChange(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.tree = &Tree{shared: &shared{standalone: &standalone{}}}
		assert.ErrorIs(t, w.subscribe(w.record, "orders"), ErrNoGroup)
		w.tree = nil
	})
}

func TestTree_TheWorkersOfARegistrationThatIsGoneAreGone(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 50)
		w.c.topic("refunds", 2, 10)
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers = OrderKey, 4
		w.settings.Concurrency = 1
		w.setHandle(func(context.Context, *kafka.Record) error {
			time.Sleep(50 * time.Millisecond)
			return nil
		})
		w.start()
		w.sleep(time.Second)
		assert.NoError(t, w.subscribe(w.record, "refunds"))
		gone := weak.Make(w.tree.shared.handlers.Load().entry("orders").pool)
		w.sleep(3 * time.Second)
		assert.NoError(t, w.unsubscribe("orders"))
		w.sleep(20 * time.Second)
		assert.Equal(t, upTo(0, 10), distinct(w.offsets(on("refunds", 0))), "they hold no place of the member")
		assert.NoError(t, w.tree.Rejoin(context.Background(), "calls that are answered are forgotten with the next one"))
		for range 5 {
			runtime.GC()
		}
		assert.Nil(t, gone.Value(), "somebody still knows the workers")
	})
}

// TestTree_WhateverIsSubscribedToAndLetGoNothingIsLost changes the subscription, joins again and kills group actors at
// random. Every record is handled, one handler at a time, and in order under each ownership.
func TestTree_WhateverIsSubscribedToAndLetGoNothingIsLost(t *testing.T) {
	for seed := range uint64(12) {
		inBoth(t, func(w *treeWorld, _ bool) {
			random := rand.New(rand.NewPCG(seed, 7))
			topics := []string{"orders", "refunds", "carts"}
			for _, topic := range topics {
				w.c.topic(topic, 2, 0)
			}
			w.settings.TreeRestart.MaxRestarts = 1000
			w.settings.Registrations[0].Order, w.settings.Registrations[0].Workers = Order(seed%3), 3
			w.settings.Registrations[0].KeyFunc = func(*kafka.Record) []byte { return []byte("one") }
			w.setHandle(func(ctx context.Context, r *kafka.Record) error {
				select {
				case <-time.After(time.Duration(r.Offset*7%20) * time.Millisecond):
				case <-ctx.Done():
				}
				return nil
			})
			w.start()
			subscribed := map[string]bool{"orders": true}
			produced := make(map[kafka.TopicPartition]int64)
			record := w.record
			if seed%3 == uint64(OrderNone) { // two of a partition at once are right
				record = func(ctx context.Context, r *kafka.Record) error {
					w.note(r.TopicPartition(), r.Offset)
					return nil
				}
				assert.NoError(w.t, w.unsubscribe("orders"))
				assert.NoError(w.t, w.subscribe(record, "orders"))
			}
			for range 60 {
				topic := topics[random.IntN(3)]
				switch random.IntN(8) {
				case 0, 1, 2:
					if subscribed[topic] {
						assert.NoError(w.t, w.unsubscribe(topic))
					} else {
						assert.NoError(w.t, w.subscribe(record, topic))
					}
					subscribed[topic] = !subscribed[topic]
				case 3:
					assert.NoError(w.t, w.tree.Rejoin(context.Background(), "random"))
				case 4:
					there := slices.ContainsFunc(w.tree.shared.sys.alive(), func(a LiveActor) bool { return a.Role == "group" })
					if there && random.IntN(4) == 0 {
						w.kill("group")
					}
				default:
					tp := on(topic, random.Int32N(2))
					w.c.produce(tp, 5)
					produced[tp] += 5
				}
				w.sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			}
			for _, topic := range topics {
				if !subscribed[topic] {
					assert.NoError(w.t, w.subscribe(record, topic))
				}
			}
			w.sleep(2 * time.Minute)
			for tp, end := range produced {
				assert.Equal(w.t, upTo(0, end), distinct(w.offsets(tp)), "%v", tp)
				assert.Equal(w.t, end, w.c.committedAt(tp), "%v", tp)
			}
			assert.NoError(w.t, w.tree.Healthy())
			assert.Empty(w.t, eventsOf[event.Refused](w))
		})
	}
}
