package main

import (
	"fmt"
	"io"
)

func inOrder(r result) float64    { return r.InOrder - r.Ideal }
func ideal(r result) float64      { return r.Ideal }
func elapsed(r result) float64    { return r.Seconds }
func committed(r result) float64  { return r.Committed }
func cpuSeconds(r result) float64 { return r.CPUSeconds }

// printKeyOrder compares every consumer with the ideal of its own handlers.
func (r *report) printKeyOrder(w io.Writer, broker string) {
	printRow(w, []string{"", "consumer", "s", "ideal s", "over ms", "over %", "goal", "in order: over ms", "committed s", "CPU-s"})
	for _, subject := range r.list(broker, modeKeyOrder, func(s sample) string { return s.Subject }) {
		for _, consumer := range r.list(broker, modeKeyOrder, func(s sample) string { return s.Consumer }) {
			of := func(value func(result) float64) float64 {
				return r.median(value, func(s sample) bool {
					return s.Broker == broker && s.Mode == modeKeyOrder && s.Subject == subject && s.Consumer == consumer
				})
			}
			printRow(w, []string{
				subject, consumer, figure("%.3f", of(elapsed)), figure("%.3f", of(ideal)), figure("%.1f", 1000*of(over)),
				figure("%.1f", 100*of(overPart)), verdict(of(overAllowed)), figure("%.1f", 1000*of(inOrder)),
				figure("%.3f", of(committed)), figure("%.2f", of(cpuSeconds)),
			})
		}
	}
}

// overPart is over as a part of the ideal.
func overPart(r result) float64 { return over(r) / r.Ideal }

// overAllowed is how much of what the goal allows was used: more than 1 is too much.
func overAllowed(r result) float64 { return over(r) / cell{Records: r.Records}.allowance(r.Ideal) }

// verdict says whether a goal was met of which that part was used.
func verdict(used float64) string {
	switch {
	case used <= 1:
		return "met"
	case used > 1:
		return fmt.Sprintf("missed, x %.1f", used)
	}
	return "-" // not measured
}
