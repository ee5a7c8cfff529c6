package actors

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/troupego/troupe/pkg/kafka"
	"github.com/troupego/troupe/rebalance"
)

func TestBoard_WaitJoinedReturnsWithTheJoinTheTroubleOrTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := func(b *board, ctx context.Context, done chan struct{}, end error) chan error {
			out := make(chan error, 1)
			go func() { out <- b.waitJoined(ctx, done, func() error { return end }) }()
			synctest.Wait()
			return out
		}
		b := newBoard("billing")
		out := wait(b, t.Context(), nil, nil)
		b.moved(rebalance.StateJoining, kafka.NoGeneration, "")
		b.moved(rebalance.StateAssigning, 1, "m")
		synctest.Wait()
		assert.Empty(t, out)
		b.moved(rebalance.StateAssigned, 1, "m")
		assert.NoError(t, <-out)
		b.moved(rebalance.StateUnjoined, kafka.NoGeneration, "m")
		assert.NoError(t, <-wait(b, t.Context(), nil, nil), "joined once is joined")

		b = newBoard("billing")
		out = wait(b, t.Context(), nil, nil)
		b.troubled(errTest)
		assert.ErrorIs(t, <-out, errTest)

		done := make(chan struct{})
		close(done)
		b = newBoard("billing")
		assert.ErrorIs(t, <-wait(b, t.Context(), done, nil), ErrClosing)
		assert.ErrorIs(t, <-wait(b, t.Context(), done, errTest), errTest)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errTest)
		assert.ErrorIs(t, <-wait(b, ctx, nil, nil), errTest)
	})
}

func TestBoard_HealthySaysWhatIsWrong(t *testing.T) {
	now := time.Now()
	b := newBoard("billing")
	healthy := func() error { return b.healthy(now, 10*time.Second) }
	assert.ErrorIs(t, healthy(), ErrNotHealthy)
	b.troubled(errTest)
	assert.ErrorIs(t, healthy(), errTest)
	b.moved(rebalance.StateAssigned, 3, "m")
	assert.NoError(t, healthy())
	b.beat(now.Add(-11 * time.Second))
	assert.ErrorContains(t, healthy(), "no heartbeat was answered for 11s")
	b.entered(false, now) // it was out of the group meanwhile, and nothing was due yet
	assert.NoError(t, healthy())
	b.beat(now)
	for _, state := range []rebalance.State{rebalance.StateRevoked, rebalance.StateJoining, rebalance.StateSyncing} {
		b.moved(state, 3, "m")
		assert.NoError(t, healthy(), "a rebalance is no illness")
		assert.ErrorContains(t, b.healthy(now.Add(11*time.Second), 10*time.Second), "member is "+state.String()+" for 11", "for a session")
	}
	b.troubled(errTest)
	assert.ErrorIs(t, healthy(), errTest)
	b.moved(rebalance.StateJoining, kafka.NoGeneration, "m")
	assert.ErrorContains(t, healthy(), "JOINING", "the membership was lost")
	b.moved(rebalance.StateAssigned, 4, "m")
	c := newCell(at(2), 1)
	b.add(c)
	assert.NoError(t, healthy())
	for _, how := range []condition{conditionPaused, conditionFailed} {
		c.condition.Store(int32(how))
		c.finished.Store(41)
		assert.ErrorContains(t, healthy(), "orders-2 is "+how.String()+" at offset 41")
		assert.ErrorIs(t, healthy(), ErrNotHealthy)
	}
	for _, how := range []condition{conditionWaiting, conditionFlowing, conditionWindowFull, conditionBackingOff} {
		c.condition.Store(int32(how))
		assert.NoError(t, healthy(), how.String())
	}
	b.ownNothing()
	assert.ErrorContains(t, healthy(), "UNJOINED")
}

// The broker of a group that does not come to an end is there and answers: what has failed must not be forgotten with the search for it.
func TestBoard_HealthySaysForHowLongAMemberHasWaitedToJoinAndWhatFailed(t *testing.T) {
	now := time.Now()
	b := newBoard("billing")
	b.moved(rebalance.StateJoining, kafka.NoGeneration, "m")
	b.attempted(errTest)
	b.linked(rebalance.LinkDiscovering)
	b.linked(rebalance.LinkStable)
	later := func(d time.Duration) error { return b.healthy(now.Add(d), 10*time.Second) }
	assert.ErrorIs(t, later(time.Minute), errTest)
	assert.ErrorContains(t, later(time.Minute), "member is JOINING for 1m0")
	b.moved(rebalance.StateUnjoined, kafka.NoGeneration, "m")
	b.moved(rebalance.StateJoining, kafka.NoGeneration, "m")
	assert.ErrorContains(t, later(2*time.Minute), "member is JOINING for 2m0", "it has had no place in between")
	b.moved(rebalance.StateAssigned, 3, "m")
	b.moved(rebalance.StateJoining, kafka.NoGeneration, "m")
	assert.NotErrorIs(t, later(time.Minute), errTest, "of a rebalance that has ended")
}

func TestBoard_UncommittedIsWhatWasFinishedAndNotConfirmed(t *testing.T) {
	b := newBoard("billing")
	for p, at2 := range [][2]int64{{10, 10}, {10, 12}, {kafka.NoOffset, kafka.NoOffset}, {kafka.NoOffset, 3}} {
		c := newCell(at(int32(p)), 1)
		c.committed.Store(at2[0])
		c.finished.Store(at2[1])
		b.add(c)
	}
	assert.Equal(t, []UncommittedPartition{
		{TopicPartition: at(1), Committed: 10, Pending: 12}, {TopicPartition: at(3), Committed: kafka.NoOffset, Pending: 3},
	}, b.uncommitted())
	b.remove(at(1), 7)
	assert.Len(t, b.uncommitted(), 2, "another epoch's cell stays")
	b.remove(at(1), 1)
	assert.Len(t, b.uncommitted(), 1)
}

func TestCloseError_NamesAllThatWasNotFinished(t *testing.T) {
	err := &CloseError{
		Cause:       context.DeadlineExceeded,
		Running:     []RunningHandler{{TopicPartition: at(1), Offset: 6, Age: 1500 * time.Millisecond}},
		Uncommitted: []UncommittedPartition{{TopicPartition: at(0), Committed: 3, Pending: 8, Err: errTest}},
		Actors:      []string{"root$1 (running, idle, 0 queued)"},
	}
	assert.Equal(t, "troupe: close: context deadline exceeded; handler of orders-1 still runs at offset 6 for 1.5s; "+
		"orders-0 not committed up to 8 (confirmed 3): disk full; actors still alive: root$1 (running, idle, 0 queued)", err.Error())
	assert.True(t, errors.Is(err, context.DeadlineExceeded))
}
