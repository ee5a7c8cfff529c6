package actors

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

func goexit() { runtime.Goexit() }

// useActors has the records handled by actors that note what they get; onDeliver does the work, nil acknowledges all after
// a millisecond.
func (w *treeWorld) useActors(onDeliver func(ctx actor.Context, d *Deliver)) (journal func() []string) {
	var mu sync.Mutex
	var lines []string
	w.settings.Registrations[0].Record = nil
	w.settings.Registrations[0].Actor = func(tp kafka.TopicPartition) actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			mu.Lock()
			switch m := ctx.Message().(type) {
			case *Assigned:
				lines = append(lines, fmt.Sprintf("%s assigned %d", tp, m.Position))
			case *Deliver:
				lines = append(lines, fmt.Sprintf("%s deliver %d", tp, m.Records()[0].Offset))
			case *Revoking:
				lines = append(lines, fmt.Sprintf("%s revoking", tp))
			case *Lost:
				lines = append(lines, fmt.Sprintf("%s lost", tp))
			}
			mu.Unlock()
			if d, ok := ctx.Message().(*Deliver); ok {
				if onDeliver != nil {
					onDeliver(ctx, d)
					return
				}
				w.ackLater(d, time.Millisecond)
			}
		})
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), lines...)
	}
}

// ackLater acknowledges a delivery from another goroutine, backwards, after a while.
func (w *treeWorld) ackLater(d *Deliver, after time.Duration) {
	leave := w.enter(d.TopicPartition(), d.Records()[0].Offset)
	time.AfterFunc(after, func() {
		records := d.Records()
		leave()
		for i := len(records) - 1; i >= 0; i-- {
			if d.Ack(records[i].Offset) == nil {
				w.note(d.TopicPartition(), records[i].Offset)
			}
		}
	})
}

func TestTree_AnActorGetsItsMessagesInOrderAndAcknowledgesFromAnywhere(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 12)
		journal := w.useActors(nil)
		w.start()
		w.sleep(2 * time.Second)
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Equal(t, []string{
			"orders-0 assigned 0", "orders-0 deliver 0", "orders-0 deliver 5", "orders-0 deliver 10", "orders-0 revoking",
		}, journal())
		assert.Equal(t, int64(12), w.c.committedAt(at(0)))
		assert.Zero(t, w.tree.Stats().StaleAcks)
	})
}

func TestTree_ARefusedRecordComesAgainToTheActorWithoutThoseAcknowledged(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		var got [][]int64
		w.useActors(func(_ actor.Context, d *Deliver) {
			var offsets []int64
			for _, r := range d.Records() {
				offsets = append(offsets, r.Offset)
			}
			got = append(got, offsets)
			for _, o := range offsets {
				if len(got) <= 2 && (o == 2 || o == 4) {
					_ = d.Nack(o, errHandler)
				} else {
					_ = d.Ack(o)
				}
			}
		})
		w.start()
		w.sleep(3 * time.Second)
		assert.Equal(t, [][]int64{upTo(0, 5), {2, 4}, {2, 4}, upTo(5, 10)}, got)
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
		assert.Len(t, eventsOf[event.HandlerFailed](w), 2)
	})
}

func TestTree_ActorsShareTheMembersSlots(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 6, 20)
		w.settings.Concurrency = 2
		w.useActors(nil)
		w.start()
		w.sleep(5 * time.Second)
		assert.Equal(t, 2, w.most)
		for p := range int32(6) {
			assert.Equal(t, upTo(0, 20), distinct(w.offsets(at(p))))
			assert.Equal(t, int64(20), w.c.committedAt(at(p)))
		}
	})
}

func TestTree_AnActorThatFailsIsReplacedAloneAndGetsTheRecordsAgain(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 8)
		failures := 0
		journal := w.useActors(func(_ actor.Context, d *Deliver) {
			if d.Records()[0].Offset == 5 && failures == 0 {
				failures++
				_ = d.Ack(5)
				panic("actor bug")
			}
			_ = d.AckAll()
		})
		w.start()
		w.sleep(3 * time.Second)
		assert.Equal(t, []string{
			"orders-0 assigned 0", "orders-0 deliver 0", "orders-0 deliver 5", "orders-0 assigned 6", "orders-0 deliver 6",
		}, journal())
		assert.Equal(t, int64(8), w.c.committedAt(at(0)))
		assert.Equal(t, uint64(1), w.tree.Stats().Rebalances)
	})
}

// Partition 0's actor is stuck in its Receive over a rebalance while the one slot is taken: the new actor gets first its
// gate and then, in its turn, the slot.
func TestTree_AnActorThatWaitedForItsGateStillGetsItsSlot(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 3)
		w.settings.Concurrency = 1
		gate, slot := make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.useActors(func(_ actor.Context, d *Deliver) {
			if d.TopicPartition() == at(0) {
				once.Do(func() {
					_ = d.AckAll()
					w.c.with(func() { w.c.rebalancing = true })
					<-gate
				})
			} else {
				<-slot
			}
			_ = d.AckAll()
		})
		w.start()
		w.sleep(500 * time.Millisecond)
		w.c.produce(at(0), 3)
		w.sleep(5 * time.Second)
		close(gate)
		w.sleep(5 * time.Second)
		close(slot)
		w.sleep(30 * time.Second)
		assert.Equal(t, int64(6), w.c.committedAt(at(0)))
		assert.Equal(t, int64(3), w.c.committedAt(at(1)))
	})
}

func TestTree_AnActorHearsOfItsPartitionBeforeItIsDecidedWhereItStarts(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		var mu sync.Mutex
		var got []string
		note := func(format string, a ...any) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprintf(format, a...))
		}
		w.settings.Registrations[0].Record = nil
		w.settings.Registrations[0].Actor = func(kafka.TopicPartition) actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				switch m := ctx.Message().(type) {
				case *Assigning:
					note("assigning %s of epoch %d", m.TopicPartition, m.Epoch)
				case *Assigned:
					note("assigned at %d", m.Position)
				case *Deliver:
					note("deliver")
					w.ackLater(m, time.Millisecond)
				}
			})
		}
		w.settings.Callbacks = Callbacks{Timeout: 10 * time.Second, Assigning: func(context.Context, *Token, []kafka.TopicPartition) error {
			time.Sleep(time.Second)
			note("its start may be decided")
			return nil
		}}
		w.start()
		w.sleep(3 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, []string{"assigning orders-0 of epoch 1", "its start may be decided", "assigned at 0", "deliver"}, got)
	})
}

func TestTree_AnActorHearsRevokingOrLostBeforeItIsStoppedHoweverBusyItIs(t *testing.T) {
	for word, end := range map[string]func(w *treeWorld){
		"revoking": func(w *treeWorld) { _ = w.tree.Abandon(context.Background()) },
		"lost":     func(w *treeWorld) { w.c.with(func() { w.c.frozen = true }) },
	} {
		t.Run(word, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 1)
				release := make(chan struct{})
				journal := w.useActors(func(_ actor.Context, d *Deliver) {
					<-release
					assert.ErrorIs(t, d.AckAll(), ErrStale)
				})
				w.start()
				w.sleep(2 * time.Second)
				end(w)
				w.sleep(time.Minute)
				assert.Equal(t, []string{"orders-0 assigned 0", "orders-0 deliver 0"}, journal(), "it is busy")
				close(release)
				w.sleep(time.Second)
				assert.Equal(t, []string{"orders-0 assigned 0", "orders-0 deliver 0", "orders-0 " + word}, journal())
			})
		})
	}
}

func TestTree_AnActorThatComesWhileItsPartitionIsGivenUpHearsSo(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 1)
		w.settings.Callbacks = Callbacks{Timeout: 10 * time.Second, Revoking: func(context.Context, *Token, []kafka.TopicPartition) error {
			time.Sleep(5 * time.Second)
			return nil
		}}
		journal := w.useActors(func(actor.Context, *Deliver) {
			time.Sleep(3 * time.Second)
			panic("actor bug")
		})
		w.start()
		w.sleep(2 * time.Second)
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Equal(t, []string{"orders-0 assigned 0", "orders-0 deliver 0", "orders-0 assigned 0", "orders-0 revoking"}, journal())
	})
}

func TestTree_AnActorHearsLostThoughThePartitionsActorIsStoppedInTheDrain(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 1)
		journal := w.useActors(func(actor.Context, *Deliver) {})
		w.start()
		w.sleep(2 * time.Second)
		go func() { _ = w.tree.Close(context.Background()) }()
		w.sleep(time.Second)
		w.kill("partition-orders-0-1")
		w.sleep(time.Minute)
		assert.Equal(t, []string{"orders-0 assigned 0", "orders-0 deliver 0", "orders-0 revoking", "orders-0 lost"}, journal())
	})
}
