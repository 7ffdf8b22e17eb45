package measure

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/lab/language"
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
	for _, l := range []language.Language{language.English, language.Chinese} {
		var one, two strings.Builder
		r.Markdown(&one, l)
		again.Markdown(&two, l)
		if one.String() != two.String() || strings.Join(r.Notes(l), "\n") != strings.Join(again.Notes(l), "\n") || len(r.Notes(l)) != 2 {
			t.Errorf("%s: the page is\n%s\nand then\n%s", l, one.String(), two.String())
		}
		if !strings.Contains(one.String(), "2026-11-21 18:48 UTC") || !strings.Contains(one.String(), "3m21s") {
			t.Errorf("%s: it does not say when: %s", l, one.String())
		}
	}
}

// Each metric and shape has words of its own in each language.
func TestLanguages(t *testing.T) {
	t.Parallel()
	for _, l := range []language.Language{language.English, language.Chinese} {
		seen := map[string]bool{}
		for _, m := range Metrics {
			seen[m.In(l)] = true
		}
		for _, s := range Shapes {
			seen[s.In(l)] = true
		}
		if len(seen) != len(Metrics)+len(Shapes) || seen[""] {
			t.Errorf("%s: %v", l, seen)
		}
	}
}
