package main

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/batonhq/baton/lab/measure"
)

// results are the metrics of a run, by workload, rival and repetition.
type results struct {
	workloads   []*workload
	cells       map[cell][]metrics
	repetitions int
}

type cell struct{ workload, rival string }

func newResults(workloads []*workload) *results {
	return &results{workloads: workloads, cells: make(map[cell][]metrics)}
}

func (r *results) add(workload, rival string, rep int, m metrics) {
	r.repetitions = max(r.repetitions, rep+1)
	c := cell{workload, rival}
	for len(r.cells[c]) <= rep {
		r.cells[c] = append(r.cells[c], nil)
	}
	r.cells[c][rep] = m
}

// values are those of one metric in all repetitions; NaN for a missing one.
func (r *results) values(workload, rival, metric string) []float64 {
	var out []float64
	for _, m := range r.cells[cell{workload, rival}] {
		v, ok := m[metric]
		if !ok {
			v = math.NaN()
		}
		out = append(out, v)
	}
	return out
}

// median of a metric; NaN if it was not measured.
func (r *results) median(workload, rival, metric string) float64 {
	return measure.Median(r.values(workload, rival, metric))
}

// ratio is the median of the ratios of the repetitions.
func (r *results) ratio(workload, rival, base, metric string) float64 {
	return measure.Median(ratios(r.values(workload, rival, metric), r.values(workload, base, metric)))
}

// number is a float64 whose JSON may also be NaN or infinite.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	v := float64(n)
	if math.IsNaN(v) {
		return []byte("null"), nil
	}
	if math.IsInf(v, 0) {
		return json.Marshal(strconv.FormatFloat(v, 'g', -1, 64))
	}
	return json.Marshal(v)
}

func (n *number) UnmarshalJSON(b []byte) error {
	var text string
	switch err := json.Unmarshal(b, &text); {
	case string(b) == "null":
		*n = number(math.NaN())
		return nil
	case err == nil: // not finite
		v, err := strconv.ParseFloat(text, 64)
		*n = number(v)
		return err
	}
	return json.Unmarshal(b, (*float64)(n))
}

// The formats of figures, for people: three significant digits.

func digits(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "∞"
	case a >= 100 || v == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func rate(v float64) string {
	switch {
	case v >= 99_950:
		return strconv.FormatFloat(v/1e3, 'f', 0, 64) + "k"
	case v >= 9_995:
		return strconv.FormatFloat(v/1e3, 'f', 1, 64) + "k"
	}
	return digits(v)
}

// span formats nanoseconds.
func span(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return digits(v)
	case v < 1e3:
		return digits(v) + " ns"
	case v < 1e6:
		return digits(v/1e3) + " µs"
	case v < 1e9:
		return digits(v/1e6) + " ms"
	}
	return digits(v/1e9) + " s"
}

func times(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return digits(v) + " ×"
}
