package buffer

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

// block is a memory that counts how often it was recycled.
type block struct{ recycled int }

func (b *block) Recycle() { b.recycled++ }

// leased returns a surplus that holds one decoded batch of n records in memory.
func leased(t *testing.T, n int64, memory Memory) *Surplus[int] {
	t.Helper()
	s := NewSurplus[int](0, nil)
	s.Push(1, 1)
	if err := s.Decoded(batch(0, n), n, 1, 1, memory); err != nil {
		t.Fatal(err)
	}
	return s
}

func take(t *testing.T, s *Surplus[int], n int) *Lease {
	t.Helper()
	records, lease, _ := s.Take(n)
	if len(records) != n || lease == nil {
		t.Fatalf("%d records, lease %v", len(records), lease)
	}
	return lease
}

func TestASlabIsRecycledOnceWhenAllItsPartsAreReleased(t *testing.T) {
	memory := &block{}
	s := leased(t, 4, memory)
	first := take(t, s, 2)
	first.Release(true)
	if memory.recycled != 0 {
		t.Fatal("recycled while records are left")
	}
	second := take(t, s, 2)
	if memory.recycled != 0 {
		t.Fatal("recycled while it is read")
	}
	second.Release(true)
	second.Release(true)
	first.Release(true)
	if s.Drop(); memory.recycled != 1 {
		t.Fatalf("recycled %d times", memory.recycled)
	}
}

func TestAfterAnUncleanReleaseASlabIsNeverRecycled(t *testing.T) {
	memory := &block{}
	s := leased(t, 4, memory)
	first, second := take(t, s, 2), take(t, s, 2)
	first.Release(false)
	second.Release(true)
	if memory.recycled != 0 {
		t.Fatal("recycled while somebody may read it")
	}
}

func TestADroppedSlabIsRecycledUnlessSomebodyReadsOn(t *testing.T) {
	untouched := &block{}
	leased(t, 4, untouched).Drop()
	if untouched.recycled != 1 {
		t.Fatalf("never handed out: recycled %d times", untouched.recycled)
	}
	for _, clean := range []bool{true, false} {
		memory, want := &block{}, 0
		s := leased(t, 4, memory)
		lease := take(t, s, 2)
		if s.Drop(); memory.recycled != 0 {
			t.Fatal("recycled while it is read")
		}
		if clean {
			want = 1
		}
		if lease.Release(clean); memory.recycled != want {
			t.Fatalf("clean %t: recycled %d times", clean, memory.recycled)
		}
	}
}

func TestASlabWithoutRecordsIsRecycledAtOnceAndOneWithoutMemoryHasNoLease(t *testing.T) {
	memory := &block{}
	leased(t, 0, memory)
	if memory.recycled != 1 {
		t.Fatalf("recycled %d times", memory.recycled)
	}
	s := leased(t, 1, nil)
	records, lease, _ := s.Take(1)
	if len(records) != 1 || lease != nil {
		t.Fatalf("%d records, lease %v", len(records), lease)
	}
	lease.Release(true)
	lease.Release(false)
}

func TestMemoryIsRecycledExactlyWhenNobodyCanReadIt(t *testing.T) {
	for seed := range uint64(300) {
		if err := leaseHistory(rand.New(rand.NewPCG(seed, 7))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// readable is the twin of one slab: which of its records may still be read by whom.
type readable struct {
	block
	first, last int64 // offsets
	queued      map[int64]bool
	held        map[int64]int
	spoiled     bool
}

func (r *readable) recyclable() bool { return len(r.queued) == 0 && len(r.held) == 0 && !r.spoiled }

type part struct {
	lease   *Lease
	records []kafka.Record
}

// leaseHistory plays a random history to a surplus and keeps for each record who may read it.
func leaseHistory(r *rand.Rand) error {
	s := NewSurplus[int](0, nil)
	var slabs []*readable
	var parts []part
	of := func(offset int64) *readable {
		for _, slab := range slabs {
			if slab.first <= offset && offset <= slab.last {
				return slab
			}
		}
		return nil
	}
	next := int64(0)
	for range 200 {
		switch r.IntN(6) {
		case 0, 1:
			n := int64(r.IntN(6))
			slab := &readable{first: next, last: next + n - 1, queued: map[int64]bool{}, held: map[int64]int{}}
			for offset := range n {
				slab.queued[next+offset] = true
			}
			s.Push(1, 1)
			if err := s.Decoded(batch(next, n), next+n, 1, 1, slab); err != nil {
				return err
			}
			s.Finish()
			slabs, next = append(slabs, slab), next+n
		case 2, 3:
			records, lease, _ := s.Take(1 + r.IntN(4))
			for _, record := range records {
				slab := of(record.Offset)
				delete(slab.queued, record.Offset)
				slab.held[record.Offset]++
			}
			if len(records) > 0 {
				parts = append(parts, part{lease, records})
			}
		case 4:
			if len(parts) > 0 {
				i, clean := r.IntN(len(parts)), r.IntN(8) > 0
				done := parts[i]
				parts = append(parts[:i], parts[i+1:]...)
				for _, record := range done.records {
					slab := of(record.Offset)
					delete(slab.held, record.Offset)
					slab.spoiled = slab.spoiled || !clean
				}
				done.lease.Release(clean)
			}
		case 5:
			if r.IntN(10) == 0 {
				s.Drop()
				for _, slab := range slabs {
					clear(slab.queued)
				}
			}
		}
		for _, slab := range slabs {
			want := 0
			if slab.recyclable() {
				want = 1
			}
			if slab.recycled != want {
				return fmt.Errorf("records %d to %d: recycled %d times, want %d", slab.first, slab.last, slab.recycled, want)
			}
		}
	}
	return nil
}
