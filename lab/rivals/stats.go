package main

import (
	"math"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/measure"
)

// quantile returns the smallest value that is not below the fraction q of all values;
// NaN if there is none. It sorts its argument.
func quantile(values []int64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	i := int(math.Ceil(q*float64(len(values)))) - 1
	return float64(values[min(max(i, 0), len(values)-1)])
}

// ratios divides repetition by repetition. It leaves out repetitions in which either
// value is missing.
func ratios(values, base []float64) []float64 {
	var out []float64
	for i := range min(len(values), len(base)) {
		if r := values[i] / base[i]; !math.IsNaN(r) && !math.IsInf(r, 0) {
			out = append(out, r)
		}
	}
	return out
}

// mostOverLeast is measure.MostOverLeast for goroutines most of which have few
// acquisitions: it first subtracts the one acquisition by which even the fairest queue
// differs, because a measurement ends at some point. The least is 1.
func mostOverLeast(counts []int64) float64 {
	if len(counts) == 0 {
		return math.NaN()
	}
	lo, hi := slices.Min(counts), slices.Max(counts)
	if lo == 0 && hi <= 1 {
		return math.NaN() // too short to tell
	}
	return max(1, float64(hi-1)/float64(lo))
}

// quantileOf returns nanoseconds, NaN if the histogram is empty.
func quantileOf(h *measure.Histogram, q float64) float64 {
	if h.N == 0 {
		return math.NaN()
	}
	return float64(h.Quantile(q))
}

func perSecond(n int64, d time.Duration) float64 { return float64(n) / d.Seconds() }
