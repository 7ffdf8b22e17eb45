package measure

import (
	"math"
	"strconv"
)

// A Metric is one of the Figures, for tables and pictures.
type Metric struct {
	Name   string // for programs
	Title  string // for people
	Get    func(Figures) float64
	Format func(float64) string
	Best   int // -1 if less is better, 1 if more is
	// Shared says that it has a meaning only if goroutines share a key.
	Shared bool
}

// Metrics are all metrics, in the order in which they are shown.
var Metrics = []Metric{
	{"p50", "time for one lock, p50", func(f Figures) float64 { return f.P50 }, Span, -1, false},
	{"p99", "time for one lock, p99", func(f Figures) float64 { return f.P99 }, Span, -1, false},
	{"jitter", "jitter", func(f Figures) float64 { return f.Jitter }, Span, -1, false},
	{"rate", "locks per second", func(f Figures) float64 { return f.Rate }, Count, 1, false},
	{"hand_offs", "of these, handed to another goroutine", func(f Figures) float64 { return f.HandOffs }, Count, 1, true},
	{"most_over_least", "most served ÷ least served", func(f Figures) float64 { return f.MostOverLeast }, Digits, -1, true},
	{"jain", "fairness (Jain's index, 1 is even)", func(f Figures) float64 { return f.Jain }, fraction, 1, true},
}

// A Table shows one Metric of one Shape.
type Table struct {
	Shape  Shape
	Metric Metric
	Head   []string
	Rows   [][]string // the first cell is the target's name
}

// Tables shows all medians: a row for each target, a column for each number of goroutines.
func (r *Result) Tables() []Table {
	var all []Table
	for _, s := range Shapes {
		for _, m := range Metrics {
			if m.Shared && s == Apart {
				continue
			}
			t := Table{Shape: s, Metric: m, Head: []string{"goroutines"}}
			for _, n := range r.Goroutines {
				t.Head = append(t.Head, strconv.Itoa(n))
			}
			for _, target := range r.Targets {
				row := []string{target}
				known := false
				for _, n := range r.Goroutines {
					v := math.NaN()
					if c := r.Cell(target, s, n); c != nil && !(m.Shared && n == 1) {
						v = m.Get(c.Median())
					}
					known = known || !math.IsNaN(v)
					row = append(row, m.Format(v))
				}
				if known {
					t.Rows = append(t.Rows, row)
				}
			}
			if len(t.Rows) > 0 {
				all = append(all, t)
			}
		}
	}
	return all
}

// The formats of figures for people have the three digits that count.

// Digits formats a number without a unit.
func Digits(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "∞"
	case a >= 99.95 || v == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// Count formats a number of things.
func Count(v float64) string {
	switch {
	case v >= 999_500 && !math.IsInf(v, 0):
		return Digits(v/1e6) + "M"
	case v >= 9_995 && !math.IsInf(v, 0):
		return Digits(v/1e3) + "k"
	}
	return Digits(v)
}

// Span formats seconds.
func Span(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return Digits(v)
	case v < 999.5e-9:
		return Digits(v*1e9) + " ns"
	case v < 999.5e-6:
		return Digits(v*1e6) + " µs"
	case v < 999.5e-3:
		return Digits(v*1e3) + " ms"
	}
	return Digits(v) + " s"
}

// fraction formats a value between 0 and 1.
func fraction(v float64) string {
	if math.IsNaN(v) {
		return Digits(v)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}
