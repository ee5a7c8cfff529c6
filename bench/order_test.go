package main

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCellsAreRead(t *testing.T) {
	cells, err := parseCells("key:20:64,partition:2:1:500,unordered:1000:16")
	require.NoError(t, err)
	require.Equal(t, []cell{{orderKey, 20, 64, cellRecords}, {orderPartition, 2, 1, 500}, {orderNone, 1000, 16, cellRecords}}, cells)
	all, err := parseCells("all")
	require.NoError(t, err)
	require.Len(t, all, 1+5*3+3+1)
	names := make(map[string]bool)
	for _, c := range all {
		names[c.String()] = true
		require.Equal(t, c.Keys, c.topic().Keys)
		require.Equal(t, int32(1), c.topic().Partitions)
	}
	require.Len(t, names, len(all), "every cell has a name of its own")
}

func TestAllowanceIsTheLargerOfPartAndTime(t *testing.T) {
	require.InDelta(t, 0.020, cell{Records: cellRecords}.allowance(0.1), 1e-9)
	require.InDelta(t, 0.5, cell{Records: cellRecords}.allowance(10), 1e-9)
	require.InDelta(t, 1.0, cell{Records: bigCellRecords}.allowance(10), 1e-9)
	require.Equal(t, "met", verdict(1))
	require.Equal(t, "missed, x 1.3", verdict(1.3))
	require.Equal(t, "-", verdict(math.NaN()))
}

func TestDelaysRepeatAndAreEven(t *testing.T) {
	sum := time.Duration(0)
	for i := range int64(10_000) {
		d := delay(i)
		require.GreaterOrEqual(t, d, time.Duration(0))
		require.LessOrEqual(t, d, longestDelay)
		require.Equal(t, d, delay(i))
		sum += d
	}
	require.InDelta(t, 25, sum.Seconds(), 0.5)
	require.Equal(t, 2_575_972*time.Nanosecond, delay(0), "the Java peer computes the same")
}

// handled makes spans in which nothing overlaps, of those lengths and keys.
func handled(lengths []int64, keys []int) *spans {
	s := newSpans(int64(len(lengths)))
	at := int64(100)
	for i, length := range lengths {
		s.Starts[i], s.Ends[i], s.Keys[i] = at, at+length, keys[i]
		at += length
	}
	return s
}

func TestIdealIsTheBusiestKeyOrTheWorkersShare(t *testing.T) {
	s := handled([]int64{5, 1, 1, 4, 1}, []int{1, 2, 3, 1, 2})
	require.Equal(t, int64(12), s.elapsed())
	require.Equal(t, int64(9), s.ideal(orderKey, 16), "key 1")
	require.Equal(t, int64(12), s.ideal(orderKey, 1), "one worker")
	require.Equal(t, int64(12), s.ideal(orderPartition, 16))
	require.Equal(t, int64(6), s.ideal(orderNone, 2))
	require.Equal(t, int64(5), s.ideal(orderNone, 16), "the longest record")
}

func TestInOrderTakesTheLowestOffsetThatIsFree(t *testing.T) {
	s := handled([]int64{5, 1, 1, 4, 1}, []int{1, 2, 3, 1, 2})
	require.Equal(t, int64(9), s.inOrder(orderKey, 2))
	require.Equal(t, int64(12), s.inOrder(orderKey, 1))
	require.Equal(t, int64(12), s.inOrder(orderPartition, 16))
	require.Equal(t, int64(6), s.inOrder(orderNone, 2))
	// Without a look ahead the long key at the end begins too late.
	require.Equal(t, int64(13), handled([]int64{5, 5, 8}, []int{1, 2, 3}).inOrder(orderKey, 2))
}

func TestInOrderIsNeverBelowTheIdeal(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		lengths, keys := make([]int64, 50), make([]int, 50)
		total := int64(0)
		for i := range lengths {
			lengths[i], keys[i] = 1+random.Int64N(20), random.IntN(7)
			total += lengths[i]
		}
		s := handled(lengths, keys)
		for _, order := range orders {
			for _, workers := range []int{1, 3, 64} {
				took := s.inOrder(order, workers)
				require.GreaterOrEqual(t, took, s.ideal(order, workers))
				require.LessOrEqual(t, took, total)
			}
		}
	}
}

func TestOverlapOfOneKeyIsFound(t *testing.T) {
	s := handled([]int64{5, 1, 1}, []int{1, 2, 1})
	require.NoError(t, s.check(orderPartition))
	s.Starts[1] = s.Starts[0] + 1
	require.NoError(t, s.check(orderKey))
	require.ErrorContains(t, s.check(orderPartition), "offset 1 began 4 ns before offset 0")
	s.Starts[2] = s.Starts[0] + 3
	require.ErrorContains(t, s.check(orderKey), "offset 2 began")
	require.NoError(t, s.check(orderNone))
	s.Ends[2] = 0
	require.Error(t, s.summarize(orderNone, 1, 0, &result{}), "a record that was not handled")
}

func TestPeersAnswerIsRead(t *testing.T) {
	work := task{Consumer: parallelConsumer, Mode: modeKeyOrder, Order: orderKey, Workers: 2, Topic: topic{Name: "t", Records: 3}}
	line := `{"records":3,"cpuSeconds":1.5,"committed":9000000,"starts":[0,0,4000000],"ends":[4000000,2000000,5000000],"keys":[7,8,7]}`
	r, err := readPeer([]byte(line), work)
	require.NoError(t, err)
	require.Equal(t, &result{Records: 3, CPUSeconds: 1.5, Seconds: 0.005, Ideal: 0.005, InOrder: 0.005, Committed: 0.009}, r)
	for _, flawed := range []string{
		"", "{}", strings.Replace(line, `"records":3`, `"records":2`, 1), strings.Replace(line, "[7,8,7]", "[7,8]", 1),
		strings.Replace(line, "[0,0,4000000]", "[0,0,3000000]", 1),
	} {
		_, err := readPeer([]byte(flawed), work)
		require.Error(t, err, flawed)
	}
	work.Mode = modeNoop
	r, err = readPeer([]byte(`{"records":3,"seconds":2,"cpuSeconds":1.5}`), work)
	require.NoError(t, err)
	require.Equal(t, &result{Records: 3, Seconds: 2, CPUSeconds: 1.5}, r)
}

func TestPeerIsToldItsTask(t *testing.T) {
	work := task{Brokers: []string{"a:1", "b:2"}, Group: "g", Mode: modeKeyOrder, Order: orderNone, Workers: 64, Topic: topic{Name: "t", Records: 10_000}}
	arguments := strings.Join(peerArguments(work), " ")
	require.Equal(t, "brokers=a:1,b:2 topic=t group=g order=unordered workers=64 records=10000 buffer=10000 warmup=10000 span=true", arguments)
	work.Mode, work.Order, work.Topic.Records = modeNoop, orderKey, 1_200_000
	arguments = strings.Join(peerArguments(work), " ")
	require.Equal(t, "brokers=a:1,b:2 topic=t group=g order=key workers=64 records=1200000 buffer=0 warmup="+strconv.Itoa(warmupRecords)+" span=false", arguments)
}

func TestNoPeerOnTheEmbeddedBroker(t *testing.T) {
	require.Empty(t, findPeers(t.Context(), brokerEmbedded, func(string) bool { return true }))
}

func TestKeyOrderReportSaysWhatFellShort(t *testing.T) {
	r := newReport(&options{runs: 1})
	r.add(sample{Mode: modeKeyOrder, Subject: "a", Consumer: troupeRecord, Result: result{Records: 10, Seconds: 1.01, Ideal: 1, InOrder: 1}})
	r.add(sample{Mode: modeKeyOrder, Subject: "a", Consumer: parallelConsumer, Result: result{Records: 10, Seconds: 1.2, Ideal: 1, InOrder: 1}})
	var table strings.Builder
	require.NoError(t, r.print(&table, false))
	require.Regexp(t, `troupe-record +1\.010 +1\.000 +10\.0 +1\.0 +met`, table.String())
	require.Regexp(t, `parallel-consumer +1\.200 +1\.000 +200\.0 +20\.0 +missed, x 4\.0`, table.String())
}
