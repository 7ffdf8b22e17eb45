package main

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// median returns the middle value, or the mean of the two in the middle; NaN
// if there is none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// quantile returns the smallest value that at least the fraction q of all are
// not above; NaN if there is none. It sorts its argument.
func quantile(values []int64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	i := int(math.Ceil(q*float64(len(values)))) - 1
	return float64(values[min(max(i, 0), len(values)-1)])
}

// ratios divides repetition by repetition. A repetition in which either is
// missing is left out.
func ratios(values, base []float64) []float64 {
	var out []float64
	for i := range min(len(values), len(base)) {
		if r := values[i] / base[i]; !math.IsNaN(r) && !math.IsInf(r, 0) {
			out = append(out, r)
		}
	}
	return out
}

// maxOverMin is how many times more the best served got than the worst:
// infinite if somebody got nothing.
func maxOverMin(counts []int64) float64 {
	if len(counts) == 0 {
		return math.NaN()
	}
	lo, hi := slices.Min(counts), slices.Max(counts)
	if hi == 0 {
		return math.NaN()
	}
	return float64(hi) / float64(lo)
}

// mostOverLeast is the same for goroutines of which most took a few turns only:
// the one turn by which even the fairest queue differs, because a measurement
// ends somewhere, is taken off. The least is 1.
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

// histogram counts durations with an error below 1 %: 64 classes for each
// power of two of nanoseconds. The zero histogram is empty.
type histogram struct {
	N      int64
	Counts []int64 // by class
}

const classesPerOctave = 64

func (h *histogram) add(ns int64) {
	c := class(ns)
	h.grow(c + 1)
	h.N++
	h.Counts[c]++
}

func (h *histogram) merge(o histogram) {
	h.grow(len(o.Counts))
	h.N += o.N
	for c, n := range o.Counts {
		h.Counts[c] += n
	}
}

func (h *histogram) grow(n int) {
	if n > len(h.Counts) {
		h.Counts = append(h.Counts, make([]int64, n-len(h.Counts))...)
	}
}

// quantile returns nanoseconds, NaN if the histogram is empty.
func (h *histogram) quantile(q float64) float64 {
	rank := max(1, int64(math.Ceil(q*float64(h.N))))
	for c, n := range h.Counts {
		if rank -= n; rank <= 0 {
			return middle(c)
		}
	}
	return math.NaN()
}

// class numbers small values by themselves, greater ones by their power of two
// and the six bits behind the highest.
func class(ns int64) int {
	v := uint64(max(ns, 0))
	if v < classesPerOctave {
		return int(v)
	}
	shift := bits.Len64(v) - 7
	return shift*classesPerOctave + int(v>>shift)
}

// middle is the value in the middle of a class.
func middle(c int) float64 {
	if c < 2*classesPerOctave {
		return float64(c)
	}
	shift := c/classesPerOctave - 1
	width := float64(int64(1) << shift)
	return float64(c-shift*classesPerOctave)*width + width/2
}

func perSecond(n int64, d time.Duration) float64 { return float64(n) / d.Seconds() }
