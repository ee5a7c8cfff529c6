package buffer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

func batch(from, n int64) []kafka.Record {
	records := make([]kafka.Record, n)
	for i := range records {
		records[i].Offset = from + int64(i)
	}
	return records
}

func TestSurplusIsTakenInOrderAndNeverCopied(t *testing.T) {
	s := NewSurplus[string](0, nil)
	s.Push("chunk", 100)
	if compressed, decoded := s.Bytes(); !s.NeedsDecode() || s.Len() != 0 || compressed != 100 || decoded != 0 || s.FrontBytes() != 100 {
		t.Fatalf("%d records, %d bytes compressed, %d decoded", s.Len(), compressed, decoded)
	}
	first, second := batch(0, 5), batch(5, 2)
	if err := errors.Join(s.Decoded(first, 5, 500, 40, nil), s.Decoded(second, 10, 200, 60, nil)); err != nil {
		t.Fatal(err)
	}
	if s.FrontBytes() != 0 {
		t.Fatalf("%d bytes left at the front", s.FrontBytes())
	}
	s.Finish()
	if compressed, decoded := s.Bytes(); s.NeedsDecode() || s.Len() != 7 || compressed != 0 || decoded != 700 {
		t.Fatalf("%d records, %d bytes compressed, %d decoded", s.Len(), compressed, decoded)
	}
	got, _, freed := s.Take(3)
	if &got[0] != &first[0] || len(got) != 3 || cap(got) != 3 || freed != 0 || s.Position() != 3 {
		t.Fatalf("%d taken, cap %d, freed %d, position %d", len(got), cap(got), freed, s.Position())
	}
	got, _, freed = s.Take(100) // never more than one slab
	if &got[0] != &first[3] || len(got) != 2 || freed != 500 || s.Position() != 5 {
		t.Fatalf("%d taken, freed %d, position %d", len(got), freed, s.Position())
	}
	got, _, freed = s.Take(2)
	if &got[0] != &second[0] || freed != 200 || s.Position() != 10 || !s.Empty() {
		t.Fatalf("%d taken, freed %d, position %d", len(got), freed, s.Position())
	}
	if got, _, freed = s.Take(1); got != nil || freed != 0 {
		t.Fatal("something was left")
	}
}

func TestEmptyBatchesMoveThePositionOnlyBehindWhatIsTaken(t *testing.T) {
	s := NewSurplus[int](0, nil)
	s.Push(1, 10)
	steps := []struct {
		records  []kafka.Record
		next     int64
		position int64
	}{{nil, 4, 4}, {batch(4, 1), 5, 4}, {nil, 9, 4}}
	for _, step := range steps {
		if err := s.Decoded(step.records, step.next, 1, 0, nil); err != nil || s.Position() != step.position {
			t.Fatalf("position %d, want %d: %v", s.Position(), step.position, err)
		}
	}
	if s.Take(1); s.Position() != 9 {
		t.Fatalf("position %d", s.Position())
	}
}

func TestDropReturnsAllBytesAndClosesTheChunks(t *testing.T) {
	var closed []int
	s := NewSurplus(0, func(chunk int) { closed = append(closed, chunk) })
	if err := s.Decoded(nil, 1, 1, 1, nil); !errors.Is(err, ErrNoChunk) {
		t.Fatal(err)
	}
	s.Push(1, 10)
	s.Push(2, 20)
	s.Push(3, 30)
	s.Finish()
	if err := s.Decoded(batch(0, 3), 3, 300, 4, nil); err != nil {
		t.Fatal(err)
	}
	freed := s.Drop()
	if compressed, decoded := s.Bytes(); freed != 346 || !s.Empty() || compressed+decoded != 0 || s.Len() != 0 || s.NeedsDecode() {
		t.Fatalf("freed %d", freed)
	}
	if s.Drop() != 0 || !slices.Equal(closed, []int{2, 3}) {
		t.Fatalf("closed %v", closed)
	}
}

func TestSurplusNeverLosesOrRepeatsARecord(t *testing.T) {
	for seed := range uint64(200) {
		if err := surplusHistory(rand.New(rand.NewPCG(seed, 6))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func surplusHistory(r *rand.Rand) error {
	s := NewSurplus[int](0, nil)
	var in, out, held int64
	chunks, front := 0, 0
	for range 400 {
		switch r.IntN(5) {
		case 0:
			chunks++
			s.Push(chunks, r.IntN(100))
		case 1:
			if got, ok := s.Front(); ok && got != front+1 {
				return fmt.Errorf("chunk %d at the front, want %d", got, front+1)
			}
			n := int64(r.IntN(8))
			next := in + n + int64(r.IntN(2))
			if err := s.Decoded(batch(in, n), next, int(n), r.IntN(50), nil); err == nil {
				in, held = next, held+n
			} else if front != chunks {
				return err
			}
		case 2:
			if s.NeedsDecode() {
				s.Finish()
				front++
			}
		default:
			limit := r.IntN(5)
			records, _, _ := s.Take(limit)
			if len(records) > limit || len(records) == 0 && limit > 0 && held > 0 {
				return fmt.Errorf("%d taken of %d, %d held", len(records), limit, held)
			}
			for _, record := range records {
				if record.Offset < out {
					return fmt.Errorf("offset %d after %d", record.Offset, out)
				}
				out = record.Offset + 1
			}
			held -= int64(len(records))
		}
		if err := s.Valid(); err != nil {
			return err
		}
		if s.Len() != int(held) || held == 0 && s.Position() != in || s.Position() < out {
			return fmt.Errorf("%d held, %d counted, position %d of %d", held, s.Len(), s.Position(), in)
		}
	}
	return nil
}

func BenchmarkSurplusTake(b *testing.B) {
	b.ReportAllocs()
	s := NewSurplus[int](0, nil)
	records := batch(0, 1000)
	for b.Loop() {
		if taken, _, _ := s.Take(100); taken != nil {
			continue
		}
		s.Push(0, 1)
		if err := s.Decoded(records, 1000, 100, 1, nil); err != nil {
			b.Fatal(err)
		}
		s.Finish()
	}
}
