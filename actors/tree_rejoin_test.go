package actors

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/event"
)

func TestTree_ARejoinIsAnsweredInEveryStateAndNeverWaitsForAGroupThatDied(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 2, 10)
		w.start()
		assert.NoError(t, w.tree.Rejoin(context.Background(), "before the first join"))
		w.sleep(2 * time.Second)
		before := w.tree.Stats().Rebalances
		assert.NoError(t, w.tree.Rejoin(context.Background(), "asked for"))
		w.sleep(2 * time.Second)
		assert.Equal(t, before+1, w.tree.Stats().Rebalances)

		answers := make(chan error, 20)
		for range cap(answers) { // some while the group is there, some with its death in their way, some between two groups
			go func() { answers <- w.tree.Rejoin(context.Background(), "while it dies") }()
		}
		w.kill("group")
		for range cap(answers) {
			go func() { answers <- w.tree.Rejoin(context.Background(), "while it is dead") }()
		}
		for range 2 * cap(answers) {
			assert.NoError(t, <-answers)
		}
		w.sleep(time.Minute)
		assert.NoError(t, w.tree.Healthy())
		assert.Equal(t, upTo(0, 10), distinct(w.offsets(at(0))))

		assert.NoError(t, w.tree.Close(context.Background()))
		assert.ErrorIs(t, w.tree.Rejoin(context.Background(), "too late"), ErrClosing)
	})
}

func TestTree_APatternAsksForWhatThereIsAlsoAfterTheGroupActorDied(t *testing.T) {
	inTree(t, func(w *treeWorld) {
		w.c.topic("orders", 1, 5)
		w.settings.Registrations[0].Topics = nil
		w.settings.Registrations[0].Allow, w.settings.Registrations[0].Deny = []string{"or.*", "other"}, []string{".*x"}
		w.start()
		w.sleep(time.Second)
		assert.Equal(t, []string{"orders"}, w.tree.Stats().Subscription)
		w.c.topic("orx", 1, 5)
		w.c.topic("other", 1, 5)
		w.sleep(w.settings.MetadataMaxAge + time.Second)
		assert.Equal(t, []string{"orders", "other"}, w.tree.Stats().Subscription)
		w.kill("group")
		w.sleep(time.Minute)
		assert.NoError(t, w.tree.Healthy())
		assert.Equal(t, []string{"orders", "other"}, w.tree.Stats().Subscription)
		assert.Len(t, eventsOf[event.SubscriptionChanged](w), 3, "at the start, when topics came, and of the new group actor")
		assert.Len(t, w.tree.Stats().Partitions, 2)
	})
}

func TestTree_AMemberThatRestsFollowsItsPatternAndNothingMakesItJoinSooner(t *testing.T) {
	inLimitedTree(t, func(w *treeWorld) {
		w.settings.Registrations[0].Topics, w.settings.Registrations[0].Allow = nil, []string{"or.*", "other"}
		h := newHanging("0@5")
		w.setHandle(h.handle)
		var first sync.Once
		w.c.hook("Metadata", func(context.Context) error {
			first.Do(func() { time.Sleep(2 * time.Second) })
			return nil
		})
		w.start()
		w.sleep(time.Second)
		assert.Equal(t, "UNJOINED", w.state(), "it waits for its topics")
		assert.NoError(t, w.tree.Rejoin(context.Background(), "nothing is known yet"))
		w.sleep(3500 * time.Millisecond)
		assert.Equal(t, "ASSIGNED", w.state())
		w.sleep(time.Second)
		assert.NoError(t, w.tree.Rejoin(context.Background(), "while it gives up"))
		w.sleep(2 * time.Second)
		assert.Equal(t, "UNJOINED", w.state(), "it rests")

		joins := linesWith(w.c.lines(), "join ")
		w.c.topic("other", 1, 5)
		assert.NoError(t, w.tree.Rejoin(context.Background(), "while it rests"))
		w.sleep(w.settings.MetadataMaxAge + time.Second)
		assert.Equal(t, []string{"orders", "other"}, w.tree.Stats().Subscription)
		w.kill("group")
		w.sleep(30 * time.Second)
		assert.NoError(t, w.tree.Rejoin(context.Background(), "while the next one rests"))
		w.sleep(time.Second)
		assert.Equal(t, "UNJOINED", w.state())
		assert.ErrorIs(t, w.tree.Healthy(), ErrOverdue)
		assert.Equal(t, joins, linesWith(w.c.lines(), "join "), "nothing of it makes it join")

		close(h.release)
		w.sleep(200 * time.Millisecond)
		assert.NoError(t, w.tree.Healthy(), "it was out for longer than a session, and is back")
		w.sleep(5 * time.Second)
		w.allDone()
		assert.Len(t, w.tree.Stats().Partitions, 3)
		assert.LessOrEqual(t, linesWith(w.c.lines(), "join "), joins+2)
	})
}
