package buffer

import (
	"testing"

	"github.com/troupego/troupe/pkg/kafka"
)

func TestALimitCutsWhatLiesBeyondIt(t *testing.T) {
	var records []kafka.Record
	for _, offset := range []int64{10, 11, 13, 20} {
		records = append(records, kafka.Record{Offset: offset})
	}
	for name, c := range map[string]struct {
		limit Limit
		kept  int
		next  int64 // of a batch that ends before 25
	}{
		"no limit":              {Limit{}, 4, 25},
		"far beyond":            {LimitAt(100), 4, 25},
		"behind the last":       {LimitAt(21), 4, 21},
		"at the last":           {LimitAt(20), 3, 20},
		"in a hole":             {LimitAt(15), 3, 15},
		"at the first of a gap": {LimitAt(12), 2, 12},
		"at the first":          {LimitAt(10), 0, 10},
		"before all":            {LimitAt(0), 0, 0},
	} {
		kept := c.limit.Cut(records)
		if len(kept) != c.kept || len(kept) > 0 && &kept[0] != &records[0] {
			t.Errorf("%s: %d kept, want %d", name, len(kept), c.kept)
		}
		if next := c.limit.Next(25); next != c.next {
			t.Errorf("%s: next %d, want %d", name, next, c.next)
		}
		if len(kept) < len(records) && cap(kept) != len(kept) {
			t.Errorf("%s: appending to what is kept would reach the rest", name)
		}
	}
	if len(LimitAt(3).Cut(nil)) != 0 {
		t.Error("something of nothing")
	}
}

func TestALimitIsReachedAtItsEndWhateverIsMissingBeforeIt(t *testing.T) {
	for _, c := range []struct {
		limit  Limit
		offset int64
		want   bool
	}{
		{Limit{}, 1 << 60, false}, {LimitAt(20), 19, false}, {LimitAt(20), 20, true}, {LimitAt(20), 31, true}, {LimitAt(0), 0, true},
		{LimitAt(0), kafka.NoOffset, false},
	} {
		if got := c.limit.Reached(c.offset); got != c.want {
			t.Errorf("%+v at %d: %t", c.limit, c.offset, got)
		}
	}
	if LimitAt(7).End() != 7 || (Limit{}).End() != kafka.NoOffset {
		t.Error("the end is another one")
	}
}
