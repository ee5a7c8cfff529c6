package actors

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
)

func (w *treeWorld) skip(offset int64) error {
	return w.tree.Skip(context.Background(), at(0), offset, "a test")
}

// poison fails at one record and does the others at once.
func poison(offset int64) func(context.Context, *kafka.Record) error {
	return func(_ context.Context, r *kafka.Record) error {
		if r.Offset == offset {
			return errors.New("poison")
		}
		return nil
	}
}

func TestSkip_EveryEngineGoesOnAtOnceWhereARecordHeldItUp(t *testing.T) {
	for _, after := range []time.Duration{50 * time.Millisecond, time.Minute} {
		t.Run("after "+after.String(), func(t *testing.T) {
			forEveryEngine(t, func(w *treeWorld, v *visits) {
				w.c.topic("orders", 1, 30)
				restart := &w.settings.Registrations[0].Restart
				restart.Backoff.Initial, restart.Backoff.Max = time.Second, time.Second
				restart.ProbeInitial, restart.ProbeMax = time.Hour, time.Hour
				v.set(poison(4))
				w.start()
				w.sleep(after)
				if after > time.Second {
					assert.ErrorIs(w.t, w.tree.Healthy(), ErrNotHealthy)
					assert.Equal(w.t, int64(4), w.tree.Stats().Partitions[0].Committed)
				}
				assert.NoError(w.t, w.skip(4))
				assert.NoError(w.t, w.tree.Healthy())
				w.sleep(1500 * time.Millisecond) // others of its batch have their own second to wait
				assert.Equal(w.t, int64(30), w.c.committedAt(at(0)))
				stats := w.tree.Stats().Partitions[0]
				assert.Equal(w.t, uint64(1), stats.Skipped)
				assert.Equal(w.t, uint64(30), stats.Acked)
				assert.Equal(w.t, "flowing", stats.Condition)
				skipped := eventsOf[event.RecordSkipped](w)
				if assert.Len(w.t, skipped, 1) {
					assert.Equal(w.t, int64(4), skipped[0].Offset)
					assert.Equal(w.t, "a test", skipped[0].Reason)
					assert.Positive(w.t, skipped[0].Attempt)
				}
				assert.Len(w.t, eventsOf[event.PartitionResumed](w), len(eventsOf[event.PartitionPaused](w)))
				assert.Equal(w.t, upTo(0, 30), distinct(v.since(0, at(0))))
			})
		})
	}
}

// A lane that waited with its record goes on by the Skip alone: nothing new comes that would tell of it.
func TestSkip_ADrainWaitsForWhatBeginsOnceARecordIsSkipped(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 2)
		reg := &w.settings.Registrations[0]
		reg.Order, reg.Workers, reg.KeyFunc = OrderKey, 1, func(*kafka.Record) []byte { return []byte("one") }
		reg.Restart.Backoff.Initial, reg.Restart.Backoff.Max = time.Hour, time.Hour
		ended := errors.New("not yet")
		w.setHandle(func(ctx context.Context, r *kafka.Record) error {
			if r.Offset == 0 {
				return errors.New("poison")
			}
			select {
			case <-time.After(3 * time.Second):
			case <-ctx.Done():
			}
			ended = ctx.Err()
			return ctx.Err()
		})
		w.start()
		w.sleep(2 * time.Second)
		assert.NoError(t, w.skip(0))
		w.sleep(time.Second)
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.NoError(t, ended, "the handler had its time")
		assert.Equal(t, int64(2), w.c.committedAt(at(0)))
		assert.Empty(t, eventsOf[event.HandlerAbandoned](w))
	})
}

func TestSkip_OfARecordAtWorkEndsItsContextAndWhatItsHandlerSaysChangesNothing(t *testing.T) {
	for name, says := range map[string]error{"done": nil, "failed": errors.New("failed")} {
		t.Run(name, func(t *testing.T) {
			forEveryEngine(t, func(w *treeWorld, v *visits) {
				w.c.topic("orders", 1, 30)
				v.set(func(ctx context.Context, r *kafka.Record) error {
					if r.Offset == 4 {
						<-ctx.Done()
						assert.ErrorIs(w.t, context.Cause(ctx), ErrSkipped)
						return says
					}
					return nil
				})
				w.start()
				w.sleep(time.Minute)
				assert.NoError(w.t, w.skip(4))
				w.sleep(3 * time.Second)
				assert.Equal(w.t, int64(30), w.c.committedAt(at(0)))
				assert.Equal(w.t, 1, count64(v.since(0, at(0)), 4))
				assert.Equal(w.t, upTo(0, 30), distinct(v.since(0, at(0))))
				assert.Equal(w.t, uint64(30), w.tree.Stats().Partitions[0].Acked)
				for offset := range int64(30) {
					refused, ok := errors.AsType[*SkipError](w.skip(offset))
					assert.True(w.t, ok)
					assert.Equal(w.t, "finished already", refused.Why)
				}
			})
		})
	}
}

func TestSkip_OfARecordBehindTheOneAtWorkNeverBeginsIt(t *testing.T) {
	forEveryEngine(t, func(w *treeWorld, v *visits) {
		w.c.topic("orders", 1, 30)
		reg := &w.settings.Registrations[0]
		reg.Workers = 1
		release := make(chan struct{})
		v.set(func(_ context.Context, r *kafka.Record) error {
			if r.Offset == 0 {
				<-release
			}
			return nil
		})
		w.start()
		w.sleep(time.Second)
		begun := v.since(0, at(0))
		target := int64(1)
		for count64(begun, target) > 0 {
			target += keysInTest
		}
		var refused *SkipError
		if err := w.skip(target); !errors.As(err, &refused) {
			assert.NoError(w.t, err)
			close(release)
			w.sleep(3 * time.Second)
			if reg.Batch == nil && reg.Actor == nil { // those have it already
				assert.Zero(w.t, count64(v.since(0, at(0)), target))
			}
		} else {
			assert.Equal(w.t, "not delivered yet", refused.Why)
			close(release)
			w.sleep(3 * time.Second)
		}
		assert.Equal(w.t, int64(30), w.c.committedAt(at(0)))
		for offset := range int64(30) {
			if offset != target {
				assert.Positive(w.t, count64(v.since(0, at(0)), offset), "offset %d", offset)
			}
		}
	})
}

func TestSkip_InsideOfTheHandlerOfTheRecord(t *testing.T) {
	forEveryEngine(t, func(w *treeWorld, v *visits) {
		w.c.topic("orders", 1, 30)
		started := make(chan struct{})
		v.set(func(ctx context.Context, r *kafka.Record) error {
			<-started
			if r.Offset != 4 {
				return nil
			}
			assert.NoError(w.t, w.tree.Skip(ctx, at(0), 4, "hopeless"))
			return context.Cause(ctx)
		})
		w.start()
		close(started)
		w.sleep(3 * time.Second)
		assert.Equal(w.t, int64(30), w.c.committedAt(at(0)))
		assert.Equal(w.t, 1, count64(v.since(0, at(0)), 4))
		assert.Empty(w.t, eventsOf[event.PartitionPaused](w))
	})
}

func TestSkip_WhatCannotBeSkippedIsATypedErrorThatSaysWhy(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.c.with(func() { l := w.c.log(at(0)); l.offsets = append(l.offsets[:6:6], l.offsets[7:]...) }) // no offset 6
		w.setHandle(poison(5))
		w.start()
		w.sleep(time.Second)
		why := func(err error) string {
			refused, ok := errors.AsType[*SkipError](err)
			assert.True(t, ok, err)
			assert.NotEmpty(t, refused.Want)
			return refused.Why
		}
		assert.Equal(t, "finished already", why(w.skip(4)))
		assert.Equal(t, "no record of that offset was delivered", why(w.skip(6)))
		assert.Equal(t, "not delivered yet", why(w.skip(10)))
		err := w.tree.Skip(context.Background(), kafka.WholeTopic("orders"), -3, " ")
		for _, part := range []string{"partition is -1", "offset is negative", "reason is empty"} {
			assert.ErrorContains(t, err, part)
		}
		assert.Equal(t, "reason has 256 bytes", why(w.tree.Skip(context.Background(), at(0), 5, strings.Repeat("x", 256))))
		_, ok := errors.AsType[*UnassignedError](w.tree.Skip(context.Background(), at(3), 5, "x"))
		assert.True(t, ok)
		assert.ErrorIs(t, w.tree.Skip(context.Background(), kafka.TopicPartition{Topic: "others"}, 5, "x"), ErrNotSubscribed)
		assert.NoError(t, w.skip(5))
		w.sleep(time.Second)
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
	})
}
