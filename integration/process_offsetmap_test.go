//go:build unix

package integration

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A process is killed with 500 records finished beyond a hole. What its next life handles is what was not finished, and
// without the map everything from the hole on.
func TestOffsetMap_AKilledProcessRepeatsOnlyWhatIsUnfinished(t *testing.T) {
	t.Parallel()
	brokers := realKafka.broker(t).Addrs()
	binary := buildWorker(t)
	const hole, beyond = 10, 500
	unfinished := []int64{hole, 100, 101, 300}
	total := hole + len(unfinished) + beyond
	var rest []int64
	for offset := int64(hole); offset < int64(total); offset++ {
		rest = append(rest, offset)
	}
	for name, tt := range map[string]struct {
		flags []string
		want  []int64
	}{
		"On":  {[]string{"-offset-map"}, unfinished},
		"Off": {nil, rest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, binary, brokers, newAdmin(t, brokers, nil), 1, "-session-timeout", sessionTimeout.String(), "-order", "none")
			require.Equal(t, total, s.fill(t, total))
			first := s.start(t, "first", "-offset-map", "-block", "10,100,101,300")
			// The map is read back from the broker, so that it is there before the process is not.
			eventually(t, patience, "500 finished records are in the committed map", func() bool {
				if s.admin.Committed(t, s.group)[at(s.topic, 0)] != hole {
					return false
				}
				_, finished := s.admin.finishedInMap(t, s.group, at(s.topic, 0))
				return finished == beyond
			})
			first.kill(t)
			require.Equal(t, total-len(unfinished), s.finished(t))
			second := s.start(t, "second", tt.flags...)
			eventually(t, patience, "the end is committed", func() bool { return slices.Equal(s.ends(t), s.committed(t)) })
			s.drained(t, second)
			var handled []int64
			for _, p := range second.handled(t) {
				handled = append(handled, p.offset)
			}
			slices.Sort(handled)
			assert.Equal(t, tt.want, handled)
		})
	}
}
