package actors

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/kafka"
)

// gauge is a handler that holds its calls until they are let go.
type gauge struct {
	release chan struct{}
	running atomic.Int64
}

func (g *gauge) handle(ctx context.Context, _ *kafka.Record) error {
	g.running.Add(1)
	defer g.running.Add(-1)
	select {
	case <-g.release:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// finish lets n calls return.
func (g *gauge) finish(n int) {
	for range n {
		g.release <- struct{}{}
	}
}

func TestTree_ConcurrencyMayChangeUnderRunningHandlers(t *testing.T) {
	for _, order := range []Order{OrderPartition, OrderKey, OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 6, 30)
				w.settings.Registrations[0].Order, w.settings.Registrations[0].Workers, w.settings.Registrations[0].MaxRecords = order, 6, 1
				w.settings.Registrations[0].KeyFunc = func(*kafka.Record) []byte { return nil }
				h := &gauge{release: make(chan struct{})}
				w.settings.Registrations[0].Record = func(ctx context.Context, r *kafka.Record) error {
					err := h.handle(ctx, r)
					if err == nil {
						w.note(r.TopicPartition(), r.Offset)
					}
					return err
				}
				w.start()
				set := func(n int) {
					assert.NoError(t, w.tree.SetConcurrency(context.Background(), n))
					assert.Equal(t, n, w.tree.Stats().Concurrency)
					w.sleep(time.Second)
				}
				running := func(want int64, why string) {
					t.Helper()
					w.sleep(time.Second)
					assert.Equal(t, want, h.running.Load(), why)
				}
				running(6, "no limit")
				set(2)
				running(6, "nothing is canceled")
				h.finish(3)
				running(3, "and nobody begins before enough have returned")
				h.finish(2)
				running(2, "from here on it is the limit")
				set(4)
				running(4, "those that wait begin at once")
				w.kill("group")
				w.sleep(30 * time.Second)
				running(4, "the next group actor has the same limit")
				set(0)
				running(6, "without a limit all begin")
				set(1)
				set(3)
				h.finish(4)
				running(3, "raised before enough had returned")
				close(h.release)
				w.sleep(time.Minute)
				for i := range int32(6) {
					assert.Equal(t, upTo(0, 30), distinct(w.offsets(at(i))))
				}
				assert.Zero(t, w.tree.shared.slots.used.Load())
				assert.NoError(t, w.tree.Close(context.Background()))
				assert.ErrorIs(t, w.tree.SetConcurrency(context.Background(), 1), ErrClosing)
			})
		})
	}
}

func TestTree_ConcurrencyMayChangeWithoutAGroupAndBeforeTheFirstJoin(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.c.with(func() { w.c.coordinator = 0 })
		w.start()
		assert.NoError(t, w.tree.SetConcurrency(context.Background(), 1))
		w.c.with(func() { w.c.coordinator = 1 })
		w.sleep(5 * time.Second)
		assert.Equal(t, 1, w.most)
		assert.Equal(t, upTo(0, 10), w.offsets(at(1)))
	})
}

// TestSlots_WhateverTheLimitBecomesEverybodyGetsATurn has goroutines enter and leave under limits that change, and actors'
// waits among them. Nobody waits for ever, and never do more get in than the highest limit of the time allows.
func TestSlots_WhateverTheLimitBecomesEverybodyGetsATurn(t *testing.T) {
	s := newSlots(newSystem(nil, nil), 3)
	defer s.sys.shutdown()
	var inside, turns atomic.Int64
	var wg sync.WaitGroup
	ended := make(chan struct{})
	for i := range 8 {
		wg.Go(func() {
			waiter := &channelWaiter{name: fmt.Sprint(i), woken: make(chan struct{}, 1)}
			for range 2000 {
				for !s.enterAs(waiter) {
					<-waiter.woken
				}
				if n := inside.Add(1); n > 8 {
					t.Errorf("%d are inside", n)
				}
				turns.Add(1)
				inside.Add(-1)
				s.leave()
			}
		})
	}
	go func() {
		defer close(ended)
		for i := 0; turns.Load() < 8*2000; i++ {
			s.setLimit([]int{1, 0, 2, 5, 0, 1, 8}[i%7])
		}
	}()
	wg.Wait()
	<-ended
	assert.Zero(t, s.used.Load())
	s.setLimit(2)
	assert.Empty(t, s.queue)
	first := &actor.PID{Id: "first"}
	assert.True(t, s.enter(first))
	assert.True(t, s.enter(&actor.PID{Id: "second"}))
	assert.False(t, s.enter(&actor.PID{Id: "third"}))
}

type channelWaiter struct {
	name  string
	woken chan struct{}
}

func (w *channelWaiter) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

func (w *channelWaiter) same(other slotWaiter) bool { return other == slotWaiter(w) }
