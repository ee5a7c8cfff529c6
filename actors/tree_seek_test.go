package actors

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// seekEngines are the ways in which records reach a handler; each notes what it handles.
func seekEngines(w *treeWorld, block func(ctx context.Context, offset int64) error) map[string]Registration {
	base := Registration{Topics: []string{"orders"}, Workers: 4, MaxRecords: 10, Reset: rebalance.ResetEarliest, Restart: w.settings.Registrations[0].Restart}
	note := func(ctx context.Context, r *kafka.Record) error {
		if err := block(ctx, r.Offset); err != nil {
			return err
		}
		w.note(at(0), r.Offset)
		return nil
	}
	engines := make(map[string]Registration)
	for _, order := range []Order{OrderPartition, OrderKey, OrderNone} {
		record, batch, async, own := base, base, base, base
		record.Record = note
		batch.Batch = func(ctx context.Context, records []kafka.Record) error {
			for i := range records {
				if err := note(ctx, &records[i]); err != nil {
					return err
				}
			}
			return nil
		}
		async.Async = func(ctx context.Context, d *RecordDelivery) {
			go func() {
				if note(ctx, d.Record()) == nil {
					_ = d.Ack()
				}
			}()
		}
		own.Actor = func(kafka.TopicPartition) actor.Actor {
			return actorFunc(func(c actor.Context) {
				if m, ok := c.Message().(*Deliver); ok {
					for i := range m.Records() {
						if note(m.Context(), &m.Records()[i]) == nil {
							_ = m.Ack(m.Records()[i].Offset)
						}
					}
				}
			})
		}
		for name, reg := range map[string]Registration{"record": record, "batch": batch, "async": async, "actor": own} {
			reg.Order = order
			engines[order.String()+"/"+name] = reg
		}
	}
	return engines
}

type actorFunc func(actor.Context)

func (f actorFunc) Receive(ctx actor.Context) { f(ctx) }

// A seek back while records are handled: everything from there on comes again, nothing of the old position is committed.
func TestSeek_EveryEngineGoesOnAtTheNewPosition(t *testing.T) {
	for name := range seekEngines(&treeWorld{settings: Settings{Registrations: make([]Registration, 1)}}, nil) {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 1, 100)
				var held bool
				stuck := func(ctx context.Context, offset int64) error {
					if offset == 60 && !held {
						held = true
						<-ctx.Done()
						return context.Cause(ctx)
					}
					return nil
				}
				w.settings.Registrations[0] = seekEngines(w, stuck)[name]
				w.start()
				w.sleep(3 * time.Second)
				assert.NoError(t, w.tree.Seek(context.Background(), rebalance.StartAtOffset(20), []kafka.TopicPartition{at(0)}))
				w.sleep(30 * time.Second)
				times := make(map[int64]int)
				for _, offset := range w.offsets(at(0)) {
					times[offset]++
				}
				for offset := range int64(100) {
					switch {
					case offset < 20:
						assert.Equal(t, 1, times[offset], "offset %d lies before the new position", offset)
					case offset < 50:
						assert.Equal(t, 2, times[offset], "offset %d comes again", offset)
					default:
						assert.GreaterOrEqual(t, times[offset], 1, "offset %d", offset)
					}
				}
				assert.Equal(t, int64(100), w.c.committedAt(at(0)))
				i := slices.IndexFunc(eventsOf[event.PositionReset](w), func(e event.PositionReset) bool { return e.Reason == "seek" })
				assert.GreaterOrEqual(t, i, 0, "it is told")
				assert.LessOrEqual(t, w.tree.Stats().MemoryHeld, int64(4096), "what the fetch that is out may bring")
				assert.NoError(t, w.tree.Close(context.Background()))
			})
		})
	}
}

func TestSeek_ToThePlacesThatAreLookedUp(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.start()
		w.sleep(time.Second)
		ctx := context.Background()
		assert.NoError(t, w.tree.Seek(ctx, rebalance.StartBy(rebalance.ResetEarliest), []kafka.TopicPartition{at(0)}))
		w.sleep(time.Second)
		assert.Len(t, w.offsets(at(0)), 20)
		assert.Len(t, w.offsets(at(1)), 10, "the other one is not touched")
		assert.NoError(t, w.tree.Pause(ctx, nil))
		w.c.produce(at(0), 5)
		assert.NoError(t, w.tree.Seek(ctx, rebalance.StartBy(rebalance.ResetLatest), nil))
		assert.NoError(t, w.tree.Resume(ctx, nil))
		w.sleep(time.Second)
		assert.Len(t, w.offsets(at(0)), 20, "what lay before the end is passed over")
		assert.Equal(t, int64(15), w.c.committedAt(at(0)))
		var position *rebalance.StartPositionError
		assert.ErrorAs(t, w.tree.Seek(ctx, rebalance.StartAtOffset(-1), nil), &position)
		assert.ErrorAs(t, w.tree.Seek(ctx, rebalance.StartBy(rebalance.ResetNone), nil), &position)
		var unassigned *UnassignedError
		assert.ErrorAs(t, w.tree.Seek(ctx, rebalance.StartAtOffset(1), []kafka.TopicPartition{at(7)}), &unassigned)
		assert.Equal(t, []kafka.TopicPartition{at(7)}, unassigned.Partitions)
	})
}

// OnAssigning's token may seek, and that decides where the partition starts, not the commit.
func TestSeek_InOnAssigningDecidesTheStart(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 10)
		w.c.with(func() { w.c.committed[at(0)] = CommittedOffset{Offset: 8, LeaderEpoch: kafka.NoLeaderEpoch} })
		w.settings.Callbacks = Callbacks{Timeout: time.Second, Assigning: func(ctx context.Context, token *Token, partitions []kafka.TopicPartition) error {
			return token.Seek(ctx, rebalance.StartAtOffset(3), partitions...)
		}}
		w.start()
		w.sleep(2 * time.Second)
		assert.Equal(t, []int64{3, 4, 5, 6, 7, 8, 9}, w.offsets(at(0)))
		assert.Empty(t, eventsOf[event.CallbackFailed](w))
		assert.Equal(t, int64(10), w.c.committedAt(at(0)))
	})
}
