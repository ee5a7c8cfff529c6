package actors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

var (
	allOrders = []Order{OrderPartition, OrderKey, OrderNone}
	allKinds  = []string{"Record", "Batch", "Async", "Actor"}
)

// visit is one time that a handler had a record.
type visit struct {
	tp     kafka.TopicPartition
	offset int64
	cause  error
}

// visits has handlers of every kind do the same work, and keeps what they were given, in order, and what they finished.
type visits struct {
	mu sync.Mutex
	// work is what is done with a record.
	work  func(ctx context.Context, r *kafka.Record) error
	begun []visit
	good  []visit
	// open has the lanes at work.
	open   map[string]int64
	wrong  []string
	byLane func(r *kafka.Record) string
}

func newVisits(order Order) *visits {
	l := newKeyLedger(order == OrderKey)
	v := &visits{open: map[string]int64{}, byLane: l.lane}
	if order == OrderPartition {
		v.byLane = func(r *kafka.Record) string { return r.TopicPartition().String() }
	}
	v.work = func(ctx context.Context, _ *kafka.Record) error { return idle(ctx, 10*time.Millisecond) }
	return v
}

// idle takes its time, and less when the work is not wanted any more.
func idle(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func (v *visits) set(work func(ctx context.Context, r *kafka.Record) error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.work = work
}

func (v *visits) visit(ctx context.Context, r *kafka.Record) error {
	v.mu.Lock()
	lane := v.byLane(r)
	if other, busy := v.open[lane]; busy {
		v.wrong = append(v.wrong, fmt.Sprintf("%s: %d begins inside of %d", lane, r.Offset, other))
	}
	v.open[lane] = r.Offset
	at := len(v.begun)
	v.begun = append(v.begun, visit{tp: r.TopicPartition(), offset: r.Offset})
	work := v.work
	v.mu.Unlock()
	var err error
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.open, lane)
		if v.begun[at].cause = context.Cause(ctx); err == nil {
			v.good = append(v.good, v.begun[at])
		}
	}()
	err = work(ctx, r)
	return err
}

// mark returns how much was begun so far; since lists what was begun of a partition from there on and was not left by a seek.
func (v *visits) mark() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.begun)
}

func (v *visits) since(mark int, tp kafka.TopicPartition) (offsets []int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, seen := range v.begun[mark:] {
		if seen.tp == tp && !errors.Is(seen.cause, ErrSought) {
			offsets = append(offsets, seen.offset)
		}
	}
	return offsets
}

// ended returns how many handlers saw their context end with that cause.
func (v *visits) ended(cause error) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, seen := range v.begun {
		if errors.Is(seen.cause, cause) {
			n++
		}
	}
	return n
}

// install makes the registration's handler one of that kind.
func (v *visits) install(reg *Registration, order Order, kind string) {
	reg.Record, reg.Order, reg.Workers = nil, order, 4
	if order == OrderKey {
		reg.KeyFunc = keyOfTest
	}
	switch kind {
	case "Record":
		reg.Record = v.visit
	case "Batch":
		reg.MaxRecords = 2
		reg.Batch = func(ctx context.Context, records []kafka.Record) error {
			var failed error
			for i := range records {
				if errors.Is(context.Cause(ctx), ErrSought) {
					return nil // whatever it says is too late
				}
				if err := v.visit(ctx, &records[i]); err != nil {
					failed = err
				}
			}
			return failed
		}
	case "Async":
		reg.MaxRecords = 1
		reg.Async = func(ctx context.Context, d *RecordDelivery) {
			if err := v.visit(ctx, d.Record()); err != nil {
				_ = d.Nack(err)
				return
			}
			_ = d.Ack()
		}
	case "Actor":
		reg.MaxRecords = 3
		reg.Actor = func(kafka.TopicPartition) actor.Actor {
			return actor.ReceiveFunc(func(ctx actor.Context) {
				m, ok := ctx.Message().(*Deliver)
				if !ok {
					return
				}
				for i := range m.Records() {
					r := &m.Records()[i]
					if m.Context().Err() != nil {
						_ = m.Nack(r.Offset, context.Cause(m.Context()))
						continue
					}
					if err := v.visit(m.Context(), r); err != nil {
						_ = m.Nack(r.Offset, err)
						continue
					}
					_ = m.Ack(r.Offset)
				}
			})
		}
	}
}

func forEveryEngine(t *testing.T, f func(w *treeWorld, v *visits)) {
	t.Helper()
	for _, order := range allOrders {
		for _, kind := range allKinds {
			t.Run(order.String()+"/"+kind, func(t *testing.T) {
				inTree(t, func(w *treeWorld) {
					v := newVisits(order)
					w.t = t
					v.install(&w.settings.Registrations[0], order, kind)
					f(w, v)
					w.tree.StartClose(time.Now().Add(time.Minute))
					w.sleep(2 * time.Minute)
					assert.Empty(t, v.wrong)
				})
			})
		}
	}
}

// commitsSince lists the offsets committed for a partition from the i-th line of the journal on.
func (w *treeWorld) commitsSince(i int, tp kafka.TopicPartition) (offsets []int64) {
	for _, line := range w.c.lines()[i:] {
		var offset int64
		if rest, ok := strings.CutPrefix(line, "commit "+tp.String()+" "); ok {
			_, err := fmt.Sscan(rest, &offset)
			assert.NoError(w.t, err)
			offsets = append(offsets, offset)
		}
	}
	return offsets
}

func (w *treeWorld) seek(to rebalance.StartPosition, partitions ...kafka.TopicPartition) {
	w.t.Helper()
	assert.NoError(w.t, w.tree.Seek(context.Background(), to, partitions))
}

func TestSeek_EveryEngineGoesOnThereAndNothingOfTheOldPositionBegins(t *testing.T) {
	forEveryEngine(t, func(w *treeWorld, v *visits) {
		w.c.topic("orders", 2, 60)
		w.start()
		w.sleep(105 * time.Millisecond)
		idle := int64(0)
		for _, to := range []struct {
			position rebalance.StartPosition
			offset   int64
		}{
			{rebalance.StartAtOffset(3), 3},
			{rebalance.StartAtOffset(45), 45},
			{rebalance.StartBy(rebalance.ResetEarliest), 0},
			{rebalance.StartAtOffset(20), 20},
		} {
			mark := v.mark() // afterwards the first may have begun already; what begins before takes longer than the call
			w.seek(to.position, at(0))
			line := len(w.c.lines())
			w.sleep(10 * time.Second)
			begun := v.since(mark, at(0))
			if assert.NotEmpty(w.t, begun) {
				assert.Equal(w.t, to.offset, slices.Min(begun))
				assert.Equal(w.t, upTo(to.offset, 60), distinct(begun))
			}
			for i, offset := range w.commitsSince(line, at(0)) {
				assert.True(w.t, offset >= to.offset || i == 0, "only one that was on its way is of the old position: %d", offset)
			}
			assert.Equal(w.t, int64(60), w.c.committedAt(at(0)))
			idle = w.tree.Stats().MemoryHeld
			w.seek(rebalance.StartAtOffset(0), at(0))
			w.sleep(55 * time.Millisecond)
		}
		assert.Equal(w.t, upTo(0, 60), distinct(v.since(0, at(1))))
		assert.Equal(w.t, int64(60), w.c.committedAt(at(1)))
		w.sleep(10 * time.Second)
		assert.Positive(w.t, v.ended(ErrSought))
		assert.Equal(w.t, idle, w.tree.Stats().MemoryHeld)
	})
}

func TestSeek_ToTheEndCommitsTheEndAndDeliversWhatComes(t *testing.T) {
	forEveryEngine(t, func(w *treeWorld, v *visits) {
		w.c.topic("orders", 1, 60)
		w.start()
		w.sleep(45 * time.Millisecond)
		mark := v.mark()
		w.seek(rebalance.StartBy(rebalance.ResetLatest))
		assert.Equal(w.t, int64(60), w.tree.Stats().Partitions[0].Position)
		w.sleep(time.Second)
		assert.Equal(w.t, int64(60), w.c.committedAt(at(0)))
		w.c.produce(at(0), 3)
		w.sleep(time.Second)
		assert.Equal(w.t, upTo(60, 63), distinct(v.since(mark, at(0))))
		assert.Equal(w.t, int64(63), w.c.committedAt(at(0)))
	})
}

func TestSeek_TheNextDeliveryWaitsForTheCallThatRunsAndSeekDoesNot(t *testing.T) {
	forEveryEngine(t, func(w *treeWorld, v *visits) {
		w.c.topic("orders", 1, 10)
		release := make(chan struct{})
		v.set(func(context.Context, *kafka.Record) error { <-release; return nil })
		w.start()
		w.sleep(time.Second)
		began := time.Now()
		w.seek(rebalance.StartAtOffset(5))
		w.seek(rebalance.StartAtOffset(7))
		assert.Zero(w.t, time.Since(began))
		mark := v.mark()
		w.sleep(time.Minute)
		assert.Empty(w.t, v.since(mark, at(0)))
		assert.Equal(w.t, int64(7), w.c.committedAt(at(0)), "the position is committed meanwhile")
		close(release)
		w.sleep(time.Second)
		assert.Equal(w.t, upTo(7, 10), distinct(v.since(mark, at(0))))
		assert.Positive(w.t, w.tree.Stats().StaleAcks)
		assert.Equal(w.t, int64(10), w.c.committedAt(at(0)))
	})
}

func TestSeek_OverARecordThatFailsLeavesNoTrace(t *testing.T) {
	forEveryEngine(t, func(w *treeWorld, v *visits) {
		w.c.topic("orders", 1, 30)
		w.settings.Registrations[0].Restart.ProbeInitial = time.Hour
		w.settings.Registrations[0].Restart.ProbeMax = time.Hour
		v.set(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 4 {
				return errors.New("poison")
			}
			return nil
		})
		w.start()
		w.sleep(time.Minute)
		assert.ErrorIs(w.t, w.tree.Healthy(), ErrNotHealthy)
		assert.NotEmpty(w.t, eventsOf[event.PartitionPaused](w))
		w.seek(rebalance.StartAtOffset(5), at(0))
		w.sleep(time.Second)
		assert.NoError(w.t, w.tree.Healthy())
		assert.Len(w.t, eventsOf[event.PartitionResumed](w), len(eventsOf[event.PartitionPaused](w)))
		assert.Equal(w.t, int64(30), w.c.committedAt(at(0)))
		assert.Equal(w.t, "flowing", w.tree.Stats().Partitions[0].Condition)
	})
}

func TestSeek_InsideOfAHandlerEndsItsContextAndDoesNotWait(t *testing.T) {
	for _, to := range []rebalance.StartPosition{rebalance.StartAtOffset(0), rebalance.StartBy(rebalance.ResetEarliest)} {
		t.Run(to.String(), func(t *testing.T) {
			forEveryEngine(t, func(w *treeWorld, v *visits) {
				w.c.topic("orders", 1, 20)
				var once sync.Once
				started, marked := make(chan struct{}), make(chan int, 1)
				v.set(func(ctx context.Context, r *kafka.Record) error {
					<-started
					if r.Offset == 10 {
						once.Do(func() {
							marked <- v.mark()
							assert.NoError(w.t, w.tree.Seek(ctx, to, []kafka.TopicPartition{r.TopicPartition()}))
							assert.ErrorIs(w.t, context.Cause(ctx), ErrSought)
						})
					}
					return nil
				})
				w.start()
				close(started)
				w.sleep(5 * time.Second)
				assert.Equal(w.t, int64(20), w.c.committedAt(at(0)))
				// Other workers may be at any of the records before: what they have then is stale, and comes again with the rest.
				assert.Equal(w.t, upTo(0, 20), distinct(v.since(<-marked, at(0))))
				assert.Equal(w.t, 1, len(eventsOf[event.PositionReset](w))-1)
			})
		})
	}
}

func count64(list []int64, value int64) (n int) {
	for _, v := range list {
		if v == value {
			n++
		}
	}
	return n
}

func TestSeek_APausedPartitionStaysPaused(t *testing.T) {
	forEveryEngine(t, func(w *treeWorld, v *visits) {
		w.c.topic("orders", 1, 30)
		w.start()
		w.sleep(25 * time.Millisecond)
		assert.NoError(w.t, w.tree.Pause(context.Background(), nil))
		mark := v.mark()
		w.seek(rebalance.StartAtOffset(20), at(0))
		assert.NoError(w.t, w.tree.Pause(context.Background(), nil), "nothing runs")
		w.sleep(time.Minute)
		assert.Equal(w.t, mark, v.mark())
		assert.Equal(w.t, int64(20), w.c.committedAt(at(0)))
		assert.NoError(w.t, w.tree.Resume(context.Background(), nil))
		w.sleep(time.Second)
		assert.Equal(w.t, upTo(20, 30), distinct(v.since(mark, at(0))))
	})
}
