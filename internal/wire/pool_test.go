package wire

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestSizeClassesFollowEachOtherWithoutHoles(t *testing.T) {
	sizes := []int{1<<31 - 1, 1 << 30, 1<<30 + 1, 64 << 20, 100<<20 + 7}
	for size := range 5000 {
		sizes = append(sizes, size)
	}
	for _, size := range sizes {
		up := roundUp(size)
		require.GreaterOrEqual(t, up, size)
		require.LessOrEqual(t, up, size+size/8, size)
		require.Equal(t, up, roundUp(up), "a class begins with its smallest size")
		require.Less(t, sizeClass(size), sizeClasses)
		if up > size {
			require.Equal(t, sizeClass(size)+1, sizeClass(up), size)
		}
		if size > 0 {
			require.GreaterOrEqual(t, sizeClass(size), sizeClass(size-1), size)
		}
	}
}

// poolTwin does what a pool does with one list, from the oldest to the newest.
type poolTwin struct {
	limit int
	kept  []*block
}

func (p *poolTwin) held() int {
	sum := 0
	for _, b := range p.kept {
		sum += b.cost()
	}
	return sum
}

func (p *poolTwin) put(b *block) {
	if b.cost() > p.limit/2 {
		return
	}
	p.kept = append(p.kept, b)
	for p.held() > p.limit {
		p.kept = p.kept[1:]
	}
}

// take returns the block to be used: the newest of the size's own class if it is large enough, or the newest of the next.
func (p *poolTwin) take(kind, n int) *block {
	for class := sizeClass(n); class <= sizeClass(n)+1; class++ {
		for i := len(p.kept) - 1; i >= 0; i-- {
			if b := p.kept[i]; b.kind == kind && sizeClass(b.size) == class {
				if b.size < n {
					break
				}
				p.kept = slices.Delete(p.kept, i, i+1)
				return b
			}
		}
	}
	return nil
}

func TestPoolAgreesWithItsNaiveTwin(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 13))
		limit := rng.IntN(40_000)
		p, twin := newPool(limit, false), &poolTwin{limit: limit}
		recycling := false
		var out []*block
		for range 100 {
			switch what := rng.IntN(4); {
			case what >= 2 && len(out) > 0:
				i := rng.IntN(len(out))
				b := out[i]
				out = slices.Delete(out, i, i+1)
				b.Recycle()
				twin.put(b)
			case what == 1:
				n := 1 + rng.IntN(50)
				recycling = true
				want := twin.take(kindRecords, n)
				b := p.takeRecords(n)
				require.Len(t, b.records, n)
				require.True(t, want == nil || want == b)
				require.False(t, slices.Contains(out, b))
				out = append(out, b)
			default:
				n := rng.IntN(1 << rng.IntN(15))
				rounded := n
				if recycling {
					rounded = roundUp(n)
				}
				want := twin.take(kindBytes, n)
				got, b := p.takeBytes(n)
				require.Len(t, got, n)
				require.True(t, want == nil || want == b)
				if want == nil {
					require.Equal(t, rounded, cap(got), "rounded up only for those who recycle")
				}
				require.LessOrEqual(t, cap(got), n+n/4+1)
				require.False(t, slices.Contains(out, b))
				out = append(out, b)
			}
			require.Equal(t, twin.held(), p.held)
			require.LessOrEqual(t, p.held, limit)
			var kept []*block
			for b := p.oldest; b != nil; b = b.newer {
				kept = append(kept, b)
			}
			require.True(t, slices.Equal(twin.kept, kept))
		}
	}
}

func TestABlockThatWouldPushOutMostOthersIsNotKept(t *testing.T) {
	p := newPool(10_000, false)
	_, small := p.takeBytes(1000)
	_, large := p.takeBytes(5000)
	small.Recycle()
	large.Recycle()
	require.Equal(t, small.cost(), p.held)
	require.True(t, p.oldest == small && p.newest == small)
}

func TestABlockIsInThePoolOnlyAfterItsLastReader(t *testing.T) {
	p := newPool(1<<20, false)
	_, b := p.takeBytes(100)
	second := b.hold()
	b.Recycle()
	require.Zero(t, p.held)
	second.Recycle()
	require.Equal(t, b.cost(), p.held)
	got, again := p.takeBytes(90)
	require.True(t, again == b, "it is used again")
	require.Len(t, got, 90)
	require.Zero(t, p.held)
	var none *block
	require.Nil(t, none.hold())
	none.Recycle()
}

func TestRecycledMemoryIsPoisonedOnDemand(t *testing.T) {
	n, err := New(Config{Brokers: []string{"localhost:1"}, PoisonRecycled: true})
	require.NoError(t, err)
	got, b := n.memory.takeBytes(10_000)
	slab := n.memory.takeRecords(3)
	records := slab.records
	records[1].Value = got[:5]
	slab.Recycle()
	b.Recycle()
	require.Equal(t, bytes.Repeat([]byte{poisonByte}, 10_000), got)
	for _, r := range records {
		require.Equal(t, "recycled", r.Topic)
		require.EqualValues(t, -0xDEAD, r.Offset)
		require.Equal(t, bytes.Repeat([]byte{poisonByte}, 8), r.Key)
		require.Equal(t, bytes.Repeat([]byte{poisonByte}, 8), r.Value)
	}
	require.Panics(t, b.Recycle, "nobody has it any more")
}

func TestThePoolsBoundIsPartOfTheConfiguration(t *testing.T) {
	n, err := New(Config{Brokers: []string{"localhost:1"}})
	require.NoError(t, err)
	require.Equal(t, 64<<20, n.memory.limit)
	n, err = New(Config{Brokers: []string{"localhost:1"}, MaxRecycledBytes: 1000})
	require.NoError(t, err)
	require.Equal(t, 1000, n.memory.limit)
	_, err = New(Config{Brokers: []string{"localhost:1"}, MaxRecycledBytes: -1})
	var wrong *ConfigError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "MaxRecycledBytes", wrong.Field)
}

func TestFramesAreReadIntoMemoryOfThePool(t *testing.T) {
	p := newPool(64<<20, true)
	body := bytes.Repeat([]byte("x"), 5*firstStep+3)
	for range 3 {
		got, held, _, err := readFrameInto(p, bytes.NewReader(frameOf(body)), 1<<30, 0)
		require.NoError(t, err)
		require.Equal(t, body, got)
		require.Less(t, p.held, 2*len(body)+10*blockOverhead, "what the frame outgrew")
		held.Recycle()
	}
	before := p.held
	_, held, _, err := readFrameInto(p, bytes.NewReader(frameOf(body)[:1000]), 1<<30, len(body))
	require.Error(t, err)
	require.Nil(t, held)
	require.Equal(t, before, p.held, "the memory of a frame that broke off is free")
	_, held, _, err = readFrameInto(p, iotest.ErrReader(errEnough), 1<<30, 0)
	require.ErrorIs(t, err, errEnough)
	require.Nil(t, held)
}
