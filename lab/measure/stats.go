package measure

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// A Histogram counts durations with an error below 1 %: 64 classes for each power of two of
// nanoseconds. The zero Histogram is empty. It is not safe for concurrent use.
type Histogram struct {
	N      int64
	Counts []int64 // by class
}

const classesPerOctave = 64

// Add counts d. A negative d counts as zero.
func (h *Histogram) Add(d time.Duration) {
	c := class(int64(d))
	h.grow(c + 1)
	h.N++
	h.Counts[c]++
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) {
	h.grow(len(o.Counts))
	h.N += o.N
	for c, n := range o.Counts {
		h.Counts[c] += n
	}
}

func (h *Histogram) grow(n int) {
	if n > len(h.Counts) {
		h.Counts = append(h.Counts, make([]int64, n-len(h.Counts))...)
	}
}

// Quantile returns the smallest duration that at least the fraction q of all durations do
// not exceed; 0 if there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := max(1, int64(math.Ceil(q*float64(h.N))))
	for c, n := range h.Counts {
		if rank -= n; rank <= 0 {
			return time.Duration(middle(c))
		}
	}
	return 0
}

// class is the value itself if it is small; otherwise its power of two and the six bits after
// the highest one.
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

// Median returns the middle value, or the mean of the two in the middle; NaN if there is
// none. It skips NaNs.
func Median(values []float64) float64 {
	s := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(s) == 0 {
		return math.NaN()
	}
	slices.Sort(s)
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// MostOverLeast is the largest count divided by the smallest: infinite if the smallest is 0,
// NaN if all are 0.
func MostOverLeast(counts []int64) float64 {
	if len(counts) == 0 || slices.Max(counts) == 0 {
		return math.NaN()
	}
	return float64(slices.Max(counts)) / float64(slices.Min(counts))
}

// Jain is Jain's index of fairness: 1 if all counts are equal, 1/n if only one of n is not 0,
// NaN if all are 0.
func Jain(counts []int64) float64 {
	sum, squares := 0.0, 0.0
	for _, c := range counts {
		sum += float64(c)
		squares += float64(c) * float64(c)
	}
	return sum * sum / (float64(len(counts)) * squares)
}
