package actors

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestTree_JoinsDeliversCommitsAndLeavesInThatOrder(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 12)
		w.start()
		assert.NoError(t, w.tree.WaitJoined(context.Background()))
		w.sleep(time.Second)
		for p := range int32(2) {
			assert.Equal(t, upTo(0, 12), w.offsets(at(p)))
		}
		w.c.produce(at(1), 3)
		w.sleep(20 * time.Millisecond)
		assert.Equal(t, upTo(0, 15), w.offsets(at(1)))
		assert.NoError(t, w.tree.Healthy())
		assert.NoError(t, w.tree.Close(context.Background()))
		assert.NoError(t, w.tree.Err())
		lines := w.c.lines()
		assert.Equal(t, int64(12), w.c.committedAt(at(0)))
		assert.Equal(t, int64(15), w.c.committedAt(at(1)))
		assert.Less(t, index(lines, "commit orders-1 15"), index(lines, "leave member-1"))
		assert.Equal(t, len(lines)-1, index(lines, "leave member-1"), "nothing after leaving")
	})
}

func TestTree_HolesInTheLogNeverBlockTheCommit(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 0)
		w.c.with(func() {
			l := w.c.log(at(0))
			l.offsets, l.start, l.end = []int64{3, 4, 9, 40}, 3, 41
		})
		w.start()
		w.sleep(2 * time.Second)
		assert.Equal(t, []int64{3, 4, 9, 40}, w.offsets(at(0)))
		assert.Equal(t, int64(41), w.c.committedAt(at(0)))
	})
}

func TestTree_ConcurrencyLimitsHandlersAndStarvesNobody(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 6, 20)
		w.settings.Concurrency = 2
		w.settings.Registrations[0].MaxRecords = 2
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			time.Sleep(time.Duration(1+r.Partition) * time.Millisecond)
			return nil
		})
		w.start()
		w.sleep(5 * time.Second)
		assert.Equal(t, 2, w.most)
		for p := range int32(6) {
			assert.Equal(t, upTo(0, 20), w.offsets(at(p)))
		}
	})
}

func TestTree_ASlotThatIsFreeIsUsedAlsoWhileAnotherIsHeldForEver(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 6, 10)
		w.settings.Concurrency = 2
		stuck := make(chan struct{})
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 3 && r.Offset == 0 {
				<-stuck
			}
			time.Sleep(time.Millisecond)
			return nil
		})
		w.start()
		w.sleep(10 * time.Second)
		for p := range int32(6) {
			if p != 3 {
				assert.Equal(t, upTo(0, 10), w.offsets(at(p)), "partition %d", p)
			}
		}
		close(stuck)
		w.sleep(time.Second)
		assert.Equal(t, upTo(0, 10), w.offsets(at(3)))
	})
}

func TestTree_ABudgetBelowOneAnswerStillMakesProgress(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 4, 50)
		w.settings.MemoryBudget = 7
		w.start()
		w.sleep(30 * time.Second)
		for p := range int32(4) {
			assert.Equal(t, upTo(0, 50), w.offsets(at(p)))
		}
	})
}

func TestTree_ABlockedHandlerHoldsNobodyElseUp(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 4, 50)
		w.settings.MemoryBudget = 1 << 16
		release := make(chan struct{})
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Partition == 2 {
				<-release
			}
			return nil
		})
		w.start()
		w.sleep(2 * time.Second)
		for _, p := range []int32{0, 1, 3} {
			assert.Equal(t, upTo(0, 50), w.offsets(at(p)))
		}
		assert.NoError(t, w.tree.Healthy())
		w.c.produce(at(0), 5)
		w.sleep(50 * time.Millisecond)
		assert.Equal(t, upTo(0, 55), w.offsets(at(0)))
		close(release)
		w.sleep(2 * time.Second)
		assert.Equal(t, upTo(0, 50), w.offsets(at(2)))
	})
}

func TestTree_MailboxesStayShortUnderLoad(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 8, 0)
		most := 0
		w.setHandle(func(_ context.Context, r *kafka.Record) error {
			if r.Offset%10 == 0 {
				for _, a := range w.tree.shared.sys.alive() {
					w.mu.Lock()
					most = max(most, a.Queued)
					w.mu.Unlock()
				}
			}
			return nil
		})
		w.start()
		w.sleep(time.Second)
		for p := range int32(8) {
			w.c.produce(at(p), 500)
		}
		w.sleep(30 * time.Second)
		for p := range int32(8) {
			assert.Len(t, w.offsets(at(p)), 500)
		}
		assert.Less(t, most, 40)
	})
}
