package main

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const testSpan = 100 * time.Millisecond

// rebalanced is a task of two partitions and a step, and what was seen of it: partition 0 stays with member 1, partition 1
// moves to member 2 and has one record again. The step is at 200 ms.
func rebalanced() (task, *deliveries) {
	t := task{
		Consumer: javaConsumer, Mode: modeRebalance, Topic: topic{Name: "t", Partitions: 2}, Window: testSpan, Rest: time.Second,
		Heartbeat: 3 * time.Second, Steps: []step{{Member: 2, Pause: 5 * time.Millisecond}}, Brokers: []string{"a:1"}, Group: "g",
	}
	at := func(ms ...int64) []int64 {
		for i := range ms {
			ms[i] *= int64(time.Millisecond)
		}
		return ms
	}
	return t, &deliveries{Marks: at(200), Tracks: []track{
		{At: at(50, 120, 150, 190, 230, 290), Member: []int{1, 1, 1, 1, 1, 1}, Number: []int64{0, 2, 4, 6, 8, 10}},
		{At: at(110, 160, 195, 260, 280, 310), Member: []int{1, 1, 1, 2, 2, 2}, Number: []int64{1, 3, 5, 5, 7, 9}},
	}}
}

func TestGapsOfPartitionsThatStayAndThatMoveAreToldApart(t *testing.T) {
	work, seen := rebalanced()
	r, err := seen.measure(work)
	require.NoError(t, err)
	require.Equal(t, int64(12), r.Records)
	require.Equal(t, []gaps{{Step: "member 2 joins", Kept: 1, Moved: 1, Quiet: 70, KeptGap: 60, MovedGap: 65, Repeated: 1}}, r.Gaps)
}

func TestAGapThatIsOpenAtTheEndOfASpanCounts(t *testing.T) {
	work, seen := rebalanced()
	last := &seen.Tracks[0]
	last.At, last.Member, last.Number = last.At[:5], last.Member[:5], last.Number[:5]
	r, err := seen.measure(work)
	require.NoError(t, err)
	require.InDelta(t, 70, r.Gaps[0].KeptGap, 1e-9)
}

func TestAPartitionThatMovesBeforeTheStepIsSaid(t *testing.T) {
	work, seen := rebalanced()
	seen.Tracks[0].Member = []int{2, 2, 1, 1, 1, 1}
	r, err := seen.measure(work)
	require.NoError(t, err)
	require.Equal(t, 1, r.Gaps[0].Restless)
	require.Equal(t, 1, r.Gaps[0].Kept)
}

func TestALostRecordFailsTheRun(t *testing.T) {
	work, seen := rebalanced()
	seen.Tracks[1].Number[4] = 9
	_, err := seen.measure(work)
	require.ErrorContains(t, err, "partition 1: record 9 came when 7 had not: lost by member 2")
	seen.Tracks[1].Number[4] = 8
	_, err = seen.measure(work)
	require.ErrorContains(t, err, "record 8 of another")
}

func TestJavaConsumerIsToldItsTaskAndItsAnswerIsRead(t *testing.T) {
	work, seen := rebalanced()
	work.Steps = append(work.Steps, step{Member: 1, Leaves: true})
	require.Equal(t, "brokers=a:1 topic=t group=g partitions=2 heartbeat=3000 span=100 steps=2:1105,-1:1100", strings.Join(peerArguments(work), " "))
	seen.Marks = append(seen.Marks, int64(time.Second))
	line := `{"marks":[200000000,1000000000],"tracks":[{"at":[150000000],"member":[1],"number":[0]},{"at":[150000000,260000000],"member":[1,2],"number":[1,3]}]}`
	r, err := readPeer([]byte(line), work)
	require.NoError(t, err)
	require.Equal(t, gaps{Step: "member 2 joins", Kept: 1, Moved: 1, Quiet: 50, KeptGap: 150, MovedGap: 110}, r.Gaps[0])
	require.Equal(t, "member 1 leaves", r.Gaps[1].Step)
	for _, flawed := range []string{"", "{}", strings.Replace(line, `"member":[1,2]`, `"member":[1]`, 1)} {
		_, err := readPeer([]byte(flawed), work)
		require.Error(t, err, flawed)
	}
}

func TestRebalanceReportHasTheMedianAndTheWorst(t *testing.T) {
	r := newReport(&options{runs: 3})
	for _, gap := range []float64{50, 40, 90} {
		r.add(sample{Mode: modeRebalance, Subject: "a", Consumer: troupeRecord, Result: result{Gaps: []gaps{{Kept: 6, Moved: 6, Quiet: 30, KeptGap: gap, MovedGap: 2 * gap}}}})
	}
	r.add(sample{Mode: modeRebalance, Subject: "a", Consumer: franzGo, Result: result{Gaps: []gaps{{Kept: 12, KeptGap: 5}}}})
	var table strings.Builder
	require.NoError(t, r.print(&table, false))
	require.Regexp(t, `troupe-record +6 +30\.0 +50\.0 +20\.0 +60\.0 +6 +100\.0 +180\.0 +0 +0`, table.String())
	require.Regexp(t, `franz-go +12 +0\.0 +5\.0 +5\.0 +5\.0 +0 +- +- `, table.String())
}

func TestEveryConsumerOfARunHasTheSamePauses(t *testing.T) {
	require.Equal(t, steps(1, time.Second), steps(1, time.Second))
	require.NotEqual(t, steps(1, time.Second), steps(2, time.Second))
	for _, s := range steps(0, time.Second) {
		require.Less(t, s.Pause, time.Second)
	}
}

// Requests are counted however they are cut into writes.
func TestRequestsAreCountedByBrokerAndKind(t *testing.T) {
	request := func(api int16, size int) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(size))
		b = binary.BigEndian.AppendUint16(b, uint16(api))
		return append(b, make([]byte, size-2)...)
	}
	stream := append(append(request(apiListOffsets, 40), request(1, 10)...), request(apiListOffsets, 8)...)
	for _, piece := range []int{1, 3, 7, len(stream)} {
		q := newRequests()
		mine, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		conn := &countedConn{Conn: mine, requests: q, addr: "a:1"}
		for rest := stream; len(rest) > 0; {
			n, err := conn.Write(rest[:min(piece, len(rest))])
			require.NoError(t, err)
			rest = rest[n:]
		}
		require.NoError(t, conn.Close())
		q.add("b:1", apiListOffsets)
		require.Equal(t, 2, q.most(apiListOffsets), piece)
		require.Equal(t, 1, q.most(1))
		require.Zero(t, q.most(apiOffsetFetch))
	}
}
