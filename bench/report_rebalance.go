package main

import (
	"io"
	"math"
	"slices"
)

// only is the one step of a sample.
func only(r result) gaps { return r.Gaps[0] }

func kept(r result) float64     { return float64(only(r).Kept) }
func moved(r result) float64    { return float64(only(r).Moved) }
func quiet(r result) float64    { return only(r).Quiet }
func keptGap(r result) float64  { return only(r).KeptGap }
func keptOver(r result) float64 { return only(r).KeptGap - only(r).Quiet }
func repeated(r result) float64 { return float64(only(r).Repeated) }
func restless(r result) float64 { return float64(only(r).Restless) }

func first(r result) float64         { return r.First }
func every(r result) float64         { return r.Every }
func stopped(r result) float64       { return r.Stop }
func offsetFetches(r result) float64 { return float64(r.OffsetFetches) }
func listOffsets(r result) float64   { return float64(r.ListOffsets) }

// movedGap is not known where nothing moved.
func movedGap(r result) float64 {
	if only(r).Moved == 0 {
		return math.NaN()
	}
	return only(r).MovedGap
}

// printRebalance compares each step with the span before it: the median of the runs, and the worst of them.
func (r *report) printRebalance(w io.Writer, broker string) {
	printRow(w, []string{
		"", "consumer", "kept", "gap before ms", "gap ms", "over ms", "worst", "moved", "handover ms", "worst", "repeated", "moved before",
	})
	for _, subject := range r.list(broker, modeRebalance, func(s sample) string { return s.Subject }) {
		for _, consumer := range r.list(broker, modeRebalance, func(s sample) string { return s.Consumer }) {
			matches := func(s sample) bool {
				return s.Broker == broker && s.Mode == modeRebalance && s.Subject == subject && s.Consumer == consumer
			}
			of := func(value func(result) float64) float64 { return r.median(value, matches) }
			worst := func(value func(result) float64) float64 { return r.worst(value, matches) }
			printRow(w, []string{
				subject, consumer, figure("%.0f", of(kept)), figure("%.1f", of(quiet)), figure("%.1f", of(keptGap)),
				figure("%.1f", of(keptOver)), figure("%.1f", worst(keptOver)), figure("%.0f", of(moved)),
				figure("%.1f", of(movedGap)), figure("%.1f", worst(movedGap)), figure("%.0f", worst(repeated)), figure("%.0f", worst(restless)),
			})
		}
	}
}

// worst returns the largest figure of the matching samples, and NaN for none and for one that is not known.
func (r *report) worst(value func(result) float64, matches func(sample) bool) float64 {
	var values []float64
	for _, s := range r.Samples {
		if matches(s) {
			values = append(values, value(s.Result))
		}
	}
	if len(values) == 0 {
		return math.NaN()
	}
	return slices.Max(values)
}
