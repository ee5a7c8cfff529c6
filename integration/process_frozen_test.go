//go:build unix

package integration

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// KAFKA-4051 and others: a process that was frozen, or whose clock was set, acts on a membership that is over. Here a worker
// is stopped until its session is well over and another one has its partitions, and then goes on: it commits and begins
// nothing before it is in the group again. That no machine reads the wall clock, which may be set at any time, is seen to by
// internal/archtest (TestPurePackagesArePure, and TestPlantedImpuritiesAreFound that it can fail).
func TestB54_AProcessThatWakesAfterItsSessionDoesNothingBeforeItIsInTheGroupAgain(t *testing.T) {
	t.Parallel()
	n := startOneNode(t, buildWorker(t))
	s := n.stage(t, 4, "-work", "20ms", "-max-records", "50")
	s.fill(t, 700)
	a, b := s.bothWork(t)
	eventually(t, patience, "the first has committed", func() bool { return len(a.handled(t)) > 60 })
	frozenAt := time.Now()
	a.signal(t, syscall.SIGSTOP)
	committed := n.settled(t, s, a)
	for _, p := range s.owned(t)["b"] {
		committed[p] = 0 // the other goes on
	}
	eventually(t, patience, "the other takes all partitions over", func() bool { return len(s.owned(t)["b"]) == int(s.partitions) })
	eventually(t, patience, "the session is well over", func() bool { return time.Since(frozenAt) > sessionTimeout+2*time.Second })
	before := a.trace(t)
	thawedAt := time.Now()
	a.signal(t, syscall.SIGCONT)
	var epoch uint64 // the last one before
	for _, line := range before {
		epoch = max(epoch, line.epoch)
	}
	eventually(t, patience, "it works again", func() bool {
		trace := a.trace(t)
		return trace[len(trace)-1].epoch > epoch
	})
	s.nothingLost(t)
	s.drained(t, b, a)

	open := inWork(before)
	for _, line := range a.trace(t)[len(before):] {
		if line.epoch > epoch {
			break
		}
		if _, ok := open[line.partition]; !ok && line.what == "begin" {
			open[line.partition] = line.place // it was frozen on the way into the handler
		}
		assert.Equal(t, open[line.partition], line.place, "%s is worked on after waking (%s)", line.place, line.what)
	}
	old, synced := int32(-1), false // the generation that it was frozen in
	for _, frame := range n.tap.sent(a.client, time.Time{}) {
		switch {
		case frame.at.Before(thawedAt):
			if frame.key == kmsg.OffsetCommit {
				old = max(old, frame.generation)
			}
		case frame.key == kmsg.SyncGroup:
			synced = true
		case frame.key == kmsg.OffsetCommit:
			assert.True(t, synced, "generation %d commits %v %v after waking, before it is in the group again", frame.generation, frame.offsets,
				frame.at.Sub(thawedAt))
			assert.Greater(t, frame.generation, old, "the generation of a commit after waking")
		}
	}
	assert.Positive(t, old, "it had committed before")
	assert.True(t, synced, "it has joined again")
	for _, pair := range s.overlaps(t) {
		before := pair[0]
		if before.worker != a || before.epoch > epoch || open[before.partition] != before.place {
			t.Errorf("an overlap that is not of what was in work at the freeze: %s and %s", before, pair[1])
			break
		}
	}
	s.inOrder(t)
	for _, p := range s.repeated(t) {
		assert.GreaterOrEqual(t, p.offset, committed[p.partition], "%s is repeated although committed", p)
	}
	t.Logf("committed at the freeze %v, repeated %v, in work %v", committed, s.repeated(t), open)
}

// inWork returns the record of each partition that was begun and not ended, according to a trace.
func inWork(trace []traced) map[int32]place {
	open := make(map[int32]place)
	for _, line := range trace {
		if line.what == "begin" {
			open[line.partition] = line.place
		} else {
			delete(open, line.partition)
		}
	}
	return open
}
