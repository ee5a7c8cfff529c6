package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

// callbackLog notes what is called, and when it has returned.
type callbackLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *callbackLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *callbackLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

func (l *callbackLog) call(name string, does func(ctx context.Context) error) PartitionsFunc {
	return func(ctx context.Context, _ *Token, partitions []kafka.TopicPartition) error {
		l.add(fmt.Sprint(name, " ", len(partitions)))
		defer l.add(name + " end")
		if does != nil {
			return does(ctx)
		}
		return nil
	}
}

func TestCallbacks_ComeInOrderAndNothingIsDeliveredOrGivenUpBeforeTheyReturn(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		l := &callbackLog{}
		slow := func(context.Context) error { time.Sleep(2 * time.Second); return nil }
		w.settings.Callbacks = Callbacks{
			Assigned: l.call("assigned", slow), Revoking: l.call("revoking", slow), Revoked: l.call("revoked", slow), Lost: l.call("lost", nil),
			Timeout: 10 * time.Second,
		}
		w.setHandle(func(context.Context, *kafka.Record) error { l.add("record"); return nil })
		w.start()
		w.sleep(time.Second)
		assert.Equal(t, []string{"assigned 2"}, l.all(), "nothing is delivered yet")
		w.sleep(4 * time.Second)
		assert.Equal(t, 10, len(l.all())-2)
		assert.Equal(t, "assigned end", l.all()[1])
		joins := count32(w.c.lines(), "join")
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(3500 * time.Millisecond) // heartbeat after at most a second, then revoking for two
		assert.Equal(t, joins, count32(w.c.lines(), "join"), "no JoinGroup while a callback holds the partitions")
		w.sleep(30 * time.Second)
		assert.Equal(t, []string{
			"revoking 2", "revoking end", "revoked 2", "revoked end", "assigned 2", "assigned end",
		}, l.all()[12:])
		assert.Empty(t, eventsOf[event.CallbackFailed](w))
		assert.Empty(t, eventsOf[event.PartitionsLost](w), "waiting for a callback is no loss")
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.Equal(t, []string{"revoking 2", "revoking end", "revoked 2", "revoked end"}, l.all()[18:])
	})
}

func count32(lines []string, prefix string) (n int) {
	for _, line := range lines {
		if len(line) >= len(prefix) && line[:len(prefix)] == prefix {
			n++
		}
	}
	return n
}

func TestCallbacks_ThatFailPanicOrNeverReturnAreToldAndHoldNobodyForEver(t *testing.T) {
	never := make(chan struct{})
	for name, does := range map[string]func(context.Context) error{
		"error":  func(context.Context) error { return errors.New("no") },
		"panic":  func(context.Context) error { panic("no") },
		"heeds":  func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
		"blocks": func(context.Context) error { <-never; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				never = make(chan struct{})
				defer close(never)
				w.c.topic("orders", 2, 5)
				l := &callbackLog{}
				w.settings.Callbacks = Callbacks{
					Assigned: l.call("assigned", does), Revoking: l.call("revoking", does), Revoked: l.call("revoked", does), Timeout: 5 * time.Second,
				}
				w.start()
				w.sleep(7 * time.Second)
				assert.Len(t, w.offsets(at(0)), 5, "delivered all the same")
				w.c.with(func() { w.c.rebalancing = true })
				w.sleep(time.Minute)
				assert.NotEmpty(t, eventsOf[event.CallbackFailed](w))
				assert.Equal(t, "ASSIGNED", w.state())
				assert.Equal(t, int64(5), w.c.committedAt(at(0)))
				w.c.produce(at(0), 2)
				w.sleep(10 * time.Second)
				assert.Equal(t, int64(7), w.c.committedAt(at(0)))
				start := time.Now()
				_ = w.tree.Close(context.Background())
				assert.LessOrEqual(t, time.Since(start), 20*time.Second)
			})
		})
	}
}

func TestCallbacks_ALossIsToldInPlaceOfARevocation(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		l := &callbackLog{}
		w.settings.Callbacks = Callbacks{
			Assigned: l.call("assigned", nil), Revoking: l.call("revoking", nil), Revoked: l.call("revoked", nil), Lost: l.call("lost", nil),
			Timeout: 5 * time.Second,
		}
		w.start()
		w.sleep(2 * time.Second)
		w.c.with(func() { w.c.frozen = true })
		w.sleep(15 * time.Second)
		w.c.with(func() { w.c.frozen = false })
		w.sleep(30 * time.Second)
		assert.Equal(t, []string{"assigned 2", "assigned end", "lost 2", "lost end", "assigned 2", "assigned end"}, l.all())
	})
}

func TestCallbacks_AnOnRevokedThatNeverReturnsLosesNothing(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 5)
		release := make(chan struct{})
		defer close(release)
		var calls atomic.Int32
		w.settings.Callbacks = Callbacks{Timeout: time.Second, Revoked: func(context.Context, *Token, []kafka.TopicPartition) error {
			if calls.Add(1) == 1 {
				<-release
			}
			return nil
		}}
		w.start()
		w.sleep(2 * time.Second)
		w.c.with(func() { w.c.rebalancing = true })
		w.sleep(time.Minute)
		failed := eventsOf[event.CallbackFailed](w)
		if assert.Len(t, failed, 1) {
			assert.ErrorIs(t, failed[0].Err, ErrCallbackOverdue)
		}
		assert.Empty(t, eventsOf[event.PartitionsLost](w), "all of it was drained and committed")
		assert.Equal(t, "ASSIGNED", w.state())
		assert.Equal(t, int64(5), w.c.committedAt(at(0)))
	})
}
