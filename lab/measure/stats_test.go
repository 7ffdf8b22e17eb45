package measure

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestHistogramQuantiles(t *testing.T) {
	t.Parallel()
	var h Histogram
	if h.Quantile(0.5) != 0 {
		t.Error("an empty histogram has a median")
	}
	for i := range 1000 { // 1 µs to 1 ms
		h.Add(time.Duration(i+1) * time.Microsecond)
	}
	for q, want := range map[float64]time.Duration{0: 1000, 0.5: 500_000, 0.99: 990_000, 1: 1_000_000} {
		if got := h.Quantile(q); math.Abs(float64(got-want)) > 0.01*float64(want) {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	h.Add(-time.Second)
	if got := h.Quantile(0); got != 0 || h.N != 1001 {
		t.Errorf("a negative duration is counted as %v, %d in all", got, h.N)
	}
}

// Against the exact quantiles of random data, merged from parts.
func TestHistogramAgainstExact(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	var sum Histogram
	for range 10 {
		var part Histogram
		for range 1000 {
			d := time.Duration(math.Exp(random.Float64()*25)) + 1 // from 1 ns to over a minute
			all = append(all, d)
			part.Add(d)
		}
		sum.Merge(&part)
	}
	slices.Sort(all)
	for _, q := range []float64{0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[int(math.Ceil(q*float64(len(all))))-1]
		if got := sum.Quantile(q); math.Abs(float64(got-want)) > 0.01*float64(want)+1 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	last := -1
	for _, ns := range []int64{0, 1, 63, 64, 127, 128, 129, 130, 255, 256, 1 << 20, 1 << 40, math.MaxInt64} {
		c := class(ns)
		if c < last {
			t.Errorf("class(%d) = %d, lower than that of a smaller value", ns, c)
		}
		last = c
		if got := middle(c); math.Abs(got-float64(ns)) > 0.01*float64(ns)+0.5 {
			t.Errorf("%d counts as %v", ns, got)
		}
	}
}

func TestFairness(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts     []int64
		most, jain float64
	}{
		{[]int64{5, 5, 5, 5}, 1, 1},
		{[]int64{8, 0, 0, 0}, math.Inf(1), 0.25},
		{[]int64{1, 2, 3}, 3, 36.0 / 42},
		{[]int64{7}, 1, 1},
		{[]int64{0, 0}, math.NaN(), math.NaN()},
		{nil, math.NaN(), math.NaN()},
	} {
		if got := MostOverLeast(c.counts); !same(got, c.most) {
			t.Errorf("most over least of %v is %v, want %v", c.counts, got, c.most)
		}
		if got := Jain(c.counts); !same(got, c.jain) {
			t.Errorf("Jain's index of %v is %v, want %v", c.counts, got, c.jain)
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, nan},
		{[]float64{nan}, nan},
		{[]float64{3}, 3},
		{[]float64{4, 1}, 2.5},
		{[]float64{9, 1, 5}, 5},
		{[]float64{9, nan, 1, 5}, 5},
		{[]float64{math.Inf(1), 1, 2}, 2},
	} {
		if got := Median(c.values); !same(got, c.want) {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) < 1e-9 }
