package main

import (
	"math"
	"slices"
)

// middle returns the median, NaN for no values. It sorts values.
func middle(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
