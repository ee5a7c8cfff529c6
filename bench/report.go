package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// sample is one run of one consumer.
type sample struct {
	Broker   string        `json:"broker"`
	Mode     string        `json:"mode"`
	Subject  string        `json:"subject"`
	Consumer string        `json:"consumer"`
	Sleep    time.Duration `json:"sleep,omitempty"`
	Result   result        `json:"result"`
}

// report collects samples.
type report struct {
	// Go is the version of the toolchain, Versions those of the peers.
	Go       string            `json:"go"`
	Versions map[string]string `json:"versions"`
	CPUs     int               `json:"cpus"`
	Heap     int64             `json:"heap"`
	Runs     int               `json:"runs"`
	Samples  []sample          `json:"samples"`
}

func newReport(o *options) *report {
	r := &report{Go: runtime.Version(), Versions: make(map[string]string), CPUs: runtime.NumCPU(), Heap: o.heap, Runs: o.runs}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/IBM/sarama" || dep.Path == "github.com/twmb/franz-go" {
				r.Versions[dep.Path] = dep.Version
			}
		}
	}
	return r
}

// add keeps a sample and says in a line what it was.
func (r *report) add(s sample) {
	r.Samples = append(r.Samples, s)
	switch x := s.Result; s.Mode {
	case modeThroughput:
		progress("%-10s %-13s %.3f CPU-s per million, %.0f k/s", s.Subject, s.Consumer, perMillion(x), perSecond(x)/1000)
	case modeLatency:
		progress("%-13s p50 %.2f ms, p99 %.2f ms", s.Consumer, x.P50, x.P99)
	case modeSlow:
		progress("%-13s sleep %v: others %.0f k/s, slow %.0f/s", s.Consumer, s.Sleep, x.Others/1000, x.Slow)
	case modeIdle:
		progress("%-13s %.2f %% of a core", s.Consumer, percentOfCore(x))
	case modeKeyOrder:
		progress("%-26s %-17s %.3f s, %.3f more than the ideal", s.Subject, s.Consumer, x.Seconds, over(x))
	case modeNoop:
		progress("%-14s %-22s %.3f CPU-s per million, %.0f k/s", s.Subject, s.Consumer, perMillion(x), perSecond(x)/1000)
	case modeRebalance:
		g := only(x)
		progress("%-14s %-14s %d kept: %.1f ms, %.1f before; %d moved: %.1f ms", s.Subject, s.Consumer, g.Kept, g.KeptGap, g.Quiet, g.Moved, g.MovedGap)
	case modePartitions:
		progress("%-14s first %.2f s, of every partition %.2f s, close %.2f s", s.Consumer, x.First, x.Every, x.Stop)
	case modeControl:
		progress("%-28s %-13s p50 %.1f us, p99 %.1f us", s.Subject, s.Consumer, callP50(x), callP99(x))
	case modeMemory:
		progress("%-22s live %.1f MiB, peak %.1f MiB", s.Consumer, liveMiB(x), growthMiB(x))
	}
}

func perMillion(r result) float64  { return r.CPUSeconds / float64(r.Records) * 1e6 }
func perSecond(r result) float64   { return float64(r.Records) / r.Seconds }
func allocations(r result) float64 { return known(float64(r.Mallocs)) / float64(r.Records) }
func steadyAllocs(r result) float64 {
	return known(float64(r.Mallocs-r.StartMallocs)) / float64(r.Records)
}
func allocated(r result) float64     { return known(float64(r.AllocatedBytes)) / float64(r.Records) }
func peakMiB(r result) float64       { return known(float64(r.PeakRSS)) / (1 << 20) }
func collections(r result) float64   { return float64(r.Collections) }
func percentOfCore(r result) float64 { return 100 * r.CPUSeconds / r.Seconds }
func goroutines(r result) float64    { return float64(r.Goroutines) }
func p50(r result) float64           { return r.P50 }
func p90(r result) float64           { return r.P90 }
func p99(r result) float64           { return r.P99 }
func longest(r result) float64       { return r.Max }
func others(r result) float64        { return r.Others }
func slow(r result) float64          { return r.Slow }
func over(r result) float64          { return r.Seconds - r.Ideal }
func liveMiB(r result) float64       { return float64(r.LiveGrowth) / (1 << 20) }
func growthMiB(r result) float64     { return float64(r.PeakGrowth) / (1 << 20) }
func handlers(r result) float64      { return float64(r.Handlers) }
func callP50(r result) float64       { return r.Calls[0].P50 }
func callP99(r result) float64       { return r.Calls[0].P99 }
func callMax(r result) float64       { return r.Calls[0].Max }

// known is NaN for a figure that a consumer in another language does not have.
func known(value float64) float64 {
	if value == 0 {
		return math.NaN()
	}
	return value
}

// column is a figure of a table. ratio asks for it again, divided by the median of each peer.
type column struct {
	title  string
	format string
	value  func(result) float64
	ratio  bool
}

var columns = map[string][]column{
	modeThroughput: {
		{"CPU-s/M", "%.3f", perMillion, true}, {"records/s", "%.0f", perSecond, true},
		{"allocs/rec", "%.3f", allocations, false}, {"after start", "%.3f", steadyAllocs, false}, {"B/rec", "%.0f", allocated, false},
		{"GCs", "%.0f", collections, false}, {"peak MiB", "%.0f", peakMiB, false},
	},
	modeLatency: {
		{"p50 ms", "%.2f", p50, true}, {"p90 ms", "%.2f", p90, false}, {"p99 ms", "%.2f", p99, true}, {"max ms", "%.1f", longest, false},
	},
	modeIdle: {
		{"% of a core", "%.2f", percentOfCore, true}, {"goroutines", "%.0f", goroutines, false}, {"peak MiB", "%.0f", peakMiB, false},
	},
	modeNoop: {
		{"CPU-s/M", "%.3f", perMillion, true}, {"records/s", "%.0f", perSecond, true}, {"allocs/rec", "%.3f", allocations, false},
		{"after start", "%.3f", steadyAllocs, false}, {"B/rec", "%.0f", allocated, false}, {"peak MiB", "%.0f", peakMiB, false},
	},
	modeMemory: {
		{"live MiB", "%.1f", liveMiB, false}, {"peak growth MiB", "%.1f", growthMiB, false}, {"blocked handlers", "%.0f", handlers, false},
		{"goroutines", "%.0f", goroutines, false},
	},
	modeControl: {
		{"p50 us", "%.1f", callP50, false}, {"p99 us", "%.1f", callP99, false}, {"max us", "%.0f", callMax, false},
	},
	modePartitions: {
		{"first s", "%.2f", first, true}, {"every partition s", "%.2f", every, true}, {"close s", "%.2f", stopped, false},
		{"OffsetFetch", "%.0f", offsetFetches, false}, {"ListOffsets", "%.0f", listOffsets, false},
		{"CPU-s", "%.2f", cpuSeconds, false}, {"goroutines", "%.0f", goroutines, false}, {"peak MiB", "%.0f", peakMiB, false},
	},
}

// peersOf returns who the others are compared with in a mode.
func peersOf(mode string) []string {
	if mode == modeNoop {
		return []string{parallelConsumer}
	}
	return []string{franzGo, saramaGroup}
}

// print writes everything, as JSON or as tables.
func (r *report) print(w io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	fmt.Fprintf(w, "%s, %d CPUs, %d MiB of other live heap, medians of %d runs that take turns\n", r.Go, r.CPUs, r.Heap>>20, r.Runs)
	for _, path := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(w, "%s %s\n", path, r.Versions[path])
	}
	type section struct{ broker, mode string }
	var done []section
	for _, s := range r.Samples {
		at := section{s.Broker, s.Mode}
		if slices.Contains(done, at) {
			continue
		}
		done = append(done, at)
		fmt.Fprintf(w, "\n%s on %s\n", s.Mode, s.Broker)
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		switch s.Mode {
		case modeSlow:
			r.printSlow(table, s.Broker)
		case modeKeyOrder:
			r.printKeyOrder(table, s.Broker)
		case modeRebalance:
			r.printRebalance(table, s.Broker)
		default:
			r.printTable(table, s.Broker, s.Mode)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func (r *report) printTable(w io.Writer, broker, mode string) {
	row := []string{"", "consumer"}
	for _, c := range columns[mode] {
		row = append(row, c.title)
		for _, peer := range peersOf(mode) {
			if c.ratio {
				row = append(row, "÷ "+peer)
			}
		}
	}
	printRow(w, row)
	for _, subject := range r.list(broker, mode, func(s sample) string { return s.Subject }) {
		for _, consumer := range r.list(broker, mode, func(s sample) string { return s.Consumer }) {
			matches := func(who string) func(sample) bool {
				return func(s sample) bool {
					return s.Broker == broker && s.Mode == mode && s.Subject == subject && s.Consumer == who
				}
			}
			if !slices.ContainsFunc(r.Samples, matches(consumer)) {
				continue
			}
			row = []string{subject, consumer}
			for _, c := range columns[mode] {
				of := func(who string) float64 { return r.median(c.value, matches(who)) }
				row = append(row, figure(c.format, of(consumer)))
				for _, peer := range peersOf(mode) {
					if c.ratio {
						row = append(row, figure("%.2f", of(consumer)/of(peer)))
					}
				}
			}
			printRow(w, row)
		}
	}
}

// figure writes a number, and a dash for one that is not known.
func figure(format string, value float64) string {
	if math.IsNaN(value) {
		return "-"
	}
	return fmt.Sprintf(format, value)
}

// printSlow compares the runs with a sleep to those without.
func (r *report) printSlow(w io.Writer, broker string) {
	printRow(w, []string{"", "consumer", "others/s alone", "others/s beside slow", "kept %", "slow/s"})
	for _, subject := range r.list(broker, modeSlow, func(s sample) string { return s.Subject }) {
		for _, consumer := range r.list(broker, modeSlow, func(s sample) string { return s.Consumer }) {
			of := func(value func(result) float64, sleeps bool) float64 {
				return r.median(value, func(s sample) bool {
					return s.Broker == broker && s.Mode == modeSlow && s.Consumer == consumer && (s.Sleep > 0) == sleeps
				})
			}
			alone, beside := of(others, false), of(others, true)
			printRow(w, []string{subject, consumer, fmt.Sprintf("%.0f", alone), fmt.Sprintf("%.0f", beside),
				figure("%.1f", 100*beside/alone), fmt.Sprintf("%.0f", of(slow, true))})
		}
	}
}

// printRow writes one line of a tabwriter whose cells are aligned to the right.
func printRow(w io.Writer, cells []string) { fmt.Fprintln(w, strings.Join(cells, "\t")+"\t") }

// list returns the different values of a property, in the order of the samples.
func (r *report) list(broker, mode string, property func(sample) string) []string {
	var found []string
	for _, s := range r.Samples {
		if v := property(s); s.Broker == broker && s.Mode == mode && !slices.Contains(found, v) {
			found = append(found, v)
		}
	}
	return found
}

// median returns the middle figure of the matching samples, the mean of two when there is no middle one, and NaN for none.
func (r *report) median(value func(result) float64, matches func(sample) bool) float64 {
	var values []float64
	for _, s := range r.Samples {
		if matches(s) {
			values = append(values, value(s.Result))
		}
	}
	return middle(values)
}
