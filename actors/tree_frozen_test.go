package actors

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
)

// A coordinator that freezes keeps its connections and answers nothing, and so does the first broker that is asked where
// the coordinator has moved to. Neither may use up the session, or hold a commit for longer than it takes to find the
// new one.
func TestTree_AFrozenCoordinatorCostsNeitherTheMembershipNorTheCommits(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(2)
		w.c.topic("orders", 1, 0)
		w.start()
		w.sleep(10 * time.Second)
		w.c.produce(at(0), 5)
		w.sleep(time.Second)
		assert.EqualValues(t, 5, w.c.committedAt(at(0)))
		joins := w.c.count("JoinGroup")

		frozen, finds := true, 0 // guarded by the cluster's lock
		hang := func(ctx context.Context) error {
			stuck := false
			w.c.with(func() { stuck = frozen })
			if stuck {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		for _, api := range []string{"Heartbeat", "OffsetCommit"} {
			w.c.hook(api, hang)
		}
		w.c.hook("FindCoordinator", func(ctx context.Context) error {
			first := false
			w.c.with(func() {
				finds++
				first = finds == 1
				frozen = first // whoever is asked from the second time on knows the new one, which serves
			})
			if first {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		w.c.with(func() { w.c.coordinator = 2 })
		w.c.produce(at(0), 5)
		w.sleep(w.settings.SessionTimeout)
		assert.EqualValues(t, 10, w.c.committedAt(at(0)))
		assert.Equal(t, joins, w.c.count("JoinGroup"))
		assert.Empty(t, eventsOf[event.PartitionsLost](w))
	})
}
