package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A Report is a Result, and the circumstances of its measurement. Its JSON can be read
// again, so pages can be made from it at any time.
type Report struct {
	Result *Result
	Stores []Store // in the order of the result's targets

	Began    time.Time
	Took     time.Duration
	Build    string // of the program
	Go       string // its version
	Platform string // linux/amd64
	CPUs     int    // of the program

	Repetitions int // planned

	// Rounded says that figures are rounded: of each one there is the median with three
	// digits, and the lowest and the highest with two or three.
	Rounded bool
}

// A Store describes a target.
type Store struct {
	Name  string
	About string // its URL without secrets, or a description
}

type reportJSON struct {
	Complete    bool              `json:"complete"`
	Rounded     bool              `json:"rounded,omitempty"`
	Began       time.Time         `json:"began"`
	Took        float64           `json:"took"`
	Build       string            `json:"build"`
	Go          string            `json:"go"`
	Platform    string            `json:"platform"`
	CPUs        int               `json:"cpus"`
	Repetitions int               `json:"repetitions"`
	Method      []string          `json:"method"`
	Stores      []storeJSON       `json:"stores"`
	Results     []cellJSON        `json:"results"`
	Failed      map[string]string `json:"failed"`
}

type storeJSON struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

type cellJSON struct {
	Store       string                `json:"store"`
	Shape       Shape                 `json:"shape"`
	Goroutines  int                   `json:"goroutines"`
	Median      map[string]*float64   `json:"median"`
	Lost        int64                 `json:"lost"`
	Repetitions []map[string]*float64 `json:"repetitions"`
}

// MarshalJSON is the form of "baton-lab bench -o json".
func (r *Report) MarshalJSON() ([]byte, error) {
	v := reportJSON{
		Complete: r.Result.Complete, Rounded: r.Rounded, Began: r.Began.UTC().Truncate(time.Second), Took: r.Took.Round(time.Millisecond).Seconds(),
		Build: r.Build, Go: r.Go, Platform: r.Platform, CPUs: r.CPUs, Repetitions: r.Repetitions,
		Method: r.Method(), Results: []cellJSON{}, Failed: map[string]string{},
	}
	for _, s := range r.Stores {
		v.Stores = append(v.Stores, storeJSON{s.Name, s.About})
	}
	for name, err := range r.Result.Failed {
		v.Failed[name] = err.Error()
	}
	for _, c := range r.Result.Cells {
		median := c.Median()
		one := cellJSON{Store: c.Target, Shape: c.Shape, Goroutines: c.Goroutines, Median: figuresJSON(median), Lost: median.Lost}
		for _, f := range c.Repetitions {
			one.Repetitions = append(one.Repetitions, figuresJSON(f))
		}
		v.Results = append(v.Results, one)
	}
	return json.Marshal(v)
}

// UnmarshalJSON reads the output of MarshalJSON. A null is an unknown figure. Complete is
// computed, not read.
func (r *Report) UnmarshalJSON(text []byte) error {
	var v reportJSON
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	*r = Report{
		Result: &Result{Failed: map[string]error{}}, Rounded: v.Rounded,
		Began: v.Began, Took: time.Duration(v.Took * float64(time.Second)), Build: v.Build, Go: v.Go, Platform: v.Platform, CPUs: v.CPUs,
		Repetitions: v.Repetitions,
	}
	for _, s := range v.Stores {
		r.Stores = append(r.Stores, Store{s.Name, s.URL})
		r.Result.Targets = append(r.Result.Targets, s.Name)
	}
	for name, what := range v.Failed {
		r.Result.Failed[name] = errors.New(what)
	}
	for _, c := range v.Results {
		if !slices.Contains(r.Result.Goroutines, c.Goroutines) {
			r.Result.Goroutines = append(r.Result.Goroutines, c.Goroutines)
		}
		cell := &Cell{Target: c.Store, Shape: c.Shape, Goroutines: c.Goroutines}
		for i, of := range c.Repetitions {
			f := figuresOf(of)
			if i == 0 {
				f.Lost = c.Lost
			}
			cell.Repetitions = append(cell.Repetitions, f)
		}
		r.Result.Cells = append(r.Result.Cells, cell)
	}
	slices.Sort(r.Result.Goroutines)
	r.Result.Complete = r.Result.complete(Shapes, r.Repetitions)
	return nil
}

// figuresJSON has null for numbers that JSON cannot write.
func figuresJSON(f Figures) map[string]*float64 {
	all := map[string]*float64{}
	for _, m := range Metrics {
		all[m.Name] = nil
		if v := m.Get(f); !math.IsNaN(v) && !math.IsInf(v, 0) {
			all[m.Name] = &v
		}
	}
	return all
}

func figuresOf(all map[string]*float64) Figures {
	of := func(name string) float64 {
		if v := all[name]; v != nil {
			return *v
		}
		return math.NaN()
	}
	return Figures{
		P50: of("p50"), P99: of("p99"), Jitter: of("jitter"), Rate: of("rate"), HandOffs: of("hand_offs"),
		MostOverLeast: of("most_over_least"), Jain: of("jain"),
	}
}

// Method describes the measurement in sentences.
func (r *Report) Method() []string {
	began, took := r.Began.UTC().Format("2006-01-02 15:04 UTC"), shortSpan(r.Took)
	all := []string{
		fmt.Sprintf("Measured on %s within %s, by baton %s, %s.", began, took, r.Build, r.Go),
		fmt.Sprintf("The program had %d CPUs, %s; servers on the same machine share them.", r.CPUs, r.Platform),
		fmt.Sprintf("%d repetitions, each of everything in turn, the order of the stores rotating: figures are medians over the repetitions, bars in the plots go from the lowest to the highest.", r.Repetitions),
		"A closed loop: each goroutine locks and unlocks with nothing done in between, and asks again at once. Every lock is checked: no other goroutine may be inside, and tokens must rise.",
		"Times are those of lock and unlock together. Jitter is how much two locks of the same goroutine that follow each other differ, in the mean. Jain's index is 1 if all are served alike and 1/n if one of n has everything.",
	}
	if r.Rounded {
		all = append(all, "The single repetitions of this run were not kept: medians have three digits, and the ends of the bars two or three.")
	}
	return all
}

// shortSpan formats a duration without units that are zero at its end.
func shortSpan(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Notes describes failures in sentences.
func (r *Report) Notes() (all []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Result.Failed)) {
		all = append(all, name+" failed, and was left out from then on: "+r.Result.Failed[name].Error())
	}
	if !r.Result.Complete {
		all = append(all, "Not everything was measured.")
	}
	return all
}

// Markdown writes all tables, Method and Notes.
func (r *Report) Markdown(w *strings.Builder) {
	var last Shape
	line := func(cells []string) {
		figures := strings.ReplaceAll(strings.Join(cells[1:], "|"), " ", "\u00a0") // a number stays with its unit
		w.WriteString("| " + cells[0] + " | " + strings.ReplaceAll(figures, "|", " | ") + " |\n")
	}
	for _, t := range r.Result.Tables() {
		if t.Shape != last {
			fmt.Fprintf(w, "## %s\n\n", Capital(t.Shape.String()))
			if note := t.Shape.Note(); note != "" {
				w.WriteString(note + "\n\n")
			}
			last = t.Shape
		}
		fmt.Fprintf(w, "**%s**\n\n", t.Metric.Title)
		line(t.Head)
		w.WriteString("|---" + strings.Repeat("|--:", len(t.Head)-1) + "|\n")
		for _, row := range t.Rows {
			line(row)
		}
		w.WriteByte('\n')
	}
	w.WriteString("## " + HowMeasured + "\n\n")
	for _, s := range r.Method() {
		w.WriteString("- " + s + "\n")
	}
}

// Capital makes the first letter a capital.
func Capital(text string) string {
	first, n := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[n:]
}

// HowMeasured is the heading above Method.
const HowMeasured = "How this was measured"
