package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	plain "text/template"
	"unicode/utf8"

	"github.com/batonhq/baton/lab/measure"
)

// A table is a part of a report.
type table struct {
	Title string
	Head  []string
	Rows  [][]string
}

// tables are one for every workload with figures.
func (r *results) tables() []table {
	var all []table
	for _, w := range r.workloads {
		t := table{Title: w.title, Head: []string{"rival"}}
		for _, c := range w.columns {
			t.Head = append(t.Head, c.head)
			if c.ratio {
				t.Head = append(t.Head, "÷ "+w.base)
			}
		}
		for _, name := range w.names {
			if r.cells[cell{w.name, name}] == nil {
				continue
			}
			row := []string{name}
			for _, c := range w.columns {
				row = append(row, c.format(r.median(w.name, name, c.metric)))
				if c.ratio {
					ratio := "–"
					if name != w.base {
						ratio = times(r.ratio(w.name, name, w.base, c.metric))
					}
					row = append(row, ratio)
				}
			}
			t.Rows = append(t.Rows, row)
		}
		if len(t.Rows) > 0 {
			all = append(all, t)
		}
	}
	return all
}

// goalTable compares the measured figures with the goals.
func (r *results) goalTable() table {
	t := table{Title: "Goals: ✓ or ✗ required [wanted]", Head: []string{"figure", "measured", "lowest–highest", "goal"}}
	for _, g := range goals {
		all := g.figures(r)
		if len(all) == 0 {
			continue
		}
		v := measure.Median(all)
		between := "–"
		if len(all) > 1 {
			between = digits(slices.Min(all)) + "–" + digits(slices.Max(all))
		}
		t.Rows = append(t.Rows, []string{g.what, g.format(v), between, g.verdict(v)})
	}
	return t
}

func writeText(w io.Writer, r *results, m method) error {
	var b strings.Builder
	for _, t := range append(r.tables(), r.goalTable()) {
		if len(t.Rows) > 0 {
			writeTable(&b, t)
		}
	}
	for _, l := range []struct {
		title string
		lines []string
	}{{"Notes", m.Notes}, {"Method", m.Lines}} {
		if len(l.lines) > 0 {
			b.WriteString(l.title + "\n\n  " + strings.Join(l.lines, "\n  ") + "\n\n")
		}
	}
	b.WriteString("Rivals\n\n")
	for _, line := range m.Rivals {
		fmt.Fprintf(&b, "  %s\n      %s\n", line.Name, line.About)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeTable aligns the first column, and the text of goals, to the left, and other columns
// to the right.
func writeTable(b *strings.Builder, t table) {
	widths := make([]int, len(t.Head))
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		for i, s := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(s))
		}
	}
	b.WriteString(t.Title + "\n\n")
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		line := "  "
		for i, s := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(s))
			if i == 0 || t.Head[i] == "goal" {
				line += s + pad + "  "
			} else {
				line += pad + s + "  "
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	b.WriteString("\n")
}

// The JSON report has all repetitions. Times are in nanoseconds.
type jsonReport struct {
	Method    method         `json:"method"`
	Workloads []jsonWorkload `json:"workloads"`
	Goals     []jsonGoal     `json:"goals"`
}

type jsonWorkload struct {
	Name   string      `json:"name"`
	Title  string      `json:"title"`
	Base   string      `json:"base,omitempty"`
	Rivals []jsonRival `json:"rivals"`
}

type jsonRival struct {
	Name        string              `json:"name"`
	Median      map[string]number   `json:"median"`
	Ratio       map[string]number   `json:"ratio,omitempty"` // median of the ratios to the base
	Repetitions []map[string]number `json:"repetitions"`
}

type jsonGoal struct {
	Figure   string `json:"figure"`
	Measured number `json:"measured"`
	AtMost   bool   `json:"at_most"`
	Required number `json:"required"`
	Wanted   number `json:"wanted"`
	Reached  bool   `json:"reached"`
}

func writeJSON(w io.Writer, r *results, m method) error {
	report := jsonReport{Method: m}
	for _, wl := range r.workloads {
		jw := jsonWorkload{Name: wl.name, Title: wl.title, Base: wl.base}
		for _, name := range wl.names {
			reps := r.cells[cell{wl.name, name}]
			if reps == nil {
				continue
			}
			jr := jsonRival{Name: name, Median: map[string]number{}, Ratio: map[string]number{}}
			for _, rep := range reps {
				figures := map[string]number{}
				for metric, v := range rep {
					figures[metric] = number(v)
					jr.Median[metric] = number(r.median(wl.name, name, metric))
					if v := r.ratio(wl.name, name, wl.base, metric); !math.IsNaN(v) && name != wl.base {
						jr.Ratio[metric] = number(v)
					}
				}
				jr.Repetitions = append(jr.Repetitions, figures)
			}
			jw.Rivals = append(jw.Rivals, jr)
		}
		if len(jw.Rivals) > 0 {
			report.Workloads = append(report.Workloads, jw)
		}
	}
	for _, g := range goals {
		if v := measure.Median(g.figures(r)); !math.IsNaN(v) {
			report.Goals = append(report.Goals, jsonGoal{g.what, number(v), g.atMost, number(g.must), number(g.want), g.reached(v, g.must)})
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(report)
}

var (
	//go:embed report.html
	page         string
	pageTemplate = template.Must(template.New("report").Parse(page))

	//go:embed report.md.tmpl
	markdown         string
	markdownTemplate = plain.Must(plain.New("report").Parse(markdown))
)

func writeHTML(w io.Writer, r *results, m method) error {
	return pageTemplate.Execute(w, struct {
		Goals  table
		Tables []table
		Method method
	}{r.goalTable(), r.tables(), m})
}

func writeMarkdown(w io.Writer, r *results, m method) error {
	var tables strings.Builder
	for _, t := range r.tables() {
		writeTable(&tables, t)
	}
	return markdownTemplate.Execute(w, struct {
		Goals  table
		Tables string
		Method method
	}{r.goalTable(), strings.TrimRight(tables.String(), "\n") + "\n", m})
}

// readJSON reads what writeJSON has written, for known workloads.
func readJSON(from io.Reader, workloads []*workload) (*results, method, error) {
	var report jsonReport
	if err := json.NewDecoder(from).Decode(&report); err != nil {
		return nil, method{}, err
	}
	res := newResults(workloads)
	for _, jw := range report.Workloads {
		if !slices.ContainsFunc(workloads, func(w *workload) bool { return w.name == jw.Name }) {
			return nil, method{}, fmt.Errorf("there is no workload %q", jw.Name)
		}
		for _, jr := range jw.Rivals {
			for rep, figures := range jr.Repetitions {
				m := make(metrics)
				for metric, v := range figures {
					m[metric] = float64(v)
				}
				res.add(jw.Name, jr.Name, rep, m)
			}
		}
	}
	return res, report.Method, nil
}
