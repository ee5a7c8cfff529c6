package actors

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// held starts a hold and returns a function that tells whether it has ended.
func held(ctx context.Context, s *session) (ended func() bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.hold(ctx)
	}()
	return func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

func TestASessionIsTrustedForItsTimeoutAfterEachHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(nil, 6*time.Second)
		time.Sleep(time.Minute)
		require.True(t, s.over(), "before the first generation nothing may begin: who is held up then must not be trusted after a freeze")
		s.begin(time.Now())
		time.Sleep(5 * time.Second)
		sentAt := time.Now()
		time.Sleep(time.Second)
		require.True(t, s.over())
		ended := held(t.Context(), s)
		require.False(t, ended())
		s.alive(sentAt) // its answer was only late
		require.True(t, ended())
		require.False(t, s.over())
		time.Sleep(5 * time.Second)
		require.True(t, s.over(), "an answer counts from when its heartbeat was sent")
		s.alive(sentAt.Add(-time.Second))
		require.True(t, s.over())
	})
}

func TestALapsedSessionHoldsADeliveryUntilItIsCutOffOrTheNextGenerationBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(nil, 6*time.Second)
		s.begin(time.Now())
		time.Sleep(6 * time.Second)
		early, cutEarly := context.WithCancel(t.Context())
		late, cutLate := context.WithCancel(t.Context())
		earlyEnded := held(early, s) // before the lapse
		require.False(t, earlyEnded())
		s.lapse()
		s.alive(time.Now())
		require.True(t, s.over(), "no answer brings back what was given up")
		lateEnded := held(late, s)
		require.False(t, earlyEnded() || lateEnded())
		cutEarly()
		require.True(t, earlyEnded())
		require.False(t, lateEnded())
		s.begin(time.Now()) // what is not of it was halted by the group before
		require.True(t, lateEnded())
		require.False(t, s.over())
		cutLate()
	})
}

func TestThePaceOfLookingAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := func(work time.Duration) (n int) {
			var pace pacer
			for i := range 160 {
				if pace.due(i) {
					n++
				}
				time.Sleep(work)
			}
			return n
		}
		require.Equal(t, 160, looks(time.Millisecond))
		require.Less(t, looks(0), 160/pacerMax+6)
	})
}
