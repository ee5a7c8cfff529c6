package buffer

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/troupego/troupe/pkg/kafka"
)

// stallStart is when the stories of a stall begin.
var stallStart = time.Unix(1_000_000, 0)

func stallAt(seconds int) time.Time { return stallStart.Add(time.Duration(seconds) * time.Second) }

func TestAStallIsReportedAtItsAgeAndEachTimeThatHasDoubled(t *testing.T) {
	s := NewStall(10 * time.Second)
	var reported []int
	for second := range 100 {
		age, report := s.Observe(stallAt(second), true, time.Time{}, 7)
		if report {
			require.Equal(t, time.Duration(second)*time.Second, age)
			reported = append(reported, second)
		}
		next, wanted := s.Deadline()
		require.True(t, wanted)
		require.True(t, next.After(stallAt(second)), "at %d", second)
	}
	require.Equal(t, []int{10, 20, 40, 80}, reported)
	since, standing := s.Standing()
	require.True(t, standing)
	require.Equal(t, stallStart, since)
}

func TestAStallEndsWhenNothingIsWaitedForOrThePositionMoves(t *testing.T) {
	for name, end := range map[string]func(*Stall){
		"NothingIsWaitedFor": func(s *Stall) { s.Observe(stallAt(11), false, time.Time{}, 7) },
		"ThePositionMoved":   func(s *Stall) { s.Observe(stallAt(11), true, time.Time{}, 8) },
		"ItMovedBack":        func(s *Stall) { s.Observe(stallAt(11), true, time.Time{}, kafka.NoOffset) },
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStall(10 * time.Second)
			s.Observe(stallAt(0), true, time.Time{}, 7)
			_, report := s.Observe(stallAt(10), true, time.Time{}, 7)
			require.True(t, report)
			end(s)
			_, standing := s.Standing()
			require.False(t, standing)
			_, report = s.Observe(stallAt(15), true, time.Time{}, 8)
			require.False(t, report, "it is another one")
		})
	}
}

func TestAStallBeganWhenItIsKnownToHaveBegun(t *testing.T) {
	s := NewStall(10 * time.Second)
	_, report := s.Observe(stallAt(5), true, stallAt(0), 7)
	require.False(t, report)
	at, _ := s.Deadline()
	require.Equal(t, stallAt(10), at)
	_, report = s.Observe(stallAt(9), true, stallAt(8), 7) // something else is waited for, and the position stands all the same
	require.False(t, report)
	age, report := s.Observe(stallAt(10), true, time.Time{}, 7)
	require.True(t, report)
	require.Equal(t, 10*time.Second, age)
}

func TestAStallThatIsNotLookedForIsNone(t *testing.T) {
	s := NewStall(0)
	_, report := s.Observe(stallAt(100), true, stallAt(0), 7)
	assert.False(t, report)
	assert.False(t, s.Waits())
	_, wanted := s.Deadline()
	assert.False(t, wanted)

	s = NewStall(math.MaxInt64 - 1)
	s.Observe(stallAt(0), true, time.Time{}, 7)
	_, report = s.Observe(stallAt(0).Add(math.MaxInt64), true, time.Time{}, 7)
	assert.True(t, report)
	assert.EqualValues(t, math.MaxInt64, s.next, "no overflow")
}
