package main

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary be the command's children.
func TestMain(m *testing.M) {
	if isChild() {
		os.Exit(childMain())
	}
	os.Exit(m.Run())
}

func TestMiddle(t *testing.T) {
	require.True(t, math.IsNaN(middle(nil)))
	require.Equal(t, 3.0, middle([]float64{3}))
	require.Equal(t, 2.5, middle([]float64{4, 1, 2, 3}))
	require.Equal(t, 2.0, middle([]float64{3, 1, 2}))
}

func TestStampIsRead(t *testing.T) {
	at := time.Now()
	value := stamp(417, at)
	require.Len(t, value, stampedSize)
	number, micros := readStamp(value)
	require.Equal(t, 417, number)
	require.Equal(t, at.UnixMicro(), micros)
}

func TestTextHasItsSizeAndRepeats(t *testing.T) {
	a, b := newText(), newText()
	for _, size := range []int{1, 100, 1024} {
		value := a.value(size)
		require.Len(t, value, size)
		require.Equal(t, value, b.value(size))
	}
}

func TestOptionsRefuseWhatTheyDoNotKnow(t *testing.T) {
	for _, args := range [][]string{
		{"-mode", "fast"}, {"-broker", "redis"}, {"-consumers", "x"}, {"-topics", "100"}, {"-topics", "100:gzip"}, {"-heap", "many"},
		{"-runs", "0"}, {"more"}, {"-budget", "-1"}, {"-memory-batch", "1GiB"}, {"-workers", "0"}, {"-cells", "key"}, {"-cells", "key:1:0"},
		{"-cells", "random:1:1"}, {"-cells", "key:1:1:1:1"}, {"-cells", ""}, {"-mode", "slow,keyorder", "-consumers", "sarama"},
		{"-span", "0"}, {"-partitions", "0"}, {"-every", "-1s"}, {"-calls", "0"}, {"-heartbeat", "1us"},
	} {
		_, err := parseOptions(args)
		require.Error(t, err, args)
	}
	o, err := parseOptions([]string{"-topics", "all", "-heap", "1KiB"})
	require.NoError(t, err)
	require.Len(t, o.topics, 6)
	require.Equal(t, int64(recordsLarge), o.topics[3].Records)
	require.Equal(t, int64(1024), o.heap)
}

// TestEveryMode runs the whole command, small, on the embedded broker, where the Parallel Consumer cannot be.
func TestEveryMode(t *testing.T) {
	o, err := parseOptions([]string{
		"-mode", strings.Join(modes, ","), "-records", "12000", "-runs", "1", "-duration", "500ms", "-heap", "1MiB",
		"-slow-records", "600000", "-window", "50ms", "-idle-partitions", "20", "-limit", "30s",
		"-cells", "key:10:4:200,unordered:10:4:100", "-noop-records", "12000", "-memory-partitions", "4", "-memory-records", "8000",
		"-heartbeat", "100ms", "-span", "600ms", "-partitions", "30", "-calls", "50",
	})
	require.NoError(t, err)
	r := newReport(o)
	require.NoError(t, runOn(t.Context(), o, brokerEmbedded, r))
	var table, asJSON strings.Builder
	require.NoError(t, r.print(&table, false))
	require.NoError(t, r.print(&asJSON, true))
	asked := map[string]int{modeSlow: 2, modeKeyOrder: 2, modeNoop: 2, modeRebalance: 3} // with and without sleep, two cells, two topics, three steps
	want := 0
	for _, mode := range modes {
		require.Contains(t, table.String(), mode)
		for _, name := range o.of(mode) {
			if _, isJava := javaPrograms[name]; isJava {
				continue
			}
			if want += max(asked[mode], 1); mode == modeControl && name == troupeRecord {
				want += 3 // beside the call that all have
			}
			require.Contains(t, table.String(), name)
			require.Contains(t, asJSON.String(), name)
		}
	}
	require.Len(t, r.Samples, want)
	require.NotContains(t, table.String(), "NaN")
}
