package actors

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
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

// A refresh of the metadata that a frozen broker does not answer held up the search for the coordinator, which waited behind
// it, for RequestTimeout: by default the rest of the session.
func TestTree_AFrozenBrokerAskedForMetadataDoesNotKeepTheCoordinatorFromBeingFound(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(2)
		w.c.topic("orders", 1, 0)
		w.settings.MetadataMaxAge = 11 * time.Second
		w.start()
		w.sleep(10 * time.Second)
		w.c.produce(at(0), 5)
		w.sleep(500 * time.Millisecond)
		joins := w.c.count("JoinGroup")

		asked := 0 // guarded by the cluster's lock
		w.c.hook("Metadata", func(ctx context.Context) error {
			first := false
			w.c.with(func() {
				asked++
				first = asked == 1
			})
			if first {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		w.sleep(time.Second)
		w.c.with(func() {
			assert.Equal(t, 1, asked, "metadata was asked for")
			w.c.coordinator = 2
		})
		w.c.produce(at(0), 5)
		w.sleep(w.settings.SessionTimeout)
		assert.EqualValues(t, 10, w.c.committedAt(at(0)))
		assert.Equal(t, joins, w.c.count("JoinGroup"))
		assert.Empty(t, eventsOf[event.PartitionsLost](w))
	})
}

// An answer that takes longer than a sixth of the session is waited for in the end.
func TestTree_MetadataThatTakesLongIsGivenMoreTimeWithEachTry(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		w.c.hook("Metadata", func(ctx context.Context) error {
			select {
			case <-time.After(w.settings.SessionTimeout):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		w.start()
		w.sleep(5 * w.settings.SessionTimeout)
		assert.Equal(t, upTo(0, 5), w.offsets(at(0)))
	})
}

// By the backoff alone, one that came back after seven seconds was found after twelve: too late for the session.
func TestTree_ACoordinatorThatIsAwayIsSoughtAsOftenAsHeartbeatsAreDue(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c = newFakeCluster(2)
		w.c.topic("orders", 1, 0)
		w.settings.Backoff.Max = time.Minute
		w.start()
		w.sleep(10 * time.Second)
		joins, back := w.c.count("JoinGroup"), time.Now().Add(7*time.Second)
		w.c.hook("FindCoordinator", func(context.Context) error {
			if time.Now().Before(back) {
				return coded("FindCoordinator", kafka.CoordinatorNotAvailable)
			}
			return nil
		})
		w.c.with(func() { w.c.coordinator = 2 })
		w.c.produce(at(0), 5)
		w.sleep(time.Until(back) + 2*w.settings.HeartbeatInterval)
		assert.EqualValues(t, 5, w.c.committedAt(at(0)))
		assert.Equal(t, joins, w.c.count("JoinGroup"))
		assert.Empty(t, eventsOf[event.PartitionsLost](w))
	})
}
