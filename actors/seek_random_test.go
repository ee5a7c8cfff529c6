package actors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

// TestSeek_RandomHistoriesLoseNothingAfterTheLastSeek seeks, skips, pauses, fails, kills and rebalances at random. No two calls
// overlap on a lane; no commit goes beyond what the present position has finished; and everything from the last sought position
// on is delivered, but for what was skipped since. A seek whose ownership ends before it is committed, since its actor died just
// then, is over: the commit decides.
func TestSeek_RandomHistoriesLoseNothingAfterTheLastSeek(t *testing.T) {
	for _, order := range allOrders {
		for _, kind := range allKinds {
			for seed := range uint64(6) {
				t.Run(fmt.Sprintf("%s/%s/%d", order, kind, seed), func(t *testing.T) { randomSeeks(t, order, kind, seed) })
			}
		}
	}
}

func randomSeeks(t *testing.T, order Order, kind string, seed uint64) {
	inTree(t, func(w *treeWorld) {
		w.t = t
		random := rand.New(rand.NewPCG(seed, uint64(len(kind))))
		v := newVisits(order)
		v.install(&w.settings.Registrations[0], order, kind)
		w.settings.Registrations[0].Restart.MaxRestarts = 5
		w.settings.TreeRestart.MaxRestarts = 1000
		v.set(func(ctx context.Context, r *kafka.Record) error {
			if r.Offset%17 == 3 && time.Now().UnixMilli()%3 == 0 {
				return errors.New("now and then")
			}
			return idle(ctx, time.Duration(r.Offset%13)*time.Millisecond)
		})
		w.c.topic("orders", 1, 150)
		w.start()
		w.sleep(50 * time.Millisecond)
		from, mark, released := int64(0), 0, 0
		skipped := map[int64]bool{}
		for range 40 {
			switch random.IntN(10) {
			case 0, 1, 2:
				to, offset := rebalance.StartBy(rebalance.ResetEarliest), int64(0)
				if random.IntN(3) > 0 {
					offset = random.Int64N(150)
					to = rebalance.StartAtOffset(offset)
				}
				before, gone := v.mark(), len(eventsOf[event.PartitionReleased](w)) // afterwards the first may have begun already
				if w.tree.Seek(context.Background(), to, nil) == nil {
					from, mark, released, skipped = offset, before, gone, map[int64]bool{}
				}
			case 3, 4:
				if stats := w.tree.Stats().Partitions; len(stats) > 0 && stats[0].Position > 0 {
					if offset := max(stats[0].Position-1-random.Int64N(8), 0); w.skip(offset) == nil {
						skipped[offset] = true
					}
				}
			case 5:
				assert.NoError(t, w.tree.Pause(context.Background(), nil))
				w.sleep(time.Duration(random.IntN(50)) * time.Millisecond)
				assert.NoError(t, w.tree.Resume(context.Background(), nil))
			case 6:
				w.sleep(0)
				for _, c := range w.tree.shared.board.owned() {
					if pid := c.pid.Load(); pid != nil && random.IntN(2) == 0 {
						w.tree.shared.sys.root.Stop(pid) // behind its supervisor's back; it may be dead already
					}
				}
			case 7:
				_ = w.tree.Rejoin(context.Background(), "a test")
			default:
				w.sleep(time.Duration(random.IntN(200)) * time.Millisecond)
			}
			for _, stats := range w.tree.Stats().Partitions {
				if stats.Position >= 0 && stats.InTransit < 0 {
					t.Fatalf("%+v", stats)
				}
			}
		}
		w.sleep(20 * time.Minute)
		assert.Equal(t, int64(150), w.c.committedAt(at(0)))
		for _, e := range eventsOf[event.PartitionReleased](w)[released:] {
			if e.Committed == kafka.NoOffset {
				from = 150
			}
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		assert.Empty(t, v.wrong)
		done := map[int64]bool{}
		for _, seen := range v.begun[mark:] {
			done[seen.offset] = done[seen.offset] || !errors.Is(seen.cause, ErrSought)
		}
		for offset := from; offset < 150; offset++ {
			assert.True(t, done[offset] || skipped[offset], "offset %d of %d", offset, from)
		}
	})
}
