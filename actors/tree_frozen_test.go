package actors

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
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

// From the JoinGroup on the coordinator knows a member in the new generation alone. What it keeps goes on for as long as the others
// take, also where SyncGroup is refused since somebody came, and JoinGroup is waited for once more.
func TestTree_KeptPartitionsOutlastARebalanceThatTakesLongerThanASession(t *testing.T) {
	for name, refused := range map[string]bool{"SyncGroup is answered late": false, "SyncGroup is refused, and JoinGroup late": true} {
		t.Run(name, func(t *testing.T) {
			inTree(t, func(w *treeWorld) {
				w.c.topic("orders", 2, 5)
				w.settings.Assignors, w.settings.RebalanceTimeout = []rebalance.Assignor{rebalance.CooperativeSticky()}, time.Minute
				w.start()
				w.sleep(5 * time.Second)
				late := func(ctx context.Context) error {
					w.c.with(func() { w.c.rebalancing = refused })
					select {
					case <-time.After(4 * w.settings.SessionTimeout):
					case <-ctx.Done():
					}
					return ctx.Err()
				}
				if refused {
					first := true
					w.c.hook("SyncGroup", func(context.Context) error {
						if !first {
							return nil
						}
						first = false
						w.c.hook("JoinGroup", late)
						return coded("SyncGroup", kafka.RebalanceInProgress)
					})
				} else {
					w.c.hook("SyncGroup", late)
				}
				w.c.with(func() { w.c.rebalancing = true })
				w.sleep(2 * time.Second)
				w.sleep(3 * w.settings.SessionTimeout)
				assert.Contains(t, []string{"JOINING", "SYNCING"}, w.state())
				w.c.produce(at(0), 5)
				w.sleep(2 * time.Second)
				assert.Equal(t, upTo(0, 10), w.offsets(at(0)))
				w.sleep(2 * w.settings.SessionTimeout)
				assert.Equal(t, "ASSIGNED", w.state())
				assert.EqualValues(t, 10, w.c.committedAt(at(0)))
				assert.Equal(t, upTo(0, 10), w.offsets(at(0)))
				assert.Empty(t, eventsOf[event.PartitionsLost](w))
			})
		})
	}
}
