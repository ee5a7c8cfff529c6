package actors

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// named notes each call with its partitions and what its token covers, and then does something.
func (l *callbackLog) named(name string, does func(ctx context.Context)) PartitionsFunc {
	return func(ctx context.Context, token *Token, partitions []kafka.TopicPartition) error {
		l.add(fmt.Sprintf("%s %d over %d", name, len(partitions), len(token.Partitions())))
		clear(partitions) // they are the callback's own
		if does != nil {
			does(ctx)
		}
		return nil
	}
}

func TestCallbacks_OneThatWaitedForItsTurnHasItsWholeTimeAndNoTokenOverWhatIsGone(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		l := &callbackLog{}
		first := true
		w.settings.Callbacks = Callbacks{
			Assigning: l.named("assigning", nil),
			Assigned: l.named("assigned", func(context.Context) {
				if first { // its partitions are lost meanwhile, and it does not heed that
					first = false
					w.c.expel()
					time.Sleep(4 * time.Second)
				}
			}),
			Lost:    l.named("lost", func(ctx context.Context) { <-ctx.Done() }),
			Timeout: 5 * time.Second,
		}
		w.start()
		w.sleep(20 * time.Second)
		assert.Equal(t, []string{"assigning 2 over 2", "assigned 2 over 2", "lost 2 over 0", "assigning 2 over 2", "assigned 2 over 2"}, l.all(),
			"by the time that it is told of the loss they are its again")
		failed := eventsOf[event.CallbackFailed](w)
		names := make([]string, len(failed))
		for i, e := range failed {
			names[i] = e.Callback
			assert.NotEmpty(t, e.Partitions[0].Topic, "the event's are not what the callback has changed")
		}
		assert.Empty(t, names[1:], "OnAssigned is hurried once its partitions are lost")
	})
}

func TestCallbacks_OneWhoseContextIsEndedBeforeItsTimeIsToldWhyAndHasNotFailed(t *testing.T) {
	for name, c := range map[string]struct {
		end func(w *treeWorld)
		why error
	}{
		"revoked": {func(w *treeWorld) { w.c.with(func() { w.c.rebalancing = true }) }, rebalance.ErrRevoked},
		"lost":    {func(w *treeWorld) { w.c.expel() }, rebalance.ErrLost},
		"closed":  {func(w *treeWorld) { assert.NoError(w.t, w.tree.Close(context.Background())) }, rebalance.ErrRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 2, 5)
				var causes []error
				w.settings.Callbacks = Callbacks{Strict: true, Timeout: time.Hour, Assigned: func(ctx context.Context, _ *Token, _ []kafka.TopicPartition) error {
					if len(causes) > 0 {
						return nil
					}
					<-ctx.Done()
					causes = append(causes, context.Cause(ctx))
					return ctx.Err()
				}}
				w.start()
				w.sleep(2 * time.Second)
				c.end(w)
				w.sleep(20 * time.Second)
				assert.Equal(t, []error{c.why}, causes)
				assert.Empty(t, eventsOf[event.CallbackFailed](w))
				assert.NoError(t, w.tree.Err())
				if name != "closed" {
					assert.Equal(t, "ASSIGNED", w.state())
				}
			})
		})
	}
}

func TestCallbacks_OnesThatWaitDoNotKeepOneWithLessTimeWaiting(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 4, 5)
		l := &callbackLog{}
		slow := func(ctx context.Context) { <-ctx.Done() }
		w.settings.DrainTimeout = 2 * time.Second
		w.settings.Callbacks = Callbacks{
			Assigning: l.named("assigning", slow), Assigned: l.named("assigned", slow), Lost: l.named("lost", slow),
			Revoking: l.named("revoking", nil), Revoked: l.named("revoked", nil), Timeout: time.Hour,
		}
		w.start()
		w.sleep(2 * time.Second)
		w.c.expel() // OnLost and OnAssigning wait behind the first
		w.sleep(2 * time.Second)
		start := time.Now()
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Less(t, time.Since(start), time.Second)
		var names []string
		for _, line := range l.all() {
			name, _, _ := strings.Cut(line, " ")
			names = append(names, name)
		}
		assert.Equal(t, []string{"assigning", "lost", "assigning", "revoking", "revoked"}, names)
	})
}

func TestCallbacks_WhatIsLostWithAGroupActorIsToldByTheNextOne(t *testing.T) {
	for name, slow := range map[string]bool{"idle": false, "while OnRevoked waits": true} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 2, 5)
				l := &callbackLog{}
				block := func(ctx context.Context) {
					if slow {
						<-ctx.Done()
					}
				}
				w.settings.Callbacks = Callbacks{
					Assigning: l.named("assigning", nil), Assigned: l.named("assigned", nil), Revoking: l.named("revoking", block),
					Revoked: l.named("revoked", nil), Lost: l.named("lost", nil), Timeout: 5 * time.Second,
				}
				w.join()
				want := []string{"assigning 2 over 2", "assigned 2 over 2"}
				if slow {
					w.c.with(func() { w.c.rebalancing = true })
					w.sleep(2 * time.Second)
					want = append(want, "revoking 2 over 2")
				}
				w.kill("group")
				w.sleep(10 * time.Second)
				assert.Equal(t, append(want, "lost 2 over 2", "assigning 2 over 2", "assigned 2 over 2"), l.all())
				assert.Equal(t, "ASSIGNED", w.state())
			})
		})
	}
}

func TestCallbacks_NobodyHearsOfTheEndOfWhatTheyWereNotToldOf(t *testing.T) {
	for name, end := range map[string]func(w *treeWorld){
		"revoked": func(w *treeWorld) { w.c.with(func() { w.c.rebalancing = true }) },
		"lost":    func(w *treeWorld) { w.c.expel() },
		"died":    func(w *treeWorld) { w.kill("group") },
	} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 2, 5)
				w.c.hook("OffsetFetch", func(context.Context) error { return coded("OffsetFetch", kafka.CoordinatorLoadInProgress) }) // no start is decided
				l := &callbackLog{}
				w.settings.Callbacks = Callbacks{
					Assigned: l.named("assigned", nil), Revoking: l.named("revoking", nil), Revoked: l.named("revoked", nil),
					Lost: l.named("lost", nil), Timeout: 5 * time.Second,
				}
				w.start()
				w.sleep(2 * time.Second)
				end(w)
				w.sleep(3 * time.Second)
				assert.Empty(t, l.all())
				w.c.hook("OffsetFetch", nil)
				w.sleep(20 * time.Second)
				assert.Equal(t, []string{"assigned 2 over 2"}, l.all())
				assert.NoError(t, w.tree.Close(context.Background()))
				assert.Equal(t, []string{"revoking 2 over 2", "revoked 2 over 2"}, l.all()[1:])
			})
		})
	}
}
