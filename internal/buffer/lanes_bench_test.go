package buffer

import (
	"fmt"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// lanesStream runs records through a window that is always full: of the outstanding claims, one after the other is
// finished out of order, collected, and followed by the next record.
type lanesStream struct {
	lanes     *Lanes
	records   []kafka.Record
	claimed   []Claimed
	pushed    int
	finished  int
	random    uint64
	most      int
	collected func(uint64, int64)
}

const (
	streamWindow  = 10_000
	streamWorkers = 64
)

// newLanesStream returns a stream of that many keys in turn, whose window is full; most is what one call claims.
func newLanesStream(ordered bool, keys, most int) *lanesStream {
	s := &lanesStream{
		lanes: NewLanes(LanesConfig{Capacity: streamWindow, Ordered: ordered}), random: 1, most: most,
		records: make([]kafka.Record, keys), claimed: make([]Claimed, 0, streamWorkers+most),
	}
	s.collected = func(uint64, int64) { s.finished++ }
	for i := range s.records {
		s.records[i].Key = fmt.Appendf(nil, "customer-%07d", i)
	}
	s.push()
	return s
}

func (s *lanesStream) push() {
	for s.lanes.Room() > 0 {
		record := &s.records[s.pushed%len(s.records)]
		s.lanes.Push(record, record.Key)
		s.pushed++
	}
}

// step finishes one record.
func (s *lanesStream) step() {
	for len(s.claimed) < streamWorkers {
		before := len(s.claimed)
		if s.most == 1 {
			s.claimed = s.lanes.Claim(s.claimed, 1)
		} else {
			s.claimed = s.lanes.ClaimHeads(s.claimed, s.most)
		}
		if len(s.claimed) == before {
			break // every lane is busy
		}
	}
	s.random = s.random*6364136223846793005 + 1442695040888963407
	at, last := int(s.random>>33)%len(s.claimed), len(s.claimed)-1
	s.lanes.Done(s.claimed[at].Seq)
	s.claimed[at] = s.claimed[last]
	s.claimed = s.claimed[:last]
	s.lanes.Collect(s.collected)
	s.push()
}

// BenchmarkLanes is the time of one record from its push to its collection.
func BenchmarkLanes(b *testing.B) {
	for _, row := range []struct {
		name    string
		ordered bool
		keys    int
		most    int
	}{
		{"distinct keys", true, 1_000_000, 1},
		{"1000 keys", true, 1000, 1},
		{"100 keys", true, 100, 1},
		{"1000 keys in batches", true, 1000, 500},
		{"unordered", false, 1000, 1},
		{"unordered in batches", false, 1000, 500},
	} {
		b.Run(row.name, func(b *testing.B) {
			s := newLanesStream(row.ordered, row.keys, row.most)
			b.ReportAllocs()
			for b.Loop() {
				s.step()
			}
		})
	}
}

// BenchmarkLanesMillion is one fresh window and a million distinct keys, in batches as an engine hands them over.
func BenchmarkLanesMillion(b *testing.B) {
	const records = 1_000_000
	s := newLanesStream(true, records, 1)
	for b.Loop() {
		l, pushed, collected := NewLanes(LanesConfig{Capacity: streamWindow, Ordered: true}), 0, 0
		for collected < records {
			for pushed < records && l.Room() > 0 {
				l.Push(&s.records[pushed], s.records[pushed].Key)
				pushed++
			}
			for range streamWorkers {
				s.claimed = l.Claim(s.claimed[:0], 1)
				for _, c := range s.claimed {
					l.Done(c.Seq)
				}
			}
			l.Collect(func(uint64, int64) { collected++ })
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/records, "ns/record")
}

func TestLanesAllocateNothingInSteadyState(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		for _, most := range []int{1, 50} {
			s := newLanesStream(ordered, 3000, most)
			run := func() {
				for range 1000 {
					s.step()
				}
			}
			if allocations := testing.AllocsPerRun(20, run); allocations != 0 {
				t.Errorf("ordered %t, %d at once: %v allocations for 1,000 records", ordered, most, allocations)
			}
			if err := s.lanes.Valid(); err != nil || s.finished < 20_000 {
				t.Errorf("%d finished: %v", s.finished, err)
			}
		}
	}
}
