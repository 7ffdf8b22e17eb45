package measure

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// What is read from JSON gives the same JSON, and the same pages.
func TestReportIsReadAgain(t *testing.T) {
	t.Parallel()
	r := &Report{
		Result: &Result{
			Targets: []string{"a", "b"}, Goroutines: []int{1, 2},
			Cells: []*Cell{
				{Target: "a", Shape: Line, Goroutines: 1, Repetitions: []Figures{{P50: 1e-6, P99: 2e-6, Jitter: math.NaN(), Rate: 5, MostOverLeast: math.NaN(), Jain: 1, Lost: 2}}},
				{Target: "b", Shape: Apart, Goroutines: 2, Repetitions: []Figures{{P50: 1}, {P50: 2, Lost: 1}}},
			},
			Failed: map[string]error{"b": errors.New("no more")},
		},
		Stores: []Store{{"a", "memory:"}, {"b", "redis://h"}},
		Began:  time.Date(2026, 11, 21, 18, 48, 0, 0, time.UTC), Took: 201 * time.Second,
		Build: "v1", Go: "go1", Platform: "linux/amd64", CPUs: 2, Repetitions: 3, Rounded: true,
	}
	first, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(first, &again); err != nil {
		t.Fatal(err)
	}
	second, err := json.Marshal(&again)
	if err != nil {
		t.Fatal(err)
	}
	if string(first) != string(second) {
		t.Errorf("it is\n%s\nand then\n%s", first, second)
	}
	var one, two strings.Builder
	r.Markdown(&one)
	again.Markdown(&two)
	if one.String() != two.String() || strings.Join(r.Notes(), "\n") != strings.Join(again.Notes(), "\n") || len(r.Notes()) != 2 {
		t.Errorf("the page is\n%s\nand then\n%s", one.String(), two.String())
	}
	if !strings.Contains(one.String(), "2026-11-21 18:48 UTC") || !strings.Contains(one.String(), "3m21s") {
		t.Errorf("it does not say when: %s", one.String())
	}
}

// A report with all repetitions is complete, whatever its file says.
func TestCompleteIsCounted(t *testing.T) {
	t.Parallel()
	r := Report{Result: &Result{Targets: []string{"a"}, Goroutines: []int{1}, Failed: map[string]error{}}, Stores: []Store{{"a", ""}}, Repetitions: 2}
	for _, s := range Shapes {
		r.Result.Cells = append(r.Result.Cells, &Cell{Target: "a", Shape: s, Goroutines: 1, Repetitions: []Figures{{P50: 1}, {P50: 1}}})
	}
	for want, drop := range map[bool]int{true: 0, false: 1} {
		r.Result.Cells[2].Repetitions = r.Result.Cells[2].Repetitions[:2-drop]
		text, err := json.Marshal(&r) // says that it is not complete
		var again Report
		if err := errors.Join(err, json.Unmarshal(text, &again)); err != nil {
			t.Fatal(err)
		}
		if again.Result.Complete != want || len(again.Notes()) != drop {
			t.Errorf("complete %v, want %v; notes %q", again.Result.Complete, want, again.Notes())
		}
		r.Result.Cells[2].Repetitions = []Figures{{P50: 1}, {P50: 1}}
	}
}

// Figures of a busy machine are refused, and so are those of a single repetition.
func TestBusyMachineIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p50  []float64 // of a cell, beside two steady ones
		more float64
		ok   bool
	}{
		{[]float64{1, 9, 1}, 1.2, true}, // one cell
		{[]float64{1, 1.1, 1}, 1.6, false},
		{[]float64{1}, 1, false},
	} {
		r := Result{Cells: []*Cell{{}}}
		for _, v := range c.p50 {
			r.Cells[0].Repetitions = append(r.Cells[0].Repetitions, Figures{P50: v})
		}
		for range 2 {
			if len(c.p50) > 1 {
				r.Cells = append(r.Cells, &Cell{Repetitions: []Figures{{P50: 1}, {P50: c.more}}})
			}
		}
		if err := r.Steady(); (err == nil) != c.ok {
			t.Errorf("%v: %v", c, err)
		}
	}
}
