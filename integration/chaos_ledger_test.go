//go:build unix

package integration

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tenure is one ownership of one partition by one member, with all that it handled, by start.
type tenure struct {
	by        *incarnation
	epoch     uint64
	handlings []handling
}

// chaosLedger is what all members did, and what is wrong with it.
type chaosLedger struct {
	report *chaosReport
	// keys are those of the acknowledged records, by partition and offset.
	keys [][]int8
	// tenures are by partition.
	tenures [][]*tenure
	// lost is when each member lost its membership.
	lost map[*incarnation][]int64
	// wrong has a line for each thing that is wrong, but for the first of its kind in a partition alone.
	wrong []string
}

func newChaosLedger(report *chaosReport, keys [][]int8) *chaosLedger {
	return &chaosLedger{report: report, keys: keys, tenures: make([][]*tenure, len(keys)), lost: make(map[*incarnation][]int64)}
}

// add sorts what one member did by ownership. Both are given in nanoseconds since 1970.
func (l *chaosLedger) add(life *incarnation, all []handling, lost []int64) {
	type ownership struct {
		partition int32
		epoch     uint64
	}
	tenures := make(map[ownership]*tenure)
	l.lost[life] = lost
	l.report.LostMemberships += len(lost)
	for _, h := range all {
		owned := tenures[ownership{h.partition, h.epoch}]
		if owned == nil {
			owned = &tenure{by: life, epoch: h.epoch}
			tenures[ownership{h.partition, h.epoch}] = owned
			l.tenures[h.partition] = append(l.tenures[h.partition], owned)
		}
		owned.handlings = append(owned.handlings, h)
	}
	for _, owned := range tenures {
		slices.SortStableFunc(owned.handlings, func(a, b handling) int { return cmp.Compare(a.start, b.start) })
	}
}

// check looks at one partition, with all that was stored for it, up to the end of its log.
func (l *chaosLedger) check(p int32, commits []stored, end int64) {
	slices.SortFunc(l.tenures[p], func(a, b *tenure) int { return cmp.Compare(a.handlings[0].start, b.handlings[0].start) })
	l.report.Commits += len(commits)
	for _, key := range l.keys[p] {
		if key != noKey {
			l.report.Produced++
		}
	}
	if len(l.keys[p]) > int(end) {
		l.tell("partition %d ends at %d, though %d was acknowledged", p, end, len(l.keys[p])-1)
		return
	}
	for _, wrong := range []string{
		neverPastUnfinished(commits, l.finished(p, end)), neverBack(commits), l.committedNeverAgain(p, commits), l.ordered(p),
	} {
		if wrong != "" {
			l.tell("partition %d: %s", p, wrong)
		}
	}
	l.overlaps(p)
}

func (l *chaosLedger) tell(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// finished returns when each record was finished for the first time. Each one must have been.
func (l *chaosLedger) finished(p int32, end int64) []int64 {
	finished, times := make([]int64, end), 0
	for _, owned := range l.tenures[p] {
		for _, h := range owned.handlings {
			if !h.done {
				continue
			}
			if h.offset >= end {
				l.tell("%s was handled, but the log ends at %d", h.place, end)
				continue
			}
			times++
			if finished[h.offset] == 0 || h.end < finished[h.offset] {
				finished[h.offset] = h.end
			}
		}
	}
	handled := 0
	for _, at := range finished {
		if at > 0 {
			handled++
		}
	}
	if lost := int(end) - handled; lost > 0 {
		l.report.Lost += lost
		l.tell("partition %d: %d records were lost, the first at %d", p, lost, slices.Index(finished, 0))
	}
	l.report.Handled += handled
	l.report.Duplicates += times - handled
	return finished
}

// upperNanos is when a commit was stored at the latest: its time is rounded down.
func (s stored) upperNanos() int64 { return (s.millis + 1) * int64(time.Millisecond) }

// neverPastUnfinished demands that nobody has committed beyond a record that was not finished at the time.
func neverPastUnfinished(commits []stored, finished []int64) (wrong string) {
	all := make([]int64, len(finished)+1) // when all records up to an offset were finished
	for offset, at := range finished {
		if at == 0 {
			at = math.MaxInt64
		}
		all[offset+1] = max(all[offset], at)
	}
	for _, commit := range commits {
		if commit.offset >= int64(len(all)) {
			return fmt.Sprintf("the commit of %d is beyond the log", commit.offset)
		}
		if all[commit.offset] > commit.upperNanos() {
			return fmt.Sprintf("the commit of %d at %d ms is past an unfinished record", commit.offset, commit.millis)
		}
	}
	return ""
}

// neverBack demands that what is stored only grows, whoever stores it: who owns a partition later begins where the others
// had come.
func neverBack(commits []stored) (wrong string) {
	for i := 1; i < len(commits); i++ {
		if before, now := commits[i-1], commits[i]; now.offset < before.offset {
			return fmt.Sprintf("the commit went back from %d (%d ms) to %d (%d ms)", before.offset, before.millis, now.offset, now.millis)
		}
	}
	return ""
}

// committedNeverAgain demands that no member begins what had been committed before it began with the partition.
func (l *chaosLedger) committedNeverAgain(p int32, commits []stored) (wrong string) {
	for _, owned := range l.tenures[p] {
		next, _ := slices.BinarySearchFunc(commits, owned.handlings[0].start+1, func(c stored, began int64) int { return cmp.Compare(c.upperNanos(), began) })
		if next == 0 {
			continue
		}
		for _, h := range owned.handlings {
			if committed := commits[next-1]; h.offset < committed.offset {
				return fmt.Sprintf("%s (epoch %d) begins %d, though %d had been committed %v before it began with the partition", owned.by.name,
					owned.epoch, h.offset, committed.offset, time.Duration(owned.handlings[0].start-committed.upperNanos()))
			}
		}
	}
	return ""
}

// ordered demands that each member began the records of a partition, or of a key, one after the other and each once.
func (l *chaosLedger) ordered(p int32) (wrong string) {
	for _, owned := range l.tenures[p] {
		last := make(map[int8]handling)
		for _, h := range owned.handlings {
			lane := int8(0)
			if owned.by.slot.workers > 1 {
				if h.offset >= int64(len(l.keys[p])) || l.keys[p][h.offset] == noKey {
					continue // its key is not known
				}
				lane = l.keys[p][h.offset]
			}
			if before, ok := last[lane]; ok && (h.offset <= before.offset || h.start < before.end) {
				return fmt.Sprintf("out of order: %s (epoch %d) begins %d at %d ns, after %d that ended at %d ns", owned.by.name, owned.epoch,
					h.offset, h.start, before.offset, before.end)
			}
			last[lane] = h
		}
	}
	return ""
}

// overlaps demands that no two members, and no two ownerships of one, were inside a partition at the same time, but for
// records that were in a handler when their member was put out of the group and could not know it: it was frozen, or no
// coordinator answered. Those are as many as its handler goes on with by itself, and its membership ended as lost.
func (l *chaosLedger) overlaps(p int32) {
	for i, owned := range l.tenures[p] {
		for _, later := range l.tenures[p][i+1:] {
			var late []handling
			for _, h := range owned.handlings {
				if h.end > later.handlings[0].start {
					late = append(late, h)
				}
			}
			if len(late) == 0 {
				continue
			}
			l.report.Overlaps += len(late)
			lost := slices.ContainsFunc(l.lost[owned.by], func(at int64) bool { return at >= owned.handlings[0].start })
			if !lost || len(late) > owned.by.slot.given {
				l.tell("partition %d: %s (epoch %d) was in %d records, the first of them %d, after %s (epoch %d) had begun with %d; it lost its membership: %v",
					p, owned.by.name, owned.epoch, len(late), late[0].offset, later.by.name, later.epoch, later.handlings[0].offset, lost)
			}
		}
	}
}

// The chaos test is worth what its ledger finds.
func TestTheChaosLedgerTellsWhatIsWrong(t *testing.T) {
	one := &incarnation{name: "one", slot: &slot{workers: 1, given: 1}}
	two := &incarnation{name: "two", slot: &slot{workers: 1, given: 1}}
	keyed := &incarnation{name: "keyed", slot: &slot{workers: 2, given: 2}}
	const ms = int64(time.Millisecond)
	did := func(by *incarnation, epoch uint64, offset, from, to int64) handling {
		return handling{place: place{0, offset}, by: by, epoch: epoch, start: from * ms, end: to * ms, done: true}
	}
	cases := []struct {
		name    string
		did     []handling
		lost    []int64 // of the first
		commits []stored
		wrong   string // nothing when all is well
	}{
		{"nothing is wrong", []handling{did(one, 1, 0, 10, 11), did(one, 1, 1, 11, 12), did(two, 1, 2, 20, 21)}, nil,
			[]stored{{2, 12}, {3, 30}}, ""},
		{"a record that was not committed comes again", []handling{did(one, 1, 0, 10, 11), did(one, 1, 1, 11, 12), did(two, 1, 1, 20, 21),
			did(two, 1, 2, 21, 22)}, nil, []stored{{1, 12}, {3, 30}}, ""},
		{"a record is lost", []handling{did(one, 1, 0, 10, 11), did(one, 1, 2, 11, 12)}, nil, nil, "1 records were lost, the first at 1"},
		{"a commit is early", []handling{did(one, 1, 0, 10, 11), did(one, 1, 1, 11, 12), did(one, 1, 2, 12, 20)}, nil, []stored{{3, 12}},
			"past an unfinished record"},
		{"a commit goes back", []handling{did(one, 1, 0, 10, 11), did(one, 1, 1, 11, 12), did(one, 1, 2, 12, 13)}, nil,
			[]stored{{3, 13}, {2, 14}}, "went back"},
		{"what is committed comes again", []handling{did(one, 1, 0, 10, 11), did(one, 1, 1, 11, 12), did(two, 1, 1, 20, 21),
			did(two, 1, 2, 21, 22)}, nil, []stored{{2, 13}}, "though 2 had been committed"},
		{"an order is not kept", []handling{did(one, 1, 1, 10, 11), did(one, 1, 0, 11, 12), did(one, 1, 2, 12, 13)}, nil, nil, "out of order"},
		{"two records of a key at once", []handling{did(keyed, 1, 0, 10, 12), did(keyed, 1, 2, 11, 12), did(keyed, 1, 1, 12, 13)}, nil, nil,
			"out of order"},
		{"two keys at once", []handling{did(keyed, 1, 0, 10, 12), did(keyed, 1, 1, 11, 12), did(keyed, 1, 2, 12, 13)}, nil, nil, ""},
		{"two owners at once", []handling{did(one, 1, 0, 10, 30), did(two, 1, 1, 20, 21), did(two, 1, 2, 21, 22)}, nil, nil,
			"it lost its membership: false"},
		{"one that was put out finishes its record", []handling{did(one, 1, 0, 10, 30), did(two, 1, 1, 20, 21), did(two, 1, 2, 21, 22)},
			[]int64{30 * ms}, nil, ""},
		{"one that was put out goes on", []handling{did(one, 1, 0, 10, 30), did(one, 1, 1, 30, 31), did(two, 1, 1, 20, 21),
			did(two, 1, 2, 21, 22)}, []int64{32 * ms}, nil, "was in 2 records"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newChaosLedger(&chaosReport{}, [][]int8{{0, 1, 0}})
			of := make(map[*incarnation][]handling)
			for _, h := range c.did {
				of[h.by] = append(of[h.by], h)
			}
			for by, all := range of {
				var lost []int64
				if by == one {
					lost = c.lost
				}
				l.add(by, all, lost)
			}
			l.check(0, c.commits, 3)
			if c.wrong == "" {
				assert.Empty(t, l.wrong)
				return
			}
			require.Len(t, l.wrong, 1)
			assert.Contains(t, l.wrong[0], c.wrong)
		})
	}
}
